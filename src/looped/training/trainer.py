"""The training loop: from a `RunConfig` to a run folder, resumable at any step."""

import math
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from looped.config import RunConfig, differences
from looped.models import build_model
from looped.models.engines import choose_device, describe_device
from looped.models.model import load_weights, with_new_classes
from looped.models.pretrained import read_card, read_shipped, read_weights, require_no_near_miss, resolve_name
from looped.models.stack import MOST_LOOPS
from looped.recipes import configure
from looped.serde import by_path
from looped.tasks import Split
from looped.tasks.datasets import split_problems
from looped.training.batches import batch_at, batches
from looped.training.callbacks import Callback
from looped.training.checkpoint import Checkpoint, save_checkpoint
from looped.training.distributed import ALONE, Group, joined
from looped.training.evaluation import EVALUATION_SEED, Evaluation, Stopped, evaluate, num_held_out
from looped.training.flops import training_flops
from looped.training.logger import Log, NoLog, require_tracker
from looped.training.loss import OwnLoss, TensorBatch, to_device
from looped.training.run_folder import RunFolder, TrainResult
from looped.training.schedules import free_loops_at, loops_at, lr_fraction, sizes, trained_size, unreached
from looped.training.step import Stepper
from looped.utils import plugins
from looped.utils.errors import InputError, require_field
from looped.utils.files import save_sealed
from looped.utils.memory import memory_for
from looped.utils.shipped import SUFFIX
from looped.utils.signals import handling
from looped.utils.types import Device
from looped.utils.version import __version__, commit


class Diverged(InputError):
    """Loss, gradient norm or validation became NaN or infinite. The same config would diverge again."""


class Interrupted(KeyboardInterrupt):
    """A signal stopped the run after a checkpoint. `result` says how far the run is.

    This is an exception so that a script does not go on to its next run.
    """

    @property
    def result(self) -> TrainResult:
        """Return the state of the interrupted run."""
        return self.args[0]


@dataclass(frozen=True)
class StepOutcome:
    """The averages of several steps."""

    loss: float
    accuracy: float
    """fraction of counted positions that are right (for regression: minus the squared error)"""
    grad_norm: float
    skipped: float
    """fraction of steps that the spike guard skipped"""

    @classmethod
    def average(cls, outcomes: list[Tensor]) -> "StepOutcome":
        """Average the outcomes of several steps. Non-finite gradient norms of skipped steps are ignored."""
        rows = torch.stack(outcomes).cpu()
        means = rows.mean(dim=0)
        taken = rows[rows[:, 3] == 0]
        if not means[2].isfinite() and len(taken):
            means[2] = taken[:, 2].mean()
        return cls(*means.tolist())


