"""Evaluate a model on held-out examples at chosen loop counts, with intervals and the best constant answer."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from looped.config import RunConfig
from looped.models import LoopModel
from looped.serde import Positive, decode, decode_value, encode
from looped.tasks import Batch, Split, Task
from looped.tasks.base import MAX_EXAMPLES
from looped.training.batches import trained_on
from looped.training.loss import position_losses
from looped.utils.errors import require_counts, require_field, require_type
from looped.utils.stats import bootstrap, mean_interval
from looped.utils.text import plural
from looped.utils.types import Progress

# All runs are measured on the same held-out examples, whatever their training seed.
EVALUATION_SEED = 0
MAX_BATCH = 250
MAX_SCORES = 2**28

Observer = Callable[[int, int, Batch, Tensor], None]
"""a function of a loop count, the number of a batch's first example, the batch and its scores"""


class Stopped(Exception):
    """An evaluation was stopped before it was complete."""


@dataclass(frozen=True)
class LoopScore:
    """The metrics of a model after one number of loops."""

    loops: Positive
    metrics: dict[str, float]
    """means over all examples, by name; they are NaN if any output is not finite"""
    low: float
    """lower end of the 95 % interval of the task's metric"""
    high: float
    """upper end of the same interval"""
    curve: tuple[float, ...] | None = None
    """mean error at each position of an example, if the task defines it"""

    @property
    def is_finite(self) -> bool:
        """Return whether every number is finite."""
        return all(map(math.isfinite, (*self.metrics.values(), self.low, self.high, *(self.curve or ()))))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, with the metrics beside the other fields."""
        curve = {} if self.curve is None else {"curve": list(self.curve)}
        return {"loops": self.loops, **self.metrics, **curve, "low": self.low, "high": self.high}

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> "LoopScore":
        """Return the score that `to_json` wrote. Raise InputError for a wrong value."""
        if not isinstance(data, Mapping):
            return decode(cls, data, where)
        own = {name: value for name, value in data.items() if name in ("loops", "low", "high", "curve")}
        rest = {name: value for name, value in data.items() if name not in own}
        return decode(cls, own, where, metrics=decode_value(dict[str, float], rest, where))


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on examples of one split, at one or more loop counts."""

    task: str
    split: Split
    size: Positive
    """number of examples"""
    metric: str
    """name of the task's metric, to which the intervals belong"""
    baseline: float
    """metric of the best constant answer"""
    trained_loops: int
    rows: tuple[LoopScore, ...]
    """one score per loop count, in ascending order"""

    def at(self, loops: int) -> LoopScore | None:
        """Return the score after so many loops, or None if it was not measured."""
        return next((row for row in self.rows if row.loops == loops), None)

    @property
    def trained(self) -> LoopScore:
        """Return the score at the number of loops that the model was trained with."""
        score = self.at(self.trained_loops)
        if score is None:
            raise KeyError(f"{self.trained_loops} loops, the trained number, were not evaluated")
        return score

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return encode(self)

    def table(self, test_set: str = "") -> str:
        """Return the scores as a small table. `test_set` names the examples if they are not the task's own."""
        title = ", ".join(filter(None, (self.task, test_set)))
        width = max(10, len(self.metric))
        lines = [
            f"{title}: {self.size} {self.split} examples, trained with {plural(self.trained_loops, 'loop')}",
            f"{'loops':>6}  {self.metric:>{width}}  95 % interval",
        ]
        for row in self.rows:
            value = row.metrics[self.metric]
            number = f"{value:>{width}.4f}  {row.low:.4f} to {row.high:.4f}"
            lines.append(f"{row.loops:>6}  {number if row.is_finite else f'the outputs overflow: no {self.metric}'}")
        return "\n".join([*lines, f"best constant answer: {self.baseline:.4f}"])

    def __str__(self) -> str:
        return self.table()


def evaluate(
    model: LoopModel,
    task: Task,
    split: Split = "test",
    size: int | None = None,
    loops: int | Sequence[int] | None = None,
    *,
    example_size: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    observe: Observer | None = None,
) -> Evaluation:
    """Return metrics of `size` examples of a split (default: the task's own number) at each loop count.

    For a loaded run, `run.evaluate()` is shorter.

    Examples have the task's size or a smaller `example_size`. `Stopped` is raised before a batch if `stopped()` is
    true. `progress` is called after each batch, and `observe` with the scores of each batch at each loop count.
    """
    require_type("model", model, LoopModel)
    indices = np.arange(num_held_out(task, split, size, example_size))
    return _evaluate(model, task, split, loops, EVALUATION_SEED, indices, example_size, stopped, progress, observe)


