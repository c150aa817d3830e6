"""Evaluate a model on held-out examples at chosen loop counts, with intervals and the best constant answer."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from looped.config import RunConfig
from looped.models import LoopModel
from looped.tasks import Batch, Split, Task
from looped.tasks.base import MAX_EXAMPLES
from looped.training.batches import trained_on
from looped.training.loss import position_losses
from looped.utils.errors import require, require_counts
from looped.utils.stats import bootstrap, mean_interval
from looped.utils.types import Progress

# All runs are measured on the same held-out examples, whatever their training seed.
EVALUATION_SEED = 0
MAX_BATCH = 250
MAX_SCORES = 2**28


class Stopped(Exception):
    """An evaluation was stopped before it was complete."""


def evaluate(
    model: LoopModel,
    task: Task,
    split: Split = "test",
    size: int | None = None,
    loops: Sequence[int] | None = None,
    *,
    example_size: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return metrics of `size` examples of a split (default: the task's own number) at each loop count, as JSON values.

    Examples have the task's size or a smaller `example_size`. `Stopped` is raised before a batch if `stopped()` is
    true. `progress` is called after each batch.
    """
    indices = np.arange(num_held_out(task, split, size, example_size))
    return _evaluate(model, task, split, loops, EVALUATION_SEED, indices, example_size, stopped, progress)


def evaluate_trained(
    model: LoopModel,
    config: RunConfig,
    num_steps: int,
    size: int | None = None,
    loops: Sequence[int] | None = None,
    *,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Evaluate on examples that the model saw in its first `num_steps` steps (fewer than `size` if it saw fewer)."""
    indices, example_size = trained_on(num_steps, config, num_held_out(config.task, "train", size))
    return _evaluate(model, config.task, "train", loops, config.seed, indices, example_size, progress=progress)


def _evaluate(
    model: LoopModel,
    task: Task,
    split: Split,
    loops: Sequence[int] | None,
    seed: int,
    indices: np.ndarray,
    example_size: int | None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    loops = sorted(set(loops or [model.config.num_loops]))
    for loop in loops:
        require_counts(loops=loop)
    found: dict[int, dict[str, list[np.ndarray]]] = {loop: {} for loop in loops}
    parts: list[Batch] = []
    step = _batch_size(task)
    for start in range(0, len(indices), step):
        if stopped():
            raise Stopped
        batch = task.sample(seed, split, indices[start : start + step], example_size)
        parts.append(batch)
        for loop, scores in _read_outs(model, batch.inputs, loops):
            for name, values in _measure(scores, task, batch).items():
                found[loop].setdefault(name, []).append(values)
        if progress is not None:
            progress(min(start + step, len(indices)), len(indices))
    whole = Batch(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    counts = whole.mask.sum(axis=1)
    rows = []
    for loop in loops:
        values = {name: np.concatenate(arrays) for name, arrays in found[loop].items()}
        rows.append({"loops": loop, **_summary(values, counts, task.metric)})
    return {
        "task": task.name,
        "split": split,
        "size": len(indices),
        "metric": task.metric,
        "baseline": task.baseline(whole),
        "trained_loops": model.config.num_loops,
        "rows": rows,
    }


def num_held_out(task: Task, split: Split, size: int | None = None, example_size: int | None = None) -> int:
    """Return the number of test examples to use (default: the task's own number).

    Repeated examples are not counted, because they would make the interval too narrow.
    """
    if size is None:
        return task.held_out_size(split, example_size)
    require(1 <= size <= MAX_EXAMPLES, f"size: expected an integer in 1..{MAX_EXAMPLES:,}, got {size}")
    return task.distinct_among(split, size, example_size)


def _batch_size(task: Task) -> int:
    """Return a batch size that keeps the class scores of all positions within about a gigabyte."""
    return max(1, min(MAX_BATCH, MAX_SCORES // (task.spec.seq_len * task.spec.output_size)))


@torch.no_grad()
def _read_outs(model: LoopModel, inputs: np.ndarray, loops: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
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


def _measure(scores: Tensor, task: Task, batch: Batch) -> dict[str, np.ndarray]:
    """Return the task's metrics of each example and, for classes, the cross-entropy summed over counted positions."""
    if task.spec.kind == "vectors":
        values = scores.cpu().numpy()
        curve = task.curve(values, batch)
        return task.score(values, batch) | ({} if curve is None else {"curve": curve})
    targets, mask = (torch.from_numpy(array).to(scores.device) for array in (batch.targets, batch.mask))
    losses = position_losses(scores, targets)
    metrics = task.score(scores.argmax(dim=-1).cpu().numpy(), batch)
    return {**metrics, "loss": losses.masked_fill(~mask, 0).sum(dim=1).double().cpu().numpy()}


def _summary(values: dict[str, np.ndarray], counts: np.ndarray, metric: str) -> dict[str, Any]:
    """Return means over examples, the loss per counted position, and the interval of the task's metric.

    All are NaN if any output is non-finite, because classes read from such scores would be right by chance only.
    """
    finite = all(np.isfinite(each).all() for each in values.values())
    values = values if finite else {name: np.full(each.shape, np.nan) for name, each in values.items()}
    losses, curve = values.pop("loss", None), values.pop("curve", None)
    row: dict[str, Any] = {name: float(each.mean()) for name, each in values.items()}
    if curve is not None:
        row["curve"] = curve.mean(axis=0).tolist()
    if losses is not None:
        row["loss"] = float(losses.sum() / counts.sum())
        row["perplexity"] = _perplexity(row["loss"])
    if not finite:
        low = high = math.nan
    elif metric == "perplexity":
        assert losses is not None
        low, high = bootstrap(lambda rows: _perplexity(losses[rows].sum() / counts[rows].sum()), len(counts))
    else:
        low, high = mean_interval(values[metric])
    return {**row, "low": low, "high": high}


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))  # exp overflows soon after 700
