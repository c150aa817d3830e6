"""Gradients of tied weights and of their modulation: the operands of several loops, multiplied at once.

One product P_t = dY_t^T X_t per loop serves all: with Y_t = X_t (gate_t W scale_t)^T,

    dW = sum_t gate_t P_t scale_t,   d gate_t = rows of (P_t scale_t * W),   d scale_t = columns of (gate_t P_t * W).

(No matrix of the block has both a scale and a gate.)
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false
# It takes a kernel for the Python function that it is written as.

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from looped.kernels.cuda_graphs import stream_for
from looped.kernels.reference import LayerWeights, Modulation
from looped.kernels.triton_pointwise import num_sums

PRODUCTS = "products of weights' gradients"
OPERAND_BYTES = 2**31
"""memory for operands that wait to be multiplied together; as much again waits while they are"""
TILE, MIN_TILES = (128, 256), 128
"""of a product's result: as libraries cut it, and how many are worth starting for"""
FOLD = (32, 64)
"""tile of `_fold`"""
SUMMED = 2**13
"""elements of a tile of `_sum_loops`"""


class Operands(NamedTuple):
    """What applications of one layer leave for the gradients of its weights, (loops, tokens, ...)."""

    grad_qkv: Tensor
    mixed: Tensor
    """what the heads attend to"""
    grad_attention: Tensor
    """gradient of what attention added"""
    slope: Tensor
    """gradient in front of the activation"""
    active: Tensor
    grad_feed: Tensor
    """gradient of what the feed-forward layer added"""
    slope_sums: Tensor
    """(loops, parts, width): sums of `slope` over a part of the tokens each, in float32"""

    def of_loop(self, place: int) -> "Operands":
        return Operands(*(each[place] for each in self))

    def of_loops(self, count: int) -> "Operands":
        return Operands(*(each[:count] for each in self))


class _Group(NamedTuple):
    """Operands of the loops from `first` to `last`, which are filled from the last on."""

    first: int
    last: int
    memory: Operands
    """for as many loops or more"""

    @property
    def operands(self) -> Operands:
        return self.memory.of_loops(self.last - self.first + 1)


