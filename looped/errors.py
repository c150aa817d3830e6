"""The one exception that a user's mistake raises; everything else that escapes is a bug of ours."""

import difflib
from collections.abc import Iterable


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
