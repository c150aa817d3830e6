"""Tables of runs beside the paper's numbers: what they are, how they are run, what is written about them."""

from looped.experiments.spec import Cell, EvalPlan, Experiment

__all__ = ["Cell", "EvalPlan", "Experiment"]
