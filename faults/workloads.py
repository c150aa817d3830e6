"""The commands under test: a short run, a data build and a paper run, each with the state it must end in."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.operations import Fault, Operation
from faults.target import Outcome, Target, last_line

NUM_STEPS, EVERY = 20, 5
_STEP = re.compile(r"step-(\d+)$")
# Fields that say how long something took or when and where it ran: no two runs agree on them.
_TIMES = re.compile(r"second|minute|speed|_ms$|date|time|memory|hardware|commit|version|sha256|hash|digest|folder|path")


@dataclass(frozen=True)
class Workload:
    """A command, what is there before it, and what it leaves."""

    name: str
    command: list[str]
    read: Callable[[Path], Any]
    """the final state of a folder, equal for equal results"""
    prepare: Callable[[Path], object] = lambda folder: None

    @contextmanager
    def fresh(self, target: Target) -> Iterator[Path]:
        """Yield a folder in which the command can be run, and delete it afterwards."""
        folder = target.fresh_folder(self.name)
        try:
            self.prepare(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def training_arguments(target: Target, *more: str) -> list[str]:
    """Return the command of a run that takes a tenth of a second."""
    small = {
        "dim": 16, "num-heads": 2, "num-loops": 2, "length": 6, "num-steps": NUM_STEPS, "batch-size": 4,
        "checkpoint-every": EVERY, "log-every": 1, "eval-every": 10, "eval-size": 8, "curriculum-steps": 10,
        "warmup-steps": 5,
    }  # fmt: skip
    flags = [text for name, value in small.items() for text in (target.flag(name), str(value))]
    return ["train", "edit-distance", "--recipe", "laptop", *flags, "--json", *more]


def training(target: Target) -> Workload:
    """Return 20 steps with a checkpoint every 5."""
    return Workload("train", [*training_arguments(target), "--out", "run"], lambda folder: run_state(folder / "run"))


def resumed_training(target: Target) -> Workload:
    """Return the same training, killed at step 13 and given once more."""
    workload = training(target)
    kept = target.scratch / "killed-run"

    def prepare(folder: Path) -> None:
        if not kept.exists():
            make_killed_run(target, kept)
        shutil.copytree(kept, folder / "run")

    return Workload("resume", workload.command, workload.read, prepare)


def make_killed_run(target: Target, path: Path, at_step: int = 13) -> None:
    """Make the folder of a run that was killed after it had logged a step."""
    workload = training(target)
    operations: list[Operation] = []
    with workload.fresh(target) as folder:
        target.run(workload.command, folder, trace=operations)
    mark = f'"step": {at_step},'.encode()
    number = next(operation.number for operation in operations if mark in operation.data)
    with workload.fresh(target) as folder:
        target.run(workload.command, folder, fault=Fault(number, "kill after"))
        shutil.copytree(folder / "run", path)


def data_build(target: Target) -> Workload:
    """Return a data set that is built over an older one."""
    command = ["data", "build", "edit-distance", "--task.length", "6", "--out", "d.jsonl"]

    def prepare(folder: Path) -> None:
        kept = target.scratch / "older.jsonl"
        if not kept.exists():
            target.run([*command, "--seed", "1", "--size", "50"], target.scratch)
            (target.scratch / "d.jsonl").rename(kept)
        shutil.copy(kept, folder / "d.jsonl")

    return Workload("data", [*command, "--size", "3000"], lambda folder: file_hash(folder / "d.jsonl"), prepare)


def paper_run(target: Target) -> Workload:
    """Return two cells of a table at smoke scale, one after the other."""
    command = ["paper", "run", "table1", "--scale", "smoke", "--cells", "ED40:looped r=1", "ED40:looped r=2"]
    command += ["--workers", "1", "--root", "runs", "--results", "results"]

    def read(folder: Path) -> Any:
        runs = sorted(path for path in (folder / "runs").iterdir() if not path.name.startswith("."))
        records = {str(path.relative_to(folder)): _timeless(_json(path)) for path in folder.rglob("record*.json")}
        return [run_state(path) for path in runs], records

    return Workload("paper", command, read)


WORKLOADS = {"train": training, "resume": resumed_training, "data": data_build, "paper": paper_run}


# The state of a folder, read without the program under test.


def file_hash(path: Path) -> str | None:
    """Return the hash of a file's bytes; None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def checkpoints(run: Path) -> list[Path]:
    """Return the visible checkpoint folders of a run, oldest first."""
    return sorted(path for path in run.rglob("step-*") if path.is_dir() and _STEP.fullmatch(path.name))


def step_of(checkpoint: Path) -> int:
    """Return the step that a checkpoint folder is named after."""
    found = _STEP.fullmatch(checkpoint.name)
    assert found is not None
    return int(found[1])


