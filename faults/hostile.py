"""Run folders and data files that a stranger made: links, devices, pipes, bombs, endless lines.

Every command must end by itself within five seconds and a gibibyte, with at most one line of complaint, and must leave
alone what lies outside of its folder.
"""

import gzip
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from faults.seals import rename_in_state
from faults.target import GIB, Outcome, Target
from faults.tries import Result, Tries, one, result
from faults.workloads import checkpoints, files_in, make_killed_run, training

SECONDS = 5.0
_LARGE = 200_000_000

Spoil = Callable[[Path, Path], object]
"""puts something else in the place of a file, or into a folder; the second path is the folder outside"""


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


def hostile_runs(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Put something else in the place of each file and folder of a run, then train it and ask it."""
    kept = target.fresh_folder("hostile") / "run"
    make_killed_run(target, kept, at_step=17)
    commands = {"train": training(target).command, "solve": ["solve", "run", "--json"], "check": ["check", "run"]}
    for name in [*sorted(files_in(kept)), "checkpoints", "result.json", "data.json"]:
        for (what, spoil), (verb, command) in itertools.product(_INSTEAD.items(), commands.items()):
            if what == "a line of 200 MB" and not full and not name.endswith("config.json"):
                continue

            def make(folder: Path, outside: Path, name: str = name, spoil: Spoil = spoil) -> None:
                path = folder / "run" / name
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                spoil(path, outside)

            case = f"{verb}, {name} is {what}"
            yield one("hostile files in a run folder", case, partial(_judged, case, target, command, kept, make))
    for name in ("/dev/zero", "/etc/hostname", "../../config.json", "/etc", ".", "\0", "a" * 300):

        def rename(folder: Path, outside: Path, name: str = name) -> None:
            """Let a checkpoint's state name a file elsewhere, with its hashes made right again."""
            for checkpoint in checkpoints(folder / "run"):
                rename_in_state(checkpoint, name)

        case = f"train, a shard is called {name[:20]!r}"
        secret = Path("/etc/hostname")
        judged = partial(_judged, case, target, commands["train"], kept, rename, secret=secret)
        yield one("hostile file names in a checkpoint", case, judged)


def hostile_data(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Give every verb that reads a file of the user's a hostile one."""
    verbs = {
        "data check": ["data", "check", "FILE"],
        "check": ["check", "FILE"],
        "puzzles": ["data", "sample", "sudoku", "--task.file", "FILE", "--size", "1"],
        "text": ["data", "sample", "language", "--task.text", "FILE", "--task.seq-len", "8", "--size", "1"],
        "records": ["paper", "status", "table1", "--scale", "smoke", "--results", "data"],
    }  # fmt: skip
    for (verb, command), (what, (name, make)) in itertools.product(verbs.items(), _DATA.items()):
        if name.endswith(".zst") and find_spec("zstandard") is None:
            continue  # nothing here can make such a file
        path = Path("data") / (Path(name).stem + ".json" if verb == "records" else name)

        def put(folder: Path, outside: Path, path: Path = path, make: Callable[[Path], object] = make) -> None:
            (folder / "data").mkdir()
            make(folder / path)

        case = f"{verb}, {what}"
        named = [part.replace("FILE", str(path)) for part in command]
        yield one("hostile data files", case, partial(_judged, case, target, named, None, put))


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


def _judged(
    case: str, target: Target, command: list[str], run: Path | None, spoil: Spoil, secret: Path | None = None
) -> Result:
    """Spoil a copy of a run, give a command, and return what was wrong with it."""
    whole = target.fresh_folder("hostile")
    folder, outside = whole / "inside", whole / "outside"
    (outside / ".step-000000005").mkdir(parents=True)
    (outside / ".step-000000005" / "notes.txt").write_text("notes\n")
    (outside / "precious.txt").write_text("precious\n")
    folder.mkdir()
    if run is not None:
        shutil.copytree(run, folder / "run")
    spoil(folder, outside)
    before = _contents(outside)
    outcome = target.run(command, folder, seconds=2 * SECONDS, most_bytes=2 * GIB)
    after = _contents(outside)
    shutil.rmtree(whole, ignore_errors=True)
    problem = outcome.complaint or _too_much(outcome, target.resting_bytes)
    if secret is not None and hashlib.sha256(secret.read_bytes()).hexdigest()[:8] in outcome.stderr:
        problem = f"foreign file read: the message tells the hash of {secret}"
    if after != before:
        changed = sorted(path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        problem = f"foreign file lost: {changed[0]} outside of the run was changed"
    return result(problem and f"{problem} ({case})", f"exit code {outcome.code}")


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _too_much(outcome: Outcome, resting: int) -> str | None:
    if outcome.cpu > SECONDS:
        return f"slow: {outcome.cpu:.1f} s of computing"
    if outcome.peak > max(GIB, resting + GIB // 2):  # a PyTorch with CUDA may take a gibibyte by itself
        return f"large: {outcome.peak / GIB:.2f} GiB of memory"
    return None
