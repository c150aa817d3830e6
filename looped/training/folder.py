"""A run's folder: `config.json`, `log.jsonl`, `checkpoints/`, and `result.json` once it is finished."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from looped.config import RunConfig
from looped.errors import InputError, require
from looped.files import read_json, save_json
from looped.training.checkpoint import Checkpoint, load_newest


class RunFolder:
    """Paths and rules of one run's folder. A folder belongs to one config, for ever."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.log_path = self.path / "log.jsonl"
        self.result_path = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"

    def claim(self, config: RunConfig) -> None:
        """Make the folder, or check that it holds this very run (time limits, logging and paths may differ)."""
        if self.config_path.exists():
            theirs, ours = self.read_config().identity(), config.identity()
            require(theirs == ours, f"{self.path} holds another run: {_first_difference(theirs, ours)}")
        else:
            occupied = self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir()))
            require(not occupied, f"{self.path} is not a run: expected a new or empty folder, or one with config.json")
            save_json(self.config_path, config.to_json())

    def read_config(self) -> RunConfig:
        require(self.path.is_dir(), f"no run at {self.path}: expected a folder with config.json")
        require(self.config_path.exists(), f"{self.path} is not a run: expected config.json in it")
        data = read_json(self.config_path)
        try:
            return RunConfig.from_json(data)
        except InputError as error:
            raise InputError(f"{self.config_path} does not describe a run: {error}") from None

    def read_result(self) -> dict[str, Any] | None:
        return read_json(self.result_path) if self.result_path.exists() else None

    def newest_checkpoint(self) -> Checkpoint | None:
        return load_newest(self.checkpoints)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against a second trainer; the lock goes with the process, however it ends."""
        with open(self.path / ".lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.path} is being trained by another process") from None
            yield


def _first_difference(theirs: Any, ours: Any, where: str = "") -> str:
    """The first field that two configs disagree in, for a person."""
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        a, b = theirs.get(name), ours.get(name)
        if a != b:
            path = f"{where}.{name}".lstrip(".")
            if isinstance(a, dict) and isinstance(b, dict):
                return _first_difference(a, b, path)
            return f"its {path} is {a!r}, this one's is {b!r}"
    return "no difference"
