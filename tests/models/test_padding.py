"""Sequences of several lengths in one batch: each has the states and the gradients that it has by itself."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

from looped import InputError, LoopStack
from looped.kernels import padding_bias
from looped.training import set_engine

from .cases import BLOCKS, CAUSAL, interpreted, label, scattered, small

BATCH, SEQ_LEN, DIM = 3, 5, 8
LEFT = [[False, False, True, True, True], [True] * 5, [False] * 4 + [True]]
RIGHT = [row[::-1] for row in LEFT]
MASKS = arrays(np.bool_, (BATCH, SEQ_LEN))


def stack_of(**knobs) -> LoopStack:
    return scattered(small(**{"positions": "none", "attention": "full", **knobs}), CAUSAL).stack


def drawn(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).standard_normal(shape))


def states_and_gradients(stack, embeddings, directions, **options):
    """States (loop, batch, seq, dim), and the gradients of their sum, weighted by the directions, with respect to the
    embeddings and every parameter."""
    embeddings = embeddings.clone().requires_grad_()
    num_loops = stack.config.num_loops
    states = torch.stack([state for _, state in stack.states_at(embeddings, num_loops, range(num_loops), **options)])
    leaves = [embeddings, *stack.parameters()]
    return states, torch.autograd.grad((states * directions).sum(), leaves, materialize_grads=True)


def assert_each_by_itself(stack: LoopStack, keep: torch.Tensor, tolerance: float = 1e-10, **options) -> None:
    """Against sequences that are cut out and run one by one, with no mask at all."""
    embeddings, directions = drawn(*keep.shape, DIM), drawn(stack.config.num_loops, *keep.shape, DIM)
    true_states = torch.zeros_like(directions)
    true_gradients = [torch.zeros_like(embeddings), *map(torch.zeros_like, stack.parameters())]
    for i, row in enumerate(keep):
        if row.any():
            ways = directions[:, i : i + 1, row]
            found, (own, *shared) = states_and_gradients(stack, embeddings[i : i + 1, row], ways, **options)
            true_states[:, i, row] = found[:, 0]
            true_gradients[0][i, row] = own[0]
            for total, part in zip(true_gradients[1:], shared, strict=True):
                total += part
    embeddings[~keep] = torch.nan  # whatever it is
    states, found = states_and_gradients(stack, embeddings, directions, keep=keep, **options)
    for got, wanted in zip((states, *found), (true_states, *true_gradients), strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("attention", ["full", "causal"])
@pytest.mark.parametrize("knobs", BLOCKS, ids=label)
@given(keep=MASKS)
@settings(deadline=None, max_examples=12)
def test_padding_anywhere_changes_nothing(knobs, attention, keep):
    """On either side, in between, or all there is."""
    assert_each_by_itself(stack_of(**knobs, attention=attention), torch.from_numpy(keep))


@pytest.mark.parametrize("attention", ["full", "causal"])
@pytest.mark.parametrize(
    "knobs",
    [
        {"injection": "add"},
        {"injection": "concat"},
        {"attention_weights": "hardmax"},
        {"norm": "query-key"},
        {"norm": "none"},
        {"positions": "rotary"},  # which tells how far apart two tokens are, not where they begin
    ],
    ids=label,
)
@pytest.mark.parametrize("keep", [LEFT, RIGHT], ids=["left", "right"])
def test_padding_on_a_side_changes_nothing_whatever_the_stack(knobs, attention, keep):
    stack = stack_of(block="modulated", num_loops=3, attention=attention, **knobs)
    assert_each_by_itself(stack, torch.tensor(keep))


@pytest.mark.parametrize("backprop_loops", [1, 2])
@pytest.mark.parametrize("remat", [0, 2])
def test_truncation_and_computing_again_know_padding(remat, backprop_loops):
    stack = stack_of(block="looped", num_loops=3, injection="add")
    stack.remat = remat
    assert_each_by_itself(stack, torch.tensor(LEFT), backprop_loops=backprop_loops)


@pytest.mark.parametrize("causal", [False, True])
def test_who_sees_whom(causal):
    """Every mask of four tokens. A row is never empty, which is what a softmax over it needs; and there is one for all
    queries where they see the same, for one each would take memory that grows with the square of the length."""
    masks = list(product([False, True], repeat=4))
    bias = padding_bias(torch.tensor(masks), causal=causal, dtype=torch.float32)
    assert bias.shape == (16, 1, 4 if causal else 1, 4)
    bias = bias.expand(16, 1, 4, 4)
    for (row, keep), query, key in product(enumerate(masks), range(4), range(4)):
        expected = query == key or (keep[key] and key < query) if causal else keep[key] or not any(keep)
        assert bias[row, 0, query, key] == (0 if expected else -torch.inf)


@pytest.mark.parametrize("attention", ["full", "causal"])
def test_a_mask_is_kept_once_whatever_the_number_of_loops(attention):
    """For the backward pass: of 64 tokens it is larger than a state."""
    stack, keep = stack_of(block="looped", num_loops=6, attention=attention), torch.ones(2, 64, dtype=torch.bool)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack(drawn(2, 64, DIM), keep=keep)
    assert sum(tensor.shape[-2:] == (64, 64) for tensor in kept.values()) == (attention == "causal")


@pytest.mark.parametrize("attention", ["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_padding_changes_nothing_in_half_precision(dtype, attention):
    """Where a norm has to keep the zeros of padding finite, too."""
    stack = stack_of(block="looped", num_loops=3, attention=attention).to(dtype)
    keep, embeddings = torch.tensor([*LEFT, [False] * 5]), drawn(4, SEQ_LEN, DIM).to(dtype)
    states = stack(embeddings, keep=keep)
    assert (states[~keep] == 0).all()
    for row, state, embedding in zip(keep[:3], states, embeddings, strict=False):
        (alone,) = stack(embedding[None, row])
        torch.testing.assert_close(state[row], alone, rtol=0.05, atol=0.05)
    states.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in stack.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("engine", ["compiled", pytest.param("fused", marks=interpreted)])
@pytest.mark.filterwarnings("default")  # compilers warn about their own affairs
def test_every_engine_knows_padding(engine):
    stack = stack_of(block="modulated", num_loops=3, precision="float32", attention="causal")
    keep, embeddings = torch.tensor(RIGHT), drawn(BATCH, SEQ_LEN, DIM).float()
    plain = stack(embeddings, keep=keep)
    assert set_engine(stack, engine) == engine
    torch.testing.assert_close(stack(embeddings, keep=keep), plain, rtol=1e-4, atol=1e-4)


def test_keeping_all_is_as_if_nothing_were_said():
    for attention in ("full", "causal"):
        stack, embeddings = stack_of(block="looped", num_loops=3, attention=attention), drawn(2, 4, DIM)
        kept = stack(embeddings, keep=torch.ones(2, 4, dtype=torch.bool))
        torch.testing.assert_close(kept, stack(embeddings), rtol=1e-10, atol=1e-10)
        *_, last = stack.iterate(embeddings, keep=torch.ones(2, 4, dtype=torch.bool))
        assert torch.equal(last, kept)


@pytest.mark.parametrize(
    ("keep", "came"),
    [
        (torch.ones(2, 4, dtype=torch.long), r"torch.int64 of shape \(2, 4\)"),  # as some tokenizers give it
        (torch.ones(4, 4, dtype=torch.bool), r"torch.bool of shape \(4, 4\)"),
        (torch.ones(2, 1, 4, dtype=torch.bool), r"torch.bool of shape \(2, 1, 4\)"),
    ],
)
def test_another_mask_is_refused(keep, came):
    stack = stack_of(block="looped")
    for call in (stack, stack.iterate):
        with pytest.raises(InputError, match=rf"expected keep to be bools of shape \(2, 4\), got {came}$"):
            call(drawn(2, 4, DIM), keep=keep)


def test_what_is_no_tensor_is_refused():
    stack = stack_of(block="looped")
    for call in (stack, stack.iterate):
        for keep in ([[True] * 4] * 2, np.ones((2, 4), dtype=bool)):
            with pytest.raises(InputError, match=f"^expected keep to be a tensor, got {type(keep).__name__}$"):
                call(drawn(2, 4, DIM), keep=keep)
        with pytest.raises(InputError, match=r"^expected embeddings to be a tensor, got ndarray$"):
            call(drawn(2, 4, DIM).numpy())
        with pytest.raises(InputError, match=r"^num_loops: expected"):
            call(drawn(2, 4, DIM), True)
    with pytest.raises(InputError, match=r"^expected a ModelConfig, got dict$"):
        LoopStack({"dim": DIM})
