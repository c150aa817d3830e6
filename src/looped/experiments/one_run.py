"""Train one run to the end, test it, and write its record, in a worker."""

import multiprocessing
import os
import signal
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

from looped.config import RunConfig
from looped.experiments.locks import run_lock
from looped.experiments.measure import failed_try, lacking, measure_run, own_record
from looped.experiments.records import RECORD_NAME, Record, save_record
from looped.experiments.spec import EvalPlan
from looped.utils.errors import InputError
from looped.utils.memory import exhausted_memory


class WorkerResult(NamedTuple):
    """The outcome of one run."""

    state: Literal["finished", "busy", "stopped", "failed", "lost"]
    """busy: another runner works on it; stopped: by a signal; lost: its worker died"""
    text: str = ""
    """why it failed or was lost"""
    record: Record | None = None
    """of a finished run"""


_idle = threading.Event()  # set in a local worker that has no run to work on


def start_worker(runner: Connection, gpu: str | None) -> None:
    """Prepare a local worker: let it see one GPU only, and stop it when the runner closes the pipe or is gone.

    A pipe is better than an event: setting an event waits for a killed process for ever.
    """
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu

    def watch() -> None:
        runner.poll(None)  # nothing is ever sent, so this returns when the pipe is closed
        os.kill(os.getpid(), signal.SIGTERM)  # training ends after its step, with a checkpoint; a test ends at once
        _idle.wait()
        if (parent := multiprocessing.parent_process()) is not None:  # a living runner shuts its workers down itself
            parent.join()
        os._exit(1)  # the runner is gone, and the pool would wait for more work

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the runner decides
    _idle.set()
    threading.Thread(target=watch, daemon=True).start()


def finish_cell(config: RunConfig, root: str, plan: EvalPlan, num_threads: int) -> WorkerResult:
    """Train and test one run with this many threads, and return an error of the user or the machine as a result."""
    _idle.clear()
    try:
        num_threads = config.train.runtime.num_threads or num_threads
        return finish_run(replace(config, train=config.train.override(num_threads=num_threads)), Path(root), plan)
    except InputError as error:
        return WorkerResult("failed", str(error))
    except (OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_of_the_machine(error):
            raise
        return WorkerResult("failed", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    finally:
        _idle.set()


def _is_of_the_machine(error: RuntimeError) -> bool:
    """Return whether the GPU or the memory failed, which says nothing about other runs. Otherwise it is a bug."""
    return exhausted_memory(error) is not None or any(
        word in str(error).lower() for word in ("cuda", "cublas", "cudnn")
    )


def finish_run(config: RunConfig, root: Path, plan: EvalPlan) -> WorkerResult:
    """Train and test one run under `root`, or resume it, and write its record."""
    from looped.training import Interrupted, train
    from looped.training.trainer import Diverged

    folder = root / config.folder_name
    with run_lock(root, config.folder_name) as free:
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
