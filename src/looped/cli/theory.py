"""`looped theory verify|approximate|moduli|memorize|bounds|plot`."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
import tyro

from looped.cli.args import leading_name, parse, show
from looped.theory import CONSTRUCTIONS, MEMORIZERS, bits_needed, load, loops_for_error, memorize, moduli, verify
from looped.theory.bounds import memorizer_bounds
from looped.theory.lemmas.memorizers_by_name import STREAMS
from looped.theory.plots import PLOTS, plot
from looped.theory.report import report
from looped.theory.targets import ModulusName, as_target
from looped.utils.errors import InputError, require_counts

VARIANT = "{" + ",".join(CONSTRUCTIONS) + "}"


def theory(arguments: list[str]) -> None:
    """Run one of the theory verbs."""
    verbs = {
        "verify": (VerifyCommand, _verify),
        "approximate": (ApproximateCommand, _approximate),
        "moduli": (ModuliCommand, _moduli),
        "memorize": (MemorizeCommand, _memorize),
        "bounds": (BoundsCommand, _bounds),
        "plot": (PlotCommand, _plot),
    }
    commands = {verb: command for verb, (command, _) in verbs.items()}
    verb, rest = leading_name(arguments, "verb", commands, "looped theory VERB --help")
    verbs[verb][1](rest)


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
class FunctionFlags:
    """The flags of every command about a function of sequences."""

    function: str = "attn"
    """mean, prod, attn, max, wave, or file.py:name, which runs that file with all your rights"""
    dim: int = 1
    """entries of a token, d"""
    tokens: int = 2
    """tokens of a sequence, N"""


@dataclass(frozen=True)
class ApproximateCommand(FunctionFlags):
    """Build the network of the proof for a function and compare its error with the theorem."""

    cells: int = 4
    """cells along an axis, n = 1/delta"""
    variant: Annotated[str, tyro.conf.arg(metavar=VARIANT)] = "paper"
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
    if result.is_steeper:
        raise InputError(f"lipschitz: expected a Lipschitz constant of {command.function}, got {command.lipschitz}")
    if result.refuted:
        raise SystemExit(1)


@dataclass(frozen=True)
class PlotCommand:
    """Draw a picture of a construction. An option that a picture does not take is refused.

    - function: f beside the output of its network
    - staircase: Step 1, as corrected and as printed
    - attention: Step 2, the keys and what every round fetches
    - ids: the contextual ids of two tokens
    - labels: Step 3, what is stored
    - trace: all rows over the loops
    - error: error against loops, with the proved slopes
    - loops: loops to store labels, with lower bounds
    """

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="{" + ",".join(PLOTS) + "}")]
    """picture to draw"""
    function: str | None = None
    """mean, prod, attn, max, wave, or file.py:name (None: the picture's own)"""
    cells: int | None = None
    """cells along an axis, n (None: the picture's own)"""
    variant: Annotated[str | None, tyro.conf.arg(metavar=VARIANT)] = None
    """construction to draw (None: the picture's own)"""
    tokens: int | None = None
    """tokens of a sequence, N (None: the picture's own)"""
    input: tuple[float, ...] | None = None
    """the tokens, numbers in [0, 1) (None: centres of different cells)"""
    out: Path | None = None
    """file to write, .png, .svg or .pdf (None: the name of the picture, .png)"""
    json: bool = False
    """print one JSON object"""


def _plot(arguments: list[str]) -> None:
    command = parse(PlotCommand, arguments, "looped theory plot")
    chosen = {name: value for name, value in vars(command).items() if name not in ("name", "out", "json")}
    options = {name: value for name, value in chosen.items() if value is not None}
    with _progress_line() as show_step:
        show_step(f"drawing: {command.name}")
        path = plot(command.name, command.out or Path(f"{command.name}.png"), **options)
    show({"path": str(path)}, str(path), as_json=command.json)


@dataclass(frozen=True)
class ModuliCommand(FunctionFlags):
    """Estimate the three moduli of continuity of a function, each with the pair of inputs that proves it."""

    delta: float = 0.25
    """largest distance of two inputs"""
    p: float = 2.0
    """norm of the values (1 or more, inf allowed)"""
    lipschitz: float | None = None
    """Lipschitz constant of your own function, for upper bounds (None: unknown)"""
    json: bool = False
    """print one JSON object"""


def _moduli(arguments: list[str]) -> None:
    command = parse(ModuliCommand, arguments, "looped theory moduli")
    target = load(command.function, command.dim, command.tokens)
    found = moduli(target, command.dim, command.tokens, command.delta, command.p, command.lipschitz)
    rows = [(name, getattr(found, name)) for name in get_args(ModulusName)]
    shown = {
        name: {"lower": each.lower, "upper": each.upper, "witness": [x.tolist() for x in each.witness]}
        for name, each in rows
    }
    lines = [f"moduli of {command.function}, d = {command.dim}, N = {command.tokens}, delta = {command.delta:g}"]
    for name, each in rows:
        upper = "unknown" if each.upper is None else f"{each.upper:.4g}"
        x, y = (np.round(point, 4).tolist() for point in each.witness)
        lines.append(
            f"  {name:<9} at least {each.lower:.4g}, at most {upper}: f differs by the first at X = {x}, Y = {y}"
        )
    lines.append("sequence: X and Y differ anywhere. context: the value of a token that stays. token: only it moves.")
    show({"delta": command.delta, **shown}, "\n".join(lines), as_json=command.json)


PROMISES = {  # the largest error of a memorizer; the others are exact
    "bits": "half the largest difference of neighbours",
    **dict.fromkeys(STREAMS, "the range of the labels / 2^bits"),
}


@dataclass(frozen=True)
class MemorizeCommand:
    """Store a list of numbers in a looped layer and read it back in exact arithmetic."""

    labels: tyro.conf.Positional[tuple[float, ...]]
    """the numbers to store, at least two"""
    variant: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(MEMORIZERS) + "}")] = "bits"
    """memorizer: weight-tied are bits, stream and horner; eta(t) holds the labels of the others"""
    bits: int = 8
    """bits per label of stream, horner and sqrt, q"""
    json: bool = False
    """print one JSON object"""


