"""Pointwise Triton kernels between two matmuls, forward and backward: residual and norm, activation, rotation.

Each kernel is one pass over memory.
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright does not understand @triton.jit.

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from looped.kernels.float8 import (
    ACTIVE_SCALE,
    E4M3,
    LARGEST,
    ROOM,
    Scaled,
    ScaledMatrices,
    apart,
    fixed_scale,
    normed_scale,
)
from looped.kernels.reference import RMS_EPSILON, SMALLEST_NORM, Activation, Rotation
from looped.kernels.triton_common import activate, load_angles, turn

EPSILON = tl.constexpr(RMS_EPSILON)
SMALLEST = tl.constexpr(SMALLEST_NORM)
LARGEST8 = tl.constexpr(LARGEST)

ELEMENTS = 4096
"""elements of a tile that holds whole rows"""
FLAT = 2048
"""elements of any other tile: 8 per thread, one wide load each"""
SUM_ROWS, SUM_COLUMNS = 128, 128
"""tile of `activation_backward`, which sums its columns"""


def _tile(width: int) -> tuple[int, int]:
    """Return (rows, columns) of a tile that holds whole rows."""
    columns = triton.next_power_of_2(width)
    return max(1, ELEMENTS // columns), columns


def _pointers(placeholder: Tensor, *tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Return the tensors with a placeholder for None, because a kernel needs a pointer for every argument."""
    return tuple(placeholder if tensor is None else tensor for tensor in tensors)


class Rounded(NamedTuple):
    """Numbers in the precision of the matmuls, and the bits that this precision cuts off."""

    value: Tensor
    """(tokens, dim) rounded numbers"""
    rest: Tensor | None = None
    """(tokens, dim), int8: the eight bits after those of a bfloat16, or None if nothing was rounded"""


class Normed(NamedTuple):
    """A state divided by its RMS, and the inverse of that RMS, for the backward pass of the norm.

    With the cut-off bits, this is also the state itself in three bytes per number.
    """

    value: Tensor
    """(tokens, dim), in the precision of the matmuls"""
    inverse: Tensor
    """(tokens,), in float32"""
    rest: Tensor | None = None
    """cut-off bits of the value, as in `Rounded`"""
    eighth: Tensor | None = None
    """the value divided by `normed_scale` in 8 bits, or None if no matmul needs it"""


def add_norm(
    x: Tensor | Normed,
    update: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    state: Tensor | None = None,
    inject: Tensor | None = None,
    total: Tensor | None = None,
    normed: Normed | None = None,
) -> None:
    """Write x + update + bias to `state`, state + inject to `total`, and total / RMS(total) to `normed`.

    `x` is a state, or the `normed` of an earlier call. The two may share the memory of their cut-off bits.
    """
    x, inverse, rest = x[:3] if isinstance(x, Normed) else (x, None, None)
    tokens, dim = x.shape
    rows, columns = _tile(dim)
    value, new_inverse, new_rest, eighth = normed or (None, None, None, None)
    pointers = _pointers(x, inverse, rest, update, bias, state, inject, total, value, new_inverse, new_rest, eighth)
    _add_norm[(triton.cdiv(tokens, rows),)](
        x, *pointers, tokens, DIM=dim, ROWS=rows, COLUMNS=columns,
        FROM_NORMED=inverse is not None, FROM_REST=rest is not None, UPDATE=update is not None, BIAS=bias is not None,
        STATE=state is not None, INJECT=inject is not None, TOTAL=total is not None, NORMED=value is not None,
        REST=new_rest is not None, EIGHTH=0.0 if eighth is None else 1 / normed_scale(dim), num_warps=4,
    )  # fmt: skip


