"""The one exception that a user's mistake raises; everything else that escapes is a bug of ours."""

import difflib
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints


class InputError(ValueError):
    """What was given cannot be used. The message is one line: what was expected and what came."""


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless the condition holds."""
    if not condition:
        raise InputError(message)


def unknown(what: str, came: object, known: Iterable[str]) -> InputError:
    """An error for a name that is not in a list, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(str(came), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {what} {came!r}{hint} (expected one of {', '.join(names)})")


def check_fields(config: Any) -> None:
    """Dataclasses do not check their fields: a typo in Python must fail as it does on the command line."""
    for name, annotation in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if get_origin(annotation) is Literal and value not in get_args(annotation):
            raise unknown(f"value of {name}:", value, map(str, get_args(annotation)))
        if annotation is int and type(value) is not int:
            raise InputError(f"{name} must be a whole number, got {value!r}")
