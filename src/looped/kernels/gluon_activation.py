"""The backward pass of the activation and both of its matmuls in one kernel.

The kernel computes z = n W_in^T + b_in and g = dy W_back in registers, and from them active = act(z), slope = g act'(z)
and the sums of slope over tokens. Neither z nor g goes to memory.

How the data moves. A program keeps 128 hidden channels of both matrices in shared memory (128 KB) and goes through the
tokens in tiles of 128, 64 for each of its two warpgroups. One warp per warpgroup copies n and dy to a ring of three
boxes of 64 tokens and 128 channels (16 KB each): two boxes of n and two of dy for each tile. The warpgroups take turns:
one multiplies while the other computes and stores its results. A thread holds 2 of every 8 columns of a result.
Therefore the hidden channels are stored in an order (`interleaved`) that puts 8 columns of a thread side by side in
memory, for one wide store.
"""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright does not understand @gluon.jit.

from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from looped.kernels.gluon_common import attempt as attempt
from looped.kernels.gluon_common import box_of, copy_in, num_multiprocessors, tanh
from looped.kernels.reference import Activation, LayerWeights

DIM, PIECE, TILE = 256, 128, 128
"""model width of the kernel, hidden channels of a program, and tokens of a tile"""
SUMS = 8
"""rows of sums that a program writes, one for each warp that computes"""
BOXES = gl.constexpr(3)
"""boxes of n and dy that a warpgroup has in shared memory"""


class Interleaved(NamedTuple):
    """Matrices and bias of all loops, (loop, ...) or (1, ...), with the hidden channels in the order of the kernel."""

    w_in: Tensor
    b_in: Tensor
    w_back: Tensor


def interleaved(weights: LayerWeights) -> Interleaved:
    """Return the weights of all loops in the order of the kernel."""
    channels = torch.arange(weights.w_in.shape[-2], device=weights.w_in.device)
    # A thread computes 2 of every 8 channels. This order makes them the 8 that it stores.
    order = channels // 32 * 32 + channels // 2 % 4 * 8 + channels // 8 % 4 * 2 + channels % 2
    w_in, b_in, w_back = weights.w_in, weights.b_in, weights.w_back
    return Interleaved(w_in[:, order], b_in[:, order], w_back[:, :, order].contiguous())


def covers(weights: LayerWeights, tokens: int, device: torch.device) -> bool:
    """Return whether the kernel can run and supports a layer of this shape. Offsets must fit in 31 bits."""
    *_, ff_dim, dim = weights.w_in.shape
    fits = weights.w_in.dtype == torch.bfloat16 and dim == DIM and ff_dim % PIECE == 0 and tokens * ff_dim < 2**31
    return fits and num_multiprocessors(device) >= ff_dim // PIECE


def num_sums(tokens: int, ff_dim: int, device: torch.device) -> int:
    """Return how many rows of sums the kernel writes."""
    return SUMS * _groups(tokens, ff_dim, device)


