"""The repeatable gradient of a token table against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F

from looped.kernels.embedding import RepeatableEmbedding, embed_tokens


def inputs(device: str = "cpu", dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 28, (64, 84), generator=generator)  # token 28 never occurs
    table = torch.randn(29, 16, generator=generator, dtype=dtype)
    weight = torch.randn(64, 84, 16, generator=generator, dtype=dtype)
    return tokens.to(device), table.to(device).requires_grad_(), weight.to(device)


def test_repeatable_embedding_equals_pytorchs_rows_and_gradient():
    tokens, table, weight = inputs()
    rows = RepeatableEmbedding.apply(tokens, table)
    (grad,) = torch.autograd.grad((rows * weight).sum(), table)
    expected = F.embedding(tokens, table)
    (true_grad,) = torch.autograd.grad((expected * weight).sum(), table)
    assert torch.equal(rows, expected)
    torch.testing.assert_close(grad, true_grad, rtol=1e-12, atol=1e-12)
    assert not grad[28].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_embedding_on_the_gpu_has_the_same_gradient_every_time():
    tokens, table, weight = inputs("cuda", torch.float32)
    tokens, weight = tokens.repeat(4, 1), weight.repeat(4, 1, 1)
    grads = [torch.autograd.grad((embed_tokens(tokens, table) * weight).sum(), table)[0] for _ in range(20)]
    assert all(torch.equal(grad, grads[0]) for grad in grads)
