"""`looped inspect`: a run from inside, as a table, as JSON and as a picture."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from looped.cli import main
from looped.inference import load_run
from looped.training import evaluate
from tests.integration.test_cli import answer, complaint

KNOBS = [
    "--recipe", "laptop", "--task.length", "4", "--model.dim", "16", "--model.num-loops", "20",
    "--train.num-steps", "3", "--train.batch-size", "4", "--train.eval-size", "10", "--train.device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("inside") / "ed4")
    assert main(["train", "edit-distance", "--model.block", "modulated", *KNOBS, "--out", folder]) == 0
    return folder


def test_rows_and_answers_of_every_loop(run, capsys):
    found = json.loads(answer(capsys, "inspect", run, "--size", "30", "--loops", "22", "--json"))
    assert (found["task"], found["num_examples"], found["trained_loops"]) == ("edit-distance", 30, 20)
    assert [row["loop"] for row in found["rows"]] == list(range(1, 23))
    loaded = load_run(run)
    wanted = evaluate(loaded.model, loaded.task, "test", 30, range(1, 23))["rows"]
    assert [row["accuracy"] for row in found["rows"]] == [row["accuracy"] for row in wanted]


def test_the_table_shows_the_first_and_the_last_loop(run, capsys):
    lines = answer(capsys, "inspect", run, "--size", "2", "--loops", "21").splitlines()
    assert lines[1].split() == [
        "loop",
        "state",
        "change",
        "continuity",
        "accuracy",
        "alpha1",
        "alpha2",
        "gamma1",
        "gamma2",
    ]
    rows = [line.split() for line in lines[2:] if line.split()[0].isdigit()]
    loops = [int(row[0]) for row in rows]
    assert (loops[0], loops[-1]) == (1, 21)
    assert len(rows) <= 18
    assert all(len(row) == 9 for row in rows)


@pytest.mark.parametrize("block", ["modulated", "looped"])
def test_the_picture_is_one(block, run, capsys, tmp_path):
    path = tmp_path / "new" / "inside.svg"
    if block == "looped":
        run = str(tmp_path / "looped")
        answer(capsys, "train", "edit-distance", "--model.block", block, *KNOBS, "--out", run)
    answer(capsys, "inspect", run, "--size", "2", "--svg", str(path))
    drawn = " ".join(ElementTree.fromstring(path.read_text()).itertext())
    for word in ("Answers", "Size of the state", "continuity coefficient", "Modulation", "alpha2"):
        assert word in drawn
    assert ("gamma1" in drawn) == (block == "modulated")


def test_mistakes_are_one_line(run, capsys, tmp_path):
    assert "size must be at least 1, got 0" in complaint(capsys, "inspect", run, "--size", "0")
    assert "num_loops must be at least 1, got 0" in complaint(capsys, "inspect", run, "--loops", "0")
    assert "no run at" in complaint(capsys, "inspect", "edit-distanse")
    (tmp_path / "file").write_text("mine")
    assert "cannot write" in complaint(capsys, "inspect", run, "--size", "2", "--svg", str(tmp_path / "file" / "a.svg"))
    assert (tmp_path / "file").read_text() == "mine"
