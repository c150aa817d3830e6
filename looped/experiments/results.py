"""The record of a finished run: one JSON file with all that a report may say about it. No record, no number.

Records lie in the runs' folders (`record.json`) and, once collected, in `results/`, one file per run.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from looped.config import RunConfig
from looped.errors import InputError, require
from looped.experiments.spec import Cell
from looped.files import read_json, save_text

VERSION = 1
RECORD_NAME = "record.json"
MAX_CURVE_POINTS = 200
DIGITS = 6

Evaluation = dict[str, Any]
"""what `looped.training.evaluate` returns"""


@dataclass(frozen=True)
class Record:
    """What is known of one run. An unfinished try may be kept, with a note and without a test."""

    config: RunConfig
    finished: bool
    date: str
    """of the end, as YYYY-MM-DD"""
    steps: int
    samples: int
    seconds: float
    flops: float
    """of the whole training, forward and backward"""
    parameters: int
    hardware: str
    versions: dict[str, str]
    test: Evaluation | None = None
    train: Evaluation | None = None
    """on examples it was trained on, at the trained loops"""
    sets: dict[str, Evaluation] = field(default_factory=dict)
    """further test sets by name"""
    extra: dict[str, Any] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)
    """the training in at most 200 points: samples, loss, right, and validation where it was measured"""
    commit: str | None = None
    """of the code; with + where the working tree was not clean"""
    note: str = ""

    @property
    def key(self) -> str:
        return run_key(self.config)

    @property
    def file_name(self) -> str:
        return f"{self.config.folder_name}.json"

    def to_json(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        config = values.pop("config").to_json()
        # A config is the run's identity, to the last digit; a measurement is as good with six.
        return {"version": VERSION, "config": config, **_rounded(values)}

    @classmethod
    def from_json(cls, data: Any, origin: str = "record") -> "Record":
        """Read back `to_json`. Nonsense is an `InputError` that names the file and the field."""
        require(isinstance(data, dict), f"{origin} is no record of a run: expected an object, got {_short(data)}")
        check = _Checker(origin)
        check("version", data.get("version"), lambda value: value == VERSION, str(VERSION))
        known = {each.name for each in fields(cls)} | {"version"}
        for name in data:
            require(name in known, f"{origin}: unknown field {name!r}")
        for name, (right, expected) in _FIELDS.items():
            check(name, data.get(name), right, expected)
        try:
            config = RunConfig.from_json(data.get("config"))
        except InputError as error:
            raise InputError(f"{origin}: field 'config' does not describe a run: {error}") from None
        record = cls(config=config, **{name: data[name] for name in _FIELDS})
        record._check_against_config(check)
        return record

    def _check_against_config(self, check: "_Checker") -> None:
        train = self.config.train
        if self.finished:
            check("steps", self.steps, lambda steps: steps == train.num_steps, f"the config's {train.num_steps}")
            check("test", self.test, lambda test: test is not None, "an evaluation, since the run is finished")
            check("samples", self.samples, lambda got: got == self.steps * train.batch_size, "steps times batch size")
        for name, evaluation in (("test", self.test), ("train", self.train), *self.sets.items()):
            if evaluation is not None:
                _check_evaluation(name if name in ("test", "train") else f"sets.{name}", evaluation, self.config, check)


class Value(NamedTuple):
    """One number of a record, with its 95 % interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


def cell_value(cell: Cell, record: Record) -> Value | None:
    """The number that a cell shows of a record; None where it was not measured."""
    if cell.shows.startswith("extra."):
        _, group, name = cell.shows.split(".")
        found: Any = record.extra.get(group) or {}
        value: Any = found.get(name)
        return Value(value, found.get(f"{name}_low"), found.get(f"{name}_high")) if _is_number(value) else None
    place, _, wanted = cell.shows.partition(".") if not cell.shows.startswith("sets/") else (cell.shows, "", "")
    if place.startswith("sets/"):
        evaluation = record.sets.get(place.removeprefix("sets/"))
    else:
        evaluation = {"test": record.test, "train": record.train}[place]
    return None if evaluation is None else evaluation_value(evaluation, wanted or None, cell.at_loops)


