"""Attention on the chip, and PyTorch's where that does not fit, against softmax written out in float64."""

import pytest
import torch

from looped.kernels import reference
from tests.kernels.cases import (
    DEVICE,
    DTYPES,
    GUARD,
    Draw,
    assert_near,
    bound,
    error,
    guarded,
    laboratory,
    leaf,
    neighbours,
    rotation_of,
)

pytest.importorskip("triton")

from looped.kernels.triton_attention import attend, attend_backward, paired

pytestmark = pytest.mark.filterwarnings("ignore:.*determinis.*:UserWarning")  # CUDA's, where poison asks for it

# (batch, seq_len, num_heads, head size): on the chip up to 128 tokens and for heads of 16, 32 and 64.
ON_CHIP = [(3, 1, 1, 16), (2, 5, 3, 32), (2, 17, 2, 64), (1, 128, 1, 32)]
ELSEWHERE = [(2, 130, 1, 32), (2, 5, 2, 24), (3, 1, 2, 8), (2, 17, 1, 48)]


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


def mixed_by_softmax(qkv, rotation, batch, num_heads, causal):
    """What the heads attend to, (tokens, dim), by the definition, in the precision of qkv."""
    heads = qkv.view(batch, -1, 3, num_heads, qkv.shape[1] // 3 // num_heads)
    query, key, value = heads.permute(2, 0, 3, 1, 4)
    if rotation is not None:
        query, key = (reference.rotate(each, rotation) for each in (query, key))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(len(qkv), -1)


def plainly(qkv, grad, rotation, batch, num_heads, causal, dtype):
    """(mixed, gradient of qkv) in a precision."""
    given = leaf(qkv, dtype)
    turned = None if rotation is None else reference.Rotation(*(each.to(dtype) for each in rotation))
    mixed = mixed_by_softmax(given, turned, batch, num_heads, causal)
    mixed.backward(grad.to(dtype))
    return mixed.detach(), given.grad


def both_ways(qkv, grad, rotation, out, mixed, **heads):
    """Forward and backward as a training step does: of short sequences nothing is kept but qkv. What a rotation turns
    together is brought side by side for it, and back."""
    size = grad.shape[1] // heads["num_heads"]
    order = list(range(qkv.shape[1])) if rotation is None else neighbours(heads["num_heads"], size)
    given = qkv[:, order].contiguous()
    before = given.clone()
    rotation = None if rotation is None else reference.Rotation(*(each.to(qkv.dtype) for each in rotation))
    attended = attend(given, rotation, keep=True, **heads)
    assert attended.whole is not None or torch.equal(given, before)
    kept = None if attended.whole is None else attended
    attend_backward(given, kept, grad, rotation, out=out, mixed=mixed, **heads)
    out[:, order] = out.clone()
    return attended


def example(batch, seq_len, num_heads, size, dtype, rotary):
    """Scores of a spread of 3: neither flat nor all on one key."""
    draw = Draw()
    qkv = draw(batch * seq_len, 3 * num_heads * size, std=3**0.5, dtype=dtype)
    grad = draw(batch * seq_len, num_heads * size, dtype=dtype)
    return qkv, grad, rotation_of(seq_len, size // 2) if rotary else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "seq_len", "num_heads", "size"), ON_CHIP + ELSEWHERE)
def test_attention_and_its_gradient(batch, seq_len, num_heads, size, causal, rotary, dtype):
    qkv, grad, rotation = example(batch, seq_len, num_heads, size, dtype, rotary)
    exact = plainly(qkv, grad, rotation, batch, num_heads, causal, torch.float64)
    plain = plainly(qkv, grad, rotation, batch, num_heads, causal, dtype)
    heads = {"num_heads": num_heads, "seq_len": seq_len, "causal": causal}
    (out, behind_out), (mixed, behind_mixed) = (guarded(*shape, dtype) for shape in (qkv.shape, grad.shape))
    attended = both_ways(qkv, grad, rotation, out, mixed, **heads)
    on_chip = attended.whole is None
    assert on_chip == ((batch, seq_len, num_heads, size) in ON_CHIP)
    for got, wanted, plain_error in (
        (attended.mixed, exact[0], error(plain[0], exact[0])),
        (mixed, exact[0], error(plain[0], exact[0])),
        (out, exact[1], error(plain[1], exact[1])),
    ):
        assert_near(got, wanted, bound(dtype, plain_error))
    assert all(bool((guard == GUARD).all()) for guard in (behind_out, behind_mixed))


@pytest.mark.parametrize(("num_heads", "size"), [(1, 2), (2, 6), (3, 32)])
def test_pairs_are_neighbours(num_heads, size):
    assert paired(num_heads * size, num_heads, torch.device("cpu")).tolist() == neighbours(num_heads, size)


@pytest.mark.parametrize(("batch", "seq_len", "num_heads", "size"), [(2, 17, 2, 32), (2, 17, 2, 24)])
def test_each_of_queries_keys_and_values_gets_its_own_gradient(batch, seq_len, num_heads, size):
    """Measured apart, so that a small one is not hidden by a large one."""
    qkv, grad, rotation = example(batch, seq_len, num_heads, size, torch.float32, True)
    _, wanted = plainly(qkv, grad, rotation, batch, num_heads, True, torch.float64)
    heads = {"num_heads": num_heads, "seq_len": seq_len, "causal": True}
    out, mixed = torch.empty_like(qkv), torch.empty_like(grad)
    both_ways(qkv, grad, rotation, out, mixed, **heads)
    for got, true in zip(out.chunk(3, dim=1), wanted.chunk(3, dim=1), strict=True):
        assert_near(got, true, 1e-5)


@pytest.mark.parametrize(("seq_len", "size"), [(17, 32), (17, 24), (130, 32)])
def test_what_comes_later_is_not_seen_and_sequences_do_not_mix(seq_len, size):
    draw = Draw()
    qkv = draw(3 * seq_len, 3 * 2 * size)
    heads = {"num_heads": 2, "seq_len": seq_len, "causal": True, "keep": False}
    rotation = rotation_of(seq_len, size // 2)
    before = attend(qkv.clone(), rotation, **heads).mixed
    changed = qkv.clone()
    place = seq_len + seq_len // 2  # in the middle of the second sequence
    changed[place] = draw(3 * 2 * size)
    after = attend(changed, rotation, **heads).mixed
    same = (before == after).all(dim=1)
    untouched = torch.ones(3 * seq_len, dtype=torch.bool, device=DEVICE)
    untouched[place : 2 * seq_len] = False
    assert torch.equal(same, untouched)


# PyTorch's backward pass finds the weights again from a logarithm of their sum, which has 24 bits.
@pytest.mark.parametrize(("size", "large"), [(32, 1e3), (32, 1e4), (24, 1e3)])
def test_large_scores_stay_finite(size, large):
    qkv = large * Draw()(5, 3 * size).sign()
    grad, rotation = torch.ones(5, size, device=DEVICE), None
    wanted, wanted_grad = plainly(qkv, grad, rotation, 1, 1, True, torch.float64)
    heads = {"num_heads": 1, "seq_len": 5, "causal": True}
    out, mixed = torch.empty_like(qkv), torch.empty_like(grad)
    both_ways(qkv, grad, rotation, out, mixed, **heads)
    assert_near(mixed, wanted, 1e-5)
    assert out.isfinite().all()
    assert_near(out[:, 2 * size :], wanted_grad[:, 2 * size :], 1e-5)


@pytest.mark.parametrize("shape", [ON_CHIP[1], ELSEWHERE[0]], ids=["on the chip", "elsewhere"])
def test_attend_keeps_tensors_only_off_the_chip_and_for_a_backward(shape):
    """Short sequences are computed again from qkv; without a backward pass nothing is kept at all."""
    _, seq_len, num_heads, _ = shape
    qkv, _, rotation = example(*shape, torch.float32, True)
    heads = {"num_heads": num_heads, "seq_len": seq_len, "causal": False}
    kept, free = (attend(qkv.clone(), rotation, keep=keep, **heads) for keep in (True, False))
    assert torch.equal(kept.mixed, free.mixed)
    assert not kept.mixed.requires_grad
    assert (kept.whole is None) == (shape in ON_CHIP)
    assert free.whole is None
    assert not free.heads


@pytest.mark.parametrize(("seq_len", "fits"), [(128, True), (129, False)])
def test_the_longest_sequence_on_the_chip(seq_len, fits):
    qkv, _, rotation = example(1, seq_len, 1, 32, torch.float32, True)
    attended = attend(qkv, rotation, num_heads=1, seq_len=seq_len, causal=False, keep=True)
    assert (attended.whole is None) == fits
