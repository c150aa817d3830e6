"""The lemmas of Steps 1-3 and Appendix B: exhaustively right as corrected, wrong as printed on the stated inputs."""

import random
from fractions import Fraction
from itertools import pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.theory.lemmas.contextual import contextual_map
from looped.theory.lemmas.memorizer import (
    bit_extraction,
    bits_memorizer,
    minimal_modulated_memorizer,
    modulated_memorizer,
)
from looped.theory.lemmas.quantizer import quantizer
from looped.theory.lemmas.streams import Grouping, sqrt_memorizer, stream_memorizer

F = Fraction


# ---- Step 1 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [2, 3, 4, 5, 7, 12])
def test_quantizer_floors_outside_the_trifling_region(cells):
    network = quantizer(cells, epsilon=F(1, 16 * cells))
    for sixteenth in range(16 * cells):
        x = F(sixteenth, 16 * cells)
        assert network([[x]]) == [[int(x * cells)]]  # (k+1)/n - epsilon itself is still exact


def test_quantizer_is_wrong_only_in_the_trifling_region_and_at_one():
    network = quantizer(4, epsilon=F(1, 64))
    assert network([[F(1, 4) - F(1, 128)]]) != [[0]]
    assert network([[F(1)]]) == [[0]]  # 1 lies in no half-open cell


def test_quantizer_in_several_dimensions_and_its_size():
    for dim, cells in product((1, 2, 3), (2, 5)):
        network = quantizer(cells, dim)
        size = network.size
        assert (size.dims, size.width, size.loops, size.heads) == (5 * dim, 7 * dim, cells - 1, 0)
    x = [F(3, 10), F(9, 10), F(0)]
    assert quantizer(5, 3)([x]) == [[1, 4, 0]]


def test_quantizer_value_persists_in_later_loops():
    from dataclasses import replace

    network = replace(quantizer(4), loops=9)
    assert [network([[F(k, 4)]])[0][0] for k in range(4)] == [0, 1, 2, 3]


def test_quantizer_as_printed_adds_overlapping_rectangles():
    assert quantizer(4, printed={"rectangle"})([[F(749, 1000)]]) == [[3]]
    assert quantizer(4)([[F(749, 1000)]]) == [[2]]


def test_quantizer_as_printed_misses_the_last_cell():
    assert quantizer(2, printed={"start"})([[F(1, 2)]]) == [[0]]
    assert quantizer(2)([[F(1, 2)]]) == [[1]]


# ---- Step 2 -------------------------------------------------------------------------------------------------------

CONTEXTS = [(2, 1), (2, 2), (3, 2), (3, 3), (4, 3), (4, 4), (5, 3)]


@pytest.mark.parametrize(("base", "tokens"), CONTEXTS)
def test_contextual_map_writes_the_sorted_ids_in_base_b(base, tokens):
    network = contextual_map(base, tokens)
    assert (network.size.dims, network.size.heads, network.size.width, network.size.loops) == (5, 1, 3, tokens)
    for z in permutations(range(base), tokens):
        digits = sorted(z)
        assert network([[a] for a in z]) == [[sum(a * base**i for i, a in enumerate(digits))]] * tokens


@pytest.mark.parametrize(("cells", "dim", "tokens"), [(2, 1, 2), (3, 1, 3), (2, 2, 2), (2, 2, 3), (5, 1, 2)])
def test_corollary_leaves_room_for_dummies(cells, dim, tokens):
    base = cells**dim
    network = contextual_map(base, tokens, with_digit=True)
    assert (network.size.dims, network.size.heads, network.size.width, network.size.loops) == (8, 2, 5, tokens)
    for z in permutations(range(base), tokens):
        sequence = sum(a * base**i for i, a in enumerate(sorted(z)))
        assert network([[a, a % cells] for a in z]) == [[2 * sequence - min(z) % cells]] * tokens


def test_equal_tokens_share_the_attention():
    assert contextual_map(6, 2)([[4], [4]]) == [[4 * 6 + 4]] * 2
    three = contextual_map(6, 3)
    assert three([[5], [5], [3]]) == three([[5], [3], [3]]) == [[5 * 36 + 3 * 6 + 5]] * 3  # equal for N = 3


