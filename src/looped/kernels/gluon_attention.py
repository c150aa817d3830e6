"""The backward pass of attention over 65 to 128 tokens, heads of 64 channels.

How the data moves. A program of one warpgroup computes one head of one sequence. It copies queries, keys, values and
the gradient of the head's output to shared memory (16 KB each), as two tiles of 64 tokens. The scores are computed
twice: by queries, for their gradient and the head's output, and by keys, for the gradients of keys and values. So the
left factor of every matmul is in registers or in shared memory as it was copied, and nothing is transposed. Results
leave through a buffer of 8 KB. With 73 KB and 168 registers per thread, three programs share a multiprocessor.
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
)
from looped.kernels.gluon_common import attempt as attempt
from looped.kernels.triton_common import Angles

SCALE = gl.constexpr(HEAD**-0.5)


def covers(qkv: Tensor, *, num_heads: int, seq_len: int) -> bool:
    """Return whether the kernel can run and supports heads of this shape."""
    fits = qkv.dtype == torch.bfloat16 and qkv.shape[1] == 3 * num_heads * HEAD and SHORTEST <= seq_len <= LONGEST
    return fits and num_multiprocessors(qkv.device) > 0


def attend_backward(
    qkv: Tensor, grad: Tensor, angles: Angles | None, *, num_heads: int, seq_len: int, causal: bool, out: Tensor,
    mixed: Tensor, rotated: bool,
) -> None:  # fmt: skip
    """Write the same as `triton_attention.attend_backward`."""
    rows = 64 if seq_len < LONGEST else 128
    boxes = box_of(qkv, rows, 64), box_of(grad, rows, 64), box_of(out, 64, 64), box_of(mixed, 64, 64)
    _attend_backward[(len(qkv) // seq_len * num_heads,)](
        *boxes, *(angles or (qkv, qkv)), SEQ=seq_len, HEADS=num_heads, CAUSAL=causal,
        ROTARY=angles is not None, ROTATED=rotated, num_warps=4, maxnreg=168,
    )  # fmt: skip


@gluon.jit
def _copy_tiles(box, token, column, full, tiles, SEQ: gl.constexpr):
    """Copy the first and the last 64 tokens of a sequence."""
    if SEQ < 128:
        copy_in(box, [token, column], full, tiles.slice(0, 64))
        copy_in(box, [token + SEQ - 64, column], full, tiles.slice(64, 64))
    else:  # one copy, because with two the compiler runs out of registers
        copy_in(box, [token, column], full, tiles)


@gluon.jit
def _rotate_tiles(tiles, angles_ptr, seq_len):
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    for i in gl.static_range(2):
        cos, sin = load_angles(angles_ptr, i * (seq_len - 64), FLAT)
        tile = tiles.slice(64 * i, 64)
        tile.store(rotate(tile.load(FLAT), cos, sin, FLAT))


@gluon.jit
def _put(x, stage, box, row, column):
    """Write to memory through the buffer `stage`, once its last contents have left."""
    tma.store_wait(0)
    stage.store(x.to(gl.bfloat16))
    fence_async_shared()
    copy_out(box, [row, column], stage)


@gluon.jit
def _rotated_back(grad, angles_ptr, start, ROTARY: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the gradient of queries or keys before rotation and scale."""
    if ROTARY:
        cos, sin = load_angles(angles_ptr, start, LAYOUT)
        return rotate(grad, cos, sin, LAYOUT)
    return grad * SCALE


