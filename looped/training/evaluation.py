"""Accuracy (or error) at chosen loop counts on held-out examples, with an interval, beside the best constant answer."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from looped.errors import require
from looped.models import LoopModel
from looped.tasks import Batch, Split, Task

# Every run is measured on the same held-out examples, whatever seed it was trained from.
EVALUATION_SEED = 0
NUM_RESAMPLES = 1000


def predict(model: LoopModel, inputs: np.ndarray, loops: Sequence[int]) -> dict[int, np.ndarray]:
    """The answer after each of these loop counts: classes (batch, seq) or values (batch, seq, out)."""
    device = next(model.parameters()).device
    tensor = torch.from_numpy(inputs).to(device)
    answers: dict[int, np.ndarray] = {}
    with torch.inference_mode():
        for last, wanted in _passes(model, loops):
            for t, state in enumerate(model.iterate(tensor, last)):
                if t + 1 in wanted:
                    scores = model.read_out(state)
                    answer = scores.argmax(dim=-1) if model.spec.kind == "tokens" else scores
                    answers[t + 1] = answer.cpu().numpy()
    return answers


def _passes(model: LoopModel, loops: Sequence[int]) -> Iterator[tuple[int, set[int]]]:
    """One pass serves all loop counts, unless the times of its loops depend on how many there are (`rescale`)."""
    alone = {loop for loop in loops if loop > model.config.num_loops and model.config.beyond == "rescale"}
    together = set(loops) - alone
    if together:
        yield max(together), together
    for loop in sorted(alone):
        yield loop, {loop}


def evaluate(
    model: LoopModel,
    task: Task,
    split: Split = "test",
    size: int = 1000,
    loops: Sequence[int] | None = None,
    batch_size: int = 250,
) -> dict[str, Any]:
    """Metrics of the first `size` examples of a split at each loop count, ready for JSON."""
    loops = sorted(set(loops or [model.config.num_loops]))
    require(size >= 1, f"size must be at least 1, got {size}")
    require(loops[0] >= 1, f"loops must be at least 1, got {loops[0]}")
    scores: dict[int, dict[str, list[np.ndarray]]] = {loop: {} for loop in loops}
    parts: list[Batch] = []
    for start in range(0, size, batch_size):
        batch = task.sample(EVALUATION_SEED, split, range(start, min(start + batch_size, size)))
        parts.append(batch)
        for loop, answer in predict(model, batch.inputs, loops).items():
            for name, values in task.score(answer, batch).items():
                scores[loop].setdefault(name, []).append(values)
    rows = []
    for loop in loops:
        means = {name: float(np.mean(np.concatenate(values))) for name, values in scores[loop].items()}
        low, high = interval(np.concatenate(scores[loop][task.metric]))
        rows.append({"loops": loop, **means, "low": low, "high": high})
    whole = Batch(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return {
        "task": task.name,
        "split": split,
        "size": size,
        "metric": task.metric,
        "baseline": task.baseline(whole),
        "trained_loops": model.config.num_loops,
        "rows": rows,
    }


def interval(values: np.ndarray) -> tuple[float, float]:
    """A 95 % interval of the mean: Wilson's for rights and wrongs, else the bootstrap's."""
    if np.isin(values, (0.0, 1.0)).all():
        return wilson(int(values.sum()), len(values))
    draws = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def wilson(right: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share."""
    share = right / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # Rounding must not push an end past the share itself (at 0 and 1 they are equal).
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))
