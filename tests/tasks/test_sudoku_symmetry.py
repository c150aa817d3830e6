"""Symmetric images of boards, checked with the solver that counts solutions."""

import numpy as np
import pytest

from looped.tasks.sudoku import Sudoku
from looped.tasks.sudoku.exact_cover import all_solutions
from looped.tasks.sudoku.symmetry import obey_rules, random_symmetries


@pytest.fixture(scope="module")
def batch():
    return Sudoku(pool=0).sample(0, "test", range(4))


def text(board: np.ndarray) -> str:
    return "".join(map(str, board))


def test_symmetry_of_a_puzzle_keeps_its_one_solution(batch):
    for symmetry in random_symmetries(9, 5, seed=3)[1:]:
        for puzzle, solution in zip(batch.inputs, batch.targets, strict=True):
            assert list(all_solutions(text(symmetry.apply(puzzle)))) == [text(symmetry.apply(solution))]


def test_undo_returns_the_board_itself(batch):
    for symmetry in random_symmetries(9, 6):
        np.testing.assert_array_equal(symmetry.undo(symmetry.apply(batch.inputs)), batch.inputs)


def test_random_symmetries_start_with_the_board_itself_and_differ(batch):
    images = [text(symmetry.apply(batch.targets[0])) for symmetry in random_symmetries(9, 6)]
    assert images[0] == text(batch.targets[0])
    assert len(set(images)) == 6


def test_obey_rules_accepts_solutions_and_rejects_one_exchange(batch):
    assert obey_rules(batch.targets, 9).all()
    broken = batch.targets.copy()
    broken[:, [0, 1]] = broken[:, [1, 0]]  # the row and the box keep their digits, two columns do not
    assert not obey_rules(broken, 9).any()
    assert not obey_rules(batch.inputs, 9).any()


def test_obey_rules_small_boards_matches_the_exact_cover_solver():
    boards = Sudoku(side=4).sample(0, "test", range(8))
    assert obey_rules(boards.targets, 4).all()
