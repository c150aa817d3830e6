"""`looped paper list|run|status|collect|report`."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from looped.cli.args import aligned, leading_name, parse, require_folder, show
from looped.utils.errors import require
from looped.utils.launch import reported_once
from looped.utils.text import duration

if TYPE_CHECKING:
    from looped.experiments.records import Record
    from looped.experiments.spec import Experiment


DEFAULT_SCALE = "laptop"


@dataclass(frozen=True)
class Command:
    """The flags that every verb takes."""

    experiments: tyro.conf.Positional[tuple[str, ...]] = ()
    """which ones, by name (looped paper list) or your own as FILE.py:FUNCTION (none given: all of ours)"""
    cells: tuple[str, ...] = ()
    """only the cells that fit these patterns of ROW:COLUMN, such as 'ED40:*' or '*:modulated*'"""
    json: bool = False
    """print one JSON object"""


@dataclass(frozen=True)
class ListCommand(Command):
    """List the experiments and how much work each of them is."""

    scale: str = DEFAULT_SCALE
    """smoke, laptop, gpu or paper"""


@dataclass(frozen=True)
class FoldersCommand(Command):
    """The flags of every verb that reads runs."""

    root: Path = Path("runs")
    """folder of the runs"""
    results: Path = Path("results")
    """folder of collected records, one file per run"""


@dataclass(frozen=True)
class StatusCommand(FoldersCommand):
    """Show how far the runs of each cell are."""

    scale: str = DEFAULT_SCALE
    """smoke, laptop, gpu or paper"""
    seeds: int = 1
    """seeds of every cell: 0, 1, ..."""


@dataclass(frozen=True)
class RunCommand(StatusCommand):
    """Train and test the missing runs; the same command resumes them."""

    experiments: tyro.conf.Positional[tuple[str, ...]] = ()
    """which ones, at least one, by name (looped paper list) or your own as FILE.py:FUNCTION"""
    on: Literal["local", "ray"] = "local"
    """where to train: in processes of this machine, or on a Ray cluster (the running one, or else a local one)"""
    workers: int | None = None
    """runs at a time (None: one per GPU, or one per core; on Ray, as many as fit)"""
    gpus_per_run: float | None = None
    """GPUs per run on Ray, such as 0.5 to let two runs share one (None: one if the cluster has any)"""
    again: bool = False
    """train here also what only the collected records know of"""
    minutes: float | None = None
    """stop cleanly after this long; the same command goes on"""


@dataclass(frozen=True)
class CollectCommand(FoldersCommand):
    """Copy the records of finished runs into the results folder."""

    scale: str | None = None
    """smoke, laptop, gpu or paper (None: laptop where experiments or cells are named, or else every one)"""
    replace: bool = False
    """put new records in the place of different ones of the same run"""


@dataclass(frozen=True)
class ReportCommand(FoldersCommand):
    """Write a page with our results beside the paper's numbers."""

    scale: str | None = None
    """smoke, laptop, gpu or paper (None: every scale with results, but laptop if cells are named)"""
    out: Path = Path("report")
    """folder of the report"""
    update: tuple[Path, ...] = ()
    """Markdown files whose marked blocks of results are rewritten, such as README.md"""


@reported_once()
def paper(arguments: list[str]) -> None:
    """Run one of the verbs."""
    commands = {verb: kind for verb, (kind, _) in VERBS.items()}
    verb, rest = leading_name(arguments, "verb", commands, "looped paper VERB --help")
    kind, carry_out = VERBS[verb]
    command = parse(kind, rest, f"looped paper {verb}")
    for name, place in vars(command).items():
        if name in ("root", "results", "out"):
            require_folder(name, place)
    # An empty variable of a shell must not mean all cells.
    require("--cells" not in rest or bool(command.cells), "--cells: expected patterns of ROW:COLUMN, got none")
    carry_out(command)


def _chosen(command: Command, scale: str) -> "list[Experiment]":
    """The experiments of a command, or all of them, with the cells that were asked for."""
    from looped.experiments.tables import EXPERIMENTS, experiment

    made = [experiment(name, scale) for name in dict.fromkeys(command.experiments or EXPERIMENTS)]
    require(
        not command.cells or len(made) == 1,
        f"--cells goes with one experiment: expected its name first, got {' '.join(command.experiments) or 'none'}",
    )
    return [one.select(command.cells) for one in made]


def _list(command: ListCommand) -> None:
    listed = _chosen(command, command.scale)
    if command.json:
        show({"experiments": [one.to_json() for one in listed]}, "", as_json=True)
        return

    from looped.experiments.scales import estimated_seconds
    from looped.experiments.spec import check_scale

    scale = check_scale(command.scale)
    rows = [("id", "cells", "runs", "work", "title")]
    for one in listed:
        configs = one.configs()
        seconds = sum(estimated_seconds(config, scale) for config in configs)
        rows.append((one.id, str(len(one.cells)), str(len(configs)), duration(seconds), one.title))
    lines = aligned(rows, "<>>><")
    on = "one CPU core" if scale in ("smoke", "laptop") else "one H200"
    note = f"\nscale {scale}; work: training on {on}, computed from its operations and a measured speed"
    print("\n".join([*lines, note]))


