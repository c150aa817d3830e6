"""Sudoku (Section 5 of the paper): a flattened board, 0 for an open cell, to be filled in; 9x9, or 4x4 for laptops.

A 9x9 example is a random symmetric image of a base puzzle: a minimal puzzle of our own, made once and kept, or a row of
a user's file. Splits are by solution grid up to symmetry, so no test board is an image of a training board. 4x4
puzzles are drawn afresh, and split by puzzle up to symmetry.
"""

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
from looped.tasks.sudoku.exact_cover import all_solutions
from looped.tasks.sudoku.generator import MAX_TRIES, NO_LIMIT, draw_images, draw_puzzles
from looped.tasks.sudoku.pool import SHARD, build_shards, file_puzzles, shard
from looped.tasks.sudoku.solver import geometry, solve_boards, workspace
from looped.utils.errors import InputError, require, unknown
from looped.utils.files import data_folder

Difficulty = Literal["any", "easy", "medium", "hard"]
GUESSES: dict[Difficulty, tuple[int, int]] = {
    "any": (0, NO_LIMIT),
    "easy": (0, 0),
    "medium": (1, 3),
    "hard": (4, NO_LIMIT),
}

FEWEST_CLUES = {4: 4, 9: 17}
RARE_CLUES = 22  # one minimal 9x9 puzzle in 27 has so few clues or fewer, and one in 480 has 21
DEFAULT_POOL = 100_000
REAL_PUZZLES = "sudoku/real_puzzles.csv.gz"


