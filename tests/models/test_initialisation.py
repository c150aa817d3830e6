"""Initial weights: a modulated model is the identity, and only gates, embedding and read-out have a gradient."""

import pytest
import torch
import torch.nn.functional as F

from looped import ModelConfig, Spec, build_model
from looped.config import OptimizerConfig
from looped.training.optim import Optimizer
from tests.refusal import refused

from .cases import CONDITIONINGS, FREE_TABLES, GATED, TOKENS, VECTORS, examples, small
from .twin import SET_BY

TRAINED = 4
ENDS = ("embedding", "b_embedding", "positions", "gain", "head", "b_head")


def _modulated(**knobs):
    return small(**({"block": "modulated", "num_loops": TRAINED, "num_layers": 2, "injection": "none"} | knobs))


def _policies(conditioning):
    return ("clamp", "rescale") if conditioning in FREE_TABLES else ("extend", "clamp", "rescale")


def _parts(conditioning, table):
    """Return a conditioner's vectors by the names of their parts."""
    names = SET_BY[conditioning]
    return dict(zip(names, table.chunk(len(names), dim=-1), strict=True))


def _assert_at_start(conditioning, table):
    for name, vectors in _parts(conditioning, table).items():
        # eta multiplies a block that has no gate otherwise.
        start = 1.0 if name.startswith("alpha") or conditioning == "eta" else 0.0
        assert torch.equal(vectors, torch.full_like(vectors, start)), name


@pytest.mark.parametrize(("dim", "expected"), [(768, 0.02), (192, 0.04), (48, 0.08)])
def test_matrices_have_gpt2_deviations_at_its_width(dim, expected):
    """GPT-2 (width 768) has the standard deviation 0.02, and 0.02 / sqrt(2 n) at the ends of n residual branches.

    At other widths the output of a matrix keeps its size, so a quarter of the width has twice the deviation.
    """
    config = ModelConfig(block="standard", dim=dim, num_heads=12, num_layers=2, ff_dim=4 * dim)
    model = build_model(config, Spec("tokens", input_size=5000, output_size=5000, seq_len=8))
    last = expected / 2  # of four branches, two in each layer
    for layer in model.stack.layers:
        for name, deviation in (("w_qkv", expected), ("w_in", expected), ("w_out", last), ("w_back", last / 2)):
            weights = getattr(layer, name)
            assert weights.std().item() == pytest.approx(deviation, rel=0.03), name
            assert abs(weights.mean().item()) < 0.03 * deviation, name
    assert model.head.std().item() == pytest.approx(expected, rel=0.03)
    assert model.embedding.std().item() == pytest.approx(0.02, rel=0.03)  # whatever the width


CONDITIONED = [each for each in CONDITIONINGS if SET_BY[each]]


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("conditioning", CONDITIONED)
def test_scales_start_at_one_and_gates_at_zero(conditioning, num_layers):
    model = build_model(_modulated(conditioning=conditioning, num_layers=num_layers), TOKENS)
    times = torch.arange(TRAINED if conditioning in FREE_TABLES else 1000, dtype=torch.float64)
    table = model.stack.conditioner(times)
    assert table.shape == (len(times), num_layers, len(SET_BY[conditioning]) * 8)
    _assert_at_start(conditioning, table)


@pytest.mark.parametrize("conditioning", ["timestep", "scale", "gate", "shift"])
def test_random_modulation_init_changes_only_the_modulation(conditioning):
    exact, drawn = (
        build_model(_modulated(conditioning=conditioning, modulation_init=start), TOKENS)
        for start in ("exact", "random")
    )
    times = torch.arange(TRAINED, dtype=torch.float64)
    scattered = drawn.stack.conditioner(times) - exact.stack.conditioner(times)
    assert scattered.count_nonzero() == scattered.numel()
    assert len(torch.unique(scattered, dim=0)) == TRAINED
    for (name, one), other in zip(exact.stack.named_parameters(), drawn.stack.parameters(), strict=True):
        assert torch.equal(one, other) == (name != "conditioner.w5"), name


@pytest.mark.parametrize("conditioning", ["none", "static", "table", "eta", "additive"])
def test_random_modulation_init_without_timestep_raises(conditioning):
    with refused("modulation_init", conditioning, error=ValueError):
        _modulated(conditioning=conditioning, modulation_init="random")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("conditioning", CONDITIONED)
