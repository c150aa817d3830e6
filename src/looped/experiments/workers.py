"""Train and test the runs of an experiment in processes of this machine, or on a Ray cluster."""

import multiprocessing
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from looped.config import RunConfig
from looped.experiments.one_run import WorkerResult, finish_cell, start_worker
from looped.experiments.spec import EvalPlan
from looped.utils.errors import InputError, require, require_field
from looped.utils.plugins import VARIABLE as PLUGINS

Where = Literal["local", "ray"]

CONNECT_SECONDS = 20.0


class Workers(ABC):
    """Work on several runs at a time. Use as a context manager: leaving it stops what is still running.

    A run that is stopped in training ends after its step, with a checkpoint. One that is being tested ends at once.
    """

    limit: int
    """number of runs that may be started at a time"""

    @abstractmethod
    def start(self, config: RunConfig) -> None:
        """Start to train and test a run."""

    @abstractmethod
    def finished(self, seconds: float) -> list[tuple[RunConfig, WorkerResult]]:
        """Wait until a run ends, but at most this long, and return what has ended. A dead worker's run is `lost`."""

    @abstractmethod
    def close(self) -> None:
        """Stop all runs and free all workers."""

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalWorkers(Workers):
    """Processes of this machine: each has its share of the cores, or a GPU to itself.

    A process on the CPU works on one run after the other. On a GPU every run gets a new process, so that no run finds
    memory or compiled code that another one left.
    """

    def __init__(self, limit: int, gpus: Sequence[str], root: Path, plan: EvalPlan) -> None:
        self.limit, self._arguments = limit, (str(root), plan)
        spawn = multiprocessing.get_context("spawn")
        # Workers stop when this end is closed, however this process ends.
        self._watched, self._held = spawn.Pipe(duplex=False)
        self._free = [_Slot(self._watched, gpus[number % len(gpus)] if gpus else None) for number in range(limit)]
        self._slots = list(self._free)
        self._running: dict[Future[WorkerResult], tuple[RunConfig, _Slot]] = {}
        self._threads = threads_per_worker(limit)

    def start(self, config: RunConfig) -> None:
        slot = self._free.pop()
        with _environment(OMP_NUM_THREADS=str(self._threads)):  # inherited by the process
            future = slot.submit(config, *self._arguments, self._threads)
        self._running[future] = config, slot

    def finished(self, seconds: float) -> list[tuple[RunConfig, WorkerResult]]:
        done, _ = wait(self._running, seconds, FIRST_COMPLETED)
        results = []
        for future in done:
            config, slot = self._running.pop(future)
            try:
                result = future.result()
            except BrokenProcessPool:
                result = WorkerResult("lost", "its worker was killed (out of memory?)")
                slot.renew()
            if slot.gpu is not None:
                slot.renew()
            self._free.append(slot)
            results.append((config, result))
        return results

    def close(self) -> None:
        if self._running:
            self._held.close()
        for slot in self._slots:
            slot.pool.shutdown()
        self._watched.close()
        self._held.close()


class _Slot:
    """A place for a worker process. If the process dies, a new one takes the place."""

    def __init__(self, watched: Any, gpu: str | None) -> None:
        self._watched, self.gpu = watched, gpu
        self.pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, spawn, start_worker, (self._watched, self.gpu))

    def submit(self, *arguments: Any) -> "Future[WorkerResult]":
        try:
            return self.pool.submit(finish_cell, *arguments)
        except BrokenProcessPool:  # it died while it had nothing to do
            self.renew()
            return self.pool.submit(finish_cell, *arguments)

    def renew(self) -> None:
        self.pool.shutdown()
        self.pool = self._new_pool()


