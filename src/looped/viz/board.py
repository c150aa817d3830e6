"""Show a model's answers after every loop on a terminal: as a Sudoku board, or as a table for other tasks."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # importing these would load torch, which is not needed here
    from looped.inference.run import Frame
    from looped.tasks import Task

SECONDS_PER_LOOP = 0.15
LONGEST_SECONDS = 5.0
"""longest duration of the whole animation, unless a delay is chosen"""

SURE, LIKELY = 0.9, 0.5
STYLES = {"given": "bold", "sure": "green", "likely": "yellow", "unsure": "bright_black", "against the rules": "red"}
VERDICTS = {"solved": "bold green", "open": "", "against the rules": "red"}
QUESTION_LINES = 4
"""most lines of a question above its answers"""
SHOWN_POINTS, SHOWN_NUMBERS = 2, 6
"""points of a decision tree that are shown, and numbers of each"""
ASCII = str.maketrans("┌┬┐├┼┤└┴┘─│·", "+++++++++-|.")


@dataclass(frozen=True)
class Play:
    """One question and the model's answers to it."""

    title: str
    task: "Task"
    inputs: np.ndarray
    frames: Sequence["Frame"]
    truth: str | None = None

    def is_right(self, frame: "Frame") -> bool | None:
        """Return whether the answer of a frame is right, or None if nothing tells."""
        return self.task.is_right(self.inputs, frame.outputs, self.truth)


View = Callable[[Play, int, Console], RenderableType]
"""Draws the answer at one place in `frames`."""


def show_live(play: Play, console: Console, delay: float | None = None) -> None:
    """Draw loop after loop in the same place. The last one stays."""
    view = VIEWS.get(play.task.name, table)
    if delay is None:
        delay = min(SECONDS_PER_LOOP, LONGEST_SECONDS / len(play.frames))
    with Live(console=console, auto_refresh=False) as live:
        for place in range(len(play.frames)):
            live.update(view(play, place, console), refresh=True)
            if place + 1 < len(play.frames):
                time.sleep(delay)


def final_board(play: Play, console: Console) -> None:
    """Print the last answer as a board, without colours, if the task has one."""
    if play.task.name in VIEWS:
        console.print(_grid(play, len(play.frames) - 1, console))


def board(play: Play, place: int, console: Console) -> RenderableType:
    """Draw a Sudoku: given digits, and the model's digits coloured by confidence, or red if they break a rule."""
    said, text = verdict(play, place)
    numbers = Text(f"{play.frames[place].how_sure}   ").append(text, VERDICTS[said])
    legend = Text("   ").join(Text(*each) for each in STYLES.items())
    return Group(_heading(play, place), "", _grid(play, place, console), "", numbers, legend)


def cells(play: Play, place: int) -> list[tuple[int, str]]:
    """Return each cell's digit (0: none) and kind, one of `STYLES`. Given digits are never changed."""
    frame = play.frames[place]
    digits = np.where(play.inputs > 0, play.inputs, frame.outputs)
    wrong = rule_breakers(play.task, digits)
    kinds = [
        "given" if given else _kind(probability, broken)
        for given, probability, broken in zip(play.inputs > 0, frame.probabilities, wrong, strict=True)
    ]
    return list(zip(digits.tolist(), kinds, strict=True))


def verdict(play: Play, place: int) -> tuple[str, str]:
    """Return the state of a board, one of `VERDICTS`, and the same in words."""
    drawn = cells(play, place)
    broken = sum(kind == "against the rules" for _, kind in drawn)  # given cells are never counted
    if broken:
        return "against the rules", f"cells against the rules: {broken}"
    empty = sum(digit == 0 for digit, _ in drawn)
    return ("open", f"open cells: {empty}") if empty else ("solved", "solved")


