"""Sudoku of any side: puzzles generated, read from a file, or drawn from a pool."""

from looped.tasks.sudoku.task import Sudoku

__all__ = ["Sudoku"]
