"""The folder of one run.

config.json    the `RunConfig`
log.jsonl      one line per log record
checkpoints/   the last two checkpoints
data.json      hashes of files that examples come from and of outside code, if any
result.json    the `TrainResult`, once the run is finished
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from looped.config import RunConfig, differences
from looped.serde import check_fields, decode, encode
from looped.training.checkpoint import Checkpoint, load_newest, sweep_checkpoints
from looped.utils.errors import InputError, require
from looped.utils.files import is_temporary, locked, make_folder, read_sealed, require_regular, save_sealed, sweep


@dataclass(frozen=True)
class TrainResult:
    """How far a run is and what it has cost so far."""

    finished: bool
    step: int
    num_steps: int
    samples: int
    seconds: float
    parameters: int
    flops: int
    """forward and backward passes of the whole training"""
    hardware: str
    versions: dict[str, str]
    validation: float | None = None
    """the task's metric on validation data, once the run is finished"""
    stopped_by: Literal["signal", "time limit", "callback"] | None = None
    """why an unfinished run stopped"""
    folder: str | None = None
    """the run's folder (not stored, because a folder may be moved)"""

    def __post_init__(self) -> None:
        check_fields(self)

    def to_json(self) -> dict[str, Any]:
        """Return the stored fields as JSON values: the content of `result.json`."""
        return {name: value for name, value in encode(self).items() if name != "folder" and value is not None}


class RunFolder:
    """Paths and rules of one run's folder. A folder belongs to one config for ever."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.log_path = self.path / "log.jsonl"
        self.data_path = self.path / "data.json"
        self.result_path = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.lock_path = self.path / ".lock"

    def claim(self, config: RunConfig) -> None:
        """Write the config, or check that the folder belongs to this run (runtime settings may differ).

        The first checkpoint binds a folder to its config. A run that failed before left nothing worth keeping.
        """
        self.check(config)
        if not (self.config_path.exists() and self.has_checkpoint()):
            code = config.outside_code()
            save_sealed(self.config_path, config.to_json() | ({"code": code} if code else {}))

    def check(self, config: RunConfig) -> None:
        """Raise InputError if this folder belongs to another run."""
        if self.config_path.exists() and self.has_checkpoint():
            for name, (theirs, ours) in differences(self.read_config(), config).items():
                hint = ""
                if name == "train.num_steps":
                    hint = f" (to train a finished run for more steps: --train.continue-from {self.path} --out NEW)"
                raise InputError(
                    f"{self.path} holds another run: its {name} is {theirs!r}, this one's is {ours!r}{hint}", field=name
                )

    def check_data(self, config: RunConfig) -> None:
        """Store the hashes of a new run's data and outside code. Raise InputError if a resumed run would use others."""
        current = {**config.task.fingerprints(), **config.outside_code()}
        if current and not self.has_checkpoint():
            save_sealed(self.data_path, current)
        stored = read_sealed(self.data_path) if self.data_path.exists() else {}
        for name, before in stored.items():
            now = current.get(name, "none")
            require(
                before == now,
                f"{self.path} was trained with another {name}: expected SHA-256 {str(before)[:12]}..., "
                f"got {now[:12]}... (--out starts a new run)",
            )

    def read_config(self) -> RunConfig:
        """Return the run's config. Raise InputError if the folder is not a run."""
        require(self.path.is_dir(), f"no run at {self.path}: expected a folder with config.json")
        self.require_plain()
        require(self.config_path.exists(), f"{self.path} is not a run: expected config.json in it")
        data = read_sealed(self.config_path)
        try:
            return RunConfig.from_json(data)
        except InputError as error:
            raise InputError(f"{self.config_path}: {error}") from None

    def changed_code(self, config: RunConfig) -> list[str]:
        """Return the names of the files that defined the run when it was trained and have changed since then."""
        stored = read_sealed(self.config_path).get("code", {})
        now = config.outside_code()
        return [name for name, before in stored.items() if now.get(name, before) != before]

    def read_result(self) -> TrainResult | None:
        """Return the result of a finished run, or None."""
        if not self.result_path.exists():
            return None
        stored = read_sealed(self.result_path)
        try:
            return decode(TrainResult, stored)
        except InputError as error:
            raise InputError(f"{self.result_path}: {error}") from None

    def has_checkpoint(self) -> bool:
        """Return whether there is any checkpoint, damaged or not."""
        return any(self.checkpoints.glob("step-*"))

    def newest_checkpoint(self, use: Callable[[Checkpoint], object] = lambda checkpoint: None) -> Checkpoint | None:
        """Return the newest checkpoint that is whole and that `use` accepts, or None if there is none at all."""
        return load_newest(self.checkpoints, use)

    def require_checkpoint(self) -> Checkpoint:
        """Return the newest checkpoint of a run. Raise InputError if the folder is not a run or has none."""
        self.read_config()
        checkpoint = self.newest_checkpoint()
        if checkpoint is None:
            raise InputError(f"{self.path} has no checkpoint yet: expected a run that was trained")
        return checkpoint

    def require_plain(self) -> None:
        """Raise InputError if one of the run's files is a link, a device or a pipe: it would lead out of the folder."""
        require_regular(self.config_path, self.log_path, self.data_path, self.result_path, self.lock_path)
        require(not self.checkpoints.is_symlink(), f"{self.checkpoints} is a link: expected a folder")

    def require_usable(self) -> None:
        """Raise InputError if the folder holds files that no trainer wrote."""
        self.require_plain()
        if not self.path.is_dir() or self.config_path.exists():
            foreign = self.path.exists() and not self.path.is_dir()
        else:
            foreign = any(path != self.lock_path and not is_temporary(path.name) for path in self.path.iterdir())
        require(not foreign, f"{self.path} is not a run: expected a new or empty folder, or one with config.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, lock it and delete what a killed process left half written in it.

        Raise InputError if another process is training in it.
        """
        make_folder(self.path)
        with locked(self.lock_path, wait=False) as free:
            require(free, f"{self.path} is being trained by another process")
            sweep(self.path)
            sweep_checkpoints(self.checkpoints)
            yield
