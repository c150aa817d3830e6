"""What the tests of the kernels share: random numbers, poisoned memory, and how near is near."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from looped.kernels.reference import Rotation

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = tuple(TOLERANCE)
GUARD = 7.0
"""what stands where nothing may be written"""


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """What is not written must not be read: fresh memory is NaN."""
    kept = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert torch.empty(1, device=DEVICE).isnan()
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = kept


@contextmanager
def rounding_to_nearest() -> Iterator[None]:
    """Round as a GPU does. Triton's interpreter rounds bfloat16 and float8 towards 0, and such errors add up."""
    if DEVICE == "cuda":
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(values, source, target, mode):
        if source != tl.float32 or target not in (tl.bfloat16, tl.float8e4nv):
            return convert(values, source, target, mode)
        exact = torch.from_numpy(np.ascontiguousarray(values))
        if target == tl.bfloat16:
            return exact.bfloat16().view(torch.uint16).numpy().reshape(values.shape)
        return exact.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(values.shape)

    interpreter._convert_float = converted
    try:
        yield
    finally:
        interpreter._convert_float = convert


def neighbours(num_heads: int, size: int) -> list[int]:
    """The columns of queries, keys and values in which the two that a rotation turns together are neighbours."""
    turned = [
        head * size + pair + which * (size // 2)
        for head in range(2 * num_heads)
        for pair in range(size // 2)
        for which in (0, 1)
    ]
    return turned + list(range(2 * num_heads * size, 3 * num_heads * size))


@contextmanager
def laboratory() -> Iterator[None]:
    """What every test of a kernel runs in."""
    with poisoned_memory(), rounding_to_nearest():
        yield


class Draw:
    """Normal numbers that every device gets alike."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32, mean: float = 0.0, std: float = 1.0) -> Tensor:
        return (mean + std * torch.randn(*shape, generator=self.generator)).to(DEVICE, dtype)


def rotation_of(seq_len: int, half: int) -> Rotation:
    """Angles that are no multiple of each other, as the model's are."""
    frequencies = 10000.0 ** (-torch.arange(half, device=DEVICE) / half)
    angles = (torch.arange(seq_len, device=DEVICE)[:, None] + 0.3) * frequencies
    return Rotation(angles.cos(), angles.sin())


def in_float64(rotation: Rotation | None) -> Rotation | None:
    return None if rotation is None else Rotation(*(each.double() for each in rotation))


def leaf(tensor: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
    """A copy that gathers a gradient."""
    return None if tensor is None else tensor.detach().to(dtype or tensor.dtype, copy=True).requires_grad_()


def error(got: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference, as a share of that of what is wanted."""
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).norm() / wanted.norm())


def assert_near(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert got.shape == wanted.shape
    assert error(got, wanted) <= tolerance  # false for NaN


def bound(dtype: torch.dtype, plain_error: float) -> float:
    """What an operation of several roundings may err by; where plain PyTorch is further off, that is the measure."""
    return max(TOLERANCE[dtype], 1.5 * plain_error)


def guarded(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Poisoned memory (rows, columns) for a kernel to write to, and what lies right behind it."""
    whole = torch.full((rows + 2, columns), torch.nan, dtype=dtype, device=DEVICE)
    whole[rows:] = GUARD
    return whole[:rows], whole[rows:]
