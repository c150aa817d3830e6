"""`looped report RUN... --out FOLDER`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from looped.cli.args import RUN, parse, require_folder, show
from looped.utils.errors import require
from looped.utils.types import Device

if TYPE_CHECKING:
    from looped.experiments.records import Record


@dataclass(frozen=True)
class ReportCommand:
    """Write a page about finished runs: scores against loops, learning curves, differing settings and costs.

    A run without a record is tested first. The record stays in the run's folder, so the next report is quick.
    """

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar=RUN, help="folders of finished runs")]
    out: Path = Path("report")
    """folder of the page"""
    title: str = "Runs"
    """heading of the page"""
    size: int = 2000
    """test examples of a run that has no record yet"""
    device: Device = "auto"
    """device to test on"""
    json: bool = False
    """print one JSON object"""


def report(arguments: list[str]) -> None:
    """Write a page about some runs and print its path."""
    command = parse(ReportCommand, arguments, "looped report")
    require(bool(command.runs), "runs: expected one folder or more, got none")
    require_folder("out", command.out)

    from looped.experiments.report.build import build_report, write_report

    origins = _distinct({folder: _record(Path(folder), command) for folder in command.runs})
    records = {record.key: record for record in origins.values()}
    names = {record.key: folder for folder, record in origins.items()}
    page = write_report(build_report(records, title=command.title, names=names), command.out)
    show({"page": str(page), "runs": list(origins)}, str(page), as_json=command.json)


def _record(folder: Path, command: ReportCommand) -> "Record":
    from looped.experiments.measure import record_run
    from looped.experiments.spec import EvalPlan
    from looped.utils.shipped import SUFFIX, list_models

    is_model = str(folder) in list_models() or folder.suffix == SUFFIX
    hint = "A model has no log and no costs; `looped compare` and `looped plot` take it."
    require(not is_model or folder.is_dir(), f"runs: expected the folder of a run, got the model {folder}. {hint}")
    return record_run(folder, EvalPlan(size=command.size), command.device)


def _distinct(found: "dict[str, Record]") -> "dict[str, Record]":
    """Return the records by folder. Of several folders with the same run, the first counts."""
    first: dict[str, str] = {}
    for folder, record in found.items():
        if first.setdefault(record.key, folder) != folder:
            print(f"looped: {folder} has all settings of {first[record.key]} and is left out", file=sys.stderr)
    return {folder: found[folder] for folder in first.values()}
