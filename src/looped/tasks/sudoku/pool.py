"""Base puzzles that are made or read once and then drawn from: minimal 9x9 ones of our own, and those of a file.

Own puzzles lie in the cache folder in shards, made when first needed (a quarter of a second for 1024 on one core, half
a minute for 100,000). A shard depends on its split and number alone, so all pool sizes and seeds share it.
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
from looped.tasks.sudoku.generator import NO_LIMIT, draw_puzzles
from looped.tasks.sudoku.solver import geometry, workspace
from looped.utils.errors import InputError
from looped.utils.files import cache_folder, save

SHARD = 1024
SECONDS_PER_SHARD: dict[Split, float] = {"train": 0.25, "validation": 1.2, "test": 1.2}
"""held-out puzzles are those that few of all drawn ones turn out to be"""
POOL_SEED = 0
FORMAT = "v1"  # to be changed whenever other puzzles would be made, or kept in another way

log = logging.getLogger(__name__)
_BUILDING = threading.RLock()


class Shard(NamedTuple):
    """SHARD base puzzles of a split."""

    puzzles: np.ndarray
    """(rows, 81) int8, 0 for an open cell"""
    solutions: np.ndarray
    """(rows, 81) int8"""
    guesses: np.ndarray
    """(rows,) guesses that the solver needs"""


IN_MEMORY: dict[tuple[Split, int], Shard] = {}


def make_shard(split: Split, number: int) -> Shard:
    """Minimal 9x9 puzzles from `number * SHARD` on, of a split's grids."""
    puzzles, solutions = np.zeros((2, SHARD, 81), dtype=np.int8)
    indices = np.arange(number * SHARD, (number + 1) * SHARD)
    guesses = draw_puzzles(
        puzzles, solutions, POOL_SEED, split_number(split), indices, *split_buckets(split), 0, NO_LIMIT, 0, NO_LIMIT,
        geometry(9), workspace(9),
    )  # fmt: skip
    return Shard(puzzles, solutions, guesses)


def shard(split: Split, number: int) -> Shard:
    """A shard from memory or the cache folder; made, and kept there, if it is not there whole."""
    if (split, number) not in IN_MEMORY:
        IN_MEMORY[split, number] = _kept(_shard_path(split, number), Shard, lambda: make_shard(split, number))
    return IN_MEMORY[split, number]


def build_shards(split: Split, numbers: Sequence[int]) -> None:
    """Make those shards that are missing, on several cores. What is done stays done if this is stopped."""
    with _BUILDING:  # other threads that need the same shards wait for them
        absent = [number for number in numbers if (split, number) not in IN_MEMORY]
        missing = [number for number in absent if not _shard_path(split, number).exists()]
        seconds = SECONDS_PER_SHARD[split] * len(missing)
        if seconds > 2:
            log.warning("making %d Sudoku puzzles, once: about %.0f s on one core", SHARD * len(missing), seconds)
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            for future in as_completed([pool.submit(shard, split, number) for number in missing]):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


@lru_cache(maxsize=8)
def file_puzzles(path: Path, side: int) -> FilePuzzles:
    """The puzzles of a file: checked once, then kept in the cache folder by the file's place, size and date."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    key = f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {side}"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return _kept(_folder() / f"file-{name}.npz", FilePuzzles, lambda: read_puzzles(path, side))


def _folder() -> Path:
    return cache_folder() / "sudoku" / FORMAT


def _shard_path(split: Split, number: int) -> Path:
    return _folder() / f"{split}-{number:05d}.npz"


Kept = TypeVar("Kept", Shard, FilePuzzles)


def _kept(path: Path, kind: type[Kept], make: Callable[[], Kept]) -> Kept:
    """What a cache file holds; a missing or damaged one is made again."""
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            return kind(**arrays)
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        made = make()
    save(path, lambda file: np.savez(file, **made._asdict()))
    return made
