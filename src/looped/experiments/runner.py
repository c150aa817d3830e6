"""Train and test the cells of an experiment, several at a time; what is finished is skipped, what stopped goes on."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from looped.config import RunConfig
from looped.experiments.locks import FOLDER as CLAIMS
from looped.experiments.locks import is_claimed, sweep_claims
from looped.experiments.measure import lacking, last_step, require_texts
from looped.experiments.metrics import metric_of
from looped.experiments.records import Record, Value, cell_value, load_records, run_key
from looped.experiments.spec import Cell, Experiment
from looped.experiments.worker import WorkerResult, finish_cell, start_worker
from looped.training.flops import estimated_flops
from looped.training.run_folder import RunFolder
from looped.utils.errors import InputError, require
from looped.utils.files import make_folder
from looped.utils.signals import handling

REFRESH_SECONDS = 1.0
PROGRESS_SECONDS = 20.0
WAIT_FOR_OTHERS_SECONDS = 2.0
MOST_SEEDS = 1000


class CellsFailed(InputError):
    """Some runs of an experiment could not be finished; all others were."""


@dataclass
class Work:
    """The runs of an experiment that are still to be done, and what became of the others."""

    experiment: Experiment
    root: Path
    waiting: list[RunConfig]
    num_seeds: int = 1
    stop_at: float | None = None
    running: dict["Future[WorkerResult]", tuple[RunConfig, "Seat"]] = field(default_factory=dict)
    elsewhere: list[RunConfig] = field(default_factory=list)
    """being done by another runner"""
    failed: dict[RunConfig, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def out_of_time(self) -> bool:
        return self.stop_at is not None and time.monotonic() > self.stop_at

    def cells(self, config: RunConfig) -> list[Cell]:
        """Those that show a run: two of them may show two numbers of it."""
        return [cell for cell in self.experiment.cells if replace(cell.config, seed=config.seed) == config]

    def label(self, config: RunConfig, cell: Cell | None = None) -> str:
        """A run in words: by one of its cells, or else by the first."""
        seed = f", seed {config.seed}" if self.num_seeds > 1 else ""
        return f"{(cell or self.cells(config)[0]).label}{seed}"

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:4.0f} s] {text}", file=sys.stderr, flush=True)


def run_experiment(
    experiment: Experiment,
    root: Path,
    *,
    results: Path | None = None,
    num_seeds: int = 1,
    num_workers: int | None = None,
    minutes: float | None = None,
    started: float | None = None,
) -> bool:
    """Finish every cell under `root`; returns whether all are, which a time limit may prevent.

    The limit's minutes count from `started`, a time of the monotonic clock (default: now).
    """
    require(num_workers is None or num_workers >= 1, f"workers must be at least 1, got {num_workers}")
    _require_seeds(num_seeds)
    require(minutes is None or minutes > 0, f"minutes must be positive, got {minutes}")
    known = load_records(results, root)
    configs = experiment.configs(num_seeds)
    missing = [config for config in configs if lacking(known.get(run_key(config)), config, experiment.eval_plan)]
    for config in missing:
        RunFolder(root / config.folder_name).check(config)
    devices = _devices(missing)
    sweep_claims(root)
    num_workers = min(num_workers or len(devices) or os.cpu_count() or 1, max(1, len(missing)))
    todo = f"{len(missing)} of {len(configs)} runs to do, {num_workers} at a time"
    print(f"{experiment.label}: {todo}", file=sys.stderr, flush=True)
    if not missing:
        return True
    require_texts(experiment.eval_plan)
    make_folder(root / CLAIMS)
    # Seed by seed; of each the longest first, so that the last worker does not sit alone at the end.
    missing.sort(key=lambda config: (config.seed, -estimated_flops(config)))
    stop_at = None if minutes is None else (started or time.monotonic()) + 60 * minutes
    work = Work(experiment, root, missing, num_seeds, stop_at)
    # As by Ctrl-C: workers stop with their checkpoints, and leave no semaphore that Python complains of.
    with handling(signal.default_int_handler, signal.SIGTERM):
        _with_workers(work, num_workers, devices)
    if work.failed:
        config, reason = next(iter(work.failed.items()))
        others = f" (and {len(work.failed) - 1} more)" if len(work.failed) > 1 else ""
        raise CellsFailed(f"{work.label(config)}{others} could not be finished: {reason}")
    return not (work.waiting or work.running or work.elsewhere)


class Seat:
    """Where one run at a time is worked on: a process on the CPU, or one after the other on a GPU of its own.

    A GPU's memory and compiled code go with their process, so that no run sees what another has left.
    """

    def __init__(self, watched: Connection, device: str | None) -> None:
        self.watched, self.device = watched, device
        self.pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), start_worker, (self.watched, self.device)
        )  # fmt: skip

    def begin(self, config: RunConfig, work: Work) -> "Future[WorkerResult]":
        return self.pool.submit(finish_cell, config, str(work.root), work.experiment.eval_plan)

    def clear(self) -> None:
        if self.device is not None:
            self.pool.shutdown()
            self.pool = self._new_pool()


def _threads_each(num_workers: int) -> int:
    """A worker's share of the cores, or fewer where fewer are wanted: more would wait for each other."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    share = max(1, (os.cpu_count() or 1) // num_workers)
    return min(share, int(wanted)) if wanted.isdigit() and int(wanted) else share


