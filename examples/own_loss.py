"""Your own loss and callback, without a trainer of your own. Run it, or use both on the command line:

looped train lcs --train.loss examples/own_loss.py:focal_loss --callback examples/own_loss.py:StopEarly
"""

import torch
import torch.nn.functional as F

import looped


def focal_loss(scores: torch.Tensor, batch) -> torch.Tensor:
    """Return the mean cross-entropy, with less weight on positions that are right already (Lin et al., 2017)."""
    losses = F.cross_entropy(scores.flatten(0, 1), batch.targets.flatten(), reduction="none").view_as(batch.targets)
    weight = batch.mask.to(scores.dtype)
    return ((1 - torch.exp(-losses)) ** 2 * losses * weight).sum() / weight.sum()


class StopEarly(looped.Callback):
    """Stop once validation has not improved for a few evaluations."""

    def __init__(self, patience: int = 3) -> None:
        self.patience, self.best, self.worse = patience, float("-inf"), 0

    def on_evaluation(self, trainer: looped.Trainer, step: int, validation: float) -> None:
        self.worse = 0 if validation > self.best else self.worse + 1
        self.best = max(self.best, validation)
        print(f"step {step}: validation {validation:.3f}, best {self.best:.3f}")
        if self.worse >= self.patience:
            trainer.request_stop()


if __name__ == "__main__":
    config = looped.configure(
        "laptop",
        "lcs",
        length=4,
        alphabet=2,
        max_letters=2,
        dim=32,
        num_loops=3,
        num_steps=200,
        eval_every=20,
        eval_size=100,
    )
    result = looped.train(config, "runs/focal", loss=focal_loss, callbacks=[StopEarly()], quiet=True)
    print(f"stopped after {result.step} of {result.num_steps} steps by {result.stopped_by or 'nothing'}")
