"""`looped compare`: runs side by side, as tables and as JSON."""

import json
import re

import pytest

from looped.cli.main import main
from tests.cli.command import TRAIN, answer, complaint


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[str, str, str]:
    """Three runs: the second has another number of loops, the third another seed and no gates."""
    folder = tmp_path_factory.mktemp("runs")
    changes = {"a": [], "b": ["--model.num-loops", "5"], "c": ["--seed", "7", "--model.block", "looped"]}
    for name, flags in changes.items():
        assert main([*TRAIN, "--train.eval-every", "2", *flags, "--out", str(folder / name)]) == 0
    return str(folder / "a"), str(folder / "b"), str(folder / "c")


def test_compare_gives_the_numbers_of_eval_at_half_once_and_twice_the_loops(runs, capsys):
    found = json.loads(answer(capsys, "compare", *runs, "--size", "40", "--json"))
    assert [each["run"] for each in found["runs"]] == list(runs)
    for run, loops in zip(found["runs"], (["2", "3", "6"], ["3", "5", "10"], ["2", "3", "6"]), strict=True):
        wanted = json.loads(answer(capsys, "eval", run["run"], "--size", "40", "--loops", *loops, "--json"))
        assert run["step"] == wanted.pop("step") == 6
        assert run["test"] == wanted


def test_compare_names_exactly_the_settings_that_differ(runs, capsys):
    found = json.loads(answer(capsys, "compare", *runs, "--size", "5", "--json"))
    assert found["differences"] == {
        "model.num_loops": [3, 5, 3],
        "model.block": ["modulated", "modulated", "looped"],
        "seed": [0, 0, 7],
    }
    same = answer(capsys, "compare", runs[0], runs[0], "--size", "5")
    assert "The runs have the same settings." in same


def test_compare_shows_the_validations_of_the_log(runs, capsys):
    text = answer(capsys, "compare", *runs, "--size", "5")
    table = text.split("latest validation score by training samples\n")[1].splitlines()[1:]
    rows = [line.split() for line in table]
    assert [row[0] for row in rows] == ["16", "32", "48"]  # after 2, 4 and 6 steps of 8 samples
    for column, run in enumerate(runs):
        with open(f"{run}/log.jsonl") as log:
            logged = [record["validation"] for record in map(json.loads, log) if "validation" in record]
        assert [float(row[1 + 2 * column]) for row in rows] == pytest.approx([100 * value for value in logged])


def test_compare_marks_the_trained_loops_and_adds_them_to_those_asked_for(runs, capsys):
    text = answer(capsys, "compare", *runs[:2], "--size", "5", "--loops", "1")
    scores = text.split("\n\n")[0].splitlines()[1:5]
    loops = [re.search(r" (\d+)  ( |\*)  accuracy", line) for line in scores]
    assert [each.groups() for each in loops if each] == [("1", " "), ("3", "*"), ("1", " "), ("5", "*")]
    assert "tested on different examples" not in text


def test_compare_with_a_model_of_another_task_says_that_the_examples_differ(runs, capsys):
    text = answer(capsys, "compare", runs[0], "decision-tree", "--size", "2", "--loops", "1")
    assert "tested on different examples" in text
    assert "squared error" in text
    assert "task.name" in text


def test_compare_with_wrong_input_prints_one_line(runs, capsys):
    assert "runs: expected two or more, got 1" in complaint(capsys, "compare", runs[0])
    assert "no run at" in complaint(capsys, "compare", runs[0], "missing")
    assert "size: expected" in complaint(capsys, "compare", *runs, "--size", "0")
    assert "loops: expected" in complaint(capsys, "compare", *runs, "--loops", "0")
