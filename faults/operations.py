"""File operations of a command: the control page that `shim.c` reads, and the trace that it writes."""

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KINDS = (
    "", "open", "write", "sync", "rename", "unlink", "mkdir", "rmdir", "link", "symlink", "truncate", "chmod",
    "open for reading", "read",
)  # fmt: skip
ACTIONS = (
    "none", "kill before", "kill after", "fail once", "fail from there on", "short write", "short write, then fail",
    "kill midway",
)  # fmt: skip

_RECORD = struct.Struct("<qqqiiiiii")


class _Control(ctypes.Structure):
    """The control page, as in `shim.c`."""

    _fields_ = (
        ("count", ctypes.c_int64), ("target", ctypes.c_int64), ("action", ctypes.c_int32), ("error", ctypes.c_int32),
        ("reads", ctypes.c_int32), ("hit", ctypes.c_int32), ("root", ctypes.c_char * 1024),
        ("trace", ctypes.c_char * 1024),
    )  # fmt: skip


class Fault(NamedTuple):
    """An action at one operation. The default only counts the operations."""

    target: int = -1
    action: str = "none"
    error: int = 0
    reads: bool = False
    """count reads as operations, too"""


class Operation(NamedTuple):
    """One recorded operation."""

    number: int
    kind: str
    path: str
    other: str
    offset: int
    length: int
    flags: int
    error: int
    data: bytes

    def __str__(self) -> str:
        target = f" to {Path(self.other).name}" if self.other else ""
        return f"{self.kind} {'/'.join(Path(self.path).parts[-2:])}{target}"


def kept_folder() -> Path:
    """Return the folder of what one run of the harness leaves for the next."""
    folder = Path(tempfile.gettempdir()) / f"faults-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def build_shim() -> Path:
    """Compile `shim.c` once per content and return the library."""
    source = Path(__file__).with_name("shim.c")
    built = kept_folder() / f"shim-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    if not built.exists():
        # The compiler that built Python need not be on the machine that runs it.
        compiler = next(filter(shutil.which, ((sysconfig.get_config_var("CC") or "cc").split()[0], "gcc")), "cc")
        partial = built.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(partial), str(source)], check=True)
        partial.rename(built)
    return built


def write_control(path: Path, root: Path, fault: Fault, trace: Path | None = None) -> None:
    """Write a control page for one command."""
    page = _Control(
        0, fault.target, ACTIONS.index(fault.action), fault.error, int(fault.reads), 0, os.fsencode(root),
        b"" if trace is None else os.fsencode(trace),
    )  # fmt: skip
    path.write_bytes(bytes(page))


def read_control(path: Path) -> tuple[int, bool]:
    """Return how many operations were counted, and whether the fault was reached."""
    page = _Control.from_buffer_copy(path.read_bytes())
    return page.count, bool(page.hit)


def read_trace(path: Path) -> list[Operation]:
    """Return the recorded operations in their order."""
    return sorted(_records(path.read_bytes()), key=lambda operation: operation.number) if path.exists() else []


def _records(data: bytes) -> Iterator[Operation]:
    place = 0
    while place < len(data):
        number, offset, length, kind, flags, path, other, error, _ = _RECORD.unpack_from(data, place)
        place += _RECORD.size
        first, second = data[place : place + path], data[place + path : place + path + other]
        place += path + other
        written = data[place : place + length] if KINDS[kind] == "write" else b""
        place += len(written)
        yield Operation(
            number, KINDS[kind], os.fsdecode(first), os.fsdecode(second), offset, length, flags, -error, written
        )
