"""Check every field of a record that was read from a file."""

import math
from collections.abc import Callable
from datetime import date
from typing import Any

from looped.config import RunConfig
from looped.utils.errors import require

MAX_CURVE_POINTS = 200
LISTS_OF_EXTRA = ("per_loop",)

Right = Callable[[Any], bool]


class Checker:
    """Raise InputError, which names the file and the field, for a wrong value."""

    def __init__(self, origin: str) -> None:
        self.origin = origin

    def __call__(self, name: str, value: Any, right: Right, expected: str) -> None:
        require(right(value), f"{self.origin}: field {name!r} must be {expected}, got {short(value)}")


def is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def is_finite(value: Any) -> bool:
    """Return whether all numbers in a nested value are finite."""
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_curve(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_number, value))


_NUMBER = (is_number, "a number")
_ABOVE_ZERO = (lambda value: is_number(value) and value > 0, "a number above 0")
_NUMBERS = (_is_curve, "a list of numbers")
_KINDS_IN_ROWS = {"curve": _NUMBERS, "perplexity": _ABOVE_ZERO}
_FROM_ONE = (lambda value: _is_count(value) and value > 0, "a whole number, 1 up")
_POSITIVE = (lambda value: is_number(value) and value >= 0, "a number that is not negative")
_COUNT = (_is_count, "a whole number that is not negative")
_OBJECT = (lambda value: isinstance(value, dict), "an object")
_EVALUATION = (lambda value: value is None or isinstance(value, dict), "an evaluation or null")
FIELDS: dict[str, tuple[Right, str]] = {
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
        isinstance(point, dict) and "samples" in point and all(map(is_number, point.values())) for point in value),
              f"a list of at most {MAX_CURVE_POINTS} points with samples"),
    "commit": (lambda value: value is None or _is_text(value), "text or null"),
    "note": (_is_text, "text"),
}  # fmt: skip


def check_evaluation(name: str, evaluation: dict[str, Any], config: RunConfig, check: Checker) -> None:
    """An evaluation must be of this run's task and loops, and every number must lie in its interval."""
    task, loops = config.task, config.model.num_loops
    number = _ABOVE_ZERO if task.metric == "perplexity" else _NUMBER  # the report takes its logarithm
    check(f"{name}.task", evaluation.get("task"), lambda value: value == task.name, repr(task.name))
    check(f"{name}.split", evaluation.get("split"), _is_text, "text")
    check(f"{name}.size", evaluation.get("size"), *_FROM_ONE)
    check(f"{name}.metric", evaluation.get("metric"), lambda value: value == task.metric, repr(task.metric))
    check(f"{name}.baseline", evaluation.get("baseline"), *number)
    check(f"{name}.trained_loops", evaluation.get("trained_loops"), lambda value: value == loops, str(loops))
    rows = evaluation.get("rows")
    check(f"{name}.rows", rows, lambda value: isinstance(value, list) and bool(value), "a list of loop counts")
    for place, row in enumerate(rows or []):
        where = f"{name}.rows.{place}"
        check(where, row, *_OBJECT)
        check(f"{where}.loops", row.get("loops"), *_FROM_ONE)
        for part in (task.metric, "low", "high"):
            check(f"{where}.{part}", row.get(part), *number)
        for part, value in row.items():
            check(f"{where}.{part}", value, *_KINDS_IN_ROWS.get(part, _NUMBER))
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


def check_extra(extra: dict[str, Any], check: Checker) -> None:
    """Further measurements are numbers by name, in groups."""
    for name, group in extra.items():
        check(f"extra.{name}", group, *_OBJECT)
        for part, value in group.items():
            check(f"extra.{name}.{part}", value, *(_NUMBERS if part in LISTS_OF_EXTRA else _NUMBER))
