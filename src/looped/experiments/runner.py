"""Train and test the cells of an experiment, several at a time. Finished runs are skipped, stopped runs resume."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from looped.config import RunConfig
from looped.experiments.locks import FOLDER as LOCKS
from looped.experiments.locks import is_locked, sweep_locks
from looped.experiments.measure import lacking, last_step, require_measured, require_texts
from looped.experiments.metrics import metric_of
from looped.experiments.one_run import WorkerResult
from looped.experiments.records import Record, Value, cell_value, load_records, run_key
from looped.experiments.spec import Cell, Experiment
from looped.experiments.workers import Where, Workers, open_workers, require_gpus
from looped.training.flops import estimated_flops
from looped.training.run_folder import RunFolder
from looped.utils.errors import InputError, require, require_field
from looped.utils.files import make_folder
from looped.utils.launch import require_not_launched
from looped.utils.signals import handling

REFRESH_SECONDS = 1.0
PROGRESS_SECONDS = 20.0
WAIT_FOR_OTHERS_SECONDS = 2.0
MAX_SEEDS = 1000
MAX_LOSSES = 3
"""deaths of a run's worker after which the run is still started again"""


class CellsFailed(InputError):
    """Some runs of an experiment could not be finished; all others were."""


def run_experiment(
    experiment: Experiment,
    root: Path,
    *,
    results: Path | None = None,
    num_seeds: int = 1,
    num_workers: int | None = None,
    minutes: float | None = None,
    started: float | None = None,
    where: Where = "local",
    gpus_per_run: float | None = None,
) -> bool:
    """Finish every cell under `root` and return whether all are finished, which a time limit may prevent.

    The minutes count from `started`, a time of the monotonic clock (default: now). `where` says which workers train
    the runs (see `open_workers`).
    """
    require_not_launched("an experiment")
    require(num_workers is None or num_workers >= 1, f"workers: expected at least 1, got {num_workers}")
    require_gpus(where, gpus_per_run)
    _require_seeds(num_seeds)
    require_measured(experiment)
    require(minutes is None or minutes > 0, f"minutes: expected a positive number, got {minutes}")
    known = load_records(results, root)
    configs = experiment.configs(num_seeds)
    missing = [config for config in configs if lacking(known.get(run_key(config)), config, experiment.eval_plan)]
    for config in missing:
        RunFolder(root / config.folder_name).check(config)
    sweep_locks(root)
    todo = f"{experiment.label}: {len(missing)} of {len(configs)} runs to do"
    if not missing:
        print(todo, file=sys.stderr, flush=True)
        return True
    require_texts(experiment.eval_plan)
    make_folder(root / LOCKS)
    # Seed by seed, and the longest runs first, so that the last worker is not busy alone at the end.
    missing.sort(key=lambda config: (config.seed, -estimated_flops(config)))
    stop_at = None if minutes is None else (started or time.monotonic()) + 60 * minutes
    # SIGTERM acts like Ctrl-C: workers stop with checkpoints.
    with (
        handling(signal.default_int_handler, signal.SIGTERM),
        open_workers(where, missing, root, experiment.eval_plan, num_workers, gpus_per_run) as workers,
    ):
        print(f"{todo}, up to {workers.limit} at a time", file=sys.stderr, flush=True)
        runner = Runner(experiment, root, missing, workers, num_seeds, stop_at)
        runner.run()
    if runner.failed:
        config, reason = next(iter(runner.failed.items()))
        others = f" (and {len(runner.failed) - 1} more)" if len(runner.failed) > 1 else ""
        raise CellsFailed(f"{runner.label(config)}{others} could not be finished: {reason}")
    return runner.is_done


