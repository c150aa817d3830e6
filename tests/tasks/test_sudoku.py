"""Compare Sudoku with OR-tools, a plain exact-cover solver, all 4x4 grids, and published puzzles."""

import csv
import gzip
import os
from itertools import combinations, islice, permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.tasks.sudoku.exact_cover import all_solutions
from looped.tasks.sudoku.files import read_puzzles
from looped.tasks.sudoku.generator import content_buckets, draw_images
from looped.tasks.sudoku.solver import geometry, solve_boards, workspace
from looped.tasks.sudoku.task import Sudoku
from looped.utils.errors import InputError
from tests.paths import ROOT
from tests.refusal import refused

PUZZLE = "100503700603008090000009800010000000876100000000006000000000007080907604700060312"
SOLUTION_4 = "2341142341323214"


@pytest.fixture(scope="module")
def real_rows():
    path = Path(os.environ.get("LOOPED_DATA", "/nonexistent"), "sudoku/real_puzzles.csv.gz")
    if not path.exists():
        pytest.skip("LOOPED_DATA holds no sudoku/real_puzzles.csv.gz")
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def digits(text):
    return np.array([int(symbol) for symbol in text], dtype=np.int8)


def text(board):
    return "".join(str(int(digit)) for digit in board)


def solved(puzzles):
    side = round(puzzles.shape[1] ** 0.5)
    return solve_boards(np.asarray(puzzles, dtype=np.int8), 2, geometry(side), workspace(side))


def is_filled_in(puzzle, solution):
    """Return True if a solution keeps the clues and obeys the three rules, checked by reshaping."""
    side = round(len(puzzle) ** 0.5)
    box = round(side**0.5)
    rows = solution.reshape(side, side)
    boxes = solution.reshape(box, box, box, box).swapaxes(1, 2).reshape(side, side)
    every = np.arange(1, side + 1)
    keeps = ((puzzle == 0) | (puzzle == solution)).all()
    return keeps and all((np.sort(unit, axis=1) == every).all() for unit in (rows, rows.T, boxes))


def image(board, side, rows, columns, transpose, names):
    """Return a symmetric image by numpy: `rows` and `columns` are orders, and `names` are the new digits."""
    grid = board.reshape(side, side)[np.ix_(rows, columns)]
    return np.array([0, *names])[grid.T if transpose else grid].reshape(-1).astype(np.int8)


def line_orders(side):
    """Return every order of rows that keeps bands together."""
    box = round(side**0.5)
    for bands in permutations(range(box)):
        for within in product(permutations(range(box)), repeat=box):
            yield [band * box + line for band, lines in zip(bands, within, strict=True) for line in lines]


IMAGES_4 = np.array(
    [
        image(np.arange(1, 17), 4, rows, columns, transpose, range(1, 17)) - 1
        for rows, columns, transpose in product(list(line_orders(4)), list(line_orders(4)), (False, True))
    ]
)


def least_image(puzzle):
    """Return the class of a 4x4 puzzle: the least of its 128 images, with digits named by first appearance."""

    def named(board):
        names = {0: 0}
        return tuple(names.setdefault(digit, len(names)) for digit in board)

    return min(named(board) for board in puzzle[IMAGES_4].tolist())


def singles_solve(puzzle):
    """Return True if cells with one candidate and digits with one place solve a puzzle, computed with sets."""
    units = [set(unit) for unit in geometry(9).units.tolist()]
    open_cells = {cell: set(range(1, 10)) for cell in range(81)}
    known = [(cell, int(digit)) for cell, digit in enumerate(puzzle) if digit]
    while known:
        for cell, digit in known:
            open_cells.pop(cell, None)
            for unit in units:
                if cell in unit:
                    for other in unit & open_cells.keys():
                        open_cells[other].discard(digit)
        known = [(cell, *candidates) for cell, candidates in open_cells.items() if len(candidates) == 1]
        for unit in units if not known else ():
            for digit in range(1, 10):
                places = [cell for cell in unit & open_cells.keys() if digit in open_cells[cell]]
                if len(places) == 1:
                    known.append((places[0], digit))
    return not open_cells


# ------------------------------------------------------------------ solutions and uniqueness


@pytest.mark.parametrize("knobs", [{}, {"clues": 30}, {"pool": 0, "difficulty": "hard"}])
def test_sampled_puzzles_have_one_solution_by_or_tools(knobs):
    from ortools.sat.python import cp_model

    batch = Sudoku(**knobs).sample(3, "train", range(100))
    for puzzle, solution in zip(batch.inputs, batch.targets, strict=True):
        assert is_filled_in(puzzle, solution)
        model = cp_model.CpModel()
        cells = [model.new_int_var(int(digit or 1), int(digit or 9), "") for digit in puzzle]
        for unit in geometry(9).units:
            model.add_all_different([cells[cell] for cell in unit])
        differs = []
        for cell in np.flatnonzero(puzzle == 0):
            differs.append(model.new_bool_var(""))
            model.add(cells[cell] != int(solution[cell])).only_enforce_if(differs[-1])
        model.add_bool_or(differs)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert solver.solve(model) == cp_model.INFEASIBLE


