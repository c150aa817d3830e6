"""What a CPU gains from threads, compilation and bfloat16: training steps of the laptop preset, as ratios in one run.

    python benchmarks/cpu.py [--threads 1 2] [--rounds 3] [--seconds 0.5] [--out benchmarks/results/cpu.json]

All combinations are measured in turn, round after round, and the best round of each counts: other work on a machine
only ever makes a round slower. A ratio is that of two such times, and above 1 where the change pays.
"""

import argparse
import platform
from dataclasses import dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch

from looped import benchmark
from looped.utils.files import save_json

PRESET = "laptop"
ENGINES = ("eager", "compiled")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Case:
    threads: int
    engine: str
    precision: str

    def __str__(self) -> str:
        return f"{self.threads} thread{'s' * (self.threads > 1)}, {self.engine}, {self.precision}"


def measured(case: Case) -> dict[str, Any]:
    """One row of `looped bench train`."""
    torch.set_num_threads(case.threads)
    (row,) = benchmark.bench_train(PRESET, engines=[case.engine], device="cpu", precision=case.precision)  # pyright: ignore
    assert row["engine"] == case.engine
    return row


def ratios(best: dict[Case, dict[str, Any]]) -> list[dict[str, Any]]:
    """Every case beside the one that differs from it by one change alone."""
    found = []
    for case, row in best.items():
        least = min(each.threads for each in best)
        starts = {
            f"{case.threads} threads over {least}": replace(case, threads=least),
            "compiled over eager": replace(case, engine="eager"),
            "bfloat16 over float32": replace(case, precision="float32"),
        }
        found += [
            {"change": change, "case": str(case), "ratio": round(best[start]["ms"] / row["ms"], 3)}
            for change, start in starts.items()
            if start != case
        ]
    return sorted(found, key=lambda each: each["change"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    benchmark.SECONDS = options.seconds

    cases = [Case(*each) for each in product(options.threads, ENGINES, PRECISIONS)]
    best: dict[Case, dict[str, Any]] = {}
    for _, case in product(range(options.rounds), cases):
        row = measured(case)
        if case not in best or row["ms"] < best[case]["ms"]:
            best[case] = row

    print(f"{'':32}{'ms a step':>11}{'sequences/s':>13}{'gradient error':>16}")
    for case, row in best.items():
        print(f"{case!s:32}{row['ms']:11.2f}{row['sequences_per_second']:13,.0f}{row['gradient_error']:16.1e}")
    compared = ratios(best)
    print(f"\n{'':26}{'':32}{'times as fast':>15}")
    for each in compared:
        print(f"{each['change']:26}{each['case']:32}{each['ratio']:15.2f}")
    if options.out:
        about = {"date": str(date.today()), "cpu": platform.processor() or platform.machine(),
                 "python": platform.python_version(), "torch": torch.__version__, "preset": PRESET,
                 "rounds": options.rounds, "seconds": options.seconds}  # fmt: skip
        rows = [{**vars(case), **row} for case, row in best.items()]
        save_json(options.out, {"about": about, "rows": rows, "ratios": compared})


if __name__ == "__main__":
    main()
