"""Trained models as files: load one, pack a run into one, and measure the shipped ones afresh."""

import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from looped.inference.run import Run, load_run, on_device
from looped.models import build_model
from looped.models.model import load_weights
from looped.models.pretrained import (
    ModelCard,
    ShippedScore,
    model_card,
    model_file,
    read_card,
    read_weights,
    require_no_near_miss,
    resolve_name,
)
from looped.serde import decode
from looped.tasks import Batch, Task
from looped.training.evaluation import EVALUATION_SEED, Evaluation, measure, summarise
from looped.training.run_folder import RunFolder
from looped.training.schedules import trained_size
from looped.utils.errors import InputError, require, require_field
from looped.utils.files import read_sealed_values, save
from looped.utils.shipped import SUFFIX, list_models, shipped_path
from looped.utils.stats import INTERVAL_DEVIATIONS, fisher_exact
from looped.utils.version import __version__

MAX_TOTAL_BYTES = 36_000_000  # of all models: a package should stay quick to install

# Two measurements agree unless chance alone would set them as far apart less than once in a thousand times.
LEAST_PROBABILITY = 0.001
DEVIATIONS = 3.290527  # the same for normal numbers

FIRST_CHUNK = 4
MAX_CHUNK = 250
MAX_TRIED_EXAMPLES = 100
LEAST = 32  # examples that a model is asked even if it has no time left: fewer would say nothing


def load(name: str | Path, device: str | torch.device = "cpu", question: str | None = None) -> Run:
    """Load a run folder, a model file, a shipped model by its name, or a task's best shipped model.

    With a question, a task stands for its best model for such questions.
    """
    require_field(isinstance(name, str | Path), "name", "a run's folder, a model's name or a file", type(name).__name__)
    path = Path(name)
    if path.suffix == SUFFIX:
        require(path.is_file(), f"no model file at {path}")
        return _load_model_file(read_card(path), device, str(path))
    name = str(name)
    if (shipped := resolve_name(name, question)) is not None:
        return _load_model_file(model_card(shipped), device)
    require_no_near_miss(name)
    return load_run(name, device)


def _load_model_file(card: ModelCard, device: str | torch.device, name: str | None = None) -> Run:
    model = build_model(card.config.model, card.config.task.spec)
    load_weights(model, read_weights(card), str(card.path))
    return Run(card.config, on_device(model, device), card.step, name or card.name, card.example)


def pack(
    run_folder: str | Path,
    out: str | Path,
    *,
    commit: str | None = None,
    date: str | None = None,
    size: int | None = None,
    device: str | torch.device = "cpu",
) -> ModelCard:
    """Write a run as one model file: the newest weights rounded to bfloat16, and a card with their test score.

    Commit, date and test size come from the folder's `record.json` unless they are given, otherwise from the training.
    Equal inputs give equal bytes.
    """
    out = Path(out)
    require(out.suffix == SUFFIX, f"out: expected a file that ends in {SUFFIX}, got {str(out)!r}")
    run = load_run(run_folder, device)
    record, before = _read_record(Path(run_folder) / "record.json")
    commit, date = commit or record.get("commit"), date or record.get("date")
    packed, _ = _packed(run, commit or _trained_by(run_folder), date or _trained_on(run_folder), size, before)
    save(out, lambda handle: handle.write(packed))
    return read_card(out)


def ship(
    run_folder: str | Path,
    name: str,
    *,
    commit: str | None = None,
    date: str | None = None,
    size: int | None = None,
    device: str | torch.device = "cpu",
) -> ModelCard:
    """Pack a run as a shipped model, `TASK/NAME`.

    A shipped model must name its commit and date, leave test examples for `evaluate_shipped`, and fit into the package.
    """
    run = load_run(run_folder, device)
    task = run.task
    right = re.fullmatch(rf"{task.name}/[a-z0-9][a-z0-9.-]*", name)
    require(right is not None, f"name: expected one like {task.name}/modulated-r32, got {name!r}")
    record, before = _read_record(Path(run_folder) / "record.json")
    commit, date = commit or record.get("commit"), date or record.get("date")
    if not commit or not date:
        missing = "date" if commit else "commit"
        raise InputError(f"{missing}: expected one here or in {Path(run_folder) / 'record.json'}, got none")
    packed, test = _packed(run, commit, date, size, before)
    require(
        task.distinct_among("test", test.size + 1) > test.size,
        f"expected a test of fewer than all {test.size} examples, since a check needs others",
    )
    others = sum(shipped_path(other).stat().st_size for other in list_models() if other != name)
    require(
        others + len(packed) <= MAX_TOTAL_BYTES,
        f"expected at most {MAX_TOTAL_BYTES:,} bytes of weights in all, got {others + len(packed):,} with {name}",
    )
    save(shipped_path(name), lambda handle: handle.write(packed))
    return model_card(name)


