"""Compare the measurements inside a network with independent values."""

import numpy as np
import pytest
import torch

import looped
from looped.analysis import attention_maps, inspect_model, modulation
from looped.config import ModelConfig
from looped.kernels.reference import add_feed_forward, normalise
from looped.models import build_model
from looped.tasks import EditDistance
from looped.utils.errors import InputError
from tests.refusal import refused

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


@pytest.mark.parametrize("num_loops", [0, -1, 1.5])
def test_modulation_with_invalid_loops_raises(num_loops):
    with refused("num_loops", num_loops):
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


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"block": "looped", "num_layers": 2, "positions": "rotary", "attention": "causal"},
        {"block": "looped", "attention_bias": "alibi", "norm": "query-key"},
        {"block": "looped", "attention_weights": "hardmax", "attention": "causal"},
    ],
    ids=str,
)
def test_attention_maps_mix_the_values_as_the_model_does(knobs):
    """The state after the attention of every head, made from the map and the values, is the model's own."""
    model = model_of(**(knobs or {"modulation_init": "random"}))
    maps = attention_maps(model, INPUTS, num_loops=4)
    stack, config = model.stack, model.config
    assert maps.shape == (4, config.num_layers, 2, 3, INPUTS.shape[1], INPUTS.shape[1])
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones(maps.shape[:-1]))
    if config.is_causal(False):
        assert not maps.triu(1).any()

    prepared, seen = stack.prepare(4, INPUTS.shape[1], torch.device("cpu")), []

    def look(loop, layer, before, after):
        weights, (attention, feed_forward) = prepared.weights[layer], prepared.modulation[loop][layer]
        norm = "none" if config.norm == "query-key" else config.norm
        hidden = normalise(before, attention, norm=norm) if norm == "rms" else before
        values = (hidden @ weights.w_qkv[32:].T).unflatten(-1, (2, 8)).transpose(1, 2)
        mixed = (maps[loop, layer].transpose(0, 1) @ values).transpose(1, 2).flatten(2) @ weights.w_out.T
        state = before + (1 if attention.gate is None else attention.gate) * mixed
        rest = (weights.w_in, weights.b_in, weights.w_back, weights.b_back)
        seen.append((add_feed_forward(state, feed_forward, *rest, activation="gelu", norm=config.norm), after))

    stack.register_layer_hook(look)
    with torch.no_grad():
        list(model.iterate(torch.from_numpy(INPUTS), 4))
    assert len(seen) == 4 * config.num_layers
    for expected, found in seen:
        torch.testing.assert_close(expected, found, rtol=1e-4, atol=1e-5)


def test_attention_maps_of_an_own_layer_are_refused(plugins):
    class Mixer(torch.nn.Linear):
        def __init__(self, config):
            super().__init__(config.dim, config.dim)

    looped.register(Mixer)
    with pytest.raises(InputError):
        attention_maps(model_of(block="looped", layer="Mixer"), INPUTS)