def run_state(run: Path) -> dict[str, Any]:
    """Return a run's step, weights, log and result, without what depends on time."""
    saved = checkpoints(run)
    state: dict[str, Any] = {"step": step_of(saved[-1]) if saved else None}
    if saved:
        state["tensors"] = {path.name: tensors_hash(path) for path in sorted(saved[-1].glob("*.safetensors"))}
    log = run / "log.jsonl"
    state["log"] = [_timeless(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
    result = run / "result.json"
    state["result"] = _timeless(_json(result)) if result.exists() else None
    return state


def tensors_hash(path: Path) -> str:
    """Return a hash of a safetensors file's tensors, whatever their order and the file's metadata."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    digest = hashlib.sha256()
    for name in sorted(header.keys() - {"__metadata__"}):
        start, end = header[name]["data_offsets"]
        digest.update(f"{name} {header[name]['dtype']} {header[name]['shape']}".encode() + body[start:end])
    return digest.hexdigest()


def files_in(folder: Path) -> set[str]:
    """Return the names of all files under a folder, hidden ones among them."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def first_step(outcome: Outcome) -> int | None:
    """Return the step that a run resumed from, read from its first progress line; None if there is no such line."""
    told = re.search(r"(?m)^\s*step\s+(\d+).*\bloss\b", outcome.stderr)
    return None if told is None else int(told[1]) - 1


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing happens to."""

    state: Any
    files: set[str]
    checkpoint_files: set[frozenset[str]]
    operations: list[Operation]
    elapsed: float


def undisturbed(target: Target, workload: Workload, *, reads: bool = False) -> Undisturbed:
    """Run a workload to its end once, and note what it does and leaves."""
    kept = target.references
    if (workload.name, reads) not in kept:
        kept[workload.name, reads] = _run_undisturbed(target, workload, reads)
    return kept[workload.name, reads]


def _run_undisturbed(target: Target, workload: Workload, reads: bool) -> Undisturbed:
    operations: list[Operation] = []
    with workload.fresh(target) as folder:
        outcome = target.run(workload.command, folder, trace=operations, fault=Fault(reads=reads))
        if outcome.code != 0:
            raise RuntimeError(f"the undisturbed {workload.name} failed: {outcome.stderr[-2000:]}")
        whole = {frozenset(files_in(path)) for path in checkpoints(folder)}
        return Undisturbed(workload.read(folder), files_in(folder), whole, operations, outcome.elapsed)


def torn(folder: Path, reference: Undisturbed) -> str | None:
    """Return what is visible in half: a JSON file that cannot be read, or a checkpoint that lacks a file."""
    for path in checkpoints(folder):
        if frozenset(files_in(path)) not in reference.checkpoint_files:
            return f"half a checkpoint is visible: {path.name} has only {sorted(files_in(path)) or 'no file'}"
    for path in folder.rglob("*.json"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            try:
                _json(path)
            except ValueError as error:
                return f"half a file is visible: {path.name}: {error}"
    return None


def goes_on(target: Target, workload: Workload, folder: Path, reference: Undisturbed) -> tuple[str | None, Outcome]:
    """Give the command once more; return what is wrong with its end, and how it ended."""
    outcome = target.run(workload.command, folder)
    if outcome.complaint or outcome.code != 0:
        return f"cannot go on: {outcome.complaint or last_line(outcome.stderr)}", outcome
    try:
        if difference := _difference(reference.state, workload.read(folder)):
            kind = "another log" if difference.startswith("log") else "another result"
            return f"{kind}: {difference} than in an undisturbed run", outcome
    except (OSError, ValueError, KeyError) as error:
        return f"another result: {error}", outcome
    # A power cut may bring back an old checkpoint. If it is whole, it does not count as litter.
    kept = {f"{path.relative_to(folder)}/{name}" for path in checkpoints(folder) for name in files_in(path)}
    if litter := files_in(folder) - reference.files - kept:
        return f"litter: {_unnumbered(sorted(litter)[0])} stays for ever", outcome
    return None, outcome


def _difference(expected: Any, got: Any, where: str = "") -> str | None:
    """Return the place and kind of the first difference between two states; None for none."""
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys():
        pairs = [(expected[name], got[name], f"{where}.{name}".lstrip(".")) for name in expected]
    elif isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        if len(expected) != len(got):
            return f"{where} has {len(got)} entries, other than {len(expected)},"
        pairs = [(one, other, where) for one, other in zip(expected, got, strict=True)]
    else:
        return None if expected == got else f"{where} is {got!r:.60}, other than {expected!r:.60},"
    return next((found for pair in pairs if (found := _difference(*pair))), None)


def _unnumbered(name: str) -> str:
    return re.sub(r"\d{2,}", "N", name)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(each) for name, each in value.items() if not _TIMES.search(name)}
    return [_timeless(each) for each in value] if isinstance(value, list) else value
