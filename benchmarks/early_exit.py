"""Does early exit save time? Metric, mean loops and seconds of exit rules, beside the fewest fixed loops as good.

    python benchmarks/early_exit.py [--device cuda] [--precision bfloat16] [--out FILE]

A fixed number of loops counts as good if its accuracy is at most 0.2 points below the rule's. Its time is measured
twice: with the loops of the exit, one by one, and with the engine that the device gives the model.
"""

import argparse
import json
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

import looped
from looped.inference import Run
from looped.inference.early_exit import ExitRule
from looped.inference.exit_evaluation import ExitScore, evaluate_exits
from looped.models.engines import choose_device, describe_device
from looped.training.evaluation import EVALUATION_SEED
from looped.utils.files import save_json

CASES = {
    "lcs/words-looped-r20": (20, ("entropy:0.1", "entropy:0.01")),
    "sudoku/looped-r32": (64, ("stable:3", "entropy:0.1")),
}
"""model -> most loops and exit rules"""
BATCHES = {1: 64, 512: 512}
"""batch size -> number of examples"""
MARGIN = 0.002


def measure_case(run: Run, most: int, rules: tuple[str, ...], batch: int, size: int) -> list[dict[str, Any]]:
    fixed = run.evaluate(loops=range(1, most + 1), size=size)

    def with_exit(rule: ExitRule, loops: int) -> ExitScore:
        for examples in (batch, size):  # the first pass warms up
            (row,) = evaluate_exits(run.model, run.task, [rule], loops, size=examples, batch=batch).rows
        return row

    rows = []
    for text in rules:
        early = with_exit(ExitRule.parse(text), most)
        accuracy = early.score.metrics["accuracy"]
        as_good = next(row.loops for row in fixed.rows if row.metrics["accuracy"] >= accuracy - MARGIN)
        plain = with_exit(ExitRule("budget", as_good), as_good)
        rows.append({
            "model": run.name, "batch": batch, "size": size, "rule": text, "most_loops": most, "accuracy": accuracy,
            "mean_loops": early.mean_loops, "seconds": early.seconds, "fixed_loops": as_good,
            "fixed_accuracy": plain.score.metrics["accuracy"], "fixed_seconds": plain.seconds,
            "fixed_engine_seconds": engine_seconds(run, as_good, batch, size),
        })  # fmt: skip
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


@torch.no_grad()
def engine_seconds(run: Run, loops: int, batch: int, size: int) -> float:
    """Return the time of a fixed number of loops with the engine of the model."""
    inputs = torch.from_numpy(run.task.sample(EVALUATION_SEED, "test", range(size)).inputs).to(run.model.stack.device)
    parts = inputs.split(batch)
    for part in (*parts[:1] * 3, None, *parts):  # the first passes warm up and may capture a graph
        if part is None:
            began = time.perf_counter()
        else:
            run.model(part, loops).cpu()  # waits for the device
    return time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batches", type=int, nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    rows = [
        row
        for name in options.models
        for run in [looped.load(name, device).with_precision(options.precision)]
        for batch in options.batches
        for row in measure_case(run, *CASES[name], batch, BATCHES[batch])
    ]
    report = {"date": date.today().isoformat(), "device": describe_device(device), "torch": torch.__version__,
              "precision": options.precision, "rows": rows}  # fmt: skip
    if options.out is not None:
        save_json(options.out, report)
    print(json.dumps(report))
