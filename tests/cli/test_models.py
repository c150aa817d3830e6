"""Shipped models on the command line, and a model's answers played on a terminal."""

import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from looped.cli.main import main
from looped.inference.run import Frame, load_run, solve
from looped.models.pretrained import model_card
from looped.tasks import DecisionTree, EditDistance, Sudoku
from looped.viz.board import Play, board, final_board, rule_breakers, show_live, table
from tests.cli.command import answer, complaint

SMALL = [
    "--recipe", "laptop", "--model.block", "looped", "--model.dim", "16", "--model.num-loops", "3",
    "--train.num-steps", "3", "--train.batch-size", "4", "--train.eval-size", "10", "--train.runtime.device", "cpu",
]  # fmt: skip
SUDOKU, STRINGS = "sudoku/looped-r3", "edit-distance/looped-r3"
ORIGIN = ["--commit", "0123abc", "--date", "2026-01-31", "--device", "cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    made = {"sudoku": str(folder / "s4"), "strings": str(folder / "ed4")}
    assert main(["train", "sudoku", "--task.side", "4", "--task.clues", "6", *SMALL, "--out", made["sudoku"]]) == 0
    assert main(["train", "edit-distance", "--task.length", "4", *SMALL, "--out", made["strings"]]) == 0
    return made


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights"


@pytest.fixture
def shipped(empty, runs, capsys):
    answer(capsys, "models", "pack", runs["sudoku"], SUDOKU, "--size", "30", *ORIGIN)
    answer(capsys, "models", "pack", runs["strings"], STRINGS, "--size", "50", *ORIGIN)
    return empty


def test_models_with_one_damaged_file_lists_the_others(shipped, capsys):
    path = shipped / f"{SUDOKU}.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["models"]) == 2
    captured = capsys.readouterr()
    assert STRINGS in captured.out
    assert SUDOKU not in captured.out
    assert len(captured.err.splitlines()) == 1
    assert str(path) in captured.err


def test_models_without_shipped_weights_prints_one_line(empty, capsys):
    for command in (["models"], ["models", "list"], ["models", "check"]):
        said = answer(capsys, *command).splitlines()
        assert len(said) == 1
        assert "no models in" in said[0]
    assert json.loads(answer(capsys, "models", "--json")) == {"models": []}
    assert json.loads(answer(capsys, "models", "check", "--json")) == {"models": []}
    assert "no sudoku model" in complaint(capsys, "solve", "sudoku")
    assert "is empty" in complaint(capsys, "eval", SUDOKU)


def test_models_lists_names_and_scores(shipped, capsys):
    listed = json.loads(answer(capsys, "models", "--json"))["models"]
    assert [each["name"] for each in listed] == [STRINGS, SUDOKU]
    strings = listed[0]
    assert (strings["task"], strings["loops"], strings["samples"]) == ("edit-distance", 3, 12)
    assert strings["bytes"] == (shipped / f"{STRINGS}.safetensors").stat().st_size
    assert (strings["commit"], strings["date"]) == ("0123abc", "2026-01-31")
    header, first, second = answer(capsys, "models").splitlines()
    assert "95 % interval" in header
    assert first.startswith(STRINGS)
    assert f"{strings['parameters']:,}" in first
    assert f"accuracy {strings['test']['value']:.4f}" in first
    assert second.startswith(SUDOKU)


def test_eval_of_a_shipped_model_gives_the_listed_score(shipped, capsys):
    test = model_card(STRINGS).test
    report = json.loads(answer(capsys, "eval", STRINGS, "--size", "50", "--device", "cpu", "--json"))
    assert report["rows"][0]["accuracy"] == test.value
    assert report["rows"][0]["low"] == test.low
    assert report["step"] == 3


def test_pack_to_a_file_serves_every_command_that_takes_a_run(runs, tmp_path, capsys):
    out = str(tmp_path / "model.safetensors")
    packed = json.loads(answer(capsys, "models", "pack", runs["sudoku"], "--out", out, "--size", "30", "--json"))
    assert (packed["path"], packed["name"], packed["task"]) == (out, out, "sudoku")
    report = json.loads(answer(capsys, "eval", out, "--size", "30", "--device", "cpu", "--json"))
    assert report["rows"][0]["accuracy"] == packed["test"]["value"]
    assert json.loads(answer(capsys, "solve", out, "--json"))["run"] == out
    assert "ok" in answer(capsys, "check", out)


@pytest.mark.parametrize("where", [[], [SUDOKU, "--out", "model.safetensors"], ["--out", "model.pt"]])
def test_pack_without_one_place_to_write_is_refused(runs, where, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "expected" in complaint(capsys, "models", "pack", runs["sudoku"], *where)
    assert list(tmp_path.iterdir()) == []


def test_solve_takes_a_name_or_a_task(shipped, capsys):
    by_name = json.loads(answer(capsys, "solve", SUDOKU, "--json"))
    assert by_name == json.loads(answer(capsys, "solve", "sudoku", "--json"))
    assert by_name["run"] == SUDOKU
    task = Sudoku(side=4, clues=6)
    example = task.sample(0, "test", [0])
    assert by_name["input"] == task.render(example.inputs[0])
    assert by_name["truth"] == task.answer(example.targets[0])
    assert len(by_name["frames"]) == 3


def test_solve_sudoku_in_a_pipe_prints_lines_and_a_board(shipped, capsys):
    lines = answer(capsys, "solve", "sudoku", "--loops", "5").splitlines()
    assert "\x1b" not in "".join(lines)
    assert [line.split()[:2] for line in lines[2:7]] == [["loop", str(loop)] for loop in range(1, 6)]
    assert lines[0].split()[0] == "model"
    assert lines[7].startswith("truth")
    drawn = [line for line in lines[8:] if line.startswith("│")]
    assert len(lines[8:]) == 8
    assert lines[-1].startswith(("right", "wrong: "))
    assert "".join(drawn).translate(str.maketrans("·", "0", "│ ")) == lines[6].split()[2]


def test_solve_in_a_pipe_without_box_characters_uses_ascii(shipped):
    command = [sys.executable, "-m", "looped", "solve", "sudoku"]
    done = subprocess.run(command, capture_output=True, env=_environment(PYTHONIOENCODING="ascii"))
    assert done.returncode == 0, done.stderr
    assert b"+-----+-----+" in done.stdout


@pytest.mark.parametrize(
    ("name", "expected"), [("sudoku", ["loop 4 of 4", "against the rules", "┼"]), (STRINGS, ["loop 4 of 4", "truth: "])]
)
def test_solve_on_a_terminal_plays_the_loops(name, expected, shipped):
    """`script` gives the command a terminal."""
    command = f"{sys.executable} -m looped solve {name} --loops 4 --delay 0"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env=_environment(TERM="xterm-256color"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for text in (*expected, *(f"loop {loop} of 4" for loop in (1, 2, 3)), "\x1b["):
        assert text in done.stdout


def _environment(**changed: str) -> dict[str, str]:
    return {**os.environ, **changed}


def test_models_check_measures_again_and_fails_for_a_wrong_score(shipped, capsys, monkeypatch):
    rows = json.loads(answer(capsys, "models", "check", "--seconds", "1000", "--json"))["models"]
    assert [row["name"] for row in rows] == [STRINGS, SUDOKU]
    assert [row["measured"]["size"] for row in rows] == [50, 30]
    assert all(row["consistent"] for row in rows)
    assert answer(capsys, "models", "check", "--seconds", "1000").count("as recorded") == 2
    monkeypatch.setattr("looped.inference.shipping.agree", lambda first, second: False)
    assert main(["models", "check", "--seconds", "1000"]) == 2
    captured = capsys.readouterr()
    assert captured.out.count("NOT as recorded") == 2
    assert captured.err.splitlines()[-1].startswith("looped: these models differ from their records")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "lst"], "did you mean 'list'"),
        (["models", "--jsn"], "--jsn"),
        (["models", "check", "--seconds", "0"], "seconds: expected a positive number, got 0"),
        (["models", "pack", "{strings}"], "--out FILE"),
        (["models", "pack", "{strings}", "sudoku/x", *ORIGIN], "name: expected one like edit-distance/modulated-r32"),
        (["models", "pack", "{strings}", "edit-distance/x"], "commit: expected one here or in"),
        (["models", "pack", "/nowhere", "edit-distance/x", *ORIGIN], "no run at /nowhere"),
        (["solve", "sudoku/looped-r4"], f"did you mean '{SUDOKU}'"),
        (["solve", "sudku"], "did you mean 'sudoku'"),
        (["eval", "lcs"], "no lcs model in"),
        (["solve", "sudoku", "--delay", "-1"], "--delay: expected 0..60 seconds"),
        (["solve", "sudoku", "--input", "12"], "expected 16 cells, got 2"),
    ],
)
def test_models_with_wrong_input_prints_one_line(arguments, message, shipped, runs, capsys):
    assert message in complaint(capsys, *(argument.format(**runs) for argument in arguments))


