"""`looped theory verify|approximate|plot`."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from looped.cli.args import leading_name, parse, show
from looped.theory import CONSTRUCTIONS, verify
from looped.theory.plots import PLOTS, plot
from looped.theory.report import report
from looped.utils.errors import InputError


def theory(arguments: list[str]) -> None:
    """Run one of the theory verbs."""
    verbs = {"verify": VerifyCommand, "approximate": ApproximateCommand, "plot": PlotCommand}
    verb, rest = leading_name(arguments, "verb", verbs, "looped theory VERB --help")
    {"verify": _verify, "approximate": _approximate, "plot": _plot}[verb](rest)


@contextmanager
def _progress_line(every: float = 10.0) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step in one line of the terminal, on stderr.

    A step that takes long is shown again every few seconds with its time so far, in a pipe as well.
    """
    step, since, done = "starting", time.monotonic(), threading.Event()

    def put(text: str) -> None:
        line = f"\r{text:<60}\r" if sys.stderr.isatty() else f"{text}\n"
        print(line, end="", file=sys.stderr, flush=True)

    def show_step(text: str) -> None:
        nonlocal step, since
        step, since = text, time.monotonic()
        if sys.stderr.isatty():
            put(text)

    def remind() -> None:
        while not done.wait(every):
            put(f"{step}: {time.monotonic() - since:.0f} s so far")

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield show_step
    finally:
        done.set()
        reminder.join()
        show_step("")


@dataclass(frozen=True)
class VerifyCommand:
    """Check every lemma and theorem on exhaustive small cases, as printed and as corrected."""

    json: bool = False
    """print one JSON object"""


def _verify(arguments: list[str]) -> None:
    command = parse(VerifyCommand, arguments, "looped theory verify")
    rows = []
    with _progress_line() as show_step:
        for number, check in enumerate(verify.CHECKS, start=1):
            show_step(f"verifying: {number} of {len(verify.CHECKS)} groups")
            rows += check()
    wrong = [row for row in rows if not row.ok]
    text = f"{verify.table(rows)}\n{len(rows) - len(wrong)} of {len(rows)} statements hold as corrected"
    show({"rows": [asdict(row) for row in rows], "ok": not wrong}, text, as_json=command.json)
    if wrong:
        raise InputError(f"verify: expected every statement to hold, got {len(wrong)} failures: {wrong[0].statement}")


@dataclass(frozen=True)
class ApproximateCommand:
    """Build the network of the proof for a function and compare its error with the theorem."""

    function: str = "attn"
    """mean, prod, attn, max, wave, or file.py:name, which runs that file with all your rights"""
    dim: int = 1
    """entries of a token, d"""
    tokens: int = 2
    """tokens of a sequence, N"""
    cells: int = 4
    """cells along an axis, n = 1/delta"""
    variant: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(CONSTRUCTIONS) + "}")] = "paper"
    """construction to build"""
    representative: Literal["corner", "centre"] = "corner"
    """point of a cell whose value is stored"""
    bits: int = 8
    """bits per label in the stream variants, q"""
    p: float = 2.0
    """norm of the error (1 or more, inf allowed)"""
    lipschitz: float | None = None
    """Lipschitz constant of your own function, for a certified bound (None: unknown)"""
    epsilon: float | None = None
    """length of the intervals below the borders of cells where the output may be wrong (None: 2^-20/n)"""
    json: bool = False
    """print one JSON object"""


def _approximate(arguments: list[str]) -> None:
    command = parse(ApproximateCommand, arguments, "looped theory approximate")
    options = {name: value for name, value in vars(command).items() if name != "json"}
    with _progress_line() as show_step:
        result = report(**options, show_step=show_step)
    # JSON has no number for infinity.
    p = "inf" if math.isinf(command.p) else command.p
    show({**result.as_dict(), "p": p}, result.text(), as_json=command.json)
    if result.refuted:
        raise SystemExit(1)


@dataclass(frozen=True)
class PlotCommand:
    """Draw a picture of a construction."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="{" + ",".join(PLOTS) + "}")]
    """picture to draw"""
    out: Path | None = None
    """file to write, .png, .svg or .pdf (None: the name of the picture, .png)"""
    json: bool = False
    """print one JSON object"""


def _plot(arguments: list[str]) -> None:
    command = parse(PlotCommand, arguments, "looped theory plot")
    with _progress_line() as show_step:
        show_step(f"drawing: {command.name}")
        path = plot(command.name, command.out or Path(f"{command.name}.png"))
    show({"path": str(path)}, str(path), as_json=command.json)