def evaluation_value(evaluation: Evaluation, metric: str | None = None, loops: int | None = None) -> Value | None:
    """A metric (default: the evaluation's own) after so many loops (default: the trained number).

    The interval is the own metric's: that of the loss is its logarithm's, and that of the squared error over the
    dimensions is in the proportion of the two numbers.
    """
    own, loops = evaluation["metric"], loops or evaluation["trained_loops"]
    row = next((row for row in evaluation["rows"] if row["loops"] == loops), {})
    wanted = metric or own
    if wanted not in row:
        return None
    value = float(row[wanted])
    if wanted == own:
        return Value(value, row["low"], row["high"])
    if own == "perplexity" and wanted == "loss":
        return Value(value, math.log(row["low"]), math.log(row["high"]))
    if own == "squared_error" and wanted == "squared_error_over_dims" and row[own]:
        return Value(value, row["low"] * value / row[own], row["high"] * value / row[own])
    return Value(value)


def at_trained_loops(evaluation: Evaluation) -> dict[str, Any]:
    """The row of an evaluation at the loop count the model was trained with."""
    return next(row for row in evaluation["rows"] if row["loops"] == evaluation["trained_loops"])


def run_key(config: RunConfig) -> str:
    """A run's whole identity as text: a name may outlive a change of defaults, this does not."""
    return json.dumps(config.identity(), sort_keys=True)


def load_records(results: Path | None, runs: Path | None) -> dict[str, Record]:
    """All records by `run_key`: those collected, and those in the runs' own folders, which win."""
    places: list[Path] = []
    if results is not None and results.is_dir():
        places += sorted(results.glob("*.json"))
    if runs is not None and runs.is_dir():
        places += sorted(runs.glob(f"*/{RECORD_NAME}"))
    found: dict[str, Record] = {}
    for path in places:
        record = read_record(path)
        # A try that did not finish is told of only where no run did.
        if record.finished or record.key not in found:
            found[record.key] = record
    return found


def read_record(path: Path) -> Record:
    return Record.from_json(read_json(path), str(path))


def save_record(path: Path, record: Record) -> None:
    """Write a record, at once or not at all: one line per field, and one per loop count of an evaluation."""
    save_text(path, to_text(record.to_json()) + "\n")


def cell_records(cell: Cell, records: Mapping[str, Record]) -> list[Record]:
    """The finished records of a cell, by seed."""
    wanted = run_key(replace(cell.config, seed=0))
    found = [
        record for record in records.values() if record.finished and run_key(replace(record.config, seed=0)) == wanted
    ]
    return sorted(found, key=lambda record: record.config.seed)


def collect(records: Iterable[Record], results: Path, *, replaced: bool = False) -> list[Path]:
    """Copy finished records into `results`; returns the files that are new or changed.

    A file that says something else about the same run stays, unless it is to be replaced: only what adds to a record
    (another test set) may take its place unasked.
    """
    new: dict[Path, Record] = {}
    for record in records:
        path = results / record.file_name
        if not record.finished:
            continue
        if path.exists():
            before = read_record(path).to_json()
            now = record.to_json()
            if before == now:
                continue
            require(
                replaced or _adds_to(before, now),
                f"{path} holds another result of the same run: expected --replace to put the new one in its place",
            )
        new[path] = record
    for path, record in new.items():
        save_record(path, record)
    return list(new)


def _adds_to(before: Any, now: Any) -> bool:
    """Whether all that was said is still said."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(name in now and _adds_to(value, now[name]) for name, value in before.items())
    return before == now


def shrunk(evaluation: Evaluation) -> Evaluation:
    """An evaluation as a record keeps it: curves over an example's places only at the trained loops."""
    trained = evaluation["trained_loops"]
    rows = [
        {name: value for name, value in row.items() if name != "curve" or row["loops"] == trained}
        for row in evaluation["rows"]
    ]
    return {**evaluation, "rows": rows}


