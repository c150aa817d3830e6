"""The head of a language model and its cross-entropy in one operation, without storing the scores of all tokens.

The rows are processed in chunks, which share one buffer. For each chunk, a matmul writes scores = hidden W^T to the
buffer. The row step replaces the scores by their gradient, in place. Two more matmuls give the gradients of the hidden
states and of the weight. The forward pass thus computes the gradient of the sum of importance * loss, and the backward
pass only scales it.

Memory traffic in bfloat16, for V = 50304, dim 768 and 8192 rows at once: the buffer has B = 0.82 GB. The three matmuls
write it once and read it twice, hidden behind their arithmetic. The row step reads and writes it once, which takes
1.65 GB that are not hidden. The weight and its gradient add 0.5 GB.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# Every chunk reads and writes the float32 sum of the weight's gradient. On a GPU, chunks are so large that this is a
# small part of the traffic. On a CPU they are small, because the plain row step makes copies.
ROWS_AT_ONCE_ON_GPU = 8192
ROWS_AT_ONCE = 512
ALIGNMENT = 16
"""elements between the starts of rows in the buffer, so that wide loads and matmuls are aligned"""


class CrossEntropy(NamedTuple):
    """The results of `linear_cross_entropy`."""

    total: Float[Tensor, ""]
    """sum of importance * loss, the only output with a gradient"""
    losses: Float[Tensor, "*batch"]
    """cross-entropy of each position"""
    right: Bool[Tensor, "*batch"]
    """True where the target has the largest score (the first of equal scores)"""


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, "vocab dim"],
    targets: Int[Tensor, "*batch"],
    importance: Float[Tensor, "*batch"],
) -> CrossEntropy:
    """Return the results of `reference.linear_cross_entropy` and the sum of importance * loss.

    Only the sum has a gradient, and none for the importance. The matmuls run in the precision of `hidden`. The gradient
    of a float32 weight is summed in float32. Every target must be in the vocabulary, even if its importance is 0.
    """
    if not torch.is_grad_enabled():  # needs_input_grad ignores no_grad, so detach to avoid computing gradients
        hidden, weight = hidden.detach(), weight.detach()
    total, losses, right = _LinearCrossEntropy.apply(
        hidden.flatten(0, -2), weight, targets.flatten(), importance.detach().flatten()
    )
    return CrossEntropy(total, losses.view(targets.shape), right.view(targets.shape))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "tokens dim"],
        weight: Float[Tensor, "vocab dim"],
        targets: Int[Tensor, " tokens"],
        importance: Float[Tensor, " tokens"],
    ) -> tuple[Tensor, Tensor, Tensor]:
        wants_hidden, wants_weight, *_ = ctx.needs_input_grad
        (tokens, _), (vocab, _) = hidden.shape, weight.shape
        loss_dtype = torch.promote_types(hidden.dtype, torch.float32)
        targets, importance = targets.contiguous(), importance.to(loss_dtype).contiguous()  # for kernels
        losses = torch.empty(tokens, dtype=loss_dtype, device=hidden.device)
        right = torch.empty(tokens, dtype=torch.bool, device=hidden.device)
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        d_weight = torch.zeros_like(weight, dtype=loss_dtype) if wants_weight else None

        matrix = weight.to(hidden.dtype)
        chunk = min(ROWS_AT_ONCE_ON_GPU if hidden.is_cuda else ROWS_AT_ONCE, tokens)
        buffer = hidden.new_empty(chunk, -(-vocab // ALIGNMENT) * ALIGNMENT)[:, :vocab]
        row_step = choose_row_step(buffer)
        for start in range(0, tokens, max(chunk, 1)):
            rows = slice(start, start + chunk)
            scores = buffer[: min(chunk, tokens - start)]
            torch.mm(hidden[rows], matrix.T, out=scores)
            row_step(scores, targets[rows], importance[rows], losses[rows], right[rows], wants_hidden or wants_weight)
            if d_hidden is not None:
                torch.mm(scores, matrix, out=d_hidden[rows])
            if d_weight is not None:
                _add_product(d_weight, scores.T, hidden[rows])

        ctx.save_for_backward(d_hidden, None if d_weight is None else d_weight.to(weight.dtype))
        ctx.mark_non_differentiable(losses, right)
        ctx.set_materialize_grads(False)
        return (losses * importance).sum(), losses, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        scale = gradients[0]
        if scale is None:
            return None, None, None, None
        d_hidden, d_weight = (None if saved is None else _scale(saved, scale) for saved in ctx.saved_tensors)
        return d_hidden, d_weight, None, None


def _scale(gradient: Tensor, scale: Tensor) -> Tensor:
    # A matrix keeps the precision of the scale. A scalar would be rounded to the gradient's precision.
    return (gradient * scale.view(1, 1)).to(gradient.dtype)


RowStep = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, bool], None]
"""function of (scores, targets, importance, losses, right, wants_gradient) that fills in losses and right, and that
replaces the scores by their gradient if it is wanted"""


def choose_row_step(scores: Tensor) -> RowStep:
    """Return the Triton row step on a GPU if Triton is installed, and otherwise the plain one."""
    if not scores.is_cuda or scores.dtype == torch.float64:
        return plain_row_step
    try:
        from looped.kernels.triton_cross_entropy import triton_row_step  # Triton is not everywhere
    except ImportError:
        return plain_row_step
    return triton_row_step


def plain_row_step(
    scores: Float[Tensor, "rows vocab"],
    targets: Int[Tensor, " rows"],
    importance: Float[Tensor, " rows"],
    losses: Float[Tensor, " rows"],
    right: Bool[Tensor, " rows"],
    wants_gradient: bool,
) -> None:
    """Fill in `losses` and `right`. If a gradient is wanted, replace the scores by their gradient."""
    log_probabilities = scores.to(losses.dtype).log_softmax(dim=-1)
    losses.copy_(-log_probabilities.gather(1, targets[:, None]).squeeze(1))
    right.copy_(scores.argmax(dim=-1) == targets)
    if wants_gradient:
        gradient = log_probabilities.exp_()
        gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
        scores.copy_(gradient.mul_(importance[:, None]))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to `total`, in the precision of `total`."""
    if total.dtype != left.dtype and total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:  # only cuBLAS has matmuls of mixed precision
        total.addmm_(left.to(total.dtype), right.to(total.dtype))
