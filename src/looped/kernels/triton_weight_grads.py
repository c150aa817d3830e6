"""Gradients of tied weights and of their modulation, with the matmuls of several loops in one batch.

One product P_t = dY_t^T X_t per loop is enough. With Y_t = X_t (gate_t W scale_t)^T,

    dW = sum_t gate_t P_t scale_t,   d gate_t = rows of (P_t scale_t * W),   d scale_t = columns of (gate_t P_t * W).

No matrix of the block has both a scale and a gate.
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false
# pyright does not understand @triton.jit.

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from looped.kernels.cuda_graphs import stream_for
from looped.kernels.library import products_over_tokens
from looped.kernels.reference import LayerWeights, Modulation
from looped.kernels.triton_pointwise import num_sums

PRODUCTS = "products of weights' gradients"
OPERAND_BYTES = 2**31
"""memory for operands that wait for their matmul; the same amount is used again while a matmul runs"""
TILE, MIN_TILES = (128, 256), 128
"""tile of a matmul's result in cuBLAS, and the number of tiles that keeps a GPU busy"""
FOLD = (32, 64)
"""tile of `_fold`"""
SUMMED = 2**13
"""elements of a tile of `_sum_loops`"""


class Operands(NamedTuple):
    """Operands of the weight gradients of one layer, (loops, tokens, ...)."""

    grad_qkv: Tensor
    """gradient of queries, keys and values"""
    mixed: Tensor
    """output of the heads"""
    grad_attention: Tensor
    """gradient of the output of attention"""
    slope: Tensor
    """gradient of the pre-activation"""
    active: Tensor
    """output of the activation"""
    grad_feed: Tensor
    """gradient of the output of the feed-forward layer"""
    slope_sums: Tensor
    """(loops, parts, width): sums of `slope` over a part of the tokens each, in float32"""

    def of_loop(self, place: int) -> "Operands":
        """Return the operands of one loop."""
        return Operands(*(each[place] for each in self))

    def of_loops(self, count: int) -> "Operands":
        """Return the operands of the first `count` loops."""
        return Operands(*(each[:count] for each in self))


class _Group(NamedTuple):
    """Operands of the loops `first` to `last`, which are filled in from the last loop on."""

    first: int
    last: int
    memory: Operands
    """buffers for at least as many loops"""

    @property
    def operands(self) -> Operands:
        return self.memory.of_loops(self.last - self.first + 1)


