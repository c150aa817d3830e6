"""Check every file of a run, a results folder, a data set or a model: its hash and whether its content is valid."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from looped.experiments.records import RECORD_NAME, read_record
from looped.models.pretrained import read_card, read_weights
from looped.tasks import datasets
from looped.training.checkpoint import load_checkpoint
from looped.training.logger import read_log
from looped.training.run_folder import RunFolder
from looped.utils.errors import InputError, require
from looped.utils.files import read_sealed
from looped.utils.shipped import SUFFIX

Kind = Literal["config", "data", "log", "checkpoint", "result", "record", "data set", "model"]


@dataclass(frozen=True)
class CheckedFile:
    """One file, or one checkpoint folder, and what is wrong with it."""

    path: str
    kind: Kind
    problem: str | None = None


@dataclass(frozen=True)
class Report:
    """The checked files, and the parts that can still be used if some are damaged."""

    files: tuple[CheckedFile, ...]
    usable: tuple[str, ...]

    @property
    def damaged(self) -> tuple[CheckedFile, ...]:
        """Return the files that have a problem."""
        return tuple(each for each in self.files if each.problem is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


def check_path(path: str | Path) -> Report:
    """Check a run, a folder of runs or records, a data set or a model file. Raise InputError if it is none of these."""
    path = Path(path)
    require(path.exists(), f"{path}: expected a run, a results folder, a data set or a model, found nothing")
    if not path.is_dir():
        return Report((_check_file(path),), ())
    runs = [path] if _is_run(path) else sorted(each for each in path.iterdir() if _is_run(each))
    files = [each for run in runs for each in _check_run(run)]
    inside = {each.path for each in files}
    files += [
        _check_file(each)
        for each in sorted([*path.rglob("*.json"), *path.rglob(f"*{SUFFIX}")])
        if str(each) not in inside and not any(run in each.parents for run in runs)
    ]
    require(bool(files), f"{path}: expected a run, records or models in this folder, found none")
    return Report(tuple(files), tuple(map(_usable, runs)))


def _is_run(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in ("config.json", "checkpoints"))


def _check_run(path: Path) -> Iterator[CheckedFile]:
    """Yield every file of a run that the trainer reads, in the order in which it reads them."""
    run = RunFolder(path)
    yield _checked(run.config_path, "config", run.read_config)
    checks: tuple[tuple[Path, Kind, Callable[[], object]], ...] = (
        (run.data_path, "data", lambda: read_sealed(run.data_path)),
        (run.log_path, "log", lambda: _require_whole_log(run.log_path)),
        (run.result_path, "result", run.read_result),
        (path / RECORD_NAME, "record", lambda: read_record(path / RECORD_NAME)),
    )
    yield from (_checked(*each) for each in checks if each[0].exists())
    for checkpoint in sorted(run.checkpoints.glob("step-*")):
        yield _checked(checkpoint, "checkpoint", lambda checkpoint=checkpoint: load_checkpoint(checkpoint))


def _check_file(path: Path) -> CheckedFile:
    if path.suffix == SUFFIX:
        return _checked(path, "model", lambda: read_weights(read_card(path)))
    if path.suffix == ".json":
        return _checked(path, "record", lambda: read_record(path))
    return _checked(path, "data set", lambda: datasets.check(path))


def _checked(path: Path, kind: Kind, read: Callable[[], object]) -> CheckedFile:
    try:
        read()
    except InputError as error:
        return CheckedFile(str(path), kind, str(error))
    return CheckedFile(str(path), kind)


def _require_whole_log(path: Path) -> None:
    records, lines = read_log(path), path.read_bytes().splitlines()
    require(len(lines) == len(records), f"{path}: expected JSON with a step in {len(lines)} lines, got {len(records)}")


def _usable(path: Path) -> str:
    """Return what the same training command would do with a run."""
    run = RunFolder(path)
    try:
        run.read_config()
    except InputError:
        return f"{path} cannot be used: its config.json is damaged"
    for checkpoint in sorted(run.checkpoints.glob("step-*"), reverse=True):
        try:
            return f"{path} can be used from step {load_checkpoint(checkpoint).step} on"
        except InputError:
            continue
    return f"{path} starts from step 0" if not run.has_checkpoint() else f"{path} has no checkpoint that can be read"
