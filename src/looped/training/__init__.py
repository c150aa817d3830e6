"""Training: from a `RunConfig` to a run folder with checkpoints, log and result."""

from looped.models.engines import set_engine
from looped.training.callbacks import Callback
from looped.training.evaluation import Evaluation, LoopScore, evaluate
from looped.training.trainer import Interrupted, Trainer, train

__all__ = ["Callback", "Evaluation", "Interrupted", "LoopScore", "Trainer", "evaluate", "set_engine", "train"]
