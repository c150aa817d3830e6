"""The backward pass of the feed-forward layer in one kernel: three matmuls, the activation and the norm.

With z = n W_in^T + b_in and g = dy W_back, the kernel writes active = act(z), slope = g act'(z), the sums of slope over
tokens, and the gradient of the state before the layer, dx = dy + inverse (dn - n mean(dn n)) with dn = slope W_in. Only
active and slope go to memory, as operands of the weight gradients. z, g and dn never do.

How the data moves. A program takes tiles of 128 tokens, 64 for each of its two warpgroups. One warp per warpgroup
copies n and dy of a tile to shared memory (32 KB each). A third warp streams the matrices from the L2 cache, 64 hidden
channels at a time: two boxes of W_in and one of W_back (32 KB each). A box of W_in serves two matmuls, z and dn. The
sum dy / inverse + dn stays in the registers that the tensor cores add to (64 x 256 float32 numbers per warpgroup). It
starts as dy / inverse, so mean(dn n) is the difference between its mean with n at the end and at the start. While one
warpgroup computes its activation, the other one multiplies.
"""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright does not understand @gluon.jit.

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from looped.kernels.gluon_activation import Interleaved
from looped.kernels.gluon_common import (
    activate_with_slope,
    box_of,
    copy_in,
    copy_out,
    join_bits,
    num_multiprocessors,
    split_bits,
)
from looped.kernels.gluon_common import attempt as attempt
from looped.kernels.reference import Activation, LayerWeights
from looped.kernels.triton_pointwise import Normed, Rounded

DIM, CHUNK, TILE = 256, 64, 128
"""model width of the kernel, hidden channels of a step, and tokens of a tile"""
SUMS = 8
"""rows of sums that a program writes, one for each warp that computes"""


def covers(weights: LayerWeights, tokens: int) -> bool:
    """Return whether the kernel supports a layer of this shape. Offsets must fit in 31 bits."""
    *_, ff_dim, dim = weights.w_in.shape
    return weights.w_in.dtype == torch.bfloat16 and dim == DIM and ff_dim % CHUNK == 0 and tokens * ff_dim < 2**31