def rule_breakers(task: "Task", digits: np.ndarray) -> np.ndarray:
    """Return, for each cell, whether another cell of its row, column or box has the same digit."""
    same = (digits[:, None] == digits) & (digits > 0) & ~np.eye(len(digits), dtype=np.bool_)
    units = [np.array(ids) for ids in task.spec.coordinates[1:]]
    return (same & np.any([ids[:, None] == ids for ids in units], axis=0)).any(axis=1)


def table(play: Play, place: int, console: Console) -> RenderableType:
    """Draw any task: the latest answers that fit on the screen, green if right."""
    lines = question(play).splitlines() or [""]
    shown, more = lines[:QUESTION_LINES], len(lines) - QUESTION_LINES
    if more > 0:
        shown[-1] += f" ... ({more} more lines)"
    room = max(1, console.height - 7 - len(shown))
    rows = Table("loop", "answer", "change", "", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for frame in play.frames[max(0, place + 1 - room) : place + 1]:
        colour = "green" if play.is_right(frame) else ""
        rows.add_row(str(frame.loop), Text(frame.answer, colour), f"{frame.change:.3f}", frame.how_sure)
    asked = Text("\n".join(shown), no_wrap=True, overflow="ellipsis")
    truth = [] if play.truth is None else ["", Text(f"truth: {play.truth}")]
    return Group(_heading(play, place), asked, "", rows, *truth)


VIEWS: dict[str, View] = {"sudoku": board}


def question(play: Play) -> str:
    """Return the question as a person reads it, shortened for tasks whose inputs are long lists of numbers."""
    return QUESTIONS.get(play.task.name, play.task.render)(play.inputs)


def points(inputs: np.ndarray) -> str:
    """Return a decision tree's question: the number of points, the first ones and the query, shortened."""
    xs, values = inputs[::2], inputs[1::2, 0]
    first = f": the first {SHOWN_POINTS}" if len(values) > SHOWN_POINTS else ""
    what = ("point", "its value") if len(values) == 1 else ("points", "their values")
    heading = f"{len(values)} {what[0]} of {inputs.shape[1]} numbers and {what[1]}{first}, then the query"
    known = [f"{_numbers(x)} -> {value:.2f}" for x, value in zip(xs, values[:SHOWN_POINTS], strict=False)]
    return "\n".join([heading, *known, f"{_numbers(xs[-1])} -> ?"])


QUESTIONS: dict[str, Callable[[np.ndarray], str]] = {"decision-tree": points}


def _heading(play: Play, place: int) -> Text:
    return Text(play.title, "bold").append(f"   loop {play.frames[place].loop} of {len(play.frames)}", "not bold")


def _grid(play: Play, place: int, console: Console) -> Text:
    """Draw the board's lines and digits."""
    side = math.isqrt(len(play.inputs))
    box = math.isqrt(side)
    rules = [left + middle.join(["─" * (2 * box + 1)] * box) + right for left, middle, right in ("┌┬┐", "├┼┤", "└┴┘")]
    pieces: list[tuple[str, str]] = []
    for cell, (digit, kind) in enumerate(cells(play, place)):
        row, column = divmod(cell, side)
        if column == 0 and row % box == 0:
            pieces.append((rules[min(row, 1)] + "\n", "dim"))
        if column % box == 0:
            pieces.append(("│ ", "dim"))
        pieces.append((f"{digit or '·'} ", STYLES[kind]))
        if column == side - 1:
            pieces.append(("│\n", "dim"))
    pieces.append((rules[2], "dim"))
    plain = console.options.ascii_only
    return Text.assemble(*((text.translate(ASCII) if plain else text, style) for text, style in pieces))


def _numbers(x: np.ndarray) -> str:
    """Return the first numbers of a point in columns."""
    return " ".join(f"{number:5.2f}" for number in x[:SHOWN_NUMBERS]) + (" ..." if len(x) > SHOWN_NUMBERS else "")


def _kind(probability: float, wrong: bool) -> str:
    if wrong:
        return "against the rules"
    return "sure" if probability >= SURE else "likely" if probability >= LIKELY else "unsure"
