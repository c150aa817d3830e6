"""Attention of 129 to 256 tokens: one program per sequence, head and block of 64 tokens.

A program of the forward pass holds the scores of 64 queries with all keys, so its softmax needs no second pass. The
backward pass computes the scores twice instead of adding to memory: one kernel by queries, for their gradients and what
they attend to, and one kernel by keys, for the gradients of keys and values. The first one leaves two numbers per query
and head for the second one: the logarithm of the softmax's denominator, and the mean gradient of the query's scores.
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false
# pyright does not understand @triton.jit.

import torch
import triton
import triton.language as tl
from torch import Tensor

from looped.kernels.reference import Rotation
from looped.kernels.triton_common import dot, load_angles, precision_of, turn

SHORTEST, LONGEST = 129, 256
SIZES = (16, 32, 64)
"""supported head sizes"""
BLOCK = 64
"""queries, or keys, of a program"""


def covers(qkv: Tensor, *, num_heads: int, seq_len: int) -> bool:
    """Return whether the kernels support heads of this size and sequences of this length."""
    return qkv.dtype == torch.bfloat16 and qkv.shape[1] // 3 // num_heads in SIZES and SHORTEST <= seq_len <= LONGEST


def attend(qkv: Tensor, rotation: Rotation | None, *, num_heads: int, seq_len: int, causal: bool) -> Tensor:
    """Return what the heads attend to, (tokens, dim). With a rotation, the channels of `qkv` are `paired`."""
    mixed = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    _attend[_grid(qkv, num_heads, seq_len)](
        qkv, mixed, *(rotation or (qkv, qkv)), seq_len, **_options(qkv, rotation, num_heads, causal)
    )
    return mixed


def attend_backward(
    qkv: Tensor, grad: Tensor, rotation: Rotation | None, *, num_heads: int, seq_len: int, causal: bool, out: Tensor,
    mixed: Tensor,
) -> None:  # fmt: skip
    """Write what the heads attend to to `mixed`, and the gradient of `qkv` to `out`, given `grad`, that of `mixed`."""
    logs, alongs = torch.empty(2, num_heads, len(qkv), dtype=torch.float32, device=qkv.device)
    grid, options = _grid(qkv, num_heads, seq_len), _options(qkv, rotation, num_heads, causal)
    angles = rotation or (qkv, qkv)
    _by_queries[grid](qkv, grad, out, mixed, logs, alongs, *angles, len(qkv), seq_len, **options)
    _by_keys[grid](qkv, grad, out, logs, alongs, *angles, len(qkv), seq_len, **options | {"num_warps": 4})


def _grid(qkv: Tensor, num_heads: int, seq_len: int) -> tuple[int, int, int]:
    return len(qkv) // seq_len, num_heads, triton.cdiv(seq_len, BLOCK)


def _options(qkv: Tensor, rotation: Rotation | None, num_heads: int, causal: bool) -> dict[str, object]:
    dim = qkv.shape[1] // 3
    return {
        "DIM": dim, "SIZE": dim // num_heads, "ROWS": BLOCK, "ALL": LONGEST, "CAUSAL": causal,
        "ROTARY": rotation is not None, "PRECISION": precision_of(qkv), "num_warps": 8, "num_stages": 1,
    }  # fmt: skip


@triton.jit
def _load(ptr, places, seq_len, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """Load (places, SIZE) of one head and sequence; places behind the sequence are 0."""
    offsets = places[:, None] * WIDTH + tl.arange(0, SIZE)[None, :]
    return tl.load(ptr + offsets, mask=(places < seq_len)[:, None], other=0.0)


@triton.jit
def _rotated(x, places, seq_len, cos_ptr, sin_ptr, SIGN: tl.constexpr, SIZE: tl.constexpr):
    """Rotate the pairs of neighbours by their places' angles, or back if SIGN is -1, in float32."""
    pairs = tl.arange(0, SIZE // 2)
    cos, sin = load_angles(cos_ptr, sin_ptr, places, pairs, (places < seq_len)[:, None], SIZE // 2)
    return turn(x.to(tl.float32), cos.to(tl.float32), SIGN * sin.to(tl.float32))


@triton.jit
def _load_rotated(
    ptr, places, seq_len, cos_ptr, sin_ptr, WIDTH: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr
):
    x = _load(ptr, places, seq_len, WIDTH, SIZE)
    if ROTARY:
        x = _rotated(x, places, seq_len, cos_ptr, sin_ptr, 1, SIZE).to(x.dtype)
    return x


@triton.jit
def _store(ptr, x, places, seq_len, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    offsets = places[:, None] * WIDTH + tl.arange(0, SIZE)[None, :]
    tl.store(ptr + offsets, x.to(ptr.dtype.element_ty), mask=(places < seq_len)[:, None])


@triton.jit
def _store_back(
    ptr, grad, places, seq_len, cos_ptr, sin_ptr, WIDTH: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr
):
    """Store the gradient of queries or keys before rotation and scale, given that of the rotated ones."""
    grad *= SIZE**-0.5
    if ROTARY:
        grad = _rotated(grad, places, seq_len, cos_ptr, sin_ptr, -1, SIZE)
    _store(ptr, grad, places, seq_len, WIDTH, SIZE)


@triton.jit
def _scores(query, key, queries, keys, seq_len, SIZE: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """Return scores in powers of 2. Keys that a query does not see have a score of minus infinity."""
    seen = (keys < seq_len)[None, :]
    if CAUSAL:
        seen = seen & (keys[None, :] <= queries[:, None])
    power = SIZE**-0.5 * 1.4426950408889634  # log2(e)
    return tl.where(seen, dot(query, tl.trans(key), None, PRECISION) * power, float("-inf"))


@triton.jit
def _attend(
    qkv_ptr, out_ptr, cos_ptr, sin_ptr, seq_len, DIM: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    ALL: tl.constexpr, CAUSAL: tl.constexpr, ROTARY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first, column = tl.program_id(0).to(tl.int64) * seq_len, tl.program_id(1) * SIZE
    queries, keys = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, ALL)
    qkv_ptr += first * (3 * DIM) + column
    query = _load_rotated(qkv_ptr, queries, seq_len, cos_ptr, sin_ptr, 3 * DIM, SIZE, ROTARY)
    key = _load_rotated(qkv_ptr + DIM, keys, seq_len, cos_ptr, sin_ptr, 3 * DIM, SIZE, ROTARY)
    value = _load(qkv_ptr + 2 * DIM, keys, seq_len, 3 * DIM, SIZE)
    scores = _scores(query, key, queries, keys, seq_len, SIZE, CAUSAL, PRECISION)
    weights = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    share = 1.0 / tl.sum(weights, axis=1)
    mixed = dot(weights.to(value.dtype), value, None, PRECISION) * share[:, None]
    _store(out_ptr + first * DIM + column, mixed, queries, seq_len, DIM, SIZE)


@triton.jit
def _by_queries(
    qkv_ptr, grad_ptr, out_ptr, mixed_ptr, logs_ptr, alongs_ptr, cos_ptr, sin_ptr, num_tokens, seq_len,
    DIM: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, ALL: tl.constexpr, CAUSAL: tl.constexpr,
    ROTARY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first, column = tl.program_id(0).to(tl.int64) * seq_len, tl.program_id(1) * SIZE
    queries, keys = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, ALL)
    here, there = first * (3 * DIM) + column, first * DIM + column
    query = _load_rotated(qkv_ptr + here, queries, seq_len, cos_ptr, sin_ptr, 3 * DIM, SIZE, ROTARY)
    key = _load_rotated(qkv_ptr + here + DIM, keys, seq_len, cos_ptr, sin_ptr, 3 * DIM, SIZE, ROTARY)
    value = _load(qkv_ptr + here + 2 * DIM, keys, seq_len, 3 * DIM, SIZE)
    grad = _load(grad_ptr + there, queries, seq_len, DIM, SIZE)
    scores = _scores(query, key, queries, keys, seq_len, SIZE, CAUSAL, PRECISION)
    largest = tl.max(scores, axis=1)
    total = tl.sum(tl.exp2(scores - largest[:, None]), axis=1)
    logs = largest + tl.log2(total)
    weights = tl.exp2(scores - logs[:, None])
    mixed = dot(weights.to(value.dtype), value, None, PRECISION)
    _store(mixed_ptr + there, mixed, queries, seq_len, DIM, SIZE)
    along = tl.sum(grad.to(tl.float32) * mixed, axis=1)
    places = tl.program_id(1).to(tl.int64) * num_tokens + first + queries
    tl.store(logs_ptr + places, logs, mask=queries < seq_len)
    tl.store(alongs_ptr + places, along, mask=queries < seq_len)
    grad_scores = weights * (dot(grad, tl.trans(value), None, PRECISION) - along[:, None])
    grad_query = dot(grad_scores.to(key.dtype), key, None, PRECISION)
    _store_back(out_ptr + here, grad_query, queries, seq_len, cos_ptr, sin_ptr, 3 * DIM, SIZE, ROTARY)


@triton.jit
def _by_keys(
    qkv_ptr, grad_ptr, out_ptr, logs_ptr, alongs_ptr, cos_ptr, sin_ptr, num_tokens, seq_len, DIM: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, ALL: tl.constexpr, CAUSAL: tl.constexpr, ROTARY: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    first, column = tl.program_id(0).to(tl.int64) * seq_len, tl.program_id(1) * SIZE
    keys = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    here, there = first * (3 * DIM) + column, first * DIM + column
    key = _load_rotated(qkv_ptr + here + DIM, keys, seq_len, cos_ptr, sin_ptr, 3 * DIM, SIZE, ROTARY)
    value = _load(qkv_ptr + here + 2 * DIM, keys, seq_len, 3 * DIM, SIZE)
    grad_key, grad_value = tl.zeros((ROWS, SIZE), tl.float32), tl.zeros((ROWS, SIZE), tl.float32)
    power = SIZE**-0.5 * 1.4426950408889634  # log2(e)
    for start in range(0, seq_len, ALL // 2):  # registers do not suffice for the scores of all queries
        queries = start + tl.arange(0, ALL // 2)
        query = _load_rotated(qkv_ptr + here, queries, seq_len, cos_ptr, sin_ptr, 3 * DIM, SIZE, ROTARY)
        grad = _load(grad_ptr + there, queries, seq_len, DIM, SIZE)
        places = tl.program_id(1).to(tl.int64) * num_tokens + first + queries
        # A query behind the sequence gives every key a weight of 0.
        logs = tl.load(logs_ptr + places, mask=queries < seq_len, other=float("inf"))
        along = tl.load(alongs_ptr + places, mask=queries < seq_len, other=0.0)
        weights = tl.exp2(dot(key, tl.trans(query), None, PRECISION) * power - logs[None, :])
        if CAUSAL:
            weights = tl.where(queries[None, :] >= keys[:, None], weights, 0.0)
        grad_value = dot(weights.to(grad.dtype), grad, grad_value, PRECISION)
        grad_scores = weights * (dot(value, tl.trans(grad), None, PRECISION) - along[None, :])
        grad_key = dot(grad_scores.to(query.dtype), query, grad_key, PRECISION)
    _store(out_ptr + here + 2 * DIM, grad_value, keys, seq_len, 3 * DIM, SIZE)
    _store_back(out_ptr + here + DIM, grad_key, keys, seq_len, cos_ptr, sin_ptr, 3 * DIM, SIZE, ROTARY)