class Gradients:
    """Gathered loop by loop, from the last to the first. Modulation tables are (loop, layer, dim).

    On a GPU the products run beside the backward pass of the next loops, whose kernels leave parts of it idle. The
    operands' memory goes from one group to a later one, which waits until the former is multiplied.
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
        """A kernel may write up to `most_sums` sums of each channel's slope, where `num_sums` are fewer.

        With `summed` (tokens, dim), the gradients of all states but the last loop's are added to it.
        """
        self.summed, self.last_loop = summed, 0
        self.given, self.weights, self.tokens, self.dtype = tables, weights, tokens, dtype
        self.num_sums = max(most_sums, num_sums(tokens))
        self.ff_dim, self.dim = weights[0].w_in.shape
        per_loop = tokens * (6 * self.dim + 2 * self.ff_dim) * torch.finfo(dtype).bits // 8 * len(weights)
        self.capacity = max(1, OPERAND_BYTES // per_loop)
        self.groups: list[list[_Group]] = [[] for _ in weights]
        """of each layer: those that are not multiplied yet"""
        self.multiplied: list[tuple[Operands, torch.cuda.Event | None]] = []
        """memory to be used again, the oldest first, and when"""
        self.device = weights[0].w_in.device
        self.begun = False
        """whether anything was multiplied beside the current stream"""
        self.sums = [LayerWeights(*(torch.zeros_like(each, dtype=torch.float32) for each in one)) for one in weights]
        attention, feed = (
            Modulation(*(None if table is None else torch.zeros_like(table, dtype=torch.float32) for table in each))
            for each in tables
        )
        self.tables = attention, feed

    def operands(self, t: int, layer: int, first: int) -> Operands:
        """Where the operands of loop t go. No group reaches below the loop `first`."""
        groups, self.last_loop = self.groups[layer], max(t, self.last_loop)
        if not groups or t < groups[-1].first:
            first = max(first, t - self.capacity + 1)
            groups.append(_Group(first, t, self._memory(t - first + 1)))
        return groups[-1].operands.of_loop(t - groups[-1].first)

    def done(self, t: int, layer: int, normed: tuple[Tensor, Tensor], normed_from: int) -> None:
        """Loop t's operands are filled: multiply, where they complete a group.

        `normed` is what attention and the feed-forward layer started from, (loops, tokens, dim) from `normed_from` on.
        """
        group = self.groups[layer][0]
        if t == group.first:
            part = slice(group.first - normed_from, group.last + 1 - normed_from)
            self.begun = self.device.type == "cuda"
            with _beside(self.device) as ended:
                self._multiply(group, layer, normed[0][part], normed[1][part])
            self.multiplied.append((group.memory, ended))
            self.groups[layer].pop(0)

    def wait(self) -> None:
        """What the products read may be overwritten after this, and what they found be read."""
        if self.begun:  # a stream that a capture has not seen must not be waited for in it
            torch.cuda.current_stream(self.device).wait_stream(stream_for(PRODUCTS, self.device))

    def finish(self) -> tuple[list[Tensor | None], list[LayerWeights]]:
        """The gradients of the tables, in order, and of each layer's weights."""
        self.wait()
        attention, feed = self.tables
        return [*attention, *feed], self.sums

    def _memory(self, loops: int) -> Operands:
        for place, (memory, ended) in enumerate(self.multiplied):
            if len(memory.mixed) >= loops:
                del self.multiplied[place]
                if ended is not None:
                    ended.wait()
                return memory
        widths = (3 * self.dim, self.dim, self.dim, self.ff_dim, self.ff_dim, self.dim)
        room = [torch.empty(loops, self.tokens, width, dtype=self.dtype, device=self.device) for width in widths]
        # Rows that no kernel writes must not count.
        sums = torch.zeros(loops, self.num_sums, self.ff_dim, dtype=torch.float32, device=self.device)
        return Operands(*room, sums)

    def _multiply(self, group: _Group, layer: int, normed_attention: Tensor, normed_feed: Tensor) -> None:
        made, weights, sums = group.operands, self.weights[layer], self.sums[layer]
        given, found = ([_of_loops(each, group, layer) for each in tables] for tables in (self.given, self.tables))
        products = _products(made.grad_qkv, normed_attention)
        _fold(products, weights.w_qkv, sums.w_qkv, given[0].scale, found[0].scale, by_column=True)
        products = _products(made.slope, normed_feed)
        _fold(products, weights.w_in, sums.w_in, given[1].scale, found[1].scale, by_column=True)
        products = _products(made.grad_attention, made.mixed)
        _fold(products, weights.w_out, sums.w_out, given[0].gate, found[0].gate, by_column=False)
        products = _products(made.grad_feed, made.active)
        _fold(products, weights.w_back, sums.w_back, given[1].gate, found[1].gate, by_column=False)

        # What the products do not see: biases, and shifts in front of the matrices.
        slope_sums = made.slope_sums.sum(dim=1)
        sums.b_in.add_(slope_sums.sum(dim=0))
        if self.summed is not None and layer == len(self.weights) - 1:
            added = min(group.last + 1, self.last_loop) - group.first
            grad_sums = _sum_loops(made.grad_feed, self.summed, added)
        else:
            grad_sums = made.grad_feed.sum(dim=1, dtype=torch.float32)
        if given[1].gate is not None and found[1].gate is not None:
            found[1].gate.add_(weights.b_back * grad_sums)
            grad_sums = given[1].gate * grad_sums
        sums.b_back.add_(grad_sums.sum(dim=0))
        if given[0].shift is not None and found[0].shift is not None:
            qkv_sums = made.grad_qkv.sum(dim=1, dtype=torch.float32)
            _through_shift(qkv_sums, weights.w_qkv, sums.w_qkv, given[0].shift, found[0].shift)
        if given[1].shift is not None and found[1].shift is not None:
            _through_shift(slope_sums, weights.w_in, sums.w_in, given[1].shift, found[1].shift)


@contextmanager
def _beside(device: torch.device) -> Iterator[torch.cuda.Event | None]:
    """Work on a stream of its own, where there are streams, after all that was asked for so far; the event is when it
    has ended."""
    if device.type != "cuda":
        yield None
        return
    side, ended = stream_for(PRODUCTS, device), torch.cuda.Event()
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield ended
        ended.record()


def _through_shift(grad_sums: Tensor, weight: Tensor, total: Tensor, shift: Tensor, found: Tensor) -> None:
    total.add_(grad_sums.T @ shift)
    found.copy_(grad_sums @ weight)


def _of_loops(tables: Modulation, group: _Group, layer: int) -> Modulation:
    loops = slice(group.first, group.last + 1)
    return Modulation(*(None if table is None else table[loops, layer] for table in tables))


