"""Read a user's puzzle file, plain or gzip: a CSV or JSON lines with a column `puzzle`, or one puzzle per line.

The columns `solution`, `clues` and `source` are read too, and other columns are ignored. `question` and `answer` may
stand for `puzzle` and `solution`, as in a `test.csv` of Sudoku-Extreme (source, question, answer, rating). The public
file of 3 million puzzles (id, puzzle, solution, clues, difficulty) is in this format, and so is what `looped data
build` writes. Open cells are 0 or a dot. Every puzzle is solved and must have exactly one solution, the stated one.
"""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from looped.tasks.files import csv_fields, file_rows, text_lines
from looped.tasks.sudoku.generator import content_buckets
from looped.tasks.sudoku.solver import geometry, solve_boards, workspace
from looped.utils.errors import InputError, require

CHUNK = 100_000  # rows that are in memory as text at a time
OTHER_NAMES = {"question": "puzzle", "answer": "solution"}  # of columns


class FilePuzzles(NamedTuple):
    """The puzzles of a file, row by row."""

    puzzles: np.ndarray
    """(rows, cells) int8, 0 for an open cell"""
    solutions: np.ndarray
    """(rows, cells) int8"""
    guesses: np.ndarray
    """(rows,) number of guesses that the solver needs"""
    buckets: np.ndarray
    """(rows,) content buckets, which decide the split"""
    sources: np.ndarray
    """(rows,) values of the column `source`, empty if there is none"""


class _Row(NamedTuple):
    line: int
    puzzle: str
    solution: str
    clues: str
    source: str


def read_puzzles(path: Path, side: int) -> FilePuzzles:
    """Read and check a whole file. Raise InputError at the first wrong row."""
    rows = _rows(path, side * side)
    parts = []
    while part := list(islice(rows, CHUNK)):
        parts.append(_solve_and_check(path, part, side))
    require(bool(parts), f"{path}: expected Sudoku puzzles, got none")
    return FilePuzzles(*map(np.concatenate, zip(*parts, strict=True)))


def _solve_and_check(path: Path, rows: list[_Row], side: int) -> FilePuzzles:
    """Return the solved rows. Raise InputError if a stated solution or number of clues is wrong."""
    puzzles = _digits(path, [(row.line, row.puzzle) for row in rows], side)
    solutions, counts, guesses = solve_boards(puzzles, 2, geometry(side), workspace(side))
    names = {0: "none", 2: "several"}
    _require_all(counts == 1, path, rows, lambda i: f"a puzzle with one solution, got one with {names[int(counts[i])]}")
    if any(row.solution for row in rows):
        stated = _digits(path, [(row.line, row.solution) for row in rows], side)
        right = (stated == solutions).all(axis=1)
        _require_all(right, path, rows, lambda i: f"the solution {_text(solutions[i])}, got {rows[i].solution}")
    if any(row.clues for row in rows):
        num_clues = np.count_nonzero(puzzles, axis=1)
        right = np.array([row.clues == str(count) for row, count in zip(rows, num_clues, strict=True)])
        _require_all(right, path, rows, lambda i: f"{num_clues[i]} in column 'clues', got {rows[i].clues!r}")
    sources = np.array([row.source for row in rows])
    return FilePuzzles(puzzles, solutions, guesses, content_buckets(puzzles, solutions), sources)


def _rows(path: Path, num_cells: int) -> Iterator[_Row]:
    """Yield the rows of a file in any format, with their line numbers."""
    lines = text_lines(path)
    if (first := next(lines, None)) is None:
        return
    columns = {OTHER_NAMES.get(name, name) for name in csv_fields(path, *first)}
    if first[1].startswith("{") or "puzzle" in columns:
        for number, row in file_rows(path, "sudoku"):
            named = {OTHER_NAMES.get(name, name): str(value) for name, value in row.items()}
            require("puzzle" in named, f"{path}, line {number}: expected a field 'puzzle', got {', '.join(row)[:80]}")
            yield _Row(number, *(named.get(name, "") for name in _Row._fields[1:]))
        return
    require(
        len(_first_word(first[1])) == num_cells,
        f"{path}, line {first[0]}: expected a column 'puzzle' or a puzzle of {num_cells} cells, got {first[1][:100]!r}",
    )
    for number, line in chain([first], lines):
        yield _Row(number, _first_word(line), "", "", "")


def _first_word(line: str) -> str:
    """Return the puzzle at the start of a line, before a rating or a name, or "" if there is none."""
    words = line.replace(",", " ").split(maxsplit=1)
    return words[0] if words else ""


def _digits(path: Path, boards: list[tuple[int, str]], side: int) -> np.ndarray:
    """Return boards as (rows, cells) digits. Raise InputError if one has the wrong length or a wrong symbol."""
    for line, board in boards:
        if len(board) != side * side or not board.isascii():
            raise InputError(f"{path}, line {line}: expected {side * side} cells, got {len(board)} in {board[:100]!r}")
    cells = np.frombuffer("".join(board for _, board in boards).encode(), dtype=np.uint8).reshape(len(boards), -1)
    digits = np.where(cells == ord("."), 0, cells.astype(np.int8) - ord("0")).astype(np.int8)
    invalid = np.flatnonzero(((digits < 0) | (digits > side)).any(axis=1))
    if len(invalid):
        line, board = boards[invalid[0]]
        raise InputError(f"{path}, line {line}: expected digits 0-{side} or dots, got {board!r}")
    return digits


def _text(board: np.ndarray) -> str:
    return "".join(map(str, board))


def _require_all(right: np.ndarray, path: Path, rows: list[_Row], expected: Callable[[int], str]) -> None:
    """Raise InputError for the first wrong row. `expected(row)` gives the rest of the message."""
    wrong = np.flatnonzero(~right)
    if len(wrong):
        raise InputError(f"{path}, line {rows[wrong[0]].line}: expected {expected(int(wrong[0]))}")
