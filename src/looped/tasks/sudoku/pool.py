"""Base puzzles, generated or read once and then cached: generated minimal 9x9 puzzles, and those of a user's file.

Generated puzzles are in the cache folder in shards of 1024, which are generated on first use (about half a minute for
100,000 puzzles on one core). A shard depends only on its split and number, so all pool sizes and seeds share it.
"""

import hashlib
import logging
import os
import threading
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from looped.tasks.base import Split, split_buckets, split_number
from looped.tasks.sudoku.files import FilePuzzles, read_puzzles
from looped.tasks.sudoku.generator import PuzzleLimits, draw_puzzles
from looped.tasks.sudoku.solver import geometry, workspace
from looped.utils.files import cache_folder, save

SHARD = 1024
SECONDS_PER_SHARD: dict[Split, float] = {"train": 0.25, "validation": 1.2, "test": 1.2}
"""generation time; few of the drawn grids belong to a held-out split"""
POOL_SEED = 0
FORMAT = "v1"  # change this whenever the puzzles or the file format change

log = logging.getLogger(__name__)
_BUILDING = threading.RLock()


class Shard(NamedTuple):
    """SHARD base puzzles of a split."""

    puzzles: np.ndarray
    """(rows, 81) int8, 0 for an open cell"""
    solutions: np.ndarray
    """(rows, 81) int8"""
    guesses: np.ndarray
    """(rows,) number of guesses that the solver needs"""


IN_MEMORY: dict[tuple[Split, int], Shard] = {}


def make_shard(split: Split, number: int) -> Shard:
    """Return the minimal 9x9 puzzles `number * SHARD` and following of a split."""
    puzzles, solutions = np.zeros((2, SHARD, 81), dtype=np.int8)
    indices = np.arange(number * SHARD, (number + 1) * SHARD)
    keys = POOL_SEED, split_number(split), indices, *split_buckets(split)
    guesses = draw_puzzles(puzzles, solutions, *keys, PuzzleLimits(), geometry(9), workspace(9))
    return Shard(puzzles, solutions, guesses)


def shard(split: Split, number: int) -> Shard:
    """Return a shard from memory or from the cache folder. Generate it if it is missing or damaged."""
    if (split, number) not in IN_MEMORY:
        IN_MEMORY[split, number] = _cached(_shard_path(split, number), Shard, lambda: make_shard(split, number))
    return IN_MEMORY[split, number]


def build_shards(split: Split, numbers: Sequence[int]) -> None:
    """Generate the missing shards on several cores. Finished shards stay if this is interrupted."""
    with _BUILDING:  # other threads that need the same shards wait for them
        not_loaded = [number for number in numbers if (split, number) not in IN_MEMORY]
        missing = [number for number in not_loaded if not _shard_path(split, number).exists()]
        seconds = SECONDS_PER_SHARD[split] * len(missing)
        if seconds > 2:
            log.warning("generating %d Sudoku puzzles, once: about %.0f s on one core", SHARD * len(missing), seconds)
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            for future in as_completed([pool.submit(shard, split, number) for number in missing]):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


@lru_cache(maxsize=8)
def file_puzzles(path: Path, version: tuple[int, int], side: int) -> FilePuzzles:
    """Return the puzzles of a file. They are checked once per version (`file_version`) and then cached."""
    size, changed = version
    key = f"{path.resolve()} {size} {changed} {side}"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return _cached(_folder() / f"file-{name}.npz", FilePuzzles, lambda: read_puzzles(path, side))


def _folder() -> Path:
    return cache_folder() / "sudoku" / FORMAT


def _shard_path(split: Split, number: int) -> Path:
    return _folder() / f"{split}-{number:05d}.npz"


Puzzles = TypeVar("Puzzles", Shard, FilePuzzles)


def _cached(path: Path, kind: type[Puzzles], make: Callable[[], Puzzles]) -> Puzzles:
    """Return the content of a cache file. Make and save the content if the file is missing or damaged."""
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            return kind(**arrays)
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        puzzles = make()
    save(path, lambda file: np.savez(file, **puzzles._asdict()))
    return puzzles
