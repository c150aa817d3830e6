"""Start Python programs without importing PyTorch for each of them: a server that has imported it forks them.

Pytest itself has computed with PyTorch, so its threads and locks must not be forked. The server has only imported it.
A program gets its own words, environment, working folder and output, and ends as an interpreter does.
"""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from looped.tasks import EditDistance
from tests.paths import ROOT

PRELOADED = ("torch._dynamo", "torch.distributed.fsdp", "looped.cli.main", "looped.training.trainer", "pytest")
"""what most programs of the tests import; nothing of it computes when it is imported"""


class Ended(NamedTuple):
    code: int
    output: str
    messages: str


class Program:
    """A running program."""

    def __init__(
        self, server: "ForkServer", words: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._server, self._folder, self._code = server, folder, None
        folder.mkdir()
        asked = {"words": words, "environment": {**environment}, "cwd": os.getcwd(), "folder": str(folder)}
        self.pid: int = server.ask(asked)

    def poll(self) -> int | None:
        """Return the exit code, minus the number of the signal if one ended it, or None while it runs."""
        if self._code is None:
            self._code = self._server.ask({"pid": self.pid})
        return self._code

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def finish(self, seconds: float) -> Ended:
        """Wait until it ends, and return how it ended. Kill it if it takes longer than this."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.02)
        return Ended(code, (self._folder / "stdout").read_text(), (self._folder / "stderr").read_text())


class ForkServer:
    """The process that forks programs. Use as a context manager."""

    def __enter__(self) -> "ForkServer":
        folders = (str(ROOT), str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(":"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(filter(None, folders))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks"],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="looped-programs-")
        self._numbers = count()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, and so ends it
        self._folder.cleanup()

    def start(self, *words: str, environment: Mapping[str, str]) -> Program:
        """Start `python WORDS`."""
        return Program(self, words, environment, Path(self._folder.name, str(next(self._numbers))))

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def serve() -> None:
    """Answer questions until the input ends. In a forked process, run its program and return."""
    for name in PRELOADED:
        importlib.import_module(name)
    EditDistance(length=2).sample(0, "train", [0])  # loads machine code, which takes half a second
    while line := sys.stdin.readline():
        question = json.loads(line)
        if "pid" in question:
            pid, status = os.waitpid(question["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            run(**question)
            return
        print(json.dumps(answer), flush=True)


def run(words: list[str], environment: dict[str, str], cwd: str, folder: str) -> None:
    """Turn this process into `python WORDS`."""
    for number, name in enumerate((os.devnull, f"{folder}/stdout", f"{folder}/stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    sys.path[0] = cwd if is_module else os.path.dirname(os.path.abspath(words[0]))
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve()
