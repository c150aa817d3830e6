"""`looped theory verify|approximate|plot`."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tyro

from looped.cli.args import leading_name, parse, show
from looped.utils.errors import InputError

_VERBS = ("verify", "approximate", "plot")


def theory(arguments: list[str]) -> None:
    """Carry out one of the verbs."""
    verb, rest = leading_name(arguments, "verb", _VERBS, "looped theory VERB --help")
    {"verify": _verify, "approximate": _approximate, "plot": _plot}[verb](rest)


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Tells what is being done, in one line of a terminal where each takes the place of the last; nothing in a pipe."""

    def tell(doing: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{doing:<40}\r", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        tell("")


@dataclass(frozen=True)
class VerifyCommand:
    """Every lemma and theorem on exhaustive small cases, as printed beside as corrected."""

    json: bool = False
    """print one JSON object"""


def _verify(arguments: list[str]) -> None:
    command = parse(VerifyCommand, arguments, "looped theory verify")

    from looped.theory.verify import CHECKS, table

    rows = []
    with _telling() as tell:
        for number, check in enumerate(CHECKS, start=1):
            tell(f"verifying: {number} of {len(CHECKS)} groups")
            rows += check()
    wrong = [row for row in rows if not row.ok]
    text = f"{table(rows)}\n{len(rows) - len(wrong)} of {len(rows)} statements hold as corrected"
    show({"rows": [asdict(row) for row in rows], "ok": not wrong}, text, as_json=command.json)
    if wrong:
        raise InputError(f"{len(wrong)} statements do not hold, the first: {wrong[0].statement}")


@dataclass(frozen=True)
class ApproximateCommand:
    """Build the proof's network for a function and hold its error against the theorem."""

    function: str = "attn"
    """mean, prod, attn, max, wave, or file.py:name, which runs that file with all your rights"""
    dim: int = 1
    """entries of a token, d"""
    tokens: int = 2
    """tokens of a sequence, N"""
    cells: int = 4
    """cells along an axis, n = 1/delta"""
    variant: Literal[
        "paper", "lean", "lean-stream", "lean-horner", "lean-multiset", "modulated", "modulated-minimal",
        "modulated-sqrt",
    ] = "paper"  # fmt: skip
    """which construction"""
    representative: Literal["corner", "centre"] = "corner"
    """the point of a cell whose value is stored"""
    bits: int = 8
    """digits of a label in the stream variants, q"""
    p: float = 2.0
    """the norm that errors are measured in"""
    lipschitz: float | None = None
    """Lipschitz constant of a function of your own, for a bound that is certified (None: unknown)"""
    json: bool = False
    """print one JSON object"""


def _approximate(arguments: list[str]) -> None:
    command = parse(ApproximateCommand, arguments, "looped theory approximate")

    from looped.theory.report import report

    with _telling() as tell:
        made = report(
            command.function, command.dim, command.tokens, command.cells, command.variant, command.representative,
            command.bits, command.p, command.lipschitz, tell,
        )  # fmt: skip
    # JSON has no number for infinity.
    p = "inf" if math.isinf(command.p) else command.p
    show({**made.as_dict(), "p": p}, made.text(), as_json=command.json)
    if made.refuted:
        raise SystemExit(1)


@dataclass(frozen=True)
class PlotCommand:
    """Draw a picture of a construction."""

    name: tyro.conf.Positional[Literal["staircase", "ids", "labels", "error", "trace"]]
    """which picture"""
    out: Path | None = None
    """file to write, .png, .svg or .pdf (None: the picture's name, .png)"""
    json: bool = False
    """print one JSON object"""


def _plot(arguments: list[str]) -> None:
    command = parse(PlotCommand, arguments, "looped theory plot")

    from looped.theory.plots import plot

    with _telling() as tell:
        tell(f"drawing: {command.name}")
        path = plot(command.name, command.out or Path(f"{command.name}.png"))
    show({"path": str(path)}, str(path), as_json=command.json)
