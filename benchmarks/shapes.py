"""Which engine is fastest for which shape? Time a training step over a grid of tokens, widths and batch sizes.

    python benchmarks/shapes.py [--out FILE]      about 90 s on an H200

The fused and the eager engine run at every shape of the grid. The compiled one takes seconds to compile for each shape,
and runs at a part of them.
"""

import argparse
import json
import sys
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch

from looped import benchmark
from looped.benchmark import Shape
from looped.utils.files import save_json

TOKENS, WIDTHS, BATCHES = (64, 128, 202, 256, 512), (128, 256, 512, 768), (8, 64, 512)
MOST_TOKENS = 2**17
"""tokens of a batch, so that the eager engine has enough memory"""
LOOPS, SECONDS = 6, 0.1
COMPILED = [Shape(tokens, dim, 64) for tokens in (64, 128, 202, 512) for dim in (128, 256, 768)]
COMPILED += [Shape(128, dim, batch) for dim in (256, 768) for batch in (8, 512)]


def grid() -> list[Shape]:
    """Return the shapes whose batches fit, the small ones first."""
    shapes = [Shape(*shape) for shape in product(TOKENS, WIDTHS, BATCHES)]
    fitting = [shape for shape in shapes if shape.seq_len * shape.batch <= MOST_TOKENS]
    return sorted(fitting, key=lambda shape: shape.seq_len * shape.batch * shape.dim)


def measure() -> list[dict[str, Any]]:
    rows = []
    for engines, shapes in ((("fused", "eager"), grid()), (("compiled",), COMPILED)):
        for row in benchmark.bench_shapes(shapes, engines, num_loops=LOOPS, seconds=SECONDS):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line per shape: the fused engine's time, and the others' as multiples of it."""
    times = {(Shape(row["seq_len"], row["dim"], row["batch"]), row["engine"]): row["ms"] for row in rows}
    lines = ["tokens  width  batch  fused ms  eager  compiled"]
    for shape in sorted({shape for shape, _ in times}):
        fused = times.get((shape, "fused"))
        others = [times.get((shape, engine)) for engine in ("eager", "compiled")]
        ratios = ["-" if other is None or fused is None else f"{other / fused:.2f}x" for other in others]
        sizes = f"{shape.seq_len:6} {shape.dim:6} {shape.batch:6}"
        lines.append(f"{sizes} {fused or float('nan'):9.2f} {ratios[0]:>6} {ratios[1]:>9}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the times")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("the map is for a GPU, and there is none")
    found = measure()
    if options.out:
        save_json(options.out, {"date": date.today().isoformat(), "machine": benchmark.machine(), "rows": found})
    print(table(found))