class Gradients:
    """Collect gradients loop by loop, from the last to the first. Modulation tables are (loop, layer, dim).

    On a GPU the matmuls run on a second stream beside the backward pass of the next loops, whose kernels leave parts of
    the GPU idle. A later group reuses the buffers of an earlier one, and waits until its matmuls have ended.
    """

    def __init__(
        self,
        tables: tuple[Modulation, Modulation],
        weights: Sequence[LayerWeights],
        tokens: int,
        dtype: torch.dtype,
        most_sums: int = 0,
        summed: Tensor | None = None,
    ) -> None:
        """Allocate zeros for all gradients.

        A kernel may write up to `most_sums` sums of each channel's slope, if that is more than `num_sums`. With
        `summed` (tokens, dim), the gradients of all states but the last loop's are added to it.
        """
        self.summed, self.last_loop = summed, 0
        self.modulation, self.weights, self.tokens, self.dtype = tables, weights, tokens, dtype
        self.num_sums = max(most_sums, num_sums(tokens))
        self.ff_dim, self.dim = weights[0].w_in.shape
        per_loop = tokens * (6 * self.dim + 2 * self.ff_dim) * torch.finfo(dtype).bits // 8 * len(weights)
        self.capacity = max(1, OPERAND_BYTES // per_loop)
        self.groups: list[list[_Group]] = [[] for _ in weights]
        """groups of each layer that wait for their matmuls"""
        self.free_buffers: list[tuple[Operands, torch.cuda.Event | None]] = []
        """buffers to use again, the oldest first, with the event after which they are free"""
        self.device = weights[0].w_in.device
        self.uses_side_stream = False
        """True after the first matmul on the second stream"""
        self.sums = [LayerWeights(*(torch.zeros_like(each, dtype=torch.float32) for each in one)) for one in weights]
        attention, feed = (
            Modulation(*(None if table is None else torch.zeros_like(table, dtype=torch.float32) for table in each))
            for each in tables
        )
        self.tables = attention, feed

    def operands(self, t: int, layer: int, first: int) -> Operands:
        """Return the buffers for the operands of loop t. No group contains a loop below `first`."""
        groups, self.last_loop = self.groups[layer], max(t, self.last_loop)
        if not groups or t < groups[-1].first:
            first = max(first, t - self.capacity + 1)
            groups.append(_Group(first, t, self._buffers(t - first + 1)))
        return groups[-1].operands.of_loop(t - groups[-1].first)

    def done(self, t: int, layer: int, normed: tuple[Tensor, Tensor], normed_from: int) -> None:
        """Report that the operands of loop t are filled in, and multiply them if they complete a group.

        `normed` holds the normed inputs of attention and of the feed-forward layer, (loops, tokens, dim), from loop
        `normed_from` on.
        """
        group = self.groups[layer][0]
        if t == group.first:
            part = slice(group.first - normed_from, group.last + 1 - normed_from)
            self.uses_side_stream = self.device.type == "cuda"
            with _side_stream(self.device) as ended:
                self._multiply(group, layer, normed[0][part], normed[1][part])
            self.free_buffers.append((group.memory, ended))
            self.groups[layer].pop(0)

    def wait(self) -> None:
        """Wait for the matmuls. Their operands may then be overwritten, and their results may be read."""
        if self.uses_side_stream:  # a CUDA graph must not wait for a stream outside its capture
            torch.cuda.current_stream(self.device).wait_stream(stream_for(PRODUCTS, self.device))

    def finish(self) -> tuple[list[Tensor | None], list[LayerWeights]]:
        """Return the gradients of the tables, in order, and of each layer's weights."""
        self.wait()
        attention, feed = self.tables
        return [*attention, *feed], self.sums

    def _buffers(self, loops: int) -> Operands:
        """Return buffers for so many loops, used ones if possible."""
        for place, (buffers, ended) in enumerate(self.free_buffers):
            if len(buffers.mixed) >= loops:
                del self.free_buffers[place]
                if ended is not None:
                    ended.wait()
                return buffers
        widths = (3 * self.dim, self.dim, self.dim, self.ff_dim, self.ff_dim, self.dim)
        new = [torch.empty(loops, self.tokens, width, dtype=self.dtype, device=self.device) for width in widths]
        # Zeros, because a kernel may leave rows unwritten.
        sums = torch.zeros(loops, self.num_sums, self.ff_dim, dtype=torch.float32, device=self.device)
        return Operands(*new, sums)

    def _multiply(self, group: _Group, layer: int, normed_attention: Tensor, normed_feed: Tensor) -> None:
        operands, weights, sums = group.operands, self.weights[layer], self.sums[layer]
        attention, feed = (_of_loops(table, group, layer) for table in self.modulation)
        grad_attention, grad_feed = (_of_loops(table, group, layer) for table in self.tables)
        products = _products(operands.grad_qkv, normed_attention)
        _fold(products, weights.w_qkv, sums.w_qkv, attention.scale, grad_attention.scale, by_column=True)
        products = _products(operands.slope, normed_feed)
        _fold(products, weights.w_in, sums.w_in, feed.scale, grad_feed.scale, by_column=True)
        products = _products(operands.grad_attention, operands.mixed)
        _fold(products, weights.w_out, sums.w_out, attention.gate, grad_attention.gate, by_column=False)
        products = _products(operands.grad_feed, operands.active)
        _fold(products, weights.w_back, sums.w_back, feed.gate, grad_feed.gate, by_column=False)

        # The products do not include biases, and shifts in front of the matrices.
        slope_sums = operands.slope_sums.sum(dim=1)
        sums.b_in.add_(slope_sums.sum(dim=0))
        if self.summed is not None and layer == len(self.weights) - 1:
            num_added = min(group.last + 1, self.last_loop) - group.first
            feed_sums = _sum_loops(operands.grad_feed, self.summed, num_added)
        else:
            feed_sums = operands.grad_feed.sum(dim=1, dtype=torch.float32)
        if feed.gate is not None and grad_feed.gate is not None:
            grad_feed.gate.add_(weights.b_back * feed_sums)
            feed_sums = feed.gate * feed_sums
        sums.b_back.add_(feed_sums.sum(dim=0))
        if attention.shift is not None and grad_attention.shift is not None:
            qkv_sums = operands.grad_qkv.sum(dim=1, dtype=torch.float32)
            _add_shift_gradients(qkv_sums, weights.w_qkv, sums.w_qkv, attention.shift, grad_attention.shift)
        if feed.shift is not None and grad_feed.shift is not None:
            _add_shift_gradients(slope_sums, weights.w_in, sums.w_in, feed.shift, grad_feed.shift)


@contextmanager
def _side_stream(device: torch.device) -> Iterator[torch.cuda.Event | None]:
    """Run the block on a second stream, after all earlier work. Yield the event of its end, or None on a CPU."""
    if device.type != "cuda":
        yield None
        return
    side, ended = stream_for(PRODUCTS, device), torch.cuda.Event()
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield ended
        ended.record()


def _add_shift_gradients(grad_sums: Tensor, weight: Tensor, total: Tensor, shift: Tensor, grad_shift: Tensor) -> None:
    total.add_(grad_sums.T @ shift)
    grad_shift.copy_(grad_sums @ weight)


def _of_loops(tables: Modulation, group: _Group, layer: int) -> Modulation:
    loops = slice(group.first, group.last + 1)
    return Modulation(*(None if table is None else table[loops, layer] for table in tables))


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Return left^T right of each loop as (loops, pieces, ...) in float32.

    The pieces are partial sums over the tokens. Their number is chosen to keep a GPU busy.
    """
    loops, tokens, rows = left.shape
    columns = right.shape[2]
    tiles = loops * triton.cdiv(rows, TILE[0]) * triton.cdiv(columns, TILE[1])
    pieces = 1
    while tiles * pieces < MIN_TILES and tokens % (2 * pieces) == 0:
        pieces *= 2
    left, right = (each.reshape(loops * pieces, tokens // pieces, -1) for each in (left, right))
    return products_over_tokens(left, right).view(loops, pieces, rows, columns)


def _fold(
    products: Tensor, weight: Tensor, total: Tensor, factors: Tensor | None, grad: Tensor | None, *, by_column: bool
) -> None:
    """Add the products of all loops to `total`, each times its loop's factors, which are per column or per row.

    The gradient of the factors is written to `grad`.
    """
    loops, pieces, rows, columns = products.shape
    grid = triton.cdiv(rows, FOLD[0]), triton.cdiv(columns, FOLD[1])
    sums = products.new_empty(loops, grid[0] if by_column else grid[1], columns if by_column else rows)
    _fold_kernel[grid](
        products, weight, total, total if factors is None else factors, sums, rows, columns,
        0 if factors is None else factors.stride(0), loops,
        PIECES=pieces, ROWS=FOLD[0], COLUMNS=FOLD[1], BY_COLUMN=by_column, HAS_FACTORS=factors is not None, num_warps=4,
    )  # fmt: skip
    if grad is not None:
        grad.copy_(sums.sum(dim=1))


def _sum_loops(grads: Tensor, summed: Tensor, num_added: int) -> Tensor:
    """Add the first `num_added` gradients of (loops, tokens, dim) to `summed` (tokens, dim).

    Return the sums over the tokens, (loops, dim). Both take one pass over memory.
    """
    loops, tokens, dim = grads.shape
    columns = triton.next_power_of_2(dim)
    rows = max(1, SUMMED // columns)
    sums = torch.empty(loops, triton.cdiv(tokens, rows), dim, dtype=torch.float32, device=grads.device)
    _sum_loops_kernel[(sums.shape[1],)](
        grads, summed, sums, tokens, loops, num_added, DIM=dim, ROWS=rows, COLUMNS=columns, num_warps=4
    )
    return sums.sum(dim=1)


@triton.jit
def _sum_loops_kernel(
    grads_ptr, summed_ptr, sums_ptr, num_tokens, num_loops, num_added,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mask = (rows < num_tokens)[:, None] & (columns < DIM)[None, :]
    offsets = rows.to(tl.int64)[:, None] * DIM + columns[None, :]
    step = tl.cast(num_tokens, tl.int64) * DIM
    total, grad_ptrs = tl.load(summed_ptr + offsets, mask=mask, other=0.0), grads_ptr + offsets + num_loops * step
    for number in tl.range(num_loops, num_stages=3):  # last loop first, the order of the groups
        loop = num_loops - 1 - number
        grad_ptrs -= step
        grad = tl.load(grad_ptrs, mask=mask, other=0.0).to(tl.float32)
        sum_ptrs = sums_ptr + (loop * tl.num_programs(0) + tl.program_id(0)) * DIM + columns
        tl.store(sum_ptrs, tl.sum(grad, axis=0), mask=columns < DIM)
        total += tl.where(loop < num_added, grad, 0.0)
    tl.store(summed_ptr + offsets, total, mask=mask)


@triton.jit
def _fold_kernel(
    products_ptr, weight_ptr, total_ptr, factors_ptr, sums_ptr, num_rows, num_columns, factor_stride, num_loops,
    PIECES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_COLUMN: tl.constexpr, HAS_FACTORS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    offsets = rows[:, None] * num_columns + columns[None, :]
    product_ptrs = products_ptr + offsets
    total = tl.load(total_ptr + offsets, mask=mask, other=0.0)
    if HAS_FACTORS:
        weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    for loop in range(num_loops):
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        for _ in tl.static_range(PIECES):  # unrolled, so that all loads are under way at once
            product += tl.load(product_ptrs, mask=mask, other=0.0)
            product_ptrs += num_rows * num_columns
        if HAS_FACTORS:
            if BY_COLUMN:
                factors = tl.load(factors_ptr + loop * factor_stride + columns, mask=columns < num_columns, other=0.0)
                sum_ptrs = sums_ptr + (loop * tl.num_programs(0) + tl.program_id(0)) * num_columns + columns
                tl.store(sum_ptrs, tl.sum(product * weight, axis=0), mask=columns < num_columns)
                product *= factors.to(tl.float32)[None, :]
            else:
                factors = tl.load(factors_ptr + loop * factor_stride + rows, mask=rows < num_rows, other=0.0)
                sum_ptrs = sums_ptr + (loop * tl.num_programs(1) + tl.program_id(1)) * num_rows + rows
                tl.store(sum_ptrs, tl.sum(product * weight, axis=1), mask=rows < num_rows)
                product *= factors.to(tl.float32)[:, None]
        total += product
    tl.store(total_ptr + offsets, total, mask=mask)
