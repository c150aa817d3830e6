"""`looped paper list|run|status|report`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from looped.cli.parsing import leading_name, parse, show


@dataclass(frozen=True)
class PaperCommand:
    """Experiments, from training to the report."""

    experiment: tyro.conf.Positional[str] = "laptop"
    """which one (looped paper list names them)"""
    root: Path = Path("runs")
    """folder of the runs"""
    out: Path = Path("report")
    """folder of the report"""
    workers: int | None = None
    """cells trained at a time (default: one per core)"""
    readme: Path | None = None
    """with report: also put the table between the marks of this README"""
    json: bool = False
    """print one JSON object"""


def paper(arguments: list[str]) -> None:
    verb, rest = leading_name(arguments, "verb", ("list", "run", "status", "report"), "looped paper VERB --help")
    command = parse(PaperCommand, rest, f"looped paper {verb}")

    from looped.experiments.tables import EXPERIMENTS, experiment

    if verb == "list":
        listed = [make() for make in EXPERIMENTS.values()]
        lines = [f"{one.id}: {one.title} ({len(one.cells)} cells)" for one in listed]
        show({"experiments": [one.to_json() for one in listed]}, "\n".join(lines), as_json=command.json)
        return
    chosen = experiment(command.experiment)
    if verb == "report":
        from looped.experiments.report import write_readme, write_report

        path = write_report(chosen, command.root, command.out)
        if command.readme is not None:
            write_readme(chosen, command.root, command.readme)
        show({"page": str(path)}, str(path), as_json=command.json)
        return

    from looped.experiments.runner import run_experiment, status

    if verb == "run":
        run_experiment(chosen, command.root, command.workers)
    state = status(chosen, command.root)
    lines = [f"{cell['row']}, {cell['column']}: {cell['state']}" for cell in state]
    show({"experiment": chosen.id, "cells": state}, "\n".join(lines), as_json=command.json)
