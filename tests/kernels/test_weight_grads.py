"""Gradients of weights and tables from the operands of all loops, against autograd in float64 on the same operands.

Operands are exact in their own precision and are summed in float32, so bfloat16 must be as near as float32.
"""

import itertools

import pytest
import torch

from looped.kernels.reference import LayerWeights, Modulation
from tests.kernels.cases import Draw, assert_near, laboratory, leaf

pytest.importorskip("triton")

from looped.kernels import triton_weight_grads
from looped.kernels.triton_pointwise import SUM_ROWS
from looped.kernels.triton_weight_grads import Gradients

pytestmark = pytest.mark.filterwarnings("ignore:.*determinis.*:UserWarning")  # CUDA's, where poison asks for it

EVERYTHING = ("scale", "shift", "gate")


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


def random_tables(draw, loops, layers, dim, kinds):
    """(attention, feed-forward): tables (loop, layer, dim) of the kinds that are there."""
    return tuple(
        Modulation(*(draw(loops, layers, dim, mean=1.0, std=0.5) if kind in kinds else None for kind in EVERYTHING))
        for _ in range(2)
    )


def random_weights(draw, dim, ff_dim):
    shapes = ((3 * dim, dim), (dim, dim), (ff_dim, dim), (ff_dim,), (dim, ff_dim), (dim,))
    return LayerWeights(*(draw(*shape) for shape in shapes))


