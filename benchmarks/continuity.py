"""How does the continuity coefficient change while a model learns perturbed text? One row per model and step.

    python benchmarks/continuity.py [--scale gpu] [--seeds 0 1 2] [--cases repeated fresh] [--out FILE] [--svg FILE]

The runs are those of `looped paper run perturbed`, on a few windows that repeat or on new windows in every step. At
laptop scale they are made smaller, so that a seed takes about six minutes on one core. After some steps, the losses and
the coefficient are measured, for several sizes of the change. FILE grows by one run at a time, and finished runs are
not repeated.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from looped.analysis import measure_continuity
from looped.analysis.network import Output
from looped.config import RunConfig
from looped.experiments.measure import CONTINUITY_EXAMPLES
from looped.experiments.tables import perturbed
from looped.models.engines import choose_device, describe_device
from looped.tasks import Split
from looped.training import Trainer, evaluate
from looped.training.callbacks import Callback
from looped.training.evaluation import EVALUATION_SEED, evaluate_trained
from looped.utils.files import save_text

CASES = {"repeated": "Few windows", "fresh": "New windows", "paper": "New windows, AdamW"}
BLOCKS = ("looped", "modulated")
TEST_WINDOWS = {"laptop": 32, "gpu": 200}
LAPTOP_WINDOWS = 32
LAPTOP_STEPS = 200
LAPTOP_LOOPS = 8
MEASURED = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""shares of the training after which a model is measured"""
MEASUREMENTS: list[tuple[Split, Output, float]] = [
    *(("test", "state", epsilon) for epsilon in (1e-3, 1e-2, 1e-1, 1.0)),
    ("test", "normalised", 1e-3),
    ("train", "state", 1e-3),
]


def config_of(scale: Any, case: str, block: str, seed: int, steps: int | None, loops: int | None) -> RunConfig:
    """Return the run of a case: `repeated` windows, `fresh` ones, or fresh ones by the `paper`'s optimizer."""
    config = next(cell.config for cell in perturbed(scale).cells if cell.config.model.block == block)
    if scale == "laptop":
        task: dict[str, Any] = {"vocabulary": "wiki2k", "seq_len": 64}
        config = replace(
            config,
            task=replace(config.task, **task),
            model=replace(config.model, num_loops=LAPTOP_LOOPS),
            train=config.train.override(
                num_examples=LAPTOP_WINDOWS, num_steps=LAPTOP_STEPS, batch_size=16, ema_decay=None, num_threads=1
            ),
        )
    steps = steps or config.train.num_steps
    train = config.train.override(num_steps=steps, eval_every=steps, eval_size=16)
    if case != "repeated":
        train = train.override(num_examples=None)
    if case == "paper":
        config = replace(config, model=replace(config.model, positions="learned"))
        train = train.override(optimizer="adamw", learning_rate=1e-3, weight_decay=0.01)
    loops = loops or config.model.num_loops
    return replace(config, model=replace(config.model, num_loops=loops), train=train, seed=seed)


@dataclass
class Measure(Callback):
    """Measure the model after some steps."""

    scale: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def on_step(self, trainer: Trainer, step: int, outcome: Tensor) -> None:
        num_steps = trainer.config.train.num_steps
        if step + 1 in {round(share * num_steps) for share in MEASURED}:
            self.measure(trainer, step + 1)

    @torch.no_grad()
    def measure(self, trainer: Trainer, step: int) -> None:
        config, model = trainer.config, trainer.model.eval()
        size = TEST_WINDOWS[self.scale]
        # `num_steps` and not `step`, so that all rows are about the same windows.
        trained = evaluate_trained(model, config, config.train.num_steps, size)
        held_out = evaluate(model, config.task, "test", size)
        self.rows.append({
            "step": step,
            "train_loss": shortened(trained.trained.metrics["loss"]),
            "test_loss": shortened(held_out.trained.metrics["loss"]),
            **{"/".join(map(str, each)): self.coefficients(trainer, *each) for each in MEASUREMENTS},
        })  # fmt: skip
        model.train()

    def coefficients(self, trainer: Trainer, split: Split, output: Output, epsilon: float) -> dict[str, Any]:
        config = trainer.config
        seed = config.seed if split == "train" else EVALUATION_SEED
        inputs = config.task.sample(seed, split, range(CONTINUITY_EXAMPLES)).inputs
        found = measure_continuity(
            trainer.model, inputs, epsilon=epsilon, directions=2, moduli=(), output=output, precision="float32"
        )
        # All loops of one measurement are enough.
        loops = found["per_loop"] if (split, output, epsilon) == MEASUREMENTS[0] else [found["coefficient"]]
        return {
            "coefficient": [shortened(loop["mean"]) for loop in loops],
            "relative": [shortened(loop["relative"]) for loop in loops],
        }


