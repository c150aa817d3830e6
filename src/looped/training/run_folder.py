"""A run's folder: `config.json`, `log.jsonl`, `checkpoints/`, `data.json` where the examples are taken from a text,
and `result.json` once it is finished."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from looped.config import RunConfig, differences
from looped.tasks import TASKS, Task
from looped.training.checkpoint import Checkpoint, load_newest
from looped.utils.errors import InputError, require
from looped.utils.files import locked, make_folder, read_json, save_json

_NUMBER = (int, float)
# What a result is read for, with its kind.
_RESULT_FIELDS: dict[str, type | tuple[type, ...]] = {
    "step": int, "samples": int, "parameters": int, "num_steps": int, "validation": _NUMBER, "seconds": _NUMBER,
    "flops": _NUMBER, "hardware": str, "versions": dict,
}  # fmt: skip


class RunFolder:
    """Paths and rules of one run's folder. A folder belongs to one config, for ever."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.log_path = self.path / "log.jsonl"
        self.data_path = self.path / "data.json"
        self.result_path = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.lock_path = self.path / ".lock"

    def claim(self, config: RunConfig) -> None:
        """Make this folder the run's, or check that it is (time limits, logging and paths may differ).

        A folder is bound by its first checkpoint: a run that failed before it has left nothing worth keeping.
        """
        self.check(config)
        if not (self.config_path.exists() and self.has_checkpoint()):
            save_json(self.config_path, config.to_json())

    def check(self, config: RunConfig) -> None:
        """`InputError` if this folder is another run's."""
        if self.config_path.exists() and self.has_checkpoint():
            for name, (theirs, ours) in differences(self.read_config(), config).items():
                # Stored as it was typed, before runs kept which of a task's models was its best then.
                unnamed = name == "train.init_from" and theirs in TASKS and str(ours).startswith(f"{theirs}/")
                require(unnamed, f"{self.path} holds another run: its {name} is {theirs!r}, this one's is {ours!r}")

    def check_data(self, task: Task) -> None:
        """Note what a new run takes its examples from; `InputError` if one that was begun would go on with another."""
        came = task.fingerprints()
        if came and not self.has_checkpoint():
            save_json(self.data_path, came)
        known = read_json(self.data_path) if self.data_path.exists() else {}
        require(isinstance(known, dict), f"expected an object with hashes in {self.data_path}, got something else")
        for name, before in known.items():
            now = came.get(name, "none")
            require(
                before == now,
                f"{self.path} was trained on another {name}: expected one with the sha256 {str(before)[:12]}..., got "
                f"{now[:12]}...",
            )

    def read_config(self) -> RunConfig:
        require(self.path.is_dir(), f"no run at {self.path}: expected a folder with config.json")
        require(self.config_path.exists(), f"{self.path} is not a run: expected config.json in it")
        data = read_json(self.config_path)
        try:
            return RunConfig.from_json(data)
        except InputError as error:
            raise InputError(f"{self.config_path} does not describe a run: {error}") from None

    def read_result(self) -> dict[str, Any] | None:
        if not self.result_path.exists():
            return None
        result = read_json(self.result_path)
        whole = isinstance(result, dict) and isinstance(result.get("finished"), bool)
        require(whole, f"{self.result_path} is no result of a run: expected an object with the field finished")
        for name, kind in _RESULT_FIELDS.items():
            value = result.get(name)
            right = isinstance(value, kind) and not isinstance(value, bool)
            require(right, f"{self.result_path} is no result of a run: its field {name!r} is {value!r}")
        return result

    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("step-*"))

    def newest_checkpoint(self) -> Checkpoint | None:
        return load_newest(self.checkpoints)

    def require_usable(self) -> None:
        """`InputError` if there is something here that no trainer made."""
        strangers = self.path.is_dir() and not self.config_path.exists() and {*self.path.iterdir()} - {self.lock_path}
        require(
            not strangers and (self.path.is_dir() or not self.path.exists()),
            f"{self.path} is not a run: expected a new or empty folder, or one with config.json",
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder if need be and hold it against a second trainer."""
        make_folder(self.path)
        with locked(self.lock_path, wait=False) as free:
            require(free, f"{self.path} is being trained by another process")
            yield
