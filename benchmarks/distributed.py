"""What does training in a process group cost on one GPU? The same steps without a group and in a group of one over
NCCL (gloo on a CPU), in turns, with the fused engine and CUDA graphs.

    python benchmarks/distributed.py [--minutes M] [--out FILE]

The file is written after every shape.
"""

import argparse
import json
import math
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

from looped.config import ModelConfig, TrainConfig
from looped.models import build_model
from looped.models.engines import choose_device, describe_device
from looped.tasks import EditDistance
from looped.training.distributed import ALONE, Group, joined
from looped.training.loss import to_device
from looped.training.step import Stepper
from looped.utils.files import save_json

ROUNDS = 7
SECONDS = 0.4
"""of one measurement"""


def shapes() -> list[tuple[int, int, int]]:
    """Return (length of the strings, loops, batch size)."""
    return [(40, 20, 64), (60, 100, 512), (60, 100, 64)] if torch.cuda.is_available() else [(6, 4, 16)]


def new_stepper(length: int, num_loops: int, batch_size: int, group: Group, device: torch.device, **settings: Any):
    """Return a function that takes one step as the trainer does: with a decision of all ranks on whether to stop."""
    task = EditDistance(length=length)
    precision = "bfloat16" if device.type == "cuda" else "float32"
    model = ModelConfig(
        block="modulated", dim=256, num_heads=4, num_loops=num_loops, positions="rotary", precision=precision
    )
    train = TrainConfig().override(
        batch_size=batch_size, optimizer="muon", ema_decay=0.999, spike_factor=10, **settings
    )
    stepper = Stepper(build_model(model, task.spec, 0).to(device), train, device, group)
    batch = to_device(task.sample(0, "train", range(batch_size)), device)

    def step(number: int) -> torch.Tensor:
        outcome = stepper(number, batch, num_loops, 1.0)
        group.largest(0)
        return outcome

    return step


def milliseconds(step: Any, device: torch.device) -> float:
    """Return the time of one step, averaged over about `SECONDS`."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        for _ in range(5):
            step(count)
            count += 1
        if device.type == "cuda":
            torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started) / count


def measure(group: Group, device: torch.device, minutes: float) -> Iterator[dict[str, Any]]:
    """Yield a row for every shape that fits into the minutes: without a group, in a group of one, and there with two
    pieces."""
    started = time.monotonic()
    for length, num_loops, batch_size in shapes():
        if time.monotonic() - started > 60 * minutes:
            return
        shape = (length, num_loops, batch_size)
        steps = {
            "alone": new_stepper(*shape, ALONE, device),
            "group of one": new_stepper(*shape, group, device),
            "group of one, two pieces": new_stepper(*shape, group, device, pieces=2),
        }
        for step in steps.values():
            milliseconds(step, device)  # compile and capture
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(ROUNDS):
            for name, step in steps.items():
                times[name].append(milliseconds(step, device))
        medians = {name: statistics.median(values) for name, values in times.items()}
        ratios = [own / alone for own, alone in zip(times["group of one"], times["alone"], strict=True)]
        yield {
            "length": length, "num_loops": num_loops, "batch_size": batch_size,
            "ms": {name: round(value, 3) for name, value in medians.items()},
            "group_over_alone": round(statistics.median(ratios), 4),
            "lowest_and_highest_round": [round(min(ratios), 4), round(max(ratios), 4)],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=math.inf, help="time after which no further shape is begun")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    device = choose_device("auto")
    rows: list[dict[str, Any]] = []
    about = {"date": date.today().isoformat(), "hardware": describe_device(device), "torch": str(torch.__version__)}
    found = {**about, "command": "python benchmarks/distributed.py", "rows": rows}
    with joined() as group:
        for row in measure(group, device, arguments.minutes):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            if arguments.out is not None:
                save_json(arguments.out, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