def shortened(number: float) -> float:
    return float(f"{number:.4g}")


def picture(rows: list[dict[str, Any]]) -> str:
    """Return charts of the coefficient after the last loop against the loss, with the range over seeds."""
    from looped.viz.plots import PALETTE, Chart, Lines, Series, draw

    def chart(case: str, number: str, shown: str) -> Chart:
        series = []
        for block, colour in zip(BLOCKS, PALETTE, strict=False):
            by_step: dict[int, list[dict[str, Any]]] = {}
            for row in rows:
                if (row["case"], row["block"]) == (case, block):
                    by_step.setdefault(row["step"], []).append(row)
            losses = [mean([row["train_loss"] for row in group]) for group in by_step.values()]
            values = [[row["test/state/0.001"][number][-1] for row in group] for group in by_step.values()]
            series.append(Series(block, colour, losses, [*map(mean, values)], [*map(min, values)], [*map(max, values)]))
        x_label = "cross-entropy on the training text"
        return Lines(f"{CASES[case]}, {shown}", x_label, "coefficient", tuple(series), y_scale="log")

    charts = [
        chart(case, number, shown)
        for number, shown in (("coefficient", "absolute"), ("relative", "relative"))
        for case in CASES
    ]
    alt = "continuity coefficient of looped and modulated models against cross-entropy during training"
    return draw(charts, "continuity", alt, columns=len(CASES)) + "\n"


def compact(report: dict[str, Any]) -> str:
    """Return JSON with one line per row."""
    rows = ",\n".join(map(json.dumps, report["rows"]))
    return json.dumps({**report, "rows": []}).replace('"rows": []', f'"rows": [\n{rows}\n]') + "\n"


def measure_run(config: RunConfig, scale: str) -> list[dict[str, Any]]:
    """Train a run and return its rows."""
    callback = Measure(scale)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, folder, quiet=True, callbacks=[callback])
        callback.measure(trainer, 0)
        trainer.model.train()
        trainer.fit()
    return callback.rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=tuple(TEST_WINDOWS), default="laptop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--blocks", nargs="+", choices=BLOCKS, default=list(BLOCKS))
    parser.add_argument("--steps", type=int, help="training steps (default: those of the scale)")
    parser.add_argument("--loops", type=int, help="loops of the models (default: those of the scale)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--svg", type=Path, help="draw all runs of FILE")
    options = parser.parse_args()
    report = {"date": date.today().isoformat(), "device": describe_device(choose_device("auto")),
              "torch": torch.__version__, "scale": options.scale, "rows": []}  # fmt: skip
    if options.out is not None and options.out.exists():
        report = json.loads(options.out.read_text())
    done = {(row["case"], row["block"], row["seed"]) for row in report["rows"]}
    for run in product(options.cases, options.blocks, options.seeds):
        if run in done:
            continue
        began = time.perf_counter()
        config = config_of(options.scale, *run, options.steps, options.loops)
        about = dict(zip(("case", "block", "seed"), run, strict=True))
        report["rows"] += [{**about, **row} for row in measure_run(config, options.scale)]
        print(*run, f"{time.perf_counter() - began:.0f} s", json.dumps(report["rows"][-1]), flush=True)
        if options.out is not None:
            save_text(options.out, compact(report))
    if options.svg is not None:
        save_text(options.svg, picture(report["rows"]))
