"""Sudoku, 4x4 and 9x9: puzzles are generated, read from a file, or drawn from a pool."""

from looped.tasks.sudoku.task import Sudoku

__all__ = ["Sudoku"]
