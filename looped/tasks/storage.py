"""Where data lies: what a user supplies under LOOPED_DATA, what is made once in a cache folder."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from looped.errors import InputError


def cache_folder() -> Path:
    """What can be made again: LOOPED_CACHE, or `looped` in the user's cache folder."""
    if chosen := os.environ.get("LOOPED_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "looped"


def data_folder() -> Path:
    """What a user supplies, and nobody writes to: LOOPED_DATA, or else `data` in the cache folder."""
    return Path(os.environ.get("LOOPED_DATA") or cache_folder() / "data").expanduser()


def save(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Make a file at once or not at all: whatever happens on the way, an earlier good file stays as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own, as other threads and processes may be writing the same file.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as handle:
            try:
                write(handle)
                handle.flush()
                os.fsync(handle.fileno())
                os.replace(handle.name, path)
            except BaseException:
                os.unlink(handle.name)
                raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
