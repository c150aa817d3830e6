"""Which engine is fastest for which shape? Time a training step over a grid of tokens, widths and batch sizes.

    python benchmarks/shapes.py [--out FILE] [--minutes M]   time the shapes, as many as fit into the minutes
    python benchmarks/shapes.py --warm-up JOBS               compile for all of them beforehand, in several processes
    python benchmarks/shapes.py --table FILE                 print the table of an earlier run

The compiled engine takes seconds to compile for a shape and runs at a part of them, which come first. The file is
written after every row. With `--skip FILE`, what an earlier run measured is left out.
"""

import argparse
import json
import sys
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from looped import benchmark
from looped.benchmark import Shape
from looped.utils.files import save_json
from looped.utils.types import Engine

TOKENS, WIDTHS, BATCHES = (64, 128, 202, 512), (128, 256, 512, 768), (8, 64, 512)
MOST_TOKENS = 2**16
"""tokens of a batch, so that the eager engine has enough memory"""
LOOPS, SECONDS = 6, 0.1
COMPILED = [Shape(tokens, dim, 64) for tokens in TOKENS for dim in (128, 256, 768)]
COMPILED += [Shape(128, dim, batch) for dim in (128, 256, 768) for batch in (8, 512)]
Work = tuple[Shape, tuple[Engine, ...]]


def work(skipped: Collection[tuple[Shape, str]]) -> list[Work]:
    """Return shapes and engines in the order of the measurement, without those that are skipped."""
    shapes = [Shape(*shape) for shape in product(TOKENS, WIDTHS, BATCHES)]
    fitting = [shape for shape in shapes if shape.seq_len * shape.batch <= MOST_TOKENS]
    rest = [shape for shape in fitting if shape not in COMPILED]
    both: list[Work] = [(shape, ("fused", "compiled")) for shape in COMPILED]
    wanted = [*both, *((shape, ("fused", "eager")) for shape in rest), *((shape, ("eager",)) for shape in COMPILED)]
    return [(shape, tuple(each for each in engines if (shape, each) not in skipped)) for shape, engines in wanted]


def rows_of(shape: Shape, engines: tuple[Engine, ...], seconds: float) -> list[dict[str, Any]]:
    """Return the rows of one shape, `seconds` of training each."""
    return list(benchmark.bench_shapes([shape], engines, num_loops=LOOPS, seconds=seconds))


def measure(works: list[Work], minutes: float) -> Iterator[dict[str, Any]]:
    """Yield rows until the time is over."""
    started = time.monotonic()
    for shape, engines in works:
        for engine in engines:
            if time.monotonic() - started > 60 * minutes:
                return
            yield from rows_of(shape, (engine,), SECONDS)


def warm_up(works: list[Work], jobs: int) -> None:
    """Take a few steps of every shape, so that the compilers' caches know them. The eager engine compiles nothing."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for shape, engines in works:
            pool.submit(rows_of, shape, tuple(each for each in engines if each != "eager"), 0.0)


def times_of(rows: list[dict[str, Any]]) -> dict[tuple[Shape, str], float | None]:
    """Return the milliseconds of each shape and engine."""
    return {(Shape(row["seq_len"], row["dim"], row["batch"]), row["engine"]): row["ms"] for row in rows}


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line per shape: the fused engine's time, and the others' as multiples of it."""
    times = times_of(rows)
    lines = ["| tokens | width | batch | fused, ms | eager | compiled |", "|---|---|---|---|---|---|"]
    for shape in sorted({shape for shape, _ in times}):
        fused = times.get((shape, "fused"))
        others = [times.get((shape, engine)) for engine in ("eager", "compiled")]
        ratios = ["" if other is None or fused is None else f"{other / fused:.2f}x" for other in others]
        own = "" if fused is None else f"{fused:.2f}"
        lines.append(f"| {' | '.join([*map(str, shape), own, *ratios])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the times")
    parser.add_argument("--minutes", type=float, default=5.0, help="time after which no further shape is begun")
    parser.add_argument("--skip", type=Path, metavar="FILE", help="leave out what an earlier run measured")
    parser.add_argument("--warm-up", type=int, metavar="JOBS", help="compile only, in this many processes")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of an earlier run")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())["rows"]))
        sys.exit()
    if not torch.cuda.is_available():
        sys.exit("the map is for a GPU, and there is none")
    works = work(times_of(json.loads(options.skip.read_text())["rows"]) if options.skip else ())
    if options.warm_up:
        warm_up(works, options.warm_up)
        sys.exit()
    found: list[dict[str, Any]] = []
    result = {"date": date.today().isoformat(), "machine": benchmark.machine(), "rows": found}
    for row in measure(works, options.minutes):
        found.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        if options.out:
            save_json(options.out, result)
    print(table(found))
