"""Locks on runs, so that several runners can share a folder, on one machine or on many.

A run is locked by a locked file, which the system frees however its holder ends. Network file systems do not always
carry such locks between machines. So the holder also creates a file that only one process can create, writes into it
where it runs, and touches it every few seconds. A holder file of another machine that was not touched for two minutes
is stale.
"""

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from looped.utils.errors import InputError
from looped.utils.files import from_json, locked, make_folder

FOLDER = ".locks"
HEARTBEAT_SECONDS = 15.0
STALE_AFTER_SECONDS = 120.0


@contextmanager
def run_lock(root: Path, name: str) -> Iterator[bool]:
    """Hold the lock on the run `name` under `root` inside this context. Yield whether it was free."""
    folder = root / FOLDER
    make_folder(folder)
    path = folder / f"{name}.json"
    with locked(folder / f"{name}.lock", wait=False) as free:
        with _naming(path):
            free = free and _create(path)
        if not free:
            yield False
            return
        done = threading.Event()
        heartbeat = threading.Thread(target=_touch_until, args=(path, done), daemon=True)
        heartbeat.start()
        try:
            yield True
        finally:
            done.set()
            heartbeat.join()
            with suppress(OSError, ValueError):
                if from_json(path.read_text()) == _this_process():  # another machine may have found it stale
                    path.unlink()


def is_locked(root: Path, name: str) -> bool:
    """Return whether another process works on a run right now, without taking the lock."""
    path = root / FOLDER / f"{name}.json"
    if not path.exists():
        return False
    with locked(path.with_suffix(".lock"), wait=False) as free, _naming(path):
        return not free or (path.exists() and not _is_stale(path))


def sweep_locks(root: Path) -> None:
    """Delete what killed processes left: locks of runs that nobody takes up again, and temporary files."""
    for path in sorted((root / FOLDER).glob("*")):
        with suppress(OSError):
            if path.name.startswith("."):
                if _has_dead_writer(path.name):
                    path.unlink()
            elif path.suffix == ".json":
                with locked(path.with_suffix(".lock"), wait=False) as free:
                    if free and _is_stale(path):
                        path.unlink()


def _has_dead_writer(name: str) -> bool:
    """Return whether a temporary file, named after its writer, is of a process of this machine that is gone."""
    writer = re.search(rf"\.{re.escape(str(_this_process()['host']))}-(\d+)(\.new)?$", name)
    if writer is None:
        return False
    try:
        os.kill(int(writer[1]), 0)
    except ProcessLookupError:
        return True
    return False


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn an OSError into an InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot lock a run with {path}: {error.strerror or error}") from None


def _create(path: Path) -> bool:
    """Create the holder file, which only one machine can, and return whether this one did."""
    if _is_stale(path):
        # Only one machine can move the stale file away, too.
        aside = path.with_name(f".{path.name}.{_this_process()['host']}-{os.getpid()}")
        with suppress(FileNotFoundError):
            os.rename(path, aside)
            if not _is_stale(aside):  # another machine was faster, and this is its new file
                with suppress(FileExistsError):
                    os.link(aside, path)
                aside.unlink()
                return False
            aside.unlink()
    # Write it before it gets its name: a file without a holder would keep others waiting until it is stale.
    written = path.with_name(f".{path.name}.{_this_process()['host']}-{os.getpid()}.new")
    try:
        written.write_text(json.dumps(_this_process()))
        os.link(written, path)
    except FileExistsError:
        return False
    finally:
        written.unlink(missing_ok=True)
    return True


def _is_stale(path: Path) -> bool:
    """Return whether the holder is gone: if it ran on this machine, the lock says so; otherwise, the last touch."""
    try:
        touched, text = path.stat().st_mtime, path.read_bytes()
    except FileNotFoundError:
        return False
    try:
        holder = from_json(text)
    except ValueError:
        holder = None  # damaged, or left empty by an older version
    if isinstance(holder, dict) and holder.get("host") == _this_process()["host"]:
        return True
    return _file_system_time(path.parent) - touched > STALE_AFTER_SECONDS


def _file_system_time(folder: Path) -> float:
    """Return the time of the file system, because the clocks of two machines may differ."""
    probe = folder / f".clock.{_this_process()['host']}-{os.getpid()}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _this_process() -> dict[str, str | int]:
    """Return where this process runs. The boot id tells apart containers with the same name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = boot.read_text().strip()[:8] if boot.exists() else ""
    return {"host": f"{socket.gethostname()}-{started}", "pid": os.getpid()}


def _touch_until(path: Path, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_SECONDS):
        with suppress(OSError):  # a file system that fails for a moment must not end the heartbeat
            os.utime(path)
