"""Examples from a user's file: every task reads what it writes, rows are split by content, bad rows are named."""

import csv
import gzip
import json

import numpy as np
import pytest

from looped.tasks import SPLITS, make_task
from looped.tasks.datasets import build
from looped.utils.errors import InputError
from tests.refusal import refused

TASKS = {
    "edit-distance": {"length": 5, "alphabet": 3, "max_letters": 3},
    "lcs": {"length": 5, "alphabet": 3},
    "countdown": {"count": 3, "max_input": 20, "max_target": 40},
    "decision-tree": {"points": 3, "dims": 2, "depth": 1},
    "sudoku": {"side": 4, "augment": False},
}


@pytest.fixture(params=TASKS)
def task(request):
    return make_task(request.param, **TASKS[request.param])


def from_file(task, path, **settings):
    return make_task(task.name, **TASKS[task.name], file=str(path), **settings)


def as_set(*batches):
    return {tuple(part[row].tobytes() for part in batch) for batch in batches for row in range(len(batch.inputs))}


def test_file_of_data_build_gives_the_same_examples(task, tmp_path):
    build(task, tmp_path / "set.jsonl", 40)
    read = from_file(task, tmp_path / "set.jsonl", file_role="test")
    written, found = task.sample(0, "train", range(40)), read.sample(0, "test", range(read.num_distinct("test")))
    assert as_set(found) == as_set(written)


def test_csv_gives_the_same_examples_as_json(task, tmp_path):
    examples = task.examples(0, "train", range(20))
    with gzip.open(tmp_path / "set.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, list(examples[0]))
        writer.writeheader()
        writer.writerows(
            {name: json.dumps(value) if isinstance(value, list) else value for name, value in example.items()}
            for example in examples
        )
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    sets = [from_file(task, tmp_path / name, file_role="test") for name in ("set.csv.gz", "set.jsonl")]
    assert as_set(sets[0].sample(0, "test", range(20))) == as_set(sets[1].sample(0, "test", range(20)))


def test_rows_are_split_by_content_and_all_are_used(task, tmp_path):
    if task.name == "sudoku":
        pytest.skip("its file has the generator's splits: see test_sudoku_files.py")
    build(task, tmp_path / "set.jsonl", 300)
    read = from_file(task, tmp_path / "set.jsonl")
    parts = {split: as_set(read.sample(0, split, range(read.num_distinct(split)))) for split in ("train", "validation")}
    assert not parts["train"] & parts["validation"]
    assert sum(read.num_distinct(split) for split in SPLITS) == 300
    one, again = (read.sample(seed, "train", [3, 1]) for seed in (0, 7))
    assert np.array_equal(one.inputs, again.inputs)


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("edit-distance", {"first": "abcab", "second": "abcab", "answer": 1}, "answer: expected 0"),
        ("edit-distance", {"first": "abcab"}, "second: expected a column"),
        ("edit-distance", {"first": "abczb", "second": "abcab"}, "expected only letters"),
        ("lcs", {"first": "abcab", "second": "bbbbb", "answer": "x"}, "answer: expected an integer"),
        ("lcs", {"first": "abcab", "second": "bbbbb", "answer": "--5"}, "answer: expected an integer"),
        ("lcs", {"first": "abcab", "second": "bbbbb", "answer": "\u00b2"}, "answer: expected an integer"),
        ("countdown", {"numbers": [2, 3, 4], "target": 24, "solution": "2 * 3 = 6, 6 * 4 = 25"}, "is false"),
        ("countdown", {"numbers": [2, 3], "target": 11, "solution": ""}, "expected numbers that reach"),
        ("decision-tree", {"x": [[0.5, 1.0]], "y": [1.0]}, "y: expected a list of 3 numbers"),
        ("sudoku", {"puzzle": "1234"}, "expected 16 cells"),
        ("sudoku", {"board": "1234"}, "expected a field 'puzzle'"),
    ],
)
def test_bad_row_names_file_line_and_reason(name, row, reason, tmp_path):
    task = make_task(name, **TASKS[name])
    good = task.examples(0, "train", [0])[0]
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(good) + "\n\n" + json.dumps(row) + "\n")
    with pytest.raises(InputError) as caught:
        from_file(task, path, file_role="test").sample(0, "test", [0])
    assert f"{path}, line 3: " in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["first,second\naaaaa,aabaa\nabbbb,bbbbc\n", "first,second,answer\naaaaa,aabaa,\nabbbb,bbbbc, \n"],
    ids=["no-column", "empty-cells"],
)
def test_missing_answers_are_computed(text, tmp_path):
    """Edit distances with costs 2, 2 and 3, by hand: one replacement, and one deletion with one insertion."""
    (tmp_path / "pairs.csv").write_text(text)
    task = from_file(make_task("edit-distance", **TASKS["edit-distance"]), tmp_path / "pairs.csv", file_role="test")
    assert sorted(task.sample(0, "test", range(2)).targets[:, -1].tolist()) == [3, 4]
    (tmp_path / "numbers.csv").write_text("numbers,target\n2 3 4,24\n")
    task = from_file(make_task("countdown", **TASKS["countdown"]), tmp_path / "numbers.csv", file_role="test")
    assert task.examples(0, "test", [0])[0]["solution"].endswith("= 24")


def test_file_of_another_task_is_refused(tmp_path):
    build(make_task("lcs", **TASKS["lcs"]), tmp_path / "lcs.jsonl", 3)
    task = from_file(make_task("countdown", **TASKS["countdown"]), tmp_path / "lcs.jsonl")
    with refused(tmp_path / "lcs.jsonl", "countdown", "lcs"):
        task.sample(0, "train", [0])


def test_sudoku_reads_the_columns_of_sudoku_extreme(tmp_path):
    puzzles = make_task("sudoku", side=4).examples(0, "train", range(3))
    rows = [f"mine,{each['puzzle'].replace('0', '.')},{each['solution']},{n}" for n, each in enumerate(puzzles)]
    (tmp_path / "test.csv").write_text("\n".join(["source,question,answer,rating", *rows]) + "\n")
    task = make_task("sudoku", side=4, file=str(tmp_path / "test.csv"), file_role="test", source="mine", augment=False)
    found = {example["solution"] for example in task.examples(0, "test", range(3))}
    assert found == {each["solution"] for each in puzzles}


def test_dense_answers_come_from_a_file_too(tmp_path):
    settings = TASKS["edit-distance"]
    build(make_task("edit-distance", **settings), tmp_path / "set.jsonl", 50)
    task = make_task("edit-distance", **settings, answers="prefixes", file=str(tmp_path / "set.jsonl"))
    batch = task.training_batch(0, [0, 1])
    assert (batch.mask.sum(axis=1) > 1).all()
    assert task.fingerprints().keys() == {"task.file"}
