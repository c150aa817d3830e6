"""One run in a process of its own: trained to the end, tested, and its record written."""

import multiprocessing
import os
import signal
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

from looped.config import RunConfig
from looped.experiments.locks import claimed
from looped.experiments.measure import failed_try, lacking, measure_run, own_record
from looped.experiments.records import RECORD_NAME, Record, save_record
from looped.experiments.spec import EvalPlan
from looped.utils.errors import InputError
from looped.utils.memory import exhausted_memory


class WorkerResult(NamedTuple):
    """The outcome of one run."""

    state: Literal["finished", "busy", "stopped", "failed"]
    text: str = ""
    """why it failed"""
    record: Record | None = None
    """of a finished run"""


def start_worker(runner: Connection, device: str | None) -> None:
    """In a worker: see one GPU alone, if any, and stop when the runner closes its end of the pipe, or is gone.

    A pipe, and not an event: an event is not set before all who wait for it are awake, which one that was killed is
    never.
    """
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device

    def watch() -> None:
        runner.poll(None)  # nothing is ever sent: it waits for the end
        os.kill(os.getpid(), signal.SIGTERM)  # a training ends after its step, with a checkpoint; a test at once
        _IDLE.wait()
        if (parent := multiprocessing.parent_process()) is not None:  # a runner that is alive ends its workers in order
            parent.join()
        os._exit(1)  # nobody is left to give this worker anything, but it would wait for it

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the runner decides
    _IDLE.set()
    threading.Thread(target=watch, daemon=True).start()


_IDLE = threading.Event()  # in a worker: set while no run is being worked on


def finish_cell(config: RunConfig, root: str, plan: EvalPlan) -> WorkerResult:
    """In a worker: train and test one run, unless another one is at it."""
    _IDLE.clear()
    try:
        threads = config.train.runtime.num_threads or int(os.environ["OMP_NUM_THREADS"])
        return finish_run(replace(config, train=config.train.override(num_threads=threads)), Path(root), plan)
    except InputError as error:
        return WorkerResult("failed", str(error))
    except (OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_of_the_machine(error):
            raise
        return WorkerResult("failed", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    finally:
        _IDLE.set()


def _is_of_the_machine(error: RuntimeError) -> bool:
    """Return whether the GPU or the memory failed, which says nothing about other runs. Otherwise it is a bug."""
    return exhausted_memory(error) is not None or any(
        word in str(error).lower() for word in ("cuda", "cublas", "cudnn")
    )


def finish_run(config: RunConfig, root: Path, plan: EvalPlan) -> WorkerResult:
    """Train and test one run under `root` and write its record, from wherever it stands."""
    from looped.training import Interrupted, train
    from looped.training.trainer import Diverged

    folder = root / config.folder_name
    with claimed(root, config.folder_name) as free:
        if not free:
            return WorkerResult("busy")
        record = own_record(folder, config)
        if record is not None and not lacking(record, config, plan):
            return WorkerResult("finished", record=record)
        try:
            train(config, folder, quiet=True)
            record = measure_run(config, folder, plan, record)
        except Interrupted:
            return WorkerResult("stopped")
        except Diverged as error:
            save_record(folder / RECORD_NAME, failed_try(config, folder, str(error)))
            raise
        save_record(folder / RECORD_NAME, record)
        return WorkerResult("finished", record=record)
