"""`looped data sample|build|check|stats`."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import tyro

from looped.cli.args import JSON_HELP, command_class, json_text, leading_name, leading_task, parse, show
from looped.cli.progress import Bar
from looped.utils.errors import require_field
from looped.utils.types import Split

_VERBS = {
    "sample": "Show examples of a task with their answers.",
    "build": "Write examples of a task to a file, one JSON object a line.",
    "check": "Check every example of a file that looped data build wrote.",
    "stats": "Count the answers and sizes of a task's examples.",
}
_STANDARD_OUTPUT = Path("/dev/stdout")
_SIZES = {"sample": 5, "build": 1000, "stats": 1000}


def data(arguments: list[str]) -> None:
    """Run one of the verbs."""
    verb, rest = leading_name(arguments, "verb", _VERBS, "looped data VERB --help")
    if verb == "check":
        _check(rest)
        return

    from looped.tasks import task_class

    name, rest = leading_task(rest, f"looped data {verb} TASK --help")
    fields: list[Any] = [
        ("task", task_class(name), field(default=task_class(name)())),
        (
            "size",
            Annotated[int, tyro.conf.arg(help="number of examples")],
            field(default=_SIZES[verb]),
        ),
        ("seed", Annotated[int, tyro.conf.arg(help="seed of the examples")], field(default=0)),
        (
            "split",
            Annotated[Split, tyro.conf.arg(help="which examples")],
            field(default="train"),
        ),
        ("json", Annotated[bool, tyro.conf.arg(help=JSON_HELP)], field(default=False)),
    ]
    if verb == "build":
        fields.insert(
            0,
            ("out", Annotated[Path, tyro.conf.arg(help="file to write, one JSON object a line (-: standard output)")]),
        )
    command: Any = parse(command_class(fields, _VERBS[verb]), rest, f"looped data {verb} {name}")

    from looped.tasks import datasets as sets

    if verb == "sample":
        parts = sets.parts(command.task, command.size, command.seed, command.split)
        _show_in_parts(parts, command.json)
    elif verb == "stats":
        counted = sets.stats(command.task, command.size, command.seed, command.split)
        show(counted, _readable(counted), as_json=command.json)
    else:
        out = _STANDARD_OUTPUT if command.out == Path("-") else command.out
        is_text = out.suffix in ("", ".jsonl", ".txt")
        require_field(is_text, "out", "a file of JSON lines, such as set.jsonl", str(out))
        with Bar() as progress:
            made = sets.build(command.task, out, command.size, command.seed, command.split, progress)
        text = f"{made['path']}: {made['size']} examples, sha256 {made['sha256']}"
        # The summary of a data set must not become a part of it.
        with redirect_stdout(sys.stderr) if out == _STANDARD_OUTPUT else nullcontext():
            show(made, text, as_json=command.json)


def _show_in_parts(parts: Iterator[list[dict[str, Any]]], as_json: bool) -> None:
    """Print each part as it is drawn. All parts together are one JSON object, as with every verb."""
    before, between, after = ('{"examples": [', ", ", "]}") if as_json else ("", "\n\n", "")
    for examples in parts:
        shown = json_text(examples)[1:-1] if as_json else "\n\n".join(_readable(example) for example in examples)
        print(before + shown, end="")
        before = between
    print(after)


def _check(arguments: list[str]) -> None:
    options: list[Any] = [
        ("file", Annotated[tyro.conf.Positional[Path], tyro.conf.arg(help="a file that looped data build wrote")]),
        ("json", Annotated[bool, tyro.conf.arg(help=JSON_HELP)], field(default=False)),
    ]
    command: Any = parse(command_class(options, _VERBS["check"]), arguments, "looped data check")

    from looped.tasks import datasets as sets

    with Bar() as progress:
        checked = sets.check(command.file, progress)
    show(checked, f"{checked['path']}: all {checked['examples']} examples are right", as_json=command.json)


def _readable(example: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in example.items())