def norm_backward(
    normed: Normed,
    grad_normed: Tensor,
    grad: Rounded,
    *,
    out: Rounded,
    further: Tensor | None = None,
    summed: Tensor | None = None,
    whole: Tensor | None = None,
) -> None:
    """Write to `out` the sum of `grad`, the gradient through the norm, and `further`.

    `whole` gets the same sum in float32. The sum without `further` is added to `summed`. `grad` and `out` may share the
    memory of their cut-off bits.
    """
    value, rest = grad
    tokens, dim = value.shape
    rows, columns = _tile(dim)
    pointers = _pointers(value, rest, out.value, out.rest, further, summed, whole)
    _norm_backward[(triton.cdiv(tokens, rows),)](
        normed.value, normed.inverse, grad_normed, value, *pointers, tokens,
        DIM=dim, ROWS=rows, COLUMNS=columns, REST=rest is not None, FURTHER=further is not None,
        SUMMED=summed is not None, WHOLE=whole is not None, num_warps=4,
    )  # fmt: skip


def round_off(x: Tensor, out: Rounded) -> None:
    """Write float32 numbers to `out`, rounded with their cut-off bits."""
    value, rest = out
    if rest is None:
        value.copy_(x)
    else:
        _round_off[(triton.cdiv(x.numel(), FLAT),)](x, value, rest, x.numel(), SIZE=FLAT, num_warps=8)


def example_norms(grad: Rounded, batch: int) -> Tensor:
    """Return (batch,) norms, as `reference.example_norms` does, of gradients (batch * seq, dim)."""
    value, rest = grad
    norms = torch.empty(batch, dtype=torch.float32, device=value.device)
    _example_norms[(batch,)](
        value, value if rest is None else rest, norms, value.numel() // batch, SIZE=2 * FLAT, REST=rest is not None,
        num_warps=8,
    )  # fmt: skip
    return norms


def limit_growth(grad: Rounded, last_norms: Tensor, limit: float) -> None:
    """Limit the gradients in place, as `reference.limit_growth` does."""
    value, rest = grad
    batch = len(last_norms)
    size = value.numel() // batch
    _limit_growth[(batch, triton.cdiv(size, 2 * FLAT))](
        value, value if rest is None else rest, example_norms(grad, batch), last_norms, limit, batch, size,
        BATCH=triton.next_power_of_2(batch), SIZE=2 * FLAT, REST=rest is not None, num_warps=8,
    )  # fmt: skip


def activation_forward(z: Tensor, activation: Activation) -> Tensor:
    """Return act(z)."""
    out = torch.empty_like(z)
    _activation[(triton.cdiv(z.numel(), FLAT),)](z, out, z.numel(), KIND=activation, EIGHTH=0.0, SIZE=FLAT, num_warps=8)
    return out


def activation_in_float8(z: Tensor, activation: Activation) -> Scaled:
    """Return act(z) in 8 bits."""
    out = torch.empty_like(z, dtype=E4M3)
    _activation[(triton.cdiv(z.numel(), FLAT),)](
        z, out, z.numel(), KIND=activation, EIGHTH=1 / ACTIVE_SCALE, SIZE=FLAT, num_warps=8
    )
    return Scaled(out, fixed_scale(ACTIVE_SCALE, z.device))


def rows_in_float8(x: Tensor) -> Scaled:
    """Return (tokens, dim) in 8 bits, with one scale per token."""
    tokens, dim = x.shape
    rows, columns = _tile(dim)
    found = Scaled(torch.empty_like(x, dtype=E4M3), torch.empty(tokens, 1, dtype=torch.float32, device=x.device))
    _rows_in_float8[(triton.cdiv(tokens, rows),)](x, *found, tokens, DIM=dim, ROWS=rows, COLUMNS=columns, num_warps=4)
    return found


