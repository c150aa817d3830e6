"""Confidence intervals, an exact test and a correlation: all statistics of the package."""

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

INTERVAL_DEVIATIONS = 1.959964
"""half the width of a 95 % interval, in standard deviations of a normal distribution"""
NUM_RESAMPLES = 1000


def wilson(successes: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a proportion."""
    share, z = successes / total, INTERVAL_DEVIATIONS
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # Rounding must not move an end past the share itself (at 0 and 1 they are equal).
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


def bootstrap(statistic: Callable[[np.ndarray], float], size: int) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic, which takes the indices of a resample of `size` examples."""
    generator = np.random.default_rng(0)
    resampled = [statistic(generator.integers(size, size=size)) for _ in range(NUM_RESAMPLES)]
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(low), float(high)


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Return a 95 % interval of the mean: Wilson's for zeros and ones, the bootstrap's for other values."""
    if np.isin(values, (0.0, 1.0)).all():
        return wilson(int(values.sum()), len(values))
    return bootstrap(lambda rows: float(values[rows].mean()), len(values))


def fisher_exact(successes: int, total: int, other_successes: int, other_total: int) -> float:
    """Return the two-sided p-value of Fisher's exact test that two proportions are equal.

    Near 0 % and 100 %, where good models are, the normal approximation finds differences that do not exist.
    """
    all_successes, everything = successes + other_successes, total + other_total

    def log_probability(k: int) -> float:
        ways = _log_choose(total, k) + _log_choose(other_total, all_successes - k)
        return ways - _log_choose(everything, all_successes)

    possible = range(max(0, all_successes - other_total), min(total, all_successes) + 1)
    observed = log_probability(successes) + 1e-9  # tolerance, so that rounding does not separate equal probabilities
    return min(1.0, sum(math.exp(each) for k in possible if (each := log_probability(k)) <= observed))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Pearson's correlation coefficient, or None if one side does not vary."""
    try:
        return statistics.correlation(xs, ys)
    except statistics.StatisticsError:
        return None
