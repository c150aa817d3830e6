"""Set before any test where machine code is kept, how Triton's kernels run without a GPU, and what Ctrl-C does.

With TEST_LOG=FILE, every test is written there when it begins and when it ends, so that tests which are stopped leave
what they found.
"""

import os
import signal
import sys

import pytest
import torch

from looped.utils import plugins as outside
from looped.utils.files import cache_folder
from tests.forks import ForkServer

# Tests have cache folders of their own, but need not compile every generator once more for each.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "numba"))

# In an interpreter; Triton asks when it is first loaded.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What a script starts in the background ignores Ctrl-C, and hands that on; some tests send it to what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _note(text: str) -> None:
    path = os.environ.get("TEST_LOG")
    if path is not None and "PYTEST_XDIST_WORKER" not in os.environ:  # workers report to the main process
        with open(path, "a") as file:
            file.write(f"{text}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(f"began   {nodeid}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    _note(f"{report.outcome:7} {report.nodeid} ({report.duration:.1f} s)")
    if report.failed:
        _note(report.longreprtext)
    if not report.skipped:
        for name, content in report.sections:
            _note(f"--- {name}\n{content}")


@pytest.fixture(scope="session")
def programs():
    """Return a server that starts programs quickly."""
    with ForkServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _memory_for_others():
    """Give back the memory of a GPU that a test no longer needs: tests in other processes may."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 2**31:
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    """Start every test without plugins, and forget those that it imports. Return a function that forgets them now."""

    def forget() -> None:
        for module in outside._LOADED.values():
            sys.modules.pop(module.__name__, None)
        outside._LOADED.clear()
        outside._REGISTERED.clear()
        monkeypatch.setenv(outside.VARIABLE, "")

    forget()
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield forget
    forget()
