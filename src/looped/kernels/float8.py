"""Matmuls with 8-bit factors (e4m3: 4 bits of exponent, 3 of mantissa), twice as fast on the tensor cores as bfloat16.

A factor is stored as 8-bit numbers times a scale. No pass over memory is spent on finding scales:

- A normed state is at most sqrt(dim), and an activation is small, so both have a fixed scale.
- A matrix has one scale per loop, from the largest weight times the largest factor of its modulation.
- A gradient has one scale per token, found by the pass that rounds it. Behind the activation it keeps this scale, with
  room for numbers 16 times as large.

Larger numbers are clamped. A scale that is 16 times too large costs nothing until numbers fall below 2^-6, where e4m3
loses its leading bits.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
ACTIVE_SCALE = 1 / 8
"""scale of act(z), which is clamped at 56"""
ROOM = 16.0
"""how much larger a gradient may be behind the activation than before it"""
SCALE_BYTES = 16
"""bytes from one loop's scale to the next; cuBLASLt refused matmuls with scales that lay side by side"""


class Scaled(NamedTuple):
    """A factor value * scale, rounded to 8 bits."""

    value: Tensor
    """(rows, inner)"""
    scale: Tensor
    """one number, or (rows, 1)"""


class ScaledMatrices(NamedTuple):
    """A matrix of all loops, (loop, ...) or (1, ...) if all loops share it."""

    value: Tensor
    """(loop, columns, inner)"""
    scale: Tensor
    """(loop,), spaced by `apart`"""

    def of_loop(self, t: int) -> Scaled:
        """Return the matrix of loop t."""
        place = t if len(self.value) > 1 else 0
        return Scaled(self.value[place], self.scale[place])

    def transposed(self) -> "ScaledMatrices":
        """Return the matrices with both axes swapped in memory, as the backward pass reads them."""
        return ScaledMatrices(self.value.transpose(1, 2).contiguous(), self.scale)


def normed_scale(dim: int) -> float:
    """Return the scale of a state divided by its RMS: a power of 2 at which no number exceeds the largest one."""
    return 2.0 ** -((LARGEST / dim**0.5).__floor__().bit_length() - 1)


def apart(scales: Tensor) -> Tensor:
    """Return the same float32 scales (loop,), each `SCALE_BYTES` behind the last one."""
    return F.pad(scales[:, None], (0, SCALE_BYTES // scales.element_size() - 1))[:, 0]


@cache
def fixed_scale(scale: float, device: torch.device) -> Tensor:
    """Return a scale as one number on the device."""
    return torch.full((1,), scale, dtype=torch.float32, device=device)


def float8_product(left: Scaled, right: Scaled, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return left (tokens, inner) @ right (columns, inner)^T + bias in bfloat16."""
    by_row = left.scale.numel() > 1
    if left.value.is_cuda:
        right_scale = right.scale.expand(1, len(right.value)).contiguous() if by_row else right.scale
        given = left.value, right.value.T, left.scale, right_scale, bias, None, torch.bfloat16, True  # fast sums
        scaled_mm = torch.ops.aten._scaled_mm
        return scaled_mm.default(*given) if out is None else scaled_mm.out(*given, out=out)
    product = (left.value.float() * left.scale) @ (right.value.float() * right.scale).T
    product = (product if bias is None else product + bias.float()).to(torch.bfloat16)
    return product if out is None else out.copy_(product)
