"""The program under test: a source tree, its command line, and the flags that it has."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from faults.operations import Fault, Operation, build_shim, kept_folder, read_control, read_trace, write_control

GIB = 2**30


class Outcome(NamedTuple):
    """The end of one command."""

    code: int
    """the exit code; negative: the signal that ended it"""
    stdout: str
    stderr: str
    cpu: float
    elapsed: float
    peak: int
    """bytes of memory"""
    timed_out: bool
    too_big: bool
    count: int = 0
    """file operations"""
    hit: bool = False
    """whether the fault was reached"""
    left: bool = False
    """whether it left processes behind"""

    @property
    def complaint(self) -> str | None:
        """Return what is wrong with how the command ended, whatever it was asked to do; None for nothing."""
        if self.timed_out:
            return f"no end after {self.elapsed:.0f} s"
        if self.too_big:
            return f"more than {self.peak / GIB:.1f} GiB of memory"
        if "Traceback (most recent call last)" in self.stderr:
            return f"traceback: {last_line(self.stderr)}{_place(self.stderr)}"
        if self.code == 2 and not self.errors:
            return "exit code 2 without a line that says why"
        if len(self.errors) > 1:
            return f"{len(self.errors)} lines of complaint: {self.errors[0]}"
        if self.code not in (0, 2, -9):
            return f"exit code {self.code}: {last_line(self.stderr)}"
        return None

    @property
    def errors(self) -> list[str]:
        """Return the last lines that start with the program's name, as its complaint does."""
        lines = [line for line in self.stderr.strip().splitlines() if line.startswith("looped: ")]
        return lines[-1:] if self.code == 2 else []


def _place(trace: str) -> str:
    """Return where a traceback ends, in parentheses."""
    places = re.findall(r'File "([^"]*)", line (\d+), in (.*)', trace)
    return "" if not places else " ({}:{}, {})".format("/".join(Path(places[-1][0]).parts[-2:]), *places[-1][1:])


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "(no output)"


