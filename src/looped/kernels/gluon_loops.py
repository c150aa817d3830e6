"""All loops of a block in one launch: the state of a sequence never leaves its multiprocessor.

How the data moves. A program works on one sequence of 65 to 128 tokens at a time. Each of its two warpgroups holds 64
tokens. Their state, 64 x 256 float32 numbers, stays through all loops in the registers that the tensor cores add to. A
sublayer starts with the normed state, which goes to shared memory in bfloat16 (32 KB per warpgroup). Another warp
copies the matrices of the loop from the L2 cache to shared memory in boxes of 32 KB, two of each kind at a time. A thin
box is 64 rows of a matrix that is applied to the normed state (W_qkv, W_in). A wide box is 64 columns of a matrix whose
product is added to the state (W_out, W_back).

Attention works on one head at a time. Both warpgroups write the keys and values of their tokens to shared memory (32 KB
for both), and each reads all 128 tokens from there. Queries, attention weights and the head's output stay in registers.
The feed-forward layer works on 64 hidden channels at a time. It computes the activation of one chunk while the tensor
cores add the previous chunk to the state.

In a shorter sequence, the second warpgroup has the last 64 tokens (`gluon_common.py`).

With KEEP the kernel is the forward pass of training and also writes what the backward pass reads: both normed states,
the inverse of both RMS values, and queries, keys (rotated) and values.
"""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright does not understand @gluon.jit.

from collections.abc import Mapping
from typing import NamedTuple

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

from looped.kernels.gluon_common import (
    HEAD,
    LONGEST,
    POWER,
    SHORTEST,
    box_of,
    copy_in,
    copy_out,
    load_angles,
    num_multiprocessors,
    pairs_seen,
    rotate,
    tanh,
)
from looped.kernels.gluon_common import attempt as attempt
from looped.kernels.reference import RMS_EPSILON, Activation, LayerWeights
from looped.kernels.triton_common import Angles

DIM, FF_STEP = 256, 256
"""model width of the kernel, and a divisor of the hidden width"""
EPSILON = gl.constexpr(RMS_EPSILON)


class Kept(NamedTuple):
    """The tensors that a backward pass reads."""

    norms: Tensor
    """(2, loops, tokens, dim): normed inputs of attention and of the feed-forward layer"""
    inverses: Tensor
    """(2, loops, tokens): inverse RMS of both inputs"""
    qkv: Tensor
    """(loops, tokens, 3 * dim); queries and keys are rotated"""


