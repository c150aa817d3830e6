"""`looped check`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from looped.cli.args import parse, show
from looped.utils.errors import InputError
from looped.utils.text import plural


@dataclass(frozen=True)
class CheckCommand:
    """Verify every file of a run, a results folder, a data set or a model, and tell what is still usable."""

    path: tyro.conf.Positional[Path]
    """folder of a run, of runs or of records; or a file that looped data build or models pack wrote"""
    json: bool = False
    """print one JSON object"""


def check(arguments: list[str]) -> None:
    """Carry out the verb. Damaged files end it with exit code 2."""
    command = parse(CheckCommand, arguments, "looped check")

    from looped.experiments.integrity import check_path

    report = check_path(command.path)
    lines = [f"{'ok' if each.problem is None else 'DAMAGED':<8} {each.kind:<10} {each.path}" for each in report.files]
    show(report.to_json(), "\n".join([*lines, *report.usable]), as_json=command.json)
    if report.damaged:
        count = plural(len(report.damaged), "file")
        raise InputError(f"{count} of {len(report.files)} damaged: {report.damaged[0].problem}")
