"""The command `looped`: its verbs, and the only file that knows tyro.

Each verb's code is imported inside the verb, so that `looped --help` answers at once. A user's mistake is one line on
standard error and exit code 2; results go to standard output, progress to standard error.
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from looped.errors import InputError, unknown

Parsed = TypeVar("Parsed")

_HELP = """looped: train, evaluate and ask looped Transformers

usage: looped VERB ... [--json]     (looped VERB --help tells more)

  train TASK   train a model; stopped anywhere, the same command goes on
  eval RUN     accuracy of a trained run at chosen loop counts, with intervals
  solve RUN    what a trained run answers after every loop
  paper VERB   run the experiments and write the report
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP, end="")
        return 0
    if arguments[0] == "--version":
        from looped import __version__

        print(f"looped {__version__}")
        return 0
    try:
        if arguments[0] not in VERBS:
            raise unknown("verb", arguments[0], VERBS)
        VERBS[arguments[0]](arguments[1:])
    except InputError as error:
        print(f"looped: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("looped: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    return 0


def _train(arguments: list[str]) -> None:
    from looped.config import ModelConfig, RunConfig, TrainConfig
    from looped.recipes import RECIPES, recipe
    from looped.tasks import TASKS, task_class

    name, rest = _leading_name(arguments, "task", TASKS, "looped train TASK --help")
    chosen = _peek(rest, "--recipe") or "fast"
    start = recipe(chosen, name)
    options = make_dataclass(
        "TrainCommand",
        [
            ("recipe", Annotated[Literal[tuple(RECIPES)], tyro.conf.arg(help=_RECIPE_HELP)], field(default=chosen)),
            ("task", task_class(name), field(default=start.task)),
            ("model", ModelConfig, field(default=start.model)),
            ("train", TrainConfig, field(default=start.train)),
            ("seed", Annotated[int, tyro.conf.arg(help="seed of the weights and of the data")], field(default=0)),
            ("out", Annotated[Path | None, tyro.conf.arg(help=_OUT_HELP)], field(default=None)),
            ("json", Annotated[bool, tyro.conf.arg(help=_JSON_HELP)], field(default=False)),
        ],
        frozen=True,
    )
    parsed: Any = _parse(options, rest, f"looped train {name}")
    config = RunConfig(parsed.task, parsed.model, parsed.train, parsed.seed)

    from looped.training import train

    result = train(config, parsed.out)
    if parsed.json:
        print(json.dumps(result))
    elif result["finished"]:
        print(f"{result['folder']}: {config.task.metric} {result['validation']:.3f} on validation data after "
              f"{result['samples']:,} samples, {result['seconds']:.0f} s")  # fmt: skip
    else:
        print(f"{result['folder']}: stopped at step {result['step']} of {result['num_steps']}; "
              "the same command goes on")  # fmt: skip


_RECIPE_HELP = "where the other flags start from: the paper's settings, what learns fastest, or a laptop's size"
_OUT_HELP = "the run's folder (default: runs/ and a name made of the config)"
_JSON_HELP = "print one JSON object"


@dataclass(frozen=True)
class EvalCommand:
    """Measure a trained run on held-out examples."""

    run: tyro.conf.Positional[Path]
    """folder of a trained run"""
    loops: tuple[int, ...] = ()
    """loop counts to measure at (default: the trained one)"""
    split: Literal["train", "validation", "test"] = "test"
    """which examples"""
    size: int = 1000
    """how many examples"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to compute"""
    json: bool = False
    """print one JSON object"""


def _eval(arguments: list[str]) -> None:
    command = _parse(EvalCommand, arguments, "looped eval")

    from looped.inference import load_run
    from looped.training import evaluate
    from looped.training.engine import choose_device

    run = load_run(command.run, choose_device(command.device))
    report = evaluate(run.model, run.task, command.split, command.size, command.loops or None)
    if command.json:
        print(json.dumps(report))
        return
    metric = report["metric"]
    print(
        f"{report['task']}, {report['size']} {report['split']} examples, trained with {report['trained_loops']} loops"
    )
    print(f"{'loops':>6}  {metric:>10}  95 % interval")
    for row in report["rows"]:
        print(f"{row['loops']:>6}  {row[metric]:>10.4f}  {row['low']:.4f} to {row['high']:.4f}")
    print(f"{'best constant answer':>18}: {report['baseline']:.4f}")


@dataclass(frozen=True)
class SolveCommand:
    """Ask a trained run, and see its answer after every loop."""

    run: tyro.conf.Positional[Path]
    """folder of a trained run"""
    input: str | None = None
    """the question, such as abca|bcca (default: a test example)"""
    index: int = 0
    """number of the test example that is asked without an input"""
    loops: int | None = None
    """loops to run (default: the trained number)"""
    json: bool = False
    """print one JSON object"""


def _solve(arguments: list[str]) -> None:
    command = _parse(SolveCommand, arguments, "looped solve")

    from looped.inference import load_run, solve
    from looped.training.evaluation import EVALUATION_SEED

    run = load_run(command.run)
    truth = None
    if command.input is not None:
        inputs = run.task.parse(command.input)
    else:
        example = run.task.sample(EVALUATION_SEED, "test", [command.index])
        inputs, truth = example.inputs[0], run.task.answer(example.targets[0])
    frames = list(solve(run.model, run.task, inputs, command.loops))
    if command.json:
        steps = [{"loop": f.loop, "answer": f.answer, "confidence": f.confidence, "change": f.change} for f in frames]
        question = {"task": run.task.name, "input": run.task.render(inputs), "truth": truth}
        print(json.dumps({**question, "answer": frames[-1].answer, "frames": steps}))
        return
    print(run.task.render(inputs))
    for frame in frames:
        print(f"loop {frame.loop:>4}   {frame.answer}   confidence {frame.confidence:.3f}   change {frame.change:.3f}")
    if truth is not None:
        print(f"truth       {truth}")


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
    json: bool = False
    """print one JSON object"""


def _paper(arguments: list[str]) -> None:
    verb, rest = _leading_name(arguments, "verb", ("list", "run", "status", "report"), "looped paper VERB --help")
    command = _parse(PaperCommand, rest, f"looped paper {verb}")

    from looped.experiments.tables import EXPERIMENTS, experiment

    if verb == "list":
        listed = [make() for make in EXPERIMENTS.values()]
        if command.json:
            print(json.dumps({"experiments": [one.to_json() for one in listed]}))
        else:
            print("\n".join(f"{one.id}: {one.title} ({len(one.cells)} cells)" for one in listed))
        return
    chosen = experiment(command.experiment)
    if verb == "report":
        from looped.experiments.report import write_report

        path = write_report(chosen, command.root, command.out)
        print(json.dumps({"page": str(path)}) if command.json else path)
        return

    from looped.experiments.runner import run_experiment, status

    if verb == "run":
        run_experiment(chosen, command.root, command.workers)
    state = status(chosen, command.root)
    if command.json:
        print(json.dumps({"experiment": chosen.id, "cells": state}))
    else:
        print("\n".join(f"{cell['row']}, {cell['column']}: {cell['state']}" for cell in state))


def _leading_name(arguments: list[str], what: str, known: Any, usage: str) -> tuple[str, list[str]]:
    """The word that a verb starts with, and the rest."""
    if not arguments or arguments[0].startswith("-"):
        raise InputError(f"expected a {what} first, one of {', '.join(known)} ({usage})")
    if arguments[0] not in known:
        raise unknown(what, arguments[0], known)
    return arguments[0], arguments[1:]


def _peek(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag that decides what the other flags' defaults are."""
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None


def _parse(command: type[Parsed], arguments: Sequence[str], program: str) -> Parsed:
    """Flags as a dataclass. tyro draws its complaints in a box; ours are one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(command, args=arguments, prog=program)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(_one_line(complaint.getvalue(), program)) from None


def _one_line(box: str, program: str) -> str:
    """The text of tyro's box, and the first flag it suggests.

    The box has sections between rules: the text, suggestions, a pointer to the help. Where the terminal has no box
    characters, the title is one more section in front.
    """
    lines = [line.strip("│ ") for line in box.splitlines()]
    sections: list[list[str]] = [[]]
    for line in lines:
        if line and not line.strip("─-╭╮╰╯"):
            sections.append([])
        elif line and not line.startswith("╭"):
            sections[-1].append(line)
    text, *rest = sections if "╭" in box else sections[1:]
    near = [match.group() for line in sum(rest, []) if (match := re.match(r"--[\w.-]+", line))]
    if near and text[0].startswith("Unrecognized"):
        return f"{' '.join(text)}; did you mean {near[0]}?"
    return f"{' '.join(text)} ({program} --help lists all flags)"


VERBS: dict[str, Callable[[list[str]], None]] = {"train": _train, "eval": _eval, "solve": _solve, "paper": _paper}


if __name__ == "__main__":
    sys.exit(main())