def test_dtype_conversion_keeps_the_initial_modulation(conditioning, dtype):
    model = build_model(_modulated(conditioning=conditioning, precision="float32"), TOKENS).to(dtype)
    table = model.stack.conditioner(torch.arange(TRAINED, dtype=dtype))
    assert table.dtype == dtype
    _assert_at_start(conditioning, table)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "conditioning",
    GATED,
)
def test_converted_model_is_the_identity(conditioning, dtype):
    model = build_model(_modulated(conditioning=conditioning, precision="float32"), TOKENS).to(dtype)
    inputs = examples(TOKENS)
    assert all(torch.equal(state, model.embed(inputs)) for state in model.iterate(inputs))


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("spec", [TOKENS, VECTORS], ids=["tokens", "vectors"])
@pytest.mark.parametrize("conditioning", GATED)
def test_new_model_is_the_identity_between_embedding_and_read_out(conditioning, spec, precision):
    for extrapolation in _policies(conditioning):
        model = build_model(
            _modulated(conditioning=conditioning, extrapolation=extrapolation, precision=precision), spec
        )
        inputs = examples(spec)
        start = model.embed(inputs)
        for num_loops in (1, TRAINED - 1, TRAINED, TRAINED + 1, 5 * TRAINED):
            states = list(model.iterate(inputs, num_loops))
            assert len(states) == num_loops
            assert all(torch.equal(state, start) for state in states)
            assert torch.equal(model(inputs, num_loops), model.read_out(start))


@pytest.mark.parametrize("injection", ["add", "concat"])  # concat starts as the sum
@pytest.mark.parametrize("conditioning", GATED)
def test_new_model_with_injection_adds_one_embedding_per_loop(conditioning, injection):
    for extrapolation in _policies(conditioning):
        model = build_model(
            _modulated(conditioning=conditioning, extrapolation=extrapolation, injection=injection), TOKENS
        )
        inputs = examples(TOKENS)
        start = model.embed(inputs)
        for num_loops in (1, TRAINED, 5 * TRAINED):
            for t, state in enumerate(model.iterate(inputs, num_loops)):
                torch.testing.assert_close(state, (t + 1) * start, rtol=1e-13, atol=0)


def test_new_model_without_gates_is_not_the_identity():
    for conditioning in set(CONDITIONINGS) - set(GATED):
        model = build_model(_modulated(conditioning=conditioning), TOKENS)
        inputs = examples(TOKENS)
        assert not torch.allclose(next(model.iterate(inputs)), model.embed(inputs), rtol=1e-3)


def _gradients(model):
    """Return the gradients of the vectors and matrices that have a name in the paper."""
    model.zero_grad(set_to_none=True)
    inputs = examples(TOKENS, batch=4)
    targets = (inputs + torch.arange(inputs.shape[1])) % TOKENS.output_size
    F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    conditioning = model.config.resolved_conditioning
    pieces = {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        leaf = name.split(".")[-1]
        if leaf in ("w5", "b5", "vectors", "rows"):
            if leaf == "w5":
                gradient = gradient.transpose(-1, -2)
            for part, piece in _parts(conditioning, gradient).items():
                for layer, own in enumerate(piece.unbind(1 if leaf == "rows" else 0)):
                    pieces[f"{name}.{layer}.{part}"] = own
        elif leaf == "w_qkv":
            pieces |= dict(zip((f"{name}.{each}" for each in "qkv"), gradient.chunk(3), strict=True))
        else:
            pieces[name] = gradient
    return pieces


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("injection", ["none", "add"])
@pytest.mark.parametrize("conditioning", GATED)
def test_gates_and_ends_have_the_first_gradients_and_all_after_one_step(conditioning, injection, optimizer):
    model = build_model(_modulated(conditioning=conditioning, injection=injection), TOKENS)
    for name, gradient in _gradients(model).items():
        learns = name.startswith(ENDS) or ".gamma_" in name
        assert bool(gradient.count_nonzero()) == learns, name
    Optimizer(model, OptimizerConfig(kind=optimizer, learning_rate=1e-2)).step()
    for name, gradient in _gradients(model).items():
        assert gradient.isfinite().all(), name
        assert gradient.count_nonzero(), name


@pytest.mark.parametrize("knobs", [{"block": "looped"}, {"block": "standard", "num_loops": 1}])
def test_without_gates_every_parameter_has_a_gradient(knobs):
    model = build_model(_modulated(**knobs), TOKENS)
    assert all(gradient.count_nonzero() for gradient in _gradients(model).values())


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_weight_decay_does_not_change_vectors(conditioning):
    """Check that without a gradient only matrices shrink, because a decayed scale would differ from 1."""
    model = build_model(_modulated(conditioning=conditioning), TOKENS)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Optimizer(model, OptimizerConfig(weight_decay=0.5, learning_rate=0.1)).step()
    for name, parameter in model.named_parameters():
        is_matrix = name.split(".")[-1].startswith(("w", "0", "head", "embedding"))
        torch.testing.assert_close(parameter.detach(), (0.95 if is_matrix else 1.0) * before[name], msg=name)


def test_build_model_depends_only_on_its_seed():
    config = _modulated(injection="concat")
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one, same, other = (build_model(config, TOKENS, seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    for name in ("embedding", "head", "stack.layers.0.w_qkv", "stack.layers.1.w_back", "stack.conditioner.w3"):
        assert not torch.equal(one[name], other[name])
    assert not torch.equal(one["stack.layers.0.w_qkv"], one["stack.layers.1.w_qkv"])
