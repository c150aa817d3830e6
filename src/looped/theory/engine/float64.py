"""The same network in plain float64, with a certificate: the number of loops whose states are proved exact.

A sum of products is exact if all its terms are multiples of one power of two, u, and their absolute values add up to
less than 2^53 u. This is checked for every unit and row of every loop. After a failure no later number is trusted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from looped.theory.network import LoopedNetwork

SMALLEST = -1074  # the exponent of the smallest positive float64; a finer number underflows
COARSE = 1100  # the exponent of zero, which is a multiple of every power of two


@dataclass(frozen=True)
class FloatRun:
    """Values of shape (outputs, tokens). `exact_through` is the number of loops whose states are proved exact."""

    values: np.ndarray
    exact_through: int
    loops: int

    @property
    def exact(self) -> bool:
        """True if all states are proved exact. The values then have only the rounding error of the decoder."""
        return self.exact_through == self.loops


def run_in_float64(network: LoopedNetwork, inputs: np.ndarray) -> FloatRun:
    """Evaluate one input of shape (dim, tokens) with hard attention in float64."""
    weights = network.weights()
    rounded = {name: array.astype(np.float64) for name, array in vars(weights).items()}
    representable = all(
        _is_held(value, float(value))
        for name, array in vars(weights).items()
        for value in array.flat
        if not name.startswith("decode")
    )
    given = inputs.astype(np.float64)
    representable = representable and all(map(_is_held, inputs.flat, given.flat))
    state, sure = _affine(rounded["encode"], given, rounded["encode_bias"])
    sure = sure and representable
    through = 0
    for t in range(network.loops):
        state, kept = _attend(rounded, state)
        sure = sure and kept
        hidden, kept = _affine(rounded["first"], state, rounded["first_bias"])
        sure = sure and kept
        change, kept = _affine(rounded["second"], np.maximum(hidden, 0), rounded["second_bias"])
        sure = sure and kept
        scales = [network.modulation[name][t] if name in network.modulation else 1 for name in network.rows]
        eta = np.array([float(scale) for scale in scales])
        sure = sure and all(map(_is_held, scales, eta))
        state, kept = _sum([state, eta[:, None] * change], factors=[(eta[:, None], change)])
        sure = sure and kept
        through = t + 1 if sure else through
    values = rounded["decode"] @ state + rounded["decode_bias"][:, None]
    return FloatRun(values, through, network.loops)


def _is_held(value: Fraction | float, rounded: float) -> bool:
    return math.isfinite(rounded) and Fraction(float(rounded)) == value


def _affine(matrix: np.ndarray, columns: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return matrix @ columns + bias, and True if it is exact."""
    units = _unit(matrix)[:, :, None] + _unit(columns)[None, :, :]
    units = np.minimum(units.min(axis=1, initial=COARSE), _unit(bias)[:, None])
    with np.errstate(all="ignore"):
        size = abs(matrix) @ abs(columns) + abs(bias)[:, None]
        return matrix @ columns + bias[:, None], _is_exact(units, size)


def _attend(weights: dict[str, np.ndarray], state: np.ndarray) -> tuple[np.ndarray, bool]:
    if not len(weights["value"]):
        return state, True
    zero = np.zeros(len(weights["value"]))
    (values, a), (keys, b), (queries, c) = (_affine(weights[n], state, zero) for n in ("value", "key", "query"))
    scores = keys[:, :, None] * queries[:, None, :]  # (heads, from, to)
    best = scores == scores.max(axis=1, keepdims=True)
    selected, counts = values[:, :, None] * best, best.sum(axis=1)
    sums, e = _sum(list(selected.transpose(1, 0, 2)))
    means = sums / counts
    # a short quotient that gives back its dividend was not rounded; queries of 0 and 1 do not round a score
    whole = bool((means * counts == sums).all() and (means == np.round(means * 2**10) / 2**10).all())
    whole = whole and bool(np.isin(queries, (0.0, 1.0)).all())
    result, d = _sum([state, weights["out"].T @ means])
    return result, a and b and c and d and e and whole


def _sum(terms: list[np.ndarray], factors: Sequence[tuple[np.ndarray, np.ndarray]] = ()) -> tuple[np.ndarray, bool]:
    units = np.minimum.reduce([_unit(term) for term in terms])
    for left, right in factors:
        units = np.minimum(units, _unit(left) + _unit(right))
    with np.errstate(all="ignore"):
        size = np.add.reduce([abs(term) for term in terms])
        return np.add.reduce(terms), _is_exact(units, size)


def _is_exact(units: np.ndarray, size: np.ndarray) -> bool:
    """Return True if float64 holds every sum of multiples of 2^units whose absolute values add up to `size`."""
    return bool(((units >= SMALLEST) & (size < 2.0 ** np.clip(units + 53, SMALLEST, 1000))).all())


def _unit(values: np.ndarray) -> np.ndarray:
    """Return the exponent of the largest power of two that divides each number."""
    mantissa, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))
    digits = (mantissa * 2.0**53).astype(np.int64)
    lowest = digits & -digits
    trailing = np.frexp(lowest.astype(np.float64))[1] - 1
    return np.where(digits == 0, COARSE, exponent - 53 + trailing)