def matrices_in_float8(matrix: Tensor, table: Tensor | None, *, by_column: bool) -> ScaledMatrices:
    """Return what `scaled_matrices` does in 8 bits, with one scale per loop."""
    scale = matrix.abs().amax().clamp(min=SMALLEST_NORM) / LARGEST
    if table is None:
        return ScaledMatrices((matrix / scale)[None].to(E4M3), apart(scale[None]))
    table = table[:1] if table.stride(0) == 0 else table  # stride 0: the same factors in all loops
    scale = scale * table.abs().amax(dim=1).clamp(min=SMALLEST_NORM)
    return ScaledMatrices(scaled_matrices(matrix, table / scale[:, None], E4M3, by_column=by_column), apart(scale))


def activation_backward(
    z: Tensor, grad: Tensor, active: Tensor, sums: Tensor, activation: Activation, before: Tensor | None = None
) -> Scaled | None:
    """Replace the gradient of act(z) by that of z, in place.

    Also write act(z) to `active`, and the sums of the result over the tokens of each tile to `sums` (tiles, width). If
    `before` holds the scales (tokens, 1) of the gradient before the activation, return the result in 8 bits, too.
    """
    tokens, width = z.shape
    grid = num_sums(tokens), triton.cdiv(width, SUM_COLUMNS)
    eighth = None if before is None else Scaled(torch.empty_like(z, dtype=E4M3), before * ROOM)
    _activation_backward[grid](
        z, grad, active, sums, *(eighth or (z, z)), tokens, WIDTH=width, KIND=activation, TILE=SUM_ROWS,
        ROWS=FLAT // SUM_COLUMNS, COLUMNS=SUM_COLUMNS, EIGHTH=eighth is not None, num_warps=4,
    )  # fmt: skip
    return eighth


def num_sums(tokens: int) -> int:
    """Return the number of rows in the sums of `activation_backward`."""
    return triton.cdiv(tokens, SUM_ROWS)


def scaled_matrices(matrix: Tensor, table: Tensor | None, dtype: torch.dtype, *, by_column: bool) -> Tensor:
    """Return (loops, rows, columns): the matrix times each loop's factors, which are per column or per row."""
    if table is None:
        return matrix[None].to(dtype)
    table = table[:1] if table.stride(0) == 0 else table  # stride 0: the same factors in all loops
    rows, columns = matrix.shape
    out = torch.empty(len(table), rows, columns, dtype=dtype, device=matrix.device)
    grid = triton.cdiv(rows * columns, FLAT), len(table)
    _scaled_matrices[grid](
        matrix, table, out, rows * columns, columns, table.stride(0), SIZE=FLAT, BY_COLUMN=by_column, num_warps=4
    )
    return out


def gather_heads(
    parts: Sequence[Tensor], rotation: Rotation | None, *, num_heads: int, seq_len: int, out: Tensor
) -> None:
    """Write the gradients of queries, keys and values, each (batch, head, seq, size), to `out` (tokens, 3 * dim).

    The gradients of queries and keys are rotated back by the angles of their positions.
    """
    half, rows, pairs = _head_tile(out.shape[1], num_heads)
    grid = triton.cdiv(len(out), rows), num_heads
    for place, part in enumerate(parts):
        is_rotated = rotation is not None and place < 2
        _gather_heads[grid](
            part, out, *(rotation if is_rotated and rotation else (part, part)), len(out), seq_len, *part.stride()[:3],
            place * num_heads, WIDTH=out.shape[1], HALF=half, ROWS=rows, PAIRS=pairs, ROTATED=is_rotated, num_warps=4,
        )  # fmt: skip


def rotate_heads(qkv: Tensor, rotation: Rotation, *, num_heads: int, seq_len: int) -> None:
    """Rotate the pairs of neighbours in queries and keys of (tokens, 3 * dim) by their positions' angles, in place."""
    half, rows, pairs = _head_tile(qkv.shape[1], num_heads)
    _rotate_heads[(triton.cdiv(len(qkv), rows), 2 * num_heads)](
        qkv, *rotation, len(qkv), seq_len, WIDTH=qkv.shape[1], HALF=half, ROWS=rows, PAIRS=pairs, num_warps=4
    )


