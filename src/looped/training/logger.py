"""Logging: `log.jsonl` always, a progress bar or plain lines, TensorBoard or Weights & Biases on request."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from looped.config import RunConfig
from looped.utils.errors import InputError
from looped.utils.files import content_hash, from_json, require_regular, save_text, writing


class Log:
    """Write `log.jsonl`, one line per record. A resumed run first drops the lines after its checkpoint."""

    def __init__(self, path: Path, config: RunConfig, first_step: int, *, quiet: bool) -> None:
        self.path, self.num_steps = path, config.train.num_steps
        kept = [line for line, step in read_log(path) if step <= first_step]
        self._kept = frozenset(kept)
        save_text(path, "".join(line + "\n" for line in kept))
        self._file = open(path, "a")  # noqa: SIM115 (closed in __exit__)
        self._trackers = _trackers(config, path.parent)
        self._screen = None if quiet else _screen(config, first_step)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self._screen is not None:
            self._screen.close()
        for tracker in self._trackers:
            tracker.close()
        with writing(self.path):  # closing may flush, which may fail on a full disk
            self._file.close()

    def record(self, step: int, **values: float) -> None:
        """Write one record. `step` is the number of finished steps."""
        line = _sealed_line({"step": step, **values})
        if line not in self._kept:  # a run that was stopped at its very end validates once more
            with writing(self.path):
                self._file.write(line + "\n")
                self._file.flush()
        for tracker in self._trackers:
            tracker.record(step, values)
        if self._screen is not None:
            self._screen.show(step, values)

    def sync(self) -> None:
        """Make the records survive a power cut."""
        with writing(self.path):
            os.fsync(self._file.fileno())


class NoLog:
    """A log that writes nothing, for the ranks beside rank 0."""

    def __enter__(self) -> "NoLog":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record(self, step: int, **values: float) -> None:
        """Ignore a record."""

    def sync(self) -> None:
        """Do nothing."""


def read_log(path: Path) -> list[tuple[str, int]]:
    """Return the lines of a log with their steps. Lines that are cut off, not JSON or damaged are ignored."""
    found = []
    require_regular(path)  # reading a pipe would never end
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    has_hashes = any(b'"sha256"' in raw for raw in lines)  # logs of version 0.1 have none
    for raw in lines:
        try:
            line = raw.decode()  # line by line, so that one bad line spoils no other
            content = from_json(line)
            step, stored = content["step"], content.pop("sha256", None)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        sound = line == _sealed_line(content) if has_hashes else stored is None
        if type(step) is int and sound:
            found.append((line, step))
    return found


def _sealed_line(content: dict[str, Any]) -> str:
    """Return a line with the start of its content's SHA-256, which is enough to notice damage."""
    return json.dumps({**content, "sha256": content_hash(content)[:8]})


def _screen(config: RunConfig, first_step: int) -> "_Bar | _PlainLines":
    kind = _Bar if sys.stderr.isatty() else _PlainLines
    return kind(config, first_step)


def _text(values: dict[str, float]) -> str:
    shown = []
    for name, value in values.items():
        number = f"{value:,.0f}" if name == "samples_per_second" else f"{value:.4g}"
        shown.append(f"{name.replace('_', ' ')} {number}")
    return "  ".join(shown)


def _brief(values: dict[str, float]) -> str:
    """Return the values that fit beside a bar on a terminal of 80 columns."""
    shown = ("loss", "accuracy", "squared_error", "validation")
    return "  ".join(f"{_SHORT.get(name, name)} {values[name]:.3g}" for name in shown if name in values)


_SHORT = {"accuracy": "acc", "squared_error": "error", "validation": "val"}


class _PlainLines:
    """Print at most about fifty lines of steps and fifty of validations per run, for pipes and log files."""

    def __init__(self, config: RunConfig, first_step: int) -> None:
        self.num_steps = config.train.num_steps
        self.every = max(1, self.num_steps // 50)
        self.next = dict.fromkeys((False, True), first_step + self.every)

    def show(self, step: int, values: dict[str, float]) -> None:
        kind = "validation" in values  # counted separately, so that validations do not crowd out losses
        if step >= self.next[kind] or step >= self.num_steps:
            self.next[kind] = step + self.every
            print(f"step {step}/{self.num_steps}  {_text(values)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    """Show a progress bar with the newest values and the remaining time, for terminals."""

    def __init__(self, config: RunConfig, first_step: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=16),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("", total=config.train.num_steps, completed=first_step)
        self.values: dict[str, float] = {}
        self.bar.start()

    def show(self, step: int, values: dict[str, float]) -> None:
        self.values.update(values)
        self.bar.update(self.task, completed=step, description=_brief(self.values))

    def close(self) -> None:
        self.bar.stop()


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def record(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _WandB:
    def __init__(self, config: RunConfig, folder: Path) -> None:
        import wandb  # pyright: ignore[reportMissingImports] (an extra)

        os.environ.setdefault("WANDB_SILENT", "true")
        settings: dict[str, Any] = config.to_json()
        self.run = wandb.init(project="looped", id=config.folder_name, resume="allow", dir=str(folder), config=settings)

    def record(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


def _trackers(config: RunConfig, folder: Path) -> list["_TensorBoard | _WandB"]:
    track = config.train.runtime.track
    require_tracker(track)
    if track == "tensorboard":
        return [_TensorBoard(folder)]
    if track == "wandb":
        return [_WandB(config, folder)]
    return []


def require_tracker(track: str) -> None:
    """Raise InputError if the tracker's package is not installed."""
    needed = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}
    try:
        if track in needed:
            import_module(needed[track])
    except ImportError:
        raise InputError(f"--train.track {track} needs an extra: pip install 'looped[track]'") from None
