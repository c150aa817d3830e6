"""Parse flags into dataclasses with tyro, and turn tyro's error boxes into one line."""

import contextlib
import errno
import io
import json
import math
import os
import re
import tempfile
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from looped.cli import COMPLETE
from looped.utils.errors import InputError, require, require_one_of
from looped.utils.files import in_the_way, is_stream, writing
from looped.utils.plugins import is_item, load_item

Parsed = TypeVar("Parsed")

# tyro adds the default to the help of every flag. Our help texts only say what a default of None means: (None: ...).
JSON_HELP = "print one JSON object"
RUN = "RUN"
_RUN_HELP = (
    "folder of a trained run, a model file, a name that `looped models` lists, or a task, which stands for its best "
    "shipped model"
)
AnyRun = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar=RUN, help=_RUN_HELP)]
SeveralRuns = Annotated[
    tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar=RUN, help=f"each one: {_RUN_HELP}")
]

# tyro's messages about text that is not a number, and what to say instead. (For lists, only the help that follows the
# message tells the type.)
_NOT_A_NUMBER = {
    re.compile(r"Error parsing (.+?): Could not find valid parse for arguments: \[(.*)\].*\[INT"): "whole numbers",
    re.compile(r"Error parsing (.+?): Could not find valid parse for arguments: \[(.*)\].*\[FLOAT"): "numbers",
    re.compile(r"Error parsing (\S+):.* invalid literal for int\(\) with base 10: ('.*?')"): "a whole number",
    re.compile(r"Error parsing (\S+):.* could not convert string to float: ('.*?')"): "a number",
}


def leading_name(arguments: list[str], what: str, known: Mapping[str, str | type], usage: str) -> tuple[str, list[str]]:
    """Return the first word and the remaining arguments. For --help, explain the known words and exit.

    `known` maps each word to its sentence of help, or to a class whose docstring starts with one.
    """
    if arguments == [COMPLETE]:
        print("\n".join(known))
        raise SystemExit(0)
    if arguments and arguments[0] in ("-h", "--help"):
        rows = [(f"  {word}", _sentence(meaning)) for word, meaning in known.items()]
        explained = "\n".join(aligned(rows, "<<"))
        print(f"usage: {usage.removesuffix(' --help')} ...     ({usage} shows more)\n\n{explained}")
        raise SystemExit(0)
    if not arguments or arguments[0].startswith("-"):
        raise InputError(f"expected a {what} first, one of {', '.join(known)} ({usage})")
    require_one_of(what, arguments[0], known)
    return arguments[0], arguments[1:]


def leading_task(arguments: list[str], usage: str) -> tuple[str, list[str]]:
    """Return the task that the first word names and the remaining arguments.

    The word is the name of a built-in, plugged-in or installed task, or `FILE.py:CLASS`.
    """
    from looped.tasks import TASKS, installed_tasks

    if arguments and arguments[0].endswith(".py"):
        raise InputError(f"task: expected FILE.py:CLASS, got {arguments[0]!r}. Name the class of your task as well.")
    tasks: Any = TASKS
    installed = {name: f"installed, from {entry.module}" for name, entry in installed_tasks().items()}
    return leading_name(with_items(arguments), "task", ChainMap(tasks, installed), usage)


