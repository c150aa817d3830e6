"""What does float8 cost a language model? Train it twice, in bfloat16 and in float8, and compare loss and speed.

    python benchmarks/precision.py TOKENS.npy [--steps 250] [--out FILE]

TOKENS.npy holds a text as token ids below 50304. The last 200,000 of them are held out. The model is the one of `looped
bench train --preset lm`: width 768, r = 24, 1,024 tokens, 48 sequences a step.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from looped import benchmark
from looped.config import TrainConfig
from looped.models import build_model
from looped.training.loss import TensorBatch, loop_loss
from looped.training.step import Stepper
from looped.utils.files import save_json

HELD_OUT, EVAL_BATCHES, EVAL_SIZE = 200_000, 16, 8
RATE, WARM_UP = 6e-4, 50


def batch_of(tokens: torch.Tensor, size: int, seq_len: int, generator: torch.Generator) -> TensorBatch:
    """Return random windows of the text and the tokens that follow each position."""
    starts = torch.randint(len(tokens) - seq_len - 1, (size,), generator=generator)
    windows = torch.stack([tokens[start : start + seq_len + 1] for start in starts.tolist()]).cuda()
    return TensorBatch(windows[:, :-1], windows[:, 1:], torch.ones_like(windows[:, 1:], dtype=torch.bool))


def curve(tokens: torch.Tensor, precision: Any, steps: int) -> dict[str, Any]:
    """Train from one seed on the same windows, and return training loss, held-out loss and speed."""
    chosen = benchmark.preset("lm")
    config, (size,) = replace(chosen.model, precision=precision), chosen.batches
    model = build_model(config, chosen.spec).cuda()
    train = TrainConfig().override(batch_size=size, engine="fused", learning_rate=RATE)
    stepper, generator = Stepper(model, train, torch.device("cuda")), torch.Generator().manual_seed(1)
    losses, started = [], time.monotonic()
    for step in range(steps):
        data = batch_of(tokens[:-HELD_OUT], size, chosen.spec.seq_len, generator)
        outcome = stepper(step, data, config.num_loops, min(1.0, (step + 1) / WARM_UP))
        losses.append(outcome)
        if step == 9:  # everything is compiled and captured
            torch.cuda.synchronize()
            started = time.monotonic()
    torch.cuda.synchronize()
    speed = (steps - 10) * size / (time.monotonic() - started)
    generator, held_out = torch.Generator().manual_seed(2), []
    with torch.no_grad():
        for _ in range(EVAL_BATCHES):
            data = batch_of(tokens[-HELD_OUT:], EVAL_SIZE, chosen.spec.seq_len, generator)
            ((_, state),) = model.states_at(data.inputs, config.num_loops, [config.num_loops - 1])
            held_out.append(float(loop_loss(model.read_out(state), data)))
    loss = [round(float(outcome.flatten()[0]), 4) for outcome in losses]
    return {
        "precision": precision, "loss": loss, "held_out_loss": round(sum(held_out) / EVAL_BATCHES, 4),
        "perplexity": round(math.exp(sum(held_out) / EVAL_BATCHES), 2), "sequences_per_second": round(speed, 1),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--out", type=Path, help="JSON file for the curves")
    options = parser.parse_args()
    text = torch.from_numpy(np.load(options.tokens).astype(np.int64))
    runs = []
    result = {"date": date.today().isoformat(), "machine": benchmark.machine(), "steps": options.steps, "runs": runs}
    for name in ("bfloat16", "float8"):
        runs.append(curve(text, name, options.steps))
        print(json.dumps({key: value for key, value in runs[-1].items() if key != "loss"}), file=sys.stderr, flush=True)
        if options.out:
            save_json(options.out, result)
    for run in runs:
        points = run["loss"][:: max(1, options.steps // 10)]
        print(run["precision"], "loss", *points, "held out", run["held_out_loss"], "perplexity", run["perplexity"])
