"""Continuity of networks whose Jacobian is known: by construction, or written out by automatic differentiation."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.analysis import Network, measure_continuity, precise_twin
from looped.analysis.continuity import _modulus_rows
from looped.analysis.moduli import Cases, Found, _Probe, _search, unit
from looped.analysis.network import exact_products
from looped.errors import InputError
from looped.models import build_model
from looped.tasks import Spec
from tests.models.cases import BLOCKS, CAUSAL, GATED, SPECS, TOKENS, VECTORS, examples, label, scattered, small

QUICK = {"positions": 2, "iterations": 2, "directions": 2, "deltas": (1e-3, 1e-1)}


def mixing_model(mix: float, num_loops: int, seq_len: int, spec=TOKENS, dim: int = 8):
    """One loop is x_n + mix * (mean of all x): no norm, no feed-forward, equal attention; linear, and all is known."""
    config = small(block="looped", num_loops=num_loops, norm="none", positions="none", activation="relu", dim=dim)
    model = build_model(config, spec)
    (layer,) = model.stack.layers
    with torch.no_grad():
        layer.w_qkv.zero_()
        layer.w_qkv[-dim:] = torch.eye(dim)
        layer.w_out.copy_(mix * torch.eye(dim, dtype=torch.float64))
        layer.w_back.zero_()
    return model, examples(spec, batch=3, seq_len=seq_len)


def known_constants(mix: float, num_loops: int, seq_len: int) -> dict[str, float]:
    """The mean grows by 1 + mix in every loop, differences from it stay: J = I + (g / N) 11^T, g = (1 + mix)^r - 1."""
    grown = (1 + mix) ** num_loops - 1
    return {
        "sequence": max(1 + grown, 1.0 if seq_len > 1 else 0.0),
        "context": abs(grown) * math.sqrt(seq_len - 1) / seq_len,
        "token": 1 + grown / seq_len,
    }


def jacobian(model, tokens: torch.Tensor) -> np.ndarray:
    """(seq, dim, seq, dim) of one example, by reverse mode alone and without anything of what is tested."""
    start = model.embed(tokens[None]).detach()
    full = torch.autograd.functional.jacobian(lambda x: list(model.stack.iterate(x))[-1], start)
    assert isinstance(full, torch.Tensor)
    return full[0, :, :, 0].numpy()


def largest_singular_values(matrix: np.ndarray) -> dict[str, float]:
    """The local constants of the three definitions, the largest over all places n."""
    seq_len, dim = matrix.shape[:2]
    sizes = {"sequence": np.linalg.norm(matrix.reshape(seq_len * dim, -1), ord=2), "context": 0.0, "token": 0.0}
    for n in range(seq_len):
        others = [q for q in range(seq_len) if q != n]
        sizes["context"] = max(sizes["context"], np.linalg.norm(matrix[n][:, others].reshape(dim, -1), ord=2))
        sizes["token"] = max(sizes["token"], np.linalg.norm(matrix[n][:, n], ord=2))
    return sizes


@pytest.mark.parametrize("conditioning", GATED)
@pytest.mark.parametrize("kind", SPECS)
def test_a_stack_with_closed_gates_is_the_identity(conditioning, kind):
    knobs = {"block": "modulated", "conditioning": conditioning, "num_loops": 3, "precision": "float32"}
    result = measure_continuity(build_model(small(**knobs), SPECS[kind]), examples(SPECS[kind], 3), **QUICK)
    assert [row["loop"] for row in result["per_loop"]] == [1, 2, 3]
    for row in result["per_loop"]:
        # Not nearly: the change of the output is the change that was made, bit by bit.
        assert (row["mean"], row["median"], row["low"], row["high"]) == (1, 1, 1, 1)
        assert row["size"] == pytest.approx(result["token_size"])
        assert row["relative"] == pytest.approx(1)
    for name, constant in {"sequence": 1, "context": 0, "token": 1}.items():
        modulus = result["moduli"][name]
        assert modulus["local"]["largest"] == pytest.approx(constant, rel=1e-6)
        assert [row["ratio"] for row in modulus["rows"]] == pytest.approx([constant] * 2, rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_with_injection_a_fresh_model_adds_its_input_up(precision):
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
def test_a_linear_network_has_the_moduli_of_its_matrix(mix, num_loops, seq_len, seed):
    model, inputs = mixing_model(mix, num_loops, seq_len)
    options = {"iterations": 40, "directions": 2, "positions": 2, "deltas": (1e-3, 5.0)}
    result = measure_continuity(model, inputs, seed=seed, **options)
    for name, constant in known_constants(mix, num_loops, seq_len).items():
        found = result["moduli"][name]
        assert found["local"]["largest"] == pytest.approx(constant, rel=1e-6, abs=1e-9)
        # A linear network has one ratio at every delta, and no direction beats the matrix's norm.
        assert [row["ratio"] for row in found["rows"]] == pytest.approx([constant] * 2, rel=1e-6, abs=1e-9)
        assert all(row["sampled"] <= row["modulus"] <= row["delta"] * constant * (1 + 1e-9) for row in found["rows"])


def test_the_coefficient_of_a_linear_network_is_what_random_directions_give():
    mix, seq_len, dim = 1.5, 6, 64
    model, inputs = mixing_model(mix, 1, seq_len, dim=dim)
    row = measure_continuity(model, inputs, directions=200, moduli=())["coefficient"]
    # |D_n + mix * mean(D)|^2 of independent unit rows has this mean; the root of it is hardly curved at this width.
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
def test_small_differences_tend_to_the_derivative(knobs):
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


def test_the_coefficient_tends_to_the_jacobians_mean_length():
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
def test_moduli_obey_what_their_definitions_imply(knobs):
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


def test_the_moduli_of_a_norm_are_those_of_a_cone():
    """Closed gates and the last norm: x -> sqrt(dim) x / |x|. A ball around x lies in a cone of sine delta / |x|."""
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


def test_a_direction_and_its_opposite_are_both_tried():
    """At 0, x + x^2 moves by delta + delta^2 to the one side, by delta - delta^2 to the other, and at first alike."""
    here, all_of_it = torch.zeros(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool)
    cases = Cases(here, all_of_it, all_of_it, noise=-torch.ones(1, 1, 1, 1))
    found = _search(lambda x: x + x**2, cases, deltas=(0.5,), iterations=2, hints=())  # pyright: ignore[reportArgumentType]
    assert found.sampled.flatten().tolist() == [1, 0.5]
    assert found.ratio.flatten().tolist() == [1, 1.5]
    assert found.witness.flatten().tolist() == [-1, 1]


def test_a_nearer_pair_counts_for_every_larger_delta():
    ratio = torch.tensor([[5.0, 4.0], [3.0, 2.0], [0.1, 1.0]])  # at delta 1 and 10 changes by 3, 2 and 1, 10
    rows = _modulus_rows([Found(ratio, ratio, torch.zeros(3, 2, 1, 1))], 2, (0.1, 1.0), (1.0, 10.0))["rows"]
    assert [row["per_case"]["mean"] for row in rows] == [2.5, 6.5]
    assert [row["modulus"] for row in rows] == [3, 10]
    assert [row["ratio"] for row in rows] == [3, 1]


def test_the_ascent_finds_more_than_sampling():
    result = measure_continuity(scattered(small(num_loops=3), CAUSAL), examples(CAUSAL, 3))
    for name in ("sequence", "context", "token"):
        assert all(row["modulus"] > 1.02 * row["sampled"] for row in result["moduli"][name]["rows"]), name


def test_tokens_are_treated_alike():
    """Without positions and mask the network is equivariant: where a token stands cannot matter to a supremum."""
    model = scattered(small(num_loops=2, positions="none", attention="full"), TOKENS)
    inputs = examples(TOKENS, batch=1)
    options = {"iterations": 100, "positions": 6, "deltas": (), "directions": 1}
    one, other = (measure_continuity(model, each, **options)["moduli"] for each in (inputs, inputs.flip(1)))
    for name in one:
        assert one[name]["local"]["largest"] == pytest.approx(other[name]["local"]["largest"], rel=5e-3)


def test_causal_context_is_what_comes_before():
    model = scattered(small(num_loops=2), CAUSAL)
    first = measure_continuity(model, examples(CAUSAL)[:, :1], **QUICK)["moduli"]["context"]
    assert first["local"]["largest"] == 0
    assert [row["modulus"] for row in first["rows"]] == [0, 0]


def numbers(result) -> np.ndarray:
    """Every number of a result, in the order of its keys."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list):
        return np.concatenate([numbers(each) for each in result] or [np.zeros(0)])
    return np.array([result] if isinstance(result, int | float) else [], dtype=float)


