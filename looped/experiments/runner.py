"""Train and test the cells of an experiment, several at a time; what is finished is skipped, what stopped goes on."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from looped.config import RunConfig
from looped.errors import InputError, require
from looped.experiments.spec import Cell, Experiment
from looped.files import read_json, save_json
from looped.training.folder import RunFolder
from looped.training.log import records

REFRESH_SECONDS = 1.0
PLAIN_LINE_SECONDS = 20.0


def cell_folder(root: Path, cell: Cell) -> Path:
    return root / cell.config.folder_name


def read_test(root: Path, cell: Cell) -> dict[str, Any] | None:
    """The finished test of a cell, or None."""
    path = cell_folder(root, cell) / "test.json"
    return read_json(path) if path.exists() else None


def status(experiment: Experiment, root: Path) -> list[dict[str, Any]]:
    """How far each cell is: its test result, its step, or not begun."""
    rows = []
    for cell in experiment.cells:
        test = read_test(root, cell)
        step = _last_step(RunFolder(cell_folder(root, cell)).log_path)
        if test is not None:
            state = f"{test['metric']} {at_trained_loops(test)[test['metric']]:.3f}"
        else:
            state = f"step {step} of {cell.config.train.num_steps}" if step else "not begun"
        rows.append({"row": cell.row, "column": cell.column, "state": state, "test": test})
    return rows


def run_experiment(experiment: Experiment, root: Path, num_workers: int | None = None) -> None:
    """Finish every cell under `root`."""
    missing = [cell for cell in experiment.cells if read_test(root, cell) is None]
    # The longest first, so that the last worker does not sit alone at the end.
    missing.sort(key=lambda cell: -cell.config.model.num_loops * cell.config.model.num_layers)
    require(num_workers is None or num_workers >= 1, f"workers must be at least 1, got {num_workers}")
    cores = os.cpu_count() or 1
    num_workers = min(num_workers or cores, max(1, len(missing)))
    print(f"{experiment.title}: {len(missing)} of {len(experiment.cells)} cells to do, {num_workers} at a time",
          file=sys.stderr)  # fmt: skip
    if not missing:
        return
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores // num_workers))  # inherited by the workers
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    with ProcessPoolExecutor(num_workers, spawn, _start_worker, (stop,)) as pool:
        try:
            _work_through(missing, pool, num_workers, experiment.test_size, root)
        except BaseException:
            stop.set()
            raise


def _start_worker(stop: Event) -> None:
    """In a worker: stop after the current step, with a checkpoint, when asked to or when the runner is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent and not stop.wait(REFRESH_SECONDS):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        _IDLE.wait()
        os._exit(1)  # nobody is left to give this worker anything, but it would wait for it

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the runner decides
    _IDLE.set()
    threading.Thread(target=watch, daemon=True).start()


_IDLE = threading.Event()  # in a worker: set while no cell is being trained


def _finish_cell(config: RunConfig, folder: str, test_size: int) -> dict[str, Any]:
    """In a worker: train to the end, then test at every loop count up to twice the trained one."""
    _IDLE.clear()
    try:
        return _train_and_test(config, folder, test_size)
    finally:
        _IDLE.set()


def _train_and_test(config: RunConfig, folder: str, test_size: int) -> dict[str, Any]:
    from looped.inference import load_run
    from looped.training import evaluate, train

    threads = int(os.environ["OMP_NUM_THREADS"])
    result = train(replace(config, train=replace(config.train, num_threads=threads)), folder, quiet=True)
    if not result["finished"]:
        raise InputError(f"{folder} was stopped at step {result['step']}; the same command goes on")
    run = load_run(folder)
    loops = [1] if config.model.block == "standard" else range(1, 2 * config.model.num_loops + 1)
    test = evaluate(run.model, run.task, "test", test_size, loops)
    save_json(Path(folder) / "test.json", test)
    return test


def at_trained_loops(test: dict[str, Any]) -> dict[str, Any]:
    """The row of an evaluation at the loop count the model was trained with."""
    return next(row for row in test["rows"] if row["loops"] == test["trained_loops"])


def _work_through(cells: list[Cell], pool: ProcessPoolExecutor, num_workers: int, test_size: int, root: Path) -> None:
    """Keep every worker busy and show how far the cells are; the first failure ends the work.

    A cell is handed over when a worker is free for it, so that none is left in a queue when the work is stopped.
    """
    started, shown = time.monotonic(), 0.0
    waiting, running = list(cells), {}
    while waiting or running:
        while waiting and len(running) < num_workers:
            cell = waiting.pop(0)
            running[pool.submit(_finish_cell, cell.config, str(cell_folder(root, cell)), test_size)] = cell
        time.sleep(REFRESH_SECONDS)
        for future in [future for future in running if future.done()]:
            cell, test = running.pop(future), future.result()
            row = at_trained_loops(test)
            print(f"[{time.monotonic() - started:4.0f} s] {cell.label}: {test['metric']} {row[test['metric']]:.3f} "
                  f"({row['low']:.3f} to {row['high']:.3f})", file=sys.stderr, flush=True)  # fmt: skip
        if time.monotonic() - shown > PLAIN_LINE_SECONDS and running:
            shown = time.monotonic()
            _show_running(list(running.values()), root, started)


def _show_running(cells: Sequence[Cell], root: Path, started: float) -> None:
    parts = []
    for cell in cells:
        step = _last_step(RunFolder(cell_folder(root, cell)).log_path)
        if step:
            parts.append(f"{cell.label} {100 * step // cell.config.train.num_steps} %")
    if parts:
        print(f"[{time.monotonic() - started:4.0f} s] training: {'; '.join(parts)}", file=sys.stderr, flush=True)


def _last_step(log: Path) -> int:
    return max((step for _, step in records(log)), default=0)
