"""Signals, handled in another way for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handling(handler: Callable[[int, Any], Any], *numbers: signal.Signals) -> Iterator[None]:
    """Let `handler` have these signals. In another than the main thread, and where one is ignored or handled outside
    of Python, whoever started this decides."""
    in_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in numbers if in_main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handler) for number in ours}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
