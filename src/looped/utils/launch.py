"""Which of several processes this is, if torchrun started it. Needs no torch."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from looped.utils.errors import InputError, require, require_field, require_within

MAX_DIGITS = 9
LINGER_SECONDS = 3.0
"""time for another rank to print why all fail, because torchrun ends every rank when the first one ends"""


def launched_rank() -> int | None:
    """Return the rank that torchrun gave to this process, or None if torchrun did not start it."""
    numbers = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    if not {*numbers, "MASTER_ADDR"} <= {*os.environ}:
        return None
    found = {}
    for name in numbers:
        value = os.environ[name]
        is_number = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
        require(is_number, f"{name}: expected a number in the environment, got {value[:80]!r}")
        found[name] = int(value)
    require_within("MASTER_PORT", found["MASTER_PORT"], 0, 65535)
    rank, size = found["RANK"], found["WORLD_SIZE"]
    require_field(rank < size, "RANK", f"a number below WORLD_SIZE = {size}", rank)
    return rank


def require_not_launched(what: str) -> None:
    """Raise InputError if torchrun started this process, for work that starts the processes it needs itself."""
    if launched_rank() is not None:
        size = os.environ["WORLD_SIZE"]
        raise InputError(f"{what} starts its own processes: expected no torchrun, got WORLD_SIZE = {size}")


def end_silently() -> NoReturn:
    """End this process with exit code 2, once another rank has had time to print why."""
    time.sleep(LINGER_SECONDS)
    raise SystemExit(2)


@contextmanager
def reported_by_rank_0() -> Iterator[None]:
    """Let rank 0 alone report an InputError that every rank raises, such as one about the command line."""
    try:
        yield
    except InputError:
        if launched_rank():
            end_silently()
        raise
