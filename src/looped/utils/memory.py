"""Too little memory, the card's or the machine's, in one line that names what to make smaller."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from looped.utils.errors import InputError

# PyTorch's words where the machine's memory is used up, and its own and numpy's for more than any machine has.
_WORDS = ("can't allocate memory", "not enough memory", "overflow", "array is too big", "maximum allowed")


@contextmanager
def memory_for(what: str, expected: str) -> Iterator[None]:
    """Around what may need more memory than there is: for `what` it was needed, and what was `expected` instead."""
    try:
        yield
    except (MemoryError, RuntimeError, TypeError, ValueError) as error:
        lacking = lacking_memory(error)
        if lacking is None:
            raise
        raise InputError(f"{lacking} is too small for {what}: expected {expected}") from None


def lacking_memory(error: Exception) -> str | None:
    """Which memory an error says is too small; None if it says something else."""
    if isinstance(error, InputError):
        return None
    if isinstance(error, torch.OutOfMemoryError):
        return "the card's memory"
    lacks = isinstance(error, MemoryError) or any(word in str(error).lower() for word in _WORDS)
    return "the machine's memory" if lacks else None