@pytest.mark.parametrize("kind", ["causal", "vectors"])
def test_order_and_batches_of_the_examples_do_not_matter(kind):
    model = scattered(small(num_loops=2), SPECS[kind])
    inputs = examples(SPECS[kind], batch=5)
    expected = numbers(measure_continuity(model, inputs, **QUICK))
    assert len(expected) > 50
    for other in (inputs.flip(0), inputs[torch.tensor([3, 0, 4, 1, 2])]):
        np.testing.assert_allclose(numbers(measure_continuity(model, other, **QUICK)), expected, rtol=1e-9)
    for batch_size in (1, 2, 3):
        got = measure_continuity(model, inputs, batch_size=batch_size, **QUICK)
        np.testing.assert_allclose(numbers(got), expected, rtol=1e-9)


def test_a_seed_gives_one_result_and_another_seed_another():
    model, inputs = scattered(small(num_loops=2), CAUSAL), examples(CAUSAL)
    one, again, other = (measure_continuity(model, inputs, seed=seed, **QUICK) for seed in (3, 3, 4))
    assert one == again
    assert one["coefficient"]["mean"] != other["coefficient"]["mean"]
    assert one["coefficient"]["mean"] == pytest.approx(other["coefficient"]["mean"], rel=0.1)
    assert json.loads(json.dumps(one, allow_nan=False)) == one


