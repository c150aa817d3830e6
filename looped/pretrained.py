"""Trained models that come with the package: one safetensors file each, with all that is known of it in its header.

`weights/TASK/NAME.safetensors` holds the weights in bfloat16. Its metadata has one entry, JSON: the run's config, what
the rounded weights scored in the test, where they come from, and an example to ask. (One entry, since several would
be written in any order, and equal models could not be equal files.)
"""

import difflib
import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from looped.config import RunConfig
from looped.errors import InputError, check_fields, require, unknown
from looped.files import read_json, save
from looped.inference import Run, load_run, on_device
from looped.models import build_model
from looped.tasks import TASKS, Batch, task_class
from looped.training.evaluation import EVALUATION_SEED, evaluate, interval
from looped.training.schedules import trained_size
from looped.training.stepper import load_weights

ENTRY = "looped"
SUFFIX = ".safetensors"
MAX_TOTAL_BYTES = 24_000_000  # of all models: a package should stay quick to install

# Two measurements agree unless chance alone would set them as far apart less than once in a thousand times.
LEAST_PROBABILITY = 0.001
DEVIATIONS = 3.290527  # the same for normal numbers
INTERVAL_DEVIATIONS = 1.959964  # half of a 95 % interval

FIRST_CHUNK = 4
MAX_CHUNK = 250
LEAST = 32  # examples that a model is asked even if it has no time left: fewer would say nothing


@dataclass(frozen=True)
class Measurement:
    """A metric on test examples at one loop count, with its 95 % interval."""

    metric: str
    value: float
    low: float
    high: float
    size: int
    loops: int

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def right(self) -> int | None:
        """How many examples were right; None where the metric is no share of right ones."""
        return round(self.value * self.size) if self.metric == "accuracy" else None

    @classmethod
    def of_evaluation(cls, report: dict[str, Any]) -> "Measurement":
        """The row of `evaluate` at the trained loops."""
        row = next(row for row in report["rows"] if row["loops"] == report["trained_loops"])
        metric = report["metric"]
        return cls(metric, row[metric], row["low"], row["high"], report["size"], row["loops"])


@dataclass(frozen=True)
class Shipped:
    """What a file of weights says about itself."""

    name: str
    """TASK/NAME"""
    path: Path
    config: RunConfig
    step: int
    samples: int
    parameters: int
    test: Measurement
    """of these very weights, on the test examples from number 0 on"""
    record: str
    """name of the run, and of its record"""
    commit: str
    """of the code that trained it"""
    date: str
    example: Batch
    """test example number 0: drawing it afresh may first take ten seconds of compilation"""
    sha256: str
    """of the weights"""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "task": self.config.task.name, "block": self.config.model.block,
            "parameters": self.parameters, "loops": self.config.model.num_loops, "samples": self.samples,
            "step": self.step, "test": asdict(self.test), "record": self.record, "commit": self.commit,
            "date": self.date, "bytes": self.num_bytes, "config": self.config.to_json(),
        }  # fmt: skip


def weights_folder() -> Path:
    """The package's own weights, or the folder that LOOPED_WEIGHTS names."""
    return Path(os.environ.get("LOOPED_WEIGHTS") or Path(__file__).parent / "weights")


def _path(name: str) -> Path:
    return weights_folder() / f"{name}{SUFFIX}"


def names() -> list[str]:
    """The shipped models, as TASK/NAME."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in weights_folder().glob(f"*/*{SUFFIX}"))


def describe(name: str) -> Shipped:
    """What is known of a shipped model; `InputError` if there is none of that name, or its file is damaged."""
    return _open(name)[0]


def best(task: str) -> Shipped:
    """The task's shipped model with the best test result."""
    found = [describe(name) for name in names() if name.startswith(f"{task}/")]
    require(bool(found), f"no model of {task} is shipped: {weights_folder()} has none (looped train {task} makes one)")
    sign = 1 if task_class(task).higher_is_better else -1
    return max(found, key=lambda model: sign * model.test.value)


def load(name: str | Path, device: str | torch.device = "cpu") -> Run:
    """What a user may mean: a run's folder, a shipped model, or a task, which stands for its best one."""
    name = str(name)
    is_run = (Path(name) / "config.json").exists()
    if not is_run and name.split("/")[0] in TASKS:
        return _load_shipped(best(name).name if name in TASKS else name, device)
    if not is_run and (near := difflib.get_close_matches(name, [*TASKS, *names()], n=1)):
        raise InputError(f"no run at {name}, and no model of that name; did you mean {near[0]!r}?")
    return load_run(name, device)


def _load_shipped(name: str, device: str | torch.device) -> Run:
    shipped, weights = _open(name)
    model = build_model(shipped.config.model, shipped.config.task.spec)
    load_weights(model, weights, str(shipped.path))
    return Run(shipped.config, on_device(model, device), shipped.step, shipped.name, shipped.example)


