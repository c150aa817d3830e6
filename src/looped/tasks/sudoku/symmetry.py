"""Symmetric images of a board. A model may solve one image of a puzzle and fail at another."""

from typing import NamedTuple

import numpy as np

from looped.tasks.sudoku.solver import geometry


class Symmetry(NamedTuple):
    """A relabelling of the digits and a permutation of the cells that keep the rules."""

    digits: np.ndarray
    """(side + 1,) new digit for each digit; 0, an open cell, stays 0"""
    cells: np.ndarray
    """(cells,) source cell of each cell"""

    def apply(self, boards: np.ndarray) -> np.ndarray:
        """Return the images of (..., cells) boards."""
        return self.digits[boards[..., self.cells]]

    def undo(self, boards: np.ndarray) -> np.ndarray:
        """Return the boards of which these are the images."""
        original = np.empty_like(boards)
        original[..., self.cells] = np.argsort(self.digits)[boards]
        return original


def random_symmetries(side: int, count: int, seed: int = 0) -> list[Symmetry]:
    """Return `count` symmetries. The first leaves a board as it is, and the others are random."""
    generator = np.random.default_rng(seed)
    identity = Symmetry(np.arange(side + 1), np.arange(side * side))
    return [identity, *(_random_symmetry(side, generator) for _ in range(count - 1))]


def _random_symmetry(side: int, generator: np.random.Generator) -> Symmetry:
    digits = np.concatenate([[0], 1 + generator.permutation(side)])
    rows, columns = _random_lines(side, generator), _random_lines(side, generator)
    cells = side * rows[:, None] + columns
    return Symmetry(digits, (cells.T if generator.random() < 0.5 else cells).ravel())


def _random_lines(side: int, generator: np.random.Generator) -> np.ndarray:
    """Return the rows or columns in an order that keeps the boxes: permuted bands, and permuted lines in each band."""
    box = round(side**0.5)
    return np.concatenate([box * band + generator.permutation(box) for band in generator.permutation(box)])


def obey_rules(boards: np.ndarray, side: int) -> np.ndarray:
    """Return one boolean per (..., cells) board: True if every row, column and box has every digit once."""
    units = np.sort(boards[..., geometry(side).units], axis=-1)
    return (units == 1 + np.arange(side)).all(axis=(-1, -2))