def test_minimal_puzzles_need_every_clue():
    for puzzle in Sudoku().sample(0, "train", range(12)).inputs:
        for cell in np.flatnonzero(puzzle):
            fewer = puzzle.copy()
            fewer[cell] = 0
            assert len(list(islice(all_solutions(text(fewer)), 2))) == 2


def test_minimal_puzzles_have_the_published_number_of_clues():
    """Compare with Berthier, "Unbiased statistics of a constraint satisfaction problem".

    Random removal from full grids leaves 24.38 clues on average, with a standard deviation of 1.12.
    """
    clues = np.count_nonzero(Sudoku().sample(0, "train", range(3000)).inputs, axis=1)
    assert abs(clues.mean() - 24.38) < 4 * 1.12 / 3000**0.5
    assert abs(clues.std() - 1.12) < 0.07


def all_grids_4():
    """Return all 4x4 grids: four permutations as rows, where columns and boxes are permutations, too."""
    rows = np.array(list(permutations(range(1, 5))), dtype=np.int8)
    boards = rows[np.indices((24,) * 4).reshape(4, -1).T]
    boxes = boards.reshape(-1, 2, 2, 2, 2).swapaxes(2, 3).reshape(-1, 4, 4)
    right = [(np.sort(units, axis=-1) == range(1, 5)).all(axis=(1, 2)) for units in (boards.swapaxes(1, 2), boxes)]
    return boards[right[0] & right[1]].reshape(-1, 16)


def test_both_solvers_count_the_solutions_among_all_288_grids():
    grids = all_grids_4()
    assert len(grids) == 288
    rng = np.random.default_rng(0)
    puzzles = np.where(rng.random((150, 16)) < rng.random((150, 1)), grids[rng.integers(0, 288, 150)], 0)
    puzzles[::7, 0] = puzzles[::7, 1] = 1  # some have no solution
    counts = [((puzzle == 0) | (puzzle == grids)).all(axis=1).sum() for puzzle in puzzles]
    assert {0, 1, 2} <= set(map(int, counts))
    solutions, found, _ = solved(puzzles)
    assert found.tolist() == [min(int(count), 2) for count in counts]
    for puzzle, solution, count in zip(puzzles, solutions, counts, strict=True):
        assert len(list(all_solutions(text(puzzle)))) == count
        assert count == 0 or is_filled_in(puzzle, solution)


def test_every_25th_real_puzzle_has_the_stated_solution(real_rows):
    rows = real_rows[::25]
    solutions, found, guesses = solved(np.stack([digits(row["puzzle"]) for row in rows]))
    assert (found == 1).all()
    assert [text(solution) for solution in solutions] == [row["solution"] for row in rows]
    agree = [(mine == 0) == (row["guesses"] == "0") for mine, row in zip(guesses, rows, strict=True)]
    assert np.mean(agree) > 0.95  # compared with the guesses of another solver that places singles first
    mean = {
        source: np.mean([mine for mine, row in zip(guesses, rows, strict=True) if row["source"] == source])
        for source in ("nullsudoku_simple", "sudoku_exchange_diabolical_2020", "puzzles5_forum_hardest_1905_11+")
    }
    assert list(mean.values()) == sorted(mean.values())
    assert mean["nullsudoku_simple"] == 0


@pytest.mark.slow
def test_every_real_puzzle_has_the_stated_solution(real_rows):
    puzzles = read_puzzles(Path(os.environ["LOOPED_DATA"], "sudoku/real_puzzles.csv.gz"), 9)
    assert len(puzzles.puzzles) == len(real_rows) == 186_373
    assert [text(solution) for solution in puzzles.solutions] == [row["solution"] for row in real_rows]


# ------------------------------------------------------------------ symmetry and splits


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_content_bucket_is_equal_for_all_images(data):
    side = data.draw(st.sampled_from([4, 9]))
    board = Sudoku(side=side, pool=0).sample(data.draw(st.integers(0, 99)), "train", [0])
    box = round(side**0.5)
    order = st.tuples(st.permutations(range(box)), st.lists(st.permutations(range(box)), min_size=box, max_size=box))
    rows, columns = (
        [band * box + line for band, lines in zip(*data.draw(order), strict=True) for line in lines] for _ in range(2)
    )
    names = data.draw(st.permutations(range(1, side + 1)))
    shape = rows, columns, data.draw(st.booleans()), names
    puzzle, solution = (image(boards[0], side, *shape) for boards in (board.inputs, board.targets))
    before = content_buckets(board.inputs.astype(np.int8), board.targets.astype(np.int8))
    assert content_buckets(puzzle[None], solution[None]) == before


