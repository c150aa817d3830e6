"""The number of test examples."""

from looped.tasks import EditDistance, Sudoku
from looped.training.evaluation import MAX_EXAMPLES, num_held_out
from tests.refusal import refused


def test_num_held_out_is_limited_by_distinct_examples_and_a_maximum():
    assert num_held_out(Sudoku(pool=300), "test", MAX_EXAMPLES) == 300
    assert num_held_out(EditDistance(), "test", MAX_EXAMPLES) == MAX_EXAMPLES
    for task in (EditDistance(), Sudoku(difficulty="hard")):  # whose puzzles would have to be made to be counted
        with refused("size"):
            num_held_out(task, "test", MAX_EXAMPLES + 1)
