"""The one exception that a user's mistake raises; everything else that escapes is a bug of ours."""

import difflib
import math
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints


class InputError(ValueError):
    """What was given cannot be used. The message is one line: what was expected and what came."""

    def __init__(self, message: str) -> None:
        # What came may take several lines when it is printed, as an array does.
        super().__init__(" ".join(line.strip() for line in message.splitlines()))


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_counts(**given: Any) -> None:
    """That numbers are whole by their type (numpy's are, too; 4.0 would go a long way before it fails), at least 1."""
    for name, value in given.items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        require(whole, f"{name} must be a whole number, got {value!r}")
        require(int(value) >= 1, f"{name} must be at least 1, got {value}")


def as_number(value: object) -> float:
    """For a comparison: what is no real number (an array is none), or is one beyond floats, is NaN and fails it."""
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.nan


def require_one_of(what: str, came: object, known: Collection[str]) -> None:
    """That a name is in a list: `unknown` if it is not, or is no text at all."""
    if not (isinstance(came, str) and came in known):
        raise unknown(what, came, known)


def unknown(what: str, came: object, known: Iterable[str]) -> InputError:
    """An error for a name that is not in a list, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(str(came), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {what} {came!r}{hint} (expected one of {', '.join(names)})")


def check_fields(config: Any) -> None:
    """Dataclasses do not check their fields: a typo in Python must fail as it does on the command line.

    A whole number where any number fits is made a float: 1 and 1.0 are one config, also where it is written down.
    """
    for name, annotation in get_type_hints(type(config)).items():
        if get_origin(annotation) is not ClassVar:
            object.__setattr__(config, name, _checked(name, annotation, getattr(config, name)))


def _checked(name: str, annotation: Any, value: Any) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal and value not in inner:
        raise unknown(f"value of {name}:", value, map(str, inner))
    if origin in (Union, UnionType) and value is not None:
        return _checked(name, inner[0], value)
    if origin is tuple:
        if not isinstance(value, tuple):
            raise InputError(f"{name} must be a tuple, got {value!r}")
        return tuple(_checked(name, inner[0], each) for each in value)
    if annotation in _KINDS:
        kinds, words = _KINDS[annotation]
        fits = isinstance(value, kinds) and isinstance(value, bool) == (annotation is bool) and value == value
        require(fits, f"{name} must be {words}, got {value!r}")
    return _as_float(name, value) if annotation is float else value


def _as_float(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} must be finite, got a number beyond floats") from None


_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "text"),
}
