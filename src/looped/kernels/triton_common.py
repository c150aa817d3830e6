"""What the Triton kernels share."""

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
    """Return the module `gluon_{name}`, or None where Triton does not have what it is written in."""
    try:
        return import_module(f"looped.kernels.gluon_{name}")
    except (ImportError, AttributeError):
        return None


class Angles(NamedTuple):
    """Cosines and sines side by side, (seq, 64), as the Gluon kernels read them."""

    forward: Tensor
    backward: Tensor
    """in float32: minus the sines, and all times the scale of attention scores, which gradients need as well"""

    @classmethod
    def of(cls, rotation: Rotation) -> "Angles":
        cos, sin = rotation
        back = torch.stack((cos.float(), -sin.float()), dim=-1) * (2 * cos.shape[1]) ** -0.5
        return cls(torch.stack((cos, sin), dim=-1).flatten(1), back.flatten(1))


def precision_of(factor: Tensor) -> str:
    """How `dot` multiplies: float32 as float32, not as TF32; the interpreter cannot multiply bfloat16 at all."""
    if factor.dtype == torch.float32:
        return "ieee"
    return "widened" if os.environ.get("TRITON_INTERPRET") == "1" else "tf32"


@triton.jit
def dot(left, right, total, PRECISION: tl.constexpr):
    """total + left right, in float32."""
    if PRECISION == "widened":
        return tl.dot(left.to(tl.float32), right.to(tl.float32), total, input_precision="ieee")
    else:  # noqa: RET505 (both branches must be seen as alternatives by the compiler)
        return tl.dot(left, right, total, input_precision=PRECISION)


@triton.jit
def load_angles(cos_ptr, sin_ptr, places, pairs, there, HALF: tl.constexpr):
    """(places, pairs) cosines and sines of rotary positions, as they are stored."""
    at = places[:, None] * HALF + pairs[None, :]
    return tl.load(cos_ptr + at, mask=there, other=0.0), tl.load(sin_ptr + at, mask=there, other=0.0)


@triton.jit
def turn(x, cos, sin):
    """Neighbours in (places, channels), turned together; with minus the sine, turned back."""
    left, right = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return tl.reshape(tl.join(left * cos - right * sin, left * sin + right * cos), x.shape)


@triton.jit
def _normal_tail(z):
    """(probability that a normal number exceeds |z|, exp(-z^2 / 2)), with one exponential (error below 1e-7)."""
    bell = tl.exp2(z * z * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(z))
    series = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    return series * bell, bell


@triton.jit
def activate(z, KIND: tl.constexpr):
    """The activation and its derivative."""
    if KIND == "gelu":
        tail, bell = _normal_tail(z)
        below = tl.where(z >= 0, 1.0 - tail, tail)
        return z * below, below + z * bell * 0.3989422804014327
    elif KIND == "relu":  # noqa: RET505
        return tl.maximum(z, 0.0), tl.where(z > 0, 1.0, 0.0)
    else:
        share = tl.sigmoid(z)
        return z * share, share * (1.0 + z * (1.0 - share))