def share_busy(tokens: int, device: torch.device) -> float:
    """Return the share of the GPU's multiprocessors that have a tile, over all rounds; 0 if the kernel cannot run."""
    programs, tiles = num_multiprocessors(device), -(-tokens // TILE)
    return 0.0 if programs == 0 else tiles / (-(-tiles // programs) * programs)


def num_sums(tokens: int, device: torch.device) -> int:
    """Return how many rows of sums the kernel writes."""
    return SUMS * _programs(tokens, device)


def feed_forward_backward(
    normed: Normed, grad: Rounded, weights: Interleaved, active: Tensor, slope: Tensor, sums: Tensor, out: Rounded, *,
    loop: int, activation: Activation,
) -> None:  # fmt: skip
    """Write act(z), the gradient of z, the sums of that gradient, and the gradient of the state before the layer.

    `normed` is the input of the layer in this loop, and `grad` the gradient of the state after it. The sums are the
    first rows of `sums`. `grad` and `out` may share the memory of their cut-off bits.
    """
    tokens, ff_dim = active.shape
    w_in, b_in, w_back = (table[loop if len(table) > 1 else 0] for table in weights)
    tiles = box_of(normed.value, 64, DIM), box_of(grad.value, 64, DIM), box_of(out.value, 64, DIM)
    boxes = box_of(w_in, CHUNK, DIM), box_of(w_back, DIM, CHUNK)
    _feed_forward_backward[(_programs(tokens, active.device),)](
        *tiles, *boxes, normed.inverse, grad.rest, out.rest, b_in, active, slope, sums, tokens, FF=ff_dim,
        KIND=activation, num_warps=4, maxnreg=168,
    )  # fmt: skip


def _programs(tokens: int, device: torch.device) -> int:
    return min(num_multiprocessors(device), -(-tokens // TILE))


@gluon.jit
def _in_order(x, LAYOUT: gl.constexpr):
    """Return (64, 64) with its columns in the order of memory. They stay in their threads."""
    x = gl.permute(gl.reshape(x, [64, 2, 4, 4, 2]), [0, 1, 3, 2, 4])
    return gl.convert_layout(gl.reshape(x, [64, 64]), LAYOUT)


@gluon.jit
def _add_sums(slope, sums_ptr, first_column, is_first, FF: gl.constexpr):
    """Add the sums over the 16 tokens of each warp to the warp's row of sums, or start the row."""
    pairs = gl.sum(gl.reshape(slope, [4, 2, 8, 64]), axis=1)  # within a thread
    sums = gl.sum(pairs, axis=1)  # within a warp
    LAYOUT: gl.constexpr = sums.type.layout
    warps = gl.arange(0, 4, layout=gl.SliceLayout(1, LAYOUT))
    place = gl.arange(0, 64, layout=gl.SliceLayout(0, LAYOUT))
    place = place // 32 * 32 + place // 2 % 4 * 8 + place // 8 % 4 * 2 + place % 2  # as `_in_order` has them
    at = sums_ptr + warps[:, None] * FF + (first_column + place)[None, :]
    if is_first:
        gl.store(at, sums)
    else:
        gl.atomic_add(at, sums, sem="relaxed")  # each number has one thread that adds to it, so the order is fixed


@gluon.jit
def _start(n, grad, rings, box, zero):
    """Start z = n W_in^T and g = dy W_back for 64 hidden channels, as soon as their boxes are there."""
    thin, thin_full, _, wide, wide_full, _ = rings
    mbarrier.wait(thin_full.index(box & 1), (box >> 1) & 1)
    z = warpgroup_mma(n, thin.index(box & 1).permute((1, 0)), zero, use_acc=False, is_async=True)
    mbarrier.wait(wide_full, box & 1)
    return z, warpgroup_mma(grad, wide, zero, use_acc=False, is_async=True)


@gluon.jit
def _slopes(z, g, wide_empty, at, sums_ptr, is_first, FF: gl.constexpr, KIND: gl.constexpr, OUT: gl.constexpr):
    """Write active and slope of 64 hidden channels. Return slope in bfloat16."""
    active_ptrs, slope_ptrs, there, column = at
    active, slope = activate_with_slope(z, KIND)
    gl.store(active_ptrs + column, _in_order(active.to(gl.bfloat16), OUT), mask=there)
    g = warpgroup_mma_wait(0, (g,))
    mbarrier.arrive(wide_empty, count=1)
    slope *= g  # 0 for tokens outside
    _add_sums(slope, sums_ptr, column, is_first, FF)
    slope = slope.to(gl.bfloat16)
    gl.store(slope_ptrs + column, _in_order(slope, OUT), mask=there)
    return slope


@gluon.jit
def _compute(which, work, tiles, rings, places, FF: gl.constexpr, KIND: gl.constexpr):
    """Go through 64 tokens of every tile of this program."""
    WIDE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 256, 16])
    THIN: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=WIDE, k_width=2)
    OUT: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0], [0, 32]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [],
        [64, 64],
    )  # fmt: skip
    tokens, num_tiles = work
    n_tiles, grad_tiles, tiles_full, tiles_empty = tiles
    thin, _, thin_empty, _, _, wide_empty = rings
    out_box, inverse_ptr, rest_ptr, out_rest_ptr, b_ptr, active_ptr, slope_ptr, sums_ptr = places
    n, grad = n_tiles.index(which), grad_tiles.index(which)
    columns = gl.arange(0, 256, layout=gl.SliceLayout(0, WIDE))
    channels = gl.arange(0, 64, layout=gl.SliceLayout(0, THIN))
    out_rows = which * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, OUT))
    out_columns = gl.arange(0, 64, layout=gl.SliceLayout(0, OUT))
    sums_ptr += (gl.program_id(0) * 2 + which) * 4 * FF
    zero = gl.zeros([64, 64], gl.float32, THIN)
    box, turn = 0, 0
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        rows = tile * 128 + which * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, WIDE))
        here = rows < tokens
        at = rows[:, None] * 256 + columns[None, :]
        inverse = gl.load(inverse_ptr + rows, mask=here, other=1.0)
        rest = gl.load(rest_ptr + at, mask=here[:, None], other=0)
        mbarrier.wait(tiles_full.index(which), turn & 1)
        x = join_bits(grad.load(WIDE), rest) / inverse[:, None]
        along = gl.sum(x * n.load(WIDE).to(gl.float32), axis=1)
        tokens_here = tile * 128 + out_rows
        there = (tokens_here < tokens)[:, None]
        out_at = tokens_here[:, None] * FF + out_columns[None, :]
        active_ptrs, slope_ptrs, b_at = active_ptr + out_at, slope_ptr + out_at, b_ptr + channels
        z, g = _start(n, grad, rings, box, zero)
        z = warpgroup_mma_wait(1, (z,)) + gl.load(b_at).to(gl.float32)[None, :]
        slope = _slopes(z, g, wide_empty, (active_ptrs, slope_ptrs, there, 0), sums_ptr, turn == 0, FF, KIND, OUT)
        for chunk in range(1, FF // 64):
            bias = gl.load(b_at + chunk * 64).to(gl.float32)
            x = warpgroup_mma(gl.convert_layout(slope, LEFT), thin.index(box & 1), x, is_async=True)
            z, g = _start(n, grad, rings, box + 1, zero)
            x, z = warpgroup_mma_wait(1, (x, z))
            mbarrier.arrive(thin_empty.index(box & 1), count=1)
            at_chunk = active_ptrs, slope_ptrs, there, chunk * 64
            slope = _slopes(z + bias[None, :], g, wide_empty, at_chunk, sums_ptr, turn == 0, FF, KIND, OUT)
            box += 1
        x = warpgroup_mma(gl.convert_layout(slope, LEFT), thin.index(box & 1), x, is_async=True)
        x = warpgroup_mma_wait(0, (x,))
        mbarrier.arrive(thin_empty.index(box & 1), count=1)
        box += 1
        normed = n.load(WIDE).to(gl.float32)
        along = (gl.sum(x * normed, axis=1) - along) * (1.0 / 256)
        value, rest = split_bits(inverse[:, None] * (x - normed * along[:, None]))
        gl.store(out_rest_ptr + at, rest, mask=here[:, None])
        grad.store(value)
        fence_async_shared()
        copy_out(out_box, [tile * 128 + which * 64, 0], grad)
        tma.store_wait(0)
        mbarrier.arrive(tiles_empty.index(which), count=1)
        turn += 1  # noqa: SIM113 (kernels have no enumerate)


@gluon.jit
def _load_tiles(which, work, tiles, sources):
    """Copy n and dy of a warpgroup's tokens, once the warpgroup is done with the tile before."""
    _, num_tiles = work
    n_tiles, grad_tiles, tiles_full, tiles_empty = tiles
    n_box, grad_box = sources
    turn = 0
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        mbarrier.wait(tiles_empty.index(which), (turn & 1) ^ 1)
        mbarrier.expect(tiles_full.index(which), 2 * 64 * 256 * 2)
        copy_in(n_box, [tile * 128 + which * 64, 0], tiles_full.index(which), n_tiles.index(which))
        copy_in(grad_box, [tile * 128 + which * 64, 0], tiles_full.index(which), grad_tiles.index(which))
        turn += 1  # noqa: SIM113


@gluon.jit
def _load_matrices(work, rings, in_box, back_box, FF: gl.constexpr):
    """Copy the boxes of both matrices for every tile, in the order in which the warpgroups use them."""
    _, num_tiles = work
    thin, thin_full, thin_empty, wide, wide_full, wide_empty = rings
    box = 0
    for _ in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        for chunk in range(FF // 64):
            mbarrier.wait(thin_empty.index(box & 1), ((box >> 1) & 1) ^ 1)
            mbarrier.expect(thin_full.index(box & 1), 64 * 256 * 2)
            copy_in(in_box, [chunk * 64, 0], thin_full.index(box & 1), thin.index(box & 1))
            mbarrier.wait(wide_empty, (box & 1) ^ 1)
            mbarrier.expect(wide_full, 64 * 256 * 2)
            copy_in(back_box, [0, chunk * 64], wide_full, wide)
            box += 1


@gluon.jit
def _feed_forward_backward(
    n_box, grad_box, out_box, in_box, back_box, inverse_ptr, rest_ptr, out_rest_ptr, b_ptr, active_ptr, slope_ptr,
    sums_ptr, tokens, FF: gl.constexpr, KIND: gl.constexpr,
):  # fmt: skip
    n_tiles = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], n_box.layout)
    grad_tiles = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], grad_box.layout)
    thin = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], in_box.layout)
    wide = gl.allocate_shared_memory(gl.bfloat16, [1, 256, 64], back_box.layout)
    tiles_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    tiles_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    thin_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    thin_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    wide_barriers = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(tiles_full.index(i), count=1)
        mbarrier.init(tiles_empty.index(i), count=1)
        mbarrier.init(thin_full.index(i), count=1)
        mbarrier.init(thin_empty.index(i), count=2)
        mbarrier.init(wide_barriers.index(i), count=1 + i)
    work = tokens, (tokens + 127) // 128
    tiles = n_tiles, grad_tiles, tiles_full, tiles_empty
    rings = thin, thin_full, thin_empty, wide.index(0), wide_barriers.index(0), wide_barriers.index(1)
    places = out_box, inverse_ptr, rest_ptr, out_rest_ptr, b_ptr, active_ptr, slope_ptr, sums_ptr
    gl.warp_specialize(
        [
            (_compute, (0, work, tiles, rings, places, FF, KIND)),
            (_compute, (1, work, tiles, rings, places, FF, KIND)),
            (_load_matrices, (work, rings, in_box, back_box, FF)),
            (_load_tiles, (0, work, tiles, (n_box, grad_box))),
            (_load_tiles, (1, work, tiles, (n_box, grad_box))),
        ],
        [4, 1, 1, 1],
        [240, 24, 24, 24],
    )