def _head_tile(width: int, num_heads: int) -> tuple[int, int, int]:
    """Return (pairs of a head, rows of a tile, pairs of a tile) for rows of queries, keys and values."""
    half = width // 3 // num_heads // 2
    pairs = triton.next_power_of_2(half)
    return half, max(1, ELEMENTS // 4 // pairs), pairs


@triton.jit
def _load_rounded(value_ptr, rest_ptr, offsets, mask, REST: tl.constexpr):
    """Load numbers as float32. With REST, join each bfloat16 with the eight bits that it cut off."""
    value = tl.load(value_ptr + offsets, mask=mask, other=0.0)
    if REST:
        rest = tl.load(rest_ptr + offsets, mask=mask, other=0).to(tl.int32)
        bits = ((value.to(tl.int16, bitcast=True).to(tl.int32) << 8) + rest) << 8
        return bits.to(tl.float32, bitcast=True)
    else:  # noqa: RET505 (both branches must be seen as alternatives by the compiler)
        return value.to(tl.float32)


@triton.jit
def _store_rounded(x, value_ptr, rest_ptr, offsets, mask, REST: tl.constexpr):
    """Store numbers. With REST, round to 24 bits and store the nearest bfloat16 and the difference to it."""
    if REST:
        bits = tl.where(x == x, x.to(tl.int32, bitcast=True), 0x7FC00000)  # one NaN that rounding leaves a NaN
        bits = (bits + 128) >> 8
        value = (bits + 128) >> 8
        tl.store(value_ptr + offsets, value.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=mask)
        tl.store(rest_ptr + offsets, (bits - (value << 8)).to(tl.int8), mask=mask)
    else:
        tl.store(value_ptr + offsets, x.to(value_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _to_float8(x, out_ptr):
    return tl.minimum(tl.maximum(x, -LARGEST8), LARGEST8).to(out_ptr.dtype.element_ty)


@triton.jit
def _rows_in_float8(
    x_ptr, out_ptr, scale_ptr, num_tokens, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mask = (rows < num_tokens)[:, None] & (columns < DIM)[None, :]
    offsets = rows.to(tl.int64)[:, None] * DIM + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), SMALLEST) / LARGEST8
    tl.store(scale_ptr + rows, scale, mask=rows < num_tokens)
    tl.store(out_ptr + offsets, _to_float8(x / scale[:, None], out_ptr), mask=mask)


@triton.jit
def _add_norm(
    x_ptr, x_inverse_ptr, x_rest_ptr, update_ptr, bias_ptr, state_ptr, inject_ptr, total_ptr, value_ptr, inverse_ptr,
    rest_ptr, eighth_ptr, num_tokens,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FROM_NORMED: tl.constexpr, FROM_REST: tl.constexpr,
    UPDATE: tl.constexpr, BIAS: tl.constexpr, STATE: tl.constexpr, INJECT: tl.constexpr, TOTAL: tl.constexpr,
    NORMED: tl.constexpr, REST: tl.constexpr, EIGHTH: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (rows < num_tokens)[:, None] & (columns < DIM)[None, :]
    offsets = rows.to(tl.int64)[:, None] * DIM + columns[None, :]
    x = _load_rounded(x_ptr, x_rest_ptr, offsets, mask, FROM_REST)
    if FROM_NORMED:
        x = x / tl.load(x_inverse_ptr + rows, mask=rows < num_tokens, other=1.0)[:, None]
    if UPDATE:
        x += tl.load(update_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        x += tl.load(bias_ptr + columns, mask=columns < DIM, other=0.0).to(tl.float32)[None, :]
    if STATE:
        tl.store(state_ptr + offsets, x, mask=mask)
    if INJECT:
        x += tl.load(inject_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if TOTAL:
        tl.store(total_ptr + offsets, x, mask=mask)
    if NORMED:
        inverse = tl.rsqrt(tl.sum(x * x, axis=1) / DIM + EPSILON)
        tl.store(inverse_ptr + rows, inverse, mask=rows < num_tokens)
        x *= inverse[:, None]
        _store_rounded(x, value_ptr, rest_ptr, offsets, mask, REST)
        if EIGHTH > 0.0:
            tl.store(eighth_ptr + offsets, _to_float8(x * EIGHTH, eighth_ptr), mask=mask)


@triton.jit
def _norm_backward(
    normed_ptr, inverse_ptr, grad_normed_ptr, grad_ptr, grad_rest_ptr, out_ptr, out_rest_ptr, further_ptr, summed_ptr,
    whole_ptr, num_tokens,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, REST: tl.constexpr, FURTHER: tl.constexpr,
    SUMMED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (rows < num_tokens)[:, None] & (columns < DIM)[None, :]
    offsets = rows.to(tl.int64)[:, None] * DIM + columns[None, :]
    normed = tl.load(normed_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    inverse = tl.load(inverse_ptr + rows, mask=rows < num_tokens, other=0.0)[:, None]
    grad_normed = tl.load(grad_normed_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    grad = _load_rounded(grad_ptr, grad_rest_ptr, offsets, mask, REST)
    along = tl.sum(grad_normed * normed, axis=1)[:, None] / DIM
    grad += inverse * (grad_normed - normed * along)
    if SUMMED:
        tl.store(summed_ptr + offsets, tl.load(summed_ptr + offsets, mask=mask, other=0.0) + grad, mask=mask)
    if FURTHER:
        grad += tl.load(further_ptr + offsets, mask=mask, other=0.0)
    if WHOLE:
        tl.store(whole_ptr + offsets, grad, mask=mask)
    _store_rounded(grad, out_ptr, out_rest_ptr, offsets, mask, REST)


@triton.jit
def _round_off(x_ptr, out_ptr, rest_ptr, size, SIZE: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = offsets < size
    _store_rounded(tl.load(x_ptr + offsets, mask=mask, other=0.0), out_ptr, rest_ptr, offsets, mask, True)


@triton.jit
def _example_norms(value_ptr, rest_ptr, norms_ptr, size, SIZE: tl.constexpr, REST: tl.constexpr):
    example = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((SIZE,), tl.float32)
    for first in range(0, size, SIZE):
        places = first + tl.arange(0, SIZE)
        x = _load_rounded(value_ptr, rest_ptr, example * size + places, places < size, REST)
        squares += x * x
    tl.store(norms_ptr + example, tl.maximum(tl.sqrt(tl.sum(squares, axis=0)), SMALLEST))


@triton.jit
def _limit_growth(
    value_ptr, rest_ptr, norms_ptr, last_ptr, limit, batch, size,
    BATCH: tl.constexpr, SIZE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    example = tl.program_id(0).to(tl.int64)
    all_examples = tl.arange(0, BATCH)
    inside = all_examples < batch
    norms = tl.load(norms_ptr + all_examples, mask=inside, other=1.0)
    logarithms = tl.log(norms / tl.load(last_ptr + all_examples, mask=inside, other=1.0))
    growth = tl.load(norms_ptr + example) / tl.load(last_ptr + example)
    factor = limit * tl.exp(tl.sum(logarithms, axis=0) / batch) / growth
    if factor < 1.0:  # rare, and gradients below the limit are not read
        places = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
        offsets, mask = example * size + places, places < size
        x = _load_rounded(value_ptr, rest_ptr, offsets, mask, REST)
        _store_rounded(factor * x, value_ptr, rest_ptr, offsets, mask, REST)


@triton.jit
def _activation(z_ptr, out_ptr, size, KIND: tl.constexpr, EIGHTH: tl.constexpr, SIZE: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    z = tl.load(z_ptr + offsets, mask=offsets < size, other=0.0).to(tl.float32)
    active, _ = activate(z, KIND)
    if EIGHTH > 0.0:  # noqa: SIM108 (the compiler chooses a branch here, not in an expression)
        active = _to_float8(active * EIGHTH, out_ptr)
    else:
        active = active.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, active, mask=offsets < size)


@triton.jit
def _activation_backward(
    z_ptr, grad_ptr, active_ptr, sums_ptr, eighth_ptr, scale_ptr, num_tokens, WIDTH: tl.constexpr, KIND: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EIGHTH: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, TILE, ROWS):
        rows = tile * TILE + first + tl.arange(0, ROWS)
        mask = (rows < num_tokens)[:, None] & (columns < WIDTH)[None, :]
        offsets = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        active, slope = activate(tl.load(z_ptr + offsets, mask=mask, other=0.0).to(tl.float32), KIND)
        slope *= tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(active_ptr + offsets, active.to(active_ptr.dtype.element_ty), mask=mask)
        tl.store(grad_ptr + offsets, slope.to(grad_ptr.dtype.element_ty), mask=mask)
        if EIGHTH:
            scale = tl.load(scale_ptr + rows, mask=rows < num_tokens, other=1.0)
            tl.store(eighth_ptr + offsets, _to_float8(slope / scale[:, None], eighth_ptr), mask=mask)
        total += slope
    tl.store(sums_ptr + tile * WIDTH + columns, tl.sum(total, axis=0), mask=columns < WIDTH)


@triton.jit
def _scaled_matrices(
    matrix_ptr, table_ptr, out_ptr, size, num_columns, table_stride, SIZE: tl.constexpr, BY_COLUMN: tl.constexpr
):
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    loop = tl.program_id(1).to(tl.int64)
    mask = offsets < size
    factor = offsets % num_columns if BY_COLUMN else offsets // num_columns
    factors = tl.load(table_ptr + loop * table_stride + factor, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(matrix_ptr + offsets, mask=mask, other=0.0).to(tl.float32) * factors
    tl.store(out_ptr + loop * size + offsets, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_heads(
    qkv_ptr, cos_ptr, sin_ptr, num_tokens, seq_len,
    WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pairs, columns = tl.arange(0, PAIRS), tl.arange(0, 2 * PAIRS)
    inside = (rows < num_tokens)[:, None]
    mask = inside & (columns < 2 * HALF)[None, :]
    # Queries are the first heads of a row, and keys the next ones.
    pointers = qkv_ptr + rows.to(tl.int64)[:, None] * WIDTH + tl.program_id(1) * (2 * HALF) + columns[None, :]
    cos, sin = load_angles(cos_ptr, sin_ptr, rows % seq_len, pairs, inside & (pairs < HALF)[None, :], HALF)
    x = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    x = turn(x, cos.to(tl.float32), sin.to(tl.float32))
    tl.store(pointers, x.to(qkv_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gather_heads(
    part_ptr, out_ptr, cos_ptr, sin_ptr, num_tokens, seq_len, batch_stride, head_stride, place_stride, first_head,
    WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    pairs, columns = tl.arange(0, PAIRS), tl.arange(0, 2 * PAIRS)
    inside = (rows < num_tokens)[:, None]
    mask = inside & (columns < 2 * HALF)[None, :]
    tokens = rows.to(tl.int64)[:, None]
    pointers = part_ptr + (tokens // seq_len) * batch_stride + head * head_stride + (tokens % seq_len) * place_stride
    x = tl.load(pointers + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if ROTATED:
        cos, sin = load_angles(cos_ptr, sin_ptr, rows % seq_len, pairs, inside & (pairs < HALF)[None, :], HALF)
        x = turn(x, cos.to(tl.float32), -sin.to(tl.float32))
    out_pointers = out_ptr + tokens * WIDTH + (first_head + head) * (2 * HALF) + columns[None, :]
    tl.store(out_pointers, x.to(out_ptr.dtype.element_ty), mask=mask)
