"""Lower bounds for every network: below the constructions, and equal to the stated formulas."""

from fractions import Fraction
from itertools import product
from math import comb, log2

import numpy as np
import pytest

from looped import theory
from looped.theory.bounds import loops_needed
from tests.refusal import refused


def test_bits_needed_are_those_that_tell_all_tables_apart():
    for count, q, dim in [(1, 1, 1), (3, 2, 1), (2, 1, 3), (2, 2, 2), (1, 3, 2)]:
        tables = {*product(product(range(2**q), repeat=dim), repeat=count)}
        assert 2 ** theory.bits_needed(count, q, dim) == len(tables)


def test_real_labels_need_as_many_free_numbers():
    """K d numbers must be stored in W weights, or in W + r m numbers with r values of eta for each of m rows."""
    assert theory.real_labels_memorizable(10, 3, 30)
    assert not theory.real_labels_memorizable(10, 3, 29)
    assert theory.real_labels_memorizable(10, 3, 20, loops=5, modulated_rows=2)
    assert not theory.real_labels_memorizable(10, 3, 20, loops=3, modulated_rows=3)
    assert not theory.real_labels_memorizable(10, 3, 29, loops=7)  # loops alone add no numbers
    assert not theory.real_labels_memorizable(10, 3, 29, modulated_rows=7)


def test_lower_bounds_are_below_the_constructions():
    rng = np.random.default_rng(0)
    for count, q in [(4, 2), (16, 4), (64, 3)]:
        labels = [Fraction(int(k), 2**q) for k in rng.integers(0, 2**q, count)]
        for variant, free in (("stream", False), ("sqrt", True)):
            size = theory.memorize(labels, variant, q).size
            rows = size.dims if free else 0
            assert loops_needed(count, q, size.width, size.parameters, rows) <= size.loops
        stream = theory.memorize(labels, "stream", q)
        assert theory.bits_needed(count, q, 1) <= stream.size.parameters * stream.size.max_bits
        minimal = theory.memorize(labels, "modulated-minimal")
        assert theory.real_labels_memorizable(count, 1, minimal.size.parameters)
    assert not theory.real_labels_memorizable(1000, 1, 90)


def test_lower_bound_ignores_weights_beyond_the_number_of_polynomials():
    """One loop with two units for each of 9 steps stores any 10 labels. Extra zero weights change nothing."""
    assert loops_needed(10, 8, 18, 18 * 3 + 9 * 4) <= 1
    for parameters in (10**3, 10**5, 10**9):
        assert loops_needed(10, 8, 18, parameters) <= 1
        assert loops_needed(10, 8, 1024, parameters) <= 1


def test_the_lower_bound_on_loops_is_the_least_solution():
    count, q, width, weights = 100_000, 8, 20, 90
    least = loops_needed(count, q, width, weights)

    def room(r):
        e = np.e
        per_loop = 1 + weights * log2(4 * e * count * width * (r + 1) / weights)
        return r * per_loop + 1 + weights * log2(4 * e * count * 2**q * (r + 1) / weights)

    assert room(least) >= q * count > room(least - 1)


def test_modulation_adds_weights_and_degrees_to_the_lower_bound():
    """There are W + r m free numbers, and each loop raises the degree by 3, so 2 e (3r+3) = 6 e (r+1)."""
    count, q, width, weights, rows = 10**6, 8, 20, 90, 6
    least = loops_needed(count, q, width, weights, rows)

    def room(r):
        free = weights + r * rows
        per_loop = 1 + free * log2(6 * np.e * count * width * (r + 1) / free)
        return r * per_loop + 1 + free * log2(6 * np.e * count * 2**q * (r + 1) / free)

    assert room(least) >= q * count > room(least - 1)
    assert least < loops_needed(count, q, width, weights)


def test_the_lower_bound_of_a_block_is_below_the_constructions_and_is_the_least_solution():
    target = theory.load("wave", 1, 2)
    for variant in theory.VARIANTS:
        for cells in (3, 6):
            size = theory.approximate(target, 1, 2, cells, variant, bits=1).size
            rows = size.dims if variant.startswith("modulated") else 0
            needed = theory.block_loops_needed(comb(cells, 2), 2, size.heads, size.width, size.parameters, rows)
            assert needed <= size.loops
    sequences, tokens, heads, width, weights = comb(400, 3), 3, 2, 74, 4000
    least = theory.block_loops_needed(sequences, tokens, heads, width, weights)

    def room(r):
        return weights * (2 * r + 1) * log2(64 * np.e * (r + 1) * sequences * tokens**3 * max(heads, width) / weights)

    assert room(least) >= sequences > room(least - 1)
    assert theory.block_loops_needed(10, 2, 1, 20, 10**9) == 0  # more weights than polynomials


@pytest.mark.parametrize("factors", [4, 5], ids=["weight-tied", "modulated"])
def test_the_stages_of_a_block_have_no_more_patterns_than_the_lower_bound_counts(factors):
    """Add up Alon's (8 e k D / W)^W for k polynomials of degree D over all stages: scores, units and the output.

    A loop multiplies the state x by W_V and W_O, then by W1 and W2 (and eta): its degree grows by 4 (or 5).
    """
    sequences, tokens, heads, width, weights = 5000, 3, 2, 40, 900

    def bits(polynomials, degree):
        return weights * log2(8 * np.e * polynomials * degree / weights)

    for loops in (0, 1, 7, 100):
        stages, degree = 0.0, 1
        for _ in range(loops):
            stages += bits(sequences * heads * tokens * comb(tokens, 2), 2 * (degree + 1))
            stages += bits(sequences * tokens * width, degree + 3)
            degree += factors
        stages += bits(sequences, degree + 1)
        formula = weights * (2 * loops + 1) * log2(64 * np.e * (loops + 1) * sequences * tokens**3 * width / weights)
        assert stages <= formula


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: theory.bits_needed(-3, 2, 1), "num_labels"),
        (lambda: theory.bits_needed(3, 2, 0), "dim"),
        (lambda: theory.real_labels_memorizable(0, 1, 1), "num_labels"),
        (lambda: theory.real_labels_memorizable(10, 1, 9, loops=-1, modulated_rows=1), "loops"),
        (lambda: theory.real_labels_memorizable(10, 1, 9, loops=1, modulated_rows=0.5), "modulated_rows"),
        (lambda: loops_needed(10, 1, 1, 1, -1), "dims_per_loop"),
    ],
)
def test_lower_bounds_with_invalid_counts_raise(call, field):
    with refused(field):
        call()
