"""Attention of short sequences: one program per sequence and head, with everything between input and output on chip.

Longer sequences use PyTorch's attention, which works through the keys in blocks.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false
# pyright does not understand @triton.jit.

from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from looped.kernels.reference import Rotation
from looped.kernels.triton_common import Angles, dot, gluon_kernels, load_angles, precision_of, turn
from looped.kernels.triton_pointwise import gather_heads, rotate_heads

LONGEST = 128
SIZES = (16, 32, 64)
"""supported head sizes: a matmul needs 16, and larger heads do not fit beside the scores"""
WARPS = 8
"""warps of a program; on an H200, 4 or 16 warps, fewer registers, several heads or blocks of queries were slower"""
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""PyTorch's implementations for long sequences, the fastest one on an H200 first"""


class Attended(NamedTuple):
    """The output of attention."""

    mixed: Tensor
    """(tokens, dim)"""
    heads: tuple[Tensor, ...] = ()
    """queries, keys and values of long sequences, which PyTorch differentiates"""
    whole: Tensor | None = None
    """output of PyTorch's attention, with its graph"""


def paired(dim: int, num_heads: int, device: torch.device) -> Tensor:
    """Return the order of (3 * dim) channels in which the pairs of a rotation are neighbours.

    By its definition they are half a head apart. As neighbours they are in the registers of one thread."""
    half = dim // num_heads // 2
    pairs = torch.arange(2 * dim, device=device).view(2 * num_heads, 2, half).transpose(1, 2).flatten()
    return torch.cat((pairs, torch.arange(2 * dim, 3 * dim, device=device)))


