"""The language model's head and its cross-entropy in one: the scores of all tokens never exist at once.

For a chunk of rows after another: scores = hidden W^T into one buffer that all chunks share; a row step turns them in
place into their own gradient; two products take it on to the hidden states and the weight. The gradient is thus made
in the forward pass, which is why the loss is summed in here, weighed by `importance`; backward only scales it.

Traffic with bfloat16 (V = 50304, dim 768, 8192 rows at once, one buffer B = 0.82 GB): the three products write B once
and read it twice behind their arithmetic, the row step reads and writes it once: 5 B = 4.1 GB, and 0.5 GB for the
weight and its gradient. Only the row step's 1.65 GB are not hidden. Memory: B, the two gradients, no scores.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# On a GPU enough rows that the float32 sum of the weight's gradient, read and written for every chunk, is a small part
# of the traffic; elsewhere few, since a plain row step makes copies.
ROWS_AT_ONCE_ON_GPU = 8192
ROWS_AT_ONCE = 512
ALIGNMENT = 16
"""elements: rows of the buffer start where wide loads and matrix products want them, whatever the vocabulary"""


class CrossEntropy(NamedTuple):
    total: Float[Tensor, ""]
    """the losses summed by importance; the one output that has a gradient"""
    losses: Float[Tensor, "*batch"]
    right: Bool[Tensor, "*batch"]
    """whether the target has the largest score (the first of equals)"""


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, "vocab dim"],
    targets: Int[Tensor, "*batch"],
    importance: Float[Tensor, "*batch"],
) -> CrossEntropy:
    """`reference.linear_cross_entropy`, and the sum of importance times loss, which alone can be differentiated.

    The products run in hidden's precision. A float32 weight gets its gradient as it was summed, in float32; every
    target must be in the vocabulary, also where the importance is 0. Importance gets no gradient.
    """
    if not torch.is_grad_enabled():  # a Function is told which inputs want a gradient, but not that nobody will ask
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
        precise = torch.promote_types(hidden.dtype, torch.float32)
        targets, importance = targets.contiguous(), importance.to(precise).contiguous()  # for kernels
        losses = torch.empty(tokens, dtype=precise, device=hidden.device)
        right = torch.empty(tokens, dtype=torch.bool, device=hidden.device)
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        d_weight = torch.zeros_like(weight, dtype=precise) if wants_weight else None

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
        d_hidden, d_weight = (None if made is None else _scaled(made, scale) for made in ctx.saved_tensors)
        return d_hidden, d_weight, None, None


def _scaled(gradient: Tensor, scale: Tensor) -> Tensor:
    # As a matrix the scale keeps its precision; as a scalar it would be rounded to the gradient's.
    return (gradient * scale.view(1, 1)).to(gradient.dtype)


RowStep = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, bool], None]
"""(scores, targets, importance, losses, right, wants_gradient): fills losses and right; with a gradient, scores too"""


def choose_row_step(scores: Tensor) -> RowStep:
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
    log_shares = scores.to(losses.dtype).log_softmax(dim=-1)
    losses.copy_(-log_shares.gather(1, targets[:, None]).squeeze(1))
    right.copy_(scores.argmax(dim=-1) == targets)
    if wants_gradient:
        gradient = log_shares.exp_()
        gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
        scores.copy_(gradient.mul_(importance[:, None]))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, summed in total's precision."""
    if total.dtype != left.dtype and total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:  # only cuBLAS has products of mixed precision
        total.addmm_(left.to(total.dtype), right.to(total.dtype))
