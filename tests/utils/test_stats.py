"""Statistics against their definitions, written another way."""

import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.utils.stats import correlation, fisher_exact, mean_interval, wilson

shares = st.floats(0, 1)


@given(st.integers(1, 500).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_wilson_ends_solve_the_score_equation(counts):
    """The ends p of the interval solve |share - p| = z sqrt(p (1 - p) / n)."""
    successes, total = counts
    low, high = wilson(successes, total)
    assert 0 <= low <= successes / total <= high <= 1
    for end in (low, high):
        if 1e-9 < end < 1 - 1e-9:
            distance = abs(successes / total - end)
            assert distance == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / total), abs=1e-9)


def test_mean_interval_of_normal_values_matches_the_normal_interval():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=2000)
    low, high = mean_interval(values)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_mean_interval_of_zeros_and_ones_is_wilsons():
    assert mean_interval(np.array([1.0, 0.0, 1.0, 1.0])) == wilson(3, 4)


def fisher(a: int, n: int, b: int, m: int) -> Fraction:
    """Return the p-value by its definition, in integers: all tables with these margins that are at most as likely."""
    ways = {k: comb(n, k) * comb(m, a + b - k) for k in range(max(0, a + b - m), min(n, a + b) + 1)}
    return Fraction(sum(way for way in ways.values() if way <= ways[a]), comb(n + m, a + b))


def test_fisher_exact_equals_the_sum_over_all_tables():
    generator = np.random.default_rng(0)
    for _ in range(200):
        n, m = (int(size) for size in generator.integers(1, 60, 2))
        a, b = int(generator.integers(n + 1)), int(generator.integers(m + 1))
        assert fisher_exact(a, n, b, m) == pytest.approx(float(fisher(a, n, b, m)), rel=1e-6)
    assert fisher_exact(9000, 10_000, 9100, 10_000) == pytest.approx(float(fisher(9000, 10_000, 9100, 10_000)))


@given(st.lists(st.tuples(shares, shares), min_size=5, max_size=20))
def test_correlation_equals_numpys(pairs):
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    if min(np.std(xs), np.std(ys)) > 1e-3:
        assert correlation(xs, ys) == pytest.approx(np.corrcoef(xs, ys)[0, 1], abs=1e-9)
    assert correlation([0.5] * len(ys), ys) is None
