"""Compare the measurements inside a network with independent values."""

import numpy as np
import pytest
import torch

from looped.analysis import inspect_model, modulation
from looped.config import ModelConfig
from looped.models import build_model
from looped.tasks import EditDistance
from looped.utils.errors import InputError

TASK = EditDistance(length=4)
INPUTS = TASK.sample(0, "test", range(3)).inputs


def model_of(**knobs):
    config = {"block": "modulated", "dim": 16, "num_heads": 2, "num_loops": 5, "injection": "add"} | knobs
    return build_model(ModelConfig(**config), TASK.spec)


def test_new_model_adds_its_input_in_every_loop():
    """After t loops, the state is t times the embedding, and its change is t times that of the input."""
    model = model_of()
    size = float(model.embed(torch.from_numpy(INPUTS)).detach().double().square().mean().sqrt())
    found = inspect_model(model, INPUTS)
    assert [row["loop"] for row in found["rows"]] == [1, 2, 3, 4, 5]
    for row in found["rows"]:
        assert row["state"] == pytest.approx(row["loop"] * size, rel=1e-5)
        assert row["change"] == pytest.approx(1 / row["loop"], rel=1e-5)
        assert row["continuity"] == pytest.approx(row["loop"], rel=1e-3)
        spread = {name: values["rms"] for name, values in row["modulation"].items()}
        assert spread == {"alpha1": 1.0, "alpha2": 1.0, "gamma1": 0.0, "gamma2": 0.0}


def test_modulation_equals_the_papers_formula():
    """Compute TE(t) = W3 SiLU(W4 PE(t) + b4) + b3 and W5 SiLU(TE(t)) + b5 in NumPy."""
    model = model_of(modulation_init="random")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.stack.conditioner.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    named = {name: each.detach().double().numpy() for name, each in model.stack.conditioner.named_parameters()}

    def silu(x):
        return x / (1 + np.exp(-x))

    angles = np.arange(7)[:, None] * 10000.0 ** (-np.arange(0, 16, 2) / 16)
    signal = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(7, 16)
    encoding = silu(signal @ named["w4"].T + named["b4"]) @ named["w3"].T + named["b3"]
    wanted = silu(encoding) @ named["w5"][0].T + named["b5"][0]
    tables = modulation(model, 7)
    assert list(tables) == ["alpha1", "alpha2", "gamma1", "gamma2"]
    for name, part in zip(tables, np.split(wanted, 4, axis=1), strict=True):
        np.testing.assert_allclose(tables[name][:, 0], part, rtol=1e-4, atol=1e-5)
    row = inspect_model(model, INPUTS, num_loops=7)["rows"][6]["modulation"]["gamma2"]
    last = np.split(wanted, 4, axis=1)[3][6]
    assert row["rms"] == pytest.approx(np.sqrt((last**2).mean()), rel=1e-4)
    assert (row["low"], row["high"]) == pytest.approx(tuple(np.quantile(last, (0.1, 0.9))), rel=1e-3)


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        ({"block": "looped"}, ["alpha1", "alpha2"]),
        ({"conditioning": "shift"}, ["alpha1", "alpha2", "gamma1", "gamma2", "shift1", "shift2"]),
        ({"conditioning": "eta"}, ["alpha1", "alpha2", "gamma2"]),
        ({"block": "looped", "norm": "none"}, []),
    ],
)
def test_modulation_has_only_the_parts_of_the_model(knobs, names):
    assert list(modulation(model_of(**knobs))) == names
    assert list(inspect_model(model_of(**knobs), INPUTS, num_loops=2)["rows"][0]["modulation"]) == names


@pytest.mark.parametrize(("num_loops", "message"), [(0, "at least 1, got 0"), (-1, "got -1"), (1.5, "got 1.5")])
def test_modulation_with_invalid_loops_raises(num_loops, message):
    with pytest.raises(InputError, match=message):
        modulation(model_of(), num_loops)


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        ({"block": "looped"}, []),
        ({"conditioning": "additive"}, []),
        ({"conditioning": "eta"}, ["gamma2"]),
        ({"conditioning": "gate"}, ["gamma1", "gamma2"]),
        ({"conditioning": "timestep"}, ["alpha1", "alpha2", "gamma1", "gamma2"]),
    ],
)
def test_modulated_lists_the_parts_of_the_conditioner(knobs, names):
    """Draw the conditioner again, and check that exactly these tables change."""
    model = model_of(**knobs)
    before = modulation(model)
    with torch.no_grad():
        for parameter in () if model.stack.conditioner is None else model.stack.conditioner.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    changed = [name for name, table in modulation(model).items() if not torch.equal(table, before.get(name, table[:0]))]
    assert inspect_model(model, INPUTS, num_loops=2)["modulated"] == changed == names


def test_model_does_not_change():
    model = model_of(block="looped")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    inspect_model(model, INPUTS)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())
