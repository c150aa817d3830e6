"""The training loop: one step at a time, resumable at any of them, with everything it needs named in one place."""

import math
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from looped.config import RunConfig, differences
from looped.models import build_model
from looped.models.engines import choose_device
from looped.models.pretrained import meant, read_shipped, require_no_near_miss
from looped.tasks import Split
from looped.training.batches import batch_at, batches
from looped.training.checkpoint import Checkpoint, save_checkpoint
from looped.training.evaluation import EVALUATION_SEED, Stopped, evaluate, held_out
from looped.training.flops import training_flops
from looped.training.logger import Log, require_tracker
from looped.training.loss import TensorBatch, to_device
from looped.training.run_folder import RunFolder
from looped.training.schedules import loops_at, rate_at, sizes, trained_size, unreached
from looped.training.step import Stepper, load_weights
from looped.utils.errors import InputError
from looped.utils.files import save_json
from looped.utils.memory import memory_for
from looped.utils.signals import handling
from looped.utils.text import plural
from looped.utils.version import __version__


class Diverged(InputError):
    """Loss, gradient or validation went beyond numbers: with this config they would again."""


class Interrupted(KeyboardInterrupt):
    """By a signal, after a checkpoint: a script does not go on to its next training. `result` says how far this is."""

    @property
    def result(self) -> dict[str, Any]:
        return self.args[0]