def test_arrays_tensors_and_small_integers_are_the_same_inputs():
    model, inputs = scattered(small(), CAUSAL), examples(CAUSAL)
    expected = measure_continuity(model, inputs, **QUICK)
    for same in (inputs.numpy(), inputs.int(), inputs.numpy().astype(np.uint16), inputs.T.contiguous().T):
        assert measure_continuity(model, same, **QUICK) == expected


def test_the_model_is_left_as_it_was():
    model = scattered(small(num_loops=2, precision="float32"), CAUSAL).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measured = measure_continuity(model, examples(CAUSAL), **QUICK)
    assert torch.is_grad_enabled()
    assert model.training
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert parameter.requires_grad
        assert torch.equal(parameter, before[name])
    with torch.no_grad():  # the caller's mode changes nothing
        assert measure_continuity(model, examples(CAUSAL), **QUICK) == measured


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_the_callers_precision_of_products_comes_back(setting):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        with exact_products():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("knobs", BLOCKS, ids=label)
def test_the_twin_computes_what_the_model_does(knobs):
    inputs = examples(CAUSAL)
    for precision, twin_precision in [("float32", "float32"), ("float64", "float64")]:
        model = scattered(small(**knobs, precision=precision), CAUSAL)
        assert torch.equal(precise_twin(model, twin_precision)(inputs), model(inputs))
    coarse = scattered(small(**knobs, precision="bfloat16"), CAUSAL)
    fine = scattered(small(**knobs, precision="float32"), CAUSAL)
    assert torch.equal(precise_twin(coarse, "float32")(inputs), fine(inputs))
    assert not torch.equal(coarse(inputs), fine(inputs))


def test_products_in_bfloat16_would_drown_the_change():
    knobs = {"num_loops": 4, "dim": 64, "num_heads": 4, "ff_dim": 128}
    model, inputs = scattered(small(**knobs, precision="bfloat16"), CAUSAL), examples(CAUSAL)
    exact = measure_continuity(model, inputs, precision="float64", moduli=())["coefficient"]["mean"]
    measured = measure_continuity(model, inputs, moduli=())["coefficient"]["mean"]
    assert measured == pytest.approx(exact, rel=1e-3)
    embeddings = model.embed(inputs).detach()
    change = torch.randn(embeddings.shape, generator=torch.manual_seed(0))
    change *= 1e-3 * embeddings.norm() / change.norm()
    before, after = (list(model.stack.iterate(each))[-1].detach() for each in (embeddings, embeddings + change))
    drowned = float(((after - before).norm(dim=-1) / change.norm(dim=-1)).mean())
    assert drowned > 1.1 * exact


def test_the_normalised_output_is_what_the_read_out_sees():
    model = scattered(small(num_loops=2), Spec("tokens", input_size=7, output_size=8, seq_len=6))
    with torch.no_grad():
        assert model.head is not None
        model.head.copy_(torch.eye(8))  # so that the read-out is the norm alone
    states = list(model.iterate(examples(CAUSAL)))
    result = measure_continuity(model, examples(CAUSAL), output="normalised", **QUICK)
    for row, state in zip(result["per_loop"], states, strict=True):
        seen = model.read_out(state).detach()
        assert row["size"] == pytest.approx(float(seen.square().sum(dim=-1).mean().sqrt()))
        assert row["relative"] == pytest.approx(row["mean"] * result["token_size"] / row["size"])


