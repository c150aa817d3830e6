"""Sources of base puzzles: the pool in the cache folder, and valid and invalid files of a user."""

import gzip
from unittest.mock import Mock

import numpy as np
import pytest

from looped.tasks.sudoku import pool, task
from looped.tasks.sudoku.files import read_puzzles
from looped.tasks.sudoku.solver import geometry, solve_boards, workspace
from looped.tasks.sudoku.task import Sudoku
from looped.utils.errors import InputError
from tests.refusal import refused

PUZZLE_4 = "0001102300003000"
SOLUTION_4 = "2341142341323214"


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """Use an empty cache folder, and empty the cache in memory."""
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    pool.IN_MEMORY.clear()
    task._pool_indices.cache_clear()
    yield tmp_path / "cache"
    pool.IN_MEMORY.clear()


def text(board):
    return "".join(str(int(digit)) for digit in board)


# ------------------------------------------------------------------ the pool


def test_pool_repeats_only_after_all_puzzles():
    task = Sudoku(pool=300, augment=False)
    once, again, other_seed = (
        task.sample(seed, "train", indices).inputs
        for seed, indices in ((0, range(300)), (0, range(300, 600)), (1, range(300)))
    )
    assert len(np.unique(once, axis=0)) == 300
    assert (once == again).all()
    assert (once == other_seed).all()
    assert (once == Sudoku(pool=400, augment=False).sample(0, "train", range(300)).inputs).all()


@pytest.mark.parametrize(
    "task", [Sudoku(pool=1500, augment=False, difficulty="hard"), Sudoku(pool=1500, augment=False, clues=23)]
)
def test_pool_with_limits_repeats_only_after_all_matching_puzzles(task):
    """Select the matching puzzles of the whole pool by their guesses and clues, and compare."""
    everything = Sudoku(pool=1500, augment=False).sample(0, "test", range(1500)).inputs
    _, _, guesses = solve_boards(everything.astype(np.int8), 2, geometry(9), workspace(9))
    clues = np.count_nonzero(everything, axis=1)
    matching = everything[guesses >= 4] if task.clues is None else everything[clues <= 23]
    assert task.num_distinct("test") == len(matching) == task.held_out_size("test")
    shown = task.sample(0, "test", range(len(matching) + 5)).inputs
    # clues are added if a puzzle has too few, so an example contains its base puzzle
    assert ((matching == 0) | (matching == shown[: len(matching)])).all()
    assert task.clues is not None or (shown[: len(matching)] == matching).all()
    assert ((matching[:5] == 0) | (matching[:5] == shown[len(matching) :])).all()
    for index in (len(matching) - 1, 0, len(matching)):
        assert (task.sample(0, "test", [index]).inputs[0] == shown[index]).all()


def test_num_distinct_counts_base_puzzles():
    assert Sudoku(pool=300).num_distinct("test") == Sudoku(pool=300).held_out_size("test") == 300
    assert (Sudoku().num_distinct("test"), Sudoku().held_out_size("test")) == (100_000, 1000)
    assert Sudoku(pool=0).num_distinct("test") is Sudoku(side=4).num_distinct("test") is None


def test_distinct_among_generates_few_shards(empty_cache):
    """One shard of about a thousand puzzles has more than twenty of medium difficulty."""
    assert Sudoku(difficulty="medium", augment=False).distinct_among("train", 20) == 20
    assert len(list(empty_cache.rglob("train-*.npz"))) == 1
    few = Sudoku(pool=40, difficulty="medium", augment=False)
    assert 0 < few.distinct_among("train", 50) == few.num_distinct("train") < 40


def test_pool_without_a_matching_puzzle_raises():
    """One minimal puzzle in 27 has at most 22 clues, and none of these three has."""
    assert Sudoku(pool=3, clues=22).num_distinct("validation") == 0
    with refused("sudoku", "validation", "clues 22", 3):
        Sudoku(pool=3, clues=22).sample(0, "validation", [0])


