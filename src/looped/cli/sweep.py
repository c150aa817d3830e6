"""`looped sweep TASK --grid FLAG=VALUE,VALUE ...`."""

from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from looped.cli.args import aligned, parse, show
from looped.cli.train import parse_run
from looped.utils.errors import require
from looped.utils.launch import reported_once

if TYPE_CHECKING:
    from looped.experiments.spec import Cell, Experiment

_OWN_FLAGS = ("--grid", "--root", "--seeds", "--workers", "--minutes", "--json", "--help", "-h")
_NOT_FOR_TRAINING = ("--out", "--seed", "--callback")
_HINT = "--root names the folder of all runs, --seeds their number of seeds."


@dataclass(frozen=True)
class SweepCommand:
    """Train and test a run for every combination of some settings. The same command goes on with a stopped sweep.

    All other flags are those of `looped train TASK` and hold for every run.
    """

    task: tyro.conf.Positional[str]
    """a task, by its name or as FILE.py:CLASS"""
    grid: tuple[str, ...]
    """settings to combine, each as FLAG=VALUE,VALUE,... such as model.num-loops=4,8,16"""
    root: Path = Path("runs/sweep")
    """folder of the runs"""
    seeds: int = 1
    """number of seeds, from 0"""
    workers: int | None = None
    """runs at a time (None: as many as the machine has room for)"""
    minutes: float | None = None
    """stop with checkpoints after this time (None: no limit)"""
    json: bool = False
    """print one JSON object"""


@reported_once()
def sweep(arguments: list[str]) -> None:
    """Train and test all runs of a grid and print a table."""
    own, training = _split_flags(arguments)
    command = parse(SweepCommand, own, "looped sweep")
    require(bool(command.grid), "--grid: expected FLAG=VALUE,VALUE, got none")
    for flag in (*training, *(f"--{text.removeprefix('--')}" for text in command.grid)):
        name = flag.partition("=")[0]
        require(name not in _NOT_FOR_TRAINING, f"{name}: expected other flags of `looped train`, got {name}. {_HINT}")

    from looped.experiments.records import load_records
    from looped.experiments.runner import run_experiment, status

    experiment = _experiment(command, training)
    run_experiment(
        experiment, command.root, num_seeds=command.seeds, num_workers=command.workers, minutes=command.minutes
    )
    places = {cell.column: place for place, cell in enumerate(experiment.cells)}
    cells = status(experiment, command.root, load_records(None, command.root), command.seeds)
    cells.sort(key=lambda cell: (places[cell["column"]], cell["seed"]))
    for cell in cells:
        cell["run"] = str(command.root / cell["run"])
    metric = experiment.cells[0].config.task.metric
    rows = [(experiment.cells[0].row, "seed", f"{metric} (95 % interval)", "run")]
    for _, of_setting in groupby(cells, key=lambda cell: cell["column"]):
        seeds = list(of_setting)
        rows += [(cell["column"], str(cell["seed"]), cell["state"], cell["run"]) for cell in seeds]
        values = [cell["value"] for cell in seeds if cell["value"] is not None]
        if len(values) > 1:
            mean = f"{sum(values) / len(values):.4g} (seeds from {min(values):.4g} to {max(values):.4g})"
            rows.append((seeds[0]["column"], "mean", mean, ""))
    show({"metric": metric, "cells": cells}, "\n".join(aligned(rows, "<><<")), as_json=command.json)


def _split_flags(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into those of the sweep, the task first, and those of every run."""
    own: list[str] = []
    training: list[str] = []
    current = own
    for argument in arguments:
        if argument.startswith("-"):
            current = own if argument.partition("=")[0] in _OWN_FLAGS else training
        current.append(argument)
    return own, training


def _experiment(command: SweepCommand, training: list[str]) -> "Experiment":
    """Return a table with a cell for every combination of the grid."""
    from looped.experiments.spec import Experiment

    settings = [_values(text) for text in command.grid]
    cells = tuple(_cell(command.task, training, chosen) for chosen in product(*settings))
    distinct = {cell.config.folder_name for cell in cells}
    require(len(distinct) == len(cells), "--grid: expected settings that define a run, got two equal runs")
    return Experiment("sweep", "Sweep", "", None, cells)


def _values(text: str) -> list[tuple[str, str]]:
    """Return the (flag, value) pairs of one entry of the grid."""
    flag, _, listed = text.removeprefix("--").partition("=")
    values = listed.split(",")
    valid = bool(flag) and all(values) and len(set(values)) == len(values)
    require(valid, f"--grid: expected FLAG=VALUE,VALUE with different values, got {text!r}")
    return [(flag, value) for value in values]


def _cell(task: str, training: list[str], chosen: tuple[tuple[str, str], ...]) -> "Cell":
    from looped.experiments.spec import Cell

    flags = [f"--{flag}={value}" for flag, value in chosen]
    _, config = parse_run([task, *training, *flags])
    return Cell(config.task.label, ", ".join(f"{flag} {value}" for flag, value in chosen), config)
