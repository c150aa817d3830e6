"""The backward pass of attention in the emulator, against autograd in float64."""

import pytest
import torch
import torch.nn.functional as F

from looped.kernels.reference import Rotation
from tests.kernels.cases import DEVICE, GUARD, Draw, assert_near, guarded, laboratory, rotation_of

pytest.importorskip("triton.experimental.gluon")

from looped.kernels import triton_attention
from tests.kernels.gluon_emulator import emulated

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="the GPU runs the kernel itself")
BFLOAT16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


def turned(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Neighbours as complex numbers, times those of the angles."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(rotation.cos, rotation.sin)).flatten(-2)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(("causal", "rotary"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize(("seq_len", "num_heads", "batch"), [(128, 1, 2), (122, 2, 1), (65, 1, 1), (97, 1, 2)])
def test_attend_backward_matches_autograd(seq_len, num_heads, batch, causal, rotary, rotated, monkeypatch):
    gluon = emulated("looped.kernels.gluon_attention")
    monkeypatch.setattr(triton_attention, "gluon_kernels", {"attention": gluon}.get)
    draw, tokens, dim = Draw(seq_len), batch * seq_len, 64 * num_heads
    rotation = Rotation(*(each.to(BFLOAT16) for each in rotation_of(seq_len, 32))) if rotary else None
    qkv, grad = draw(tokens, 3 * dim, dtype=BFLOAT16), draw(tokens, dim, dtype=BFLOAT16)
    (out, after_out), (mixed, after_mixed) = guarded(tokens, 3 * dim, BFLOAT16), guarded(tokens, dim, BFLOAT16)

    exact = qkv.double().requires_grad_()
    query, key, value = exact.view(batch, seq_len, 3, num_heads, 64).permute(2, 0, 3, 1, 4)
    if rotation is not None:
        precise = Rotation(*(each.double() for each in rotation))
        query, key = turned(query, precise), turned(key, precise)
        if rotated:  # what a forward pass has kept
            qkv = torch.stack((query, key, value)).permute(1, 3, 0, 2, 4).reshape(tokens, 3 * dim).to(BFLOAT16)
    wanted = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    wanted = wanted.transpose(1, 2).reshape(tokens, dim)
    (wanted_grad,) = torch.autograd.grad(wanted, exact, grad.double())

    triton_attention.attend_backward(
        qkv.detach(), None, grad, rotation, num_heads=num_heads, seq_len=seq_len, causal=causal, out=out, mixed=mixed,
        rotated=rotated,
    )  # fmt: skip
    assert_near(mixed, wanted, 1e-2)
    assert_near(out, wanted_grad, 1e-2)
    assert (after_out == GUARD).all()
    assert (after_mixed == GUARD).all()


def test_attend_backward_of_rotated_heads_by_the_other_kernel(monkeypatch):
    """The trace of a forward pass in one launch can be used without Gluon."""
    found = []
    for kernels in ({"attention": emulated("looped.kernels.gluon_attention")}, {}):
        monkeypatch.setattr(triton_attention, "gluon_kernels", kernels.get)
        draw, rotation = Draw(3), Rotation(*(each.to(BFLOAT16) for each in rotation_of(70, 32)))
        qkv, grad = draw(70, 192, dtype=BFLOAT16), draw(70, 64, dtype=BFLOAT16)
        found.append((torch.empty_like(qkv), torch.empty_like(grad)))
        triton_attention.attend_backward(
            qkv, None, grad, rotation, num_heads=1, seq_len=70, causal=True, out=found[-1][0], mixed=found[-1][1],
            rotated=True,
        )  # fmt: skip
    for one, other in zip(*found, strict=True):
        assert_near(one, other, 1e-2)