def training_curve(lines: Iterable[dict[str, Any]], batch_size: int) -> list[dict[str, float]]:
    """The log of a training in at most 200 points, evenly taken, the last one among them."""
    points: dict[int, dict[str, float]] = {}
    for line in lines:
        point = points.setdefault(line["step"], {"samples": line["step"] * batch_size})
        point.update({name: line[name] for name in ("loss", "right", "validation") if _is_number(line.get(name))})
    ordered = [points[step] for step in sorted(points) if len(points[step]) > 1]
    if len(ordered) <= MAX_CURVE_POINTS:
        return ordered
    # The validations are few and worth more than any one of the losses.
    measured = [place for place, point in enumerate(ordered) if "validation" in point][-MAX_CURVE_POINTS // 2 :]
    rest = MAX_CURVE_POINTS - len(measured)
    even = {round(place * (len(ordered) - 1) / (rest - 1)) for place in range(rest)}
    return [ordered[place] for place in sorted(even | set(measured))]


def to_text(value: Any, depth: int = 0) -> str:
    """JSON that is small and that a line-by-line comparison can read: what fits into a line has one."""
    flat = json.dumps(value)
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


# Checks of what was read.


class _Checker:
    """Complains in one line that names the file and the field."""

    def __init__(self, origin: str) -> None:
        self.origin = origin

    def __call__(self, name: str, value: Any, right: Callable[[Any], bool], expected: str) -> None:
        require(right(value), f"{self.origin}: field {name!r} must be {expected}, got {_short(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_POSITIVE = (lambda value: _is_number(value) and value >= 0, "a number that is not negative")
_COUNT = (_is_count, "a whole number that is not negative")
_OBJECT = (lambda value: isinstance(value, dict), "an object")
_EVALUATION = (lambda value: value is None or isinstance(value, dict), "an evaluation or null")
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "finished": (lambda value: isinstance(value, bool), "true or false"),
    "date": (_is_date, "a date such as 2025-12-31"),
    "steps": _COUNT,
    "samples": _COUNT,
    "seconds": _POSITIVE,
    "flops": _POSITIVE,
    "parameters": _COUNT,
    "hardware": (_is_text, "text"),
    "versions": (lambda value: isinstance(value, dict) and all(map(_is_text, value.values())), "versions by name"),
    "test": _EVALUATION,
    "train": _EVALUATION,
    "sets": (lambda value: isinstance(value, dict) and all(isinstance(e, dict) for e in value.values()),
             "evaluations by name"),
    "extra": _OBJECT,
    "curve": (lambda value: isinstance(value, list) and len(value) <= MAX_CURVE_POINTS and all(
        isinstance(point, dict) and "samples" in point and all(map(_is_number, point.values())) for point in value),
              f"a list of at most {MAX_CURVE_POINTS} points with samples"),
    "commit": (lambda value: value is None or _is_text(value), "text or null"),
    "note": (_is_text, "text"),
}  # fmt: skip


def _check_evaluation(name: str, evaluation: Evaluation, config: RunConfig, check: _Checker) -> None:
    """An evaluation must be of this run's task and loops, and every number must lie in its interval."""
    task, loops = config.task, config.model.num_loops
    check(f"{name}.task", evaluation.get("task"), lambda value: value == task.name, repr(task.name))
    check(f"{name}.split", evaluation.get("split"), _is_text, "text")
    check(f"{name}.size", evaluation.get("size"), lambda value: _is_count(value) and value > 0, "a whole number, 1 up")
    check(f"{name}.metric", evaluation.get("metric"), lambda value: value == task.metric, repr(task.metric))
    check(f"{name}.baseline", evaluation.get("baseline"), _is_number, "a number")
    check(f"{name}.trained_loops", evaluation.get("trained_loops"), lambda value: value == loops, str(loops))
    rows = evaluation.get("rows")
    check(f"{name}.rows", rows, lambda value: isinstance(value, list) and bool(value), "a list of loop counts")
    for number, row in enumerate(rows or []):
        where = f"{name}.rows.{number}"
        check(where, row, lambda value: isinstance(value, dict), "an object")
        check(f"{where}.loops", row.get("loops"), lambda value: _is_count(value) and value > 0, "a whole number, 1 up")
        for part in (task.metric, "low", "high"):
            check(f"{where}.{part}", row.get(part), _is_number, "a number")
        low, high, tiny = row["low"], row["high"], 1e-4 * abs(row[task.metric]) + 1e-9
        check(
            f"{where}.{task.metric}",
            row[task.metric],
            lambda value, low=low, high=high, tiny=tiny: low - tiny <= value <= high + tiny,
            f"inside its interval {low} to {high}",
        )
        if task.metric == "accuracy":
            check(f"{where}.accuracy", row["accuracy"], lambda value: 0 <= value <= 1, "a share in 0..1")
    counted = [row["loops"] for row in rows or []]
    check(f"{name}.rows", counted, lambda value: loops in value, f"at loop counts with {loops}, the trained one, among")
