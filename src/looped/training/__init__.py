"""From a `RunConfig` to a folder with the trained model, its log and its result."""

from looped.models.engines import set_engine
from looped.training.evaluation import evaluate
from looped.training.trainer import Interrupted, Trainer, train

__all__ = ["Interrupted", "Trainer", "evaluate", "set_engine", "train"]
