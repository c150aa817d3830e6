"""`looped bench train|infer|scaling`."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal, NamedTuple

from looped.cli.args import leading_name, parse, require_writable, show
from looped.utils.errors import require
from looped.utils.types import Device, Engine

_VERBS = {
    "train": "Measure the speed of training steps with each engine.",
    "infer": "Measure the speed of answers with each engine.",
    "scaling": "Measure time and memory of a training step for growing loops, tokens and batch.",
}


@dataclass(frozen=True)
class BenchCommand:
    """Measure how fast this machine is, with every engine compared with plain PyTorch in the same run."""

    preset: str | None = None
    """reasoning, lm or laptop (None: reasoning on a GPU, laptop without)"""
    engines: tuple[Engine, ...] = ()
    """engines to measure (none given: all that the device supports)"""
    batches: tuple[int, ...] = ()
    """batch sizes to measure (none given: the preset's)"""
    precision: Literal["float32", "bfloat16", "float8"] | None = None
    """precision of the matmuls (None: the preset's)"""
    device: Device = "auto"
    """device to compute on"""
    json: bool = False
    """print one JSON object"""
    out: Path | None = None
    """also write the JSON object to this file"""


@dataclass(frozen=True)
class ScalingCommand:
    """Measure time and memory of a training step for growing loops, tokens and batch, and with rematerialisation."""

    preset: str | None = None
    """reasoning, lm or laptop (None: reasoning on a GPU, laptop without)"""
    varied: tuple[Literal["loops", "tokens", "batch", "remat"], ...] = ()
    """what to vary (none given: everything)"""
    engine: Engine | None = None
    """engine to measure (None: fused on a GPU, eager on a CPU)"""
    device: Device = "auto"
    """device to compute on"""
    json: bool = False
    """print one JSON object"""
    out: Path | None = None
    """also write the JSON object to this file"""


class Column(NamedTuple):
    """A column of the printed table, left out if no row has its key."""

    key: str
    heading: str
    width: int
    form: str = ""


_COLUMNS = (
    Column("preset", "preset", -10),
    Column("varied", "varied", -7),
    Column("precision", "precision", -9),
    Column("engine", "engine", -9),
    Column("num_loops", "loops", 6),
    Column("seq_len", "tokens", 7),
    Column("batch", "batch", 6),
    Column("remat", "remat", 6),
    Column("ms", "ms", 11, ",.3f"),
    Column("times_eager", "x eager", 8, ".2f"),
    Column("sequences_per_second", "sequences/s", 12, ",.1f"),
    Column("tflops", "TFLOP/s", 8, ".3g"),
    Column("share_of_matrix_rate", "of peak", 8, ".1%"),
    Column("peak_gib", "GiB", 7, ".2f"),
    Column("seconds_to_prepare", "start s", 8, ".1f"),
    Column("gradient_error", "grad error", 11, ".1e"),
)


def bench(arguments: list[str]) -> None:
    """Run one of the verbs."""
    verb, rest = leading_name(arguments, "verb", _VERBS, "looped bench VERB --help")
    {"train": _engines, "infer": _engines, "scaling": _scaling}[verb](verb, rest)


def _engines(verb: str, arguments: list[str]) -> None:
    command = parse(BenchCommand, arguments, f"looped bench {verb}")
    require_writable(command.out)
    least = min(command.batches, default=1)
    require(least >= 1, f"batches: expected positive numbers, got {least}")

    from looped import benchmark
    from looped.models.engines import choose_device

    on_gpu = choose_device(command.device).type == "cuda"
    engines = command.engines or (benchmark.ENGINES if on_gpu else ("eager", "compiled"))
    measure = benchmark.bench_train if verb == "train" else benchmark.bench_infer
    change = {} if command.precision is None else {"precision": command.precision}
    rows = measure(_preset(command), engines=engines, batches=command.batches, device=command.device, **change)
    _report(command, rows)


def _scaling(verb: str, arguments: list[str]) -> None:
    command = parse(ScalingCommand, arguments, f"looped bench {verb}")
    require_writable(command.out)

    from looped import benchmark

    varied = command.varied or benchmark.VARIED
    rows = benchmark.bench_scaling(_preset(command), varied=varied, device=command.device, engine=command.engine)
    _report(command, rows)


def _preset(command: BenchCommand | ScalingCommand) -> str:
    from looped import benchmark
    from looped.models.engines import choose_device

    name = command.preset or ("reasoning" if choose_device(command.device).type == "cuda" else "laptop")
    benchmark.preset(name)  # a wrong name is said before anything is measured
    return name


def _report(command: BenchCommand | ScalingCommand, rows: Iterable[dict[str, Any]]) -> None:
    """Show the rows as they come, and keep them as JSON where that is wanted."""
    from looped import benchmark
    from looped.utils.files import is_stream, save_json

    # With --json, standard output is for the object alone.
    screen = sys.stderr if command.json else sys.stdout
    machine = benchmark.machine(command.device)
    print(", ".join(f"{name} {value}" for name, value in machine.items()), file=screen, flush=True)
    made: list[dict[str, Any]] = []
    result = {"machine": machine, "date": date.today().isoformat(), "rows": made}
    plain: dict[int, float] = {}
    columns: list[Column] = []
    for row in rows:
        if row["engine"] == "eager":
            plain.setdefault(row["batch"], row["ms"])
        shown = {"times_eager": plain[row["batch"]] / row["ms"] if row["batch"] in plain else None, **row}
        if not columns:
            # What is scaled has no other engine beside it.
            columns = [each for each in _COLUMNS if each.key in (row if "varied" in row else shown)]
            print("".join(_cell(each.heading, each.width) for each in columns).rstrip(), file=screen)
        print("".join(_value(each, shown[each.key]) for each in columns).rstrip(), file=screen, flush=True)
        made.append(row)
        if command.out is not None and not is_stream(command.out):
            save_json(command.out, result)  # after every row: what was measured before a stop is kept
    if command.out is not None and is_stream(command.out):  # which gets everything once
        save_json(command.out, result)
    if command.json:
        show(result, "", as_json=True)


def _value(column: Column, value: Any) -> str:
    return _cell("-" if value is None else format(value, column.form), column.width)


def _cell(text: str, width: int) -> str:
    """Words to the left, numbers to the right, and always a space between two columns."""
    return f"{text:<{-width}} " if width < 0 else f"{text:>{width}} "
