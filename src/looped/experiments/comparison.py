"""Measure a user's trained runs side by side: scores at several loop counts, differing settings, learning curves."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from looped.config import ModelConfig, RunConfig, differences
from looped.experiments.measure import loops_to_read
from looped.experiments.records import training_curve
from looped.inference import Run, load
from looped.models.pretrained import resolve_name
from looped.training.evaluation import Evaluation, evaluate
from looped.training.logger import read_log
from looped.training.run_folder import RunFolder
from looped.training.schedules import trained_size
from looped.utils.types import Progress


@dataclass(frozen=True)
class MeasuredRun:
    """A trained run with its scores on test examples and its learning curve."""

    run: Run
    test: Evaluation
    curve: list[dict[str, float]]
    """points of the log with `samples` and `loss`, `validation` or the task's metric (empty for a model file)"""

    @property
    def num_parameters(self) -> int:
        """Return the number of trained parameters."""
        return sum(parameter.numel() for parameter in self.run.model.parameters())

    def curve_of(self, name: str) -> list[tuple[float, float]]:
        """Return the learning curve of one number as (samples, value)."""
        return [(point["samples"], point[name]) for point in self.curve if name in point]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "run": self.run.name,
            "step": self.run.step,
            "num_steps": self.run.config.train.num_steps,
            "parameters": self.num_parameters,
            "test": self.test.to_json(),
            "curve": self.curve,
        }


def score_run(
    name: str,
    loops: Callable[[ModelConfig], Sequence[int]],
    size: int | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> MeasuredRun:
    """Load a run or a model by its name and test it, always at its trained number of loops too."""
    run = load(name, device)
    counts = {run.config.model.num_loops, *loops(run.config.model)}
    test = evaluate(
        run.model, run.task, "test", size, sorted(counts), example_size=trained_size(run.config), progress=progress
    )
    is_folder = resolve_name(name) is None and Path(name).is_dir()
    lines = read_log(RunFolder(name).log_path) if is_folder else []
    return MeasuredRun(run, test, training_curve((json.loads(line) for line, _ in lines), run.config.train.batch_size))


def loops_around_trained(model: ModelConfig) -> list[int]:
    """Return half, once and, if the model supports it, twice the trained number of loops."""
    wanted = {-(-model.num_loops // 2), model.num_loops, 2 * model.num_loops}
    return [loops for loops in loops_to_read(model) if loops in wanted]


def differing_settings(configs: Sequence[RunConfig]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ: path -> the value of each run (None where a run lacks the setting)."""
    first, *rest = configs
    changes = [differences(first, other) for other in rest]
    found: dict[str, list[Any]] = {}
    for path, (value, _) in {path: pair for change in changes for path, pair in change.items()}.items():
        found[path] = [value, *(change.get(path, (None, value))[1] for change in changes)]
    return found


def share_test_examples(runs: Sequence[MeasuredRun]) -> bool:
    """Return whether all runs were tested on the same examples."""
    return len({(each.run.task, trained_size(each.run.config), each.test.size) for each in runs}) == 1
