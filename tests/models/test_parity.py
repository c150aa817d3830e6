"""Compare the forward pass and every gradient with an independent implementation (`twin`) in float64."""

import numpy as np
import pytest
import torch

from . import twin
from .cases import CONDITIONINGS, FREE_TABLES, SPECS, examples, label, scattered, small


def _cases():
    """Yield (config, spec, number of loops) so that every pair of interacting settings occurs."""
    modulated = {"block": "modulated", "num_loops": 3}
    for conditioning in CONDITIONINGS:
        for injection in ("none", "add", "concat"):
            yield {**modulated, "conditioning": conditioning, "injection": injection, "num_layers": 2}, "tokens", 3
        for norm in ("rms", "query-key", "none"):
            yield {**modulated, "conditioning": conditioning, "norm": norm}, "causal", 2
        for extrapolation in ("extend", "clamp", "rescale"):
            if not (conditioning in FREE_TABLES and extrapolation == "extend"):
                yield (
                    {**modulated, "conditioning": conditioning, "extrapolation": extrapolation, "num_layers": 2},
                    "shared",
                    5,
                )
    blocks = (
        {"block": "standard", "num_layers": 3},
        {"block": "looped", "num_layers": 2, "num_loops": 2},
        {"block": "modulated", "num_layers": 2, "num_loops": 2},
    )
    for knobs in blocks:
        loops = knobs.get("num_loops", 1)
        for positions in ("none", "learned", "sinusoidal", "rotary", "coordinates"):
            for attention in ("causal", "full"):
                yield {**knobs, "positions": positions, "attention": attention}, "tokens", loops
        for kind in ("tokens", "causal"):
            yield {**knobs, "attention_weights": "hardmax"}, kind, loops
        for activation in ("gelu", "relu", "silu"):
            for injection in ("none", "add", "concat"):
                yield {**knobs, "activation": activation, "injection": injection}, "causal", loops
        for kind in SPECS:
            for norm in ("rms", "query-key", "none"):
                yield {**knobs, "norm": norm, "num_heads": 1}, kind, loops
    yield {"block": "modulated"}, "tokens", 1  # one loop, all else by default


CASES = [
    pytest.param(small(**knobs), SPECS[kind], loops, id=f"{label(knobs)}-{kind}-{loops}")
    for knobs, kind, loops in _cases()
]


def _in_paper_names(named, config):
    """Return the model's arrays under the twin's names."""
    layers = []
    for layer in range(config.num_layers):
        own = {name.split(".")[-1]: value for name, value in named.items() if name.startswith(f"stack.layers.{layer}.")}
        w_q, w_k, w_v = np.split(own["w_qkv"], 3)
        parameters = {
            "W_Q": w_q, "W_K": w_k, "W_V": w_v, "W_O": own["w_out"],
            "W_1": own["w_in"], "b_1": own["b_in"], "W_2": own["w_back"], "b_2": own["b_back"],
            "alpha_1": own.get("gain_attention"), "alpha_2": own.get("gain_feed_forward"),
        }  # fmt: skip
        layers.append({name: value for name, value in parameters.items() if value is not None})
    others = {
        "embedding": "E", "b_embedding": "b_E", "head": "head", "b_head": "b_head", "gain": "alpha_out",
        "stack.w_inject": "W_inject",
        "stack.signal.amplitude": "amplitude",
        "stack.conditioner.vectors": "vectors", "stack.conditioner.rows": "table",
        **{f"stack.conditioner.{kind}{number}": f"{kind.upper() if kind == 'w' else kind}_{number}"
           for kind in "wb" for number in (3, 4, 5)},
    }  # fmt: skip
    positions = [value for name, value in named.items() if name.startswith("positions.")]
    result = {theirs: named[ours] for ours, theirs in others.items() if ours in named}
    known = {name for name in named if name in others or name.startswith(("positions.", "stack.layers."))}
    assert known == set(named), f"the twin knows nothing of {set(named) - known}"
    return result | {"layers": layers, "positions": positions}


@pytest.mark.parametrize(("config", "spec", "num_loops"), CASES)
def test_forward_and_gradients_equal_the_twin(config, spec, num_loops):
    rng = np.random.default_rng(1)
    model = scattered(config, spec)
    inputs = examples(spec, seq_len=spec.seq_len - 1).numpy()
    named = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}

    def twin_answers(changed):
        return np.stack(twin.answers(_in_paper_names(named | changed, config), config, spec, inputs, num_loops))

    got = model(torch.from_numpy(inputs), num_loops=num_loops, read=range(1, num_loops + 1))
    expected = twin_answers({})
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())

    weights = rng.standard_normal(expected.shape)
    (got * torch.from_numpy(weights)).sum().backward()
    for name, parameter in model.named_parameters():
        direction = rng.standard_normal(tuple(parameter.shape))
        along = twin_answers({name: named[name] + 1j * twin.STEP * direction}).imag / twin.STEP
        slope = float((weights * along).sum())
        assert parameter.grad is not None, name
        gradient = parameter.grad.numpy()
        # Rounding is relative to the terms of the sum, which may cancel.
        scale = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs(float((gradient * direction).sum()) - slope) <= 1e-10 * scale, name
        assert scale > 0, f"{name} gets no gradient"
