"""Do the engines train alike? Loss over 200 steps of edit distance: three seeds of plain PyTorch span a band, and the
compiled and the fused engine, from the first of these seeds, are to stay in it. On a GPU the fused engine runs with its
Gluon kernels and, as `triton`, without them.

    python benchmarks/engines.py [--out FILE] [--jobs N]   train on the device at hand, N runs at a time
    python benchmarks/engines.py --draw FILE SVG           draw an earlier run

The file is written after every run, so that one which is stopped leaves the runs that ended.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from looped.recipes import recipe
from looped.training import train
from looped.training.logger import read_log
from looped.utils.files import save_json, save_text

STEPS = 200
RUNS = (("eager", 0), ("fused", 0), ("triton", 0), ("compiled", 0), ("eager", 1), ("eager", 2))


@contextmanager
def kernels_of(engine: str) -> Iterator[None]:
    """Let the fused engine do without its Gluon kernels if the engine is `triton`."""
    if engine != "triton":
        yield
        return
    from looped.kernels import triton_attention, triton_loops  # Triton is not everywhere

    with ExitStack() as stack:
        for module in (triton_attention, triton_loops):
            stack.enter_context(patch.object(module, "gluon_kernels", lambda _name: None))
        yield


def curve(engine: str, seed: int, folder: Path) -> list[float]:
    """The loss, averaged over every five steps."""
    small = not torch.cuda.is_available()
    config = recipe("laptop" if small else "fast", "edit-distance")
    shape: dict[str, Any] = {} if small else {"length": 60}  # 122 tokens, for which there are Gluon kernels
    settings: dict[str, Any] = {
        "num_steps": STEPS, "log_every": 5, "eval_size": 100, "engine": {"triton": "fused"}.get(engine, engine),
        "size_schedule": "fixed",
        "size_choices": (), "curriculum_steps": None, "warmup_steps": 50,
    }  # fmt: skip
    config = replace(
        config,
        task=replace(config.task, **shape),
        model=replace(config.model, block="modulated", num_loops=4 if small else 20),
        train=config.train.override(**settings),
        seed=seed,
    )
    with kernels_of(engine):
        train(config, folder, quiet=True)
    lines = [json.loads(line) for line, _ in read_log(folder / "log.jsonl")]
    return [round(line["loss"], 5) for line in lines if "loss" in line]


def measure(jobs: int, out: Path | None = None, runs: Sequence[tuple[str, int]] = RUNS) -> dict[str, Any]:
    """Train with every engine, so many runs at a time, and write what has ended to `out`."""
    losses: dict[tuple[str, int], list[float]] = {}
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        started = {pool.submit(curve, *run, Path(folder) / "-".join(map(str, run))): run for run in runs}
        for ended in as_completed(started):
            (engine, seed), loss = started[ended], ended.result()
            print(f"{engine:>8} seed {seed}: {loss[0]:.3f} ... {loss[-1]:.3f}", file=sys.stderr, flush=True)
            losses[engine, seed] = loss
            result = beside_band({run: losses[run] for run in runs if run in losses})
            if out:
                save_json(out, result)
    return result


def beside_band(losses: dict[tuple[str, int], list[float]]) -> dict[str, Any]:
    """Return the curves, and how far each one leaves the band of the eager ones."""
    found: list[dict[str, Any]] = [{"engine": run[0], "seed": run[1], "loss": loss} for run, loss in losses.items()]
    if band := [loss for (engine, _), loss in losses.items() if engine == "eager"]:
        low, high = ([f(values) for values in zip(*band, strict=True)] for f in (min, max))
        for run in found:
            outside = [max(a - x, x - b, 0.0) for x, a, b in zip(run["loss"], low, high, strict=True)]
            run["points_outside_band"], run["furthest_outside"] = sum(x > 0 for x in outside), max(outside)
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"date": date.today().isoformat(), "hardware": hardware, "torch": torch.__version__, "runs": found}


def draw(measured: dict[str, Any]) -> str:
    """The curves, and how far each is from the first: an engine is to be nearer to it than another seed is."""
    from looped.viz import plots

    colours = {"eager": plots.GREY, **dict(zip(("compiled", "fused", "triton"), plots.PALETTE, strict=False))}
    steps = range(5, STEPS + 1, 5)
    first, *others = measured["runs"]

    def series(run: dict[str, Any], values: list[float]) -> plots.Series:
        names = {"triton": "fused without Gluon"}
        label = "eager, other seeds" if run["seed"] else names.get(run["engine"], run["engine"])
        return plots.Series(label, colours[run["engine"]], steps, values, style="dashed" if run["seed"] else "line")

    curves = tuple(series(run, run["loss"]) for run in (first, *others))
    apart = tuple(
        series(run, [one - other for one, other in zip(run["loss"], first["loss"], strict=True)]) for run in others
    )
    charts = [
        plots.Lines("Loss of 200 steps", "step", "training loss", curves),
        plots.Lines("The same, less eager", "step", "difference", apart, y_range=(-0.1, 0.1)),
    ]
    return plots.draw(charts, "engines", "Training loss of three engines over 200 steps", columns=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, on the same device")
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("FILE", "SVG"), help="draw an earlier run instead")
    options = parser.parse_args()
    if options.draw:
        source, target = options.draw
        save_text(target, draw(json.loads(source.read_text())))
    else:
        print(json.dumps(measure(options.jobs, options.out)))