@dataclass
class Target:
    """A source tree whose command line is run, in a folder of its own."""

    source: Path
    python: str = sys.executable
    warm_up: list[list[str]] = field(default_factory=list)
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="faults-")))
    references: dict[Any, Any] = field(default_factory=dict)
    """undisturbed runs of the workloads"""

    def __post_init__(self) -> None:
        self.source = self.source.resolve()
        project = tomllib.loads((self.source / "pyproject.toml").read_text())
        self.entry: str = project["project"]["scripts"]["looped"]
        self.shim = build_shim()
        self._server: subprocess.Popen[str] | None = None
        self._companion: Target | None = None

    def __enter__(self) -> "Target":
        return self

    def __exit__(self, *_: object) -> None:
        if self._companion is not None:
            self._companion.__exit__()
        self._stop()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def warm(self, commands: list[list[str]]) -> None:
        """Let a new warm process carry out these commands before its first try."""
        self._stop()
        self.warm_up = commands

    def _stop(self) -> None:
        """End the warm process: it ends with its input, which the block closes."""
        if self._server is not None:
            with self._server:
                self._server = None

    def companion(self) -> "Target":
        """Return a second target that runs commands at the same time as this one, and ends with it."""
        if self._companion is None:
            self._companion = Target(self.source, self.python, self.warm_up)
        return self._companion

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the program: the tree's own code, one thread, its caches kept between tries."""
        code = self.source / "src" if (self.source / "src").is_dir() else self.source
        cache = kept_folder() / "cache"
        paths = (str(code), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1", "LOOPED_CACHE": str(cache),
            "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200", "TERM": "dumb", "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip

    @functools.cached_property
    def commit(self) -> str:
        """Return the commit of the source tree, with + where files were changed."""
        if shutil.which("git") is None:
            return "unknown"
        git = ["git", "-C", str(self.source)]
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True).stdout.strip()
        return f"{head or 'unknown'}{'+' if changed else ''}"

    def fresh_folder(self, name: str = "try") -> Path:
        """Return a new empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))

    def run(
        self, arguments: list[str], folder: Path, *, fault: Fault | None = None, root: Path | None = None,
        trace: list[Operation] | None = None, seconds: float = 120, most_bytes: int = 4 * GIB, **request: Any
    ) -> Outcome:  # fmt: skip
        """Run a command in `folder`; with a fault, its operations under `root` (default: `folder`) are counted."""
        notes = self.fresh_folder("notes")
        request |= {
            "arguments": arguments, "folder": str(folder), "seconds": seconds, "bytes": most_bytes,
            "stdout": str(notes / "stdout"), "stderr": str(notes / "stderr"),
            "environment": request.get("environment", {}),
        }  # fmt: skip
        if trace is not None:
            fault = fault or Fault()
        if fault is not None:
            request["control"] = str(notes / "control")
            write_control(notes / "control", root or folder, fault, None if trace is None else notes / "trace")
        answer = self._ask(request)
        count, hit = read_control(notes / "control") if fault is not None else (0, False)
        if trace is not None:
            trace.extend(read_trace(notes / "trace"))
        stdout, stderr = (
            path.read_text(errors="replace") if path.exists() else "" for path in (notes / "stdout", notes / "stderr")
        )
        shutil.rmtree(notes)
        return Outcome(
            answer["code"], stdout, stderr, answer["cpu"], answer["elapsed"], answer["peak"], answer["timed_out"],
            answer["too_big"], count, hit, answer["left"],
        )  # fmt: skip

    def run_many(
        self, commands: list[list[str]], folder: Path, *, folders: list[str] | None = None, seconds: float = 20,
        most_bytes: int = 4 * GIB, **request: Any
    ) -> list[Outcome]:  # fmt: skip
        """Run independent commands, many in one process. A command that hangs or crashes affects no other.

        With `folders`, each command has one of its own inside `folder`.
        """
        outcomes: list[Outcome] = []
        while len(outcomes) < len(commands):
            rest = slice(len(outcomes), len(commands))
            request["many"], request["folders"] = commands[rest], (folders or ["."] * len(commands))[rest]
            limit = seconds + 0.2 * len(request["many"])
            whole = self.run([], folder, seconds=limit, most_bytes=most_bytes, **request)
            for line in whole.stdout.splitlines():
                said = json.loads(line)
                outcomes.append(whole._replace(**said, timed_out=False, too_big=False))
            if whole.code != 0:  # the next one ended the process, or did not end
                ended = "Fatal" in whole.stderr or whole.code < 0
                outcomes.append(whole._replace(stdout="", stderr=whole.stderr if ended else ""))
        return outcomes

    def run_cold(
        self, arguments: list[str], folder: Path, *, seconds: float = 120, environment: dict[str, str] | None = None
    ) -> Outcome:
        """Run a command in a process of its own, as a shell does."""
        module, _, function = self.entry.partition(":")
        start = f"import sys; from {module} import {function}; sys.exit({function}(sys.argv[1:]))"
        started = time.monotonic()
        try:
            done = subprocess.run(
                [self.python, "-c", start, *arguments], cwd=folder, env=self.environment | (environment or {}),
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome(-9, "", "", seconds, seconds, 0, timed_out=True, too_big=False)
        elapsed = time.monotonic() - started
        return Outcome(done.returncode, done.stdout, done.stderr, elapsed, elapsed, 0, timed_out=False, too_big=False)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        server = self._started()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            raise RuntimeError(f"the warm process ended: {server.wait()}")
        return json.loads(line)

    def _started(self) -> "subprocess.Popen[str]":
        if self._server is None:
            command = [self.python, "-m", "faults.server", self.entry, str(self.shim), json.dumps(self.warm_up)]
            environment = self.environment | {"LD_PRELOAD": str(self.shim)}
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=self.scratch
            )
            assert self._server.stdout is not None
            if not self._server.stdout.readline():
                raise RuntimeError("the program under test could not be started")
        return self._server

    @functools.cached_property
    def resting_bytes(self) -> int:
        """Return the memory of a command that does nothing: that of PyTorch and the other libraries."""
        return self.run(["--version"], self.scratch).peak

    @functools.cached_property
    def train_flags(self) -> dict[str, str]:
        """Return the flags of `looped train edit-distance` with what they take, such as {a,b} or INT."""
        return self.flags("train", "edit-distance")

    def flags(self, *verb: str, folder: Path | None = None) -> dict[str, str]:
        """Return the flags of a verb with what they take, read from its help."""
        text = self.run([*verb, "--help"], folder or self.scratch).stdout
        # A list of choices may be broken into lines inside the help's box.
        plain = re.sub(r"[ ]*│\n│[ ]*", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))
        joined = re.sub(r"(\{[^}\n]*), ([^}\n]*\})", r"\1,\2", plain)
        return dict(re.findall(r"(?<![\w`])(--[a-z][\w.-]*)[ =]?(\{[^}]*\}(?:\|\w+)?|\[[^\]]*\]+|[A-Z]+)?", joined))

    def flag(self, *names: str) -> str:
        """Return the flag of `looped train` that ends in one of these names, whatever its group."""
        for name in names:
            found = [flag for flag in self.train_flags if flag == f"--{name}" or flag.endswith(f".{name}")]
            if found:
                return min(found, key=len)
        raise LookupError(f"looped train has no flag {' or '.join(names)}")
