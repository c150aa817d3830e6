"""Does early exit save time? Metric, mean loops and seconds of exit rules, beside the fewest fixed loops as good.

    python benchmarks/early_exit.py [--device cuda] [--precision bfloat16] [--minutes M] [--out FILE]

A fixed number of loops counts as good if its accuracy is at most 0.2 points below the rule's, or its perplexity at most
0.2 % above. The two are timed in turn, so that other work on the machine slows both alike, and the medians count.
A language model reads the first 64 tokens of windows one by one with its cache, as it does when it writes. On a GPU the
engine computes the loops of puzzles and strings in blocks, and fixed loops are timed once more, all at once. The file
is written after every rule.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import looped
from looped.inference import Run
from looped.inference.cache import Decoder
from looped.inference.early_exit import ExitRule
from looped.inference.exit_evaluation import evaluate_exits
from looped.models.engines import choose_device, describe_device
from looped.training.evaluation import EVALUATION_SEED
from looped.utils.files import save_json

CASES = {
    "lcs/words-looped-r20": (20, ("entropy:0.1", "entropy:0.01")),
    "sudoku/looped-r32": (64, ("stable:3", "entropy:0.1")),
    "language/looped-r24": (12, ("stable:3", "change:0.2")),
}
"""model -> most loops and exit rules"""
BATCHES = {1: 64, 512: 512}
"""batch size -> number of examples"""
TEXTS = {1: 32, 512: 512}
"""the same for texts"""
NUM_TOKENS = 64
"""tokens of a text"""
MARGIN = 0.002


@dataclass(frozen=True)
class Pass:
    """One pass over all examples."""

    metric: float
    mean_loops: float
    seconds: float


class Examples:
    """Puzzles or strings: those that are done leave the batch."""

    def __init__(self, run: Run, batch: int, size: int) -> None:
        self.run, self.batch, self.size = run, batch, size

    def with_exit(self, rule: ExitRule, most: int, size: int | None = None) -> Pass:
        run, size = self.run, size or self.size
        (row,) = evaluate_exits(run.model, run.task, [rule], most, size=size, batch=self.batch).rows
        return Pass(row.score.metrics[run.task.metric], row.mean_loops, row.seconds)

    def fixed(self, loops: int, size: int | None = None) -> Pass:
        return self.with_exit(ExitRule("budget", loops), loops, size)

    def metrics(self, most: int) -> list[float]:
        """Return the metric after 1, 2, ... `most` loops."""
        return [row.metrics[self.run.task.metric] for row in self.run.evaluate(range(1, most + 1), self.size).rows]

    def engine_seconds(self, loops: int) -> float:
        """Return the time of a fixed number of loops that the engine of the model computes at once."""
        inputs = self.run.task.sample(EVALUATION_SEED, "test", range(self.size)).inputs
        parts = torch.from_numpy(inputs).to(self.run.model.stack.device).split(self.batch)
        with torch.no_grad():
            for part in (*parts[:1] * 3, None, *parts):  # the first passes warm up and may capture a graph
                if part is None:
                    began = time.perf_counter()
                else:
                    self.run.model(part, loops).cpu()  # waits for the device
        return time.perf_counter() - began


class Texts:
    """Texts, read token by token: each token stops at its own loop, and a batch waits for its last one."""

    def __init__(self, run: Run, batch: int, size: int) -> None:
        windows = run.task.sample(EVALUATION_SEED, "test", range(size))
        self.model, self.batch = run.model, batch
        self.decoders: dict[tuple[int, int], Decoder] = {}  # each may capture a CUDA graph
        self.tokens, self.targets = (
            torch.from_numpy(each[:, :NUM_TOKENS]).to(run.model.stack.device)
            for each in (windows.inputs, windows.targets)
        )

    def with_exit(self, rule: ExitRule, most: int) -> Pass:
        return self._read(most, None, lambda decoder, column: decoder.read_until(column, rule))

    def fixed(self, loops: int, size: int | None = None) -> Pass:
        return self._read(loops, size, lambda decoder, column: (decoder.read(column), [loops] * len(column)))

    def metrics(self, most: int) -> list[float]:
        """Return the perplexity after 1, 2, ... `most` loops."""
        sums = [0.0] * most
        with torch.no_grad():
            for tokens, targets in zip(self.tokens.split(16), self.targets.split(16), strict=True):
                for t, state in enumerate(self.model.iterate(tokens, most)):
                    sums[t] += _loss(self.model.read_out(state), targets)
        return [math.exp(each / self.tokens.numel()) for each in sums]

    def _read(self, loops: int, size: int | None, read: Callable[[Decoder, Tensor], tuple[Tensor, list[int]]]) -> Pass:
        loss, num_loops, seconds = 0.0, 0, 0.0
        tokens, targets = self.tokens[:size], self.targets[:size]
        for part, following in zip(tokens.split(self.batch), targets.split(self.batch), strict=True):
            decoder = self._decoder(loops, len(part))
            for column, target in zip(part.split(1, dim=1), following.split(1, dim=1), strict=True):
                began = time.perf_counter()
                scores, taken = read(decoder, column)
                if scores.device.type == "cuda":
                    torch.cuda.synchronize()
                seconds += time.perf_counter() - began
                loss, num_loops = loss + _loss(scores, target), num_loops + sum(taken)
        return Pass(math.exp(loss / tokens.numel()), num_loops / tokens.numel(), seconds)

    def _decoder(self, loops: int, batch: int) -> Decoder:
        if (loops, batch) not in self.decoders:
            padding = torch.zeros(batch, dtype=torch.long)
            self.decoders[loops, batch] = Decoder(self.model, NUM_TOKENS, padding, loops)
        decoder = self.decoders[loops, batch]
        decoder.length = 0
        return decoder


def _loss(scores: Tensor, targets: Tensor) -> float:
    return float(F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten().long(), reduction="sum"))


def measure_case(
    run: Run, most: int, rules: tuple[str, ...], batch: int, size: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield one row for each rule."""
    name, device = run.task.metric, run.model.stack.device
    examples = Texts(run, batch, size) if name == "perplexity" else Examples(run, batch, size)
    metrics = examples.metrics(most)
    warm_up = 1 if device.type == "cpu" else batch  # a GPU may compile for a shape
    for text in rules:
        rule = ExitRule.parse(text)
        wanted = examples.with_exit(rule, most).metric  # this pass warms up
        good = (loops for loops, each in enumerate(metrics, 1) if is_as_good(name, each, wanted))
        found = next(good, None)
        as_good = found or most
        examples.fixed(as_good, warm_up)
        pairs = [(examples.with_exit(rule, most), examples.fixed(as_good)) for _ in range(rounds)]
        early, plain = zip(*pairs, strict=True)
        row = {
            "model": run.name, "batch": batch, "size": size, "rule": text, "most_loops": most, name: wanted,
            "mean_loops": early[0].mean_loops, "seconds": statistics.median(each.seconds for each in early),
            "fixed_loops": as_good, "fixed_is_as_good": found is not None, f"fixed_{name}": plain[0].metric,
            "fixed_seconds": statistics.median(each.seconds for each in plain), "rounds": rounds,
        }  # fmt: skip
        if device.type != "cpu" and isinstance(examples, Examples):  # a CPU computes the loops one by one anyway
            row["fixed_engine_seconds"] = examples.engine_seconds(as_good)
        yield row


