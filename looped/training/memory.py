"""Too little memory, the card's or the machine's, in one line that names what to make smaller."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from looped.errors import InputError

# PyTorch's words where the machine's memory is used up, or where more was asked for than any machine has.
_WORDS = ("can't allocate memory", "not enough memory", "overflow")


@contextmanager
def memory_for(what: str, expected: str) -> Iterator[None]:
    """Around what may need more memory than there is: for `what` it was needed, and what was `expected` instead."""
    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        card = isinstance(error, torch.OutOfMemoryError)
        if not (card or isinstance(error, MemoryError) or any(word in str(error).lower() for word in _WORDS)):
            raise
        whose = "card" if card else "machine"
        raise InputError(f"the {whose}'s memory is too small for {what}: expected {expected}") from None
