"""How fast does a language model write? With the cache of every (loop, layer), without it, and by a CUDA graph.

python benchmarks/generation.py [--device cuda] [--tokens 512] [--loops 24] [--out FILE]
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import date
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


def tokens_per_second(write: Callable[[int], None], num_tokens: int, device: torch.device) -> float:
    """Return the speed of writing after a few tokens, which may compile or capture."""
    seconds = 0.0
    for length in (WARM_UP, num_tokens):
        began = time.perf_counter()
        write(length)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return num_tokens / seconds


def with_cache(model: LoopModel, batch: int, num_tokens: int, loops: int, *, graph: bool) -> Callable[[int], None]:
    decoder = Decoder(model, num_tokens, torch.zeros(batch, dtype=torch.long), loops)
    if not graph:
        decoder._replayed = None

    def write(length: int) -> None:
        decoder.length = 0
        column = torch.zeros(batch, 1, dtype=torch.long, device=decoder.padding.device)
        for _ in range(length):
            column = decoder.read(column)[:, -1:].argmax(dim=-1)

    return write


def with_exit(model: LoopModel, num_tokens: int, rule: ExitRule, most: int) -> Callable[[int], None]:
    decoder = Decoder(model, num_tokens, torch.zeros(1, dtype=torch.long), most)

    def write(length: int) -> None:
        decoder.length = 0
        column = torch.zeros(1, 1, dtype=torch.long, device=decoder.padding.device)
        for _ in range(length):
            column = decoder.read_until(column, rule)[0].argmax(dim=-1)

    return write


def without_cache(model: LoopModel, batch: int, loops: int) -> Callable[[int], None]:
    @torch.no_grad()
    def write(length: int) -> None:
        text = torch.zeros(batch, 1, dtype=torch.long, device=model.stack.device)
        for _ in range(length):
            text = torch.cat((text, model(text, loops)[:, -1:].argmax(dim=-1)), dim=1)

    return write


def measure(device: torch.device, num_tokens: int, loops: int, precision: Any) -> dict[str, Any]:
    rows = []
    for name in MODELS:
        run = looped.load(name, device).with_precision(precision)
        set_engine(run.model.stack, "eager")  # the fused kernels would be compiled for every length of the text
        for batch in (1, 16) if device.type == "cpu" else (1, 64):
            ways: dict[str, Callable[[int], None]] = {
                "cache": with_cache(run.model, batch, num_tokens, loops, graph=False)
            }
            if device.type == "cuda":
                ways["cache and CUDA graph"] = with_cache(run.model, batch, num_tokens, loops, graph=True)
            if batch == 1:
                ways["no cache"] = without_cache(run.model, batch, loops)
                ways[f"cache, {EXIT}"] = with_exit(run.model, num_tokens, EXIT, MOST_LOOPS)
                ways[f"cache, {FIXED_LOOPS} loops"] = with_cache(run.model, 1, num_tokens, FIXED_LOOPS, graph=False)
            speeds = {}
            for way, write in ways.items():
                speeds[way] = batch * tokens_per_second(write, num_tokens, device)
                print(name, f"batch {batch}, {way}: {speeds[way]:.1f}", file=sys.stderr, flush=True)
            rows.append({"model": name, "batch": batch, "tokens_per_second": speeds})
    return {
        "date": date.today().isoformat(), "device": describe_device(device), "torch": torch.__version__,
        "tokens": num_tokens, "loops": loops, "precision": precision, "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--loops", type=int, default=24)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report = measure(choose_device(options.device), options.tokens, options.loops, options.precision)
    if options.out:
        save_json(options.out, report)
    print(json.dumps(report))