def is_as_good(metric: str, value: float, wanted: float) -> bool:
    """Return whether a metric is at most the margin worse than the wanted one."""
    return value <= wanted * (1 + MARGIN) if metric == "perplexity" else value >= wanted - MARGIN


def measure(
    device: torch.device, precision: Any, models: list[str], batches: list[int], rounds: int, minutes: float
) -> Iterator[dict[str, Any]]:
    """Yield the rows of all cases until the time is over."""
    started = time.monotonic()
    for name in models:
        run = looped.load(name, device).with_precision(precision)
        for batch in batches:
            size = TEXTS[batch] if run.task.metric == "perplexity" else BATCHES[batch]
            for row in measure_case(run, *CASES[name], batch, size, rounds):
                yield row
                if time.monotonic() - started > 60 * minutes:
                    return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batches", type=int, nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3, help="times that a rule and the fixed loops are timed in turn")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time after which no further rule is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    rows: list[dict[str, Any]] = []
    report = {"date": date.today().isoformat(), "device": describe_device(device), "torch": str(torch.__version__),
              "precision": options.precision, "rows": rows}  # fmt: skip
    chosen = options.models, options.batches, options.rounds, options.minutes
    for row in measure(device, options.precision, *chosen):
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        if options.out is not None:
            save_json(options.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