def covers(weights: LayerWeights, *, num_heads: int, seq_len: int, tokens: int) -> bool:
    """Return whether the kernel supports a block of this shape. Offsets must fit in 31 bits."""
    shape = weights.w_qkv.dtype, weights.w_qkv.shape[-1], num_heads
    fits = weights.w_in.shape[-2] % FF_STEP == 0 and SHORTEST <= seq_len <= LONGEST and tokens * DIM < 2**31
    return fits and shape == (torch.bfloat16, DIM, DIM // HEAD)


def share_busy(tokens: int, seq_len: int, device: torch.device) -> float:
    """Return the share of the GPU's token places that are used, with one sequence per multiprocessor and round."""
    programs = num_multiprocessors(device)
    return 0.0 if programs == 0 else tokens / (-(-tokens // seq_len // programs) * programs * LONGEST)


def run_loops(
    weights: LayerWeights,
    x: Tensor,
    inject: Tensor | None,
    states: Mapping[int, Tensor],
    *,
    seq_len: int,
    causal: bool,
    activation: Activation,
    angles: Angles | None,
    kept: Kept | None = None,
) -> None:
    """Write the states (tokens, dim) after the loops in `states`, in order, one launch for each.

    Weights are (loop, ...), or (1, ...) if all loops share them. The first loop starts from x, and every later one from
    the last state plus `inject`. The angles rotate neighbouring channels, as in `paired`.
    """
    sequences, loops_axis = len(x) // seq_len, (kept.norms.shape[1] if kept is not None else 1)
    w_qkv, w_out, w_in, b_in, w_back, b_back = weights
    boxes = box_of(w_qkv, 64, 256), box_of(w_out, 256, 64), box_of(w_in, 64, 256), box_of(w_back, 256, 64)
    steps = [table.shape[-2] if len(table) > 1 else 0 for table in (w_qkv, w_out, w_in, w_back)]
    bias_steps = [table.shape[-1] if len(table) > 1 else 0 for table in (b_in, b_back)]
    # Without KEEP the kernel does not touch these tensors, but needs some argument.
    norms, inverses, qkv = kept or (w_out, x, w_qkv.view(-1, 3 * DIM))
    places = box_of(norms, 64, 256), box_of(qkv, 64, 64), qkv, inverses, loops_axis
    grid = (min(sequences, num_multiprocessors(x.device)),)
    first = 0
    for t, state in states.items():
        _all_loops[grid](
            x, state, x if inject is None else inject, x if angles is None else angles.forward, b_in, b_back, *boxes,
            *steps, *bias_steps, *places, sequences, seq_len, first, t + 1, FF=w_in.shape[-2], KIND=activation,
            CAUSAL=causal, SHORT=seq_len < LONGEST, ROTARY=angles is not None, INJECT=inject is not None,
            KEEP=kept is not None, num_warps=4, maxnreg=168,
        )  # fmt: skip
        x, first = state, t + 1


@gluon.jit
def _activate(z, KIND: gl.constexpr):
    if KIND == "relu":
        return gl.maximum(z, 0.0)
    half = 0.5 * z
    if KIND == "gelu":
        return half * tanh(z * (0.7978845608 + 0.035677408137 * (z * z))) + half
    return half * tanh(half) + half  # z sigmoid(z)


@gluon.jit
def _put_norm(x, norm, norms_box, row, inverse_ptr, KEEP: gl.constexpr):
    """Write x divided by its RMS to shared memory, where the tensor cores read it."""
    inverse = gl.rsqrt(gl.sum(x * x, axis=1) * (1.0 / 256) + EPSILON)
    if KEEP:
        tma.store_wait(0)
    norm.store((x * inverse[:, None]).to(gl.bfloat16))
    fence_async_shared()
    if KEEP:
        gl.store(inverse_ptr, inverse)
        copy_out(norms_box, [row, 0], norm)


@gluon.jit
def _product(left, ring, box, LAYOUT: gl.constexpr):
    """Start the matmul of (64, 256) with a thin box, as soon as the box has arrived."""
    boxes, full, _ = ring
    mbarrier.wait(full.index(box & 1), (box >> 1) & 1)
    zero = gl.zeros([64, 64], gl.float32, LAYOUT)
    return warpgroup_mma(left, boxes.index(box & 1).permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def _added(left, ring, box, x):
    """Start adding the matmul of (64, 64) with a wide box to the state, as soon as the box has arrived."""
    boxes, full, _ = ring
    mbarrier.wait(full.index(box & 1), (box >> 1) & 1)
    return warpgroup_mma(left, boxes.index(box & 1).permute((1, 0)), x, is_async=True)


@gluon.jit
def _release(ring, box):
    """Free the memory of a box for the next one."""
    _, _, empty = ring
    mbarrier.arrive(empty.index(box & 1), count=1)


@gluon.jit
def _compute(
    which, data, trace, work, memory, FF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, SHORT: gl.constexpr,
    ROTARY: gl.constexpr, INJECT: gl.constexpr, KEEP: gl.constexpr,
):  # fmt: skip
    """Compute all loops of 64 tokens of every sequence of this program."""
    x_ptr, state_ptr, inject_ptr, angles_ptr, b_in_ptr, b_back_ptr, b_in_step, b_back_step = data
    norms_box, qkv_box, qkv_ptr, inverses_ptr, kept_loops = trace
    sequences, seq_len, first_loop, end_loop = work
    norms, keys, values, ready, free, thin, wide = memory
    WIDE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 256, 16])
    HALF: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    THIN: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    # The result of a matmul is the left factor of the next one, without leaving the registers.
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=WIDE, k_width=2)
    LEFT_HALF: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=HALF, k_width=2)
    LEFT_THIN: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=THIN, k_width=2)
    columns = gl.arange(0, 256, layout=gl.SliceLayout(0, WIDE))
    channels = gl.arange(0, 64, layout=gl.SliceLayout(0, THIN))
    norm = norms.index(which)
    start = which * (seq_len - 64)
    tokens = sequences * seq_len
    for sequence in range(gl.program_id(0), sequences, gl.num_programs(0)):
        token = sequence * seq_len + start
        rows = token + gl.arange(0, 64, layout=gl.SliceLayout(1, WIDE))
        at = rows[:, None] * 256 + columns[None, :]
        x = gl.load(x_ptr + at)
        for t in range(first_loop, end_loop):
            row = t * tokens + token
            if INJECT:  # noqa: SIM102 (the compiler sees this one, the GPU the next)
                if t > 0:
                    x += gl.load(inject_ptr + at).to(gl.float32)
            _put_norm(x, norm, norms_box, row, inverses_ptr + t * tokens + rows, KEEP)
            for head in range(4):
                box = head * 3
                if ROTARY:  # early, so that they have arrived when they are needed
                    cos, sin = load_angles(angles_ptr, start, THIN)
                key = _product(norm, thin, box, THIN)
                value = _product(norm, thin, box + 1, THIN)
                key = warpgroup_mma_wait(1, (key,))
                _release(thin, box)
                mbarrier.wait(free, (head & 1) ^ 1)
                if KEEP:
                    tma.store_wait(0)
                if ROTARY:
                    key = rotate(key, cos, sin, THIN)
                keys.slice(which * 64, 64).store(key.to(gl.bfloat16))
                value = warpgroup_mma_wait(0, (value,))
                _release(thin, box + 1)
                values.slice(which * 64, 64).store(value.to(gl.bfloat16))
                fence_async_shared()
                if KEEP:
                    copy_out(qkv_box, [row, 256 + head * 64], keys.slice(which * 64, 64))
                    copy_out(qkv_box, [row, 512 + head * 64], values.slice(which * 64, 64))
                mbarrier.arrive(ready, count=1)
                if ROTARY:  # again, because there are too few registers to keep them
                    cos, sin = load_angles(angles_ptr, start, THIN)
                query = _product(norm, thin, box + 2, THIN)
                query = warpgroup_mma_wait(0, (query,))
                _release(thin, box + 2)
                if ROTARY:
                    query = rotate(query, cos, sin, THIN)
                query = query.to(gl.bfloat16)
                if KEEP:
                    places = row + gl.arange(0, 64, layout=gl.SliceLayout(1, THIN))
                    gl.store(qkv_ptr + places.to(gl.int64)[:, None] * 768 + (head * 64 + channels)[None, :], query)
                query = gl.convert_layout(query, LEFT_HALF)
                mbarrier.wait(ready, head & 1)
                zero = gl.zeros([64, 128], gl.float32, HALF)
                scores = warpgroup_mma(query, keys.permute((1, 0)), zero, use_acc=False, is_async=True)
                scores = warpgroup_mma_wait(0, (scores,))
                if CAUSAL or SHORT:
                    seen = pairs_seen(start, seq_len, CAUSAL, False, HALF)
                    scores = gl.where(seen, scores, float("-inf"))
                largest = gl.max(scores, axis=1) * POWER
                weights = gl.exp2(scores * POWER - largest[:, None])
                share = 1.0 / gl.sum(weights, axis=1)
                weights = gl.convert_layout(weights.to(gl.bfloat16), LEFT_THIN)
                zero = gl.zeros([64, 64], gl.float32, THIN)
                mixed = warpgroup_mma(weights, values, zero, use_acc=False, is_async=True)
                mixed = warpgroup_mma_wait(0, (mixed,))
                mbarrier.arrive(free, count=1)
                mixed = mixed * gl.convert_layout(share, gl.SliceLayout(1, THIN), assert_trivial=True)[:, None]
                mixed = gl.convert_layout(mixed.to(gl.bfloat16), LEFT)
                x = warpgroup_mma_wait(0, (_added(mixed, wide, head, x),))
                _release(wide, head)

            row += kept_loops * tokens
            _put_norm(x, norm, norms_box, row, inverses_ptr + (kept_loops + t) * tokens + rows, KEEP)
            b_in_at = b_in_ptr + t * b_in_step + channels
            hidden = warpgroup_mma_wait(0, (_product(norm, thin, 0, THIN),))
            _release(thin, 0)
            hidden = _activate(hidden + gl.load(b_in_at).to(gl.float32)[None, :], KIND)
            hidden = gl.convert_layout(hidden.to(gl.bfloat16), LEFT)
            for chunk in range(1, FF // 64):
                bias = gl.load(b_in_at + chunk * 64).to(gl.float32)
                coming = _product(norm, thin, chunk, THIN)
                x = _added(hidden, wide, chunk - 1, x)
                coming = warpgroup_mma_wait(1, (coming,))
                _release(thin, chunk)
                coming = _activate(coming + bias[None, :], KIND)  # while the other matmul runs
                x, coming = warpgroup_mma_wait(0, (x, coming))
                _release(wide, chunk - 1)
                hidden = gl.convert_layout(coming.to(gl.bfloat16), LEFT)
            x = warpgroup_mma_wait(0, (_added(hidden, wide, FF // 64 - 1, x),))
            _release(wide, FF // 64 - 1)
            x += gl.load(b_back_ptr + t * b_back_step + columns).to(gl.float32)[None, :]
        gl.store(state_ptr + at, x)
    if KEEP:
        tma.store_wait(0)


@gluon.jit
def _load_box(matrix, row, column, ring, box):
    boxes, full, empty = ring
    mbarrier.wait(empty.index(box & 1), ((box >> 1) & 1) ^ 1)
    mbarrier.expect(full.index(box & 1), 64 * 256 * 2)
    copy_in(matrix, [row, column], full.index(box & 1), boxes.index(box & 1))


@gluon.jit
def _load_matrices(matrices, steps, work, thin, wide, FF: gl.constexpr):
    """Copy the boxes in the order in which `_compute` uses them.

    The boxes of a kind are numbered from 0 in every sublayer. Each sublayer has an even number of pairs of boxes, so
    the phases of the barriers start anew, too.
    """
    w_qkv, w_out, w_in, w_back = matrices
    qkv_step, out_step, in_step, back_step = steps
    sequences, _, first_loop, end_loop = work
    for _ in range(gl.program_id(0), sequences, gl.num_programs(0)):
        for t in range(first_loop, end_loop):
            for head in range(4):
                row = t * qkv_step + head * 64
                _load_box(w_qkv, row + 256, 0, thin, head * 3)
                _load_box(w_qkv, row + 512, 0, thin, head * 3 + 1)
                _load_box(w_qkv, row, 0, thin, head * 3 + 2)
                _load_box(w_out, t * out_step, head * 64, wide, head)
            for chunk in range(FF // 64):
                _load_box(w_in, t * in_step + chunk * 64, 0, thin, chunk)
                _load_box(w_back, t * back_step, chunk * 64, wide, chunk)


# Compile once, whatever the batch and the loops: another version would take seconds and be no faster.
@gluon.jit(do_not_specialize=("sequences", "first_loop", "end_loop"))
def _all_loops(
    x_ptr, state_ptr, inject_ptr, angles_ptr, b_in_ptr, b_back_ptr, w_qkv, w_out, w_in, w_back, qkv_step, out_step,
    in_step, back_step, b_in_step, b_back_step, norms_box, qkv_box, qkv_ptr, inverses_ptr, kept_loops, sequences,
    seq_len, first_loop, end_loop, FF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, SHORT: gl.constexpr,
    ROTARY: gl.constexpr, INJECT: gl.constexpr, KEEP: gl.constexpr,
):  # fmt: skip
    norms = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], w_in.layout)
    keys = gl.allocate_shared_memory(gl.bfloat16, [128, 64], qkv_box.layout)
    values = gl.allocate_shared_memory(gl.bfloat16, [128, 64], qkv_box.layout)
    thin_boxes = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], w_in.layout)
    wide_boxes = gl.allocate_shared_memory(gl.bfloat16, [2, 256, 64], w_back.layout)
    thin_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    thin_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    wide_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    wide_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    heads = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(thin_full.index(i), count=1)
        mbarrier.init(thin_empty.index(i), count=2)
        mbarrier.init(wide_full.index(i), count=1)
        mbarrier.init(wide_empty.index(i), count=2)
        mbarrier.init(heads.index(i), count=2)
    thin, wide = (thin_boxes, thin_full, thin_empty), (wide_boxes, wide_full, wide_empty)
    matrices, steps = (w_qkv, w_out, w_in, w_back), (qkv_step, out_step, in_step, back_step)
    data = x_ptr, state_ptr, inject_ptr, angles_ptr, b_in_ptr, b_back_ptr, b_in_step, b_back_step
    trace = norms_box, qkv_box, qkv_ptr, inverses_ptr, kept_loops
    work = sequences, seq_len, first_loop, end_loop
    memory = norms, keys, values, heads.index(0), heads.index(1), thin, wide
    gl.warp_specialize(
        [
            (_compute, (0, data, trace, work, memory, FF, KIND, CAUSAL, SHORT, ROTARY, INJECT, KEEP)),
            (_compute, (1, data, trace, work, memory, FF, KIND, CAUSAL, SHORT, ROTARY, INJECT, KEEP)),
            (_load_matrices, (matrices, steps, work, thin, wide, FF)),
        ],
        [4, 1],
        [240, 24],
    )
