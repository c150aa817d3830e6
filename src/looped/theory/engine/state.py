"""The state of a batch: the dynamic rows with their ranges, and every way to change them."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from looped.theory.engine.compile import FLOAT_LIMIT, CompiledNetwork
from looped.theory.network import Number

HUGE = 2**996  # replaces larger numbers where only a bound is needed


class State:
    """All rows of all tokens of a batch after some loop, as multiples of 1/D. `row` returns true values.

    A row is float64 while all its values are integers below 2^53. Otherwise it moves from `float_rows` to
    `bigint_rows`. `low` and `high` bound each row, and `version` counts its changes.
    """

    def __init__(self, compiled: CompiledNetwork, batch: int, tokens: int):
        self.compiled, self.batch, self.tokens = compiled, batch, tokens
        self.loop = 0
        self.static_rows = compiled.start_static_rows()
        count = len(compiled.dynamic_rows)
        self.float_rows = np.zeros((count, batch * tokens))
        self.bigint_rows: dict[int, np.ndarray] = {}  # object arrays of ints or Fractions
        self.low, self.high = np.zeros(count), np.zeros(count)
        self.version = [0] * count

    def magnitude(self, i: int) -> float:
        """Return a bound on the absolute values of row i."""
        return max(-self.low[i], self.high[i])

    @property
    def magnitudes(self) -> np.ndarray:
        """The bounds on the absolute values of all rows."""
        return np.maximum(-self.low, self.high)

    def row(self, name: str) -> np.ndarray:
        """Return the true values of one row as Fractions, of shape (batch, tokens)."""
        denominator = self.compiled.denominator[name]
        values = [Fraction(v) / denominator for v in self.scaled_row(name).tolist()]
        return objects(values).reshape(self.batch, self.tokens)

    def scaled_row(self, name: str) -> np.ndarray:
        """Return a row times its denominator as exact numbers, one per token of the batch."""
        if name in self.compiled.index:
            return self.integers(self.compiled.index[name])
        return objects([self.static_rows.value(name)] * (self.batch * self.tokens))

    def integers(self, i: int) -> np.ndarray:
        """Return dynamic row i times its denominator, as exact numbers."""
        return self.bigint_rows[i] if i in self.bigint_rows else integers(self.float_rows[i])

    def store(self, i: int, values: np.ndarray) -> None:
        """Set row i to exact numbers, as float64 if all of them fit."""
        if _fits_float(values):
            self.bigint_rows.pop(i, None)
            self.float_rows[i] = values.astype(np.float64)
            self._measure(i)
        else:
            self.bigint_rows[i] = values
            self._bound(i)
        self.version[i] += 1

    def add(self, i: int, where: np.ndarray | slice, change: np.ndarray) -> None:
        """Add exact numbers to some tokens of row i."""
        if not change.any():
            return
        if i not in self.bigint_rows:
            values = self.integers(i)
            values[where] += change
            self.store(i, values)
            return
        self.bigint_rows[i][where] += change
        if self.compiled.is_read[i]:  # the range of a row that no unit reads is never used
            self._bound(i)
        self.version[i] += 1

    def add_floats(self, i: int, change: np.ndarray) -> None:
        """Add float64 integers to row i."""
        if i in self.bigint_rows or self.magnitude(i) + abs(change).max() >= FLOAT_LIMIT:
            self.add(i, slice(None), integers(change))
        elif change.any():
            self.float_rows[i] += change
            self._measure(i)
            self.version[i] += 1

    def add_block(self, rows: np.ndarray, change: np.ndarray) -> None:
        """Add float64 integers to several rows at once. The caller has proved that all results are exact."""
        block = self.float_rows[rows]
        block += change
        self.float_rows[rows] = block
        self.low[rows], self.high[rows] = block.min(axis=1), block.max(axis=1)

    def shift(self, i: int, constant: Number) -> None:
        """Add the same number to all tokens of row i."""
        if not constant:
            return
        if constant.denominator == 1 and abs(clip(constant)) + self.magnitude(i) < FLOAT_LIMIT:
            for array in (self.float_rows, self.low, self.high):
                array[i] += float(constant)
            self.version[i] += 1
        else:
            self.add(i, slice(None), objects([constant] * self.float_rows.shape[1]))

    def _measure(self, i: int) -> None:
        self.low[i], self.high[i] = self.float_rows[i].min(), self.float_rows[i].max()

    def _bound(self, i: int) -> None:
        """Set the range of a big-integer row, rounded outwards."""
        values = self.bigint_rows[i]
        self.low[i] = math.nextafter(clip(values.min()), -math.inf)
        self.high[i] = math.nextafter(clip(values.max()), math.inf)


def _fits_float(values: np.ndarray) -> bool:
    integral = all(type(v) is int or v.denominator == 1 for v in values.tolist())
    return integral and values.min() > -FLOAT_LIMIT and values.max() < FLOAT_LIMIT


def clip(value: Number) -> float:
    """Return a number as a float, limited to +-HUGE."""
    return float(max(-HUGE, min(value, HUGE)))


def objects(values: Sequence) -> np.ndarray:
    """Return a one-dimensional object array."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def integers(values: np.ndarray) -> np.ndarray:
    """Return float64 integers as Python integers."""
    return values.astype(np.int64).astype(object)