def attend(
    qkv: Tensor, rotation: Rotation | None, *, num_heads: int, seq_len: int, causal: bool, keep: bool
) -> Attended:
    """Return the output of the heads. With a rotation, the channels of `qkv` are `paired`.

    Queries and keys of long sequences are rotated in place. With `keep`, the result has what a backward pass needs.
    """
    tokens, dim = len(qkv), qkv.shape[1] // 3
    size = dim // num_heads
    if _fits(qkv, num_heads, seq_len):
        mixed = qkv.new_empty(tokens, dim)
        _attend[(tokens // seq_len, num_heads)](
            qkv, mixed, *((qkv, qkv) if rotation is None else rotation), seq_len, size**-0.5,
            DIM=dim, SIZE=size, ROWS=_rows(seq_len), CAUSAL=causal, ROTARY=rotation is not None,
            PRECISION=precision_of(qkv), num_warps=WARPS, num_stages=1,
        )  # fmt: skip
        return Attended(mixed)
    if rotation is not None:
        rotate_heads(qkv, rotation, num_heads=num_heads, seq_len=seq_len)
    with torch.set_grad_enabled(keep):
        heads = qkv.detach().view(-1, seq_len, 3, num_heads, size).permute(2, 0, 3, 1, 4)
        query, key, value = (each.requires_grad_(keep) for each in heads.unbind())
        with sdpa_kernel(BACKENDS, set_priority=True):
            whole = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    mixed = whole.detach().transpose(1, 2).reshape(tokens, dim)
    return Attended(mixed, (query, key, value), whole) if keep else Attended(mixed)


def attend_backward(
    qkv: Tensor, attended: Attended | None, grad: Tensor, rotation: Rotation | None, *, num_heads: int, seq_len: int,
    causal: bool, out: Tensor, mixed: Tensor, rotated: bool = False, angles: Angles | None = None,
) -> None:  # fmt: skip
    """Write the gradient of `qkv` to `out`, given `grad`, that of the heads' output, and the output to `mixed`.

    Queries and keys may be `rotated` already. `angles` are those of the rotation, for callers that have them.
    """
    tokens, dim = mixed.shape
    size = dim // num_heads
    if attended is None or attended.whole is None:
        gluon = gluon_kernels("attention")
        if gluon is not None and gluon.covers(qkv, num_heads=num_heads, seq_len=seq_len):
            if angles is None and rotation is not None:
                angles = Angles.of(rotation)
            launch = partial(
                gluon.attend_backward, qkv, grad, angles, num_heads=num_heads, seq_len=seq_len, causal=causal,
                out=out, mixed=mixed, rotated=rotated,
            )  # fmt: skip
            if gluon.attempt("the backward pass of attention", launch):
                return
        _attend_backward[(tokens // seq_len, num_heads)](
            qkv, grad, out, mixed, *((qkv, qkv) if rotation is None else rotation), seq_len, size**-0.5,
            DIM=dim, SIZE=size, ROWS=_rows(seq_len), CAUSAL=causal, ROTARY=rotation is not None,
            ROTATED=rotated, PRECISION=precision_of(qkv), num_warps=WARPS, num_stages=1,
        )  # fmt: skip
        return
    mixed.copy_(attended.mixed)
    grad = grad.view(-1, seq_len, num_heads, size).transpose(1, 2)
    parts = torch.autograd.grad(attended.whole, attended.heads, grad)
    gather_heads(parts, rotation, num_heads=num_heads, seq_len=seq_len, out=out)


def _fits(qkv: Tensor, num_heads: int, seq_len: int) -> bool:
    size, rows = qkv.shape[1] // 3 // num_heads, _rows(seq_len)
    # Shared memory of the backward pass: queries, keys, values, gradients, results on their way, and the weights.
    needed = (8 * rows * size + rows * rows) * qkv.element_size()
    return seq_len <= LONGEST and size in SIZES and needed <= _shared_memory(qkv.device)


@cache
def _shared_memory(device: torch.device) -> float:
    """Return the bytes of shared memory that one program can use."""
    if device.type != "cuda":
        return float("inf")
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def _rows(seq_len: int) -> int:
    return max(16, triton.next_power_of_2(seq_len))


@triton.jit
def _load_turned(at, inside, cos, sin, ROTARY: tl.constexpr, PRECISION: tl.constexpr):
    """Load a head's channels, with their pairs rotated by the positions' angles."""
    x = tl.load(at, mask=inside, other=0.0)
    if ROTARY:
        if PRECISION == "widened":
            cos = cos.to(tl.float32)
            sin = sin.to(tl.float32)
        x = turn(x, cos, sin).to(x.dtype)
    return x


@triton.jit
def _store_unturned(at, grad, inside, cos, sin, ROTARY: tl.constexpr):
    """Store the gradient before the rotation, given the one after it."""
    if ROTARY:
        grad = turn(grad, cos.to(tl.float32), -sin.to(tl.float32))
    tl.store(at, grad.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _angles(cos_ptr, sin_ptr, places, inside, HALF: tl.constexpr, ROTARY: tl.constexpr):
    cos = tl.full((1, 1), 1.0, tl.float32)
    sin = tl.full((1, 1), 0.0, tl.float32)
    if ROTARY:
        cos, sin = load_angles(cos_ptr, sin_ptr, places, tl.arange(0, HALF), inside, HALF)
    return cos, sin


@triton.jit
def _weights(query, key, places, seq_len, softmax_scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """Return the softmax over the keys inside the sequence."""
    scores = dot(query, tl.trans(key), None, PRECISION)
    seen = (places < seq_len)[None, :]
    if CAUSAL:
        seen = seen & (places[None, :] <= places[:, None])
    scores = tl.where(seen, scores, float("-inf"))
    scale = softmax_scale * 1.4426950408889634  # log2(e)
    weights = tl.exp2(scores * scale - (tl.max(scores, axis=1) * scale)[:, None])
    return weights * tl.fdiv(1.0, tl.sum(weights, axis=1))[:, None]


@triton.jit
def _attend(
    qkv_ptr, out_ptr, cos_ptr, sin_ptr, seq_len, softmax_scale,
    DIM: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr, ROTARY: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    places = tl.arange(0, ROWS)
    inside = (places < seq_len)[:, None]
    tokens = (tl.program_id(0).to(tl.int64) * seq_len + places)[:, None]
    channels = (tl.program_id(1) * SIZE + tl.arange(0, SIZE))[None, :]
    cos, sin = _angles(cos_ptr, sin_ptr, places, inside, SIZE // 2, ROTARY)
    at = qkv_ptr + tokens * (3 * DIM) + channels
    query = _load_turned(at, inside, cos, sin, ROTARY, PRECISION)
    key = _load_turned(at + DIM, inside, cos, sin, ROTARY, PRECISION)
    value = tl.load(at + 2 * DIM, mask=inside, other=0.0)
    weights = _weights(query, key, places, seq_len, softmax_scale, CAUSAL, PRECISION)
    mixed = dot(weights.to(value.dtype), value, None, PRECISION)
    tl.store(out_ptr + tokens * DIM + channels, mixed.to(value.dtype), mask=inside)


@triton.jit
def _attend_backward(
    qkv_ptr, grad_ptr, out_ptr, mixed_ptr, cos_ptr, sin_ptr, seq_len, softmax_scale,
    DIM: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr, ROTARY: tl.constexpr,
    ROTATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    places = tl.arange(0, ROWS)
    inside = (places < seq_len)[:, None]
    tokens = (tl.program_id(0).to(tl.int64) * seq_len + places)[:, None]
    dtype = qkv_ptr.dtype.element_ty
    cos, sin = _angles(cos_ptr, sin_ptr, places, inside, SIZE // 2, ROTARY)
    # A loop over one head, because the loads of a loop bypass the scarce registers (an eighth faster on an H200).
    for head in tl.range(tl.program_id(1), tl.program_id(1) + 1, num_stages=2):
        channels = (head * SIZE + tl.arange(0, SIZE))[None, :]
        at, at_mixed = tokens * (3 * DIM) + channels, tokens * DIM + channels
        query = _load_turned(qkv_ptr + at, inside, cos, sin, ROTARY and not ROTATED, PRECISION)
        key = _load_turned(qkv_ptr + at + DIM, inside, cos, sin, ROTARY and not ROTATED, PRECISION)
        value = tl.load(qkv_ptr + at + 2 * DIM, mask=inside, other=0.0)
        grad = tl.load(grad_ptr + at_mixed, mask=inside, other=0.0)
        weights = _weights(query, key, places, seq_len, softmax_scale, CAUSAL, PRECISION)
        rounded = weights.to(dtype)
        mixed = dot(rounded, value, None, PRECISION)
        tl.store(mixed_ptr + at_mixed, mixed.to(dtype), mask=inside)

        grad_value = dot(tl.trans(rounded), grad, None, PRECISION)
        tl.store(out_ptr + at + 2 * DIM, grad_value.to(dtype), mask=inside)
        along = tl.sum(grad.to(tl.float32) * mixed, axis=1)[:, None]
        grad_scores = dot(grad, tl.trans(value), None, PRECISION)
        grad_scores = (weights * (grad_scores - along) * softmax_scale).to(dtype)
        _store_unturned(out_ptr + at, dot(grad_scores, key, None, PRECISION), inside, cos, sin, ROTARY)
        grad_key = dot(tl.trans(grad_scores), query, None, PRECISION)
        _store_unturned(out_ptr + at + DIM, grad_key, inside, cos, sin, ROTARY)