def activation_products(
    normed: Tensor, grad: Tensor, weights: Interleaved, active: Tensor, slope: Tensor, sums: Tensor, *, loop: int,
    activation: Activation,
) -> None:  # fmt: skip
    """Write act(z), the gradient of z, and partial sums of that gradient over the tokens, the first rows of `sums`.

    `normed` is the input of the layer in this loop, and `grad` the gradient of its output.
    """
    tokens, ff_dim = active.shape
    groups = _groups(tokens, ff_dim, active.device)
    w_in, b_in, w_back = (table[loop if len(table) > 1 else 0] for table in weights)
    boxes = box_of(normed, 64, 128), box_of(grad, 64, 128), box_of(w_in, 128, 128), box_of(w_back, 128, 128)
    _activation_products[(groups * (ff_dim // PIECE),)](
        *boxes, b_in, active, slope, sums, tokens, FF=ff_dim, KIND=activation, num_warps=4, maxnreg=168
    )


def _groups(tokens: int, ff_dim: int, device: torch.device) -> int:
    """Return how many programs share the tiles of each piece of the hidden channels."""
    return min(num_multiprocessors(device) // (ff_dim // PIECE), -(-tokens // TILE))


@gluon.jit
def _activate(z, KIND: gl.constexpr):
    """Return the activation and its derivative."""
    if KIND == "relu":
        return gl.maximum(z, 0.0), gl.where(z > 0, 1.0, 0.0)
    half = 0.5 * z
    if KIND == "gelu":
        square = z * z
        t = tanh(z * (0.7978845608 + 0.035677408137 * square))
        slope = (half - half * t * t) * (0.7978845608 + 0.107032224411 * square) + (0.5 + 0.5 * t)
    else:
        t = tanh(half)  # silu is z sigmoid(z), and sigmoid(z) = (1 + tanh(z / 2)) / 2
        slope = 0.5 * (half - half * t * t) + (0.5 + 0.5 * t)
    return half * t + half, slope


@gluon.jit
def _in_order(x, LAYOUT: gl.constexpr):
    """Return (64, 128) with its columns in the order of memory. They stay in their threads."""
    x = gl.permute(gl.reshape(x, [64, 4, 4, 4, 2]), [0, 1, 3, 2, 4])
    return gl.convert_layout(gl.reshape(x, [64, 128]), LAYOUT)


@gluon.jit
def _next(ring, which, box):
    """Return box number `box` of a warpgroup, once it is there."""
    boxes, full, _ = ring
    place = which * BOXES + box % BOXES
    mbarrier.wait(full.index(place), (box // BOXES) & 1)
    return boxes.index(place)


@gluon.jit
def _release(ring, which, box):
    """Let the next box come to where this one was."""
    _, _, empty = ring
    mbarrier.arrive(empty.index(which * BOXES + box % BOXES), count=1)


@gluon.jit
def _compute(which, ring, work, matrices, turns, places, FF: gl.constexpr, KIND: gl.constexpr):
    """Compute 64 tokens of every tile of this program."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    OUT: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, 128],
    )  # fmt: skip
    piece, first, tiles, step = work
    w_in, w_back, matrices_full = matrices
    b_ptr, active_ptr, slope_ptr, sums_ptr, tokens = places
    channels = piece * 128 + gl.arange(0, 128, layout=gl.SliceLayout(0, MMA))
    rows = which * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, OUT))
    columns = piece * 128 + gl.arange(0, 128, layout=gl.SliceLayout(0, OUT))
    zero = gl.zeros([64, 128], gl.float32, MMA)
    # A thread adds up the 2 of 64 rows that it holds.
    total = gl.sum(gl.reshape(zero, [4, 2, 8, 128]), axis=1)
    box, turn = 0, which
    mbarrier.wait(matrices_full, 0)
    for tile in range(first, tiles, step):
        mbarrier.wait(turns.index(which), (turn & 1) ^ 1)
        turn += 1
        z = warpgroup_mma(_next(ring, which, box), w_in.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
        z = warpgroup_mma(_next(ring, which, box + 1), w_in.index(1).permute((1, 0)), z, is_async=True)
        z = warpgroup_mma_wait(1, (z,))
        _release(ring, which, box)
        grad = warpgroup_mma(_next(ring, which, box + 2), w_back.index(0), zero, use_acc=False, is_async=True)
        z = warpgroup_mma_wait(1, (z,))
        _release(ring, which, box + 1)
        grad = warpgroup_mma(_next(ring, which, box + 3), w_back.index(1), grad, is_async=True)
        mbarrier.arrive(turns.index(1 - which), count=1)
        active, slope = _activate(z + gl.load(b_ptr + channels).to(gl.float32)[None, :], KIND)
        tokens_here = tile * 128 + rows
        at = tokens_here[:, None] * FF + columns[None, :]
        there = (tokens_here < tokens)[:, None]
        gl.store(active_ptr + at, _in_order(active.to(gl.bfloat16), OUT), mask=there)
        grad = warpgroup_mma_wait(0, (grad,))
        _release(ring, which, box + 2)
        _release(ring, which, box + 3)
        slope *= grad  # 0 for tokens outside
        total += gl.sum(gl.reshape(slope, [4, 2, 8, 128]), axis=1)
        gl.store(slope_ptr + at, _in_order(slope.to(gl.bfloat16), OUT), mask=there)
        box += 4
    sums = gl.sum(total, axis=1)
    LAYOUT: gl.constexpr = sums.type.layout
    warps = gl.arange(0, 4, layout=gl.SliceLayout(1, LAYOUT))
    place = gl.arange(0, 128, layout=gl.SliceLayout(0, LAYOUT))
    place = place // 32 * 32 + place // 2 % 4 * 8 + place // 8 % 4 * 2 + place % 2  # as `_in_order` has them
    at = ((first * 2 + which) * 4 + warps)[:, None] * FF + piece * 128 + place[None, :]
    gl.store(sums_ptr + at, sums)


@gluon.jit
def _load_boxes(which, ring, work, matrices, sources):
    """Copy the boxes of a warpgroup in the order in which it uses them. The first such warp copies the matrices."""
    piece, first, tiles, step = work
    w_in, w_back, matrices_full = matrices
    n_box, grad_box, in_box, back_box = sources
    boxes, full, empty = ring
    if which == 0:
        mbarrier.expect(matrices_full, 2 * 256 * 128 * 2)
        for half in gl.static_range(2):
            copy_in(in_box, [piece * 128, half * 128], matrices_full, w_in.index(half))
            copy_in(back_box, [half * 128, piece * 128], matrices_full, w_back.index(half))
    box = 0
    for tile in range(first, tiles, step):
        for part in gl.static_range(4):
            place = which * BOXES + box % BOXES
            mbarrier.wait(empty.index(place), ((box // BOXES) & 1) ^ 1)
            mbarrier.expect(full.index(place), 64 * 128 * 2)
            at = [tile * 128 + which * 64, part % 2 * 128]
            if part < 2:
                copy_in(n_box, at, full.index(place), boxes.index(place))
            else:
                copy_in(grad_box, at, full.index(place), boxes.index(place))
            box += 1


@gluon.jit
def _activation_products(
    n_box, grad_box, in_box, back_box, b_ptr, active_ptr, slope_ptr, sums_ptr, tokens, FF: gl.constexpr,
    KIND: gl.constexpr,
):  # fmt: skip
    PIECES: gl.constexpr = FF // 128
    boxes = gl.allocate_shared_memory(gl.bfloat16, [2 * BOXES, 64, 128], n_box.layout)
    w_in = gl.allocate_shared_memory(gl.bfloat16, [2, 128, 128], in_box.layout)
    w_back = gl.allocate_shared_memory(gl.bfloat16, [2, 128, 128], back_box.layout)
    full = gl.allocate_shared_memory(gl.int64, [2 * BOXES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * BOXES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    matrices_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * BOXES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(turns.index(0), count=1)
    mbarrier.init(turns.index(1), count=1)
    mbarrier.init(matrices_full.index(0), count=1)
    program = gl.program_id(0)
    work = program % PIECES, program // PIECES, (tokens + 127) // 128, gl.num_programs(0) // PIECES
    matrices = w_in, w_back, matrices_full.index(0)
    ring = boxes, full, empty
    places = b_ptr, active_ptr, slope_ptr, sums_ptr, tokens
    sources = n_box, grad_box, in_box, back_box
    gl.warp_specialize(
        [
            (_compute, (0, ring, work, matrices, turns, places, FF, KIND)),
            (_compute, (1, ring, work, matrices, turns, places, FF, KIND)),
            (_load_boxes, (0, ring, work, matrices, sources)),
            (_load_boxes, (1, ring, work, matrices, sources)),
        ],
        [4, 1, 1],
        [240, 24, 24],
    )