def test_pool_resumes_a_stopped_build_and_replaces_a_damaged_shard(empty_cache, monkeypatch):
    task, make = Sudoku(pool=2500, augment=False), pool.make_shard

    def make_the_first(split, number):
        if number > 0:
            raise KeyboardInterrupt
        return make(split, number)

    monkeypatch.setattr(pool, "make_shard", make_the_first)
    with pytest.raises(KeyboardInterrupt):
        task.sample(0, "train", range(0, 2500, 50))
    pool.IN_MEMORY.clear()
    shards = sorted(empty_cache.rglob("train-*.npz"))
    assert [path.name for path in shards] == ["train-00000.npz"]
    then = Mock(wraps=make)
    monkeypatch.setattr(pool, "make_shard", then)
    whole = task.sample(0, "train", range(0, 2500, 50))
    assert sorted(call.args for call in then.call_args_list) == [("train", 1), ("train", 2)]
    pool.IN_MEMORY.clear()
    shards[0].write_bytes(shards[0].read_bytes()[:1000])
    assert (task.sample(0, "train", range(0, 2500, 50)).inputs == whole.inputs).all()
    assert shards[0].stat().st_size > 1000
    assert not [path for path in empty_cache.rglob("*") if path.name.startswith(".")]


def test_pool_without_a_writable_cache_raises(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    pool.IN_MEMORY.clear()
    with refused(tmp_path / "cache/sudoku/v1/train-00000.npz"):
        Sudoku().sample(0, "train", range(1))
    assert len(Sudoku(side=4).sample(0, "test", range(3)).inputs) == 3  # 4x4 puzzles need no cache


# ------------------------------------------------------------------ files


def rows_of(task, count):
    return [
        (text(puzzle), text(solution))
        for puzzle, solution, _ in zip(*task.sample(5, "train", range(count)), strict=True)
    ]


FORMATS = {
    "three million": lambda rows: "id,puzzle,solution,clues,difficulty\n" + "".join(
        f"{i},{p.replace('0', '.')},{s},{81 - p.count('0')},1.5\n" for i, (p, s) in enumerate(rows)
    ),
    "lines": lambda rows: "# one per line\n\n" + "".join(f"{p}\n" for p, _ in rows),
    "lines with ratings": lambda rows: "".join(f"{p.replace('0', '.')} 7.2\n" for p, _ in rows),
    "sources": lambda rows: "source,puzzle,solution,clues,guesses,se_rating\r\n" + "".join(
        f"\"set, {i % 2}\",{p},{s},{81 - p.count('0')},0,\r\n" for i, (p, s) in enumerate(rows)
    ),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_read_puzzles_accepts_every_format(tmp_path, name, packed):
    rows = rows_of(Sudoku(), 60)
    path = tmp_path / ("puzzles.csv.gz" if packed else "puzzles.csv")
    path.write_bytes(gzip.compress(FORMATS[name](rows).encode()) if packed else FORMATS[name](rows).encode())
    read = read_puzzles(path, 9)
    assert [(text(p), text(s)) for p, s in zip(read.puzzles, read.solutions, strict=True)] == rows
    task = Sudoku(file=str(path), augment=False)
    assert {text(puzzle) for puzzle in task.sample(0, "train", range(60)).inputs} <= {puzzle for puzzle, _ in rows}
    if name == "sources":
        task = Sudoku(file=str(path), source="set, 1", file_role="test", augment=False)
        assert {text(puzzle) for puzzle in task.sample(0, "test", range(30)).inputs} == {
            puzzle for puzzle, _ in rows[1::2]
        }
        with refused(f"source in {path}", "set, 2", "set, 1"):
            Sudoku(file=str(path), source="set, 2").sample(0, "train", [0])


def test_file_splits_do_not_overlap(tmp_path):
    rows = rows_of(Sudoku(pool=0), 30) + [
        (text(p), text(s))
        for split in ("validation", "test")
        for p, s, _ in zip(*Sudoku().sample(0, split, range(5)), strict=True)
    ]
    path = tmp_path / "puzzles.txt"
    path.write_text(FORMATS["lines"](rows))
    task = Sudoku(file=str(path), augment=False)
    splits = {
        split: {text(puzzle) for puzzle in task.sample(0, split, range(40)).inputs}
        for split in ("train", "validation", "test")
    }
    assert [len(puzzles) for puzzles in splits.values()] == [30, 5, 5]
    assert [task.num_distinct(split) for split in splits] == [30, 5, 5]
    assert task.held_out_size("test") == 5
    assert Sudoku(file=str(path), file_role="test").num_distinct("test") == 40
    assert set.union(*splits.values()) == {puzzle for puzzle, _ in rows}


@pytest.mark.parametrize("side", [4, pytest.param(9, marks=pytest.mark.slow)])
def test_test_sets_of_a_file_are_generated(tmp_path, side):
    """A file with one easy puzzle has no test sets of its own, so those of generated puzzles are used."""
    path = tmp_path / "puzzles.csv"
    row = rows_of(Sudoku(side=side) if side == 4 else Sudoku(difficulty="easy"), 1)[0][0]
    path.write_text(f"source,puzzle\nhere,{row}\n")
    ours = Sudoku(side=side).test_sets()
    sets = Sudoku(side=side, file=str(path), source="here", file_role="test").test_sets()
    names = ["10 clues", "8 clues", "6 clues"] if side == 4 else ["easy", "medium", "hard"]
    assert list(sets)[:3] == names
    for name in names:
        assert (sets[name].sample(0, "test", range(5)).inputs == ours[name].sample(0, "test", range(5)).inputs).all()


def test_sample_of_a_4x4_file_with_added_clues_raises(tmp_path):
    """Added clues could turn a training puzzle into a test puzzle."""
    path = tmp_path / "puzzles.txt"
    path.write_text(PUZZLE_4)
    task = Sudoku(side=4, file=str(path), file_role="test", augment=False)
    assert text(task.sample(0, "test", [0]).inputs[0]) == PUZZLE_4
    with pytest.raises(InputError) as caught:
        task.sample(0, "test", [0], size=5)
    assert caught.value.field == "size"


GOOD = "puzzle,solution\n" + PUZZLE_4 + "," + SOLUTION_4 + "\n"
BAD_FILES = {
    "an empty file": (b"", "got none"),
    "a header alone": (b"puzzle,solution\n", "got none"),
    "no such column": (b"quizzes,solutions\n0,1\n", "line 1: expected a column 'puzzle'"),
    "a short puzzle": (GOOD.encode() + b"123,1234\n", "line 3: expected 16 cells, got 3"),
    "a strange digit": (
        GOOD.encode() + b"0001102300003005," + SOLUTION_4.encode(),
        "line 3: expected digits 0-4 or dots",
    ),
    "several solutions": (
        b"puzzle\n0000000000003000\n",
        "line 2: expected a puzzle with one solution, got one with several",
    ),
    "no solution": (b"puzzle\n1100000000003000\n", "line 2: expected a puzzle with one solution, got one with none"),
    "a wrong solution": (
        GOOD.replace("2341", "2314").encode(),
        f"line 2: expected the solution {SOLUTION_4}, got 2314",
    ),
    "a wrong clue count": (
        b"puzzle,clues\n" + PUZZLE_4.encode() + b",6\n",
        "line 2: expected 5 in column 'clues', got '6'",
    ),
    "a row cut short": (GOOD.encode() + PUZZLE_4.encode() + b"\n", "line 3: expected 2 columns, got 1"),
    "commas alone": (b",,,\n", "line 1: expected a column 'puzzle' or a puzzle of 16 cells, got ',,,'"),
    "commas alone below": (PUZZLE_4.encode() + b"\n,,\n", "line 2: expected 16 cells, got 0"),
    "an endless header": (b'"' + b"0" * 200_000 + b'"\n', "line 1: expected a row of CSV"),
    "an endless field": (
        GOOD.encode() + b'"' + b"0" * 200_000 + b'",\n',
        "line 3: expected a row of CSV",
    ),
    "text in another encoding": (GOOD.encode() + b"\xff\xfe\n", "expected UTF-8 text"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file_raises_with_path_and_row(tmp_path, name):
    content, said = BAD_FILES[name]
    path = tmp_path / "puzzles.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Sudoku(side=4, file=str(path)).sample(0, "train", [0])
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_or_missing_file_raises(tmp_path):
    path = tmp_path / "puzzles.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode())[:-12])
    with refused(path):
        read_puzzles(path, 4)
    path.write_text(GOOD)
    with refused(path):
        read_puzzles(path, 4)
    with refused(None, "nothing.csv"):
        Sudoku(file="nothing.csv").sample(0, "train", [0])


def test_read_puzzles_of_an_endless_packed_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("looped.utils.files.MAX_LINE", 1000)
    path = tmp_path / "puzzles.csv.gz"
    path.write_bytes(gzip.compress(b"1" * 1000))
    with refused(path, "line 1", "1,000"):
        read_puzzles(path, 9)


def test_file_that_changes_is_read_again(tmp_path):
    rows = rows_of(Sudoku(), 40)
    path, task = tmp_path / "puzzles.txt", Sudoku(file=str(tmp_path / "puzzles.txt"), file_role="test", augment=False)
    for part in (rows[:30], rows[30:]):
        path.write_text(FORMATS["lines"](part))
        assert task.num_distinct("test") == len(part)
        assert {text(puzzle) for puzzle in task.sample(0, "test", range(40)).inputs} == {puzzle for puzzle, _ in part}
