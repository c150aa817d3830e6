"""Command lines made from the flags that the help lists, most of them right enough to get behind the parser.

A command ends with exit code 0, or with exit code 2 and one line of at most a thousand printable characters.
"""

import random
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from faults.target import GIB, Outcome, Target
from faults.tries import Result, Tries, one, result
from faults.workloads import training, training_arguments

_SECONDS = 6.0
_BOUNDARY = {
    "INT": ("0", "-1", "1", "2", "3", "4", "8", "17", "4294967296", "99999999999999999999", "1.5", "nan", "", "\u0661"),
    "FLOAT": ("0", "-1", "0.5", "1", "2", "1e-300", "1e308", "nan", "inf", "-inf", "1e999", "x", ""),
    "STR": ("", "a", "abca|bcca", "|", "é", "\x1b[31m", "x" * 3000, "..", "/dev/null", "sudoku", "None"),
    "PATH": ("", ".", "..", "/dev/null", "/", "new/folder/file", "x" * 300, "file.txt", "file.svg", "\x1b[31m", "run"),
}  # fmt: skip
_USUAL = {
    "INT": ("1", "2", "3", "4", "6", "8"), "FLOAT": ("0.1", "0.5", "0.9", "1.5", "2.0"), "STR": ("abca|bcca", "run"),
    "PATH": ("out.svg", "out.json", "run", "new"),
}  # fmt: skip


def fuzz(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Change one to three things in commands that work, and give them."""
    here = target.fresh_folder("commands")
    target.run(training(target).command, here)
    target.run(["data", "build", "edit-distance", "--task.length", "6", "--size", "4", "--out", "file.txt"], here)
    commands = {" ".join(base[:2]): base for base in _bases(target)}
    flags = {name: target.flags(*_verb(base)) for name, base in commands.items()}
    for number in range(10_000 if full else 500):
        case = f"{seed}@{number}"
        draws = random.Random(case)
        name = draws.choice(sorted(commands))
        command = _changed(commands[name], flags[name], draws)
        yield one(f"command lines, {name.split()[0]}", case, partial(_give, target, here, command))


def _give(target: Target, here: Path, command: list[str]) -> Result:
    folder = target.fresh_folder("command")
    shutil.copytree(here, folder / "here")
    outcome = target.run(command, folder / "here", seconds=_SECONDS, most_bytes=3 * GIB)
    shutil.rmtree(folder)
    long = outcome.timed_out or outcome.too_big  # a command may ask for much
    problem = None if long else outcome.complaint or _badly_said(outcome)
    ended = "stopped, as it asked for much" if long else f"exit code {outcome.code}"
    return result(problem and f"{problem} (looped {' '.join(map(repr, command))[:200]})", ended)


def _bases(target: Target) -> list[list[str]]:
    """Return small commands of every verb that work."""
    tasks = ("edit-distance", "lcs", "sudoku", "countdown", "decision-tree")
    size = ["--size", "2"]
    data = [["data", verb, task, *size] for verb in ("sample", "stats") for task in tasks]
    return [
        [*training_arguments(target), "--out", "run"], [*training_arguments(target), "--out", "new"],
        ["eval", "run", *size], ["solve", "run", "--input", "abca|bcca"], ["inspect", "run"], ["models", "list"],
        ["models", "pack", "run", "edit-distance/mine", *size], *data,
        ["data", "build", "edit-distance", *size, "--out", "d.jsonl"], ["data", "check", "file.txt"],
        ["theory", "bounds"], ["theory", "approximate"], ["theory", "moduli"], ["paper", "list"],
        ["paper", "status", "table1", "--scale", "smoke"], ["paper", "collect"], ["paper", "report"],
    ]  # fmt: skip


def _verb(base: list[str]) -> list[str]:
    """Return the words in front of which a verb's help is asked for."""
    words = [word for word in base[:3] if not word.startswith("-") and word not in ("run", "file.txt", "table1")]
    return words[:3] if words[0] == "data" and "check" not in words else words[: 2 if len(words) > 1 else 1]


def _changed(base: list[str], flags: dict[str, str], draws: random.Random) -> list[str]:
    command = list(base)
    for _ in range(draws.choice((1, 1, 2, 3))):
        way = draws.random()
        if way < 0.8 and flags:
            flag = draws.choice(sorted(flags))
            command += [flag, *_value(flags[flag], draws)]
        elif way < 0.9 and len(command) > 1:
            command[draws.randrange(1, len(command))] = draws.choice([*_BOUNDARY["STR"], *_BOUNDARY["PATH"]])
        elif len(command) > 1:
            del command[draws.randrange(1, len(command))]
    return command


def _value(takes: str, draws: random.Random) -> list[str]:
    """Return a value for a flag, most often one that it takes."""
    if not takes:
        return []
    choices = [choice for part in re.findall(r"\{([^}]*)\}", takes) for choice in part.split(",")]
    kinds = [kind for kind in _BOUNDARY if kind in takes]
    if choices and (not kinds or draws.random() < 0.3):
        return [draws.choice(choices) if draws.random() < 0.9 else "nonsense"]
    kind = kinds[0] if kinds else "STR"
    values = _USUAL[kind] if draws.random() < 0.6 else _BOUNDARY[kind]
    return [draws.choice(values) for _ in range(draws.randrange(4) if takes.startswith("[") else 1)]


def _badly_said(outcome: Outcome) -> str | None:
    text = outcome.errors[-1] if outcome.errors else ""
    if len(text) > 1000:
        return f"a message too long: {len(text):,} characters, {text[:80]}"
    if "\x1b" in text:
        return "a message with raw escape codes"
    return None
