"""Callbacks: a user's code that a trainer calls after steps, evaluations and checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from looped.training.trainer import Trainer


class Callback:
    """Base class of callbacks. Override what you need.

    Callbacks must not change the weights, because a resumed run does not call them for earlier steps again. With
    several processes, only rank 0 calls them. There `on_evaluation` alone sees the whole weights of a sharded model.
    """

    def on_step(self, trainer: "Trainer", step: int, outcome: Tensor) -> None:
        """Run after step number `step`. `outcome` holds loss, accuracy, gradient norm and skipped, on the device."""

    def on_evaluation(self, trainer: "Trainer", step: int, validation: float) -> None:
        """Run after a validation. `step` is the number of finished steps.

        The model has the weights that were validated, the moving average if one is kept, and no dropout. So
        `trainer.evaluate("test")` works here, also where the model is sharded.
        """

    def on_checkpoint(self, trainer: "Trainer", step: int, path: Path) -> None:
        """Run after a checkpoint was written to `path`."""
