"""Every experiment as data. To add a table: one function here and its line in EXPERIMENTS."""

from collections.abc import Callable
from dataclasses import replace

from looped.config import ModelConfig
from looped.errors import unknown
from looped.experiments.spec import Cell, Experiment
from looped.recipes import recipe

LAPTOP_LOOPS = (1, 2, 4, 8)
LAPTOP_LAYERS = 4


def laptop() -> Experiment:
    """The paper's Table 1 in small: edit distance of short strings, on two CPU cores."""
    start = recipe("laptop", "edit-distance")
    models: dict[tuple[str, str], ModelConfig] = {
        ("TF", f"L = {LAPTOP_LAYERS}"): replace(start.model, block="standard", num_layers=LAPTOP_LAYERS)
    }
    for row, block in (("looped TF", "looped"), ("with timestep encoding", "modulated")):
        for num_loops in LAPTOP_LOOPS:
            models[row, f"r = {num_loops}"] = replace(start.model, block=block, num_loops=num_loops)
    samples = start.train.num_steps * start.train.batch_size
    return Experiment(
        id="laptop",
        title="Edit distance, more loops, and a timestep",
        about=(
            f"Edit distance (costs 2, 2, 3) of strings of length {start.task.size} over three letters. A standard "
            f"Transformer of {LAPTOP_LAYERS} layers, and one layer looped r times without and with timestep encoding, "
            f"each trained on {samples:,} samples with the same recipe. Every r is a training of its own."
        ),
        cells=tuple(Cell(row, column, replace(start, model=model)) for (row, column), model in models.items()),
    )


EXPERIMENTS: dict[str, Callable[[], Experiment]] = {"laptop": laptop}


def experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]()