@gluon.jit
def _attend_backward(
    qkv_box, grad_box, out_box, mixed_box, angles_ptr, back_angles_ptr, SEQ: gl.constexpr, HEADS: gl.constexpr,
    CAUSAL: gl.constexpr, ROTARY: gl.constexpr, ROTATED: gl.constexpr,
):  # fmt: skip
    DIM: gl.constexpr = HEADS * 64
    WIDE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    THIN: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=THIN, k_width=2)
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, WIDE)
    token, column = gl.program_id(0) // HEADS * SEQ, gl.program_id(0) % HEADS * 64
    q = gl.allocate_shared_memory(gl.bfloat16, [128, 64], qkv_box.layout)
    k = gl.allocate_shared_memory(gl.bfloat16, [128, 64], qkv_box.layout)
    v = gl.allocate_shared_memory(gl.bfloat16, [128, 64], qkv_box.layout)
    g = gl.allocate_shared_memory(gl.bfloat16, [128, 64], qkv_box.layout)
    stage = gl.allocate_shared_memory(gl.bfloat16, [64, 64], out_box.layout)
    logs = gl.allocate_shared_memory(gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    alongs = gl.allocate_shared_memory(gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(full.index(1), count=1)
    mbarrier.expect(full.index(0), 2 * 128 * 64 * 2)
    _copy_tiles(qkv_box, token, column, full.index(0), q, SEQ)
    _copy_tiles(qkv_box, token, DIM + column, full.index(0), k, SEQ)
    mbarrier.expect(full.index(1), 2 * 128 * 64 * 2)
    _copy_tiles(qkv_box, token, 2 * DIM + column, full.index(1), v, SEQ)
    _copy_tiles(grad_box, token, column, full.index(1), g, SEQ)
    mbarrier.wait(full.index(0), 0)
    if ROTARY and not ROTATED:
        _rotate_tiles(q, angles_ptr, SEQ)
        _rotate_tiles(k, angles_ptr, SEQ)
        fence_async_shared()
    mbarrier.wait(full.index(1), 0)
    wide, thin = gl.zeros([64, 128], gl.float32, WIDE), gl.zeros([64, 64], gl.float32, THIN)

    for i in gl.static_range(2):  # by queries
        start = i * (SEQ - 64)
        scores = warpgroup_mma(q.slice(64 * i, 64), k.permute((1, 0)), wide, use_acc=False, is_async=True)
        grads = warpgroup_mma(g.slice(64 * i, 64), v.permute((1, 0)), wide, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(1, (scores,))
        if CAUSAL or SEQ < 128:
            scores = gl.where(pairs_seen(start, SEQ, CAUSAL, False, WIDE), scores, float("-inf"))
        largest = gl.max(scores, axis=1) * POWER
        weights = gl.exp2(scores * POWER - largest[:, None])
        total = gl.sum(weights, axis=1)
        share = 1.0 / total
        grads = warpgroup_mma_wait(0, (grads,))
        along = gl.sum(weights * grads, axis=1) * share
        grads = (weights * (grads * share[:, None] - (along * share)[:, None])).to(gl.bfloat16)
        logs.slice(64 * i, 64).store(largest + gl.log2(total))
        alongs.slice(64 * i, 64).store(along)
        mixed = warpgroup_mma(gl.convert_layout(weights.to(gl.bfloat16), LEFT), v, thin, use_acc=False, is_async=True)
        grad_q = warpgroup_mma(gl.convert_layout(grads, LEFT), k, thin, use_acc=False, is_async=True)
        mixed = warpgroup_mma_wait(1, (mixed,))
        mixed = mixed * gl.convert_layout(share, gl.SliceLayout(1, THIN), assert_trivial=True)[:, None]
        _put(mixed, stage, mixed_box, token + start, column)
        grad_q = warpgroup_mma_wait(0, (grad_q,))
        _put(_rotated_back(grad_q, back_angles_ptr, start, ROTARY, THIN), stage, out_box, token + start, column)

    for i in gl.static_range(2):  # by keys
        start = i * (SEQ - 64)
        scores = warpgroup_mma(k.slice(64 * i, 64), q.permute((1, 0)), wide, use_acc=False, is_async=True)
        grads = warpgroup_mma(v.slice(64 * i, 64), g.permute((1, 0)), wide, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(1, (scores,))
        weights = gl.exp2(scores * POWER - logs.load(OF_COLUMNS)[None, :])
        if CAUSAL or SEQ < 128:
            weights = gl.where(pairs_seen(start, SEQ, CAUSAL, True, WIDE), weights, 0.0)
        grads = warpgroup_mma_wait(0, (grads,))
        grads = (weights * (grads - alongs.load(OF_COLUMNS)[None, :])).to(gl.bfloat16)
        grad_v = warpgroup_mma(gl.convert_layout(weights.to(gl.bfloat16), LEFT), g, thin, use_acc=False, is_async=True)
        grad_k = warpgroup_mma(gl.convert_layout(grads, LEFT), q, thin, use_acc=False, is_async=True)
        grad_v = warpgroup_mma_wait(1, (grad_v,))
        _put(grad_v, stage, out_box, token + start, 2 * DIM + column)
        grad_k = warpgroup_mma_wait(0, (grad_k,))
        _put(_rotated_back(grad_k, back_angles_ptr, start, ROTARY, THIN), stage, out_box, token + start, DIM + column)
    tma.store_wait(0)