@pytest.mark.parametrize(
    ("with_digit", "fault", "wrong"),
    [
        (False, "bias", [4, 4]),
        (True, "bias", None),
        (True, "second key", [3, 3]),
        (True, "stray digit", [0, 0]),
        (True, "own digit", [3, 4]),
    ],
)
def test_contextual_map_as_printed_is_wrong(with_digit, fault, wrong):
    columns = [[1, 1], [0, 0]] if with_digit else [[1], [0]]
    right = [4, 4] if with_digit else [2, 2]
    output = [value for (value,) in contextual_map(2, 2, with_digit, printed={fault})(columns)]
    assert output != right
    assert wrong is None or output == wrong
    assert [value for (value,) in contextual_map(2, 2, with_digit)(columns)] == right


def test_softmax_with_the_printed_m_moves_the_id_past_a_neighbour():
    sharpness = F(416, 100)

    def worst(printed):
        network = contextual_map(4, 2, True, sharpness, printed)
        errors = []
        for z in permutations(range(4), 2):
            expected = 2 * (max(z) * 4 + min(z)) - min(z)
            errors += [float(value - expected) for (value,) in network([[a, a] for a in z])]
        return max(errors, key=abs)

    assert worst({"deselection"}) == pytest.approx(1.48, abs=0.01)
    assert abs(worst(())) < 0.25


# ---- Step 3 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", range(1, 8))
def test_bit_extraction_sums_the_first_k_bits(r):
    for bits in product((0, 1), repeat=r):
        network = bit_extraction(bits)
        for k in range(1, r + 1):
            assert network([[k]]) == [[bits[:k].count(1)]]
    assert (network.size.dims, network.size.width, network.size.loops) == (6, 9, r)


def test_bit_extraction_of_a_long_sequence():
    generator = random.Random(5)
    bits = [generator.randrange(2) for _ in range(120)]
    network = bit_extraction(bits)
    for k in (1, 2, 59, 119, 120):
        assert network([[k]]) == [[sum(bits[:k])]]


@pytest.mark.parametrize(("bits", "k", "fault"), [((0, 1), 2, "stray step"), ((0, 1), 2, "signs"), ((1,), 1, "lag")])
def test_bit_extraction_as_printed_is_wrong(bits, k, fault):
    assert bit_extraction(bits, {fault})([[k]]) == [[0]]
    assert bit_extraction(bits)([[k]]) == [[1]]


def test_the_printed_start_lags_by_exactly_one_loop():
    for bits in product((0, 1), repeat=4):
        lagging = bit_extraction(bits, {"lag"})
        for k in range(1, 5):
            assert lagging([[k]]) == [[sum(bits[: min(k, 3)])]]


LABELS = st.integers(1, 2).flatmap(
    lambda d: st.lists(st.lists(st.fractions(-3, 3, max_denominator=9), min_size=d, max_size=d), min_size=2, max_size=7)
)


@settings(max_examples=60, deadline=None)
@given(LABELS)
def test_bits_memorizer_is_within_half_a_jump(labels):
    network = bits_memorizer(labels)
    dim, size = len(labels[0]), network.size
    assert (size.dims, size.width, size.loops) == (12 * dim, 18 * dim, len(labels) - 1)
    for k, label in enumerate(labels):
        for i, output in enumerate(network([[k]])[0]):
            jump = max(abs(b[i] - a[i]) for a, b in pairwise(labels))
            assert abs(output - label[i]) <= jump / 2


def test_bits_memorizer_as_printed_is_wrong_at_the_first_id_and_by_a_whole_jump():
    labels = [0, 1, 1]
    assert bits_memorizer(labels, {"first id"})([[0]]) == [[1]]
    assert bits_memorizer(labels)([[0]]) == [[0]]
    labels = [F(0), F(1), F(19, 10)]
    errors = [abs(bits_memorizer(labels, {"floor"})([[k]])[0][0] - y) for k, y in enumerate(labels)]
    assert max(errors) == F(9, 10)


@settings(max_examples=60, deadline=None)
@given(LABELS)
def test_modulated_memorizers_are_exact(labels):
    dim = len(labels[0])
    paper, minimal = modulated_memorizer(labels), minimal_modulated_memorizer(labels)
    assert (paper.size.dims, paper.size.width, paper.size.loops) == (4 * dim, 6 * dim, len(labels) - 1)
    assert (minimal.size.dims, minimal.size.width, minimal.size.loops) == (dim + 1, 2, len(labels) - 1)
    for k, label in enumerate(labels):
        assert paper([[k]])[0] == label
        assert minimal([[k]])[0] == label


