"""Arrays where one number or a name belongs, and numbers beyond floats: refused in one line, and at once."""

import numpy as np
import pytest
import torch

from looped import InputError, theory
from looped.theory.constructions.any_length import approximate_any_length

BEYOND = 10**400
ARRAYS = [np.array([0.1, 0.2]), np.array(2.0), np.ones((2, 2)), torch.tensor([0.1, 0.2]), torch.ones(2, 2), [0.5]]


def square(x):
    return x**2


def same(which, delta):
    return delta


@pytest.mark.parametrize("wrong", [*ARRAYS, BEYOND], ids=lambda value: type(value).__name__)
def test_an_array_is_no_number(wrong):
    _assert_refused(
        {
            "expected delta > 0 and finite": lambda: theory.moduli(square, 1, 2, wrong),
            "expected p >= 1": lambda: theory.moduli(square, 1, 2, 0.1, wrong),
            "finite Lipschitz constant >= 0": lambda: theory.moduli(square, 1, 2, 0.1, lipschitz=wrong),
            "expected an error > 0": lambda: theory.loops_for_error(wrong, "lean", 1, 2, same),
            "expected a span >= 0": lambda: theory.loops_for_error(0.5, "lean", 1, 2, same, 2, wrong),
        }
    )


@pytest.mark.parametrize("wrong", ARRAYS, ids=lambda value: type(value).__name__)
def test_an_array_is_no_whole_number_and_no_name(wrong):
    _assert_refused(
        {
            "expected a seed >= 0": lambda: theory.moduli(square, 1, 2, 0.1, seed=wrong),
            "dims_per_loop must be a whole number": lambda: theory.loops_needed(5, 2, 3, 4, wrong),
            "unknown variant": lambda: theory.approximate(square, 1, 2, 2, wrong),
            "unknown representative": lambda: theory.approximate(square, 1, 2, 2, representative=wrong),
            "unknown memorizer": lambda: theory.memorize([1, 2], wrong),
            "unknown function": lambda: theory.load(wrong, 1, 2),
        }
    )


def _assert_refused(uses):
    for message, use in uses.items():
        with pytest.raises(InputError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("counts", [(BEYOND, 1, 2), (1, 10**9, 2), (1, 2, BEYOND)])
def test_a_grid_beyond_counting_is_refused_at_once(counts):
    for build in (theory.approximate, approximate_any_length):
        with pytest.raises(InputError, match=r"make more than 2\^100 cells: take fewer$"):
            build(square, *counts)


def test_bits_beyond_counting_are_refused():
    with pytest.raises(InputError, match="bits: expected at most 1,000,000,000, got 1000"):
        theory.approximate(square, 1, 2, 2, "lean-stream", bits=BEYOND)
