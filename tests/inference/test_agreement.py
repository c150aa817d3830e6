"""When two measurements agree: proportions by Fisher's exact test, means by their distance."""

from fractions import Fraction

import numpy as np
import pytest

from looped.inference.shipping import agree
from looped.models.pretrained import ShippedScore
from tests.utils.test_stats import fisher


def share(right: int, size: int) -> ShippedScore:
    return ShippedScore("accuracy", right / size, 0.0, 1.0, size, 3)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1000, 1000), (1000, 1000), True),
        ((1000, 1000), (49, 50), True),  # a normal approximation would call this 4.5 deviations
        ((0, 1000), (0, 4), True),
        ((900, 1000), (450, 500), True),
        ((900, 1000), (435, 500), True),  # p = 0.09
        ((900, 1000), (420, 500), False),  # p = 0.0009
        ((1000, 1000), (0, 4), False),
        ((1900, 2000), (180, 200), True),  # p = 0.007: rare, but every check of several models has such
    ],
)
def test_shares_agree_unless_chance_would_part_them_less_than_once_in_a_thousand(first, second, expected):
    assert agree(share(*first), share(*second)) is expected
    assert agree(share(*second), share(*first)) is expected
    assert (fisher(*first, *second) >= Fraction(1, 1000)) is expected


def test_means_agree_within_deviations_of_their_distance():
    def mean(value: float, error: float) -> ShippedScore:
        return ShippedScore("squared_error", value, value - 1.96 * error, value + 1.96 * error, 100, 3)

    assert agree(mean(1.0, 0.3), mean(2.6, 0.4))  # 3.2 deviations of 0.5
    assert not agree(mean(1.0, 0.3), mean(2.7, 0.4))  # 3.4
    assert agree(mean(1.0, 0.0), mean(1.0, 0.0))


def test_a_small_test_that_missed_the_rare_large_errors_agrees():
    """One example in a hundred is wrong by 2, the others by 0.01: of 100, a third have no wrong one among them."""
    rng = np.random.default_rng(0)

    def measured(size: int, wrong: float) -> ShippedScore:
        values = np.where(rng.random(size) < wrong, 4.0, 0.0001) * rng.exponential(size=size)
        error = float(values.std(ddof=1) / size**0.5)
        value = float(values.mean())
        return ShippedScore("squared_error", value, value - 1.96 * error, value + 1.96 * error, size, 3)

    recorded = measured(10_000, 0.01)
    assert all(agree(recorded, measured(100, 0.0)) for _ in range(5))
    assert np.mean([agree(recorded, measured(100, 0.01)) for _ in range(200)]) > 0.97
    assert not any(agree(recorded, measured(400, 0.1)) for _ in range(20))
