"""The definition of every operation of the block, in plain PyTorch. Faster engines must give the same results.

The state is (batch, seq, dim) and keeps its own precision. The matmuls run in the precision of the weights.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

# This term keeps an all-zero token finite. The paper's RMS does not have it. The mean square of a new embedding is
# about 1e-3, so the term is below the precision of float32.
RMS_EPSILON = 1e-12
SMALLEST_NORM = 1e-30  # lower bound on a gradient norm, so that the growth of a zero gradient is 1

Activation = Literal["gelu", "relu", "silu"]
Norm = Literal["rms", "query-key", "none"]
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""cache of one layer in one loop: takes new keys and values (batch, head, seq, size), returns those to attend to"""
_ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


class Modulation(NamedTuple):
    """The modulation of one sublayer in one loop. None means 1 for scale and gate, and 0 for shift."""

    scale: Float[Tensor, " dim"] | None = None
    """alpha: gain of the norm before the sublayer"""
    shift: Float[Tensor, " dim"] | None = None
    """bias of the norm before the sublayer"""
    gate: Float[Tensor, " dim"] | None = None
    """gamma: factor of the sublayer's output"""


class LayerWeights(NamedTuple):
    """The matrices of one layer and the biases of its feed-forward part."""

    w_qkv: Float[Tensor, "3*dim dim"]
    w_out: Float[Tensor, "dim dim"]
    w_in: Float[Tensor, "ff dim"]
    b_in: Float[Tensor, " ff"]
    w_back: Float[Tensor, "dim ff"]
    b_back: Float[Tensor, " dim"]


class Rotation(NamedTuple):
    """Rotary positions: cosines and sines of (seq, head size / 2) angles, or (batch, 1, seq, head size / 2)."""

    cos: Float[Tensor, "*batch seq half"]
    sin: Float[Tensor, "*batch seq half"]


def rms_normalise(x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
    """Return x / RMS(x) over the last axis, computed at least in float32.

    float16 can represent neither the square of 256 nor RMS_EPSILON.
    """
    precise = x.to(torch.promote_types(x.dtype, torch.float32))
    return (precise * torch.rsqrt(precise.square().mean(dim=-1, keepdim=True) + RMS_EPSILON)).to(x.dtype)


def normalise(x: Float[Tensor, "... dim"], modulation: Modulation, *, norm: Norm = "rms") -> Float[Tensor, "... dim"]:
    """Return RMSN(x, t) = alpha(t) * x / RMS(x), plus the shift if there is one."""
    if norm == "rms":
        x = rms_normalise(x)
    if modulation.scale is not None:
        x = x * modulation.scale
    if modulation.shift is not None:
        x = x + modulation.shift
    return x


def rotate(x: Float[Tensor, "batch head seq size"], rotation: Rotation) -> Float[Tensor, "batch head seq size"]:
    """Rotate each pair (x_i, x_{i + half}) by the angle of its position."""
    cos, sin = rotation.cos.to(x.dtype), rotation.sin.to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)


def add_attention(
    x: Float[Tensor, "batch seq dim"],
    modulation: Modulation,
    w_qkv: Float[Tensor, "3*dim dim"],
    w_out: Float[Tensor, "dim dim"],
    *,
    num_heads: int,
    causal: bool,
    bias: Float[Tensor, "batch 1 #seq key"] | None = None,
    rotation: Rotation | None = None,
    attention_weights: Literal["softmax", "hardmax"] = "softmax",
    norm: Norm = "rms",
    remember: Remember | None = None,
) -> Float[Tensor, "batch seq dim"]:
    """Return X + gamma * Attn(RMSN(X)), with scores divided by the square root of the head size.

    `bias` is added to the scores to mask keys. Without it, a query attends to all keys, or to no later ones if causal.
    `remember` is a cache, which adds the keys and values of earlier tokens.
    """
    batch, seq, dim = x.shape
    query, key, value = _project(x, modulation, w_qkv, num_heads, rotation, norm)
    if remember is not None:
        key, value = remember(key, value)
    if attention_weights == "softmax":
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=causal)
    else:
        mixed = attend_to_largest(query, key, value, bias=bias, causal=causal)
    return _add_gated(x, F.linear(mixed.transpose(1, 2).reshape(batch, seq, dim), w_out), modulation)