def _memorize(arguments: list[str]) -> None:
    command = parse(MemorizeCommand, arguments, "looped theory memorize")
    memory = memorize(command.labels, command.variant, command.bits)
    pairs = [(label, value[0]) for label, value in zip(command.labels, memory.table(), strict=True)]
    error = max(abs(value - Fraction(label)) for label, value in pairs)
    size = memory.size
    lines = [
        f"{command.variant}: {size.dims} rows, width {size.width}, {size.loops} loops, {size.parameters} numbers, the "
        f"longest with {size.max_bits} bits",
        *(f"  {k}: {label:.6g} stored, {float(value):.6g} returned" for k, (label, value) in enumerate(pairs)),
        f"largest error {float(error):.4g}" + (f" (at most {PROMISES[command.variant]})" if error else ": exact"),
    ]
    result = {"size": asdict(size), "values": [float(value) for _, value in pairs], "error": float(error)}
    show(result, "\n".join(lines), as_json=command.json)


@dataclass(frozen=True)
class BoundsCommand(FunctionFlags):
    """Compare the loops that each construction needs for an error, and the loops and bits that nobody can save."""

    error: float = 0.5
    """error on the good set that the bound must reach"""
    p: float = 2.0
    """norm of the error (1 or more, inf allowed)"""
    lipschitz: float | None = None
    """Lipschitz constant of your own function (None: unknown)"""
    labels: int = 10_000
    """labels to store, K, for the lower bounds"""
    bits: int = 8
    """bits per label, q, for the lower bounds"""
    json: bool = False
    """print one JSON object"""


def _bounds(arguments: list[str]) -> None:
    command = parse(BoundsCommand, arguments, "looped theory bounds")
    target = as_target(load(command.function, command.dim, command.tokens), command.lipschitz)
    if target.lipschitz is None:
        raise InputError(f"lipschitz: expected a constant of {command.function}, got none. Name one with --lipschitz.")
    require_counts(labels=command.labels, bits=command.bits)

    def omega(which: ModulusName, delta: float) -> float:
        return target.upper(which, delta, command.p, command.dim, command.tokens) or 0.0

    sizes = (command.dim, command.tokens)
    # No two values of an entry differ by more than f can change along the diagonal of the cube.
    span = min(target.high - target.low, target.lipschitz.sequence * math.sqrt(command.dim * command.tokens))
    best = {name: loops_for_error(command.error, name, *sizes, omega, command.p, span) for name in CONSTRUCTIONS}
    lower = memorizer_bounds(command.labels, command.bits)
    lines = [f"an error of {command.error:g} for {command.function}, d = {command.dim}, N = {command.tokens}:"]
    for name, each in best.items():
        stored = f", {each.num_bits} bits per label" if each.streams else ""
        lines.append(f"  {name:<24}{each.loops:>16,} loops  (n = {each.grid.cells}{stored})")
    lines.append(f"to store {command.labels:,} labels of {command.bits} bits in a looped layer of the given size:")
    for name, each in lower.items():
        lines.append(f"  {name:<24}{each.loops:>16,} loops  (every layer of its size needs at least {each.needed:,})")
    total = bits_needed(command.labels, command.bits, 1)
    lines.append(f"  all free numbers together need at least {total:,} bits")
    upper = {name: {"loops": b.loops, "cells": b.grid.cells, "bits": b.num_bits} for name, b in best.items()}
    result = {"error": upper, "labels": {name: asdict(each) for name, each in lower.items()}, "bits": total}
    show(result, "\n".join(lines), as_json=command.json)
