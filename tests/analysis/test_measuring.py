"""`measure_continuity`: results do not depend on batches, the model does not change, and errors name the setting."""

import json
import math
import re

import numpy as np
import pytest
import torch

from looped.analysis import measure_continuity, precise_twin
from looped.analysis.network import exact_products
from looped.models import build_model
from looped.tasks import Spec
from looped.utils.errors import InputError
from tests.analysis.cases import QUICK, mixing_model
from tests.models.cases import BLOCKS, CAUSAL, SPECS, VECTORS, examples, label, scattered, small
from tests.paths import ROOT
from tests.refusal import refused


def numbers(result) -> np.ndarray:
    """Return every number of a result in the order of its keys."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list):
        return np.concatenate([numbers(each) for each in result] or [np.zeros(0)])
    return np.array([result] if isinstance(result, int | float) else [], dtype=float)


@pytest.mark.parametrize("kind", ["causal", "vectors"])
def test_result_does_not_depend_on_order_and_batches(kind):
    model = scattered(small(num_loops=2), SPECS[kind])
    inputs = examples(SPECS[kind], batch=5)
    expected = numbers(measure_continuity(model, inputs, **QUICK))
    assert len(expected) > 50
    for other in (inputs.flip(0), inputs[torch.tensor([3, 0, 4, 1, 2])]):
        np.testing.assert_allclose(numbers(measure_continuity(model, other, **QUICK)), expected, rtol=1e-9)
    for batch_size in (1, 2, 3):
        got = measure_continuity(model, inputs, batch_size=batch_size, **QUICK)
        np.testing.assert_allclose(numbers(got), expected, rtol=1e-9)


def test_result_depends_on_the_seed():
    model, inputs = scattered(small(num_loops=2), CAUSAL), examples(CAUSAL)
    one, again, other = (measure_continuity(model, inputs, seed=seed, **QUICK) for seed in (3, 3, 4))
    assert one == again
    assert one["coefficient"]["mean"] != other["coefficient"]["mean"]
    assert one["coefficient"]["mean"] == pytest.approx(other["coefficient"]["mean"], rel=0.1)
    assert json.loads(json.dumps(one, allow_nan=False)) == one


def test_arrays_tensors_and_small_integers_give_the_same_result():
    model, inputs = scattered(small(), CAUSAL), examples(CAUSAL)
    expected = measure_continuity(model, inputs, **QUICK)
    for same in (inputs.numpy(), inputs.int(), inputs.numpy().astype(np.uint16), inputs.T.contiguous().T):
        assert measure_continuity(model, same, **QUICK) == expected


def test_model_does_not_change():
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
def test_matmul_precision_is_restored(setting):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        with exact_products():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("knobs", BLOCKS, ids=label)
def test_precise_twin_equals_the_model(knobs):
    inputs = examples(CAUSAL)
    for precision, twin_precision in [("float32", "float32"), ("float64", "float64")]:
        model = scattered(small(**knobs, precision=precision), CAUSAL)
        assert torch.equal(precise_twin(model, twin_precision)(inputs), model(inputs))
    coarse = scattered(small(**knobs, precision="bfloat16"), CAUSAL)
    fine = scattered(small(**knobs, precision="float32"), CAUSAL)
    assert torch.equal(precise_twin(coarse, "float32")(inputs), fine(inputs))
    assert not torch.equal(coarse(inputs), fine(inputs))


def test_bfloat16_matmuls_would_hide_the_change():
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


def test_normalised_output_is_the_input_of_the_head():
    model = scattered(small(num_loops=2), Spec("tokens", input_size=7, output_size=8, seq_len=6))
    with torch.no_grad():
        assert model.head is not None
        model.head.copy_(torch.eye(8))  # so that the read-out is only the norm
    states = list(model.iterate(examples(CAUSAL)))
    result = measure_continuity(model, examples(CAUSAL), output="normalised", **QUICK)
    for row, state in zip(result["per_loop"], states, strict=True):
        seen = model.read_out(state).detach()
        assert row["size"] == pytest.approx(float(seen.square().sum(dim=-1).mean().sqrt()))
        assert row["relative"] == pytest.approx(row["mean"] * result["token_size"] / row["size"])


def test_num_loops_may_be_smaller_or_larger_than_trained():
    model = scattered(small(num_loops=2), CAUSAL)
    result = measure_continuity(model, examples(CAUSAL), num_loops=5, **QUICK | {"moduli": ("token",)})
    assert list(result["moduli"]) == ["token"]
    assert len(result["per_loop"]) == 5
    shorter = measure_continuity(model, examples(CAUSAL), num_loops=3, **QUICK | {"moduli": ()})
    assert shorter["per_loop"] == result["per_loop"][:3]


MISTAKES = {
    "epsilon 0": ({"epsilon": 0.0}, ["epsilon"]),
    "epsilon lost in rounding": ({"epsilon": 1e-6, "precision": "float32"}, ["epsilon", "1.2e-05", "float32", "1e-06"]),
    "epsilon no number": ({"epsilon": math.nan}, ["epsilon", "nan"]),
    "deltas": ({"deltas": (0.1, 0.01)}, ["deltas", (0.1, 0.01)]),
    "one delta": ({"deltas": 0.1}, ["deltas", 0.1]),
    "array as delta": ({"deltas": (np.array([0.1, 0.2]),)}, ["deltas", "[0.1 0.2]"]),
    "infinite delta": ({"deltas": (math.inf,)}, ["deltas", math.inf]),
    "directions": ({"directions": 0}, ["directions"]),
    "half a direction": ({"directions": 1.5}, ["directions"]),
    "positions": ({"positions": 0}, ["positions"]),
    "iterations": ({"iterations": 0}, ["iterations"]),
    "batch_size": ({"batch_size": 0}, ["batch_size"]),
    "loops": ({"num_loops": 0}, ["num_loops"]),
    "seed": ({"seed": -1}, ["seed", -1]),
    "output": ({"output": "scores"}, ["output", "scores"]),
    "precision": ({"precision": "bfloat16"}, ["precision", "bfloat16"]),
    "modulus": ({"moduli": ("tokens",)}, ["modulus", "token"]),
    "inputs": ({"inputs": [[1, 2]]}, ["inputs", "list"]),
    "no examples": ({"inputs": torch.zeros(0, 6, dtype=torch.long)}, ["inputs", (0, 6)]),
    "one example alone": ({"inputs": torch.zeros(6, dtype=torch.long)}, ["inputs", (6,)]),
    "no tokens": ({"inputs": torch.zeros(2, 6)}, ["inputs", "float64"]),
    "truth values": ({"inputs": np.zeros((2, 6), dtype=bool)}, ["inputs", "bool"]),
    "unknown token": ({"inputs": np.full((2, 6), 7)}, ["inputs", "0..6", 7]),
    "too long": ({"inputs": np.zeros((2, 7), dtype=int)}, ["inputs", 7]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_arguments_raise_in_one_line(mistake):
    options, named = MISTAKES[mistake]
    with refused(*named):
        measure_continuity(build_model(small(), CAUSAL), **{"inputs": examples(CAUSAL)} | options)


@pytest.mark.parametrize(
    ("inputs", "value"),
    [
        (torch.full((1, 2, 3), math.nan), "NaN"),
        (torch.zeros(1, 2, 3), 0),
        (torch.zeros(1, 2, 4), "(batch, seq, 3)"),
    ],
)
def test_invalid_vectors_raise(inputs, value):
    with refused("inputs", value):
        measure_continuity(build_model(small(positions="none"), VECTORS), inputs)


def test_overflow_raises_with_the_loop():
    model, inputs = mixing_model(1e100, 3, 4)
    with refused("model", "loop 2"):
        measure_continuity(model, inputs, **QUICK)


def test_standard_model_with_two_loops_raises():
    with pytest.raises(InputError) as caught:
        measure_continuity(build_model(small(block="standard"), CAUSAL), examples(CAUSAL), num_loops=2)
    assert caught.value.field == "num_loops"


def test_documented_example_runs():
    text = (ROOT / "docs" / "continuity.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    exec(example, names)
    assert [row["mean"] for row in names["result"]["per_loop"]] == pytest.approx([1, 2, 3, 4], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["causal", "vectors"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-2), ("float64", 1e-6)])
def test_gpu_gives_the_same_result(kind, precision, tolerance):
    knobs = {"block": "modulated", "num_loops": 3, "num_layers": 2, "precision": "bfloat16"}
    model, inputs = scattered(small(**knobs), SPECS[kind]), examples(SPECS[kind], 4)
    here = measure_continuity(model, inputs, precision=precision, **QUICK)
    there = measure_continuity(model.cuda(), inputs.cuda(), precision=precision, **QUICK)
    np.testing.assert_allclose(numbers(there["per_loop"]), numbers(here["per_loop"]), rtol=tolerance)
    for name in here["moduli"]:
        got, expected = (numbers(each["moduli"][name]["local"]) for each in (there, here))
        np.testing.assert_allclose(got, expected, rtol=tolerance)
