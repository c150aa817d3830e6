"""The activation's backward pass with both of its products, in the emulator, against autograd in float64."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from looped.kernels.reference import LayerWeights
from tests.kernels.cases import DEVICE, GUARD, Draw, assert_near, guarded, laboratory
from tests.kernels.plans import Case, check

pytest.importorskip("triton.experimental.gluon")

from looped.kernels import triton_loops
from tests.kernels.gluon_emulator import emulated

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="the GPU runs the kernel itself")
BFLOAT16 = torch.bfloat16
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


def layer(draw: Draw, ff_dim: int, num_loops: int) -> LayerWeights:
    """A feed-forward layer of several loops; it has no attention."""
    w_in = draw(num_loops, ff_dim, 256, dtype=BFLOAT16, std=1 / 16)
    b_in = draw(num_loops, ff_dim, dtype=BFLOAT16, std=0.5)
    w_back = draw(num_loops, 256, ff_dim, dtype=BFLOAT16, std=1 / 16)
    return LayerWeights(w_in, w_in, w_in, b_in, w_back, b_in)


@pytest.mark.parametrize(
    ("tokens", "ff_dim", "activation", "num_loops", "loop"),
    [(384, 256, "gelu", 2, 1), (1, 128, "relu", 1, 5), (200, 256, "silu", 3, 0), (129, 128, "gelu", 2, 0)],
)
def test_activation_products_match_autograd(tokens, ff_dim, activation, num_loops, loop):
    gluon, draw = emulated("looped.kernels.gluon_activation", num_multiprocessors=4), Draw(tokens)
    weights = layer(draw, ff_dim, num_loops)
    normed, grad = (draw(tokens, 256, dtype=BFLOAT16) for _ in range(2))
    (active, after_active), (slope, after_slope) = (guarded(tokens, ff_dim, BFLOAT16) for _ in range(2))
    sums, after_sums = guarded(gluon.num_sums(tokens, ff_dim, normed.device), ff_dim, torch.float32)
    gluon.activation_products(
        normed, grad, gluon.interleaved(weights), active, slope, sums, loop=loop, activation=activation
    )
    w_in, b_in, w_back = (
        each[loop if num_loops > 1 else 0].double() for each in (weights.w_in, weights.b_in, weights.w_back)
    )
    z = (normed.double() @ w_in.T + b_in).requires_grad_()
    exact = ACTIVATIONS[activation](z)
    (exact_slope,) = torch.autograd.grad(exact, z, grad.double() @ w_back)
    assert_near(active, exact, 1e-2)
    assert_near(slope, exact_slope, 1e-2)
    assert_near(sums.double().sum(dim=0), exact_slope.sum(dim=0), 1e-2)
    for behind in (after_active, after_slope, after_sums):
        assert (behind == GUARD).all()


WHOLE = Case(batch=2, seq_len=70, dim=256, num_heads=4, ff_dim=256, num_loops=2, read=(1,))


@pytest.mark.parametrize(
    "case",
    [WHOLE, replace(WHOLE, batch=1, num_layers=2, remat=1, activation="relu"), replace(WHOLE, feed_forward=("shift",))],
    ids=["plain", "layers, computed again", "shift"],
)
def test_backward_pass_with_activation_products_matches_definition(case, monkeypatch):
    gluon = emulated("looped.kernels.gluon_activation", num_multiprocessors=4)
    monkeypatch.setattr(triton_loops, "gluon_kernels", {"activation": gluon}.get)
    monkeypatch.setattr(triton_loops, "FEWEST_TOKENS", 0)
    launched, launch = [], gluon.activation_products
    gluon.activation_products = lambda *args, **options: launched.append(launch(*args, **options))
    check(case, BFLOAT16)
    assert len(launched) == case.num_loops * case.num_layers
