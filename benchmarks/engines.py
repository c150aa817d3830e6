"""Do the engines train alike? Loss over 200 steps of edit distance: three seeds of plain PyTorch span a band, and the
compiled and the fused engine, from the first of these seeds, are to stay in it. On a GPU the fused engine runs with its
Gluon kernels and, as `triton`, without them.

    python benchmarks/engines.py [--out FILE]      train on the device at hand and print the JSON
    python benchmarks/engines.py --draw FILE SVG   draw an earlier run
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from looped.recipes import recipe
from looped.training import train
from looped.training.logger import read_log
from looped.utils.files import save_json, save_text

STEPS = 200
RUNS = (("eager", 0), ("eager", 1), ("eager", 2), ("compiled", 0), ("fused", 0), ("triton", 0))


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


def measure(runs: Sequence[tuple[str, int]] = RUNS) -> dict[str, Any]:
    """Train with every engine, and say how far each curve leaves the band of the eager ones."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for engine, seed in runs:
            loss = curve(engine, seed, Path(folder) / f"{engine}-{seed}")
            found.append({"engine": engine, "seed": seed, "loss": loss})
            print(f"{engine:>8} seed {seed}: {loss[0]:.3f} ... {loss[-1]:.3f}", file=sys.stderr, flush=True)
    band = [run["loss"] for run in found if run["engine"] == "eager"]
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
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("FILE", "SVG"), help="draw an earlier run instead")
    options = parser.parse_args()
    if options.draw:
        source, target = options.draw
        save_text(target, draw(json.loads(source.read_text())))
    else:
        result = measure()
        if options.out:
            save_json(options.out, result)
        print(json.dumps(result))