def _project(
    x: Tensor, modulation: Modulation, w_qkv: Tensor, num_heads: int, rotation: Rotation | None, norm: Norm
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, each (batch, head, seq, size)."""
    batch, seq, dim = x.shape
    hidden = normalise(x, modulation, norm="none" if norm == "none" else "rms").to(w_qkv.dtype)
    if norm == "query-key":
        values = F.linear(x.to(w_qkv.dtype), w_qkv[2 * dim :])
        qkv = torch.cat((F.linear(hidden, w_qkv[: 2 * dim]), values), dim=-1)
    else:
        qkv = F.linear(hidden, w_qkv)
    query, key, value = qkv.view(batch, seq, 3, num_heads, dim // num_heads).permute(2, 0, 3, 1, 4)
    if rotation is not None:
        query, key = rotate(query, rotation), rotate(key, rotation)
    return query, key, value


def attention_map(
    x: Float[Tensor, "batch seq dim"],
    modulation: Modulation,
    w_qkv: Float[Tensor, "3*dim dim"],
    *,
    num_heads: int,
    causal: bool,
    bias: Float[Tensor, "batch 1 #seq seq"] | None = None,
    rotation: Rotation | None = None,
    attention_weights: Literal["softmax", "hardmax"] = "softmax",
    norm: Norm = "rms",
) -> Float[Tensor, "batch head seq seq"]:
    """Return the weights with which `add_attention` mixes the values: each query's weights of all keys."""
    query, key, _ = _project(x, modulation, w_qkv, num_heads, rotation, norm)
    # A mean of unit vectors is the row of its weights.
    units = torch.eye(x.shape[1], dtype=key.dtype, device=x.device).expand(*key.shape[:3], -1)
    if attention_weights == "softmax":
        return F.scaled_dot_product_attention(query, key, units, attn_mask=bias, is_causal=causal)
    return attend_to_largest(query, key, units, bias=bias, causal=causal)


def padding_bias(
    attention_mask: Bool[Tensor, "batch seq"],
    *,
    causal: bool,
    dtype: torch.dtype,
    queries: Int[Tensor, " query"] | None = None,
) -> Float[Tensor, "batch 1 #query seq"]:
    """Return an additive mask for the scores: -inf at padded keys and, if causal, at later ones.

    `attention_mask` is True at tokens. A query whose keys are all masked attends to itself (causal) or to all padding,
    because SDPA backends disagree about fully masked rows. Without causality, one row serves all queries. The mask has
    floats, because SDPA would convert booleans again in every layer of every loop, and store each result for backward.
    With a cache, `queries` are the places of the queries among the keys (default: all places).
    """
    if causal:
        places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        queries = places if queries is None else queries
        earlier = attention_mask[:, None, None, :] & (places <= queries[:, None])
        visible = earlier | (places == queries[:, None])
    else:
        visible = (attention_mask | ~attention_mask.any(dim=1, keepdim=True))[:, None, None, :]
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, -torch.inf)


def attend_to_largest(
    query: Float[Tensor, "batch head seq size"],
    key: Float[Tensor, "batch head key size"],
    value: Float[Tensor, "batch head key size"],
    *,
    bias: Float[Tensor, "batch 1 #seq key"] | None = None,
    causal: bool,
) -> Float[Tensor, "batch head seq size"]:
    """Return hardmax attention: the mean of the values whose scores are largest. Scores get no gradient.

    Like in softmax kernels, the mean is computed in float32 or better and rounded once.
    """
    scores = query @ key.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    precise = torch.promote_types(value.dtype, torch.float32)
    largest = (scores == scores.amax(dim=-1, keepdim=True)).to(precise)
    return ((largest @ value.to(precise)) / largest.sum(dim=-1, keepdim=True)).to(value.dtype)


def add_feed_forward(
    x: Float[Tensor, "batch seq dim"],
    modulation: Modulation,
    w_in: Float[Tensor, "ff dim"],
    b_in: Float[Tensor, " ff"],
    w_out: Float[Tensor, "dim ff"],
    b_out: Float[Tensor, " dim"],
    *,
    activation: Activation,
    norm: Norm = "rms",
) -> Float[Tensor, "batch seq dim"]:
    """Return X + gamma * FF(RMSN(X)), where FF(x) = W2 act(W1 x + b1) + b2."""
    hidden = normalise(x, modulation, norm=norm).to(w_in.dtype)
    hidden = _ACTIVATIONS[activation](F.linear(hidden, w_in, b_in))
    return _add_gated(x, F.linear(hidden, w_out, b_out), modulation)


def _add_gated(x: Tensor, update: Tensor, modulation: Modulation) -> Tensor:
    if modulation.gate is not None:
        update = modulation.gate * update
    return x + update.to(x.dtype)


def example_norms(grad: Float[Tensor, "batch seq dim"]) -> Float[Tensor, " batch"]:
    """Return the gradient norm of each example."""
    return grad.norm(dim=(1, 2)).clamp(min=SMALLEST_NORM)


def limit_growth(
    grad: Float[Tensor, "batch seq dim"], last_norms: Float[Tensor, " batch"], limit: float
) -> Float[Tensor, "batch seq dim"]:
    """Clip the gradients of a loop's state per example, and return them.

    The growth of an example is its gradient norm divided by its norm at the last loop (`last_norms`). It is limited to
    `limit` times the geometric mean of the batch. Otherwise the gradients of a few examples explode over many loops and
    dominate their batch.
    """
    growth = example_norms(grad) / last_norms
    factor = limit * growth.log().mean().exp() / growth
    return torch.where((factor < 1)[:, None, None], factor[:, None, None] * grad, grad)


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch dim"], weight: Float[Tensor, "vocab dim"], targets: Int[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Bool[Tensor, "*batch"]]:
    """Return the cross-entropy of the scores hidden W^T, at least in float32, and if the target's is the largest."""
    scores = F.linear(hidden, weight)
    precise = scores.to(torch.promote_types(scores.dtype, torch.float32))
    losses = F.cross_entropy(precise.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)
    return losses, scores.argmax(dim=-1) == targets
