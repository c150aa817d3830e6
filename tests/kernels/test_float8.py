"""Matmuls with 8-bit factors: each rounding step by itself, and all loops against the definition in float64."""

from dataclasses import replace

import pytest
import torch

from looped.kernels.float8 import E4M3, LARGEST, Scaled, float8_product, normed_scale
from tests.kernels.cases import DEVICE, Draw, assert_near, error, laboratory
from tests.kernels.plans import Case, Inputs, by_definition, fused

pytest.importorskip("triton")

from looped.kernels.triton_pointwise import (
    Normed,
    activation_backward,
    activation_in_float8,
    add_norm,
    matrices_in_float8,
    num_sums,
    rows_in_float8,
)

BFLOAT16 = torch.bfloat16
STEP = 2**-4
"""largest relative distance of a number from the nearest one with 3 bits of mantissa"""
HOPPER = 9
"""compute capability of the oldest GPUs whose float8 matmuls take one scale per row"""
pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.get_device_capability()[0] < HOPPER, reason="no Hopper GPU"),
    pytest.mark.filterwarnings("ignore:.*determinis.*:UserWarning"),  # CUDA's, where poison asks for it
]


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


def widened(factor: Scaled) -> torch.Tensor:
    return factor.value.double() * factor.scale.double()


def assert_rounded(factor: Scaled, exact: torch.Tensor, smallest: float) -> None:
    """Compare numbers above the smallest one by their relative distance, and the others by the absolute one."""
    assert factor.value.dtype == E4M3
    distance = (widened(factor) - exact.double()).abs()
    assert (distance <= STEP * exact.double().abs().clamp(min=smallest)).all()


@pytest.mark.parametrize("dim", [16, 48, 512, 768, 1024, 4096])
def test_normed_scale_leaves_room_for_the_largest_normed_state(dim):
    assert LARGEST / 2 < dim**0.5 / normed_scale(dim) <= LARGEST


def test_add_norm_writes_normed_state_in_float8():
    x = Draw()(37, 48, std=3.0)
    x[0] = 0
    x[0, 5] = 2.0  # as uneven as a row can be
    normed = Normed(
        torch.empty(37, 48, dtype=BFLOAT16, device=DEVICE), torch.empty(37, device=DEVICE),
        torch.empty(37, 48, dtype=torch.int8, device=DEVICE), torch.empty(37, 48, dtype=E4M3, device=DEVICE),
    )  # fmt: skip
    add_norm(x, normed=normed)
    exact = x / x.square().mean(dim=1, keepdim=True).sqrt()
    scale = torch.tensor(normed_scale(48), device=DEVICE)
    assert normed.eighth is not None
    assert_rounded(Scaled(normed.eighth, scale), exact, 2**-6 * float(scale))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_rows_in_float8_use_the_whole_range(size):
    x = Draw()(21, 48, dtype=BFLOAT16, std=size)
    x[3] = 0
    found = rows_in_float8(x)
    assert found.scale.shape == (21, 1)
    assert not found.value[3].float().any()
    rest = [row for row in range(21) if row != 3]
    assert torch.equal(found.value[rest].float().abs().amax(dim=1), torch.full((20,), LARGEST, device=DEVICE))
    assert_rounded(found, x, 2**-6 * float(found.scale.max()))


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("loops", [None, 1, 3])
def test_matrices_in_float8_match_their_factors(loops, by_column):
    draw = Draw()
    matrix = draw(24, 40, std=0.2)
    table = None if loops is None else draw(loops, 40 if by_column else 24, mean=0.5, std=0.3)
    found = matrices_in_float8(matrix, table, by_column=by_column)
    for t in range(loops or 1):
        exact = matrix
        if table is not None:
            exact = matrix * (table[t] if by_column else table[t][:, None])
        assert_rounded(found.of_loop(t), exact, 2**-6 * float(found.of_loop(t).scale))
        assert torch.equal(found.transposed().of_loop(t).value.float(), found.of_loop(t).value.float().T)
        assert found.of_loop(t).scale.data_ptr() % 16 == 0  # for cuBLASLt


def test_activation_in_float8_clamps_large_numbers():
    z = torch.tensor([[-3.0, -0.5, 0.0, 0.3, 2.0, 50.0, 60.0, 1e4]], device=DEVICE).to(BFLOAT16).repeat(16, 2)
    found = activation_in_float8(z, "relu")
    exact = z.float().clamp(min=0, max=56)
    assert_rounded(found, exact, 2**-9)


def test_activation_backward_returns_slope_in_float8():
    draw = Draw()
    z, grad = draw(70, 48, dtype=BFLOAT16), draw(70, 48, dtype=BFLOAT16)
    before = rows_in_float8(grad)
    active, sums = torch.empty_like(z), torch.empty(num_sums(70), 48, device=DEVICE)
    found = activation_backward(z, grad, active, sums, "silu", before.scale)
    assert found is not None
    assert_rounded(found, grad, 2**-6 * float(found.scale.max()))


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_float8_product_matches_its_factors(by_row, biased):
    draw = Draw()
    left = rows_in_float8(draw(64, 48, dtype=BFLOAT16))
    if not by_row:
        left = Scaled(left.value, left.scale[0])
    right = matrices_in_float8(draw(32, 48, std=0.2), None, by_column=True).of_loop(0)
    bias = draw(32, dtype=BFLOAT16) if biased else None
    exact = widened(left) @ widened(right).T + (0 if bias is None else bias.double())
    assert_near(float8_product(left, right, bias), exact, 1e-2)
    out = torch.full((64, 32), torch.nan, dtype=BFLOAT16, device=DEVICE)
    float8_product(left, right, bias, out)
    assert_near(out, exact, 1e-2)


CASE = Case(batch=2, seq_len=24, dim=64, num_heads=2, ff_dim=128, num_loops=3, read=(2,))


MANY_LOOPS = Case(
    batch=16, seq_len=1024, dim=768, num_heads=12, ff_dim=3072, num_loops=24, read=(23,), causal=True, injection=False
)
"""the loops of the language model"""


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        replace(CASE, attention=(), feed_forward=(), injection=False, causal=True),
        replace(CASE, num_layers=2, remat=1),
    ],
    ids=["modulated", "looped", "layers, computed again"],
)
def test_loops_in_float8_are_near_the_definition(case):
    """A matmul of random 8-bit factors errs by 3.7 %, and several in a row by a little more."""
    inputs = Inputs(case)
    exact, plain, found = (
        by_definition(inputs, torch.float64),
        fused(inputs, BFLOAT16),
        fused(inputs, BFLOAT16, float8=True),
    )
    for name, wanted in exact.items():
        assert error(found[name], wanted) < 0.12, name
    assert error(found["state 2"], exact["state 2"]) > 2 * error(plain["state 2"], exact["state 2"])  # 8 bits were used


@pytest.mark.gpu
def test_states_in_float8_have_the_same_bits_again():
    """A race would show: once, one step of a training in float8 had a loss far from the steps around it."""
    inputs = Inputs(MANY_LOOPS if DEVICE == "cuda" else replace(CASE, causal=True))
    (last,) = inputs.case.read
    wanted = fused(inputs, BFLOAT16, float8=True)[f"state {last}"]
    for _ in range(20 if DEVICE == "cuda" else 1):
        assert torch.equal(fused(inputs, BFLOAT16, float8=True)[f"state {last}"], wanted)
