"""Several symmetric images of a Sudoku: any answer that obeys the rules is the solution."""

import numpy as np
import pytest
import torch

from looped import load
from looped.inference.images import evaluate_images, solve_images
from looped.models import LoopModel
from looped.tasks.sudoku import Sudoku
from looped.tasks.sudoku.symmetry import random_symmetries
from looped.training.evaluation import evaluate
from looped.utils.errors import InputError


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    return load("sudoku/looped-r32")


def test_evaluate_images_first_image_equals_plain_evaluation(run):
    task = Sudoku(pool=0)
    report, (single, pair) = evaluate_images(run.model, task, 2, size=6, loops=[12])
    plain = run.model  # the same examples, scored against their solutions
    batch = task.sample(0, "test", range(6))
    with torch.no_grad():
        *_, state = plain.iterate(torch.from_numpy(batch.inputs), 12)
        answers = plain.read_out(state).argmax(dim=-1).numpy()
    right = (np.where(batch.inputs == 0, answers, batch.inputs) == batch.targets).all(axis=1)
    assert (single.images, pair.images) == (1, 2)
    assert single.accuracy == right.mean()
    assert pair.accuracy >= single.accuracy
    assert report == evaluate(run.model, task, size=6, loops=[12])


def test_evaluate_images_runs_the_model_once_per_image_and_tells_of_each(run, monkeypatch):
    passes, task = [], Sudoku(pool=0)
    original = LoopModel.states_at

    def counted(self, inputs, *options):
        passes.append(len(inputs))
        return original(self, inputs, *options)

    monkeypatch.setattr(LoopModel, "states_at", counted)
    told = []
    evaluate_images(run.model, task, 3, size=4, loops=[2, 5], progress=lambda *given: told.append(given))
    assert passes == [4, 4, 4]
    assert told == [(4, 12), (8, 12), (12, 12)]


def test_solve_images_returns_the_solution_of_the_puzzle_itself(run):
    inputs, targets = run.test_example()
    # Start from an image, so that the answer must be mapped back.
    symmetry = random_symmetries(9, 3, seed=9)[2]
    number, frames = solve_images(run, symmetry.apply(inputs), num_images=4)
    assert number >= 1
    np.testing.assert_array_equal(frames[-1].outputs, symmetry.apply(targets))


def test_solve_images_without_an_answer_shows_the_puzzle_itself(run):
    inputs, _ = run.test_example()
    number, frames = solve_images(run, inputs, num_images=2, num_loops=1)
    assert number == 0
    is_clue = inputs > 0
    np.testing.assert_array_equal(frames[-1].outputs[is_clue], inputs[is_clue])


def test_images_of_another_task_are_refused():
    other = load("lcs/words-looped-r20")
    with pytest.raises(InputError) as error:
        evaluate_images(other.model, other.task, 2)
    assert error.value.field == "images"
