"""The record of a finished run: one JSON file with all that a report may say about it. No record, no number.

Records lie in the runs' folders (`record.json`) and, once collected, in `results/`, one file per run.
"""

import csv
import datetime
import io
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from looped.config import RunConfig
from looped.experiments.spec import Cell
from looped.serde import Count, NonNegative, decode, encode
from looped.training.evaluation import Evaluation, LoopScore
from looped.utils.errors import InputError, as_number, require, require_field
from looped.utils.files import content_hash, read_sealed_values, save_text

VERSION = 1
RECORD_NAME = "record.json"
DIGITS = 6
MAX_CURVE_POINTS = 200
INDEX_COLUMNS = (
    "path", "task", "size", "block", "layers", "loops", "seed", "steps", "samples", "seconds", "parameters", "metric",
    "value", "low", "high", "date", "commit", "hardware",
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """The result of one run. A failed run may be kept too, with a note and without a test."""

    config: RunConfig
    finished: bool
    date: datetime.date
    """day on which the run ended"""
    steps: Count
    samples: Count
    seconds: NonNegative
    flops: Count
    """of the whole training, forward and backward"""
    parameters: Count
    hardware: str
    versions: dict[str, str]
    test: Evaluation | None = None
    train: Evaluation | None = None
    """on examples it was trained on, at the trained loops"""
    sets: dict[str, Evaluation] = field(default_factory=dict)
    """further test sets by name"""
    extra: dict[str, dict[str, int | float | list[float]]] = field(default_factory=dict)
    """further measurements by name, such as the continuity"""
    curve: list[dict[str, int | float]] = field(default_factory=list)
    """the training in at most 200 points: samples, loss, accuracy, and validation where it was measured"""
    commit: str | None = None
    """of the code; with + where the working tree was not clean"""
    note: str = ""

    @property
    def key(self) -> str:
        """Return the run's identity as text."""
        return run_key(self.config)

    @property
    def path(self) -> Path:
        """Return the record's place under `results/`: HARDWARE/TASK-SIZE/MODEL-SEED-KEY.json (tries/ if unfinished)."""
        task, model = self.config.task, self.config.model
        hardware = _hardware_folder(self.hardware) if self.finished else "tries"
        depth = f"l{model.num_layers}" if model.block == "standard" else f"r{model.num_loops}"
        name = f"{model.block}-{depth}-s{self.config.seed}-{self.config.key}.json"
        return Path(hardware) / task.label / name

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: the content of `record.json`."""
        values = encode(self)
        # A config is the run's identity, to the last digit; a measurement is as good with six.
        return {"version": VERSION, "config": values.pop("config"), **_rounded(values)}

    @classmethod
    def from_json(cls, data: Any, origin: str = "record") -> "Record":
        """Return the record that `to_json` wrote. Raise InputError, which names the file and the field, otherwise."""
        try:
            require(isinstance(data, dict), f"expected an object, got {type(data).__name__}")
            rest = {name: value for name, value in data.items() if name not in ("version", "config")}
            version = data.get("version")
            require_field(version == VERSION, "version", str(VERSION), version)
            record = decode(cls, rest, config=_decode_config(data.get("config")))
            record._check()
        except InputError as error:
            raise InputError(f"{origin}: {error}", field=error.field) from None
        return record

    def evaluations(self) -> Iterator[tuple[str, Evaluation]]:
        """Yield all evaluations with their paths in the record."""
        both = {"test": self.test, "train": self.train}
        yield from ((name, each) for name, each in both.items() if each is not None)
        yield from ((f"sets.{name}", each) for name, each in self.sets.items())

    def _check(self) -> None:
        """Raise InputError if a value contradicts the config or another value."""
        train = self.config.train
        if self.finished:
            require_field(self.steps == train.num_steps, "steps", f"the config's {train.num_steps}", self.steps)
            samples = self.steps * train.batch_size
            require_field(self.samples == samples, "samples", f"steps times batch size, {samples}", self.samples)
            require_field(self.test is not None, "test", "an evaluation, since the run is finished", None)
        for name, evaluation in self.evaluations():
            _check_evaluation(name, evaluation, self.config)
        limit = f"at most {MAX_CURVE_POINTS} points"
        require_field(len(self.curve) <= MAX_CURVE_POINTS, "curve", limit, len(self.curve))
        for place, point in enumerate(self.curve):
            require_field("samples" in point, f"curve.{place}", "a point with samples", point)


def _decode_config(data: Any) -> RunConfig:
    try:
        return RunConfig.from_json(data)
    except InputError as error:
        raise InputError(f"config: {error}", field=".".join(filter(None, ("config", error.field)))) from None


def _check_evaluation(path: str, evaluation: Evaluation, config: RunConfig) -> None:
    """Raise InputError unless an evaluation is one of this run and each of its numbers lies in its interval."""
    metric = config.task.metric
    of_run = {"task": config.task.name, "metric": metric, "trained_loops": config.model.num_loops}
    for name, expected in of_run.items():
        value = getattr(evaluation, name)
        require_field(value == expected, f"{path}.{name}", repr(expected), value)
    has_trained = evaluation.at(evaluation.trained_loops) is not None
    require_field(has_trained, f"{path}.rows", f"a row at {evaluation.trained_loops} loops", "none")
    numbers = {f"{path}.baseline": evaluation.baseline} if metric == "perplexity" else {}
    for place, row in enumerate(evaluation.rows):
        where = f"{path}.rows.{place}"
        value = as_number(row.metrics.get(metric))
        numbers |= {f"{where}.perplexity": row.metrics.get("perplexity", 1.0)}
        numbers |= {f"{where}.low": row.low} if metric == "perplexity" else {}
        tiny = 1e-4 * abs(value) + 1e-9
        inside = row.low - tiny <= value <= row.high + tiny
        require_field(inside, f"{where}.{metric}", f"a number in its interval {row.low} to {row.high}", value)
        require_field(metric != "accuracy" or 0 <= value <= 1, f"{where}.{metric}", "a share in 0..1", value)
        require_field(row.curve != (), f"{where}.curve", "at least one number", [])
    for name, value in numbers.items():
        require_field(value > 0, name, "a number above 0, since the report takes its logarithm", value)


def _hardware_folder(hardware: str) -> str:
    """Return a folder name for a device: `h200` for NVIDIA H200, `cpu` for any CPU."""
    if not hardware or hardware.startswith("CPU"):
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", hardware.lower().removeprefix("nvidia ")).strip("-")


class Value(NamedTuple):
    """One number of a record, with its 95 % interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


def cell_value(cell: Cell, record: Record) -> Value | None:
    """Return the number of a record that a cell shows, or None if it was not measured."""
    place, metric = cell.place_and_metric
    if place.startswith("extra."):
        found = record.extra.get(place.removeprefix("extra."), {})
        value, low, high = (found.get(f"{metric}{end}") for end in ("", "_low", "_high"))
        return Value(value, low, high) if isinstance(value, int | float) else None  # type: ignore[arg-type]
    evaluation = cell_evaluation(cell, record)
    return None if evaluation is None else evaluation_value(evaluation, metric, cell.at_loops)


def cell_evaluation(cell: Cell, record: Record) -> Evaluation | None:
    """Return the evaluation that a cell's number is from, or None if there is none."""
    place, _ = cell.place_and_metric
    if place.startswith("sets/"):
        return record.sets.get(place.removeprefix("sets/"))
    return {"test": record.test, "train": record.train}.get(place)


def evaluation_value(evaluation: Evaluation, metric: str, loops: int | None = None) -> Value | None:
    """Return a metric after so many loops (default: the trained number), with its interval if that can be derived."""
    score = evaluation.at(loops or evaluation.trained_loops)
    if score is None or metric not in score.metrics:
        return None
    low, high = (_converted(end, evaluation.metric, metric, score) for end in (score.low, score.high))
    return Value(score.metrics[metric], low, high)


def _converted(number: float, own: str, metric: str, score: LoopScore) -> float | None:
    """Convert a number from the task's own metric to another one; return None if the score does not tell how.

    The loss is the logarithm of the perplexity. The error per dimension is proportional to the squared error.
    """
    if metric == own:
        return number
    if (own, metric) == ("perplexity", "loss"):
        return math.log(number)
    if (own, metric) == ("squared_error", "squared_error_over_dims") and score.metrics[own]:
        return number * score.metrics[metric] / score.metrics[own]
    return None


def run_key(config: RunConfig) -> str:
    """Return every setting that defines a run, as text. A name has only those that differ from the defaults."""
    return json.dumps(config.identity(), sort_keys=True)


def load_records(results: Path | None, runs: Path | None) -> dict[str, Record]:
    """Return all records by `run_key`, from `results` and from the folders of runs.

    The record in a run's folder replaces the one in `results`, unless only that one is finished.
    """
    found: dict[str, Record] = {}
    for folder, pattern in ((results, "**/*.json"), (runs, f"*/{RECORD_NAME}")):
        if folder is None or not folder.is_dir():
            continue
        for key, record in _records_in(folder, pattern).items():
            found[key] = _more_finished(found.get(key), record)
    return found


def _records_in(folder: Path, pattern: str) -> dict[str, Record]:
    """Return the records of one folder by `run_key`. Raise InputError if two have different results of one run."""
    found: dict[str, Record] = {}
    origins: dict[str, Path] = {}
    for path in sorted(folder.glob(pattern)):
        record = read_record(path)
        before = found.get(record.key)
        if before is not None and before.finished and record.finished:
            require(
                before.to_json() == record.to_json(),
                f"{origins[record.key]} and {path} have different results of one run: expected one of them alone",
            )
        found[record.key] = _more_finished(before, record)
        if found[record.key] is record:
            origins[record.key] = path
    return found


def _more_finished(before: Record | None, now: Record) -> Record:
    """Return the newer record, unless only the older one is finished."""
    return before if before is not None and before.finished and not now.finished else now


def read_record(path: Path) -> Record:
    """Return the record in a file. Raise InputError if it is damaged. Records of version 0.1 have no hash."""
    return Record.from_json(read_sealed_values(path), str(path))


def save_record(path: Path, record: Record) -> None:
    """Write a record with its hash, whole or not at all: one line per field, and one per loop count.

    Raise InputError, which names the field, if the record could not be read again. JSON has no NaN, for example.
    """
    data = record.to_json()
    Record.from_json(data, str(path))
    save_text(path, to_text({**data, "sha256": content_hash(data)}) + "\n")


def seedless_key(config: RunConfig) -> str:
    """Return the identity that all seeds of a run share."""
    return run_key(replace(config, seed=0))


def collect(records: Iterable[Record], results: Path, *, replaced: bool = False) -> list[Path]:
    """Copy records into `results`, those of failed tries too, and return the files that are new or changed.

    Raise InputError if a file holds another result of the same run, unless `replaced` is set. Two kinds of record may
    replace a file without it: one that only adds to it, such as a test set, and the result of a run whose earlier try
    failed. Raise InputError, too, if the file belongs to another run.
    """
    known = _records_in(results, "**/*.json")
    new: dict[Path, Record] = {}
    for record in records:
        path, before = results / record.path, known.get(record.key)
        if not record.finished and not record.note:
            continue
        # A file name holds only what differs from the defaults, and those may change.
        require(
            not path.exists() or read_record(path).key == record.key,
            f"{path} holds another run of the same name: expected it to be renamed or moved away first",
        )
        if before is not None:
            if before.to_json() == record.to_json() or (before.finished and not record.finished):
                continue
            require(
                replaced or not before.finished or _adds_to(before.to_json(), record.to_json()),
                f"{path} holds another result of the same run: expected --replace to put the new one in its place",
            )
        new[path] = known[record.key] = record
    for path, record in new.items():
        save_record(path, record)
        if record.finished:
            (results / replace(record, finished=False).path).unlink(missing_ok=True)  # the failed try
    if new:
        write_index(results)
    return list(new)


def write_index(results: Path) -> None:
    """Write `index.csv`: one row per record, with its path, its config in short and its test score."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(INDEX_COLUMNS)
    for path in sorted(results.glob("**/*.json")):
        record = read_record(path)
        task, model, train = record.config.task, record.config.model, record.config.train
        score = None if record.test is None else evaluation_value(record.test, task.metric)
        numbers = ("", "", "") if score is None else score
        writer.writerow((
            path.relative_to(results).as_posix(), task.name, task.size, model.block, model.num_layers, model.num_loops,
            record.config.seed, train.num_steps, record.samples, record.seconds, record.parameters, task.metric,
            *numbers, record.date, record.commit or "", record.hardware,
        ))  # fmt: skip
    save_text(results / "index.csv", table.getvalue())


def _adds_to(before: Any, now: Any) -> bool:
    """Return whether `now` contains everything that `before` does."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(name in now and _adds_to(value, now[name]) for name, value in before.items())
    return before == now


def shrunk(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation as a record keeps it: curves over positions only at the trained loops."""
    trained = evaluation.trained_loops
    return replace(
        evaluation, rows=tuple(row if row.loops == trained else replace(row, curve=None) for row in evaluation.rows)
    )


def training_curve(lines: Iterable[dict[str, Any]], batch_size: int) -> list[dict[str, float]]:
    """Return the log of a run as at most 200 evenly spaced points, including the last one."""
    points: dict[int, dict[str, float]] = {}
    for line in lines:
        point = points.setdefault(line["step"], {"samples": line["step"] * batch_size})
        known = ("loss", "accuracy", "squared_error", "validation")
        point.update({name: line[name] for name in known if math.isfinite(as_number(line.get(name)))})
    ordered = [points[step] for step in sorted(points) if len(points[step]) > 1]
    if len(ordered) <= MAX_CURVE_POINTS:
        return ordered
    # The validations are few and worth more than any one of the losses.
    measured = [place for place, point in enumerate(ordered) if "validation" in point][-MAX_CURVE_POINTS // 2 :]
    rest = MAX_CURVE_POINTS - len(measured)
    even = {round(place * (len(ordered) - 1) / (rest - 1)) for place in range(rest)}
    return [ordered[place] for place in sorted(even | set(measured))]


def to_text(value: Any, depth: int = 0) -> str:
    """Return JSON that is small and easy to compare line by line: a value that fits into one line stays on it."""
    flat = json.dumps(value, allow_nan=False)
    if len(flat) + depth <= 160 or not isinstance(value, dict | list):
        return flat
    inner, pad = " " * (depth + 1), " " * depth
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(name)}: {to_text(each, depth + 1)}" for name, each in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{pad}}}"
    return "[\n" + ",\n".join(inner + to_text(each, depth + 1) for each in value) + f"\n{pad}]"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) >= 10**DIGITS else short
    return value
