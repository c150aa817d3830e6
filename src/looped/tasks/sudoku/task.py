"""Sudoku (Section 5 of the paper), 9x9 or 4x4: fill in the open cells of a flattened board, where 0 is an open cell.

A 9x9 example is a random symmetric image of a base puzzle. Base puzzles are generated minimal puzzles from a cached
pool, or the rows of a user's file. Splits are by solution grid up to symmetry, so no test board is an image of a
training board. Every 4x4 puzzle is new, and splits are by puzzle up to symmetry.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from looped.tasks.base import (
    MAX_INDEX,
    Batch,
    Spec,
    Split,
    Task,
    draw_keys,
    masked_accuracy,
    split_buckets,
    supplied,
    typed_fields,
)
from looped.tasks.files import file_hash
from looped.tasks.sudoku.exact_cover import all_solutions
from looped.tasks.sudoku.generator import MAX_TRIES, NO_LIMIT, PuzzleLimits, draw_images, draw_puzzles
from looped.tasks.sudoku.pool import SHARD, build_shards, file_puzzles, shard
from looped.tasks.sudoku.solver import geometry, solve_boards, workspace
from looped.utils.errors import InputError, require, require_field, require_within, unknown
from looped.utils.files import data_folder, file_version

Difficulty = Literal["any", "easy", "medium", "hard"]
GUESSES: dict[Difficulty, tuple[int, int]] = {
    "any": (0, NO_LIMIT),
    "easy": (0, 0),
    "medium": (1, 3),
    "hard": (4, NO_LIMIT),
}

FEWEST_CLUES = {4: 4, 9: 17}
RARE_CLUES = 22  # one minimal 9x9 puzzle in 27 has at most 22 clues, and one in 480 has 21
DEFAULT_POOL = 100_000
RULES = set("-+=|─│┌┬┐├┼┤└┴┘ ")
"""what a line between the boxes of a printed board is made of"""
OPEN = str.maketrans(".·", "00")
REAL_PUZZLES = "sudoku/real_puzzles.csv.gz"


@dataclass(frozen=True)
class Sudoku(Task):
    """Fill in the open cells so that every row, column and box has every digit."""

    name: ClassVar[str] = "sudoku"

    side: Literal[4, 9] = 9
    """side of the board"""
    clues: int | None = None
    """number of clues (None: minimal puzzles, where every clue is needed)"""
    difficulty: Difficulty = "any"
    """number of guesses that our solver needs for the base puzzle: easy 0, medium 1 to 3, hard 4 or more"""
    pool: int | None = None
    """number of 9x9 base puzzles per split, generated on first use and cached (None: 100000; 0: no pool)"""
    augment: bool = True
    """random symmetric images of the base puzzles"""
    file: str | None = None
    """file of base puzzles, a path or a name under LOOPED_DATA (None: generated puzzles)"""
    source: str | None = None
    """value of the column `source` that selects rows of the file (None: all rows)"""
    file_role: Literal["split", "test"] = "split"
    """use of the file's rows: split like generated puzzles, or all for testing"""
    counts: Literal["open", "all"] = "open"
    """cells that count in loss and score: the open ones, or all"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clues is not None:
            fewest = RARE_CLUES if self.side == 9 and self.file is None else FEWEST_CLUES[self.side]
            require_within("task.clues", self.clues, fewest, self.num_cells - 1)
            is_any = self.difficulty == "any"
            require_field(is_any, "task.difficulty", "any, because task.clues is set", self.difficulty)
        most_pool = MAX_INDEX if self.side == 9 else 0
        in_range = 0 <= (self.pool or 0) <= most_pool
        require_field(in_range, "task.pool", f"an integer in 0..{most_pool} for side {self.side}", self.pool)
        has_file = self.source is None or self.file is not None
        require_field(has_file, "task.source", "no source without task.file", repr(self.source))

    @property
    def num_cells(self) -> int:
        """Return the number of cells of the board."""
        return self.side**2

    @property
    def size(self) -> int:
        """Return the largest number of open cells. A smaller size gives boards with more clues."""
        return self.num_cells - (self.clues or FEWEST_CLUES[self.side])

    @property
    def label(self) -> str:
        """Return `sudoku-9x9` or `sudoku-4x4`, because the size is the number of open cells."""
        return f"{self.name}-{self.side}x{self.side}"

    @property
    def spec(self) -> Spec:
        rows, columns, boxes = (geometry(self.side).unit_of - self.side * np.arange(3)).T.tolist()
        coordinates = tuple(range(self.num_cells)), tuple(rows), tuple(columns), tuple(boxes)
        return Spec("tokens", self.side + 1, self.side + 1, self.num_cells, coordinates=coordinates)

    def sample(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        size = self.checked_size(size, measure=" open cells")
        keys = draw_keys(seed, split, indices)
        clues = max(self.clues or 0, self.num_cells - size)
        # Added clues would make another 4x4 puzzle, which may belong to another split.
        can_add_clues = self.side == 9 or self.file is None or clues == FEWEST_CLUES[4]
        require_field(can_add_clues, "size", "no added clues for 4x4 puzzles of a file", f"{clues} clues")
        if self.file is None and not self._pool_size:
            return self._encode(*self._draw_new(split, keys, clues))
        puzzles, solutions = self._from_pool(split, keys[2]) if self.file is None else self._from_file(split, keys[2])
        draw_images(puzzles, solutions, *keys, clues, self.augment)
        return self._encode(puzzles, solutions)

    def num_distinct(self, split: Split, example_size: int | None = None) -> int | None:
        """Return the number of matching base puzzles, or None if every puzzle is new.

        Images are not counted, because a model that fails at a base puzzle probably fails at its images. There are few
        4x4 puzzles, although every one is new: see docs/tasks.md.
        """
        if self.file is not None:
            return len(_file_rows(self, split, file_version(self._path)))
        if self._uses_whole_pool:
            return self._pool_size or None
        return len(_pool_indices(self, split, self._num_shards))

    def distinct_among(self, split: Split, size: int, example_size: int | None = None) -> int:
        """Return the number of distinct examples among the first `size`, and generate no more shards than needed."""
        if self.file is None and not self._uses_whole_pool:
            return min(size, len(self._first_pool_indices(split, size)) or size)
        return super().distinct_among(split, size, example_size)

    def fingerprints(self) -> dict[str, str]:
        return {} if self.file is None else {"task.file": file_hash(self._path)}

    def test_sets(self) -> dict[str, Self]:
        """Return variants of this task for testing, easy ones first.

        Generated 9x9 puzzles differ in guesses, and 4x4 puzzles in clues, because no 4x4 puzzle needs a guess. If the
        file of real puzzles exists, each of its sources is a test set too.
        """
        base = replace(self, clues=None, difficulty="any", file=None, source=None, file_role="split")
        if self.side == 4:
            return {f"{clues} clues": replace(base, clues=clues) for clues in (10, 8, 6)}
        generated = {level: replace(base, difficulty=level) for level in GUESSES if level != "any"}
        path = data_folder() / REAL_PUZZLES
        if not path.exists():
            return generated
        real = replace(base, file=str(path), file_role="test")
        sources = np.unique(file_puzzles(path, file_version(path), 9).sources).tolist()
        return generated | {source: replace(real, source=source) for source in sources}

    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        """Return 1 for a right board and 0 for a wrong one, and the fraction of right cells among those that count."""
        right = ((prediction == batch.targets) & batch.mask).sum(axis=1)
        return {
            "accuracy": masked_accuracy(prediction, batch),
            "cell_accuracy": right / np.maximum(batch.mask.sum(axis=1), 1),
        }

    def counted(self, inputs: np.ndarray) -> np.ndarray:
        return inputs == 0 if self.counts == "open" else np.ones(inputs.shape, dtype=np.bool_)

    def render(self, inputs: np.ndarray) -> str:
        return "".join(str(int(digit)) for digit in inputs)

    def parse(self, text: str) -> np.ndarray:
        """Return the digits of a board, in one line or several, where an open cell is 0 or a dot.

        Lines between the boxes, as `looped solve` prints them, do not count.
        """
        rows = [line for line in text.splitlines() if set(line) - RULES]
        board = re.sub(r"[\s|│]", "", "".join(rows)).translate(OPEN)
        for symbol in sorted(set(board) - set("0123456789"[: self.side + 1])):
            raise InputError(f"expected digits 0-{self.side} or dots, got {symbol!r} in {text!r}")
        require(len(board) == self.num_cells, f"expected {self.num_cells} cells, got {len(board)} in {text!r}")
        puzzle = np.array([int(digit) for digit in board], dtype=np.int8)
        require("0" in board, f"expected a board with an open cell, got a full one: {board}")
        _, counts, _ = solve_boards(puzzle[None], 2, geometry(self.side), workspace(self.side))
        _require_one(int(counts[0]), board)
        return puzzle.astype(np.int64)

    def answer(self, outputs: np.ndarray) -> str:
        return self.render(outputs)

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        return {"puzzle": self.render(inputs), "solution": self.answer(outputs)}

    def solve(self, inputs: np.ndarray) -> str | None:
        return next(all_solutions(self.render(inputs)), None)

    def verdict(self, inputs: np.ndarray, outputs: np.ndarray, truth: str | None) -> str:
        """Return whether the board is solved, or how many of its open cells are wrong."""
        if truth is None or self.is_right(inputs, outputs, truth):
            return super().verdict(inputs, outputs, truth)
        solution = np.array([int(digit) for digit in truth])
        is_open = inputs == 0
        return f"wrong: {np.count_nonzero((outputs != solution) & is_open)} of {np.count_nonzero(is_open)} open cells"

    def verify(self, example: dict[str, Any]) -> None:
        puzzle, stated = typed_fields(example, puzzle=str, solution=str)
        require(self.render(self.parse(puzzle)) == puzzle, f"puzzle: expected digits in one line, got {puzzle!r}")
        solutions = list(islice(all_solutions(puzzle), 2))
        _require_one(len(solutions), puzzle)
        require(stated == solutions[0], f"solution: expected {solutions[0]} for {puzzle}, got {stated!r}")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the number of puzzles for each number of clues, and the fraction of each difficulty."""
        puzzles = np.array([[int(digit) for digit in example["puzzle"]] for example in examples], dtype=np.int8)
        _, _, guesses = solve_boards(puzzles, 2, geometry(self.side), workspace(self.side))
        values, counts = np.unique(np.count_nonzero(puzzles, axis=1), return_counts=True)
        fractions = {
            level: float(np.mean((low <= guesses) & (guesses <= high)))
            for level, (low, high) in GUESSES.items()
            if level != "any"
        }
        return {
            "clues": {str(value): int(count) for value, count in zip(values, counts, strict=True)},
            "mean_clues": float(np.count_nonzero(puzzles) / len(puzzles)),
            "difficulty": fractions,
            "guesses": {"mean": float(guesses.mean()), "max": int(guesses.max())},
        }

    @property
    def _selection(self) -> str:
        origin = "generated" if self.file is None else f"from {self._path}"
        return f"{self.side}x{self.side}, clues {self.clues or 'any'}, difficulty {self.difficulty}, {origin}"

    @property
    def _pool_size(self) -> int:
        """Return the number of base puzzles per split, or 0 if every puzzle is new."""
        if self.side == 4:
            return 0
        return DEFAULT_POOL if self.pool is None else self.pool

    @property
    def _num_shards(self) -> int:
        return -(-self._pool_size // SHARD)

    @property
    def _uses_whole_pool(self) -> bool:
        """Return True if every generated base puzzle matches the settings."""
        return not self._pool_size or (self.clues is None and self.difficulty == "any")

    def _encode(self, puzzles: np.ndarray, solutions: np.ndarray) -> Batch:
        return Batch(puzzles.astype(np.int64), solutions.astype(np.int64), self.counted(puzzles))

    def _draw_new(self, split: Split, keys: tuple[np.int64, int, np.ndarray], clues: int) -> tuple[np.ndarray, ...]:
        """Return new puzzles and their solutions."""
        puzzles, solutions = np.zeros((2, len(keys[2]), self.num_cells), dtype=np.int8)
        limits = PuzzleLimits(clues, self.clues or NO_LIMIT, *GUESSES[self.difficulty])
        work = geometry(self.side), workspace(self.side)
        guesses = draw_puzzles(puzzles, solutions, *keys, *split_buckets(split), limits, *work)
        require(
            bool((guesses >= 0).all()),
            f"sudoku: expected a {split} puzzle ({self._selection}), got none in {MAX_TRIES} tries. There are too few.",
        )
        return puzzles, solutions

    def _from_pool(self, split: Split, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return base puzzles and solutions in the order of the indices. No puzzle repeats before all have occurred."""
        if self._uses_whole_pool:
            places = indices % self._pool_size
        else:
            matches = self._first_pool_indices(split, 1 + int(indices.max(initial=0)))
            _require_matches(self, split, matches, self._pool_size)
            places = matches[indices % len(matches)]
        numbers, rows = np.divmod(places, SHARD)
        needed = np.unique(numbers).tolist()
        build_shards(split, needed)
        puzzles, solutions = np.empty((2, len(indices), self.num_cells), dtype=np.int8)
        for number in needed:
            base, in_shard = shard(split, number), numbers == number
            puzzles[in_shard], solutions[in_shard] = base.puzzles[rows[in_shard]], base.solutions[rows[in_shard]]
        return puzzles, solutions

    def _first_pool_indices(self, split: Split, count: int) -> np.ndarray:
        """Return the pool indices of the first matching base puzzles: at least `count`, unless the pool has fewer.

        The number of shards doubles until they contain enough, so that no more is generated than needed.
        """
        num_shards, matches = 1, _pool_indices(self, split, 1)
        while num_shards < self._num_shards and len(matches) < count:
            num_shards = min(2 * num_shards, self._num_shards)
            matches = _pool_indices(self, split, num_shards)
        return matches

    def _from_file(self, split: Split, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        version = file_version(self._path)
        base, matches = file_puzzles(self._path, version, self.side), _file_rows(self, split, version)
        rows = matches[indices % len(matches)]
        return base.puzzles[rows], base.solutions[rows]

    @property
    def _path(self) -> Path:
        return supplied(self.file or "", "puzzles", "a file with a puzzle in each line")

    def _matches(self, puzzles: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        """Return one boolean per base puzzle: True if its clues and guesses match the settings."""
        low, high = GUESSES[self.difficulty]
        return (np.count_nonzero(puzzles, axis=1) <= (self.clues or NO_LIMIT)) & (low <= guesses) & (guesses <= high)


def _require_one(num_solutions: int, puzzle: str) -> None:
    number = {0: "none", 1: "one"}.get(num_solutions, "several")
    require(num_solutions == 1, f"expected a puzzle with one solution, got one with {number}: {puzzle}")


@lru_cache(maxsize=64)
def _pool_indices(task: Sudoku, split: Split, num_shards: int) -> np.ndarray:
    """Return the indices of the matching base puzzles in the first shards of the pool."""
    build_shards(split, range(num_shards))
    bases = (shard(split, number) for number in range(num_shards))
    indices = np.flatnonzero(np.concatenate([task._matches(base.puzzles, base.guesses) for base in bases]))
    return indices[indices < task._pool_size]


@lru_cache(maxsize=64)
def _file_rows(task: Sudoku, split: Split, version: tuple[int, int]) -> np.ndarray:
    """Return the matching rows of the file in random order, because files are often sorted."""
    base = file_puzzles(task._path, version, task.side)
    matches = task._matches(base.puzzles, base.guesses)
    if task.source is not None:
        if task.source not in base.sources:
            raise unknown(f"source in {task._path}", task.source, np.unique(base.sources).tolist())
        matches &= base.sources == task.source
    if task.file_role == "split":
        first, end = split_buckets(split)
        matches &= (first <= base.buckets) & (base.buckets < end)
    else:
        require(split == "test", f"split: expected 'test', got {split!r}. All of {task._path} is for testing.")
    rows = np.flatnonzero(matches)
    _require_matches(task, split, rows, len(matches))
    return np.random.default_rng(0).permutation(rows)


def _require_matches(task: Sudoku, split: Split, matches: np.ndarray, total: int) -> None:
    require(len(matches) > 0, f"sudoku: expected {split} puzzles ({task._selection}), got none among {total}")
