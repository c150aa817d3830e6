"""Data folders, locks, and files that are written whole or not at all, even if the writer is killed."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, AnyStr

from looped.utils.errors import InputError, require

try:
    import fcntl
except ImportError:  # not a POSIX system: the package works without locks
    fcntl = None

OUTPUTS = (1, 2)  # descriptors of standard output and standard error
MAX_JSON_BYTES = MAX_LINE = 16_000_000


def cache_folder() -> Path:
    """Return the folder for files that can be made again: LOOPED_CACHE, or `looped` in the user's cache folder."""
    if chosen := os.environ.get("LOOPED_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "looped"
    except RuntimeError:
        raise InputError("there is no home folder: set LOOPED_CACHE to a folder for cached files") from None


def data_folder() -> Path:
    """Return the folder for a user's data, which is never written to: LOOPED_DATA, or the cache folder."""
    return Path(os.environ.get("LOOPED_DATA") or cache_folder())


def save(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all: if anything fails, an earlier file stays as it is.

    A device, a pipe, and the files behind standard output and error are written to directly. The target of a link is
    replaced, not the link.
    """
    with writing(path):
        if (stream := _open_stream(path)) is not None:
            with stream:
                write(stream)
            return
        path = Path(os.path.realpath(path))
        if path.is_symlink():  # realpath leaves a circular link unresolved
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        _make_folders(path.parent)
        sweep(path.parent)
        with _temporary(path.parent) as (handle, temporary):
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
            if path.exists():
                shutil.copymode(path, temporary)
            os.replace(temporary, path)
        sync_folder(path.parent)


# The second form is what version 0.1 left in run folders.
_TEMPORARY = re.compile(r"\.looped-[0-9a-f]{16}\.tmp|\.(config|data|result|record|log)\.jsonl?\.\d+-\d+")
_parts: set[Path] = set()  # temporary files of this process


@contextmanager
def _temporary(folder: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield a new file and its path. The file is locked while it is open, and deleted unless it was renamed."""
    handle, path = _new_temporary(folder)
    try:
        with handle:
            yield handle, path
    finally:
        path.unlink(missing_ok=True)
        _parts.discard(path)


def _new_temporary(folder: Path) -> tuple[IO[bytes], Path]:
    while True:
        path = folder / f".looped-{secrets.token_hex(8)}.tmp"
        handle = open(path, "xb")  # noqa: SIM115 (closed by `_temporary`)
        _parts.add(path)
        with suppress(OSError):  # a file system without locks
            _lock(handle)
        if path.exists():
            return handle, path
        handle.close()  # swept by another process between the opening and the lock
        _parts.discard(path)


def is_temporary(name: str) -> bool:
    """Return whether this is the name of a file that `save` has begun to write."""
    return _TEMPORARY.fullmatch(name) is not None


def sweep(folder: Path) -> None:
    """Delete the temporary files of processes that are gone. A living process holds a lock on each of its own."""
    if fcntl is None:  # without locks, nobody knows which processes live
        return
    with suppress(OSError):
        for path in (folder / name for name in os.listdir(folder) if is_temporary(name)):
            with suppress(OSError), open(os.open(path, os.O_RDONLY | _UNFOLLOWED), "rb") as handle:
                _lock(handle, wait=False)
                path.unlink()


# Neither follow a link nor wait for the other end of a pipe.
_UNFOLLOWED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def drop_parts() -> None:
    """Delete this process's half-written files, because it is about to be terminated."""
    for part in list(_parts):
        with suppress(OSError):
            part.unlink()


def is_stream(path: Path) -> bool:
    """Return whether a path is written to directly: a device, a pipe, or a file behind standard output or error."""
    return path.exists() and not path.is_dir() and (not path.is_file() or _output(path) is not None)


def _open_stream(path: Path) -> IO[bytes] | None:
    if not is_stream(path):
        return None
    if (output := _output(path)) is None:
        return open(path, "wb")
    # Opening the file by name would start at its beginning and overwrite what was printed.
    if sys.stdout is not None:
        sys.stdout.flush()
    return open(os.dup(output), "wb")


def _output(path: Path) -> int | None:
    """Return the descriptor of the standard stream that goes to a path, or None."""
    for descriptor in OUTPUTS:
        with suppress(OSError):  # closed
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError raised in this block into an InputError that names the path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {_reason(path, error)}") from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each synced into its parent, unless it is there."""
    try:
        _make_folders(path)
    except OSError as error:
        raise InputError(f"cannot make the folder {path}: {_reason(path, error)}") from error


def _make_folders(path: Path) -> None:
    for each in reversed((path, *path.parents)):
        if not each.is_dir():
            each.mkdir(exist_ok=True)
            sync_folder(each.parent)


def in_the_way(path: Path) -> tuple[str, Path] | None:
    """Return the first non-directory among a path and its parents, with its kind, or None."""
    for each in (path, *path.parents):
        if os.path.lexists(each) and not os.path.isdir(each):
            return "file" if os.path.exists(each) else "broken link", each
    return None


def _reason(path: Path, error: OSError) -> str:
    """Return the reason of an error, and name the file or broken link that stands where a folder must be."""
    if isinstance(error, FileExistsError | NotADirectoryError) and (found := in_the_way(path)) is not None:
        kind, place = found
        return f"{place} is a {kind}, expected a folder"
    return error.strerror or str(error)


def save_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all."""
    save(path, lambda handle: handle.write(text.encode()))


def save_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    save_text(path, _json_text(value))


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; raise InputError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected text in UTF-8, got other bytes") from None
    except OSError as error:
        raise InputError(f"{path}: expected a text file, got an error: {error.strerror}") from None


def save_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object together with the SHA-256 of its content."""
    save_json(path, {**value, "sha256": content_hash(value)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Return a JSON object that `save_sealed` wrote. Raise InputError if any bit of the file has changed.

    A flipped bit can leave all values as they are: 0.1 and 0.10000000000000001 are one number. So the text is compared.
    """
    value, text = _read_object(path)
    require("sha256" in value, f"{path} is damaged: expected a field sha256")
    content = {name: each for name, each in value.items() if name != "sha256"}
    sound = value["sha256"] == content_hash(content) and text == _json_text(value).encode()
    require(sound, f"{path} is damaged: its content does not match its SHA-256")
    return content


def read_sealed_values(path: Path) -> dict[str, Any]:
    """Return a JSON object whose values match its SHA-256, however it is laid out. It need not have one."""
    value, _ = _read_object(path)
    stored = value.pop("sha256", None)
    require(stored in (None, content_hash(value)), f"{path} is damaged: its content does not match its SHA-256")
    return value


def _read_object(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the object in a JSON file, and the file's bytes."""
    value, text = _read_value(path)
    require(isinstance(value, dict), f"{path}: expected a JSON object, got {str(value)[:80]!r}")
    return value, text


def content_hash(value: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def from_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raise ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raise InputError if it is missing, invalid or above MAX_JSON_BYTES."""
    return _read_value(path)[0]


def _read_value(path: Path) -> tuple[Any, bytes]:
    """Return the value in a JSON file, and the file's bytes."""
    try:
        text = read_bytes(path, MAX_JSON_BYTES)
        return from_json(text), text
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: expected a file, found none") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: expected JSON, got something else ({error})") from None


def file_version(path: Path) -> tuple[int, int]:
    """Return a file's size and time of change, by which a cache notices new content."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return status.st_size, status.st_mtime_ns


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a regular file. Raise InputError for a device, a pipe, or more bytes than `limit`."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as handle:
        status = os.fstat(handle.fileno())
        require(stat.S_ISREG(status.st_mode), f"{path}: expected a regular file, got a pipe, device or folder")
        require(status.st_size <= limit, f"{path}: expected at most {limit:,} bytes, got {status.st_size:,}")
        return handle.read()


def bounded_lines(file: IO[AnyStr], path: Path) -> Iterator[AnyStr]:
    """Yield the lines of a file. Raise InputError at a line of MAX_LINE characters or more."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        require(len(line) < MAX_LINE, f"{path}, line {number}: expected fewer than {MAX_LINE:,} characters in a line")
        yield line


def require_regular(*paths: Path) -> None:
    """Raise InputError if any of these paths exists but is a link, a pipe, a device or a folder."""
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            regular = stat.S_ISREG(os.lstat(path).st_mode)
            require(regular, f"{path}: expected a regular file, got a link, pipe, device or folder")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    with writing(folder.absolute()):  # a relative path may be no more than a dot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _lock(handle: IO[Any], *, wait: bool = True) -> None:
    """Lock an open file. Raise BlockingIOError if it is not free and `wait` is false."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, which is freed however its holder ends. Without `wait`, yield whether it was free.

    The file is neither truncated nor reached through a link: a stranger's folder may have anything in its place.
    """
    require_regular(path)
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _UNFOLLOWED, 0o666)
    with open(descriptor) as handle:
        try:
            _lock(handle, wait=wait)
        except BlockingIOError:
            yield False
            return
        yield True
