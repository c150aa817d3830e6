"""`looped train`, `looped eval` and `looped solve`."""

import math
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from looped.cli.args import JSON_HELP, AnyRun, expand_train_flags, leading_name, parse, peek, require_svg, show
from looped.cli.progress import Bar
from looped.utils.errors import require
from looped.utils.text import plural
from looped.utils.types import Device, Split


def train(arguments: list[str]) -> None:
    from looped.config import ModelConfig, RunConfig, TrainConfig
    from looped.recipes import RECIPES, recipe
    from looped.tasks import TASKS, task_class

    # Without a task there is no help about the knobs: where each of them starts from is up to the task's recipe.
    name, rest = leading_name(arguments, "task", TASKS, "looped train TASK --help")
    rest = expand_train_flags(rest)
    chosen = peek(rest, "--recipe") or "fast"
    start = recipe(chosen, name, peek(rest, "--model.block") or "looped")
    # A fixed schedule has no choices: those of the recipe must not stand in its way.
    fixed = [what for what in ("loop", "size") if peek(rest, f"--train.curriculum.{what}-schedule") == "fixed"]
    no_choices: dict[str, Any] = {f"{what}_{part}": value for what in fixed for part, value in _FIXED.items()}
    start = replace(start, train=start.train.override(**no_choices))
    fields: list[Any] = [
        ("recipe", Annotated[Literal[tuple(RECIPES)], tyro.conf.arg(help=_RECIPE_HELP)], field(default=chosen)),
        ("task", task_class(name), field(default=start.task)),
        ("model", ModelConfig, field(default=start.model)),
        ("train", TrainConfig, field(default=start.train)),
        ("seed", Annotated[int, tyro.conf.arg(help="seed of the weights and of the data")], field(default=0)),
        ("out", Annotated[Path | None, tyro.conf.arg(help=_OUT_HELP)], field(default=None)),
        ("json", Annotated[bool, tyro.conf.arg(help=JSON_HELP)], field(default=False)),
    ]
    parsed: Any = parse(make_dataclass("TrainCommand", fields, frozen=True), rest, f"looped train {name}")
    config = RunConfig(parsed.task, parsed.model, parsed.train, parsed.seed)

    from looped import training
    from looped.serde import encode

    interrupted = None
    try:
        result = training.train(config, parsed.out)
    except training.Interrupted as stop:
        interrupted, result = stop, stop.result
    done = (
        f"{config.task.metric} {result.validation:.3f} on validation data after {result.samples:,} samples, "
        f"{result.seconds:.0f} s"
        if result.finished
        else f"stopped at step {result.step} of {result.num_steps}; the same command resumes it"
    )
    show(encode(result), f"{result.folder}: {done}", as_json=parsed.json)
    if interrupted is not None:
        raise interrupted  # so that what waits for this command to succeed does not go on


_FIXED = {"schedule": "fixed", "choices": ()}
_RECIPE_HELP = (
    "starting values of all other flags: the paper's settings, the fastest to learn, dense (an answer for every prefix; "
    "string tasks only), or a laptop's size"
)
_OUT_HELP = "the run's folder (None: runs/ and a name made of the config)"


@dataclass(frozen=True)
class EvalCommand:
    """Measure a trained run on held-out examples, or on those that it was trained on."""

    run: AnyRun
    loops: tuple[int, ...] = ()
    """loop counts to measure at (none given: the trained one)"""
    split: Split = "test"
    """which examples (train: those that the run has seen)"""
    size: int | None = None
    """how many examples, at most a million (None: 1000; of a text, all)"""
    sets: bool = False
    """measure on the task's further test sets, such as Sudoku by difficulty"""
    device: Device = "auto"
    """where to compute"""
    json: bool = False
    """print one JSON object"""


