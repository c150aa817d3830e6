"""A stack as a part of other work: a module among others, whatever is done to them."""

from itertools import chain

import pytest
import torch

from looped import InputError, LoopStack, build_model
from looped.training import set_engine

from .cases import BLOCKS, CAUSAL, TOKENS, interpreted, label, scattered, small

each_block = pytest.mark.parametrize("knobs", BLOCKS, ids=label)
each_injection = pytest.mark.parametrize("injection", ["none", "add", "concat"])


def opened(**knobs) -> LoopStack:
    """A causal stack of float32 whose gates are open: at its start a gated block does nothing."""
    return scattered(small(**{"precision": "float32", **knobs}), CAUSAL).stack


def test_a_stack_in_other_work_is_a_module_like_any():
    """Called, it gives the last state; its weights follow PyTorch's seed; what does not fit is named."""
    config = small(block="looped", num_loops=3)
    embeddings = torch.randn(2, 4, config.dim)
    stacks = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        stacks.append(LoopStack(config))
    *_, last = stacks[0].iterate(embeddings)
    assert torch.equal(stacks[0](embeddings), last)
    assert torch.equal(stacks[2](embeddings), last)
    assert not torch.equal(stacks[1](embeddings), last)
    assert torch.equal(stacks[0](embeddings, 1), next(stacks[0].iterate(embeddings)))
    for call in (stacks[0], stacks[0].iterate):
        with pytest.raises(InputError, match=rf"expected embeddings \(batch, seq, {config.dim}\), got \(2, 4, 3\)"):
            call(embeddings[..., :3])
    standard = LoopStack(small(block="standard", num_loops=1))
    for call in (standard, standard.iterate):
        with pytest.raises(InputError, match="a standard model applies its layers once: expected num_loops 1, got 5"):
            call(embeddings, 5)


@each_block
@each_injection
def test_embeddings_of_lower_precision_do_not_lower_the_states(knobs, injection):
    stack, coarse = opened(**knobs, injection=injection), torch.randn(2, 4, 8).bfloat16()
    for got, wanted in zip(stack.iterate(coarse), stack.iterate(coarse.float()), strict=True):
        assert torch.equal(got, wanted)


@each_block
@each_injection
def test_autocast_is_for_products_alone(knobs, injection):
    """States stay in float32, and are those that `precision="bfloat16"` gives, whose products are the same ones."""
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
        # The table of what is made from t, and an injected map, are products too; 0.01 was seen.
        assert torch.equal(got, wanted) if exact else (got - wanted).norm() < 0.02 * wanted.norm()


@interpreted
@pytest.mark.parametrize("injection", ["none", "add"])
def test_fused_kernels_keep_to_the_precision_of_the_config(injection):
    """Under autocast, too, which could reach only parts of them."""
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
def test_weights_of_lower_precision_count_loops_as_well(conditioning, extrapolation):
    """What is made from t, up to 299: bfloat16 knows no 257."""
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
        assert relative(one, other) < 0.03  # 0.01 was seen
    assert coarse(torch.randn(2, 4, 8), 300).dtype == torch.bfloat16


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_weights_of_lower_precision_count_tokens_as_well(positions):
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
    """What `DataParallel` makes for each device: weights are attributes, computed from the parameters of the first."""
    result = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(result, name, None if parameter is None else parameter.clone())
    for name, child in module.named_children():
        setattr(result, name, replica(child))
    return result


@each_block
def test_replicas_compute_the_same(knobs):
    stack, embeddings = opened(**knobs), torch.randn(2, 4, 8)
    copy = replica(stack)
    assert not list(copy.parameters())
    assert torch.equal(copy(embeddings), stack(embeddings))
    copy(embeddings).sum().backward()
    assert all(parameter.grad is not None for parameter in stack.parameters())


@interpreted
def test_replicas_leave_the_fused_kernels_to_the_first():
    """Which know its weights by where they are."""
    stack, embeddings = opened(block="looped", num_loops=3), torch.randn(2, 4, 8)
    set_engine(stack, "fused")
    copy, fused = replica(stack), stack(embeddings)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.zero_()
    torch.testing.assert_close(copy(embeddings), fused, rtol=1e-4, atol=1e-4)


@each_block
def test_weights_are_made_where_new_tensors_are(knobs):
    """Here on no device at all, which has room for any model; the weights come from elsewhere."""
    stack, embeddings = opened(**knobs, injection="concat"), torch.randn(2, 4, 8)
    with torch.device("meta"):
        empty = LoopStack(stack.config, causal=True)
        build_model(stack.config, CAUSAL)
    assert all(parameter.is_meta for parameter in empty.parameters())
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(stack.state_dict())
    assert torch.equal(filled(embeddings), stack(embeddings))


@pytest.mark.parametrize("keep", [None, torch.tensor([[True] * 4, [False] * 3 + [True]])], ids=["all", "some"])
@pytest.mark.parametrize("knobs", [{"block": "standard"}, {"block": "modulated", "num_loops": 3}], ids=label)
def test_a_stack_is_one_graph(knobs, keep):
    """Nothing in it stands against `torch.compile(model, fullgraph=True)`."""
    stack, embeddings = opened(**knobs), torch.randn(2, 4, 8)
    traced = torch.compile(stack, fullgraph=True, backend="eager")
    assert torch.equal(traced(embeddings, keep=keep), stack(embeddings, keep=keep))
    torch.compiler.reset()
