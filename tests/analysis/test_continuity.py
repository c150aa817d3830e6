"""Continuity of networks whose Jacobian is known by construction or from automatic differentiation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.analysis import Network, measure_continuity, precise_twin
from looped.analysis.continuity import _modulus_rows
from looped.analysis.network import exact_products
from looped.analysis.network_moduli import Cases, LargestChanges, _Probe, _search, unit
from looped.models import build_model
from tests.analysis.cases import QUICK, mixing_model
from tests.models.cases import BLOCKS, CAUSAL, GATED, SPECS, TOKENS, examples, label, scattered, small


def known_constants(mix: float, num_loops: int, seq_len: int) -> dict[str, float]:
    """Return the constants of J = I + (g / N) 11^T with g = (1 + mix)^r - 1. A loop multiplies the mean by 1 + mix."""
    grown = (1 + mix) ** num_loops - 1
    return {
        "sequence": max(1 + grown, 1.0 if seq_len > 1 else 0.0),
        "context": abs(grown) * math.sqrt(seq_len - 1) / seq_len,
        "token": 1 + grown / seq_len,
    }


def jacobian(model, tokens: torch.Tensor) -> np.ndarray:
    """Return the Jacobian (seq, dim, seq, dim) of one example by reverse mode, without the tested code."""
    start = model.embed(tokens[None]).detach()
    full = torch.autograd.functional.jacobian(lambda x: list(model.stack.iterate(x))[-1], start)
    assert isinstance(full, torch.Tensor)
    return full[0, :, :, 0].numpy()


def largest_singular_values(matrix: np.ndarray) -> dict[str, float]:
    """Return the local constants of the three definitions, each the largest over all places n."""
    seq_len, dim = matrix.shape[:2]
    sizes = {"sequence": np.linalg.norm(matrix.reshape(seq_len * dim, -1), ord=2), "context": 0.0, "token": 0.0}
    for n in range(seq_len):
        others = [q for q in range(seq_len) if q != n]
        sizes["context"] = max(sizes["context"], np.linalg.norm(matrix[n][:, others].reshape(dim, -1), ord=2))
        sizes["token"] = max(sizes["token"], np.linalg.norm(matrix[n][:, n], ord=2))
    return sizes


@pytest.mark.parametrize("conditioning", GATED)
@pytest.mark.parametrize("kind", SPECS)
def test_stack_with_closed_gates_has_coefficient_one(conditioning, kind):
    knobs = {"block": "modulated", "conditioning": conditioning, "num_loops": 3, "precision": "float32"}
    result = measure_continuity(build_model(small(**knobs), SPECS[kind]), examples(SPECS[kind], 3), **QUICK)
    assert [row["loop"] for row in result["per_loop"]] == [1, 2, 3]
    for row in result["per_loop"]:
        # The change of the output equals the change of the input bit by bit.
        assert (row["mean"], row["median"], row["low"], row["high"]) == (1, 1, 1, 1)
        assert row["size"] == pytest.approx(result["token_size"])
        assert row["relative"] == pytest.approx(1)
    for name, constant in {"sequence": 1, "context": 0, "token": 1}.items():
        modulus = result["moduli"][name]
        assert modulus["local"]["largest"] == pytest.approx(constant, rel=1e-6)
        assert [row["ratio"] for row in modulus["rows"]] == pytest.approx([constant] * 2, rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_new_model_with_injection_has_coefficient_t(precision):
    model = build_model(small(block="modulated", num_loops=5, injection="add", precision=precision), CAUSAL)
    result = measure_continuity(model, examples(CAUSAL), **QUICK)
    assert result["precision"] == ("float64" if precision == "float64" else "float32")
    for loop, row in enumerate(result["per_loop"], start=1):
        assert row["mean"] == pytest.approx(loop, rel=1e-3 if precision != "float64" else 1e-10)
        assert row["size"] == pytest.approx(loop * result["token_size"])
    assert result["coefficient"] == result["per_loop"][-1]
    assert result["moduli"]["token"]["local"]["largest"] == pytest.approx(5, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    mix=st.floats(-0.9, -0.2) | st.floats(0.2, 3),  # far enough from 0 for the power iteration to tell 1 + mix from 1
    num_loops=st.integers(1, 4),
    seq_len=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_moduli_of_a_linear_network_are_those_of_its_matrix(mix, num_loops, seq_len, seed):
    model, inputs = mixing_model(mix, num_loops, seq_len)
    options = {"iterations": 40, "directions": 2, "positions": 2, "deltas": (1e-3, 5.0)}
    result = measure_continuity(model, inputs, seed=seed, **options)
    for name, constant in known_constants(mix, num_loops, seq_len).items():
        found = result["moduli"][name]
        assert found["local"]["largest"] == pytest.approx(constant, rel=1e-6, abs=1e-9)
        # A linear network has the same ratio at every delta, and no direction exceeds the matrix norm.
        assert [row["ratio"] for row in found["rows"]] == pytest.approx([constant] * 2, rel=1e-6, abs=1e-9)
        assert all(row["sampled"] <= row["modulus"] <= row["delta"] * constant * (1 + 1e-9) for row in found["rows"])


def test_coefficient_of_a_linear_network_is_the_mean_over_directions():
    mix, seq_len, dim = 1.5, 6, 64
    model, inputs = mixing_model(mix, 1, seq_len, dim=dim)
    row = measure_continuity(model, inputs, directions=200, moduli=())["coefficient"]
    # This is the mean of |D_n + mix * mean(D)|^2 for independent unit rows. Its root is nearly linear at this width.
    expected = math.sqrt(1 + 2 * mix / seq_len + mix**2 / seq_len)
    assert row["mean"] == pytest.approx(expected, rel=0.01)
    assert row["low"] <= row["mean"] <= row["high"]


@pytest.mark.parametrize(
    ("knobs", "spec"),
    [*((knobs, CAUSAL) for knobs in BLOCKS), *((knobs, TOKENS) for knobs in BLOCKS[:3])],
    ids=lambda each: label(each) if isinstance(each, dict) else "causal" if each.causal else "full",
)
def test_local_constants_are_singular_values(knobs, spec):
    model = scattered(small(**knobs), spec)
    with torch.no_grad():  # small embeddings, so that the norms bend the network
        model.embedding.mul_(0.02)
    inputs = examples(spec, batch=1)
    result = measure_continuity(model, inputs, iterations=100, positions=6, directions=1, deltas=())
    for name, expected in largest_singular_values(jacobian(model, inputs[0])).items():
        assert 0.995 * expected < result["moduli"][name]["local"]["largest"] < expected * (1 + 1e-9), name


@pytest.mark.parametrize("knobs", BLOCKS, ids=label)
def test_small_differences_converge_to_the_derivative(knobs):
    model = scattered(small(**knobs), CAUSAL)
    start = model.embed(examples(CAUSAL)).detach()
    direction = unit(torch.randn(start.shape, dtype=torch.float64, generator=torch.manual_seed(1)))
    everything = torch.ones_like(start[..., :1], dtype=torch.bool)
    cases = Cases(start, everything, everything, direction[:, None])
    network = Network(precise_twin(model, "float64"), model.config.num_loops)
    with torch.no_grad(), exact_products():
        derivative = _Probe(network, cases, 0.0).change(direction)
        errors = [float((_Probe(network, cases, delta).change(direction) - derivative).norm()) for delta in (1.0, 1e-3)]
    assert errors[1] < 1e-4 * float(derivative.norm())
    assert errors[1] < 0.01 * errors[0]  # the error is of first order


def test_coefficient_converges_to_the_mean_length_of_the_jacobian():
    model = scattered(small(num_loops=2), CAUSAL)
    inputs = examples(CAUSAL, batch=1)
    got = measure_continuity(model, inputs, epsilon=1e-6, directions=2000, moduli=())["coefficient"]["mean"]
    matrix = jacobian(model, inputs[0])
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((4000, *matrix.shape[2:]))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    changes = np.einsum("niqj,kqj->kni", matrix, rows)
    assert got == pytest.approx(np.linalg.norm(changes, axis=-1).mean(), rel=0.01)


@pytest.mark.parametrize("knobs", BLOCKS, ids=label)
def test_moduli_obey_the_inequalities_of_their_definitions(knobs):
    result = measure_continuity(scattered(small(**knobs), CAUSAL), examples(CAUSAL, 3), **QUICK)
    moduli = result["moduli"]
    for name in ("context", "token"):  # a narrower supremum, over one row of the output
        assert moduli[name]["local"]["largest"] <= moduli["sequence"]["local"]["largest"] * (1 + 1e-9)
        for narrow, wide in zip(moduli[name]["rows"], moduli["sequence"]["rows"], strict=True):
            assert narrow["modulus"] <= wide["modulus"] * (1 + 1e-9)
    for modulus in moduli.values():
        values = [row["modulus"] for row in modulus["rows"]]
        assert values == sorted(values)
        assert all(row["sampled"] <= row["modulus"] for row in modulus["rows"])
        assert all(row["per_case"]["mean"] <= row["modulus"] * (1 + 1e-9) for row in modulus["rows"])


def test_moduli_of_a_norm_are_those_of_a_cone():
    """Here f(x) = sqrt(dim) x / |x|, with closed gates and the last norm. A ball lies in a cone of sine delta / |x|."""
    model = build_model(small(block="modulated", num_loops=2, positions="none"), TOKENS)
    inputs = examples(TOKENS, batch=1)
    shortest = float(model.embed(inputs).detach().norm(dim=-1).min())
    options = {"output": "normalised", "positions": 6, "deltas": (0.01, 0.3, 0.6)}
    found = measure_continuity(model, inputs, moduli=("token",), **options)["moduli"]["token"]
    assert found["local"]["largest"] == pytest.approx(math.sqrt(8) / shortest, rel=1e-6)
    for row in found["rows"]:
        assert row["delta"] < shortest
        largest = 2 * math.sqrt(8) * math.sin(math.asin(row["delta"] / shortest) / 2)
        assert 0.99 * largest < row["modulus"] < largest * (1 + 1e-9)
        assert row["sampled"] < largest


def test_search_tries_a_direction_and_its_opposite():
    """At 0, x + x^2 changes by delta + delta^2 on one side and by delta - delta^2 on the other."""
    here, all_of_it = torch.zeros(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool)
    cases = Cases(here, all_of_it, all_of_it, noise=-torch.ones(1, 1, 1, 1))
    found = _search(lambda x: x + x**2, cases, deltas=(0.5,), iterations=2, hints=())  # pyright: ignore[reportArgumentType]
    assert found.sampled.flatten().tolist() == [1, 0.5]
    assert found.ratio.flatten().tolist() == [1, 1.5]
    assert found.witness.flatten().tolist() == [-1, 1]


def test_modulus_never_decreases_with_delta():
    ratio = torch.tensor([[5.0, 4.0], [3.0, 2.0], [0.1, 1.0]])  # at delta 1 and 10 changes by 3, 2 and 1, 10
    rows = _modulus_rows([LargestChanges(ratio, ratio, torch.zeros(3, 2, 1, 1))], 2, (0.1, 1.0), (1.0, 10.0))["rows"]
    assert [row["per_case"]["mean"] for row in rows] == [2.5, 6.5]
    assert [row["modulus"] for row in rows] == [3, 10]
    assert [row["ratio"] for row in rows] == [3, 1]


def test_ascent_finds_more_than_sampling():
    result = measure_continuity(scattered(small(num_loops=3), CAUSAL), examples(CAUSAL, 3))
    for name in ("sequence", "context", "token"):
        assert all(row["modulus"] > 1.02 * row["sampled"] for row in result["moduli"][name]["rows"]), name


def test_moduli_of_an_equivariant_network_do_not_depend_on_the_place():
    """Without positions and mask the network is equivariant, so a supremum does not depend on the place."""
    model = scattered(small(num_loops=2, positions="none", attention="full"), TOKENS)
    inputs = examples(TOKENS, batch=1)
    options = {"iterations": 100, "positions": 6, "deltas": (), "directions": 1}
    one, other = (measure_continuity(model, each, **options)["moduli"] for each in (inputs, inputs.flip(1)))
    for name in one:
        assert one[name]["local"]["largest"] == pytest.approx(other[name]["local"]["largest"], rel=5e-3)


def test_context_of_a_causal_network_is_the_past():
    model = scattered(small(num_loops=2), CAUSAL)
    first = measure_continuity(model, examples(CAUSAL)[:, :1], **QUICK)["moduli"]["context"]
    assert first["local"]["largest"] == 0
    assert [row["modulus"] for row in first["rows"]] == [0, 0]