class RayWorkers(Workers):
    """Tasks on a Ray cluster: the one that RAY_ADDRESS or this machine's `ray start` names, or else a local one.

    Ray queues what does not fit, so that a cluster that can grow knows how much is wanted. All machines must see the
    folder of the runs under the same path.
    """

    CLOSE_SECONDS = 60.0

    def __init__(
        self, limit: int, gpus_per_run: float | None, root: Path, plan: EvalPlan, cpus_per_run: int = 1
    ) -> None:
        ray = _import_ray()
        self.limit, self._ray = limit, ray
        self._is_own = not ray.is_initialized()
        if self._is_own:
            _require_reachable(os.environ.get("RAY_ADDRESS", ""))
            try:
                ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise _no_cluster(os.environ.get("RAY_ADDRESS"), error) from None
        cluster = ray.cluster_resources()
        gpus = min(1.0, cluster.get("GPU", 0.0)) if gpus_per_run is None else gpus_per_run
        for name, wanted in (("GPU", gpus), ("CPU", float(cpus_per_run))):
            found = cluster.get(name, 0.0)
            if wanted > found:
                self._shut_down()
                raise InputError(f"expected a Ray cluster with {wanted:g} {name} for every run, found {found:g}")
        # A lost run is started again by the runner, which also counts how often; Ray itself does not retry.
        task = ray.remote(num_cpus=cpus_per_run, num_gpus=gpus, max_retries=0)(_finish_elsewhere)
        self._start = lambda config: task.options(name=config.folder_name).remote(
            os.environ.get(PLUGINS, ""), config, str(root.resolve()), plan, cpus_per_run
        )
        self._running: dict[Any, RunConfig] = {}

    def start(self, config: RunConfig) -> None:
        self._running[self._start(config)] = config

    def finished(self, seconds: float) -> list[tuple[RunConfig, WorkerResult]]:
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [(self._running.pop(reference), self._result(reference)) for reference in done]

    def _result(self, reference: Any) -> WorkerResult:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError:
            raise  # a bug in the run, with the traceback of the worker
        except self._ray.exceptions.RayError as error:
            return WorkerResult("lost", f"its Ray worker died ({type(error).__name__})")

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)  # as Ctrl-C
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=self.CLOSE_SECONDS)
        self._shut_down()

    def _shut_down(self) -> None:
        if self._is_own:
            self._ray.shutdown()


def _finish_elsewhere(plugins: str, config: RunConfig, root: str, plan: EvalPlan, num_threads: int) -> WorkerResult:
    """Finish a run in a process that does not inherit the environment, and so needs the names of plugins."""
    os.environ[PLUGINS] = plugins
    return finish_cell(config, root, plan, num_threads)


def _import_ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports] (an extra)
    except ImportError:
        raise InputError("--on ray needs an extra: pip install 'looped[ray]'") from None
    return ray


def _require_reachable(address: str) -> None:
    """Raise InputError if nothing listens at an address of the form HOST:PORT. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:  # nobody listens, or such a host or port cannot be
        raise _no_cluster(address, error) from None


def _no_cluster(address: str | None, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    if address is None:
        return InputError(f"--on ray: cannot start Ray on this machine: {reason}")
    return InputError(f"RAY_ADDRESS: expected a running Ray cluster, got {address[:80]}: {reason[:200]}")


def require_gpus(where: Where, gpus_per_run: float | None) -> None:
    """Raise InputError unless a run can have this many GPUs: on Ray a part of one, or several whole ones."""
    require(where == "ray" or gpus_per_run is None, f"gpus-per-run: expected with --on ray, got {gpus_per_run}")
    fits = gpus_per_run is None or 0 <= gpus_per_run <= 1 or (gpus_per_run > 1 and gpus_per_run == gpus_per_run // 1)
    require_field(fits, "gpus-per-run", "a number from 0 to 1, or a whole one", gpus_per_run)


def threads_per_worker(num_workers: int) -> int:
    """Return a worker's share of the cores, or OMP_NUM_THREADS if that is less."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    share = max(1, (os.cpu_count() or 1) // num_workers)
    return min(share, int(wanted)) if wanted.isdigit() and int(wanted) else share


def visible_gpus(configs: Sequence[RunConfig]) -> list[str]:
    """Return the GPUs that local workers use, or none if every run asks for the CPU."""
    if all(config.train.runtime.device == "cpu" for config in configs):
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def open_workers(
    where: Where,
    configs: Sequence[RunConfig],
    root: Path,
    plan: EvalPlan,
    num_workers: int | None = None,
    gpus_per_run: float | None = None,
) -> Workers:
    """Return workers for these runs. The default number is one per GPU or core, and on Ray one per run."""
    if where == "ray":
        return RayWorkers(num_workers or len(configs), gpus_per_run, root, plan)
    gpus = visible_gpus(configs)
    return LocalWorkers(min(num_workers or len(gpus) or os.cpu_count() or 1, len(configs)), gpus, root, plan)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables inside this block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