class Trainer:
    """Train one run. The state of a run is its model, the state of its `Stepper`, and `step`."""

    def __init__(
        self,
        config: RunConfig,
        folder: str | Path | None = None,
        *,
        quiet: bool = False,
        group: Group = ALONE,
        callbacks: Sequence[Callback] = (),
        loss: OwnLoss | None = None,
    ) -> None:
        """Build the model and the optimizer. The default folder is under runs/, named after the config.

        `loss(scores, batch)` replaces the loss of a loop; its name becomes the setting `train.loss`.
        `group` has the other processes that train the same run (see `training.distributed`). Rank 0 alone writes files,
        prints and evaluates.
        """
        if loss is not None:
            plugins.register(loss)
            config = replace(config, train=config.train.override(loss=loss.__name__))
        config = _with_resolved_origin(config)
        self.callbacks = callbacks if group.is_main else ()
        self._stop_requested = self._is_evaluating = False
        self.config, self.quiet, self.group = config, quiet or not group.is_main, group
        group.require_same(_shared_settings(config))
        self.folder = RunFolder(Path("runs") / config.folder_name if folder is None else folder)
        runtime = config.train.runtime
        self.device = choose_device(runtime.device)
        if runtime.num_threads is not None:
            torch.set_num_threads(runtime.num_threads)
        model = config.model
        with memory_for(
            f"a model of dim {model.dim}, ff_dim {model.resolved_ff_dim}, num_layers {model.num_layers} and num_loops "
            f"{model.num_loops}",
            "smaller ones",
        ):
            # Ask for the largest weights at once, so that an absurd size fails before memory fills up.
            torch.empty(model.num_layers, 2, model.resolved_ff_dim, model.dim)
            self.model = build_model(model, config.task.spec, config.seed).to(self.device)
        self.step = 0
        self.seconds = 0.0
        self._started = time.monotonic()
        is_new = group.from_main(lambda: not self.folder.has_checkpoint())
        origin, previous = config.train.init_from, config.train.continue_from
        if is_new and origin is not None:
            self._load_initial_weights(origin)
        self.stepper = Stepper(self.model, config.train, self.device, group, config.seed)
        if is_new and previous is not None:
            self._continue_from(RunFolder(previous))

    def _load_initial_weights(self, origin: str) -> None:
        """Copy the weights of a model file or of another run."""
        config, weights = self._read_weights(origin) if self.group.is_main else (self.config, {})
        config = self.group.from_main(lambda: config)
        weights = self.group.tensors_from_main({"model": weights})["model"]
        if config.task.name == self.config.task.name:  # longer strings have larger answers
            weights = with_new_classes(self.model, weights)
        with self._explaining_mismatch(config):
            load_weights(self.model, weights, origin)

    def _read_weights(self, origin: str) -> tuple[RunConfig, dict[str, Tensor]]:
        """Return config and weights of a model file or of another run. Warn if that run is unfinished."""
        if Path(origin).suffix == SUFFIX:
            card = read_card(Path(origin))
            config, weights = card.config, read_weights(card)
        elif (name := resolve_name(origin)) is not None:
            shipped, weights = read_shipped(name)
            config = shipped.config
        else:
            require_no_near_miss(origin)
            folder = RunFolder(origin)
            checkpoint = folder.require_checkpoint()
            config, weights = folder.read_config(), checkpoint.weights
            if checkpoint.step < config.train.num_steps:
                self._warn(f"{origin} is unfinished: its weights are of step {checkpoint.step} of "
                           f"{config.train.num_steps}")  # fmt: skip
        return config, weights

    def _continue_from(self, source: RunFolder) -> None:
        """Take over weights, optimizer state and step of a finished run, to train it for more steps."""
        config = self.group.from_main(source.read_config)
        checkpoint = self._checkpoint_from_main(source.require_checkpoint)
        assert checkpoint is not None
        num_steps = self.config.train.num_steps
        more = f"more than the {checkpoint.step} steps of {source.path}"
        require_field(checkpoint.step < num_steps, "train.num_steps", more, num_steps)
        with self._explaining_mismatch(config):
            self.stepper.load(checkpoint.parts, str(source.path))
        self.step, self.seconds = checkpoint.step, checkpoint.seconds

    @contextmanager
    def _explaining_mismatch(self, other: RunConfig) -> Iterator[None]:
        """Extend an error about weights by the settings in which the two models or tasks differ."""
        try:
            yield
        except InputError as error:
            changed = differences(other, self.config)
            paths = [
                path for part in ("model.", "task.", "train.optimizer.") for path in changed if path.startswith(part)
            ][:3]
            reasons = (f"its {path} is {changed[path][0]!r}, this one's is {changed[path][1]!r}" for path in paths)
            raise InputError("; ".join((str(error), *reasons))) from None

    def fit(self, announcement: str | None = None) -> TrainResult:
        """Train to the end, from the newest checkpoint if there is one, and return the result.

        The announcement is printed once training has begun. The result is unfinished if `max_minutes`
        ran out. Ctrl-C and SIGTERM raise `Interrupted` after a checkpoint.
        """
        from_main = self.group.from_main
        from_main(self.folder.require_usable)
        # The first step runs before the folder exists, so that an invalid config or too little memory leaves nothing.
        first_outcome = None if from_main(self.folder.has_checkpoint) else self._first_step()
        with self.folder.locked() if self.group.is_main else nullcontext():
            from_main(lambda: self.folder.claim(self.config))
            result = from_main(self.folder.read_result)
            if self.resume():
                first_outcome = None
            # A result counts only with its weights: if the last checkpoint is damaged, the end is trained again.
            if result is None or self.step < self.config.train.num_steps:
                from_main(lambda: self.folder.check_data(self.config))
                if announcement is not None:
                    self._warn(announcement)
                result = self._fit(first_outcome)
        result = replace(result, folder=str(self.folder.path))
        if result.stopped_by == "signal":
            raise Interrupted(result)
        return result

    def _first_step(self) -> Tensor:
        """Check everything that training needs, then run the first step and return its outcome."""
        config = self.config
        require_tracker(config.train.runtime.track)
        free_loops = config.train.free_loops
        right = self.model.stack.checked_loops(None) + max(free_loops, default=0) <= MOST_LOOPS
        require_field(right, "train.free_loops", f"at most {MOST_LOOPS:,} loops with the trained ones", free_loops)
        for size in sizes(config):
            config.task.sample(config.seed, "train", [0], size)
        num_held_out(config.task, "validation", config.train.runtime.eval_size, trained_size(config))
        example = config.task.sample(EVALUATION_SEED, "validation", [0], trained_size(config))
        self.model.check_inputs(torch.from_numpy(example.inputs).to(self.device))
        if outside := config.outside_code():
            for problem in split_problems(config.task, config.seed, trained_size(config)):
                self._warn(f"{', '.join(outside)}: {problem}")
        batch = batch_at(self.step, config, self.group)
        self._started = time.monotonic()
        return self.train_step(self.step, to_device(batch, self.device))

    def resume(self) -> bool:
        """Load the newest checkpoint of this run and return whether there was one."""
        checkpoint = self._checkpoint_from_main(lambda: self.folder.newest_checkpoint(self._restore))
        if checkpoint is None:
            return False
        if not self.group.is_main:
            self._restore(checkpoint)
        self.step, self.seconds, self._started = checkpoint.step, checkpoint.seconds, time.monotonic()
        return True

    def _checkpoint_from_main(self, read: Callable[[], Checkpoint | None]) -> Checkpoint | None:
        """Read a checkpoint on rank 0 and return it on every rank, because other machines may not see the file."""
        checkpoint = read() if self.group.is_main else None
        numbers = self.group.from_main(lambda: checkpoint and (checkpoint.step, checkpoint.seconds))
        if numbers is None:
            return None
        return Checkpoint(*numbers, self.group.tensors_from_main({} if checkpoint is None else checkpoint.parts))

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Load the tensors of a checkpoint. Raise InputError if they do not fit, so that the previous one is tried."""
        try:
            self.stepper.load(checkpoint.parts, str(self.folder.path))
        except (KeyError, ValueError, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"step {checkpoint.step} of {self.folder.path} does not fit this run: {type(error).__name__}: {error}"
            ) from None

    def evaluate(
        self, split: Split, size: int | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> Evaluation:
        """Evaluate the weights that count: the moving average, if one is kept."""
        task, example_size = self.config.task, trained_size(self.config)
        with self.evaluated_weights():
            return evaluate(self.model, task, split, size, example_size=example_size, stopped=stopped)

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        """Give the model the weights to evaluate, and no dropout. If they are sharded, every rank must enter this.

        Inside of this context, entering it again changes nothing.
        """
        if self._is_evaluating:
            yield
            return
        average, sharded = self.stepper.average, self.stepper.sharded
        self._is_evaluating = True
        self.model.eval()
        try:
            with average.applied() if average is not None else nullcontext():
                with sharded.gathered() if sharded is not None else nullcontext():
                    yield
        finally:
            self.model.train()
            self._is_evaluating = False

    def _fit(self, first_outcome: Tensor | None) -> TrainResult:
        """Train on from `self.step`. `first_outcome` belongs to that step if it was run already."""
        train, runtime = self.config.train, self.config.train.runtime
        deadline = None if runtime.max_minutes is None else self._started + 60 * runtime.max_minutes
        if (warning := unreached(self.config)) is not None:
            self._warn(warning)
        done = [] if first_outcome is None else [(self.step, first_outcome)]
        since, last_time, outcomes = self.step, self._started, []
        with _stop_signals(patient=self.group.size > 1) as stopped, self._open_log() as log:
            for step, outcome in chain(done, self._steps(self.step + len(done))):
                outcomes.append(outcome)
                self.step = step + 1
                for callback in self.callbacks:
                    callback.on_step(self, step, outcome)
                is_last = self.step == train.num_steps
                timed_out = deadline is not None and time.monotonic() > deadline
                wish = "signal" if stopped() else "time limit" if timed_out else None
                wish = "callback" if wish is None and self._stop_requested else wish
                stopped_by = None if is_last else _STOPS[self.group.largest(_STOPS.index(wish))]
                stopping = stopped_by is not None
                saving = is_last or stopping or self.step % runtime.checkpoint_every == 0
                if saving or self.step % runtime.log_every == 0:
                    # The only place where the host waits for the device. No state is saved before this check.
                    average = StepOutcome.average(outcomes)
                    self._require_finite_outcome(average)
                    speed = (self.step - since) * train.batch_size / (time.monotonic() - last_time)
                    log.record(self.step, **self._log_values(average, step), samples_per_second=speed)
                    since, last_time, outcomes = self.step, time.monotonic(), []
                if not is_last and self.step % runtime.eval_every == 0:
                    paused = time.monotonic()
                    if (validation := self._validate(stopped)) is not None:
                        log.record(self.step, validation=validation)
                    last_time += time.monotonic() - paused  # evaluation does not count as training time
                if saving:
                    log.sync()  # before the checkpoint, so that the log of a resumed run has no gap
                    self.save()
                if stopping:
                    return self._result(stopped_by=stopped_by)
            validation = self._validate(stopped)
            if validation is None:
                return self._result(stopped_by="signal")
            log.record(self.step, validation=validation)
            log.sync()  # before the result: once there is one, nothing is logged again
        result = self._result(validation=validation)
        self.group.from_main(lambda: save_sealed(self.folder.result_path, result.to_json()))
        return result

    def _open_log(self) -> Log | NoLog:
        if not self.group.is_main:
            return NoLog()
        return Log(self.folder.log_path, self.config, self.step, quiet=self.quiet)

    def _steps(self, first: int) -> Iterator[tuple[int, Tensor]]:
        for step, batch in batches(first, self.config, self.group):
            yield step, self.train_step(step, to_device(batch, self.device))

    def train_step(self, step: int, batch: TensorBatch) -> Tensor:
        """Run one optimizer step and return the outcome of `Stepper`, still on the device."""
        config = self.config
        return self.stepper(
            step, batch, loops_at(step, config), lr_fraction(step, config.train), free_loops_at(step, config)
        )

    def request_stop(self) -> None:
        """Stop after the current step, with a checkpoint. A callback may call this."""
        self._stop_requested = True

    def _log_values(self, average: StepOutcome, step: int) -> dict[str, float]:
        values = {"loss": average.loss}
        if self.config.task.spec.kind == "vectors":
            values["squared_error"] = -average.accuracy
        else:
            values["accuracy"] = average.accuracy
        if average.skipped < 1:
            values["grad_norm"] = average.grad_norm
        if self.config.train.optimizer.spike_factor is not None:
            values["skipped"] = average.skipped
        return {**values, "lr_fraction": lr_fraction(step, self.config.train)}

    def _require_finite_outcome(self, average: StepOutcome) -> None:
        _require_finite(self.step, loss=average.loss)
        if average.skipped < 1:  # otherwise no step was taken along the gradient
            _require_finite(self.step, grad_norm=average.grad_norm)

    def save(self) -> None:
        """Write a checkpoint of this step, on rank 0."""
        checkpoint = Checkpoint(self.step, round(self._seconds_so_far(), 3), self.stepper.state())
        if not self.group.is_main:
            return
        _require_finite_state(checkpoint)
        path = save_checkpoint(self.folder.checkpoints, checkpoint, self.config.train.runtime.max_file_bytes)
        for callback in self.callbacks:
            callback.on_checkpoint(self, self.step, path)

    def _validate(self, stopped: Callable[[], bool]) -> float | None:
        """Return the task's metric on validation data, or None if a signal arrived meanwhile. Rank 0 computes it."""
        with self.evaluated_weights():
            validation = self.group.from_main(lambda: self._metric_on_validation(stopped))
            if validation is not None:
                _require_finite(self.step, validation=validation)
                for callback in self.callbacks:
                    callback.on_evaluation(self, self.step, validation)
        return validation

    def _metric_on_validation(self, stopped: Callable[[], bool]) -> float | None:
        task, size = self.config.task, self.config.train.runtime.eval_size
        try:
            found = evaluate(
                self.model, task, "validation", size, example_size=trained_size(self.config), stopped=stopped
            )
        except Stopped:
            return None
        return found.trained.metrics[found.metric]

    def _seconds_so_far(self) -> float:
        return self.seconds + time.monotonic() - self._started

    def _result(
        self, *, validation: float | None = None, stopped_by: Literal["signal", "time limit", "callback"] | None = None
    ) -> TrainResult:
        train = self.config.train
        return TrainResult(
            finished=stopped_by is None,
            step=self.step,
            num_steps=train.num_steps,
            samples=self.step * train.batch_size,
            seconds=round(self._seconds_so_far(), 1),
            parameters=self.model.num_parameters(),
            flops=training_flops(self.config, self.step),
            hardware=describe_device(self.device),
            versions=_versions(),
            validation=validation,
            stopped_by=stopped_by,
        )

    def _warn(self, message: str) -> None:
        if not self.quiet:
            print(f"looped: {message}", file=sys.stderr)


