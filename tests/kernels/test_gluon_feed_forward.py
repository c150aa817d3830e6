"""The feed-forward layer's backward pass in one kernel, in the emulator, against autograd in float64."""

from dataclasses import replace

import pytest
import torch

from looped.kernels import reference
from looped.kernels.reference import LayerWeights, Modulation
from tests.kernels.cases import DEVICE, GUARD, Draw, assert_near, guarded, laboratory
from tests.kernels.plans import Case, check

pytest.importorskip("triton.experimental.gluon")

from looped.kernels import gluon_activation, triton_loops
from looped.kernels.triton_pointwise import Normed, Rounded, round_off
from tests.kernels.gluon_emulator import emulated

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="the GPU runs the kernel itself")
BFLOAT16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


def layer(draw: Draw, ff_dim: int, num_loops: int) -> LayerWeights:
    """Return the tables of a feed-forward layer, without attention."""
    w_in = draw(num_loops, ff_dim, 256, dtype=BFLOAT16, std=1 / 16)
    b_in = draw(num_loops, ff_dim, dtype=BFLOAT16, std=0.5)
    w_back = draw(num_loops, 256, ff_dim, dtype=BFLOAT16, std=1 / 16)
    return LayerWeights(w_in, w_in, w_in, b_in, w_back, draw(num_loops, 256, dtype=BFLOAT16, std=0.5))


def joined(value: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Return the numbers whose leading 16 of 24 bits are in `value`, and whose other bits are in `rest`."""
    leading = value.view(torch.int16).to(torch.int32) * 256
    return ((leading + rest.to(torch.int32)) * 256).view(torch.float32).double()


@pytest.mark.parametrize(
    ("tokens", "ff_dim", "activation", "num_loops", "loop"),
    [(700, 128, "gelu", 2, 1), (1, 64, "relu", 1, 5), (200, 192, "silu", 3, 0), (129, 128, "gelu", 2, 0)],
    ids=["several tiles", "one token", "odd chunks", "one token in the last tile"],
)
def test_feed_forward_backward_matches_autograd(tokens, ff_dim, activation, num_loops, loop):
    gluon, draw = emulated("looped.kernels.gluon_feed_forward"), Draw(tokens)
    weights = layer(draw, ff_dim, num_loops)
    state, given = draw(tokens, 256, std=3.0), draw(tokens, 256)
    inverse = (state.square().mean(dim=1) + reference.RMS_EPSILON).rsqrt()
    (value, after_value), (rest, after_rest) = guarded(tokens, 256, BFLOAT16), guarded(tokens, 256, torch.int8)
    grad = Rounded(torch.empty(tokens, 256, dtype=BFLOAT16), torch.empty(tokens, 256, dtype=torch.int8))
    round_off(given, grad)
    (active, after_active), (slope, after_slope) = (guarded(tokens, ff_dim, BFLOAT16) for _ in range(2))
    sums, after_sums = guarded(gluon.num_sums(tokens, given.device), ff_dim, torch.float32)
    gluon.feed_forward_backward(
        Normed((state * inverse[:, None]).to(BFLOAT16), inverse), grad, gluon_activation.interleaved(weights), active,
        slope, sums, Rounded(value, rest), loop=loop, activation=activation,
    )  # fmt: skip

    w_in, b_in, w_back, b_back = (each[loop if num_loops > 1 else 0].double() for each in weights[2:])
    leaf, b_in = state.double().requires_grad_(), b_in.requires_grad_()
    after = reference.add_feed_forward(leaf, Modulation(), w_in, b_in, w_back, b_back, activation=activation)
    wanted, bias_grad = torch.autograd.grad(after, (leaf, b_in), given.double())
    found = joined(value, rest)
    assert_near(found, value.double(), 2**-8)
    assert_near(found - given, wanted - given, 1e-2)  # 24 bits of the gradient before go through
    assert_near(sums.double().sum(dim=0), bias_grad, 1e-2)
    assert_near(active.double() @ w_back.T, (after - leaf - b_back).detach(), 1e-2)
    assert_near(slope.double().sum(dim=0), bias_grad, 2e-2)
    for behind in (after_value, after_rest, after_active, after_slope, after_sums):
        assert (behind == GUARD).all()


WHOLE = Case(batch=2, seq_len=70, dim=256, num_heads=4, ff_dim=256, num_loops=2, read=(1,))


@pytest.mark.parametrize(
    "case",
    [
        replace(WHOLE, num_loops=3, read=(0, 2)),
        replace(WHOLE, batch=1, num_layers=2, remat=1, activation="relu"),
        replace(WHOLE, feed_forward=("shift",), growth_limit=1.05),
    ],
    ids=["two answers", "layers, computed again", "shift, limited"],
)
def test_backward_pass_with_whole_feed_forward_matches_definition(case, monkeypatch):
    gluon = emulated("looped.kernels.gluon_feed_forward")
    kernels = {"feed_forward": gluon, "activation": gluon_activation}
    monkeypatch.setattr(triton_loops, "gluon_kernels", kernels.get)
    monkeypatch.setattr(triton_loops, "BUSY_FOR_FEED_FORWARD", 0.0)
    launched, launch = [], gluon.feed_forward_backward
    gluon.feed_forward_backward = lambda *args, **options: launched.append(launch(*args, **options))
    check(case, BFLOAT16)
    assert len(launched) == case.num_loops * case.num_layers