@dataclass(frozen=True)
class Sudoku(Task):
    """Fill in the open cells so that every row, column and box has every digit."""

    name: ClassVar[str] = "sudoku"

    side: Literal[4, 9] = 9
    """side of the board"""
    clues: int | None = None
    """number of clues (None: minimal puzzles, in which no clue can be left out)"""
    difficulty: Difficulty = "any"
    """by the guesses that our solver makes in the base puzzle: easy none (singles do), medium 1 to 3, hard 4 or more"""
    pool: int | None = None
    """9x9 base puzzles of each split, made when first needed and kept (None: 100000; 0: every puzzle is new)"""
    augment: bool = True
    """show a base puzzle as a random one of its symmetric images"""
    file: str | None = None
    """take base puzzles from this file, a path or one under LOOPED_DATA (None: our own)"""
    source: str | None = None
    """take only the file's rows with this in column `source` (None: all)"""
    file_role: Literal["split", "test"] = "split"
    """a file's rows are split like our own puzzles, or all are for testing"""
    counts: Literal["open", "all"] = "open"
    """cells that count in loss and score: the open ones, or all"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clues is not None:
            fewest = RARE_CLUES if self.side == 9 and self.file is None else FEWEST_CLUES[self.side]
            most = self.num_cells - 1
            require(fewest <= self.clues <= most, f"task.clues must be in {fewest}..{most}, got {self.clues}")
            require(self.difficulty == "any", "expected task.clues or task.difficulty, got both")
        require(0 <= (self.pool or 0) <= MAX_INDEX, f"task.pool must be in 0..{MAX_INDEX}, got {self.pool}")
        require(self.side == 9 or not self.pool, f"4x4 puzzles are always new: expected task.pool 0, got {self.pool}")
        require(self.source is None or self.file is not None, f"expected task.file beside task.source {self.source!r}")

    @property
    def num_cells(self) -> int:
        return self.side**2

    @property
    def size(self) -> int:
        """The most open cells that a board can have; a smaller size gives boards with more filled in."""
        return self.num_cells - (self.clues or FEWEST_CLUES[self.side])

    @property
    def label(self) -> str:
        """Return `sudoku-9x9`, because the size of an example is its number of blanks."""
        return f"{self.name}-{self.side}x{self.side}"

    @property
    def spec(self) -> Spec:
        rows, columns, boxes = (geometry(self.side).unit_of - self.side * np.arange(3)).T.tolist()
        cells = tuple(range(self.num_cells))
        return Spec(
            "tokens", self.side + 1, self.side + 1, self.num_cells,
            coordinates=(cells, tuple(rows), tuple(columns), tuple(boxes)),
        )  # fmt: skip

    def sample(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        size = self.checked_size(size, measure=" open cells")
        keys = draw_keys(seed, split, indices)
        clues = max(self.clues or 0, self.num_cells - size)
        # Their split is that of the puzzle as it is in the file, and another one would be made by adding clues.
        as_they_are = self.side == 4 and self.file is not None
        require(not as_they_are or clues == FEWEST_CLUES[4], "no clues can be added to 4x4 puzzles of a file")
        if self.file is None and not self._pool_size:
            return self._encode(*self._drawn_afresh(split, keys, clues))
        puzzles, solutions = self._from_pool(split, keys[2]) if self.file is None else self._from_file(split, keys[2])
        draw_images(puzzles, solutions, *keys, clues, self.augment)
        return self._encode(puzzles, solutions)

    def num_distinct(self, split: Split, example_size: int | None = None) -> int | None:
        """Base puzzles of the wanted kind: a model that fails at one will likely fail at its images, too.

        4x4 puzzles are drawn afresh, and so not counted, though there are few: docs/tasks.md says how few.
        """
        if self.file is not None:
            return len(_file_rows(self, split))
        if self._takes_all:
            return self._pool_size or None
        return len(_pool_places(self, split, self._num_shards))

    def distinct_among(self, split: Split, size: int, example_size: int | None = None) -> int:
        """The same, and no more of the pool is made than that takes."""
        if self.file is None and not self._takes_all:
            return min(size, len(self._suited(split, size)) or size)
        return super().distinct_among(split, size, example_size)

    def test_sets(self) -> dict[str, Self]:
        """Variants of this task for testing, easy ones first: our own by guesses (4x4: by clues, since no such puzzle
        needs any), and by source where a file of real puzzles is at hand."""
        ours = replace(self, clues=None, difficulty="any", file=None, source=None, file_role="split")
        if self.side == 4:
            return {f"{clues} clues": replace(ours, clues=clues) for clues in (10, 8, 6)}
        own = {level: replace(ours, difficulty=level) for level in GUESSES if level != "any"}
        path = data_folder() / REAL_PUZZLES
        if not path.exists():
            return own
        real = replace(ours, file=str(path), file_role="test")
        sources = np.unique(file_puzzles(path, 9).sources).tolist()
        return own | {source: replace(real, source=source) for source in sources}

    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        """Whether the whole board is right, and the share of right cells, of those that count."""
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
        """A board of digits, with 0 or a dot for an open cell, in one line or several."""
        board = "".join(text.split()).replace(".", "0")
        for strange in sorted(set(board) - set("0123456789"[: self.side + 1])):
            raise InputError(f"expected digits 0-{self.side} or dots, got {strange!r} in {text!r}")
        require(len(board) == self.num_cells, f"expected {self.num_cells} cells, got {len(board)} in {text!r}")
        puzzle = np.array([int(digit) for digit in board], dtype=np.int8)
        require("0" in board, f"expected a board with an open cell, got a full one: {board}")
        _, found, _ = solve_boards(puzzle[None], 2, geometry(self.side), workspace(self.side))
        _require_one(int(found[0]), board)
        return puzzle.astype(np.int64)

    def answer(self, outputs: np.ndarray) -> str:
        return self.render(outputs)

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        return {"puzzle": self.render(inputs), "solution": self.answer(outputs)}

    def solve(self, inputs: np.ndarray) -> str | None:
        return next(all_solutions(self.render(inputs)), None)

    def verify(self, example: dict[str, Any]) -> None:
        puzzle, stated = typed_fields(example, puzzle=str, solution=str)
        require(self.render(self.parse(puzzle)) == puzzle, f"expected digits in one line, got {puzzle!r}")
        solutions = list(islice(all_solutions(puzzle), 2))
        _require_one(len(solutions), puzzle)
        require(stated == solutions[0], f"expected the solution {solutions[0]} of {puzzle}, got {stated!r}")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """How many puzzles have how many clues, and what share is of which difficulty."""
        puzzles = np.array([[int(digit) for digit in example["puzzle"]] for example in examples], dtype=np.int8)
        _, _, guesses = solve_boards(puzzles, 2, geometry(self.side), workspace(self.side))
        values, counts = np.unique(np.count_nonzero(puzzles, axis=1), return_counts=True)
        shares = {
            level: float(np.mean((low <= guesses) & (guesses <= high)))
            for level, (low, high) in GUESSES.items()
            if level != "any"
        }
        return {
            "clues": {str(value): int(count) for value, count in zip(values, counts, strict=True)},
            "mean_clues": float(np.count_nonzero(puzzles) / len(puzzles)),
            "difficulty": shares,
            "guesses": {"mean": float(guesses.mean()), "max": int(guesses.max())},
        }

    @property
    def _wanted(self) -> str:
        origin = "our own" if self.file is None else f"from {self._path}"
        return f"{self.side}x{self.side}, clues {self.clues or 'any'}, difficulty {self.difficulty}, {origin}"

    @property
    def _pool_size(self) -> int:
        """0 where every puzzle is new."""
        if self.side == 4:
            return 0
        return DEFAULT_POOL if self.pool is None else self.pool

    @property
    def _num_shards(self) -> int:
        return -(-self._pool_size // SHARD)

    @property
    def _takes_all(self) -> bool:
        """Whether every base puzzle of our own will do."""
        return not self._pool_size or (self.clues is None and self.difficulty == "any")

    def _encode(self, puzzles: np.ndarray, solutions: np.ndarray) -> Batch:
        return Batch(puzzles.astype(np.int64), solutions.astype(np.int64), self.counted(puzzles))

    def _drawn_afresh(
        self, split: Split, keys: tuple[np.int64, int, np.ndarray], clues: int
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        puzzles, solutions = np.zeros((2, len(keys[2]), self.num_cells), dtype=np.int8)
        guesses = draw_puzzles(
            puzzles, solutions, *keys, *split_buckets(split), clues, self.clues or NO_LIMIT,
            *GUESSES[self.difficulty], geometry(self.side), workspace(self.side),
        )  # fmt: skip
        if (guesses < 0).any():
            raise InputError(f"no {split} puzzle ({self._wanted}) in {MAX_TRIES} tries: there are too few to split")
        return puzzles, solutions

    def _from_pool(self, split: Split, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Base puzzles in the order of the indices, so that all suited ones are seen once before any is seen again."""
        numbers, rows = np.divmod(self._places(split, indices), SHARD)
        needed = np.unique(numbers).tolist()
        build_shards(split, needed)
        puzzles, solutions = np.empty((2, len(indices), self.num_cells), dtype=np.int8)
        for number in needed:
            base, here = shard(split, number), numbers == number
            puzzles[here], solutions[here] = base.puzzles[rows[here]], base.solutions[rows[here]]
        return puzzles, solutions

    def _places(self, split: Split, indices: np.ndarray) -> np.ndarray:
        """Where in the pool the base puzzles of these indices are."""
        if self._takes_all:
            return indices % self._pool_size
        suited = self._suited(split, 1 + int(indices.max(initial=0)))
        return _some(self, split, suited, self._pool_size)[indices % len(suited)]

    def _suited(self, split: Split, count: int) -> np.ndarray:
        """Where in the pool the first base puzzles of the wanted kind are: `count` or more, if there are as many. No
        more of it is made than that takes."""
        num_shards, suited = 1, _pool_places(self, split, 1)
        while num_shards < self._num_shards and len(suited) < count:
            num_shards = min(2 * num_shards, self._num_shards)
            suited = _pool_places(self, split, num_shards)
        return suited

    def _from_file(self, split: Split, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        base, suited = file_puzzles(self._path, self.side), _file_rows(self, split)
        chosen = suited[indices % len(suited)]
        return base.puzzles[chosen], base.solutions[chosen]

    @property
    def _path(self) -> Path:
        return supplied(self.file or "", "puzzles", "a file with a puzzle in each line")

    def _suits(self, puzzles: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        """Which base puzzles can become examples: those hard enough, with no more clues than are wanted."""
        low, high = GUESSES[self.difficulty]
        return (np.count_nonzero(puzzles, axis=1) <= (self.clues or NO_LIMIT)) & (low <= guesses) & (guesses <= high)


def _require_one(num_solutions: int, puzzle: str) -> None:
    came = {0: "none", 1: "one"}.get(num_solutions, "several")
    require(num_solutions == 1, f"expected a puzzle with one solution, got one with {came}: {puzzle}")


@lru_cache(maxsize=64)
def _pool_places(task: Sudoku, split: Split, num_shards: int) -> np.ndarray:
    """Where in the first shards of its pool a task's suited base puzzles are."""
    build_shards(split, range(num_shards))
    bases = (shard(split, number) for number in range(num_shards))
    places = np.flatnonzero(np.concatenate([task._suits(base.puzzles, base.guesses) for base in bases]))
    return places[places < task._pool_size]


@lru_cache(maxsize=64)
def _file_rows(task: Sudoku, split: Split) -> np.ndarray:
    base = file_puzzles(task._path, task.side)
    suits = task._suits(base.puzzles, base.guesses)
    if task.source is not None:
        if task.source not in base.sources:
            raise unknown(f"source in {task._path}", task.source, np.unique(base.sources).tolist())
        suits &= base.sources == task.source
    if task.file_role == "split":
        first, end = split_buckets(split)
        suits &= (first <= base.buckets) & (base.buckets < end)
    else:
        require(split == "test", f"all of {task._path} is for testing: expected split 'test', got {split!r}")
    # Files are often sorted, so their first rows stand for nothing but themselves.
    return np.random.default_rng(0).permutation(_some(task, split, np.flatnonzero(suits), len(suits)))


def _some(task: Sudoku, split: Split, suited: np.ndarray, among: int) -> np.ndarray:
    require(len(suited) > 0, f"expected {split} puzzles ({task._wanted}), found none among {among}")
    return suited