def test_models_lists_its_verbs(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["models", "--help"])
    assert stop.value.code == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["list", "check", "pack"]


SOLUTION = "1234341221434321"
GIVEN = "1034300200434001"


def frame(task: Sudoku, board: str, sure: float = 0.95) -> Frame:
    digits = np.array([int(digit) for digit in board])
    probabilities = np.where(np.array([digit != "0" for digit in GIVEN]), 1.0, sure)
    return Frame(1, digits, task.answer(digits), sure, 0.1, probabilities)


def play(*boards: str, sure: float = 0.95) -> Play:
    task = Sudoku(side=4, clues=10)
    inputs = np.array([int(digit) for digit in GIVEN])
    return Play("sudoku/mine", task, inputs, [frame(task, each, sure) for each in boards])


def drawn(renderable) -> tuple[str, str]:
    """What a terminal would show, without and with its styles."""
    console = Console(record=True, force_terminal=True, color_system="standard", width=80, file=io.StringIO())
    console.print(renderable(console))
    return console.export_text(clear=False), console.export_text(styles=True)


def test_board_when_solved_says_so_and_keeps_given_digits_bold():
    text, styled = drawn(lambda console: board(play(SOLUTION), 0, console))
    assert "│ 1 2 │ 3 4 │" in text
    assert "solved" in text
    assert "sudoku/mine   loop 1 of 1" in text
    assert "\x1b[1m1 \x1b[0m\x1b[32m2 \x1b[0m" in styled  # a given 1, and a 2 that the model is sure of