def _products(left: Tensor, right: Tensor) -> Tensor:
    """left^T right of each loop, (loops, pieces, ...) in float32: pieces, to be added, that keep a device busy."""
    loops, tokens, rows = left.shape
    columns = right.shape[2]
    tiles = loops * triton.cdiv(rows, TILE[0]) * triton.cdiv(columns, TILE[1])
    pieces = 1
    while tiles * pieces < MIN_TILES and tokens % (2 * pieces) == 0:
        pieces *= 2
    left, right = (each.reshape(loops * pieces, tokens // pieces, -1) for each in (left, right))
    if left.device.type == "cuda" and left.dtype == torch.bfloat16:
        found = torch.bmm(left.transpose(1, 2), right, out_dtype=torch.float32)
    else:
        found = left.float().transpose(1, 2) @ right.float()
    return found.view(loops, pieces, rows, columns)


def _fold(
    products: Tensor, weight: Tensor, total: Tensor, factors: Tensor | None, found: Tensor | None, *, by_column: bool
) -> None:
    """Add the products of all loops to `total`, those of each loop times its factors, one per column or per row; the
    gradient of the factors goes to `found`."""
    loops, pieces, rows, columns = products.shape
    grid = triton.cdiv(rows, FOLD[0]), triton.cdiv(columns, FOLD[1])
    sums = products.new_empty(loops, grid[0] if by_column else grid[1], columns if by_column else rows)
    _fold_kernel[grid](
        products, weight, total, total if factors is None else factors, sums, rows, columns,
        0 if factors is None else factors.stride(0), loops, pieces,
        ROWS=FOLD[0], COLUMNS=FOLD[1], BY_COLUMN=by_column, GIVEN=factors is not None, num_warps=4,
    )  # fmt: skip
    if found is not None:
        found.copy_(sums.sum(dim=1))


def _sum_loops(grads: Tensor, summed: Tensor, added: int) -> Tensor:
    """Add the first `added` of (loops, tokens, dim) to `summed` (tokens, dim), and return the sums of each loop over
    the tokens, (loops, dim), from one pass over memory."""
    loops, tokens, dim = grads.shape
    columns = triton.next_power_of_2(dim)
    rows = max(1, SUMMED // columns)
    sums = torch.empty(loops, triton.cdiv(tokens, rows), dim, dtype=torch.float32, device=grads.device)
    _sum_loops_kernel[(sums.shape[1],)](
        grads, summed, sums, tokens, loops, added, DIM=dim, ROWS=rows, COLUMNS=columns, num_warps=4
    )
    return sums.sum(dim=1)


@triton.jit
def _sum_loops_kernel(
    grads_ptr, summed_ptr, sums_ptr, num_tokens, num_loops, added,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there = (rows < num_tokens)[:, None] & (columns < DIM)[None, :]
    at = rows.to(tl.int64)[:, None] * DIM + columns[None, :]
    step = tl.cast(num_tokens, tl.int64) * DIM
    total, grads_at = tl.load(summed_ptr + at, mask=there, other=0.0), grads_ptr + at + num_loops * step
    for number in tl.range(num_loops, num_stages=3):  # the last loop first, as groups come
        loop = num_loops - 1 - number
        grads_at -= step
        grad = tl.load(grads_at, mask=there, other=0.0).to(tl.float32)
        to = sums_ptr + (loop * tl.num_programs(0) + tl.program_id(0)) * DIM + columns
        tl.store(to, tl.sum(grad, axis=0), mask=columns < DIM)
        total += tl.where(loop < added, grad, 0.0)
    tl.store(summed_ptr + at, total, mask=there)


@triton.jit
def _fold_kernel(
    products_ptr, weight_ptr, total_ptr, factors_ptr, sums_ptr, num_rows, num_columns, factor_stride, num_loops,
    num_pieces, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_COLUMN: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    at = rows[:, None] * num_columns + columns[None, :]
    products_at = products_ptr + at
    total = tl.load(total_ptr + at, mask=there, other=0.0)
    if GIVEN:
        weight = tl.load(weight_ptr + at, mask=there, other=0.0).to(tl.float32)
    for loop in range(num_loops):
        product = tl.zeros((ROWS, COLUMNS), tl.float32)
        for _ in range(num_pieces):
            product += tl.load(products_at, mask=there, other=0.0)
            products_at += num_rows * num_columns
        if GIVEN:
            if BY_COLUMN:
                factors = tl.load(factors_ptr + loop * factor_stride + columns, mask=columns < num_columns, other=0.0)
                to = sums_ptr + (loop * tl.num_programs(0) + tl.program_id(0)) * num_columns + columns
                tl.store(to, tl.sum(product * weight, axis=0), mask=columns < num_columns)
                product *= factors.to(tl.float32)[None, :]
            else:
                factors = tl.load(factors_ptr + loop * factor_stride + rows, mask=rows < num_rows, other=0.0)
                to = sums_ptr + (loop * tl.num_programs(1) + tl.program_id(1)) * num_rows + rows
                tl.store(to, tl.sum(product * weight, axis=1), mask=rows < num_rows)
                product *= factors.to(tl.float32)[:, None]
        total += product
    tl.store(total_ptr + at, total, mask=there)
