"""Look up token embeddings, with a gradient that has the same bits every time.

On an H200, the backward pass of `F.embedding` added the rows of 10,752 tokens in another order in 49 of 50 calls.
Nothing else in a training step did (dev/LOG.md). PyTorch adds by atomics where few tokens occur often (its pull request
170589), and the kernel for small batches had a race (187687). For a small vocabulary a matmul adds the rows in a fixed
order.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

LARGEST_VOCABULARY = 256
"""above it, the matmul would take too much memory"""


def embed_tokens(
    tokens: Int[Tensor, "batch seq"], table: Float[Tensor, "vocabulary dim"]
) -> Float[Tensor, "batch seq dim"]:
    """Return the table's rows of the tokens. On a GPU, the gradient of a small table is repeatable."""
    if tokens.is_cuda and len(table) <= LARGEST_VOCABULARY and torch.is_grad_enabled():
        return RepeatableEmbedding.apply(tokens, table)
    return F.embedding(tokens, table)


class RepeatableEmbedding(torch.autograd.Function):
    """`F.embedding` whose backward pass is one matmul."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor) -> Tensor:
        """Return the rows of the tokens."""
        ctx.save_for_backward(tokens)
        ctx.vocabulary = len(table)
        return F.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        """Return the gradient of the table: for each token of the vocabulary, the sum over its places."""
        (tokens,), (grad,) = ctx.saved_tensors, grads
        vocabulary = torch.arange(ctx.vocabulary, device=tokens.device)
        is_token = (vocabulary[:, None] == tokens.flatten()).to(grad.dtype)
        return None, is_token @ grad.flatten(0, -2)