def test_grid_buckets_are_nearly_uniform():
    boards = Sudoku(pool=0).sample(0, "train", range(1500))
    buckets = content_buckets(boards.inputs.astype(np.int8), boards.targets.astype(np.int8))
    counts = np.bincount(buckets, minlength=32)
    assert counts[:2].tolist() == [0, 0]
    assert counts[2:].min() > 20  # 50 expected, and four standard deviations down


def test_36_minimal_4x4_puzzles_and_no_split_shares_one():
    """The count of 36 up to symmetry is known. 13 have 4 clues, 22 have 5 and one has 6."""
    classes = {
        split: {least_image(puzzle) for puzzle in Sudoku(side=4).sample(0, split, range(count)).inputs}
        for split, count in (("train", 600), ("validation", 40), ("test", 40))
    }
    for one, other in combinations(classes.values(), 2):
        assert not one & other
    every = set.union(*classes.values())
    assert len(every) <= 36
    assert len(every) >= 33  # the rarest few may not have come up
    assert all(classes.values())


def test_4x4_test_split_has_the_documented_size():
    text = (ROOT / "docs" / "tasks.md").read_text()
    boards = Sudoku(side=4).sample(0, "test", range(2000)).inputs
    few, more = (len(np.unique(boards[:count], axis=0)) for count in (1000, 2000))
    names = (np.array([0, *order]) for order in permutations(range(1, 5)))
    images = {tuple(board) for name in names for board in name[boards[0][IMAGES_4]].tolist()}
    assert {tuple(board) for board in boards.tolist()} <= images
    said = (
        f"the whole test split is the {len(images)} images of one puzzle: "
        f"1000 test examples are {few} different boards, 2000 are {more},"
    )
    assert said in " ".join(text.split())


def test_images_have_one_solution():
    task = Sudoku()
    base, images = Sudoku(augment=False).sample(0, "train", range(200)), task.sample(0, "train", range(200))
    assert (np.count_nonzero(base.inputs, axis=1) == np.count_nonzero(images.inputs, axis=1)).all()
    assert (base.inputs != images.inputs).any(axis=1).all()
    solutions, found, _ = solved(images.inputs)
    assert (found == 1).all()
    assert (solutions == images.targets).all()
    assert all(is_filled_in(*pair) for pair in zip(images.inputs, images.targets, strict=True))


def test_images_are_uniform_over_the_symmetries():
    """All 96 or 192 images of a 4x4 grid must be equally frequent."""
    count = 20_000
    boards = np.tile(digits(SOLUTION_4), (count, 1))
    images = boards.copy()
    draw_images(images, boards, 0, 0, np.arange(count), 0, True)
    _, counts = np.unique(images, axis=0, return_counts=True)
    assert len(counts) in (96, 192)
    expected = count / len(counts)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert abs(chi_squared - freedom) < 4.5 * (2 * freedom) ** 0.5


# ------------------------------------------------------------------ clues and difficulty


@pytest.mark.parametrize(
    "task", [Sudoku(clues=22), Sudoku(clues=40, augment=False), Sudoku(pool=0, clues=24), Sudoku(side=4, clues=9)]
)
def test_sample_has_the_set_number_of_clues(task):
    batch = task.sample(0, "train", range(50))
    assert (np.count_nonzero(batch.inputs, axis=1) == task.clues).all()
    assert (solved(batch.inputs)[1] == 1).all()


def test_sample_of_smaller_size_has_fewer_open_cells():
    for size in (5, 30, 57):
        batch = Sudoku().sample(0, "train", range(100), size=size)
        assert (batch.inputs == 0).sum(axis=1).max() == size
        assert (batch.mask == (batch.inputs == 0)).all()


def test_easy_puzzles_need_singles_only():
    for level, expected in (("easy", True), ("medium", False), ("hard", False)):
        puzzles = Sudoku(difficulty=level).sample(0, "train", range(30)).inputs
        assert [singles_solve(puzzle) for puzzle in puzzles] == [expected] * 30
    guesses = {
        level: solved(Sudoku(difficulty=level, augment=False).sample(0, "train", range(200)).inputs)[2]
        for level in ("easy", "medium", "hard")
    }
    assert set(guesses["easy"].tolist()) == {0}
    assert set(guesses["medium"].tolist()) == {1, 2, 3}
    assert guesses["hard"].min() == 4