def test_one_can_ask_for_less_and_for_more_loops():
    model = scattered(small(num_loops=2), CAUSAL)
    result = measure_continuity(model, examples(CAUSAL), num_loops=5, **QUICK | {"moduli": ("token",)})
    assert list(result["moduli"]) == ["token"]
    assert len(result["per_loop"]) == 5
    shorter = measure_continuity(model, examples(CAUSAL), num_loops=3, **QUICK | {"moduli": ()})
    assert shorter["per_loop"] == result["per_loop"][:3]


MISTAKES = {
    "epsilon 0": ({"epsilon": 0.0}, "epsilon must be at least"),
    "epsilon lost in rounding": ({"epsilon": 1e-6, "precision": "float32"}, "at least 1.2e-05 in float32, got 1e-06"),
    "epsilon no number": ({"epsilon": math.nan}, "got nan"),
    "deltas": ({"deltas": (0.1, 0.01)}, r"deltas must increase, got \(0.1, 0.01\)"),
    "infinite delta": ({"deltas": (math.inf,)}, "deltas must be at least .* got inf"),
    "directions": ({"directions": 0}, "directions must be at least 1, got 0"),
    "half a direction": ({"directions": 1.5}, "directions must be a whole number, got 1.5"),
    "positions": ({"positions": 0}, "positions must be at least 1, got 0"),
    "iterations": ({"iterations": 0}, "iterations must be at least 1, got 0"),
    "batch_size": ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    "loops": ({"num_loops": 0}, "num_loops must be at least 1, got 0"),
    "seed": ({"seed": -1}, "seed must be in 0..4294967295, got -1"),
    "output": ({"output": "scores"}, "unknown output 'scores'"),
    "precision": ({"precision": "bfloat16"}, "unknown precision 'bfloat16'"),
    "modulus": ({"moduli": ("tokens",)}, "did you mean 'token'"),
    "inputs": ({"inputs": [[1, 2]]}, "expected a tensor or an array, got list"),
    "no examples": ({"inputs": torch.zeros(0, 6, dtype=torch.long)}, r"at least one example, got the shape \(0, 6\)"),
    "one example alone": ({"inputs": torch.zeros(6, dtype=torch.long)}, r"got the shape \(6,\)"),
    "no tokens": ({"inputs": torch.zeros(2, 6)}, "whole numbers as token ids, got float64"),
    "truth values": ({"inputs": np.zeros((2, 6), dtype=bool)}, "whole numbers as token ids, got bool"),
    "unknown token": ({"inputs": np.full((2, 6), 7)}, r"token ids in 0\.\.6, got 7"),
    "too long": ({"inputs": np.zeros((2, 7), dtype=int)}, "got a sequence of 7"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_in_one_line(mistake):
    options, message = MISTAKES[mistake]
    with pytest.raises(InputError, match=message) as raised:
        measure_continuity(build_model(small(), CAUSAL), **{"inputs": examples(CAUSAL)} | options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.full((1, 2, 3), math.nan), "finite inputs"),
        (torch.zeros(1, 2, 3), "not all 0"),
        (torch.zeros(1, 2, 4), r"expected inputs \(batch, seq, 3\)"),
    ],
)
def test_vectors_that_cannot_be_measured_are_refused(inputs, message):
    with pytest.raises(InputError, match=message):
        measure_continuity(build_model(small(positions="none"), VECTORS), inputs)


def test_a_network_that_overflows_is_refused():
    model, inputs = mixing_model(1e100, 3, 4)
    with pytest.raises(InputError, match="overflows in loop 2"):
        measure_continuity(model, inputs, **QUICK)


def test_a_standard_model_has_one_loop():
    with pytest.raises(InputError, match="applies its layers once"):
        measure_continuity(build_model(small(block="standard"), CAUSAL), examples(CAUSAL), num_loops=2)


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "continuity.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    exec(example, names)
    assert [row["mean"] for row in names["result"]["per_loop"]] == pytest.approx([1, 2, 3, 4], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["causal", "vectors"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-2), ("float64", 1e-6)])
def test_a_gpu_gives_the_same(kind, precision, tolerance):
    knobs = {"block": "modulated", "num_loops": 3, "num_layers": 2, "precision": "bfloat16"}
    model, inputs = scattered(small(**knobs), SPECS[kind]), examples(SPECS[kind], 4)
    here = measure_continuity(model, inputs, precision=precision)
    there = measure_continuity(model.cuda(), inputs.cuda(), precision=precision)
    np.testing.assert_allclose(numbers(there["per_loop"]), numbers(here["per_loop"]), rtol=tolerance)
    for name in here["moduli"]:
        got, expected = (numbers(each["moduli"][name]["local"]) for each in (there, here))
        np.testing.assert_allclose(got, expected, rtol=tolerance)
