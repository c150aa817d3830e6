"""InputError, the one exception for a user's mistake. Any other exception that escapes is a bug."""

import difflib
import math
import re
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from typing import Any

MAX_MESSAGE = 900
"""characters of a message"""
_FIELD = re.compile(r"(?:cannot (?:read|write) )?(\S+?)(?:, line \d+| is damaged| is a link| is not a [\w ]+)?: ")


class InputError(ValueError):
    """Report a user's mistake in one line, `FIELD: expected X, got Y`.

    `field` names the setting or the file at fault, such as `model.dim`. By default it is read from the message, and is
    None if that starts without one.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        # Values such as arrays may print on several lines, and a file may hold anything, escape codes among them.
        line = " ".join(line.strip() for line in message[: 2 * MAX_MESSAGE].splitlines())
        shown = "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)
        super().__init__(shown if len(shown) <= MAX_MESSAGE else f"{shown[: MAX_MESSAGE - 3]}...")
        named = _FIELD.match(message)
        self.field = field if field is not None or named is None else named[1]


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_field(condition: bool, field: str, expected: str, got: object) -> None:
    """Raise InputError, which names the field, unless the condition holds."""
    if not condition:
        raise InputError(f"{field}: expected {expected}, got {got}")


def require_within(field: str, value: float, least: int, most: int, note: str = "") -> None:
    """Raise InputError, which names the field, unless an integer lies in `least..most`. The note explains the range."""
    require_field(least <= value <= most, field, f"an integer in {least}..{most}{note}", value)


def require_type(field: str, given: object, expected: type) -> None:
    """Raise InputError, which names the field, unless a value has the expected type."""
    require_field(isinstance(given, expected), field, f"a {expected.__name__}", type(given).__name__)


def require_counts(**given: Any) -> None:
    """Raise InputError unless every value is an integer (Python or NumPy, not 4.0) and at least 1."""
    for name, value in given.items():
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_integer or int(value) < 1:
            raise InputError(f"{name}: expected an integer of at least 1, got {value!r}")


def as_number(value: object) -> float:
    """Return `value` as a float, or NaN if it is not a real number or overflows, so that any comparison fails."""
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.nan


def require_one_of(what: str, name: object, known: Collection[str]) -> None:
    """Raise InputError unless `name` is one of the known names."""
    if not (isinstance(name, str) and name in known):
        raise unknown(what, name, known)


def unknown(what: str, name: object, known: Iterable[str], hint: str = "") -> InputError:
    """Return the error for an unknown name, with the closest known name, the whole list and a hint."""
    names = sorted(known)
    message = f"unknown {what} {name!r}{closest(name, names)} (expected one of {', '.join(names)}){hint}"
    return InputError(message, field=what)


def closest(name: object, known: Iterable[str]) -> str:
    """Return a hint with the known name that is most like `name`, or nothing if none is."""
    matches = difflib.get_close_matches(str(name)[:200], list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