def evaluate(arguments: list[str]) -> None:
    command = parse(EvalCommand, arguments, "looped eval")
    require(not command.sets or command.split != "train", "expected --sets or --split train, got both")

    from looped.inference.shipping import load
    from looped.models.engines import choose_device
    from looped.training import evaluation
    from looped.training.schedules import trained_size

    run = load(command.run, choose_device(command.device))
    sets = run.task.test_sets() if command.sets else {}
    require(bool(sets) or not command.sets, f"{run.task.name} has no further test sets")
    reports = {}
    for name, task in (sets or {"": run.task}).items():
        config, asked = replace(run.config, task=task), (command.size, command.loops or None)
        with Bar() as progress:
            if command.split == "train":
                reports[name] = evaluation.evaluate_trained(run.model, config, run.step, *asked, progress=progress)
            else:
                reports[name] = evaluation.evaluate(
                    run.model, task, command.split, *asked, example_size=trained_size(config), progress=progress
                )
    for report in reports.values():
        report["step"] = run.step
    num_steps = run.config.train.num_steps
    # Not trained to its end, or its last checkpoint is damaged.
    warning = f"measured at step {run.step} of {num_steps}\n" if run.step < num_steps else ""
    text = "\n\n".join(_readable(report, name) for name, report in reports.items())
    show({"sets": reports} if sets else reports[""], warning + text, as_json=command.json)


def _readable(report: dict[str, Any], name: str) -> str:
    """An evaluation as a small table."""
    metric, what = report["metric"], f"{report['task']}, {name}" if name else report["task"]
    width = max(10, len(metric))
    lines = [
        f"{what}: {report['size']} {report['split']} examples, trained with {plural(report['trained_loops'], 'loop')}",
        f"{'loops':>6}  {metric:>{width}}  95 % interval",
    ]
    for row in report["rows"]:
        if math.isfinite(row[metric]):
            lines.append(f"{row['loops']:>6}  {row[metric]:>{width}.4f}  {row['low']:.4f} to {row['high']:.4f}")
        else:
            lines.append(f"{row['loops']:>6}  the outputs overflow: no {metric}")
    return "\n".join([*lines, f"best constant answer: {report['baseline']:.4f}"])


@dataclass(frozen=True)
class SolveCommand:
    """Ask a trained run, and see its answer after every loop: played on a terminal, in lines elsewhere."""

    run: AnyRun
    input: str | None = None
    """the question, such as abca|bcca (None: a test example)"""
    index: int | None = None
    """number of the test example that is asked without an input, from 0 (None: the first)"""
    loops: int | None = None
    """loops to run (None: the trained number)"""
    delay: float | None = None
    """seconds between loops on a terminal (None: 0.15, or less where five seconds would be over)"""
    svg: Path | None = None
    """file to write what a terminal shows to, as one animated picture for a page"""
    json: bool = False
    """print one JSON object"""


def solve(arguments: list[str]) -> None:
    command = parse(SolveCommand, arguments, "looped solve")
    require(command.delay is None or 0 <= command.delay <= 60, f"delay must be in 0..60 seconds, got {command.delay}")
    require_svg(command.svg)
    require(command.input is None or command.index is None, "expected an input or an index, got both")

    from looped.tasks.base import MAX_INDEX

    index = command.index or 0
    require(0 <= index <= MAX_INDEX, f"index must be in 0..{MAX_INDEX}, got {index}")

    from looped.inference.shipping import load
    from looped.utils.files import save_text
    from looped.viz.animation import film
    from looped.viz.board import Play, final_board, question, show_live

    run = load(command.run)
    if command.input is not None:
        inputs = run.task.parse(command.input)
        truth = run.task.solve(inputs)
        if (why := run.task.unlike_examples(inputs)) is not None:
            print(f"looped: unlike anything that it was tested with: {why}", file=sys.stderr)
    else:
        inputs, targets = run.test_example(index)
        truth = run.task.answer(targets)
    frames = list(run.solve(inputs, command.loops))
    play = Play(run.name, run.task, inputs, frames, truth)
    if command.svg is not None:
        save_text(command.svg, film(play))
    if command.json:
        steps = [{"loop": f.loop, "answer": f.answer, "confidence": f.confidence, "change": f.change} for f in frames]
        asked = {"task": run.task.name, "run": run.name, "input": run.task.render(inputs), "truth": truth}
        show({**asked, "step": run.step, "answer": frames[-1].answer, "frames": steps}, "", as_json=True)
        return

    from rich.console import Console

    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        show_live(play, console, command.delay)
        return
    print(question(play))
    for frame in frames:
        said = [f"loop {frame.loop:>4}", frame.answer, frame.how_sure, f"change {frame.change:.3f}"]
        print("   ".join(filter(None, said)))
    if truth is not None:
        print(f"truth       {truth}")
    final_board(play, console)
