"""Which of several processes this is, if torchrun started it, and the store that they share.

Only the store needs torch.
"""

import atexit
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from looped.utils.errors import InputError, require, require_field, require_within

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

MAX_DIGITS = 9
LINGER_SECONDS = 3.0
"""time for another rank to print why all fail, because torchrun ends every rank when the first one ends"""
CONNECT_SECONDS = 300.0
"""how long a rank waits until all ranks have connected"""
REPORT_SECONDS = 30.0
"""how long a rank that failed at once waits for the others"""
KNOCK_SECONDS = 0.1
"""time between two looks at what other ranks have done"""
NOTICE_SECONDS = 10.0
"""time after which a rank says that it waits; the others may be on machines that start minutes later"""


def launched_rank() -> int | None:
    """Return the rank that torchrun gave to this process, or None if torchrun did not start it."""
    numbers = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    if not {*numbers, "MASTER_ADDR"} <= {*os.environ}:
        return None
    found = {}
    for name in numbers:
        value = os.environ[name]
        is_number = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
        require(is_number, f"{name}: expected a number in the environment, got {value[:80]!r}")
        found[name] = int(value)
    require_within("MASTER_PORT", found["MASTER_PORT"], 0, 65535)
    rank, size = found["RANK"], found["WORLD_SIZE"]
    require_field(rank < size, "RANK", f"a number below WORLD_SIZE = {size}", rank)
    return rank


def require_not_launched(what: str) -> None:
    """Raise InputError if torchrun started this process, for work that starts the processes it needs itself."""
    if launched_rank() is not None:
        size = os.environ["WORLD_SIZE"]
        raise InputError(f"{what} starts its own processes: expected no torchrun, got WORLD_SIZE = {size}")


def connect_store(seconds: float) -> "Store":
    """Connect to the store of this start. A restart has keys of its own, because old ones name dead processes."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        if not _hosts_store():
            _wait_for_host(address, port, seconds)
        store = dist.TCPStore(address, port, int(size), _hosts_store(), wait_for_workers=False)  # pyright: ignore
    except (dist.DistError, OSError, UnicodeError) as error:
        reason, expected = str(error).partition("\n")[0], "an address at which rank 0 listens"
        raise InputError(
            f"MASTER_ADDR: expected {expected}, got {address}, port {port}, on rank {rank}: {reason}"
        ) from None
    store = PrefixStore(f"looped/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{size}", store)
    store.add("connected", 1)
    return store


def _hosts_store() -> bool:
    """Return whether this rank hosts the store: rank 0, unless torchrun's agent does."""
    return os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _wait_for_host(address: str, port: int, seconds: float) -> None:
    """Wait until somebody listens, because PyTorch prints dozens of lines about every attempt that fails."""
    for _ in _knocks(seconds, f"rank 0 at {address}, port {port}"):
        with suppress(OSError):
            socket.create_connection((address, port), timeout=min(seconds, NOTICE_SECONDS)).close()
            return
    socket.create_connection((address, port), timeout=KNOCK_SECONDS).close()  # raises the reason


def _knocks(seconds: float, awaited: str) -> Iterator[None]:
    """Yield every KNOCK_SECONDS until the time is over. One rank of each machine says once what it waits for."""
    began = time.monotonic()
    silent = os.environ.get("LOCAL_RANK", "0") != "0"
    while (waited := time.monotonic() - began) < seconds:
        yield
        if waited > NOTICE_SECONDS and not silent:
            rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
            print(f"looped: waiting for {awaited}: RANK is {rank}, WORLD_SIZE {size}", file=sys.stderr, flush=True)
            silent = True
        time.sleep(KNOCK_SECONDS)


def claims_report(store: "Store") -> bool:
    """Return whether this rank is the first to report that the run failed."""
    with suppress(RuntimeError):  # whoever hosts the store may be gone, but then it has reported
        return store.add("reports", 1) == 1
    return False


def wait_for(keys: list[str], store: "Store") -> None:
    """Wait until other ranks have set these keys. End silently if one of them failed, and so reports why."""
    size = int(os.environ["WORLD_SIZE"])
    for _ in _knocks(CONNECT_SECONDS, "the other processes"):
        if store.check(keys):
            return
        if store.check(["reports"]):
            _outlast_others(store)
            end_silently()
    expected = f"{size} processes to connect within {CONNECT_SECONDS:.0f} seconds"
    raise InputError(f"WORLD_SIZE: expected {expected}, got {store.add('connected', 0)}")


def _outlast_others(store: "Store") -> None:
    """Wait until the others have seen that this start failed, if this rank hosts the store."""
    if not _hosts_store():
        return
    with suppress(KeyboardInterrupt):
        for _ in _knocks(REPORT_SECONDS, "the other processes"):
            if store.add("connected", 0) >= int(os.environ["WORLD_SIZE"]):
                break
        time.sleep(10 * KNOCK_SECONDS)


def end_silently() -> NoReturn:
    """End this process with exit code 2, once another rank has had time to print why."""
    time.sleep(LINGER_SECONDS)
    raise SystemExit(2)


@contextmanager
def reported_once() -> Iterator[None]:
    """Let one rank report an InputError from before the ranks connect, such as a mistyped flag, and end all of them.

    Every rank may have made the mistake. Or the ranks of one machine have, and then the others wait for them.
    """
    try:
        yield
    except InputError:
        if launched_rank() is None:
            raise
        with suppress(InputError, RuntimeError):  # if the ranks cannot meet, each one reports its own mistake
            store = connect_store(REPORT_SECONDS)
            is_first = claims_report(store)
            atexit.register(_outlast_others, store)
            if not is_first:
                end_silently()
        raise