def _packed(
    run: Run, commit: str, date: str, size: int | None, before: ShippedScore | None
) -> tuple[bytes, ShippedScore]:
    """Round the weights of `run`, test them, and return the content of their model file with the score."""
    config, task = run.config, run.task
    weights = {key: value.detach().to(torch.bfloat16).cpu() for key, value in run.model.named_parameters()}
    load_weights(run.model, weights, run.name)

    size = before.size if size is None and before is not None else size
    test = _shipped_score(run.evaluate(size=size))
    require(math.isfinite(test.value), f"expected a finite {task.metric}, got {test.value}")
    if before is not None:
        change = f"{task.metric} {before.value:.4f} to {test.value:.4f}"
        require(agree(before, test), f"rounding changes {run.name}: {change}")

    example = _solved_example(run)
    about = {
        "config": config.identity(), "step": run.step, "samples": run.step * config.train.batch_size,
        "parameters": run.model.num_parameters(), "test": asdict(test), "record": config.folder_name,
        "commit": commit, "date": date, "example": {key: each.tolist() for key, each in example._asdict().items()},
    }  # fmt: skip
    return model_file(weights, about), test


def _trained_by(run_folder: str | Path) -> str:
    """Return the commit that trained a run, or the version of the package if the commit is unknown."""
    result = RunFolder(run_folder).read_result()
    versions = {"looped": __version__} if result is None else result.versions
    return versions.get("commit") or f"looped {versions.get('looped', __version__)}"


def _trained_on(run_folder: str | Path) -> str:
    """Return the date of a run's newest checkpoint."""
    return datetime.fromtimestamp(RunFolder(run_folder).checkpoints.stat().st_mtime, UTC).date().isoformat()


def _solved_example(run: Run) -> Batch:
    """Return the first test example that the model solves, or number 0 if it solves none of the first hundred."""
    size = run.task.distinct_among("test", MAX_TRIED_EXAMPLES)
    for index in range(size):
        example = run.task.sample(EVALUATION_SEED, "test", [index], trained_size(run.config))
        *_, frame = run.solve(example.inputs[0])
        if run.task.is_right(example.inputs[0], frame.outputs, run.task.answer(example.targets[0])):
            return example
    return run.task.sample(EVALUATION_SEED, "test", [0], trained_size(run.config))


def evaluate_shipped(seconds: float = 120.0, *, clock: Callable[[], float] = time.monotonic) -> list[dict[str, Any]]:
    """Test every shipped model on the CPU on test examples that its recorded test did not have.

    The time is shared: each model gets an equal part of what is left, and as many examples as fit into it, but no more
    than the recorded test had. Some are always asked. A language model is left out where its text is not at hand. Rows
    are ready for JSON.
    """
    require(seconds > 0, f"seconds: expected a positive number, got {seconds}")
    chosen, started, rows = list_models(), clock(), []
    for place, name in enumerate(chosen):
        begin = clock()
        share = max(0.0, started + seconds - begin) / (len(chosen) - place)
        shipped = model_card(name)
        if (reason := _missing_data(shipped.config.task)) is not None:
            print(f"looped: {name} is not checked: {reason}", file=sys.stderr, flush=True)
            continue
        run = _load_model_file(shipped, "cpu")
        fresh = _measure_fresh(run, shipped.test, begin + share, clock)
        rows.append({
            "name": name, "task": run.task.name, "measured": asdict(fresh), "recorded": asdict(shipped.test),
            "first_index": shipped.test.size, "consistent": agree(shipped.test, fresh),
            "seconds": round(clock() - begin, 1),
        })  # fmt: skip
        score = f"{fresh.metric} {fresh.value:.4f} ({fresh.low:.4f} to {fresh.high:.4f}) on {fresh.size} fresh examples"
        line = f"[{clock() - started:4.0f} s] {name}: {score}, recorded {shipped.test.value:.4f}"
        print(line, file=sys.stderr, flush=True)
    return rows


