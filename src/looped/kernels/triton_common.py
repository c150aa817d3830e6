"""Helpers of the Triton kernels: matmul precision, rotary angles, activations."""

import os
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from looped.kernels.reference import Rotation


@cache
def gluon_kernels(name: str) -> ModuleType | None:
    """Return the module `gluon_{name}`, or None if this Triton has no Gluon."""
    try:
        return import_module(f"looped.kernels.gluon_{name}")
    except (ImportError, AttributeError):
        return None


class Angles(NamedTuple):
    """Cosines and sines side by side, (seq, 64), in the layout of the Gluon kernels."""

    forward: Tensor
    """cosines and sines"""
    backward: Tensor
    """cosines and negated sines in float32, times the scale of attention scores"""

    @classmethod
    def of(cls, rotation: Rotation) -> "Angles":
        """Return the angles of rotary positions."""
        cos, sin = rotation
        back = torch.stack((cos.float(), -sin.float()), dim=-1) * (2 * cos.shape[1]) ** -0.5
        return cls(torch.stack((cos, sin), dim=-1).flatten(1), back.flatten(1))


def precision_of(factor: Tensor) -> str:
    """Return the precision of `dot`: float32 for float32 factors, not TF32.

    The interpreter cannot multiply bfloat16, so it widens factors to float32.
    """
    if factor.dtype == torch.float32:
        return "ieee"
    return "widened" if os.environ.get("TRITON_INTERPRET") == "1" else "tf32"


@triton.jit
def dot(left, right, total, PRECISION: tl.constexpr):
    """Return total + left @ right in float32."""
    if PRECISION == "widened":
        return tl.dot(left.to(tl.float32), right.to(tl.float32), total, input_precision="ieee")
    else:  # noqa: RET505 (both branches must be seen as alternatives by the compiler)
        return tl.dot(left, right, total, input_precision=PRECISION)


@triton.jit
def load_angles(cos_ptr, sin_ptr, places, pairs, mask, HALF: tl.constexpr):
    """Return (places, pairs) cosines and sines of rotary positions in their stored precision."""
    offsets = places[:, None] * HALF + pairs[None, :]
    return tl.load(cos_ptr + offsets, mask=mask, other=0.0), tl.load(sin_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def turn(x, cos, sin):
    """Rotate the pairs of neighbours in (places, channels). With minus the sine, rotate them back."""
    left, right = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return tl.reshape(tl.join(left * cos - right * sin, left * sin + right * cos), x.shape)


@triton.jit
def _normal_tail(z):
    """Return the probability that a normal number exceeds |z|, and exp(-z^2 / 2). The error is below 1e-7."""
    bell = tl.exp2(z * z * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(z))
    series = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    return series * bell, bell


@triton.jit
def activate(z, KIND: tl.constexpr):
    """Return the activation and its derivative."""
    if KIND == "gelu":
        tail, bell = _normal_tail(z)
        below = tl.where(z >= 0, 1.0 - tail, tail)
        return z * below, below + z * bell * 0.3989422804014327
    elif KIND == "relu":  # noqa: RET505
        return tl.maximum(z, 0.0), tl.where(z > 0, 1.0, 0.0)
    else:
        sigmoid = tl.sigmoid(z)
        return z * sigmoid, sigmoid * (1.0 + z * (1.0 - sigmoid))