def _run(command: RunCommand) -> None:
    from looped.experiments.records import load_records
    from looped.experiments.runner import CellsFailed, run_experiment
    from looped.experiments.tables import EXPERIMENTS

    require(bool(command.experiments), f"expected an experiment to run, one of {', '.join(EXPERIMENTS)}, or several")
    chosen, started = _chosen(command, command.scale), time.monotonic()
    failures: list[str] = []
    for experiment in chosen:
        try:
            finished = run_experiment(
                experiment,
                command.root,
                results=None if command.again else command.results,
                num_seeds=command.seeds,
                num_workers=command.workers,
                minutes=command.minutes,
                started=started,
                where=command.on,
                gpus_per_run=command.gpus_per_run,
            )
        except CellsFailed as error:  # told at the end: the other experiments may be as good as ever
            failures.append(str(error) if len(chosen) == 1 else f"{experiment.id}: {error}")
            continue
        if not finished:
            break
    require(not failures, "; ".join(failures))
    _show_status(command, chosen, load_records(command.results, command.root))


def _status(command: StatusCommand) -> None:
    from looped.experiments.records import load_records

    known = load_records(command.results, command.root)
    _show_status(command, _chosen(command, command.scale), known)
    if not known:
        where = f"in {command.results} or under {command.root}: --results and --root say where to look"
        print(f"looped: no record of a run {where}", file=sys.stderr)


def _show_status(command: StatusCommand, experiments: "Sequence[Experiment]", known: "dict[str, Record]") -> None:
    from looped.experiments.report.compare import best_results
    from looped.experiments.runner import status
    from looped.experiments.spec import check_scale
    from looped.experiments.tables import SAME_TABLE, all_recipes

    found: list[dict[str, Any]] = []
    lines: list[str] = []
    for experiment in experiments:
        cells = status(experiment, command.root, known, command.seeds)
        found.append({"id": experiment.id, "scale": experiment.scale, "cells": cells})
        done = sum(cell["finished"] for cell in cells)
        lines.append(f"{experiment.id}, {experiment.scale} scale: {done} of {len(cells)} cells finished")
        for cell in cells:
            seed = f", seed {cell['seed']}" if command.seeds > 1 else ""
            lines.append(f"  {cell['row']}, {cell['column']}{seed}: {cell['state']}")
    tables: dict[str, dict[str, int]] = {}
    for name in dict.fromkeys(SAME_TABLE.get(experiment.id, experiment.id) for experiment in experiments):
        if name not in SAME_TABLE.values() or command.cells:
            continue
        group = all_recipes(name, check_scale(command.scale))
        best = best_results(group, known).values()
        numbers = {"filled": len(best), "cells": len(group[0].cells)}
        text = "{filled} of {cells} cells filled by some recipe".format_map(numbers)
        if group[0].is_full_size:
            numbers["reached"] = sum(one.reaches_paper for one in best)
            text += "; our interval contains or exceeds the paper's number in {reached} of them".format_map(numbers)
        tables[name] = numbers
        title, _, _ = group[0].title.partition(":")
        lines.append(f"{title}: {text}")
    show({"experiments": found, "tables": tables}, "\n".join(lines), as_json=command.json)


def _collect(command: CollectCommand) -> None:
    from looped.experiments.records import collect, load_records, seedless_key

    records = load_records(None, command.root)
    require(bool(records), f"no record of a finished run under {command.root}")
    if command.experiments or command.scale or command.cells:
        chosen = _chosen(command, command.scale or DEFAULT_SCALE)
        wanted = {seedless_key(config) for one in chosen for config in one.configs()}
        records = {key: record for key, record in records.items() if seedless_key(record.config) in wanted}
    written = collect(records.values(), command.results, replaced=command.replace)
    text = "\n".join([*map(str, written), f"{len(written)} records new or changed in {command.results}"])
    show({"written": [str(path) for path in written]}, text, as_json=command.json)


def _report(command: ReportCommand) -> None:
    from looped.experiments.records import load_records
    from looped.experiments.report.blocks import update_blocks
    from looped.experiments.report.build import build_report, read_findings, reported_experiments, write_report
    from looped.experiments.spec import check_scale

    records = load_records(command.results, command.root)
    found = any(record.finished for record in records.values())
    require(found, f"nothing to report: no record of a finished run in {command.results} or under {command.root}")
    if command.cells:  # the names of cells contain loop counts, which differ between scales
        chosen = _chosen(command, command.scale or DEFAULT_SCALE)
    else:
        scale = check_scale(command.scale) if command.scale else None
        chosen = reported_experiments(records, command.experiments, scale)
    everything = not (command.experiments or command.scale or command.cells)
    report = build_report(records, chosen, findings=read_findings(command.results), every_run=everything)
    for path in command.update:
        update_blocks(path, records)
    page = write_report(report, command.out)
    show({"page": str(page)}, str(page), as_json=command.json)


VERBS: dict[str, tuple[type[Command], Callable[[Any], None]]] = {
    "list": (ListCommand, _list),
    "run": (RunCommand, _run),
    "status": (StatusCommand, _status),
    "collect": (CollectCommand, _collect),
    "report": (ReportCommand, _report),
}
