"""Puzzle files of a user, plain or gzip: a CSV whose header names a column `puzzle`, or one puzzle per line.

Of a CSV's other columns `solution`, `clues` and `source` are read; so both the 3-million-puzzle file (id, puzzle,
solution, clues, difficulty) and one with source, puzzle, solution, clues, guesses, se_rating will do. Open cells are
0 or a dot. Every row is solved, and must have one solution, the stated one.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from looped.tasks.sudoku.generator import content_buckets
from looped.tasks.sudoku.solver import geometry, solve_boards, workspace
from looped.utils.errors import InputError, require
from looped.utils.files import bounded_lines

CHUNK = 100_000  # rows in memory as text at a time
_GZIP_MAGIC = b"\x1f\x8b"


class FilePuzzles(NamedTuple):
    """The puzzles of a file, row by row."""

    puzzles: np.ndarray
    """(rows, cells) int8, 0 for an open cell"""
    solutions: np.ndarray
    """(rows, cells) int8"""
    guesses: np.ndarray
    """(rows,) guesses that the solver needs"""
    buckets: np.ndarray
    """(rows,) content buckets, which decide the split"""
    sources: np.ndarray
    """(rows,) the source column, empty if there is none"""


class _Row(NamedTuple):
    line: int
    puzzle: str
    solution: str
    clues: str
    source: str


def read_puzzles(path: Path, side: int) -> FilePuzzles:
    """Read and check a whole file; `InputError` names the first row that is not right."""
    rows = _rows(path, side * side)
    parts = []
    while part := list(islice(rows, CHUNK)):
        parts.append(_checked(path, part, side))
    require(bool(parts), f"{path}: expected Sudoku puzzles, got none")
    return FilePuzzles(*map(np.concatenate, zip(*parts, strict=True)))


def _checked(path: Path, rows: list[_Row], side: int) -> FilePuzzles:
    """Solve rows, and hold what they state against it."""
    puzzles = _digits(path, [(row.line, row.puzzle) for row in rows], side)
    solutions, found, guesses = solve_boards(puzzles, 2, geometry(side), workspace(side))
    came = {0: "none", 2: "several"}
    _require_all(found == 1, path, rows, lambda i: f"a puzzle with one solution, got one with {came[int(found[i])]}")
    if any(row.solution for row in rows):
        stated = _digits(path, [(row.line, row.solution) for row in rows], side)
        right = (stated == solutions).all(axis=1)
        _require_all(right, path, rows, lambda i: f"the solution {_text(solutions[i])}, got {rows[i].solution}")
    if any(row.clues for row in rows):
        counted = np.count_nonzero(puzzles, axis=1)
        right = np.array([row.clues == str(count) for row, count in zip(rows, counted, strict=True)])
        _require_all(right, path, rows, lambda i: f"{counted[i]} in column 'clues', got {rows[i].clues!r}")
    sources = np.array([row.source for row in rows])
    return FilePuzzles(puzzles, solutions, guesses, content_buckets(puzzles, solutions), sources)


def _rows(path: Path, num_cells: int) -> Iterator[_Row]:
    """The rows of a file in either format, with the number of the line that each is on."""
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == _GZIP_MAGIC
            require(packed or path.suffix != ".gz", f"{path}: expected a gzip file, got something else")
            text = io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, encoding="utf-8-sig")
            stripped = ((number, line.strip()) for number, line in enumerate(bounded_lines(text, path), start=1))
            lines = ((number, line) for number, line in stripped if line and not line.startswith("#"))
            if (first := next(lines, None)) is None:
                return
            columns = _fields(path, *first)
            if "puzzle" in columns:
                yield from _csv_rows(path, columns, lines)
                return
            require(
                len(_first_word(first[1])) == num_cells,
                f"{path}, row {first[0]}: expected a column 'puzzle' or a puzzle of {num_cells} cells, "
                f"got {first[1][:100]!r}",
            )
            for number, line in chain([first], lines):
                yield _Row(number, _first_word(line), "", "", "")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text, got something else ({error.reason})") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: expected a whole gzip file, got a damaged one ({error})") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _csv_rows(path: Path, columns: list[str], lines: Iterator[tuple[int, str]]) -> Iterator[_Row]:
    place = {name: columns.index(name) for name in _Row._fields[1:] if name in columns}
    for number, line in lines:
        fields = _fields(path, number, line)
        came = len(fields)
        require(came == len(columns), f"{path}, row {number}: expected {len(columns)} columns, got {came}")
        yield _Row(number, *(fields[place[name]] if name in place else "" for name in _Row._fields[1:]))


def _fields(path: Path, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line])) if '"' in line else line.split(",")
    except csv.Error as error:
        raise InputError(f"{path}, row {number}: expected a row of CSV, got something else ({error})") from None


def _first_word(line: str) -> str:
    """A puzzle at the start of a line, empty in one of commas alone; a rating or a name may follow."""
    words = line.replace(",", " ").split(maxsplit=1)
    return words[0] if words else ""


def _digits(path: Path, boards: list[tuple[int, str]], side: int) -> np.ndarray:
    """Boards as (rows, cells) digits."""
    for line, board in boards:
        if len(board) != side * side or not board.isascii():
            raise InputError(f"{path}, row {line}: expected {side * side} cells, got {len(board)} in {board[:100]!r}")
    cells = np.frombuffer("".join(board for _, board in boards).encode(), dtype=np.uint8).reshape(len(boards), -1)
    digits = np.where(cells == ord("."), 0, cells.astype(np.int8) - ord("0")).astype(np.int8)
    strange = np.flatnonzero(((digits < 0) | (digits > side)).any(axis=1))
    if len(strange):
        line, board = boards[strange[0]]
        raise InputError(f"{path}, row {line}: expected digits 0-{side} or dots, got {board!r}")
    return digits


def _text(board: np.ndarray) -> str:
    return "".join(map(str, board))


def _require_all(right: np.ndarray, path: Path, rows: list[_Row], expected: Callable[[int], str]) -> None:
    """Raise for the first row that is not right, with what was expected there and what came."""
    wrong = np.flatnonzero(~right)
    if len(wrong):
        raise InputError(f"{path}, row {rows[wrong[0]].line}: expected {expected(int(wrong[0]))}")
