"""Intervals against formulas written another way."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.tasks import EditDistance, Sudoku
from looped.training.evaluation import MAX_EXAMPLES, interval, num_held_out, wilson
from looped.utils.errors import InputError


@given(st.integers(1, 500).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_wilson_ends_are_where_the_score_test_just_rejects(counts):
    """The interval's ends p solve |share - p| = z sqrt(p (1 - p) / n)."""
    right, total = counts
    z = 1.959964
    low, high = wilson(right, total)
    assert 0 <= low <= right / total <= high <= 1
    for end in (low, high):
        if 1e-9 < end < 1 - 1e-9:
            distance = abs(right / total - end)
            assert distance == pytest.approx(z * math.sqrt(end * (1 - end) / total), abs=1e-9)


def test_the_bootstrap_covers_like_the_normal_interval():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=2000)
    low, high = interval(values)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_zeros_and_ones_get_wilson():
    assert interval(np.array([1.0, 0.0, 1.0, 1.0])) == wilson(3, 4)


def test_a_test_has_no_more_examples_than_there_are_nor_without_end():
    assert num_held_out(Sudoku(pool=300), "test", MAX_EXAMPLES) == 300
    assert num_held_out(EditDistance(), "test", MAX_EXAMPLES) == MAX_EXAMPLES
    for task in (EditDistance(), Sudoku(difficulty="hard")):  # whose puzzles would have to be made to be counted
        with pytest.raises(InputError, match="1,000,000"):
            num_held_out(task, "test", MAX_EXAMPLES + 1)
