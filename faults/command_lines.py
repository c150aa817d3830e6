"""Command lines made from the flags that the help lists, most of them right enough to get behind the parser.

A command ends with exit code 0, or with exit code 2 and one line of at most a thousand printable characters.
"""

import random
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from faults.target import GIB, Outcome, Target
from faults.tries import Result, Tries, result
from faults.workloads import training, training_arguments

_SECONDS = 6.0
_BATCH = 25
_BOUNDARY = {
    "INT": ("0", "-1", "1", "2", "3", "4", "8", "17", "4294967296", "99999999999999999999", "1.5", "nan", "", "\u0661"),
    "FLOAT": ("0", "-1", "0.5", "1", "2", "1e-300", "1e308", "nan", "inf", "-inf", "1e999", "x", ""),
    "STR": (
        "", "a", "abca|bcca", "|", "é", "\x1b[31m", "x" * 3000, "..", "/dev/null", "sudoku", "None", "stable:3",
        "entropy:0.1", "change:nan", "budget:-1", ":", "own.py", "own.py:Majority", "own.py:", ":Majority",
    ),
    "PATH": (
        "", ".", "..", "/dev/null", "/", "new/folder/file", "x" * 300, "file.txt", "file.svg", "\x1b[31m", "run",
        "text", "own.py",
    ),
}  # fmt: skip
_USUAL = {
    "INT": ("1", "2", "3", "4", "6", "8"), "FLOAT": ("0.1", "0.5", "0.9", "1.5", "2.0"), "STR": ("abca|bcca", "run"),
    "PATH": ("out.svg", "out.json", "run", "new"),
}  # fmt: skip


def fuzz(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Change one to three things in commands that work, and give them."""
    here = target.fresh_folder("commands")
    bases = _bases(target, here)
    flags = {verb: target.flags(*verb.split(), folder=here) for verb, _ in bases}
    commands: dict[str, list[tuple[str, list[str]]]] = {}
    for number in range(10_000 if full else 500):
        case = f"{seed}@{number}"
        draws = random.Random(case)
        verb, base = draws.choice(bases)
        commands.setdefault(base[0], []).append((case, _changed(base, flags[verb], draws)))
    for name, cases in commands.items():
        for start in range(0, len(cases), _BATCH):
            some = dict(cases[start : start + _BATCH])
            yield Tries(f"command lines, {name}", list(some), partial(_give, target, here, some))


def _give(target: Target, here: Path, commands: dict[str, list[str]], cases: Sequence[str]) -> list[Result]:
    """Give some of the commands, each in a folder of its own."""
    folder = target.fresh_folder("command")
    for case in cases:
        shutil.copytree(here, folder / case)
    chosen = [commands[case] for case in cases]
    outcomes = target.run_many(chosen, folder, folders=list(cases), seconds=_SECONDS, most_bytes=3 * GIB)
    shutil.rmtree(folder)
    return [_judged(*pair) for pair in zip(chosen, outcomes, strict=True)]


def _judged(command: list[str], outcome: Outcome) -> Result:
    long = outcome.timed_out or outcome.too_big  # a command may ask for much
    problem = None if long else outcome.complaint or _badly_said(outcome)
    ended = "stopped, as it asked for much" if long else f"exit code {outcome.code}"
    return result(problem and f"{problem} (looped {' '.join(map(repr, command))[:200]})", ended)


def _bases(target: Target, here: Path) -> list[tuple[str, list[str]]]:
    """Return small commands that work in a folder, each with the words whose help lists its flags."""
    (here / "story.txt").write_text("One day a fox saw a lake. It was blue.\n" * 200)
    small = ["--task.text", "story.txt", "--task.seq-len", "8", "--model.dim", "16", "--model.num-heads", "2",
             "--model.num-loops", "2", "--train.num-steps", "2", "--train.batch-size", "2"]  # fmt: skip
    own = target.source / "examples" / "own_task.py"
    if own.exists():
        shutil.copy(own, here / "own.py")
    size, data = ["--size", "2"], ["data", "build", "edit-distance", "--task.length", "6", "--size", "4", "--out"]
    made = [
        training(target).command,
        ["train", "language", "--recipe", "laptop", *small, "--out", "text"],
        [*data, "file.txt"],
    ]
    for command in made:
        target.run(command, here)
    tasks = ["edit-distance", "lcs", "sudoku", "countdown", "decision-tree", *["own.py:Majority"] * own.exists()]
    train = "train edit-distance"
    return [
        (train, [*training_arguments(target), "--out", "run"]), (train, [*training_arguments(target), "--out", "new"]),
        ("train language", made[1]), ("eval", ["eval", "run", *size]), ("inspect", ["inspect", "run"]),
        ("solve", ["solve", "run", "--input", "abca|bcca"]), ("models list", ["models", "list"]),
        ("generate", ["generate", "text", "--prompt", "One day", "--max-tokens", "4"]), ("check", ["check", "run"]),
        ("export", ["export", "text", "--out", "exported"]),
        ("models pack", ["models", "pack", "run", "--out", "model.safetensors", *size]),
        *((f"data {verb} {task}", ["data", verb, task, *size]) for verb in ("sample", "stats") for task in tasks),
        ("data build edit-distance", [*data, "d.jsonl"]), ("data check", ["data", "check", "file.txt"]),
        *((f"theory {verb}", ["theory", verb]) for verb in ("bounds", "approximate", "moduli", "memorize", "plot")),
        ("paper list", ["paper", "list"]), ("paper status", ["paper", "status", "table1", "--scale", "smoke"]),
        ("paper collect", ["paper", "collect"]), ("paper report", ["paper", "report"]),
    ]  # fmt: skip


def _changed(base: list[str], flags: dict[str, str], draws: random.Random) -> list[str]:
    command = list(base)
    if draws.random() < 0.05:
        command += ["--plugin", draws.choice(("own.py", *_BOUNDARY["PATH"]))]
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
