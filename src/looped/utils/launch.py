"""Which of several processes this is, if torchrun started it. Needs no torch."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from looped.utils.errors import InputError, require

LINGER_SECONDS = 3.0
"""time for another rank to print why all fail, because torchrun ends every rank when the first one ends"""


def launched_rank() -> int | None:
    """Return the rank that torchrun gave to this process, or None if torchrun did not start it."""
    numbers = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    if not {*numbers, "MASTER_ADDR"} <= {*os.environ}:
        return None
    for name in numbers:
        value = os.environ[name]
        require(value.isascii() and value.isdigit(), f"{name}: expected a number in the environment, got {value!r}")
    return int(os.environ["RANK"])


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