class Operands:
    """Random operands [loop][layer], and what autograd makes of them."""

    def __init__(self, draw, loops, layers, tokens, dim, ff_dim, dtype):
        widths = (3 * dim, dim, dim, ff_dim, ff_dim, dim)
        self.made = [
            [[draw(tokens, width, dtype=dtype) for width in widths] for _ in range(layers)] for _ in range(loops)
        ]
        self.normed = [draw(2, loops, tokens, dim, dtype=dtype) for _ in range(layers)]

    def gathered(self, gradients, piece):
        """As the backward pass goes about it: the last loop first, room asked for one application ahead."""
        loops, layers = len(self.made), len(self.made[0])
        for t, layer in itertools.product(reversed(range(loops)), reversed(range(layers))):
            start = t // piece * piece
            places = gradients.operands(t, layer, start)
            for place, value in zip(places, self.made[t][layer], strict=False):
                place.copy_(value)
            slope = self.made[t][layer][3].float()
            places.slope_sums.copy_(torch.stack([tile.sum(dim=0) for tile in slope.split(SUM_ROWS)]))
            before = (t, layer - 1) if layer else (t - 1, layers - 1)
            if before[0] >= 0:
                gradients.operands(*before, before[0] // piece * piece)
            both = self.normed[layer][:, start : start + piece]
            gradients.done(t, layer, (both[0], both[1]), start)
        tables, weights = gradients.finish()
        return [*tables, *(tensor for one in weights for tensor in one)]

    def by_autograd(self, tables, weights):
        """The same from what the operands mean: a product's output times the gradient that arrived there."""
        tables = [Modulation(*(leaf(table, torch.float64) for table in each)) for each in tables]
        weights = [LayerWeights(*(leaf(each, torch.float64) for each in one)) for one in weights]
        total = torch.zeros((), dtype=torch.float64, device=weights[0].w_in.device)
        for t, layer in itertools.product(range(len(self.made)), range(len(weights))):
            w = weights[layer]
            attention, feed = (
                Modulation(*(None if table is None else table[t, layer] for table in each)) for each in tables
            )
            grad_qkv, mixed, grad_attention, slope, active, grad_feed = (each.double() for each in self.made[t][layer])
            before_attention, before_feed = self.normed[layer][:, t].double()
            total = total + (grad_qkv * (_modulated(before_attention, attention) @ w.w_qkv.T)).sum()
            total = total + (grad_attention * _gated(mixed @ w.w_out.T, attention)).sum()
            total = total + (slope * (_modulated(before_feed, feed) @ w.w_in.T + w.b_in)).sum()
            total = total + (grad_feed * _gated(active @ w.w_back.T + w.b_back, feed)).sum()
        total.backward()
        flat = [each for table in tables for each in table] + [each for one in weights for each in one]
        return [None if each is None else each.grad for each in flat]


def _modulated(normed, modulation):
    scaled = normed if modulation.scale is None else normed * modulation.scale
    return scaled if modulation.shift is None else scaled + modulation.shift


def _gated(update, modulation):
    return update if modulation.gate is None else update * modulation.gate


def check(*, loops=3, layers=1, tokens=5, dim=48, ff_dim=96, dtype=torch.float32, kinds=EVERYTHING, piece=None):
    draw = Draw()
    tables = random_tables(draw, loops, layers, dim, kinds)
    weights = [random_weights(draw, dim, ff_dim) for _ in range(layers)]
    operands = Operands(draw, loops, layers, tokens, dim, ff_dim, dtype)
    gradients = Gradients(tables, weights, tokens, dtype)
    found = operands.gathered(gradients, piece or loops)
    for got, wanted in zip(found, operands.by_autograd(tables, weights), strict=True):
        assert (got is None) == (wanted is None)
        if wanted is not None:
            assert got.dtype == torch.float32
            assert_near(got, wanted, 1e-5)
    assert not any(gradients.groups)  # all was multiplied
    return gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kinds", [(), ("scale",), ("gate",), ("scale", "gate"), ("shift",), EVERYTHING], ids=str)
def test_weight_grads_of_every_modulation_match_autograd(kinds, dtype):
    check(kinds=kinds, dtype=dtype)


@pytest.mark.parametrize(("tokens", "dim", "ff_dim"), [(1, 8, 8), (17, 20, 130), (130, 48, 64), (64, 32, 96)])
def test_weight_grads_of_partly_filled_tiles_match_autograd(tokens, dim, ff_dim):
    """Tokens beyond a tile of sums, and matrices that fill no tile, or several with a rest."""
    check(tokens=tokens, dim=dim, ff_dim=ff_dim, layers=2, loops=2)


@pytest.mark.parametrize("capacity", [1, 2, 3, 10])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("piece", [1, 2, 3, 5])
def test_groups_of_loops_give_the_same(monkeypatch, capacity, layers, piece):
    """Memory for 1, 2, 3 or all loops at once; traces of 1, 2, 3 or all."""
    dim, ff_dim, tokens = 16, 24, 6
    per_loop = 4 * layers * tokens * (6 * dim + 2 * ff_dim)
    monkeypatch.setattr(triton_weight_grads, "OPERAND_BYTES", capacity * per_loop)
    gradients = check(loops=5, layers=layers, tokens=tokens, dim=dim, ff_dim=ff_dim, piece=piece)
    assert gradients.capacity == capacity


def test_memory_for_less_than_a_loop_is_taken_for_one(monkeypatch):
    monkeypatch.setattr(triton_weight_grads, "OPERAND_BYTES", 1)
    assert check(loops=3).capacity == 1


@pytest.mark.parametrize(("tokens", "pieces"), [(64, 32), (24, 8), (17, 1)])
def test_products_are_cut_where_they_are_few(monkeypatch, tokens, pieces):
    """Into powers of two that divide the tokens: 17 cannot be cut, 24 only into 8."""
    monkeypatch.setattr(triton_weight_grads, "MIN_TILES", 32)
    draw = Draw()
    left, right = draw(1, tokens, 20), draw(1, tokens, 12)
    found = triton_weight_grads._products(left, right)
    assert found.shape == (1, pieces, 20, 12)
    assert_near(found.sum(dim=1), left.double().transpose(1, 2) @ right.double(), 1e-5)
    monkeypatch.setattr(triton_weight_grads, "MIN_TILES", 1)
    assert triton_weight_grads._products(left, right).shape[1] == 1


def test_a_table_that_is_the_same_in_all_loops_gets_a_gradient_per_loop():
    """A constant gain is an expanded row: its gradient is summed by whoever expanded it, and by nobody else."""
    draw = Draw()
    weights, operands = [random_weights(draw, 16, 24)], Operands(draw, 3, 1, 5, 16, 24, torch.float32)
    row = draw(1, 1, 16, mean=1.0)
    shared, own = (
        tuple(Modulation(table, None, None) for _ in range(2)) for table in (row.expand(3, -1, -1), row.repeat(3, 1, 1))
    )
    found = [operands.gathered(Gradients(tables, weights, 5, torch.float32), 3) for tables in (shared, own)]
    for one, other in zip(*found, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("loops", "tokens", "dim", "added"), [(3, 130, 48, 2), (1, 1, 8, 0), (4, 40, 256, 4)])
def test_sum_loops_sums_both_ways(loops, tokens, dim, added, dtype):
    draw = Draw()
    grads, summed = draw(loops, tokens, dim, dtype=dtype), draw(tokens, dim)
    wanted = summed.double() + grads[:added].double().sum(dim=0)
    sums = triton_weight_grads._sum_loops(grads, summed, added)
    assert_near(summed, wanted, 1e-5)
    assert_near(sums, grads.double().sum(dim=1), 1e-5)