def evaluate_trained(
    model: LoopModel,
    config: RunConfig,
    num_steps: int,
    size: int | None = None,
    loops: Sequence[int] | None = None,
    *,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate on examples that the model saw in its first `num_steps` steps (fewer than `size` if it saw fewer)."""
    indices, example_size = trained_on(num_steps, config, num_held_out(config.task, "train", size))
    return _evaluate(model, config.task, "train", loops, config.seed, indices, example_size, progress=progress)


def _evaluate(
    model: LoopModel,
    task: Task,
    split: Split,
    loops: int | Sequence[int] | None,
    seed: int,
    indices: np.ndarray,
    example_size: int | None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    observe: Observer | None = None,
) -> Evaluation:
    loops = [loops] if isinstance(loops, int) else list(loops or [model.config.num_loops])
    for loop in loops:
        require_counts(loops=loop)
    loops = sorted(set(loops))
    found: dict[int, dict[str, list[np.ndarray]]] = {loop: {} for loop in loops}
    parts: list[Batch] = []
    step = batch_size(task)
    for start in range(0, len(indices), step):
        if stopped():
            raise Stopped
        batch = task.sample(seed, split, indices[start : start + step], example_size)
        parts.append(batch)
        for loop, scores in read_outs(model, batch.inputs, loops):
            for name, values in measure(scores, task, batch).items():
                found[loop].setdefault(name, []).append(values)
            if observe is not None:
                observe(loop, start, batch, scores)
        if progress is not None:
            progress(min(start + step, len(indices)), len(indices))
    whole = Batch(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    counts = whole.mask.sum(axis=1)
    scores = tuple(
        summarise(loop, {name: np.concatenate(arrays) for name, arrays in found[loop].items()}, counts, task.metric)
        for loop in loops
    )
    return Evaluation(task.name, split, len(indices), task.metric, task.baseline(whole), model.config.num_loops, scores)


def num_held_out(task: Task, split: Split, size: int | None = None, example_size: int | None = None) -> int:
    """Return the number of test examples to use (default: the task's own number).

    Repeated examples are not counted, because they would make the interval too narrow.
    """
    if size is None:
        return task.held_out_size(split, example_size)
    require_field(1 <= size <= MAX_EXAMPLES, "size", f"an integer in 1..{MAX_EXAMPLES:,}", size)
    return task.distinct_among(split, size, example_size)


def batch_size(task: Task) -> int:
    """Return a batch size that keeps the class scores of all positions within about a gigabyte."""
    return max(1, min(MAX_BATCH, MAX_SCORES // (task.spec.seq_len * task.spec.output_size)))


@torch.no_grad()
def read_outs(model: LoopModel, inputs: np.ndarray, loops: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield (loop, the model's answer after it), one at a time.

    One pass serves all loop counts, unless the loop times depend on the number of loops (extrapolation "rescale").
    """
    own_pass = {loop for loop in loops if loop > model.config.num_loops and model.config.extrapolation == "rescale"}
    shared = set(loops) - own_pass
    passes = [*([shared] if shared else []), *({loop} for loop in sorted(own_pass))]
    tensor = torch.from_numpy(inputs).to(next(model.parameters()).device)
    for wanted in passes:
        for t, state in model.states_at(tensor, max(wanted), [loop - 1 for loop in sorted(wanted)]):
            yield t + 1, model.read_out(state)


def measure(scores: Tensor, task: Task, batch: Batch) -> dict[str, np.ndarray]:
    """Return the task's metrics of each example and, for classes, the cross-entropy summed over counted positions."""
    if task.spec.kind == "vectors":
        values = scores.cpu().numpy()
        curve = task.curve(values, batch)
        return task.score(values, batch) | ({} if curve is None else {"curve": curve})
    targets, mask = (torch.from_numpy(array).to(scores.device) for array in (batch.targets, batch.mask))
    losses = position_losses(scores, targets)
    metrics = task.score(scores.argmax(dim=-1).cpu().numpy(), batch)
    return {**metrics, "loss": losses.masked_fill(~mask, 0).sum(dim=1).cpu().double().numpy()}


def summarise(loops: int, values: dict[str, np.ndarray], counts: np.ndarray, metric: str) -> LoopScore:
    """Return means over examples, the loss per counted position, and the interval of the task's metric.

    All are NaN if any output is non-finite, because classes read from such scores would be right by chance only.
    """
    finite = all(np.isfinite(each).all() for each in values.values())
    values = values if finite else {name: np.full(each.shape, np.nan) for name, each in values.items()}
    losses, curve = values.pop("loss", None), values.pop("curve", None)
    metrics = {name: float(each.mean()) for name, each in values.items()}
    if losses is not None:
        metrics["loss"] = float(losses.sum() / counts.sum())
        metrics["perplexity"] = _perplexity(metrics["loss"])
    if not finite:
        low = high = math.nan
    elif metric == "perplexity":
        assert losses is not None
        low, high = bootstrap(lambda rows: _perplexity(losses[rows].sum() / counts[rows].sum()), len(counts))
    else:
        low, high = mean_interval(values[metric])
    return LoopScore(loops, metrics, low, high, None if curve is None else tuple(curve.mean(axis=0).tolist()))


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))  # exp overflows soon after 700
