"""All loops as one function: states and every gradient against the definition, loop after loop, in float64."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looped.config import ModelConfig
from looped.models.stack import LoopStack
from tests.kernels.cases import DEVICE, DTYPES, Draw, assert_near, error, laboratory, leaf
from tests.kernels.plans import KINDS, Case, Inputs, by_definition, check, fused, taken_apart
from tests.kernels.test_cross_entropy import LargestTensor

pytest.importorskip("triton")

from looped.kernels import triton_loops, triton_weight_grads
from looped.kernels.triton_loops import LoopPlan, fused_loops
from looped.models.fused import FusedLoops

pytestmark = pytest.mark.filterwarnings("ignore:.*determinis.*:UserWarning")  # CUDA's, where poison asks for it


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


ORDINARY = Case()
CASES = {
    "one token": Case(seq_len=1, batch=3, read=(0, 2)),
    "one loop": Case(num_loops=1, read=(0,)),
    "no modulation": Case(attention=(), feed_forward=(), injection=False, rotary=False, activation="relu"),
    "all modulation": Case(attention=KINDS, feed_forward=KINDS, activation="silu"),
    "gate of the feed-forward layer alone": Case(attention=("scale",), feed_forward=("gate",)),
    "shifts alone": Case(attention=("shift",), feed_forward=("shift",), read=(1, 2)),
    "heads on the chip": Case(dim=64, num_heads=2, seq_len=17, causal=True),
    "heads elsewhere": Case(dim=96, num_heads=4, seq_len=17, causal=True),
    "long sequences": Case(dim=32, seq_len=130, causal=True, num_loops=2, read=(1,)),
    "the longest on the chip": Case(dim=32, seq_len=128, num_loops=2, read=(1,), rotary=False),
    "layers": Case(num_layers=3, attention=KINDS, feed_forward=KINDS),
    "every loop is read": Case(num_layers=2, read=(0, 1, 2)),
    "some loops are read": Case(num_loops=4, read=(1, 3), injection=False),
    "limited growth": Case(batch=5, num_loops=5, read=(4,), growth_limit=1.01),
    "limited growth, loops that are read": Case(batch=3, num_loops=4, read=(1, 3), num_layers=2, growth_limit=1.05),
    "limited growth, computed again": Case(batch=6, num_loops=4, read=(3,), remat=2, growth_limit=1.01),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_states_and_gradients_are_those_of_the_definition(case, dtype):
    check(case, dtype)


@pytest.mark.parametrize(
    ("num_layers", "read", "remats"), [(1, (4,), (1, 3)), (1, (0, 1, 2, 3, 4), (2, 7)), (2, (1, 4), (2,))]
)
def test_computing_again_gives_the_very_same(num_layers, read, remats):
    """Pieces of 1, 2 and 3 of 5 loops, and one that is longer than all of them."""
    inputs = Inputs(Case(seq_len=3, dim=24, ff_dim=16, num_loops=5, read=read, num_layers=num_layers))
    kept = fused(inputs, torch.float32)
    for remat in remats:
        inputs.case = replace(inputs.case, remat=remat)
        again = fused(inputs, torch.float32)
        for name, wanted in kept.items():
            same_order = name.startswith("state") or name in ("x", "inject")
            # Sums over loops are added up piece by piece.
            assert torch.equal(again[name], wanted) if same_order else error(again[name], wanted) < 1e-6, name


def test_long_sequences_computed_again_equal_the_definition():
    check(replace(CASES["long sequences"], remat=1, read=(0, 1)))


@pytest.mark.parametrize("remat", [0, 2])
@pytest.mark.parametrize("growth_limit", [None, 1.01])
def test_operands_of_few_loops_fit_at_once(monkeypatch, remat, growth_limit):
    monkeypatch.setattr(triton_weight_grads, "OPERAND_BYTES", 1)
    check(Case(seq_len=3, dim=24, num_loops=4, read=(0, 3), num_layers=2, remat=remat, growth_limit=growth_limit))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("remat", [0, 2])
def test_wide_blocks_keep_what_the_activation_is_applied_to(monkeypatch, remat, dtype):
    monkeypatch.setattr(triton_loops, "NARROW", 0)
    check(Case(seq_len=3, dim=24, num_loops=3, read=(0, 2), num_layers=2, remat=remat), dtype)


@st.composite
def plans(draw) -> Case:
    num_loops = draw(st.integers(1, 4))
    read = draw(st.sets(st.integers(0, num_loops - 1)))
    kinds = st.lists(st.sampled_from(KINDS), unique=True).map(tuple)
    return Case(
        batch=draw(st.integers(1, 3)),
        seq_len=draw(st.integers(1, 9)),
        dim=draw(st.sampled_from([24, 32, 48])),
        num_heads=draw(st.sampled_from([1, 2, 3])) if draw(st.booleans()) else 1,
        ff_dim=draw(st.integers(8, 40)),
        num_loops=num_loops,
        num_layers=draw(st.integers(1, 2)),
        read=tuple(sorted({*read, num_loops - 1})),
        causal=draw(st.booleans()),
        rotary=draw(st.booleans()),
        injection=draw(st.booleans()),
        attention=draw(kinds),
        feed_forward=draw(kinds),
        activation=draw(st.sampled_from(["gelu", "relu", "silu"])),
        remat=draw(st.integers(0, 5)),
        seed=draw(st.integers(0, 99)),
    )


@settings(
    max_examples=15, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(plans())
def test_states_and_gradients_of_random_cases_equal_the_definition(case):
    if case.dim % (2 * case.num_heads) == 0:
        check(case)


@pytest.mark.parametrize("remat", [0, 2])
def test_gradients_come_in_any_strides(remat):
    """A sum's gradient is one number repeated, that of a transposed state is transposed."""
    inputs = Inputs(replace(ORDINARY, batch=1, read=(0, 1, 2)))
    weight, leaves = Draw(1)(48, 5), [leaf(each) for each in inputs.tensors]
    plan = LoopPlan(3, (0, 1, 2), 1, False, "gelu", torch.float32, inputs.rotation, remat)
    first, *rest = fused_loops(plan, *taken_apart(leaves))
    (first.sum() + sum((state[0].T * weight).sum() for state in rest)).backward()
    inputs.directions = [torch.ones(1, 5, 48, device=DEVICE), weight.T[None], weight.T[None]]
    exact = by_definition(inputs, torch.float64)
    for name, each in zip(inputs.names(), leaves, strict=True):
        if each is not None:
            assert_near(each.grad, exact[name], 1e-5)


