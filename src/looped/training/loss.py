"""The loss of a batch, on the last loop or on several. It is summed while the loops run, so that no logits pile up."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from looped.config import TrainConfig
from looped.kernels import linear_cross_entropy
from looped.models import LoopModel
from looped.tasks import Batch
from looped.training.schedules import backprop_loops, supervised_loops
from looped.utils.errors import require, require_field

LARGE_VOCABULARY = 4096
"""from this vocabulary size on, logits are never stored"""


class TensorBatch(NamedTuple):
    """A `Batch` on a device."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor


class LossOutput(NamedTuple):
    """Loss and accuracy of a batch."""

    loss: Tensor
    accuracy: Tensor
    """fraction of counted positions that are right at the last loop (for regression: minus the squared error)"""


def to_device(batch: Batch, device: torch.device) -> TensorBatch:
    """Return a batch as tensors on a device; the copy to a GPU does not block."""
    arrays = (torch.from_numpy(array) for array in batch)
    if device.type == "cuda":
        arrays = (array.pin_memory().to(device, non_blocking=True) for array in arrays)
    return TensorBatch(*(array.to(device) for array in arrays))


def loop_loss(scores: Tensor, batch: TensorBatch) -> Tensor:
    """Return the mean loss over the counted positions."""
    weight = batch.mask.to(scores.dtype)
    return (position_losses(scores, batch.targets) * weight).sum() / weight.sum()


def position_losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of class scores, or the squared error of values, at every position: (batch, seq)."""
    if targets.is_floating_point():
        return (scores - targets.to(scores.dtype)).square().mean(dim=-1)
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def loss_and_answers(model: LoopModel, state: Tensor, batch: TensorBatch) -> tuple[Tensor, Tensor]:
    """Return the loss of one loop and its scores. For a large vocabulary, return which positions are right instead."""
    if batch.targets.is_floating_point() or model.spec.output_size < LARGE_VOCABULARY:
        scores = model.read_out(state)
        return loop_loss(scores, batch), scores
    weight = batch.mask.to(state.dtype)
    hidden, head = model.hidden_for_head(state), model.head_weight
    loss, _, right = linear_cross_entropy(hidden, head, batch.targets, weight / weight.sum())
    return loss, right


Read = Callable[[LoopModel, Tensor, TensorBatch], tuple[Tensor, Tensor]]
"""read-out of one loop's state: (model, state, batch) -> loss and scores"""
OwnLoss = Callable[[Tensor, TensorBatch], Tensor]
"""a user's loss: (scores, batch) -> a scalar, the mean over the counted positions"""


def own_read(loss: OwnLoss) -> Read:
    """Return a read-out with a user's loss. When it is called, raise InputError unless the loss is a scalar."""
    require_field(not isinstance(loss, type), "train.loss", "a function of scores and batch", repr(loss))

    def read(model: LoopModel, state: Tensor, batch: TensorBatch) -> tuple[Tensor, Tensor]:
        scores = model.read_out(state)
        value = loss(scores, batch)
        is_scalar = isinstance(value, Tensor) and value.shape == ()
        require(is_scalar, f"train.loss: expected a scalar tensor, got {getattr(value, 'shape', value)!r}")
        return value, scores

    return read


def objective(
    model: LoopModel,
    batch: TensorBatch,
    num_loops: int,
    config: TrainConfig,
    read: Read = loss_and_answers,
    free_loops: int = 0,
) -> LossOutput:
    """Run the loops and return the loss over the supervised ones. `read` may be a compiled `loss_and_answers`.

    `free_loops` loops without a gradient come first.
    """
    if config.supervision == "halting":
        return _halting_objective(model, batch, num_loops, config, free_loops)
    supervised = supervised_loops(config, num_loops)
    backprop = backprop_loops(config, num_loops)
    total = answers = None
    last = free_loops + num_loops
    for _, state in model.states_at(batch.inputs, last, range(last - supervised, last), backprop):
        loss, answers = read(model, state, batch)
        total = loss if total is None else total + loss
    assert total is not None
    assert answers is not None
    if config.supervision == "mean":
        total = total / supervised
    return LossOutput(total, _accuracy(answers.detach(), batch))


def _halting_objective(
    model: LoopModel, batch: TensorBatch, num_loops: int, config: TrainConfig, free_loops: int
) -> LossOutput:
    """Return the loss expected at the loop where the halting gate stops, plus a cost (PonderNet, Banino et al., 2021).

    Each position has its own distribution over the loops. The last loop stops for certain. The cost is the KL
    divergence from the distribution of a gate that always stops with one probability.
    """
    chance = 1 / (config.halting_loops or max(2.0, num_loops / 2))
    going = torch.zeros(batch.mask.shape, device=batch.mask.device)  # log-probability that no loop has stopped
    prior = 0.0  # the same of a gate with one probability
    expected = torch.zeros_like(going)
    scores = None
    last = free_loops + num_loops
    for t, state in model.states_at(batch.inputs, last, range(free_loops, last), backprop_loops(config, num_loops)):
        scores = model.read_out(state)
        here, here_prior = going, prior
        if t < last - 1:
            logits = model.halting_logits(state)
            here, going = going + F.logsigmoid(logits), going + F.logsigmoid(-logits)
            here_prior, prior = prior + math.log(chance), prior + math.log1p(-chance)
        cost = config.halting_cost * (here - here_prior)
        expected = expected + here.exp() * (position_losses(scores, batch.targets) + cost)
    assert scores is not None
    weight = batch.mask.to(expected.dtype)
    return LossOutput((expected * weight).sum() / weight.sum(), _accuracy(scores.detach(), batch))


def _accuracy(answers: Tensor, batch: TensorBatch) -> Tensor:
    if batch.targets.is_floating_point():
        return -loop_loss(answers, batch)
    right = answers if answers.dtype == torch.bool else answers.argmax(dim=-1) == batch.targets
    return (right * batch.mask).sum() / batch.mask.sum()
