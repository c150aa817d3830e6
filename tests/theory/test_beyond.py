"""Constructions beyond the paper: Horner streams, equal tokens, any length, loops against width."""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest

from looped import theory
from looped.theory.constructions.any_length import approximate_any_length
from looped.theory.engine import Engine
from looped.theory.lemmas.streams import parallel_stream_memorizer, stream_memorizer
from tests.refusal import refused
from tests.theory.oracle import all_cells, label, points

F = Fraction


def rough(x):
    return np.sin(9 * x + 4 * x.sum(axis=1, keepdims=True)) + np.cos(7 * x.sum()) * x


def quantized(value, column, q):
    """Return low + span * floor(2^q (value - low)/span)/2^q, with the largest level for the maximum."""
    low, span = min(column), max(column) - min(column)
    return low + span * F(min(int((value - low) / span * 2**q), 2**q - 1), 2**q)


@pytest.mark.parametrize("variant", ["lean-horner", "lean-multiset"])
@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 3, 2), (2, 2, 2), (1, 1, 3)], ids=str)
def test_weight_tied_blocks_return_the_q_bit_label_exactly(variant, shape):
    dim, tokens, cells = shape
    q = 3
    net = theory.approximate(rough, dim, tokens, cells, variant, bits=q)
    everything = all_cells(dim, tokens, cells, duplicates=True)
    labels = {(z, j): label(rough, z, j, dim, cells, 0.0) for z in everything for j in range(tokens)}
    columns = [[y[i] for y in labels.values()] for i in range(dim)]
    served = all_cells(dim, tokens, cells, duplicates=variant == "lean-multiset" or tokens <= 2)
    if not served:
        return
    output = net(np.array(points(served, dim, cells, F(1, 5)), dtype=object))
    for z, values in zip(served, output, strict=True):
        for j in range(tokens):
            assert list(values[:, j]) == [quantized(labels[z, j][i], columns[i], q) for i in range(dim)], z


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 3, 2), (2, 2, 2)], ids=str)
def test_their_sizes(shape):
    d, tokens, n = shape
    base, q = n**d, 3
    horner = theory.approximate(rough, d, tokens, n, "lean-horner", bits=q).size
    assert (horner.dims, horner.heads, horner.width) == (4 * d + 8, 1, 8 * d + 15)
    assert horner.loops == n + tokens + q * base**tokens
    multiset = theory.approximate(rough, d, tokens, n, "lean-multiset", bits=q).size
    ids = tokens * (tokens + 1) ** (tokens - 1) * base**tokens
    assert (multiset.dims, multiset.heads, multiset.width) == (3 * d + 9, 2, 9 * d + 16)
    assert multiset.loops == n + tokens + q * (ids - 1)


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 3, 3), (2, 2, 2), (1, 1, 3), (1, 4, 2)], ids=str)
def test_square_root_block_with_counting_serves_equal_tokens(shape):
    """Every label is returned within span 2^-q from below, for two and three equal tokens too; sizes as stated."""
    dim, tokens, cells = shape
    q, base = 4, cells**dim
    net = theory.approximate(rough, dim, tokens, cells, "modulated-sqrt-multiset", bits=q)
    everything = all_cells(dim, tokens, cells, duplicates=True)
    labels = {(z, j): label(rough, z, j, dim, cells, 0.0) for z in everything for j in range(tokens)}
    columns = [[y[i] for y in labels.values()] for i in range(dim)]
    came = net(np.array(points(everything, dim, cells, F(1, 5)), dtype=object))
    for z, values in zip(everything, came, strict=True):
        for j, i in product(range(tokens), range(dim)):
            code = quantized(labels[z, j][i], columns[i], q)
            assert code <= values[i, j] < code + (max(columns[i]) - min(columns[i])) / 2**q, z
    ids = tokens * (tokens + 1) ** (tokens - 1) * base**tokens
    assert (net.size.dims, net.size.heads, net.size.width) == (3 * dim + 10, 2, 7 * dim + 10)
    assert net.size.loops == min(cells + tokens - 1 + -(-ids // group) + q * (group - 1) for group in range(1, ids + 1))


@pytest.mark.parametrize("shape", [(1, 2, 2), (1, 2, 3), (1, 3, 2)], ids=str)
def test_square_root_block_with_counting_is_the_same_with_softmax(shape):
    dim, tokens, cells = shape
    hard, soft = (
        theory.approximate(rough, dim, tokens, cells, "modulated-sqrt-multiset", bits=2, softmax=softmax)
        for softmax in (False, True)
    )
    x = np.array(points(all_cells(dim, tokens, cells, duplicates=True), dim, cells, F(1, 5)), dtype=object)
    assert (hard(x) == soft(x)).all()


def test_horner_weights_do_not_grow_with_the_number_of_labels():
    def largest(variant, count):
        labels = [F(k * 5 % 16, 16) for k in range(count)]
        memory = theory.memorize(labels, variant, bits=4)
        assert [value for (value,) in memory.table()] == labels
        weights = memory.network.weights()
        return max(abs(w) for array in (weights.first, weights.second, weights.first_bias) for w in array.flat)

    assert largest("horner", 4) == largest("horner", 24) == 16
    assert largest("stream", 24) > 2**90
    size = theory.memorize([0, 0.5, 0.25], "horner", bits=4).size
    assert (size.dims, size.width, size.loops) == (5, 11, 4 * 3 + 1)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_width_buys_loops(m):
    labels = [[F(k * 5 % 16, 16), F(k * 3 % 16, 16)] for k in range(7)]
    network = stream_memorizer(labels, 4, bits_per_loop=m)
    size = network.size
    assert (size.dims, size.width) == (2 * 2 + 1, (2 ** (m + 1) + 3) * 2 + 4)
    assert size.loops == 4 // m * 6 + 1
    assert [network([[k]])[0] for k in range(7)] == labels


@pytest.mark.parametrize("streams", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [8, 12, 11])
def test_parallel_streams_divide_the_loops(streams, count):
    labels = [[F(k * 5 % 16, 16), F(k * 3 % 16, 16)] for k in range(count)]
    network = parallel_stream_memorizer(labels, 4, streams)
    size = network.size
    assert (size.dims, size.width) == ((streams + 1) * 2 + 1, streams * (7 * 2 + 4))
    assert size.loops == 4 * (-(-count // streams) - 1) + 1
    assert [network([[k]])[0] for k in range(count)] == labels


def test_one_network_serves_every_length():
    dim, most, cells = 1, 3, 3

    def mean_and_length(x):
        return np.sin(5 * x) + x.sum(axis=1, keepdims=True) + 10.0 * x.shape[1]

    net = approximate_any_length(mean_and_length, dim, most, cells)
    size, base = net.size, cells**dim
    assert (size.dims, size.heads, size.width) == (2 * dim + 8, 2, 2 * dim + 6)
    assert size.loops == cells - 1 + most + base * comb(base + most - 1, most - 1) - 1
    for tokens in range(1, most + 1):
        for z in product(range(base), repeat=tokens):
            output = net(np.array(points([z], dim, cells, F(1, 3))[0], dtype=object))
            for j in range(tokens):
                assert list(output[:, j]) == label(mean_and_length, z, j, dim, cells, 0.0)


def test_any_length_in_two_dimensions_and_its_errors():
    net = approximate_any_length(rough, 2, 2, 2, "centre")
    for tokens in (1, 2):
        for z in product(range(4), repeat=tokens):
            output = net(np.array(points([z], 2, 2, F(1, 2))[0], dtype=object))
            for j in range(tokens):
                assert list(output[:, j]) == label(rough, z, j, 2, 2, 0.5)
    with refused("inputs", (2, 3)):
        net(np.zeros((2, 3)))
    with refused("cells"):
        approximate_any_length(rough, 2, 6, 9)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_without_a_marker_a_doubled_sequence_looks_the_same(variant, softmax):
    """TF([X, X]) = [TF(X), TF(X)], so length or sum cannot be represented for mixed lengths."""
    network = theory.approximate(rough, 1, 2, 2, variant, bits=2, softmax=softmax).network
    x = np.array([[[F(1, 8), F(5, 8)]]], dtype=object)
    single, double = Engine(network)(x), Engine(network)(np.concatenate([x, x], axis=2))
    if softmax:
        assert np.allclose(np.concatenate([single, single], axis=2).astype(float), double.astype(float), atol=1e-9)
    else:
        assert (np.concatenate([single, single], axis=2) == double).all()


def test_any_length_puts_one_into_the_last_cell():
    net = approximate_any_length(rough, 1, 3, 3)
    assert (net([[0.1, 1]]) == net([[0.1, 0.9]])).all()
    assert (net([[1.0]]) == net([[F(2, 3)]])).all()
