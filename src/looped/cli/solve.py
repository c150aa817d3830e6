"""`looped solve RUN`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from looped.cli.args import AnyRun, parse, require_svg, show
from looped.utils.errors import require
from looped.utils.types import Device


@dataclass(frozen=True)
class SolveCommand:
    """Ask a trained run and watch its answer after every loop: animated on a terminal, in lines elsewhere."""

    run: AnyRun
    input: str | None = None
    """the question, such as kitten|sitting (None: a test example)"""
    index: int | None = None
    """number of the test example to ask, from 0 (None: one that the model solves, or number 0)"""
    loops: int | None = None
    """loops to run (None: the trained number)"""
    exit: str | None = None
    """stop by a rule before the last loop: stable:3, entropy:0.1, change:0.01, budget:12 or gate:0.9"""
    images: int = 1
    """Sudoku: ask about up to this many symmetric images of the puzzle, until an answer obeys the rules"""
    delay: float | None = None
    """seconds between loops on a terminal (None: 0.15, or less so that all loops take at most five seconds)"""
    svg: Path | None = None
    """write the animation to this SVG file"""
    device: Device = "auto"
    """device to compute on"""
    json: bool = False
    """print one JSON object"""


def solve(arguments: list[str]) -> None:
    """Ask a run one question and show its answers."""
    command = parse(SolveCommand, arguments, "looped solve")
    require(command.delay is None or 0 <= command.delay <= 60, f"--delay: expected 0..60 seconds, got {command.delay}")
    require_svg("--svg", command.svg)
    require(command.input is None or command.index is None, "expected --input or --index, got both")

    require(command.exit is None or command.images == 1, "expected --exit or --images, got both")

    from looped.tasks.base import MAX_INDEX

    in_range = command.index is None or 0 <= command.index <= MAX_INDEX
    require(in_range, f"--index: expected a number in 0..{MAX_INDEX}, got {command.index}")

    from looped.inference import load
    from looped.models.engines import choose_device
    from looped.utils.files import save_text
    from looped.viz.animation import film
    from looped.viz.board import Play, final_board, question, show_live

    run = load(command.run, choose_device(command.device), question=command.input)
    if command.input is not None:
        inputs = run.task.parse(command.input)
        truth = run.task.solve(inputs)
        if (difference := run.task.unlike_examples(inputs)) is not None:
            print(f"looped: unlike the examples that {run.name} was tested with: {difference}", file=sys.stderr)
    else:
        inputs, targets = run.test_example(command.index)
        truth = run.task.answer(targets)
    if command.images == 1:
        image, frames = 1, list(run.solve(inputs, command.loops, exit_rule=command.exit))
    else:
        from looped.inference.images import solve_images

        image, frames = solve_images(run, inputs, command.images, command.loops)
    play = Play(run.name, run.task, inputs, frames, truth)
    verdict = run.task.verdict(inputs, frames[-1].outputs, truth)
    if command.images > 1:
        verdict += f" (image {image} of {command.images})" if image else f" (and so are all {command.images} images)"
    if command.svg is not None:
        save_text(command.svg, film(play))
    if command.json:
        steps = [{"loop": f.loop, "answer": f.answer, "confidence": f.confidence, "change": f.change} for f in frames]
        about = {"task": run.task.name, "run": run.name, "input": run.task.render(inputs), "truth": truth}
        answer = {"answer": frames[-1].answer, "right": play.is_right(frames[-1]), "verdict": verdict}
        show({**about, "step": run.step, **answer, "frames": steps}, "", as_json=True)
        return

    from rich.console import Console

    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        show_live(play, console, command.delay)
    else:
        print(f"model       {run.name}")
        print(question(play))
        width = max(len(frame.answer) for frame in frames)
        for frame in frames:
            parts = [f"loop {frame.loop:>4}", frame.answer.ljust(width), frame.how_sure, f"change {frame.change:.3f}"]
            print("   ".join(filter(None, parts)))
        if truth is not None:
            print(f"truth       {truth}")
        final_board(play, console)
    print(verdict)
