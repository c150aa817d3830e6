"""Milliseconds per input of the exact engine, for the blocks of looped.theory (d = 1, N = 2), on one core.

    python benchmarks/theory.py [--cells 2 4 6 8 13] [--batches 1 64 1024] [--variants paper] [--inputs grid float64]
                                [--out FILE]

Inputs are random points of the grid Z/(16 n), and random float64 numbers; the best of three rounds, or of ten thousand
loops and more the only one.
"""

import argparse
import os
import platform
import time
from datetime import date
from fractions import Fraction
from itertools import product
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy looks

import numpy as np

from looped import theory
from looped.utils.files import save_json

ROUNDS = 3


def measure(variant: str, cells: int, batch: int, kind: str, bits: int) -> dict:
    """One row of the table."""
    net = theory.approximate(theory.load("attn", 1, 2), 1, 2, cells, variant, bits=bits)
    rng = np.random.default_rng(0)
    if kind == "float64":
        inputs = rng.random((batch, 1, 2))
    else:
        pick = np.vectorize(lambda k: Fraction(int(k), 16 * cells), otypes=[object])
        inputs = pick(rng.integers(0, 16 * cells, (batch, 1, 2)))
    best = float("inf")
    for _ in range(ROUNDS if net.size.loops < 10_000 else 1):
        start = time.perf_counter()
        net(inputs)
        best = min(best, time.perf_counter() - start)
    return {
        "variant": variant,
        "ids": net.construction.num_ids,
        "loops": net.size.loops,
        "batch": batch,
        "inputs": kind,
        "ms_per_input": round(1000 * best / batch, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[2, 4, 6, 8, 13])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--variants", nargs="+", default=["paper"])
    parser.add_argument("--bits", type=int, default=6)
    parser.add_argument("--inputs", nargs="+", choices=("grid", "float64"), default=["grid", "float64"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for chosen in product(arguments.variants, arguments.cells, arguments.batches, arguments.inputs):
        rows.append(measure(*chosen, arguments.bits))
        text = "{variant:18} K={ids:<7} loops={loops:<7} batch={batch:<5} {inputs:8} {ms_per_input} ms/input"
        print(text.format(**rows[-1]), flush=True)
    if arguments.out:
        about = {"date": date.today().isoformat(), "machine": platform.processor(), "python": platform.python_version()}
        save_json(arguments.out, about | {"numpy": np.__version__, "rows": rows})


if __name__ == "__main__":
    main()
