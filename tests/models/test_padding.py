"""Padded batches: each sequence has the states and the gradients that it has alone."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

from looped import LoopStack
from looped.kernels import padding_bias
from looped.training import set_engine
from tests.refusal import refused

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
    """Return states (loop, batch, seq, dim) and gradients with respect to the embeddings and every parameter.

    The gradients are those of the sum of the states, weighted by the directions.
    """
    embeddings = embeddings.clone().requires_grad_()
    num_loops = stack.config.num_loops
    states = torch.stack([state for _, state in stack.states_at(embeddings, num_loops, range(num_loops), **options)])
    leaves = [embeddings, *stack.parameters()]
    return states, torch.autograd.grad((states * directions).sum(), leaves, materialize_grads=True)


def assert_each_by_itself(stack: LoopStack, mask: torch.Tensor, tolerance: float = 1e-10, **options) -> None:
    """Compare with sequences that are cut out and run one by one, without a mask."""
    embeddings, directions = drawn(*mask.shape, DIM), drawn(stack.config.num_loops, *mask.shape, DIM)
    true_states = torch.zeros_like(directions)
    true_gradients = [torch.zeros_like(embeddings), *map(torch.zeros_like, stack.parameters())]
    for i, row in enumerate(mask):
        if row.any():
            ways = directions[:, i : i + 1, row]
            alone, (own, *shared) = states_and_gradients(stack, embeddings[i : i + 1, row], ways, **options)
            true_states[:, i, row] = alone[:, 0]
            true_gradients[0][i, row] = own[0]
            for total, part in zip(true_gradients[1:], shared, strict=True):
                total += part
    embeddings[~mask] = torch.nan  # the content of padding must not matter
    states, gradients = states_and_gradients(stack, embeddings, directions, attention_mask=mask, **options)
    for actual, expected in zip((states, *gradients), (true_states, *true_gradients), strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("attention", ["full", "causal"])
@pytest.mark.parametrize("knobs", BLOCKS, ids=label)
@given(mask=MASKS)
@settings(deadline=None, max_examples=12)
def test_padding_anywhere_does_not_change_the_tokens(knobs, attention, mask):
    """Try padding on either side, in between, and everywhere."""
    assert_each_by_itself(stack_of(**knobs, attention=attention), torch.from_numpy(mask))


@pytest.mark.parametrize("attention", ["full", "causal"])
@pytest.mark.parametrize(
    "knobs",
    [
        {"injection": "add"},
        {"injection": "concat"},
        {"attention_weights": "hardmax"},
        {"norm": "query-key"},
        {"norm": "none"},
        {"positions": "rotary"},  # depends on the distance of two tokens, not on the start
    ],
    ids=label,
)
@pytest.mark.parametrize("mask", [LEFT, RIGHT], ids=["left", "right"])
def test_padding_on_a_side_does_not_change_the_tokens_of_any_stack(knobs, attention, mask):
    stack = stack_of(block="modulated", num_loops=3, attention=attention, **knobs)
    assert_each_by_itself(stack, torch.tensor(mask))


@pytest.mark.parametrize("backprop_loops", [1, 2])
@pytest.mark.parametrize("remat", [0, 2])
def test_padding_works_with_truncation_and_rematerialisation(remat, backprop_loops):
    stack = stack_of(block="looped", num_loops=3, injection="add")
    stack.remat = remat
    assert_each_by_itself(stack, torch.tensor(LEFT), backprop_loops=backprop_loops)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_bias_equals_the_definition(causal):
    """Check every mask of four tokens. No row is fully masked, because softmax needs a key.

    Without causality one row serves all queries, because one for each would take memory quadratic in the length.
    """
    masks = list(product([False, True], repeat=4))
    bias = padding_bias(torch.tensor(masks), causal=causal, dtype=torch.float32)
    assert bias.shape == (16, 1, 4 if causal else 1, 4)
    bias = bias.expand(16, 1, 4, 4)
    for (row, mask), query, key in product(enumerate(masks), range(4), range(4)):
        expected = query == key or (mask[key] and key < query) if causal else mask[key] or not any(mask)
        assert bias[row, 0, query, key] == (0 if expected else -torch.inf)


@pytest.mark.parametrize("attention", ["full", "causal"])
def test_mask_is_saved_once_for_all_loops(attention):
    """Count the tensors saved for the backward pass. For 64 tokens the mask is larger than a state."""
    stack, mask = stack_of(block="looped", num_loops=6, attention=attention), torch.ones(2, 64, dtype=torch.bool)
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor  # keep a reference, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack(drawn(2, 64, DIM), attention_mask=mask)
    assert sum(tensor.shape[-2:] == (64, 64) for tensor in saved.values()) == (attention == "causal")


@pytest.mark.parametrize("attention", ["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_padding_in_half_precision_does_not_change_the_tokens(dtype, attention):
    """Check that the norm keeps the zeros of padding finite, too."""
    stack = stack_of(block="looped", num_loops=3, attention=attention).to(dtype)
    mask, embeddings = torch.tensor([*LEFT, [False] * 5]), drawn(4, SEQ_LEN, DIM).to(dtype)
    states = stack(embeddings, attention_mask=mask)
    assert (states[~mask] == 0).all()
    for row, state, embedding in zip(mask[:3], states, embeddings, strict=False):
        (alone,) = stack(embedding[None, row])
        torch.testing.assert_close(state[row], alone, rtol=0.05, atol=0.05)
    states.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in stack.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("engine", ["compiled", pytest.param("fused", marks=interpreted)])
@pytest.mark.filterwarnings("default")  # compilers emit warnings of their own
def test_padding_gives_the_same_states_in_every_engine(engine):
    stack = stack_of(block="modulated", num_loops=3, precision="float32", attention="causal")
    mask, embeddings = torch.tensor(RIGHT), drawn(BATCH, SEQ_LEN, DIM).float()
    plain = stack(embeddings, attention_mask=mask)
    assert set_engine(stack, engine) == engine
    torch.testing.assert_close(stack(embeddings, attention_mask=mask), plain, rtol=1e-4, atol=1e-4)


def test_full_mask_equals_no_mask():
    for attention in ("full", "causal"):
        stack, embeddings = stack_of(block="looped", num_loops=3, attention=attention), drawn(2, 4, DIM)
        saved = stack(embeddings, attention_mask=torch.ones(2, 4, dtype=torch.bool))
        torch.testing.assert_close(saved, stack(embeddings), rtol=1e-10, atol=1e-10)
        *_, last = stack.iterate(embeddings, attention_mask=torch.ones(2, 4, dtype=torch.bool))
        assert torch.equal(last, saved)


@pytest.mark.parametrize(
    ("mask", "actual"),
    [
        (torch.ones(2, 4, dtype=torch.long), torch.int64),  # as some tokenizers give it
        (torch.ones(4, 4, dtype=torch.bool), (4, 4)),
        (torch.ones(2, 1, 4, dtype=torch.bool), (2, 1, 4)),
    ],
)
def test_mask_of_wrong_shape_or_type_raises(mask, actual):
    stack = stack_of(block="looped")
    for call in (stack, stack.iterate):
        with refused("attention_mask", (2, 4), actual):
            call(drawn(2, 4, DIM), attention_mask=mask)


def test_arguments_that_are_not_tensors_raise():
    stack = stack_of(block="looped")
    for call in (stack, stack.iterate):
        for mask in ([[True] * 4] * 2, np.ones((2, 4), dtype=bool)):
            with refused("attention_mask", type(mask).__name__):
                call(drawn(2, 4, DIM), attention_mask=mask)
        with refused("embeddings", "ndarray"):
            call(drawn(2, 4, DIM).numpy())
        with refused("num_loops"):
            call(drawn(2, 4, DIM), True)