def pack(
    run_folder: str | Path,
    name: str,
    *,
    commit: str | None = None,
    date: str | None = None,
    size: int | None = None,
    device: str | torch.device = "cpu",
) -> Shipped:
    """Round the weights of a run's newest checkpoint to bfloat16, test what came out, and write it as a shipped model.

    The number that is stored is measured here, on the rounded weights, so that it is theirs. Commit, date and the
    test's size are those of the folder's `record.json`, unless others are given. Same input, same bytes.
    """
    run = load_run(run_folder, device)
    config, task = run.config, run.task
    right = re.fullmatch(rf"{task.name}/[a-z0-9][a-z0-9.-]*", name)
    require(right is not None, f"expected a name like {task.name}/modulated-r32, got {name!r}")
    require(
        task.metric != "perplexity", f"{task.name} cannot be tested where its text is not at hand: not to be shipped"
    )
    record, before = _read_record(Path(run_folder) / "record.json")
    commit, date = commit or record.get("commit"), date or record.get("date")
    if not commit or not date:
        raise InputError(f"expected a commit and a date, or {Path(run_folder) / 'record.json'} with both")
    weights = {key: value.detach().to(torch.bfloat16).cpu() for key, value in run.model.named_parameters()}
    load_weights(run.model, weights, str(run_folder))

    size = before.size if size is None and before is not None else size
    report = evaluate(run.model, task, "test", size, example_size=trained_size(config))
    test = Measurement.of_evaluation(report)
    require(math.isfinite(test.value), f"expected a finite {task.metric}, got {test.value}")
    distinct = task.num_distinct("test")
    require(
        distinct is None or test.size < distinct,
        f"expected a test of fewer than all {distinct} examples, since a check needs others, got {test.size}",
    )
    if before is not None:
        require(agree(before, test), f"rounding changes {name}: {task.metric} {before.value:.4f} to {test.value:.4f}")

    example = task.sample(EVALUATION_SEED, "test", [0], trained_size(config))
    about = {
        "config": config.identity(), "step": run.step, "samples": run.step * config.train.batch_size,
        "parameters": run.model.num_parameters(), "test": asdict(test), "record": config.folder_name,
        "commit": commit, "date": date, "example": {key: each.tolist() for key, each in example._asdict().items()},
        "sha256": _hash(weights),
    }  # fmt: skip
    data = to_bytes(weights, {ENTRY: json.dumps(about, sort_keys=True)})
    others = sum(_path(other).stat().st_size for other in names() if other != name)
    require(
        others + len(data) <= MAX_TOTAL_BYTES,
        f"expected at most {MAX_TOTAL_BYTES:,} bytes of weights in all, got {others + len(data):,} with {name}",
    )
    save(_path(name), lambda handle: handle.write(data))
    return describe(name)