def test_inputs_come_in_any_strides():
    """Such as embeddings that are transposed."""
    inputs = Inputs(replace(ORDINARY, batch=1))
    straight = fused(inputs, torch.float32)
    for place in (0, 1):
        inputs.tensors[place] = inputs.tensors[place].transpose(1, 2).contiguous().transpose(1, 2)
    turned = [each if place > 1 else each.detach().requires_grad_() for place, each in enumerate(inputs.tensors)]
    plan = LoopPlan(3, (2,), 1, False, "gelu", torch.float32, inputs.rotation)
    (state,) = fused_loops(plan, *taken_apart(turned))
    state.backward(inputs.directions[0])
    assert_near(state, straight["state 2"], 1e-6)
    assert_near(turned[0].grad, straight["x"], 1e-6)
    assert_near(turned[1].grad, straight["inject"], 1e-6)


def test_a_loop_that_nobody_differentiates():
    """Of the states that are read, only the first goes into the loss."""
    inputs = Inputs(replace(ORDINARY, read=(0, 2)))
    leaves = [leaf(each) for each in inputs.tensors]
    plan = LoopPlan(3, (0, 2), 1, False, "gelu", torch.float32, inputs.rotation)
    fused_loops(plan, *taken_apart(leaves))[0].backward(inputs.directions[0])
    inputs.directions[1].zero_()
    exact = by_definition(inputs, torch.float64)
    for name, each in zip(inputs.names(), leaves, strict=True):
        if each is not None and exact[name].norm() > 0:
            assert_near(each.grad, exact[name], 1e-5)


def test_a_second_backward_pass_is_refused():
    inputs = Inputs(ORDINARY)
    leaves = [leaf(each) for each in inputs.tensors]
    plan = LoopPlan(3, (2,), 1, False, "gelu", torch.float32, inputs.rotation)
    (state,) = fused_loops(plan, *taken_apart(leaves))
    state.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="gone after the first"):
        state.sum().backward()


def test_a_copy_computes_the_same():
    fast, _ = open_stack(injection="add")
    copied = copy.deepcopy(fast)
    assert copied.all_loops is not fast.all_loops
    assert copied.all_loops.stack is copied
    embeddings = Draw(6)(2, 3, 24)
    ((_, one),), ((_, other),) = (stack.states_at(embeddings, 4, [3]) for stack in (fast, copied))
    assert torch.equal(one, other)


