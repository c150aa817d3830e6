"""Run folders and data files that a stranger made: links, devices, pipes, bombs, endless lines.

Every command must end by itself within five seconds and a gibibyte, with at most one line of complaint, and must leave
alone what lies outside of its folder.
"""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from faults.seals import rename_in_state
from faults.table import Row
from faults.target import GIB, Outcome, Target
from faults.workloads import checkpoints, files_in, make_killed_run, training

SECONDS = 5.0
_LARGE = 200_000_000

Spoil = Callable[[Path, Path], object]
"""puts something else in the place of a file; the second path is the folder outside"""


def _large_line(path: Path, _: Path) -> None:
    with path.open("wb") as file:
        file.writelines(b"a" * 10**6 for _ in range(_LARGE // 10**6))


_INSTEAD: dict[str, Spoil] = {
    "a link to another file": lambda path, outside: path.symlink_to(outside / "precious.txt"),
    "a link to a file that is not there": lambda path, outside: path.symlink_to(outside / "new.txt"),
    "a link to /dev/zero": lambda path, _: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path, _: path.symlink_to(path.name),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a folder": lambda path, _: path.mkdir(),
    "an empty file": lambda path, _: path.touch(),
    "a line of 200 MB": _large_line,
    "JSON nested 100,000 deep": lambda path, _: path.write_text("[" * 100_000),
    "bytes that are no text": lambda path, _: path.write_bytes(bytes(range(256)) * 8),
}


def hostile_runs(target: Target, *, full: bool, seed: int, only: str | None = None) -> Iterable[Row]:
    """Put something else in the place of each file and folder of a run, then train it and ask it."""
    kept = target.scratch / "hostile-run"
    if not kept.exists():
        make_killed_run(target, kept, at_step=17)
    command = training(target).command
    names = [*sorted(files_in(kept)), "checkpoints", "result.json", "data.json"]
    row = Row("hostile files in a run folder", "hostile --only {}")
    for name in names:
        for what, spoil in _INSTEAD.items():
            if what == "a line of 200 MB" and not full and not name.endswith("config.json"):
                continue
            for verb, arguments in (("train", command), ("solve", ["solve", "run", "--json"])):
                case = f"{verb}, {name} is {what}"
                if only is not None and only != case:
                    continue
                with _fresh(target, kept) as (folder, outside):
                    path = folder / "run" / name
                    if path.is_dir():
                        shutil.rmtree(path)
                    path.unlink(missing_ok=True)
                    spoil(path, outside)
                    _judge(row, case, target, arguments, folder, outside)
    yield row
    yield from _hostile_names(target, kept, command, only)


def _hostile_names(target: Target, kept: Path, command: list[str], only: str | None) -> Iterator[Row]:
    """Let a checkpoint's state name files elsewhere, with its hashes made right again."""
    row = Row("hostile file names in a checkpoint", "hostile --only {}")
    for name in ("/dev/zero", "/etc/hostname", "../../config.json", "/etc", ".", "\0", "a" * 300):
        case = f"train, a shard is called {name[:20]!r}"
        if only is not None and only != case:
            continue
        with _fresh(target, kept) as (folder, outside):
            for checkpoint in checkpoints(folder / "run"):
                rename_in_state(checkpoint, name)
            _judge(row, case, target, command, folder, outside, secret=Path("/etc/hostname"))
    if row.tries:
        yield row


def hostile_data(target: Target, *, full: bool, seed: int, only: str | None = None) -> Iterable[Row]:
    """Give every verb that reads a file of the user's a hostile one."""
    row = Row("hostile data files", "hostile-data --only {}")
    verbs = {
        "data check": lambda path: ["data", "check", path],
        "puzzles": lambda path: ["data", "sample", "sudoku", "--task.file", path, "--size", "1"],
        "text": lambda path: ["data", "sample", "language", "--task.text", path, "--task.seq-len", "8", "--size", "1"],
        "records": lambda path: ["paper", "status", "table1", "--scale", "smoke", "--results", str(Path(path).parent)],
    }  # fmt: skip
    for verb, command in verbs.items():
        for what, (name, make) in _DATA.items():
            case = f"{verb}, {what}"
            if only is not None and only != case:
                continue
            with _fresh(target, None) as (folder, outside):
                (folder / "data").mkdir()
                path = folder / "data" / (Path(name).stem + ".json" if verb == "records" else name)
                make(path)
                _judge(row, case, target, command(str(path.relative_to(folder))), folder, outside)
    yield row


def _zstd_bomb(path: Path) -> None:
    import zstandard

    with path.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as file:
        for _ in range(1024):
            file.write(b"a" * 2**20)


def _gzip_bomb(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(1024):
            file.write(b"1" * 2**20)


_DATA: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a link to /dev/zero": ("zero.txt", lambda path: path.symlink_to("/dev/zero")),
    "a folder": ("folder.txt", lambda path: path.mkdir()),
    "a link to itself": ("circle.txt", lambda path: path.symlink_to(path.name)),
    "a line of 200 MB": ("line.txt", lambda path: _large_line(path, path)),
    "a zstd file of 1 GiB without a newline": ("bomb.txt.zst", _zstd_bomb),
    "a gzip file of 1 GiB without a newline": ("bomb.csv.gz", _gzip_bomb),
    "a parquet file of zeros": ("zeros.parquet", lambda path: path.write_bytes(b"PAR1" + bytes(10**6) + b"PAR1")),
    "a task name of 200 MB": (
        "name.jsonl", lambda path: path.write_text(json.dumps({"task": {"name": "a" * _LARGE}, "size": 1}) + "\n"),
    ),
}  # fmt: skip


class _fresh:
    """A folder with a copy of a run, beside a folder with what must not change."""

    def __init__(self, target: Target, run: Path | None) -> None:
        self.folder = target.fresh_folder("hostile")
        outside = self.folder / "outside"
        (outside / ".step-000000005").mkdir(parents=True)
        (outside / ".step-000000005" / "notes.txt").write_text("notes\n")
        (outside / "precious.txt").write_text("precious\n")
        (self.folder / "inside").mkdir()
        if run is not None:
            shutil.copytree(run, self.folder / "inside" / "run")

    def __enter__(self) -> tuple[Path, Path]:
        return self.folder / "inside", self.folder / "outside"

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _judge(
    row: Row, case: str, target: Target, command: list[str], folder: Path, outside: Path, secret: Path | None = None
) -> None:  # fmt: skip
    """Run a command and count what was wrong with it."""
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    outcome = target.run(command, folder, seconds=4 * SECONDS, most_bytes=2 * GIB)
    after = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    problem = outcome.complaint or _too_much(outcome)
    if secret is not None and hashlib.sha256(secret.read_bytes()).hexdigest()[:8] in outcome.stderr:
        problem = f"foreign file read: the message tells the hash of {secret}"
    if after != before:
        changed = sorted(path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        problem = f"foreign file lost: {changed[0]} outside of the run was changed"
    row.add(case, problem and f"{problem} ({case})", f"exit code {outcome.code}")


def _too_much(outcome: Outcome) -> str | None:
    if outcome.cpu > SECONDS:
        return f"slow: {outcome.cpu:.1f} s of computing"
    if outcome.peak > GIB:
        return f"large: {outcome.peak / GIB:.2f} GiB of memory"
    return None
