"""The row step of `cross_entropy.py` in Triton: one program per row, two passes over it, everything in float32.

The first pass comes from memory. The second finds the row in the cache: 50304 bfloat16 scores are 0.1 MB, some 300 rows
are under way at once, and Hopper's L2 holds 50 MB. It goes backwards, so that it starts with what was read last.
"""
# pyright: reportCallIssue=false, reportOperatorIssue=false
# It takes a kernel for the Python function that it is written as.

import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

LARGEST_BLOCK = 8192
SCORES_PER_WARP = 512  # 16 a thread: two loads of 16 bytes under way


def triton_row_step(
    scores: Float[Tensor, "rows vocab"],
    targets: Int[Tensor, " rows"],
    importance: Float[Tensor, " rows"],
    losses: Float[Tensor, " rows"],
    right: Bool[Tensor, " rows"],
    wants_gradient: bool,
) -> None:
    rows, vocab = scores.shape
    block = min(triton.next_power_of_2(vocab), LARGEST_BLOCK)
    _row_step[(rows,)](
        scores, scores.stride(0), targets, importance, losses, right, vocab,
        BLOCK=block, WANTS_GRADIENT=wants_gradient, num_warps=min(max(block // SCORES_PER_WARP, 1), 16),
    )  # fmt: skip


@triton.jit
def _row_step(
    scores_ptr,
    row_stride,
    targets_ptr,
    importance_ptr,
    losses_ptr,
    right_ptr,
    vocab,
    BLOCK: tl.constexpr,
    WANTS_GRADIENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # a buffer may have more than 2^31 scores
    scores_ptr += row * row_stride
    target = tl.load(targets_ptr + row)
    in_vocabulary = (target >= 0) & (target < vocab)
    # Outside the vocabulary the loss is NaN: seen, where a wait for the device's complaint would not fit a CUDA graph.
    target_score = tl.load(scores_ptr + target, mask=in_vocabulary, other=float("nan")).to(tl.float32)
    target = target.to(tl.int32)  # as the columns are, for fewer registers

    largest = -float("inf")
    total = 0.0  # of exp(score - largest)
    not_beaten = 0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < vocab
        score = tl.load(scores_ptr + columns, mask=inside, other=-float("inf"), eviction_policy="evict_last")
        score = score.to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(score, axis=0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(score - new_largest), axis=0)
        largest = new_largest
        # Like argmax, the first of equals wins; a NaN beats everybody.
        not_beaten_here = tl.where(columns < target, score < target_score, score <= target_score)
        not_beaten += tl.sum((not_beaten_here & inside).to(tl.int32), axis=0)

    # The difference first: a score can be large, and log(total) small beside it.
    tl.store(losses_ptr + row, (largest - target_score) + tl.log(total))
    tl.store(right_ptr + row, not_beaten == vocab)

    if WANTS_GRADIENT:
        importance = tl.load(importance_ptr + row)
        share = 1.0 / total
        blocks = tl.cdiv(vocab, BLOCK)
        for passed in range(0, blocks):
            columns = (blocks - 1 - passed) * BLOCK + tl.arange(0, BLOCK)
            inside = columns < vocab
            score = tl.load(scores_ptr + columns, mask=inside, other=-float("inf"), eviction_policy="evict_first")
            gradient = tl.exp(score.to(tl.float32) - largest) * share - tl.where(columns == target, 1.0, 0.0)
            tl.store(scores_ptr + columns, (gradient * importance).to(score.dtype), mask=inside)
