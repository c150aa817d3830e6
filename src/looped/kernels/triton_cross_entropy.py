"""The row step of `cross_entropy.py` in Triton: one program per row, two passes over the row, all in float32.

The first pass reads the row from memory, the second from the L2 cache: 50304 bfloat16 scores are 0.1 MB, about 300 rows
run at once, and Hopper's L2 has 50 MB. The second pass goes backwards, to start with the blocks that were read last.
"""
# pyright: reportCallIssue=false, reportOperatorIssue=false
# pyright does not understand @triton.jit.

import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

LARGEST_BLOCK = 8192
SCORES_PER_WARP = 512  # 16 per thread: two loads of 16 bytes in flight


def triton_row_step(
    scores: Float[Tensor, "rows vocab"],
    targets: Int[Tensor, " rows"],
    importance: Float[Tensor, " rows"],
    losses: Float[Tensor, " rows"],
    right: Bool[Tensor, " rows"],
    wants_gradient: bool,
) -> None:
    """Fill in `losses` and `right`. If a gradient is wanted, replace the scores by their gradient."""
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
    # The loss of a target outside the vocabulary is NaN, because a CUDA graph cannot raise an error.
    target_score = tl.load(scores_ptr + target, mask=in_vocabulary, other=float("nan")).to(tl.float32)
    target = target.to(tl.int32)  # the type of the columns, for fewer registers

    largest = -float("inf")
    total = 0.0  # sum of exp(score - largest)
    num_not_above = 0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < vocab
        score = tl.load(scores_ptr + columns, mask=inside, other=-float("inf"), eviction_policy="evict_last")
        score = score.to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(score, axis=0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(score - new_largest), axis=0)
        largest = new_largest
        # As in argmax, the first of equal scores wins, and NaN is above every number.
        not_above = tl.where(columns < target, score < target_score, score <= target_score)
        num_not_above += tl.sum((not_above & inside).to(tl.int32), axis=0)

    # Subtract first, because a score can be large and log(total) small beside it.
    tl.store(losses_ptr + row, (largest - target_score) + tl.log(total))
    tl.store(right_ptr + row, num_not_above == vocab)

    if WANTS_GRADIENT:
        importance = tl.load(importance_ptr + row)
        inverse_total = 1.0 / total
        num_blocks = tl.cdiv(vocab, BLOCK)
        for block in range(0, num_blocks):
            columns = (num_blocks - 1 - block) * BLOCK + tl.arange(0, BLOCK)
            inside = columns < vocab
            score = tl.load(scores_ptr + columns, mask=inside, other=-float("inf"), eviction_policy="evict_first")
            probability = tl.exp(score.to(tl.float32) - largest) * inverse_total
            gradient = probability - tl.where(columns == target, 1.0, 0.0)
            tl.store(scores_ptr + columns, (gradient * importance).to(score.dtype), mask=inside)
