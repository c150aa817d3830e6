"""Does early exit save time? Metric, mean loops and seconds of exit rules, beside the fewest fixed loops as good.

    python benchmarks/early_exit.py [--out FILE]      measure the shipped models on the device at hand

A fixed number of loops counts as good if its accuracy is at most 0.2 points below the rule's.
"""

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

import looped
from looped.inference.early_exit import ExitRule
from looped.inference.exit_evaluation import evaluate_exits
from looped.models.engines import choose_device, describe_device
from looped.utils.files import save_json

CASES = {
    "lcs/words-looped-r20": (20, ("entropy:0.1", "entropy:0.01")),
    "sudoku/looped-r32": (64, ("stable:3", "entropy:0.1")),
}
"""model -> most loops and exit rules"""
BATCHES = {1: 64, 512: 512}
"""batch size -> number of examples"""
MARGIN = 0.002


def measure_case(name: str, most: int, rules: tuple[str, ...], batch: int, size: int) -> list[dict[str, Any]]:
    run = looped.load(name, choose_device("auto")).with_precision("float32")
    fixed = run.evaluate(loops=range(1, most + 1), size=size)
    rows = []
    for text in rules:
        (early,) = evaluate_exits(run.model, run.task, [ExitRule.parse(text)], most, size=size, batch=batch).rows
        accuracy = early.score.metrics["accuracy"]
        as_good = next(row.loops for row in fixed.rows if row.metrics["accuracy"] >= accuracy - MARGIN)
        budget = ExitRule("budget", as_good)
        (plain,) = evaluate_exits(run.model, run.task, [budget], as_good, size=size, batch=batch).rows
        rows.append({
            "model": name, "batch": batch, "size": size, "rule": text, "most_loops": most, "accuracy": accuracy,
            "mean_loops": early.mean_loops, "seconds": early.seconds, "fixed_loops": as_good,
            "fixed_accuracy": plain.score.metrics["accuracy"], "fixed_seconds": plain.seconds,
        })  # fmt: skip
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    rows = [
        row
        for name, (most, rules) in CASES.items()
        for batch, size in BATCHES.items()
        for row in measure_case(name, most, rules, batch, size)
    ]
    report = {"date": date.today().isoformat(), "device": describe_device(choose_device("auto")),
              "torch": torch.__version__, "rows": rows}  # fmt: skip
    if out is not None:
        save_json(out, report)
    print(json.dumps(report))