class Trainer:
    """Turns a `RunConfig` into a folder. Its state is the model, the `Stepper`'s and `step`."""

    def __init__(self, config: RunConfig, folder: str | Path | None = None, *, quiet: bool = False) -> None:
        """The folder is by default the one under runs/ that is named after the config."""
        config = _with_named_origin(config)
        self.config, self.quiet = config, quiet
        self.folder = RunFolder(Path("runs") / config.folder_name if folder is None else folder)
        self.device = choose_device(config.train.device)
        if config.train.num_threads is not None:
            torch.set_num_threads(config.train.num_threads)
        model = config.model
        with memory_for(
            f"a model of dim {model.dim}, ff_dim {model.resolved_ff_dim}, num_layers {model.num_layers} and num_loops "
            f"{model.num_loops}",
            "smaller ones",
        ):
            # Room for the largest weights, unused: refused at once, and not when the first ones have filled the memory.
            torch.empty(model.num_layers, 2, model.resolved_ff_dim, model.dim)
            self.model = build_model(model, config.task.spec, config.seed).to(self.device)
        self.step = 0
        self.seconds = 0.0
        self._started = time.monotonic()
        if config.train.init_from is not None and not self.folder.has_checkpoint():
            self._start_from(config.train.init_from)
        self.stepper = Stepper(self.model, config.train, self.device)

    def _start_from(self, origin: str) -> None:
        """Take the weights of a shipped model, or of a run; if that was stopped before its end, it is said."""
        if (name := meant(origin)) is not None:
            shipped, weights = read_shipped(name)
            config = shipped.config
        else:
            require_no_near_miss(origin)
            folder = RunFolder(origin)
            step, weights = run_weights(folder)
            config = folder.read_config()
            if step < config.train.num_steps and not self.quiet:
                reached = f"its weights are of step {step} of {config.train.num_steps}"
                print(f"looped: {origin} is unfinished: {reached}", file=sys.stderr)
        try:
            load_weights(self.model, weights, origin)
        except InputError as error:
            other = differences(config, self.config)
            paths = [path for part in ("model.", "task.") for path in other if path.startswith(part)][:3]
            each = (f"its {path} is {other[path][0]!r}, this one's is {other[path][1]!r}" for path in paths)
            raise InputError("; ".join((str(error), *each))) from None

    def fit(self) -> dict[str, Any]:
        """Train to the end, from the newest checkpoint where there is one; return the result.

        Without its end where `max_minutes` are over. Ctrl-C and SIGTERM raise `Interrupted`, after a checkpoint.
        """
        self.folder.require_usable()
        begun = [] if self.folder.has_checkpoint() else [self._first_step()]
        with self.folder.locked():
            self.folder.claim(self.config)
            result = self.folder.read_result()
            self.resume()
            # A result counts only with its weights: where the last checkpoint is damaged, the end is trained again.
            if result is None or self.step < self.config.train.num_steps:
                self.folder.check_data(self.config.task)
                result = self._fit(begun if self.step == 0 else [])  # another process may have trained meanwhile
        told = {"folder": str(self.folder.path), **result}  # the stored result does without: a folder may be moved
        if told.get("stopped_by") == "signal":
            raise Interrupted(told)
        return told

    def _first_step(self) -> tuple[int, Tensor]:
        """Made before there is a folder: what it or a validation would refuse, or finds no memory for, leaves none."""
        config = self.config
        require_tracker(config.train.track)
        batch = batch_at(0, config)
        for size in sizes(config):
            config.task.sample(config.seed, "train", [0], size)
        held_out(config.task, "validation", config.train.eval_size, trained_size(config))
        example = config.task.sample(EVALUATION_SEED, "validation", [0], trained_size(config))
        self.model.iterate(torch.from_numpy(example.inputs).to(self.device))
        self._started = time.monotonic()
        return 0, self.train_step(0, to_device(batch, self.device))

    def resume(self) -> None:
        """Take up the newest checkpoint, if there is one."""
        checkpoint = self.folder.newest_checkpoint()
        if checkpoint is None:
            return
        seconds = checkpoint.extra.get("seconds")
        if not isinstance(seconds, int | float):
            raise InputError(f"{self.folder.path} has a damaged checkpoint: expected its seconds, got {seconds!r}")
        self.stepper.load(checkpoint.tensors, str(self.folder.path))
        self.step, self.seconds, self._started = checkpoint.step, float(seconds), time.monotonic()

    def evaluate(
        self, split: Split, size: int | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Metrics of the weights that count: the average, where one is kept."""
        task, example_size = self.config.task, trained_size(self.config)
        with self.evaluated_weights():
            return evaluate(self.model, task, split, size, example_size=example_size, stopped=stopped)

    def evaluated_weights(self) -> AbstractContextManager[None]:
        average = self.stepper.average
        return nullcontext() if average is None else average.applied()

    def _fit(self, begun: list[tuple[int, Tensor]]) -> dict[str, Any]:
        """Train on from `self.step`; of the steps from there, those that were made already are `begun`."""
        train, values = self.config.train, self.config.task.spec.kind == "vectors"
        limit = None if train.max_minutes is None else self._started + 60 * train.max_minutes
        since, last_time, outcomes = self.step, self._started, []
        if not self.quiet and (lacking := unreached(self.config)) is not None:
            print(f"looped: {lacking}", file=sys.stderr)
        with _stop_signals() as stopped, Log(self.folder.log_path, self.config, self.step, quiet=self.quiet) as log:
            for step, outcome in chain(begun, self._steps(self.step + len(begun))):
                outcomes.append(outcome)
                self.step = step + 1
                last = self.step == train.num_steps
                out_of_time = limit is not None and time.monotonic() > limit
                stopping = not last and (out_of_time or stopped())
                saving = last or stopping or self.step % train.checkpoint_every == 0
                if saving or self.step % train.log_every == 0:
                    # The only place where the host waits for the device; nothing is saved that was not looked at.
                    loss, right, norm, passed_over = _means(torch.stack(outcomes).cpu())
                    along = {} if passed_over == 1 else {"gradient": norm}  # none, where no step was made
                    _require_finite(self.step, loss=loss, **along)
                    answered = {"squared_error": -right} if values else {"right": right}
                    guarded = {} if train.spike_factor is None else {"passed_over": passed_over}
                    speed = (self.step - since) * train.batch_size / (time.monotonic() - last_time)
                    log.record(
                        self.step, loss=loss, **answered, **along, **guarded, rate=rate_at(step, train),
                        samples_per_second=speed,
                    )  # fmt: skip
                    since, last_time, outcomes = self.step, time.monotonic(), []
                if not last and self.step % train.eval_every == 0:
                    paused = time.monotonic()
                    if validation := self._validation(stopped):
                        log.record(self.step, **validation)
                    last_time += time.monotonic() - paused  # an evaluation is no part of the training's speed
                if saving:
                    self.save()
                if stopping:
                    return self._unfinished("signal" if stopped() else "time limit")
            validation = self._validation(stopped)
            if not validation:
                return self._unfinished("signal")
            log.record(self.step, **validation)
        result = {"finished": True, "step": self.step, **validation, **self._account()}
        save_json(self.folder.result_path, result)
        return result

    def _steps(self, first: int) -> Iterator[tuple[int, Tensor]]:
        for step, batch in batches(first, self.config):
            yield step, self.train_step(step, to_device(batch, self.device))

    def train_step(self, step: int, batch: TensorBatch) -> Tensor:
        """One optimizer step; returns what `Stepper` does, still on the device."""
        return self.stepper(step, batch, loops_at(step, self.config), rate_at(step, self.config.train))

    def save(self) -> None:
        """Write a checkpoint of this step."""
        extra = {"seconds": round(self._seconds_so_far(), 3)}
        save_checkpoint(self.folder.checkpoints, Checkpoint(self.step, self.stepper.state(), extra))

    def _validation(self, stopped: Callable[[], bool]) -> dict[str, float]:
        """The task's metric on validation data; nothing, if asked to stop meanwhile."""
        try:
            measured = self.evaluate("validation", self.config.train.eval_size, stopped=stopped)["rows"][-1]
        except Stopped:
            return {}
        validation = measured[self.config.task.metric]
        _require_finite(self.step, validation=validation)
        return {"validation": validation}

    def _unfinished(self, reason: str) -> dict[str, Any]:
        return {"finished": False, "stopped_by": reason, "step": self.step, **self._account()}

    def _seconds_so_far(self) -> float:
        return self.seconds + time.monotonic() - self._started

    def _account(self) -> dict[str, Any]:
        train = self.config.train
        return {
            "num_steps": train.num_steps,
            "samples": self.step * train.batch_size,
            "seconds": round(self._seconds_so_far(), 1),
            "parameters": self.model.num_parameters(),
            "flops": training_flops(self.config, self.step),
            "hardware": hardware(self.device),
            "versions": {"looped": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }


def run_weights(folder: RunFolder) -> tuple[int, dict[str, Tensor]]:
    """Step and weights of a run's newest checkpoint: the averaged weights, where an average was kept."""
    folder.read_config()
    checkpoint = folder.newest_checkpoint()
    if checkpoint is None:
        raise InputError(f"{folder.path} has no checkpoint yet: expected a run that was trained")
    for kind in ("average/", "model/"):
        weights = {name[len(kind) :]: t for name, t in checkpoint.tensors.items() if name.startswith(kind)}
        if weights:
            return checkpoint.step, weights
    raise InputError(f"{folder.path} has a checkpoint without weights")


def hardware(device: torch.device) -> str:
    """The device in words, for a record."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {plural(torch.get_num_threads(), 'thread')}, {platform.machine()}"


def train(config: RunConfig, folder: str | Path | None = None, *, quiet: bool = False) -> dict[str, Any]:
    """Train a run, or take it up where it stopped; a finished one is not trained again. Returns as `Trainer.fit`."""
    return Trainer(config, folder, quiet=quiet).fit()


def _with_named_origin(config: RunConfig) -> RunConfig:
    """A task's name stands for its best shipped model, which may be another one tomorrow: the run keeps which."""
    origin = config.train.init_from
    if origin is None or (name := meant(origin)) is None:
        return config
    return replace(config, train=replace(config.train, init_from=name))


def _means(outcomes: Tensor) -> list[float]:
    """Of what some steps gave. A gradient beyond numbers counts only where a step was made along it."""
    means = outcomes.mean(dim=0)
    taken = outcomes[outcomes[:, 3] == 0]
    if not means[2].isfinite() and len(taken):
        means[2] = taken[:, 2].mean()
    return means.tolist()


def _require_finite(step: int, **numbers: float) -> None:
    """None of these may be beyond numbers: what is saved after this is worth resuming from."""
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise Diverged(
                f"expected a finite {name}, got {number} at step {step}: try a lower learning rate or a longer "
                "warm-up; earlier checkpoints are kept"
            )


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end the run after the current step, with a checkpoint; the second time at once, without."""
    asked = []

    def ask(*_: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    with handling(ask, signal.SIGINT, signal.SIGTERM):
        yield lambda: bool(asked)
