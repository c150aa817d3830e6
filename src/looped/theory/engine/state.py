"""The state of a batch in the engine: integers in the unit of each row, as float64 where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from looped.theory.engine.compile import Lattice, Statics


@dataclass
class State:
    """All rows of all tokens of a batch after some loop, in units 1/D; `row` gives true values."""

    lattice: Lattice
    batch: int
    tokens: int
    loop: int
    statics: Statics
    small: np.ndarray  # (rows, batch * tokens) float64 integers
    wide: dict[int, np.ndarray]  # rows that outgrew float64: object arrays of ints or Fractions

    def row(self, name: str) -> np.ndarray:
        """True values of one row, (batch, tokens) Fractions."""
        unit = self.lattice.unit[name]
        values = [Fraction(v) / unit for v in self.numbers(name).tolist()]
        return objects(values).reshape(self.batch, self.tokens)

    def numbers(self, name: str) -> np.ndarray:
        """A row as exact numbers in its unit, one per token of the batch."""
        if name in self.lattice.index:
            return self.integers(self.lattice.index[name])
        return objects([self.statics.value(name)] * (self.batch * self.tokens))

    def integers(self, i: int) -> np.ndarray:
        return self.wide[i] if i in self.wide else integers(self.small[i])


def objects(values: Sequence) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def integers(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64).astype(object)