def test_board_colours_digits_by_confidence():
    for sure, colour in ((0.95, "32"), (0.6, "33"), (0.2, "90")):
        _, styled = drawn(lambda console, sure=sure: board(play(SOLUTION, sure=sure), 0, console))
        assert f"\x1b[{colour}m2 \x1b[0m" in styled


def test_board_counts_digits_that_break_a_rule_and_colours_them_red():
    broken = "14" + SOLUTION[2:]  # a 4 beside a given one in its row, and above one that is not given
    text, styled = drawn(lambda console: board(play(broken), 0, console))
    assert "against the rules: 2" in text
    assert styled.count("\x1b[31m4 \x1b[0m") == 2
    text, _ = drawn(lambda console: board(play("10" + SOLUTION[2:]), 0, console))
    assert "open cells: 1" in text
    assert "│ 1 · │ 3 4 │" in text


def test_rule_breakers_equal_those_by_the_rules():
    """Compared with the rules written out cell by cell, for boards of any digits."""
    generator = np.random.default_rng(0)
    for side in (4, 9):
        task, box = Sudoku(side=side), {4: 2, 9: 3}[side]
        digits = generator.integers(0, side + 1, side * side)
        found = rule_breakers(task, digits)
        for cell, digit in enumerate(digits):
            row, column = divmod(cell, side)
            seen = [
                digits[r * side + c]
                for r in range(side)
                for c in range(side)
                if (r, c) != (row, column)
                and (r == row or c == column or (r // box, c // box) == (row // box, column // box))
            ]
            assert found[cell] == (digit > 0 and digit in seen)


def test_player_draws_every_loop_and_leaves_the_last(runs, capsys):
    run = load_run(runs["sudoku"])
    inputs, targets = run.test_example(2)
    frames = list(solve(run.model, run.task, inputs))
    for each in frames:
        assert each.probabilities.shape == inputs.shape
        assert (each.probabilities[inputs > 0] == 1).all()
        assert each.confidence == pytest.approx(each.probabilities[inputs == 0].mean())
    console = Console(force_terminal=True, width=80, height=30)
    show_live(Play("mine", run.task, inputs, frames, run.task.answer(targets)), console, delay=0)
    shown = capsys.readouterr().out
    assert re.findall(r"loop (\d) of 3", shown)[:3] == ["1", "2", "3"]
    assert re.findall(r"loop (\d) of 3", shown)[-1] == "3"


def test_answer_table_keeps_the_latest_answers_that_fit(capsys):
    task = EditDistance(length=4)
    inputs = task.sample(0, "test", [0]).inputs[0]
    frames = [Frame(loop, inputs, str(loop), 0.5, 0.1, np.ones(len(inputs))) for loop in range(1, 41)]
    console = Console(width=80, height=20, file=io.StringIO(), record=True)
    console.print(table(Play("mine", task, inputs, frames, "40"), 39, console))
    text = console.export_text()
    assert text.count("\n") <= 20
    assert "0.500" in text.splitlines()[-3]
    assert "loop 40 of 40" in text
    assert "truth: 40" in text
    final_board(Play("mine", task, inputs, frames), console)  # strings have no board
    assert console.export_text() == ""


def test_answer_table_of_a_tree_fits_its_question_into_few_lines():
    """The query is among them: without it nobody knows what was asked."""
    task = DecisionTree()
    inputs = task.sample(0, "test", [0]).inputs[0]
    frames = [Frame(loop, inputs, str(loop), None, 0.1, np.ones(len(inputs))) for loop in range(1, 41)]
    console = Console(width=80, height=20, file=io.StringIO(), record=True)
    console.print(table(Play("mine", task, inputs, frames, "40"), 39, console))
    lines = console.export_text().splitlines()
    assert len(lines) <= 20
    assert "100 points of 20 numbers" in lines[1]
    query = " ".join(f"{number:5.2f}" for number in inputs[-1][:6])
    assert lines[4].rstrip() == f"{query} ... -> ?"
