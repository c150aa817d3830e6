"""`LoopStack` inside other modules: conversion, autocast, replication, compilation."""

import subprocess
import sys
from itertools import chain

import pytest
import torch

from looped import InputError, LoopStack, build_model
from looped.training import set_engine
from tests.refusal import refused

from .cases import BLOCKS, CAUSAL, TOKENS, interpreted, label, scattered, small

each_block = pytest.mark.parametrize("knobs", BLOCKS, ids=label)
each_injection = pytest.mark.parametrize("injection", ["none", "add", "concat"])


def opened(**knobs) -> LoopStack:
    """Return a causal float32 stack with open gates, because a new gated block is the identity."""
    return scattered(small(**{"precision": "float32", **knobs}), CAUSAL).stack


def test_stack_follows_the_seed_and_refuses_wrong_arguments():
    """Check the last state, the weights under PyTorch's seed, and the errors for wrong arguments."""
    config = small(block="looped", num_loops=3)
    embeddings = torch.randn(2, 4, config.dim)
    stacks = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        stacks.append(LoopStack(config, quiet=True))
    *_, last = stacks[0].iterate(embeddings)
    assert torch.equal(stacks[0](embeddings), last)
    assert torch.equal(stacks[2](embeddings), last)
    assert not torch.equal(stacks[1](embeddings), last)
    assert torch.equal(stacks[0](embeddings, 1), next(stacks[0].iterate(embeddings)))
    for call in (stacks[0], stacks[0].iterate):
        with refused("embeddings", f"(batch, seq, {config.dim})", (2, 4, 3)):
            call(embeddings[..., :3])
    standard = LoopStack(small(block="standard", num_loops=1), quiet=True)
    for call in (standard, standard.iterate):
        with pytest.raises(InputError) as caught:
            call(embeddings, 5)
        assert caught.value.field == "num_loops"


@pytest.mark.parametrize(
    ("knobs", "warning"),
    [
        ({"num_loops": 4}, "positions='learned'"),
        ({"num_loops": 4, "positions": "sinusoidal"}, "positions='sinusoidal'"),
        ({"positions": "rotary"}, "num_loops is 1"),
        ({"block": "modulated", "positions": "none"}, "num_loops is 1"),
    ],
)
def test_stack_with_settings_that_it_ignores_warns(knobs, warning):
    with pytest.warns(UserWarning, match=warning) as caught:
        LoopStack(small(**knobs))
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize("knobs", [{"num_loops": 4}, {"block": "standard"}])
def test_stack_with_settings_that_it_follows_does_not_warn(knobs):
    LoopStack(small(**knobs, positions="rotary"))  # a warning would be an error
    build_model(small(), TOKENS)  # a model adds the positions, and its loops are its task's matter


def test_print_of_a_model_shows_shapes_and_loops():
    config = small(block="modulated", num_loops=7, injection="concat")
    shown = str(build_model(config, TOKENS))
    assert "1 layer applied 7 times" in shown
    assert "w_qkv (24, 8)" in shown  # queries, keys and values of width 8
    assert "w_inject (8, 16)" in shown
    assert "w5 (1, 32, 8)" in shown  # two scales and two gates
    assert f"vocabulary of {TOKENS.input_size}" in shown