class Runner:
    """Hand runs to workers until all are finished or the time is up."""

    def __init__(
        self,
        experiment: Experiment,
        root: Path,
        configs: list[RunConfig],
        workers: Workers,
        num_seeds: int = 1,
        stop_at: float | None = None,
    ) -> None:
        self.experiment, self.root, self.workers = experiment, root, workers
        self.num_seeds, self.stop_at = num_seeds, stop_at
        self.waiting = list(configs)
        self.running: list[RunConfig] = []
        self.running_elsewhere: list[RunConfig] = []
        """locked by another runner"""
        self.failed: dict[RunConfig, str] = {}
        self._losses: Counter[RunConfig] = Counter()
        self._started = time.monotonic()

    @property
    def is_done(self) -> bool:
        """Return whether no run is left."""
        return not (self.waiting or self.running or self.running_elsewhere)

    def run(self) -> None:
        """Keep every worker busy and show progress.

        A run is handed over when a worker is free for it, so that none is left in a queue when the work is stopped.
        """
        shown = 0.0
        while not self.is_done:
            if self.stop_at is not None and time.monotonic() > self.stop_at:
                self._print("out of time: stopping with checkpoints; the same command goes on")
                return
            while self.waiting and len(self.running) < self.workers.limit:
                self.running.append(self.waiting.pop(0))
                self.workers.start(self.running[-1])
            if not self.running:
                self._look_for_others()
                time.sleep(WAIT_FOR_OTHERS_SECONDS if self.running_elsewhere else 0)
                continue
            for config, result in self.workers.finished(REFRESH_SECONDS):
                self.running.remove(config)
                self._take_in(config, result)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                self._show_progress()

    def _take_in(self, config: RunConfig, result: WorkerResult) -> None:
        """Note what became of a run. A lost run is started again, unless it keeps killing its workers."""
        label = self.label(config)
        if result.state == "busy":
            self.running_elsewhere.append(config)
        elif result.state == "lost" and self._losses[config] < MAX_LOSSES:
            self._losses[config] += 1
            self.waiting.insert(0, config)
            self._print(f"{label}: {result.text}; resuming it with a new one")
        elif result.state in ("failed", "lost"):
            self.failed[config] = result.text
            self._print(f"{label}: {result.text}")
        elif result.state == "stopped":
            raise InputError(f"{label} was stopped from outside; the same command goes on")
        else:
            assert result.record is not None
            for cell in self._cells(config):
                value = cell_value(cell, result.record)
                text = "finished" if value is None else f"{metric_of(cell).label} {_with_interval(value)}"
                self._print(f"{self.label(config, cell)}: {text}")

    def _look_for_others(self) -> None:
        """Check the runs that another runner had: count what it finished, and take up what it left unfinished."""
        known = load_records(None, self.root)
        for config in list(self.running_elsewhere):
            done = not lacking(known.get(run_key(config)), config, self.experiment.eval_plan)
            if done or not is_locked(self.root, config.folder_name):
                self.running_elsewhere.remove(config)
                if done:
                    self._print(f"{self.label(config)}: finished by another runner")
                else:
                    self.waiting.append(config)

    def _show_progress(self) -> None:
        parts = []
        for config in self.running:
            step = last_step(self.root / config.folder_name)
            if step:
                doing = "testing" if step == config.train.num_steps else f"{100 * step // config.train.num_steps} %"
                parts.append(f"{self.label(config)} {doing}")
        if parts:
            self._print("; ".join(parts))

    def _cells(self, config: RunConfig) -> list[Cell]:
        """Return the cells that show a run. Two of them may show two numbers of it."""
        return [cell for cell in self.experiment.cells if replace(cell.config, seed=config.seed) == config]

    def label(self, config: RunConfig, cell: Cell | None = None) -> str:
        """Return a run in words: by one of its cells, or else by the first."""
        seed = f", seed {config.seed}" if self.num_seeds > 1 else ""
        return f"{(cell or self._cells(config)[0]).label}{seed}"

    def _print(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:4.0f} s] {text}", file=sys.stderr, flush=True)


def _require_seeds(num_seeds: int) -> None:
    require_field(1 <= num_seeds <= MAX_SEEDS, "seeds", f"an integer in 1..{MAX_SEEDS:,}", num_seeds)


def status(experiment: Experiment, root: Path, known: Mapping[str, Record], num_seeds: int = 1) -> list[dict[str, Any]]:
    """Return the state of each cell and seed: its number in the `known` records, or its step under `root`."""
    _require_seeds(num_seeds)
    rows = []
    for seed in range(num_seeds):
        for cell in experiment.cells:
            config = replace(cell.config, seed=seed)
            record = known.get(run_key(config))
            value = cell_value(cell, record) if record is not None and record.finished else None
            rows.append({
                "row": cell.row,
                "column": cell.column,
                "seed": seed,
                "state": _state(config, record, value, root),
                "finished": not lacking(record, config, experiment.eval_plan),
                "value": None if value is None else value.value,
                "low": None if value is None else value.low,
                "high": None if value is None else value.high,
                "paper": cell.paper,
                "run": config.folder_name,
            })  # fmt: skip
    return rows


def _state(config: RunConfig, record: Record | None, value: Value | None, root: Path) -> str:
    if value is not None:
        return _with_interval(value)
    if (root / LOCKS).is_dir() and is_locked(root, config.folder_name):
        doing = "being done"
    elif record is not None and not record.finished:
        return f"failed: {record.note}"
    else:
        doing = "stopped"
    step = last_step(root / config.folder_name)
    if step == config.train.num_steps:
        return f"{doing}, trained but not tested"
    if step:
        return f"{doing} at step {step} of {config.train.num_steps}"
    return "being done, no step logged yet" if doing == "being done" else "not begun"


def _with_interval(value: Value) -> str:
    interval = "" if value.low is None else f" ({value.low:.4g} to {value.high:.4g})"
    return f"{value.value:.4g}{interval}"