def with_items(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with every `FILE.py:NAME` loaded and replaced by the name it is then known under."""

    def name_of(text: str) -> str:
        if not is_item(text):
            return text
        from looped.tasks import Task, checked_name

        item = load_item(text)
        return checked_name(item) if isinstance(item, type) and issubclass(item, Task) else text.rpartition(":")[2]

    replaced = []
    for argument in arguments:
        flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        replaced.append(flag + equals + name_of(value))
    return replaced


def _sentence(meaning: str | type) -> str:
    """Return the first sentence of a help text or of a class's docstring, as it stands beside a word in a list."""
    text = " ".join((meaning if isinstance(meaning, str) else meaning.__doc__ or "").split())
    return re.split(r"\.(?:\s|$)", text[:1].lower() + text[1:])[0]


def peek(arguments: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag before parsing, because other defaults depend on it. The last one counts."""
    found = None
    for place, argument in enumerate(arguments):
        if argument == flag and arguments[place + 1 : place + 2] not in ([], [COMPLETE]):
            found = arguments[place + 1]
        if argument.startswith(f"{flag}="):
            found = argument.partition("=")[2]
    return found


def expand_train_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with short training flags written out: --train.learning-rate is
    --train.optimizer.learning-rate, and --train.optimizer muon is --train.optimizer.kind muon."""
    from looped.config import GROUP_OF

    expanded = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--train.").replace("-", "_")
        if flag.startswith("--train.") and name in GROUP_OF:
            flag = f"--train.{GROUP_OF[name]}.{name.replace('_', '-')}"
        elif flag in ("--train.optimizer", "--train.schedule"):
            flag = f"{flag}.kind"
        expanded.append(flag + equals + value)
    return expanded


def command_class(fields: Sequence[Any], explanation: str) -> type:
    """Return a dataclass of flags for `parse`, whose help starts with the explanation."""
    return make_dataclass("Command", fields, frozen=True, namespace={"__doc__": explanation})


def parse(command: type[Parsed], arguments: Sequence[str], program: str) -> Parsed:
    """Return the parsed flags. Raise InputError, in one line, where tyro would draw a box."""
    if arguments[-1:] == [COMPLETE]:
        from looped.cli.completion import next_words

        print("\n".join(next_words(command, list(arguments[:-1]))))
        raise SystemExit(0)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(command, args=arguments, prog=program)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(_one_line(complaint.getvalue(), program)) from None


def _one_line(box: str, program: str) -> str:
    """Return the text of tyro's box and the first flag it suggests.

    The box has sections between rules: the text, suggestions, a pointer to the help. On a terminal without box
    characters, the title is one more section at the front.
    """
    sections: list[list[str]] = [[]]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)  # tyro colours its box on a terminal
    for line in (line.strip("│ ") for line in plain.splitlines()):
        if line and not line.strip("─-╭╮╰╯"):
            sections.append([])
        elif line and not line.startswith("╭"):
            sections[-1].append(line)
    text, *rest = sections if "╭" in plain else sections[1:]
    near = [match.group() for lines in rest for line in lines if (match := re.match(r"--[\w.-]+", line))]
    if near and text[0].startswith("Unrecognized"):
        return f"{' '.join(text)}; did you mean {near[0]}?"
    complaint = re.sub(r"^Error parsing ([\w.]+): (?:\1\.)?(\w+)(?=: )", _flag, " ".join(text))
    for pattern, expected in _NOT_A_NUMBER.items():
        if found := pattern.match(" ".join(line for lines in (text, *rest) for line in lines)):
            named = "" if found[1].startswith("[") else f"{found[1]}: "  # tyro shows a place without a flag by its type
            complaint = f"{named}expected {expected}, got {found[2]}"
    return f"{complaint} ({program} --help lists all flags)"


def _flag(found: re.Match[str]) -> str:
    """Return the flag of the setting that a message is about."""
    return f"--{found[1]}.{found[2]}".replace("_", "-")


def require_svg(flag: str, path: Path | None) -> None:
    """Raise InputError, which names the flag, unless the path, if any, ends in .svg and can be written."""
    expected = path is None or path.suffix.lower() == ".svg"
    require(expected, f"{flag}: expected a picture's file that ends in .svg, got {str(path)!r}")
    require_writable(path)


def require_folder(name: str, path: Path) -> None:
    """Raise InputError, which names the flag, if a file stands where a folder must be."""
    if (found := in_the_way(path)) is not None:
        what, where = found
        raise InputError(f"--{name} must be a folder, got the {what} {where}")


def require_writable(path: Path | None) -> None:
    """Raise InputError unless a file can be created at the path. Call this before the work that the file is for."""
    if path is None:
        return
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_stream(path):
            return
        there = next(folder for folder in Path(os.path.realpath(path)).parents if folder.exists())
        with tempfile.TemporaryFile(dir=there):  # permissions do not tell enough, so try it
            pass


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return the lines of a table whose columns are aligned to the left (<) or right (>)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ([f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True)] for row in rows)
    return ["  ".join(line).rstrip() for line in cells]


def show(value: Any, text: str, *, as_json: bool) -> None:
    """Print a result: the text, or one JSON object."""
    print(json_text(value) if as_json else text)


def json_text(value: Any) -> str:
    """Return a value as JSON, with null for NaN and infinity."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
