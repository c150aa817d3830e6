"""Who works on which run: one of several runners that share a folder, on one machine or on many.

A run is claimed by a locked file, which the system frees however its holder ends. Network file systems do not always
carry such locks from machine to machine; so the holder also keeps a file that only one can make, says in it where it
runs, and touches it while it lives. Another machine's claim that was not touched for long is void.
"""

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from looped.utils.errors import InputError
from looped.utils.files import from_json, locked, make_folder

FOLDER = ".claims"
HEARTBEAT_SECONDS = 15.0
VOID_AFTER_SECONDS = 120.0


@contextmanager
def claimed(root: Path, name: str) -> Iterator[bool]:
    """Hold a claim on the run `name` under `root` for as long as the context lasts; yields whether it was free."""
    folder = root / FOLDER
    make_folder(folder)
    path = folder / f"{name}.json"
    with locked(folder / f"{name}.lock", wait=False) as free:
        if not free or not _asked(_take, path):
            yield False
            return
        done = threading.Event()
        heart = threading.Thread(target=_beat, args=(path, done), daemon=True)
        heart.start()
        try:
            yield True
        finally:
            done.set()
            heart.join()
            with suppress(OSError, ValueError):
                if from_json(path.read_text()) == _here():  # another machine may have taken it for void
                    path.unlink()


def is_claimed(root: Path, name: str) -> bool:
    """Return whether another process works on a run right now, without taking the lock."""
    path = root / FOLDER / f"{name}.json"
    if not path.exists():
        return False
    with locked(path.with_suffix(".lock"), wait=False) as free:
        return not free or (path.exists() and not _asked(_is_void, path))


def sweep_claims(root: Path) -> None:
    """Delete what killed processes left: claims of runs that nobody takes up again, and files without their name."""
    for path in sorted((root / FOLDER).glob("*")):
        with suppress(OSError):
            if path.name.startswith("."):
                if _has_dead_writer(path.name):
                    path.unlink()
            elif path.suffix == ".json":
                with locked(path.with_suffix(".lock"), wait=False) as free:
                    if free and _is_void(path):
                        path.unlink()


def _has_dead_writer(name: str) -> bool:
    """Return whether a temporary file, named after its writer, is of a process of this machine that is gone."""
    writer = re.search(rf"\.{re.escape(str(_here()['host']))}-(\d+)(\.new)?$", name)
    if writer is None:
        return False
    try:
        os.kill(int(writer[1]), 0)
    except ProcessLookupError:
        return True
    return False


def _asked(question: Callable[[Path], bool], path: Path) -> bool:
    try:
        return question(path)
    except OSError as error:
        raise InputError(f"cannot claim a run with {path}: {error.strerror or error}") from None


def _take(path: Path) -> bool:
    """Make the claim's file, which one machine alone can; a void one is moved away first, which again one alone can."""
    if _is_void(path):
        aside = path.with_name(f".{path.name}.{_here()['host']}-{os.getpid()}")
        with suppress(FileNotFoundError):
            os.rename(path, aside)
            if not _is_void(aside):  # another machine was faster, and this is its new claim
                with suppress(FileExistsError):
                    os.link(aside, path)
                aside.unlink()
                return False
            aside.unlink()
    # Written before it gets its name: a claim without a holder would keep others waiting until it is void.
    written = path.with_name(f".{path.name}.{_here()['host']}-{os.getpid()}.new")
    try:
        written.write_text(json.dumps(_here()))
        os.link(written, path)
    except FileExistsError:
        return False
    finally:
        written.unlink(missing_ok=True)
    return True


def _is_void(path: Path) -> bool:
    """Return whether a claim is void: its holder is gone (this machine), or it was not refreshed for long (another)."""
    try:
        touched, text = path.stat().st_mtime, path.read_bytes()
    except FileNotFoundError:
        return False
    try:
        holder = from_json(text)
    except ValueError:
        holder = None  # its maker had not written it yet, or died over it
    if isinstance(holder, dict) and holder.get("host") == _here()["host"]:
        return True
    return _now(path.parent) - touched > VOID_AFTER_SECONDS


def _now(folder: Path) -> float:
    """The file system's own time: the clocks of two machines may differ."""
    probe = folder / f".clock.{_here()['host']}-{os.getpid()}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _here() -> dict[str, str | int]:
    """This machine, since it was started: two containers may share a name, but hardly this."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = boot.read_text().strip()[:8] if boot.exists() else ""
    return {"host": f"{socket.gethostname()}-{started}", "pid": os.getpid()}


def _beat(path: Path, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_SECONDS):
        with suppress(OSError):  # a file system that fails for a moment must not end it
            os.utime(path)
