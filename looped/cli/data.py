"""`looped data sample|build|check|stats`."""

import sys
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from looped.cli.parsing import JSON_HELP, json_text, leading_name, parse, show
from looped.errors import require

if TYPE_CHECKING:
    from looped.tasks import Task

_VERBS = ("sample", "build", "check", "stats")
_SIZES = {"sample": 5, "build": 1000, "stats": 1000}
MOST_EXAMPLES = 10**6
"""as many as looped eval takes; more are written to a file"""
MOST_NUMBERS = 2**26
"""of the examples that are counted: those are in memory together, and take about 40 bytes a number"""


def data(arguments: list[str]) -> None:
    """Carry out one of the verbs."""
    verb, rest = leading_name(arguments, "verb", _VERBS, "looped data VERB --help")
    if verb == "check":
        _check(rest)
        return

    from looped.tasks import TASKS, task_class

    name, rest = leading_name(rest, "task", TASKS, f"looped data {verb} TASK --help")
    fields: list[Any] = [
        ("task", task_class(name), field(default=task_class(name)())),
        (
            "size",
            Annotated[int, tyro.conf.arg(help="how many examples")],
            field(default=_SIZES[verb]),
        ),
        ("seed", Annotated[int, tyro.conf.arg(help="seed of the examples")], field(default=0)),
        (
            "split",
            Annotated[Literal["train", "validation", "test"], tyro.conf.arg(help="which examples")],
            field(default="train"),
        ),
        ("json", Annotated[bool, tyro.conf.arg(help=JSON_HELP)], field(default=False)),
    ]
    if verb == "build":
        fields.insert(0, ("out", Annotated[Path, tyro.conf.arg(help="file to write, one JSON object a line")]))
    command: Any = parse(make_dataclass("DataCommand", fields, frozen=True), rest, f"looped data {verb} {name}")

    from looped import data as sets

    if verb == "sample":
        _require_size(command.size, MOST_EXAMPLES)
        _show_in_parts(command)
    elif verb == "stats":
        _require_size(command.size, max(1, min(MOST_EXAMPLES, MOST_NUMBERS // _numbers_each(command.task))))
        counted = sets.stats(command.task, command.size, command.seed, command.split)
        show(counted, _readable(counted), as_json=command.json)
    else:
        with _Progress() as progress:
            made = sets.build(command.task, command.out, command.size, command.seed, command.split, progress)
        text = f"{made['path']}: {made['size']} examples, sha256 {made['sha256']}"
        show(made, text, as_json=command.json)


def _require_size(size: int, most: int) -> None:
    require(size >= 1, f"size must be at least 1, got {size}")
    require(size <= most, f"size must be at most {most:,}, got {size}")


def _numbers_each(task: "Task") -> int:
    spec = task.spec
    return spec.seq_len * (spec.input_size if spec.kind == "vectors" else 1)


def _show_in_parts(command: Any) -> None:
    """Each part is printed as it is drawn: however many examples there are, few are in memory at a time."""
    from looped.data import CHUNK

    for start in range(0, command.size, CHUNK):
        numbers = range(start, min(start + CHUNK, command.size))
        examples = command.task.examples(command.seed, command.split, numbers)
        first, last = start == 0, numbers.stop == command.size
        if command.json:  # the parts of one list
            print(("[" if first else "") + json_text(examples)[1:-1], end="]\n" if last else ", ")
        else:
            print("\n\n".join(_readable(example) for example in examples), end="\n" if last else "\n\n")


def _check(arguments: list[str]) -> None:
    options: list[Any] = [
        ("file", Annotated[tyro.conf.Positional[Path], tyro.conf.arg(help="a file that looped data build wrote")]),
        ("json", Annotated[bool, tyro.conf.arg(help=JSON_HELP)], field(default=False)),
    ]
    command: Any = parse(make_dataclass("CheckCommand", options, frozen=True), arguments, "looped data check")

    from looped import data as sets

    with _Progress() as progress:
        checked = sets.check(command.file, progress)
    show(checked, f"{checked['path']}: all {checked['examples']} examples are right", as_json=command.json)


def _readable(example: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in example.items())


class _Progress:
    """A bar on a terminal, nothing in a pipe."""

    def __enter__(self) -> "_Progress":
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
        self.task = self.bar.add_task("examples")
        self.bar.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