def _versions() -> dict[str, str]:
    versions = {"looped": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    return versions if (known := commit()) is None else {**versions, "commit": known}


def fitting_recipe(device: Device = "auto") -> str:
    """Return the default recipe for a device: `fast` needs a GPU, `laptop` does not."""
    return "laptop" if choose_device(device).type == "cpu" else "fast"


def train(
    run: RunConfig | str,
    folder: str | Path | None = None,
    *,
    quiet: bool = False,
    recipe: str | None = None,
    block: str = "looped",
    callbacks: Sequence[Callback] = (),
    loss: OwnLoss | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a run, or resume it. A finished run is not trained again.

    `run` is a config or the name of a task. For a task, settings start from a recipe (default: `fast` on a GPU,
    `laptop` on a CPU) and can be changed by name: `train("edit-distance", length=8, dim=128, num_steps=500)`. In a
    script that torchrun starts, all its processes train the run together. `callbacks` and `loss` are those of
    `Trainer`.
    """
    if isinstance(run, str):
        run = configure(recipe or fitting_recipe(), run, block, **settings)
    elif recipe is not None or block != "looped" or settings:
        names = ", ".join(["recipe"] * (recipe is not None) + ["block"] * (block != "looped") + [*settings])
        raise InputError(f"{names}: expected with the name of a task, got a RunConfig")
    with joined(run.train.runtime.device) as group:
        return Trainer(run, folder, quiet=quiet, group=group, callbacks=callbacks, loss=loss).fit()


def _shared_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that must be the same on all ranks: of the run, and of what its ranks do together."""
    shared = dict(by_path(config.identity()))
    for name in ("shard", "checkpoint_every", "eval_every"):
        shared[f"train.{name}"] = getattr(config.train.runtime, name)
    for path in ("train.init_from", "train.continue_from"):  # rank 0 alone reads them, so their names may differ
        shared[path] = None if shared[path] is None else "given"
    return shared | {f"code of {name}": code[:8] for name, code in config.outside_code().items()}


def _with_resolved_origin(config: RunConfig) -> RunConfig:
    """Replace a task's name in `init_from` by its best shipped model, which may be another one in a later version."""
    origin = config.train.init_from
    if origin is None or (name := resolve_name(origin)) is None:
        return config
    return replace(config, train=config.train.override(init_from=name))


def _require_finite(step: int, **numbers: float) -> None:
    """Raise Diverged if a value is NaN or infinite, so that no diverged state is ever checkpointed."""
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise Diverged(
                f"{name}: expected a finite number, got {number} at step {step}. Try a lower learning rate or a longer "
                "warm-up; earlier checkpoints are kept.",
            )


def _require_finite_state(checkpoint: Checkpoint) -> None:
    """Raise Diverged if a tensor holds NaN or infinity: an update can overflow although its gradient was finite."""
    for part, tensors in checkpoint.parts.items():
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Diverged(
                    f"{part} {name}: expected finite numbers, got NaN or infinity at step {checkpoint.step}. "
                    "Try a lower learning rate; earlier checkpoints are kept.",
                    field=name,
                )


# Reasons to stop. If ranks have different ones, the last in this order counts.
_STOPS: tuple[Literal["signal", "time limit", "callback"] | None, ...] = (None, "callback", "time limit", "signal")


@contextmanager
def _stop_signals(*, patient: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C or SIGTERM arrived. A second signal interrupts at once.

    If `patient`, further signals do nothing: Ctrl-C reaches a rank twice, from the terminal and from torchrun.
    """
    received = []

    def receive(*_: object) -> None:
        if received and not patient:
            raise KeyboardInterrupt
        received.append(True)

    with handling(receive, signal.SIGINT, signal.SIGTERM):
        yield lambda: bool(received)
