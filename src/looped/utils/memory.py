"""Turn an out-of-memory error, of the GPU or the machine, into one line that says what to make smaller."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from looped.utils.errors import InputError

# PyTorch raises plain RuntimeErrors on a CPU, and NumPy ValueErrors for arrays that no machine can hold.
_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "storage size calculation overflowed",
    "array is too big",
    "maximum allowed dimension exceeded",
)


class OutOfMemory(InputError):
    """The memory does not suffice."""


@contextmanager
def memory_for(what: str, hint: str) -> Iterator[None]:
    """Raise OutOfMemory if this block runs out of memory: it was needed for `what`, and `hint` would need less."""
    try:
        yield
    except (MemoryError, RuntimeError, TypeError, ValueError) as error:
        memory = exhausted_memory(error)
        if memory is None:
            raise
        raise OutOfMemory(f"out of {memory} for {what}: try {hint}") from None


def exhausted_memory(error: Exception) -> str | None:
    """Return which memory ran out, or None if the error has another cause."""
    if isinstance(error, InputError):
        return None
    if isinstance(error, torch.OutOfMemoryError):
        return "GPU memory"
    is_memory = isinstance(error, MemoryError) or any(text in str(error).lower() for text in _MESSAGES)
    return "memory" if is_memory else None