def test_difficulty_applies_before_clues_are_added():
    """The base puzzle needs four guesses. With half of the board filled in, hardly any example does."""
    for pool in (None, 0):
        task = Sudoku(difficulty="hard", pool=pool, augment=False)
        base, shown = (task.sample(0, "train", range(10), size=size) for size in (None, 40))
        assert solved(base.inputs)[2].min() >= 4
        assert ((base.inputs == 0) | (base.inputs == shown.inputs)).all()
        assert (base.targets == shown.targets).all()
        assert (np.count_nonzero(shown.inputs == 0, axis=1) == 40).all()


@pytest.mark.slow
def test_test_sets_are_by_difficulty_and_source(real_rows):
    sets = Sudoku().test_sets()
    assert list(sets)[:3] == ["easy", "medium", "hard"]
    seventeen = sets["puzzles2_17_clue"].sample(0, "test", range(200)).inputs
    assert (np.count_nonzero(seventeen, axis=1) == 17).all()
    with refused("split"):
        sets["puzzles2_17_clue"].sample(0, "train", range(1))
    assert set(sets) - {"easy", "medium", "hard"} == {row["source"] for row in real_rows}


# ------------------------------------------------------------------ parsing, scores, settings


def test_parse_reads_lines_and_dots():
    task = Sudoku()
    lines = "\n".join(PUZZLE[i : i + 9] for i in range(0, 81, 9)).replace("0", ".")
    assert task.render(task.parse(lines)) == PUZZLE
    (solution,) = all_solutions(PUZZLE)
    task.verify({"puzzle": PUZZLE, "solution": solution})
    with refused("solution"):
        task.verify({"puzzle": PUZZLE, "solution": solution[::-1]})


@pytest.mark.parametrize("bars", ["---+ |", "───┼ │"])
def test_parse_reads_a_printed_board(bars):
    """Boards have lines between their boxes in newspapers, on web pages and in what `looped solve` prints."""
    rows = [PUZZLE[i : i + 9].replace("0", "·") for i in range(0, 81, 9)]
    lines = [f"{bars[-1]} ".join([row[:3], row[3:6], row[6:]]) for row in rows]
    for place in (6, 3):
        lines.insert(place, bars[3].join([bars[:3]] * 3))
    task = Sudoku()
    assert task.render(task.parse("\n".join(lines))) == PUZZLE
    with refused(None, 81, 72):
        task.parse("\n".join(lines[:-1]))


@pytest.mark.parametrize(
    ("board", "values"),
    [
        (PUZZLE[:-1], [81, 80]),
        (PUZZLE[:-1] + "x", ["x"]),
        ("0" * 81, ["0" * 81]),
        ("11" + "0" * 79, ["11" + "0" * 79]),
        (next(all_solutions(PUZZLE)), [next(all_solutions(PUZZLE))]),
    ],
)
def test_parse_invalid_board_raises(board, values):
    with refused(None, *values):
        Sudoku().parse(board)


def test_score_of_boards_and_cells():
    task = Sudoku(side=4)
    batch = task.sample(0, "test", range(3))
    prediction = batch.targets.copy()
    wrong = np.flatnonzero(batch.mask[1])[:2]
    prediction[1, wrong] = 0
    prediction[2, ~batch.mask[2]] = 0  # clues do not count
    scores = task.score(prediction, batch)
    assert scores["accuracy"].tolist() == [1, 0, 1]
    assert scores["cell_accuracy"] == pytest.approx([1, 1 - 2 / batch.mask[1].sum(), 1])
    everywhere = Sudoku(side=4, counts="all")
    assert everywhere.score(prediction, everywhere.sample(0, "test", range(3)))["accuracy"].tolist() == [1, 0, 0]


def test_spec_coordinates_are_cell_row_column_and_box():
    cell, row, column, box = Sudoku().spec.coordinates
    assert cell == tuple(range(81))
    assert (row[40], column[40], box[40]) == (4, 4, 4)
    assert (row[35], column[35], box[35]) == (3, 8, 5)
    assert all(sorted(ids) == sorted(list(range(9)) * 9) for ids in (row, column, box))
    assert len(set(zip(row, column, strict=True))) == 81


@pytest.mark.parametrize(
    "knobs", [{"side": 6}, {"clues": 21}, {"clues": 81}, {"pool": -1}, {"pool": 2**63}, {"side": 4, "pool": 5},
              {"source": "x"}, {"clues": 30, "difficulty": "hard"}, {"difficulty": "cruel"}]
)  # fmt: skip
def test_invalid_settings_raise(knobs):
    with pytest.raises(InputError):
        Sudoku(**knobs)


def test_sample_of_impossible_puzzles_raises():
    with refused("sudoku", "hard"):
        Sudoku(side=4, difficulty="hard").sample(0, "train", [0])