def test_stack_needs_torch_and_numpy_but_nothing_heavy():
    code = """
import sys
for heavy in ("numba", "llvmlite", "tiktoken", "matplotlib", "tyro", "rich", "jinja2", "safetensors", "triton"):
    sys.modules[heavy] = None  # an import fails
import torch
from looped import LoopStack, ModelConfig
stack = LoopStack(ModelConfig("modulated", dim=8, num_heads=2, num_loops=3, positions="rotary"))
stack(torch.randn(2, 5, 8)).sum().backward()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@each_block
@each_injection
def test_states_keep_their_precision_for_lower_precision_embeddings(knobs, injection):
    stack, coarse = opened(**knobs, injection=injection), torch.randn(2, 4, 8).bfloat16()
    for got, wanted in zip(stack.iterate(coarse), stack.iterate(coarse.float()), strict=True):
        assert torch.equal(got, wanted)


@each_block
@each_injection
def test_autocast_changes_only_matmuls(knobs, injection):
    """Compare with `precision="bfloat16"`, which has the same matmuls. States stay in float32."""
    stack, other = opened(**knobs, injection=injection), opened(**knobs, injection=injection, precision="bfloat16")
    torch.manual_seed(0)
    front = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = front(torch.randn(2, 4, 8))
        states = list(stack.iterate(embeddings))
    assert embeddings.dtype == torch.bfloat16
    assert {state.dtype for state in states} == {torch.float32}
    exact = (
        knobs.get("conditioning", "none") in ("none", "static", "table", "eta", "additive") and injection != "concat"
    )
    for got, wanted in zip(states, other.iterate(embeddings), strict=True):
        # The modulation table and the injection are matmuls, too. The measured difference is 0.01.
        assert torch.equal(got, wanted) if exact else (got - wanted).norm() < 0.02 * wanted.norm()


@interpreted
@pytest.mark.parametrize("injection", ["none", "add"])
def test_fused_kernels_use_the_precision_of_the_config_under_autocast(injection):
    """Check this under autocast, too, which could change only parts of the kernels."""
    knobs = {"block": "modulated", "num_loops": 3, "injection": injection}
    stack, embeddings = opened(**knobs), torch.randn(2, 4, 8)
    set_engine(stack, "fused")
    with torch.autocast("cpu", torch.bfloat16):
        cast = stack(embeddings)
    assert torch.equal(cast, stack(embeddings))


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize(
    ("conditioning", "extrapolation"),
    [("timestep", "extend"), ("timestep", "rescale"), ("table", "rescale"), ("additive", "extend")],
)
def test_lower_precision_weights_have_exact_loop_indices(conditioning, extrapolation):
    """Check the modulation for t up to 299, because bfloat16 cannot represent 257."""
    knobs = {"block": "modulated", "conditioning": conditioning, "extrapolation": extrapolation, "num_loops": 3}
    coarse, true = opened(**knobs).bfloat16(), opened(**knobs, precision="float64")
    true.load_state_dict(coarse.state_dict())
    got, wanted = (
        [stack.prepare(300, 4, torch.device("cpu")).signal, *chain(*stack.modulation(300, torch.device("cpu")))]
        for stack in (coarse, true)
    )
    found = [(one, other) for one, other in zip(got, wanted, strict=True) if other is not None]
    assert found
    for one, other in found:
        assert one.dtype == torch.bfloat16
        assert relative(one, other) < 0.03  # measured: 0.01
    assert coarse(torch.randn(2, 4, 8), 300).dtype == torch.bfloat16


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_lower_precision_weights_have_exact_positions(positions):
    config = small(positions=positions)
    coarse, true = build_model(config, TOKENS).bfloat16(), build_model(config, TOKENS)
    true.load_state_dict(coarse.state_dict())
    tokens = torch.zeros(1, 1000, dtype=torch.long)
    got, wanted = (
        model.stack.rotation(1000, tokens.device) if positions == "rotary" else (model.embed(tokens),)
        for model in (coarse, true)
    )
    for one, other in zip(got, wanted, strict=True):
        assert relative(one, other) < 0.02


def replica(module: torch.nn.Module) -> torch.nn.Module:
    """Return a replica as `DataParallel` makes it: weights are attributes, computed from the first's parameters."""
    result = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(result, name, None if parameter is None else parameter.clone())
    for name, child in module.named_children():
        setattr(result, name, replica(child))
    return result


@each_block
def test_replicas_give_the_same_states(knobs):
    stack, embeddings = opened(**knobs), torch.randn(2, 4, 8)
    copy = replica(stack)
    assert not list(copy.parameters())
    assert torch.equal(copy(embeddings), stack(embeddings))
    copy(embeddings).sum().backward()
    assert all(parameter.grad is not None for parameter in stack.parameters())


@interpreted
def test_replicas_have_no_fused_engine():
    """The fused kernels are bound to the addresses of the first stack's weights."""
    stack, embeddings = opened(block="looped", num_loops=3), torch.randn(2, 4, 8)
    set_engine(stack, "fused")
    copy, fused = replica(stack), stack(embeddings)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.zero_()
    torch.testing.assert_close(copy(embeddings), fused, rtol=1e-4, atol=1e-4)


@each_block
def test_weights_are_created_on_the_default_device(knobs):
    """Use the meta device, which has room for any model. The weights are loaded later."""
    stack, embeddings = opened(**knobs, injection="concat"), torch.randn(2, 4, 8)
    with torch.device("meta"):
        empty = LoopStack(stack.config, causal=True, quiet=True)
        build_model(stack.config, CAUSAL)
    assert all(parameter.is_meta for parameter in empty.parameters())
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(stack.state_dict())
    assert torch.equal(filled(embeddings), stack(embeddings))


@pytest.mark.parametrize("mask", [None, torch.tensor([[True] * 4, [False] * 3 + [True]])], ids=["all", "some"])
@pytest.mark.parametrize("knobs", [{"block": "standard"}, {"block": "modulated", "num_loops": 3}], ids=label)
def test_stack_compiles_as_one_graph(knobs, mask):
    """Check that `torch.compile(model, fullgraph=True)` works."""
    stack, embeddings = opened(**knobs), torch.randn(2, 4, 8)
    traced = torch.compile(stack, fullgraph=True, backend="eager")
    assert torch.equal(traced(embeddings, attention_mask=mask), stack(embeddings, attention_mask=mask))
    torch.compiler.reset()