def test_modulated_memorizer_as_printed_is_wrong():
    labels = [2, -3, 5, -1, 4]
    biased = modulated_memorizer(labels, {"label bias"})
    assert [biased([[k]])[0][0] for k in (3, 4)] == [F(3, 5), F(44, 15)]
    started = modulated_memorizer(labels, {"label start"})
    assert [started([[k]])[0][0] for k in range(1, 4)] == labels[2:]  # the label of k + 1
    bounded = modulated_memorizer([-5, 1, 2], {"bound"})
    assert [bounded([[k]])[0][0] for k in range(3)] != [-5, 1, 2]
    for y in (labels, [-5, 1, 2]):
        assert [modulated_memorizer(y)([[k]])[0][0] for k in range(len(y))] == y


@pytest.mark.parametrize("build", [stream_memorizer, sqrt_memorizer])
@pytest.mark.parametrize("q", [1, 3])
def test_a_sample_bears_a_time_that_is_off_by_a_quarter(build, q):
    """All bits are 1, so the samples are as large as possible. A softmax id k may be off by 1/(4q)."""
    labels = [1 - F(1, 2**q)] * 4
    network = build(labels, q)
    for k in range(4):
        for off in (F(-1, 4), F(-1, 5), F(1, 5), F(1, 4)):
            assert network([[k + off / q]]) == [[labels[k]]]


Q_BITS = st.tuples(st.integers(1, 4), st.integers(1, 2)).flatmap(
    lambda qd: st.tuples(
        st.just(qd[0]),
        st.lists(st.lists(st.integers(0, 2 ** qd[0] - 1), min_size=qd[1], max_size=qd[1]), min_size=2, max_size=9),
    )
)


@settings(max_examples=40, deadline=None)
@given(Q_BITS)
def test_streams_return_q_bit_labels_exactly(case):
    q, codes = case
    labels = [[F(c, 2**q) for c in row] for row in codes]
    dim, count = len(labels[0]), len(labels)
    stream, root = stream_memorizer(labels, q), sqrt_memorizer(labels, q)
    assert (stream.size.dims, stream.size.width, stream.size.loops) == (2 * dim + 1, 7 * dim + 4, q * (count - 1) + 1)
    assert (root.size.dims, root.size.width) == (2 * dim + 4, 7 * dim + 6)
    for k, label in enumerate(labels):
        assert stream([[k]])[0] == label
        assert root([[k]])[0] == label


@settings(max_examples=25, deadline=None)
@given(st.lists(st.fractions(-3, 3, max_denominator=50), min_size=2, max_size=8), st.integers(1, 5), st.booleans())
def test_streams_of_arbitrary_labels_err_by_at_most_the_resolution(labels, q, exact):
    span = max(max(labels) - min(labels), 1 if all(0 <= y < 1 for y in labels) else 0)
    for build in (stream_memorizer, sqrt_memorizer):
        network = build(labels, q, exact)
        assert all(abs(network([[k]])[0][0] - y) <= span / 2**q for k, y in enumerate(labels))


def test_one_loop_less_and_the_stream_memorizer_fails():
    from dataclasses import replace

    labels = [F(1, 4), F(3, 4), F(1, 4)]
    network = stream_memorizer(labels, 2)
    assert network([[2]]) == [[F(1, 4)]]
    assert replace(network, loops=network.loops - 1)([[2]]) != [[F(1, 4)]]


@pytest.mark.parametrize("q", [1, 2, 5, 8, 30])
def test_grouping_is_the_cheapest_split_and_about_two_square_roots(q):
    for count in [*range(1, 130), 500, 1024, 3000]:
        split = Grouping.best(count, q)
        assert split.groups * split.group >= count
        brute = min(k1 + q * (-(-count // k1) - 1) for k1 in range(1, count + 1))
        assert split.loops == brute <= 2 * (q * count) ** 0.5 + 1


@pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 20, 40])
def test_sqrt_memorizer_group_size_trades_bits_for_loops(group):
    """K = 40 labels of q = 3 bits take ceil(K/K2) + q(K2-1) loops and numbers of q K2 + 1 bits, or as the gate has."""
    rng = random.Random(0)
    labels = [F(rng.randrange(8), 8) for _ in range(40)]
    network = sqrt_memorizer(labels, 3, group=group)
    assert [network([[k]]) for k in range(40)] == [[[y]] for y in labels]
    assert network.size.loops == -(-40 // group) + 3 * (group - 1)
    gate = 4 * -(-40 // group) * group + 4  # silences the units of the first phase
    assert network.size.max_bits <= max(3 * group + 1, gate.bit_length())