def test_without_gradients_the_states_are_the_same():
    inputs = Inputs(replace(ORDINARY, num_layers=2, read=(0, 2)))
    plan = LoopPlan(3, (0, 2), 1, False, "gelu", torch.float32, inputs.rotation)
    wanted = fused(inputs, torch.float32)
    for t, state in zip(plan.read, fused_loops(plan, *taken_apart(inputs.tensors)), strict=True):
        assert not state.requires_grad
        assert torch.equal(state, wanted[f"state {t}"])


@pytest.mark.parametrize("parameters", [False, True])
def test_what_nobody_will_ask_for_is_not_kept(parameters):
    """Without gradients the memory does not grow with the loops, also where the weights could have some."""
    largest = []
    for num_loops in (2, 6):
        case = Case(seq_len=20, dim=8, ff_dim=8, num_loops=num_loops, attention=(), feed_forward=(), rotary=False)
        tensors = [leaf(each) if parameters else each for each in Inputs(case).tensors]
        plan = LoopPlan(num_loops, (num_loops - 1,), 1, False, "gelu", torch.float32, None)
        with torch.set_grad_enabled(not parameters), LargestTensor() as seen:
            fused_loops(plan, *taken_apart(tensors))
        largest.append(seen.elements)
    assert largest[0] == largest[1]


# ------------------------------------------------------------------ the stack on top of it


def open_stack(**knobs) -> tuple[LoopStack, LoopStack]:
    """The same stack twice, its gates open: by the fused kernels in float32, and plain in float64."""
    shape = {"dim": 24, "num_heads": 2, "ff_dim": 32, "num_loops": 4}
    config = ModelConfig(**{"block": "modulated", "positions": "none", **shape} | knobs)
    stacks = LoopStack(config).to(DEVICE), LoopStack(replace(config, precision="float64")).to(DEVICE)
    draw = Draw(5)
    with torch.no_grad():
        for one, other in zip(stacks[0].parameters(), stacks[1].parameters(), strict=True):
            one.add_(0.2 * draw(*one.shape))
            other.copy_(one)
    stacks[0].all_loops = FusedLoops(stacks[0])
    return stacks


@pytest.mark.parametrize("injection", ["none", "add"])
@pytest.mark.parametrize(("backprop_loops", "remat"), [(1, 0), (3, 0), (3, 2), (9, 0)])
@pytest.mark.parametrize("read", [(3,), (0, 1, 2, 3)])
def test_truncated_backpropagation_equals_the_plain_stack(injection, backprop_loops, remat, read):
    """The last loops alone get a gradient, and with them whatever is injected into them."""
    fast, plain = open_stack(injection=injection, positions="rotary")
    fast.remat = remat
    draw = Draw(6)
    values, directions, found = draw(2, 3, 24), [draw(2, 3, 24) for _ in read], []
    for stack in (fast, plain):
        embeddings = leaf(values, stack.dtype)
        states = dict(stack.states_at(embeddings, 4, read, backprop_loops))
        assert tuple(states) == read
        with_grad = [t for t in read if states[t].requires_grad]
        assert with_grad == [t for t in read if backprop_loops is None or t >= 4 - backprop_loops]
        sum((states[t] * way).sum() for t, way in zip(read, directions, strict=True) if t in with_grad).backward()
        found.append((states, [embeddings.grad, *(each.grad for each in stack.parameters())]))
    (states, gradients), (true_states, true_gradients) = found
    for t in read:
        assert_near(states[t], true_states[t], 1e-5)
    for got, wanted in zip(gradients, true_gradients, strict=True):
        assert (got is None or not got.any()) == (wanted is None or not wanted.any())
        if wanted is not None and wanted.any():
            assert_near(got, wanted, 1e-5)


def test_only_early_loops_are_read():
    """What nobody reads need not be computed, with truncated backpropagation either."""
    fast, plain = open_stack(injection="add")
    embeddings = Draw(6)(2, 3, 24)
    for backprop_loops in (None, 1):
        for read in ((0,), (1, 2)):
            states = dict(fast.states_at(embeddings, 4, read, backprop_loops))
            wanted = dict(plain.states_at(embeddings.double(), 4, read, backprop_loops))
            assert states.keys() == wanted.keys()
            for t in read:
                assert_near(states[t], wanted[t], 1e-5)
