"""Measure early exit: the metric, the mean number of loops and the time of each rule, beside fixed numbers of loops."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from looped.inference.early_exit import ExitRule, answer_early, read_early
from looped.models import LoopModel
from looped.tasks import Split, Task
from looped.training.evaluation import EVALUATION_SEED, LoopScore, batch_size, measure, num_held_out, summarise
from looped.utils.errors import require_counts
from looped.utils.types import Progress


@dataclass(frozen=True)
class ExitScore:
    """The score and the cost of an exit rule on held-out examples."""

    rule: str
    score: LoopScore
    """metrics; its number of loops is the most that an example may run"""
    mean_loops: float
    """mean over examples, or over the tokens of texts"""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"rule": self.rule, "mean_loops": self.mean_loops, "seconds": self.seconds, **self.score.to_json()}


@dataclass(frozen=True)
class ExitEvaluation:
    """The scores of several exit rules on the same examples."""

    task: str
    split: Split
    size: int
    metric: str
    rows: tuple[ExitScore, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "rows": [row.to_json() for row in self.rows]}


def evaluate_exits(
    model: LoopModel,
    task: Task,
    rules: Sequence[ExitRule],
    num_loops: int | None = None,
    split: Split = "test",
    size: int | None = None,
    *,
    batch: int | None = None,
    example_size: int | None = None,
    progress: Progress | None = None,
) -> ExitEvaluation:
    """Return metric, mean loops and time of each rule on the same examples, with at most `num_loops` loops each.

    In a batch of `batch` examples (default: as many as `evaluate` takes), those that are done leave. The tokens of a
    text stop one by one; there the time is that of measuring, because only generation saves it.
    """
    most = model.stack.checked_loops(num_loops)
    num_examples = num_held_out(task, split, size, example_size)
    step = batch_size(task) if batch is None else batch
    require_counts(batch=step)
    starts = range(0, num_examples, step)
    examples = [
        task.sample(EVALUATION_SEED, split, range(start, min(start + step, num_examples)), example_size)
        for start in starts
    ]
    counts = np.concatenate([each.mask.sum(axis=1) for each in examples])
    device, rows = model.stack.device, []
    for number, rule in enumerate(rules):
        values: dict[str, list[np.ndarray]] = {}
        loops, seconds = [], 0.0
        for place, each in enumerate(examples):
            inputs, mask = torch.from_numpy(each.inputs).to(device), torch.from_numpy(each.mask).to(device)
            began = time.perf_counter()
            if model.stack.causal and task.metric == "perplexity":
                found = read_early(model, inputs, rule, most)
                loops.append(found.loops[mask].cpu())
            else:
                found = answer_early(model, inputs, mask, rule, most)
                loops.append(found.loops.cpu())  # waits for the device
            seconds += time.perf_counter() - began
            for name, array in measure(found.scores, task, each).items():
                values.setdefault(name, []).append(array)
            if progress is not None:
                progress(number * len(examples) + place + 1, len(rules) * len(examples))
        score = summarise(most, {name: np.concatenate(arrays) for name, arrays in values.items()}, counts, task.metric)
        rows.append(ExitScore(str(rule), score, float(torch.cat(loops).double().mean()), seconds))
    return ExitEvaluation(task.name, split, num_examples, task.metric, tuple(rows))
