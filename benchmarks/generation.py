"""How fast does a language model write? With the cache of every (loop, layer), without it, and by a CUDA graph.

    python benchmarks/generation.py [--device cuda] [--tokens 512] [--loops 24] [--minutes M] [--out FILE]

The file is written after every speed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

import looped
from looped.inference.cache import Decoder
from looped.inference.early_exit import ExitRule
from looped.models import LoopModel
from looped.models.engines import choose_device, describe_device, set_engine
from looped.utils.files import save_json

EXIT, MOST_LOOPS, FIXED_LOOPS = ExitRule("stable", 3), 12, 6
"""a rule, and the fewest loops that are not worse: perplexity 25.9 and 25.1 (docs/generate.md)"""
MODELS = ("language/looped-r24", "language/modulated-r24")
WARM_UP = 8
"""number of tokens"""
Write = Callable[[int], None]
"""writes so many tokens"""


def tokens_per_second(write: Write, num_tokens: int, device: torch.device) -> float:
    """Return the speed of writing after a few tokens, which may compile or capture."""
    seconds = 0.0
    for length in (WARM_UP, num_tokens):
        began = time.perf_counter()
        write(length)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return num_tokens / seconds


def with_cache(model: LoopModel, batch: int, num_tokens: int, loops: int, *, graph: bool) -> Write:
    decoder = Decoder(model, num_tokens, torch.zeros(batch, dtype=torch.long), loops)
    if not graph:
        decoder._replayed = None

    def write(length: int) -> None:
        decoder.length = 0
        column = torch.zeros(batch, 1, dtype=torch.long, device=decoder.padding.device)
        for _ in range(length):
            column = decoder.read(column)[:, -1:].argmax(dim=-1)

    return write


def with_exit(model: LoopModel, num_tokens: int, rule: ExitRule, most: int) -> Write:
    decoder = Decoder(model, num_tokens, torch.zeros(1, dtype=torch.long), most)

    def write(length: int) -> None:
        decoder.length = 0
        column = torch.zeros(1, 1, dtype=torch.long, device=decoder.padding.device)
        for _ in range(length):
            column = decoder.read_until(column, rule)[0].argmax(dim=-1)

    return write


def without_cache(model: LoopModel, batch: int, loops: int) -> Write:
    @torch.no_grad()
    def write(length: int) -> None:
        text = torch.zeros(batch, 1, dtype=torch.long, device=model.stack.device)
        for _ in range(length):
            text = torch.cat((text, model(text, loops)[:, -1:].argmax(dim=-1)), dim=1)

    return write


def ways(model: LoopModel, batch: int, num_tokens: int, loops: int) -> dict[str, Callable[[], Write]]:
    """Return how to prepare each way to write."""
    found: dict[str, Callable[[], Write]] = {}
    if model.stack.device.type == "cuda":
        found["cache and CUDA graph"] = partial(with_cache, model, batch, num_tokens, loops, graph=True)
    found["cache"] = partial(with_cache, model, batch, num_tokens, loops, graph=False)
    if batch == 1:
        found[f"cache, {FIXED_LOOPS} loops"] = partial(with_cache, model, 1, num_tokens, FIXED_LOOPS, graph=False)
        found[f"cache, {EXIT}"] = partial(with_exit, model, num_tokens, EXIT, MOST_LOOPS)
        found["no cache"] = partial(without_cache, model, batch, loops)
    return found


def measure(
    device: torch.device, num_tokens: int, loops: int, precision: Any, minutes: float
) -> Iterator[tuple[str, int, str, float]]:
    """Yield (model, batch, way, tokens per second) until the time is over."""
    started = time.monotonic()
    for name in MODELS:
        run = looped.load(name, device).with_precision(precision)
        set_engine(run.model.stack, "eager")  # the fused kernels would be compiled for every length of the text
        for batch in (1, 16) if device.type == "cpu" else (1, 64):
            for way, prepare in ways(run.model, batch, num_tokens, loops).items():
                if time.monotonic() - started > 60 * minutes:
                    return
                yield name, batch, way, batch * tokens_per_second(prepare(), num_tokens, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--loops", type=int, default=24)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--minutes", type=float, default=10.0, help="time after which no further way is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    rows: list[dict[str, Any]] = []
    report = {
        "date": date.today().isoformat(), "device": describe_device(device), "torch": str(torch.__version__),
        "tokens": options.tokens, "loops": options.loops, "precision": options.precision, "rows": rows,
    }  # fmt: skip
    for name, batch, way, speed in measure(device, options.tokens, options.loops, options.precision, options.minutes):
        print(name, f"batch {batch}, {way}: {speed:.1f}", file=sys.stderr, flush=True)
        if not rows or (rows[-1]["model"], rows[-1]["batch"]) != (name, batch):
            rows.append({"model": name, "batch": batch, "tokens_per_second": {}})
        rows[-1]["tokens_per_second"][way] = speed
        if options.out:
            save_json(options.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
