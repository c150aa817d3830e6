"""Tasks outside the package on the command line."""

import json

import pytest

from looped.cli.main import main
from looped.utils.plugins import VARIABLE
from tests.cli.command import answer, complaint
from tests.paths import ROOT

TINY = [
    "--recipe", "laptop", "--model.dim", "16", "--model.num-loops", "2", "--train.num-steps", "4",
    "--train.batch-size", "8", "--train.eval-size", "20", "--train.runtime.device", "cpu", "--task.length", "9",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with the file of a task."""
    (tmp_path / "bits.py").write_text((ROOT / "examples" / "own_task.py").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_task_of_a_file_is_trained_and_needs_its_plugin_afterwards(capsys, plugins, monkeypatch):
    out = json.loads(answer(capsys, "train", "bits.py:Majority", *TINY, "--out", "runs/m", "--json"))
    assert out["finished"]
    plugins()
    said = complaint(capsys, "eval", "runs/m")
    assert "unknown task 'majority'" in said
    assert "--plugin" in said
    found = json.loads(answer(capsys, "eval", "runs/m", "--plugin", "bits", "--json"))
    assert found["task"] == "majority"
    plugins()
    monkeypatch.setenv(VARIABLE, "bits.py")
    solved = json.loads(answer(capsys, "solve", "runs/m", "--input", "1 1 1 1 1 0 0 0 0", "--json"))
    assert solved["truth"] == "1"


def test_answer_of_a_task_without_a_solver_is_not_judged(capsys, folder):
    text = (folder / "bits.py").read_text()
    (folder / "bits.py").write_text(f"{text}\n\nMajority.solve = Task.solve\n")
    answer(capsys, "train", "bits.py:Majority", *TINY, "--out", "runs/m")
    solved = json.loads(answer(capsys, "solve", "runs/m", "--plugin", "bits.py", "--input", "1 1 0", "--json"))
    assert solved["truth"] is solved["right"] is None
    assert solved["verdict"].startswith("not judged")


def test_flags_and_help_of_a_plugged_in_task(capsys):
    with pytest.raises(SystemExit):
        answer(capsys, "train", "bits.py:Majority", "--help")
    assert "number of bits" in capsys.readouterr().out
    assert "expected an integer" in complaint(capsys, "data", "sample", "bits.py:Majority", "--task.length", "0")


def test_data_verbs_build_and_check_a_plugged_in_task(capsys, folder):
    answer(capsys, "data", "build", "majority", "--plugin=bits.py", "--size", "20", "--out", "set.jsonl")
    assert "all 20 examples are right" in answer(capsys, "data", "check", "set.jsonl", "--plugin", "bits.py")
    lines = (folder / "set.jsonl").read_text().splitlines()
    row = json.loads(lines[3])
    lines[3] = json.dumps({**row, "answer": str(1 - int(row["answer"]))})
    (folder / "set.jsonl").write_text("\n".join(lines) + "\n")
    assert "set.jsonl, line 4: answer: expected" in complaint(capsys, "data", "check", "set.jsonl")


def test_resume_with_a_changed_task_is_refused_and_eval_warns(capsys, folder, plugins):
    command = ["train", "bits.py:Majority", *TINY, "--train.max-minutes", "0.000001", "--out", "runs/m"]
    answer(capsys, *command)
    with (folder / "bits.py").open("a") as file:
        file.write("# changed\n")
    plugins()
    assert "was trained with another bits.py" in complaint(capsys, *command)
    assert main(["eval", "runs/m", "--size", "5", "--plugin", "bits.py"]) == 0
    assert "bits.py has changed since runs/m was trained" in capsys.readouterr().err


def test_overlapping_splits_are_noticed(capsys, folder):
    text = (folder / "bits.py").read_text()
    start = text.index("        return self.draw_batch")
    drawn = "        rows = [draw(np.random.default_rng(i)) for i in indices]\n"
    drawn += "        inputs = np.stack([row[0] for row in rows])\n"
    drawn += "        targets = np.stack([row[1] for row in rows]).astype(np.int64)\n"
    drawn += "        return Batch(inputs, targets, self.counted(inputs))\n"
    end = text.index("\n", start) + 1
    (folder / "bits.py").write_text(text[:start] + drawn + text[end:])
    assert main(["train", "bits.py:Majority", *TINY, "--out", "runs/m"]) == 0
    assert "validation examples are training examples too" in capsys.readouterr().err
    assert main(["train", "edit-distance", *TINY[:-2], "--task.length", "4", "--out", "runs/e"]) == 0
    assert "training examples too" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "x", "--plugin"],
        ["eval", "x", "--plugin", "nowhere.py"],
        ["eval", "x", "--plugin", "no.such.module"],
        ["train", "bits.py:Minority"],
        ["train", "nowhere.py:Majority"],
        ["data", "sample", "majority"],
    ],
)
def test_mistyped_plugin_is_one_line(command, capsys):
    complaint(capsys, *command)
