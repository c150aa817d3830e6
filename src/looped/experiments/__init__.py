"""Tables of runs beside the paper's numbers: what they are, how they are run, what is written about them."""
