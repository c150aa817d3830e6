"""Training: from a `RunConfig` to a run folder with checkpoints, log and result."""

from looped.models.engines import set_engine
from looped.training.evaluation import evaluate
from looped.training.trainer import Interrupted, Trainer, train

__all__ = ["Interrupted", "Trainer", "evaluate", "set_engine", "train"]
