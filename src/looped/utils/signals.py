"""Handle signals differently inside a block."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handling(handler: Callable[[int, Any], Any], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals with `handler` inside this block.

    Nothing changes outside the main thread, or for a signal that is ignored or handled outside of Python.
    """
    in_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in numbers if in_main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handler) for number in ours}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