def _with_workers(work: Work, num_workers: int, devices: list[str]) -> None:
    """Start workers, let them work, and see to it that none outlives this process."""
    watched, held = multiprocessing.get_context("spawn").Pipe(duplex=False)
    seats = [Seat(watched, devices[number % len(devices)] if devices else None) for number in range(num_workers)]
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(_threads_each(num_workers))  # inherited by the workers
    try:
        _work_through(work, list(seats))
    except BrokenProcessPool:
        raise InputError("a worker was killed (out of memory?); the same command goes on") from None
    finally:
        if work.running:  # those that train stop after their step, with a checkpoint; those that test at once
            held.close()
        for seat in seats:
            seat.pool.shutdown()
        watched.close()
        held.close()
        # Another experiment has another share, which is not to be taken for what the user wants.
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def _work_through(work: Work, free: list[Seat]) -> None:
    """Keep every worker busy and show how far the runs are.

    A run is handed over when a worker is free for it, so that none is left in a queue when the work is stopped.
    """
    shown = 0.0
    while work.waiting or work.running or work.elsewhere:
        if work.out_of_time:
            work.say("out of time: stopping with checkpoints; the same command goes on")
            return
        while work.waiting and free:
            config, seat = work.waiting.pop(0), free.pop()
            work.running[seat.begin(config, work)] = config, seat
        if not work.running:
            _look_for_others(work)
            time.sleep(WAIT_FOR_OTHERS_SECONDS if work.elsewhere else 0)
        done, _ = wait(work.running, REFRESH_SECONDS, FIRST_COMPLETED)
        for job in done:
            outcome = job.result()
            config, seat = work.running.pop(job)
            seat.clear()
            free.append(seat)
            _take_in(work, config, outcome)
        if time.monotonic() - shown > PROGRESS_SECONDS:
            shown = time.monotonic()
            _show_running(work)


def _take_in(work: Work, config: RunConfig, outcome: WorkerResult) -> None:
    if outcome.state == "busy":
        work.elsewhere.append(config)
    elif outcome.state == "failed":
        work.failed[config] = outcome.text
        work.say(f"{work.label(config)}: {outcome.text}")
    elif outcome.state == "stopped":
        raise InputError(f"{work.label(config)} was stopped from outside; the same command goes on")
    else:
        assert outcome.record is not None
        for cell in work.cells(config):
            value = cell_value(cell, outcome.record)
            text = "finished" if value is None else f"{metric_of(cell).label} {_with_interval(value)}"
            work.say(f"{work.label(config, cell)}: {text}")


def _look_for_others(work: Work) -> None:
    """Take up what another runner has left unfinished; what it has finished is finished."""
    known = load_records(None, work.root)
    for config in list(work.elsewhere):
        done = not lacking(known.get(run_key(config)), config, work.experiment.eval_plan)
        if done or not is_claimed(work.root, config.folder_name):
            work.elsewhere.remove(config)
            if done:
                work.say(f"{work.label(config)}: finished by another runner")
            else:
                work.waiting.append(config)


def _show_running(work: Work) -> None:
    parts = []
    for config, _ in work.running.values():
        step = last_step(work.root / config.folder_name)
        if step:
            doing = "testing" if step == config.train.num_steps else f"{100 * step // config.train.num_steps} %"
            parts.append(f"{work.label(config)} {doing}")
    if parts:
        work.say("; ".join(parts))
    elif work.elsewhere and not work.running:
        work.say(f"waiting for another runner: {'; '.join(work.label(config) for config in work.elsewhere)}")


def _devices(configs: Sequence[RunConfig]) -> list[str]:
    """The GPUs that workers share out among themselves; none where all is computed on the CPU."""
    if all(config.train.runtime.device == "cpu" for config in configs):
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


# How far an experiment is.


def _require_seeds(num_seeds: int) -> None:
    require(num_seeds >= 1, f"seeds must be at least 1, got {num_seeds}")
    require(num_seeds <= MOST_SEEDS, f"seeds must be at most {MOST_SEEDS:,}, got {num_seeds}")


def status(experiment: Experiment, root: Path, known: Mapping[str, Record], num_seeds: int = 1) -> list[dict[str, Any]]:
    """Of each cell and seed: its number in the `known` records, its step under `root`, or that it is not begun."""
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
    if (root / CLAIMS).is_dir() and is_claimed(root, config.folder_name):
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
