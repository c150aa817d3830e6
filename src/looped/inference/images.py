"""Ask a Sudoku model about several symmetric images of a puzzle and keep an answer that obeys the rules.

A puzzle has one solution, so a full board that keeps the clues and obeys the rules is the solution. Checking an answer
is therefore free: it needs no truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from looped.inference.run import Frame, Run
from looped.models import LoopModel
from looped.tasks import Task
from looped.tasks.sudoku import Sudoku
from looped.tasks.sudoku.symmetry import Symmetry, obey_rules, random_symmetries
from looped.training.evaluation import EVALUATION_SEED, Evaluation, batch_size, evaluate, num_held_out, read_outs
from looped.utils.errors import InputError, require_within
from looped.utils.stats import mean_interval
from looped.utils.types import Progress

MAX_IMAGES = 1000


@dataclass(frozen=True)
class ImageScore:
    """How many puzzles are solved after some loops when several images are tried."""

    loops: int
    images: int
    """number of images that were tried; any of them may solve the puzzle"""
    accuracy: float
    low: float
    high: float
    """95 % interval"""

    def __str__(self) -> str:
        images = "1 image " if self.images == 1 else f"{self.images} images"
        return f"{self.loops:>6}  {self.accuracy:>10.4f}  {self.low:.4f} to {self.high:.4f}  with {images}"


def solve_images(
    run: Run, puzzle: np.ndarray, num_images: int, num_loops: int | None = None
) -> tuple[int, list[Frame]]:
    """Ask about one image after the other until an answer obeys the rules.

    Return the number of that image, from 1, and its frames, mapped back to the puzzle. If no answer obeys the rules,
    return 0 and the frames of the puzzle itself.
    """
    task, symmetries = _sudoku(run.task), _symmetries(run.task, num_images)
    frames_of_puzzle: list[Frame] = []
    for number, symmetry in enumerate(symmetries, 1):
        frames = [
            replace(
                frame,
                outputs=(outputs := symmetry.undo(frame.outputs)),
                answer=task.answer(outputs),
                probabilities=_undo_cells(symmetry.cells, frame.probabilities),
            )
            for frame in run.solve(symmetry.apply(puzzle), num_loops)
        ]
        if obey_rules(frames[-1].outputs, task.side):
            return number, frames
        frames_of_puzzle = frames_of_puzzle or frames
    return 0, frames_of_puzzle


def evaluate_images(
    model: LoopModel,
    task: Task,
    num_images: int,
    size: int | None = None,
    loops: Sequence[int] | None = None,
    *,
    example_size: int | None = None,
    progress: Progress | None = None,
) -> tuple[Evaluation, list[ImageScore]]:
    """Return the plain evaluation on test puzzles, and the fraction that 1, 2, 4, ... and `num_images` images solve.

    The first image is the puzzle itself, so the plain evaluation has its answers. `progress` counts images of puzzles.
    """
    task = _sudoku(task)
    symmetries = _symmetries(task, num_images)[1:]
    solved: dict[int, np.ndarray] = {}
    num_puzzles = num_held_out(task, "test", size, example_size)
    total = num_images * num_puzzles

    def note(loop: int, number: int, start: int, images: np.ndarray, scores: Tensor) -> None:
        answers = scores.argmax(dim=-1).cpu().numpy()
        of_loop = solved.setdefault(loop, np.zeros((num_images, num_puzzles), dtype=np.bool_))
        of_loop[number, start : start + len(images)] = obey_rules(np.where(images == 0, answers, images), task.side)

    report = evaluate(
        model,
        task,
        "test",
        size,
        loops,
        example_size=example_size,
        progress=None if progress is None else lambda done, _: progress(done, total),
        observe=lambda loop, start, batch, scores: note(loop, 0, start, batch.inputs, scores),
    )
    step = batch_size(task)
    for start in range(0, num_puzzles, step):
        indices = np.arange(start, min(start + step, num_puzzles))
        puzzles = task.sample(EVALUATION_SEED, "test", indices, example_size).inputs
        for number, symmetry in enumerate(symmetries, 1):
            images = symmetry.apply(puzzles)
            for loop, scores in read_outs(model, images, list(solved)):
                note(loop, number, start, images, scores)
            if progress is not None:
                progress(num_puzzles + len(symmetries) * start + number * len(indices), total)
    counts = sorted({*(2**power for power in range(num_images.bit_length())), num_images})
    return report, [_score(loop, solved[loop][:count]) for loop in sorted(solved) for count in counts]


def _score(loops: int, solved: np.ndarray) -> ImageScore:
    """Return the score of (images, puzzles) booleans."""
    any_image = solved.max(axis=0).astype(np.float64)
    return ImageScore(loops, len(solved), float(any_image.mean()), *mean_interval(any_image))


def _undo_cells(cells: np.ndarray, values: np.ndarray) -> np.ndarray:
    original = np.empty_like(values)
    original[cells] = values
    return original


def _sudoku(task: Task) -> Sudoku:
    if not isinstance(task, Sudoku):
        raise InputError(f"images: expected a Sudoku model, got one for {task.name}")
    return task


def _symmetries(task: Task, num_images: int) -> list[Symmetry]:
    require_within("images", num_images, 1, MAX_IMAGES)
    return random_symmetries(_sudoku(task).side, num_images)
