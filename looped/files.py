"""Where data lies, and writing so that a reader never sees half a file, whenever the writer dies."""

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from looped.errors import InputError


def cache_folder() -> Path:
    """What can be made again: LOOPED_CACHE, or `looped` in the user's cache folder."""
    if chosen := os.environ.get("LOOPED_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "looped"


def data_folder() -> Path:
    """What a user supplies, and nobody writes to: LOOPED_DATA, or else the cache folder."""
    return Path(os.environ.get("LOOPED_DATA") or cache_folder())


def save(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Make a file at once or not at all: whatever happens on the way, an earlier good file stays as it is."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as handle:
                write(handle)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses in here, on a full disk for one, is told in one line with the path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def save_text(path: Path, text: str) -> None:
    save(path, lambda handle: handle.write(text.encode()))


def save_json(path: Path, value: Any) -> None:
    save_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"expected a file {path}, found none") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"expected JSON in {path}, got something else ({error})") from None


def sync_folder(folder: Path) -> None:
    """Make what was renamed in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, which goes with its holder however that ends. Without `wait`, yields whether it was free."""
    try:
        handle = open(path, "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