def _missing_data(task: Task) -> str | None:
    """Return why a task's test examples cannot be drawn here, or None if they can."""
    try:
        task.num_distinct("test")
    except InputError as error:
        return str(error)
    return None


def agree(first: ShippedScore, second: ShippedScore) -> bool:
    """Return whether two scores can belong to one model, by Fisher's exact test for accuracies or by their distance.

    The spreads of the two are pooled, because a small test may miss the rare large errors that dominate the mean, and
    would then underestimate its own spread.
    """
    if first.num_right is not None and second.num_right is not None:
        return fisher_exact(first.num_right, first.size, second.num_right, second.size) >= LEAST_PROBABILITY
    both = (first, second)
    squares = sum((each.size * (each.high - each.low) / (2 * INTERVAL_DEVIATIONS)) ** 2 for each in both)
    variance = squares / sum(each.size for each in both)
    return abs(first.value - second.value) <= DEVIATIONS * math.sqrt(variance * sum(1 / each.size for each in both))


@torch.no_grad()
def _measure_fresh(run: Run, recorded: ShippedScore, until: float, clock: Callable[[], float]) -> ShippedScore:
    """Score test examples from where the recorded test ended, in chunks, until the time or the examples are used up.

    The same seed with later indices gives other base puzzles of Sudoku; another seed would only give other images.
    """
    task = run.task
    first = recorded.size
    end = task.distinct_among("test", 2 * first)
    require(end > first, f"the recorded test of {run.name} had all {end} examples: none is left to check it with")
    values: dict[str, list[np.ndarray]] = {}
    counts: list[np.ndarray] = []
    start, chunk = first, FIRST_CHUNK
    while start < end:
        chunk = min(chunk, MAX_CHUNK, end - start)
        began = clock()
        batch = task.sample(EVALUATION_SEED, "test", range(start, start + chunk), trained_size(run.config))
        scores = run.model(torch.from_numpy(batch.inputs), recorded.loops)
        for name, array in measure(scores, task, batch).items():
            values.setdefault(name, []).append(array)
        counts.append(batch.mask.sum(axis=1))
        start += chunk
        now = clock()
        fits = int(min(chunk * (until - now) / max(now - began, 1e-9), MAX_CHUNK))
        fits = max(fits, LEAST - (start - first))
        if fits < 1:
            break
        chunk = min(4 * chunk, fits)  # the first chunks also pay for compilation, so they tell too much
    whole = {name: np.concatenate(arrays) for name, arrays in values.items()}
    score = summarise(recorded.loops, whole, np.concatenate(counts), task.metric)
    finite = math.isfinite(score.metrics[task.metric])
    require(finite, f"expected finite outputs of {run.name}, got ones that overflow: it cannot be measured")
    return ShippedScore(task.metric, score.metrics[task.metric], score.low, score.high, start - first, recorded.loops)


def _shipped_score(evaluation: Evaluation) -> ShippedScore:
    """Return the score of an evaluation at the trained number of loops."""
    score, metric = evaluation.trained, evaluation.metric
    return ShippedScore(metric, score.metrics[metric], score.low, score.high, evaluation.size, score.loops)


def _read_record(path: Path) -> tuple[dict[str, Any], ShippedScore | None]:
    """Return the record of a run and the score of its test; nothing if they are missing."""
    if not path.exists():
        return {}, None
    record = read_sealed_values(path)
    try:
        test = record.get("test")
        return record, None if test is None else _shipped_score(decode(Evaluation, test, "test"))
    except (KeyError, InputError) as error:
        raise InputError(f"{path}: expected the record of a run, got another file ({error})") from None
