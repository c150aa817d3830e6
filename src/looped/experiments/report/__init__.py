"""From records to a page: compare with the paper, draw charts, write HTML."""