def evaluate_shipped(
    seconds: float = 120.0,
    only: Sequence[str] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[dict[str, Any]]:
    """Test every shipped model on the CPU on test examples that its recorded test did not have.

    The time is shared: each model gets an equal part of what is left, and as many examples as fit into it, but no more
    than the recorded test had. Some are always asked. Rows are ready for JSON.
    """
    require(seconds > 0, f"seconds must be positive, got {seconds}")
    chosen = names() if only is None else list(only)
    started, rows = clock(), []
    for place, name in enumerate(chosen):
        begin = clock()
        share = max(0.0, started + seconds - begin) / (len(chosen) - place)
        shipped, run = describe(name), _load_shipped(name, "cpu")
        fresh = _measure_fresh(run, shipped.test, begin + share, clock)
        rows.append({
            "name": name, "task": run.task.name, "measured": asdict(fresh), "recorded": asdict(shipped.test),
            "first_index": shipped.test.size, "consistent": agree(shipped.test, fresh),
            "seconds": round(clock() - begin, 1),
        })  # fmt: skip
        print(f"[{clock() - started:4.0f} s] {name}: {fresh.metric} {fresh.value:.4f} ({fresh.low:.4f} to "
              f"{fresh.high:.4f}) on {fresh.size} fresh examples, recorded {shipped.test.value:.4f}",
              file=sys.stderr, flush=True)  # fmt: skip
    return rows


def agree(first: Measurement, second: Measurement) -> bool:
    """Whether two measurements can be of one model: by Fisher's exact test for shares, else by their distance.

    One model's values have one spread, so the two are pooled: a small test may have missed the rare large errors that
    make most of the mean, and would then think itself more exact than it is.
    """
    if first.right is not None and second.right is not None:
        return chance_of_shares(first.right, first.size, second.right, second.size) >= LEAST_PROBABILITY
    both = (first, second)
    squares = sum((each.size * (each.high - each.low) / (2 * INTERVAL_DEVIATIONS)) ** 2 for each in both)
    variance = squares / sum(each.size for each in both)
    return abs(first.value - second.value) <= DEVIATIONS * math.sqrt(variance * sum(1 / each.size for each in both))


def chance_of_shares(right: int, total: int, other_right: int, other_total: int) -> float:
    """Fisher's exact test, two-sided: how likely shares at least as unlikely are, if both come from one model.

    Near 0 % and 100 %, where good models are, the usual normal approximation finds differences that are none.
    """
    all_right, everything = right + other_right, total + other_total

    def log_chance(k: int) -> float:
        return _log_choose(total, k) + _log_choose(other_total, all_right - k) - _log_choose(everything, all_right)

    possible = range(max(0, all_right - other_total), min(total, all_right) + 1)
    seen = log_chance(right) + 1e-9  # so that rounding does not part what is equally likely
    return min(1.0, sum(math.exp(chance) for k in possible if (chance := log_chance(k)) <= seen))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


@torch.no_grad()
def _measure_fresh(run: Run, recorded: Measurement, until: float, clock: Callable[[], float]) -> Measurement:
    """Score test examples from where the recorded test ended, in chunks, until the time or the examples are used up.

    The same seed with later indices gives other base puzzles of Sudoku; another seed would only give other images.
    """
    task = run.task
    first = recorded.size
    end = task.distinct_among("test", 2 * first)
    require(end > first, f"the recorded test of {run.name} had all {end} examples: none is left to check it with")
    values: list[np.ndarray] = []
    start, chunk = first, FIRST_CHUNK
    while start < end:
        chunk = min(chunk, MAX_CHUNK, end - start)
        began = clock()
        batch = task.sample(EVALUATION_SEED, "test", range(start, start + chunk), trained_size(run.config))
        scores = run.model(torch.from_numpy(batch.inputs), recorded.loops)
        answers = scores.argmax(dim=-1) if task.spec.kind == "tokens" else scores
        values.append(task.score(answers.numpy(), batch)[task.metric])
        start += chunk
        now = clock()
        fits = int(min(chunk * (until - now) / max(now - began, 1e-9), MAX_CHUNK))
        fits = max(fits, LEAST - (start - first))
        if fits < 1:
            break
        chunk = min(4 * chunk, fits)  # the first chunks also pay for compilation, so they tell too much
    scored = np.concatenate(values)
    return Measurement(task.metric, float(scored.mean()), *interval(scored), len(scored), recorded.loops)


def _open(name: str) -> tuple[Shipped, dict[str, Tensor]]:
    """A shipped model's description and weights, checked."""
    known = names()
    require(bool(known), f"no model {name!r}: {weights_folder()} has none")
    if name not in known:
        raise unknown("model", name, known)
    path = _path(name)
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[ENTRY])
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        config = RunConfig.from_json(about["config"])
        example = _read_example(config, about["example"])
        rest = {key: about[key] for key in ("step", "samples", "parameters", "record", "commit", "date", "sha256")}
        shipped = Shipped(name, path, config, test=Measurement(**about["test"]), example=example, **rest)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise InputError(f"{path} is no shipped model, or damaged: {type(error).__name__}: {reason}") from None
    came = _hash(weights)
    require(
        came == shipped.sha256,
        f"{path} is damaged: expected sha256 {shipped.sha256[:12]}... of its weights, got {came[:12]}...",
    )
    task = config.task.name
    require(name.startswith(f"{task}/"), f"{path} holds a model of {task}: expected it under {weights_folder() / task}")
    return shipped, weights


def _read_record(path: Path) -> tuple[dict[str, Any], Measurement | None]:
    """A run's record and its test, where there are such."""
    if not path.exists():
        return {}, None
    record = read_json(path)
    try:
        return record, Measurement.of_evaluation(record["test"]) if record.get("test") else None
    except (KeyError, TypeError, AttributeError, StopIteration, InputError) as error:
        raise InputError(f"{path} is no record of a run: {type(error).__name__}: {error}") from None


def _read_example(config: RunConfig, stored: dict[str, Any]) -> Batch:
    kinds = (np.int64, np.int64) if config.task.spec.kind == "tokens" else (np.float32, np.float32)
    types = dict(zip(Batch._fields, (*kinds, np.bool_), strict=True))
    return Batch(**{key: np.array(stored[key], dtype=types[key]) for key in Batch._fields})


def _hash(weights: dict[str, Tensor]) -> str:
    """Of names, shapes and numbers: safetensors itself would not notice a changed one."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(f"{key} {tuple(weights[key].shape)} {weights[key].dtype}".encode())
        digest.update(weights[key].flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
