"""Where data lies, and writing so that a reader never sees half a file, whenever the writer dies."""

import errno
import fcntl
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from looped.utils.errors import InputError

OUTPUTS = (1, 2)  # descriptors of standard output and standard error


def cache_folder() -> Path:
    """What can be made again: LOOPED_CACHE, or `looped` in the user's cache folder."""
    if chosen := os.environ.get("LOOPED_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "looped"
    except RuntimeError:
        raise InputError("there is no home folder: expected LOOPED_CACHE to name one for what is made once") from None


def data_folder() -> Path:
    """What a user supplies, and nobody writes to: LOOPED_DATA, or else the cache folder."""
    return Path(os.environ.get("LOOPED_DATA") or cache_folder())


def save(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Make a file at once or not at all: whatever happens on the way, an earlier good file stays as it is.

    What is no file to be replaced (a device, a pipe, where standard output or error go to) is written through; a link
    stays one, and its target is the file.
    """
    with writing(path):
        if (stream := _open_stream(path)) is not None:
            with stream:
                write(stream)
            return
        path = Path(os.path.realpath(path))
        if path.is_symlink():  # followed to where it leads in circles
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        _parts.add(temporary)
        try:
            with open(temporary, "wb") as handle:
                write(handle)
                handle.flush()
                os.fsync(handle.fileno())
            if path.exists():
                shutil.copymode(path, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
            _parts.discard(temporary)
        sync_folder(path.parent)


_parts: set[Path] = set()  # of files that are being made


def drop_parts() -> None:
    """For a process that is about to be ended from outside: take away what it has begun to write."""
    for part in list(_parts):
        with suppress(OSError):
            part.unlink()


def is_stream(path: Path) -> bool:
    """Whether what stands at a path is written through: it is no regular file, nor a folder, or one of our outputs."""
    return path.exists() and not path.is_dir() and (not path.is_file() or _output(path) is not None)


def _open_stream(path: Path) -> IO[bytes] | None:
    if not is_stream(path):
        return None
    if (output := _output(path)) is None:
        return open(path, "wb")
    # Opened by its name, a file would be written from its start once more, over what was printed or is yet to be.
    if sys.stdout is not None:
        sys.stdout.flush()
    return open(os.dup(output), "wb")


def _output(path: Path) -> int | None:
    """Which of our outputs goes to a path."""
    for descriptor in OUTPUTS:
        with suppress(OSError):  # closed
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses in here, on a full disk for one, is told in one line with the path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {_reason(path, error)}") from error


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path}: {_reason(path, error)}") from error


def in_the_way(path: Path) -> tuple[str, Path] | None:
    """What stands at a path or at a folder above it, and is no folder, with its kind: nothing can be made under it."""
    for each in (path, *path.parents):
        if os.path.lexists(each) and not os.path.isdir(each):
            return "file" if os.path.exists(each) else "broken link", each
    return None


def _reason(path: Path, error: OSError) -> str:
    """The system's, which does not name a file, or a broken link, that is where a folder has to be."""
    if isinstance(error, FileExistsError | NotADirectoryError) and (found := in_the_way(path)) is not None:
        kind, place = found
        return f"{place} is a {kind}, expected a folder"
    return error.strerror or str(error)


def save_text(path: Path, text: str) -> None:
    save(path, lambda handle: handle.write(text.encode()))


def save_json(path: Path, value: Any) -> None:
    save_text(path, json.dumps(value, indent=1) + "\n")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; raise InputError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected text in UTF-8, got other bytes") from None
    except OSError as error:
        raise InputError(f"{path}: expected a text file, got an error: {error.strerror}") from None


def from_json(text: str | bytes) -> Any:
    """What JSON says; a `ValueError` where it says nothing, also where it is nested deeper than can be followed."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    try:
        return from_json(path.read_text())
    except FileNotFoundError:
        raise InputError(f"expected a file {path}, found none") from None
    except (OSError, ValueError) as error:
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
