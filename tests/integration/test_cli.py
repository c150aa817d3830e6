"""The command line as a user meets it: the whole way from training to an answer, and every mistake in one line."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from looped.cli import main
from looped.cli.parsing import peek
from looped.tasks import TASKS, DecisionTree, EditDistance
from looped.training.trainer import Trainer
from tests.training.conftest import tiny

TRAIN = [
    "train", "edit-distance", "--recipe", "laptop", "--task.length", "4", "--model.block", "modulated",
    "--model.dim", "16", "--model.num-loops", "3", "--train.num-steps", "6", "--train.batch-size", "8",
    "--train.eval-size", "20", "--train.device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("cli") / "run")
    assert main([*TRAIN, "--out", folder]) == 0
    return folder


def answer(capsys, *arguments: str):
    """What a successful command prints on standard output."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def complaint(capsys, *arguments: str) -> str:
    """The one line that a mistake gets."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    lines = captured.err.strip().split("\n")
    assert len(lines) == 1, lines
    assert lines[0].startswith("looped: ")
    return lines[0]


def test_training_prints_one_json_object_and_goes_on_where_it_was(run, capsys):
    result = json.loads(answer(capsys, *TRAIN, "--out", run, "--json"))
    assert result["finished"]
    assert result["step"] == 6
    assert result["samples"] == 48
    assert result["folder"] == run


def test_eval_measures_each_loop_count_beside_the_baseline(run, capsys):
    report = json.loads(answer(capsys, "eval", run, "--loops", "1", "2", "3", "6", "--size", "50", "--json"))
    assert [row["loops"] for row in report["rows"]] == [1, 2, 3, 6]
    for row in report["rows"]:
        assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1
        assert (row["accuracy"] * 50) == pytest.approx(round(row["accuracy"] * 50))
    assert 0 < report["baseline"] < 1
    text = answer(capsys, "eval", run, "--size", "50")
    assert "95 % interval" in text
    assert "best constant answer" in text


def test_eval_of_train_measures_what_the_run_was_trained_on(tmp_path, capsys):
    """A small set that the run knows by heart: other examples of its size it does not."""
    run = str(tmp_path / "run")
    by_heart = ["--train.num-examples", "16", "--train.batch-size", "16", "--train.num-steps", "150",
                "--train.size-schedule", "fixed", "--train.size-choices", "--seed", "1"]  # fmt: skip
    answer(capsys, *TRAIN, *by_heart, "--out", run)
    own = json.loads(answer(capsys, "eval", run, "--split", "train", "--size", "50", "--json"))
    assert (own["size"], own["rows"][0]["accuracy"]) == (16, 1.0)
    assert json.loads(answer(capsys, "eval", run, "--size", "50", "--json"))["rows"][0]["accuracy"] < 1
    assert "expected --sets or --split train" in complaint(capsys, "eval", run, "--sets", "--split", "train")


def test_eval_knows_further_test_sets(tmp_path, capsys):
    run = str(tmp_path / "run")
    small = ["--model.dim", "16", "--train.num-steps", "2", "--train.batch-size", "4", "--train.eval-size", "4"]
    answer(capsys, "train", "countdown", "--recipe", "laptop", *small, "--out", run)
    sets = json.loads(answer(capsys, "eval", run, "--sets", "--size", "5", "--json"))["sets"]
    assert list(sets) == ["held-out targets", "training targets"]
    assert all(report["size"] == 5 for report in sets.values())


@pytest.mark.parametrize(
    ("task", "knobs"),
    [
        ("edit-distance", []),
        ("countdown", []),
        ("decision-tree", []),
        ("sudoku", ["--task.side", "4"]),
        ("language", ["--task.text", "synthetic:stories", "--task.seq-len", "8"]),
    ],
)
def test_data_verbs_show_write_check_and_count(task, knobs, tmp_path, capsys):
    shown = json.loads(answer(capsys, "data", "sample", task, *knobs, "--size", "3", "--json"))["examples"]
    assert len(shown) == 3
    path = str(tmp_path / "set.jsonl")
    made = json.loads(answer(capsys, "data", "build", task, *knobs, "--size", "20", "--out", path, "--json"))
    assert made["size"] == 20
    assert json.loads(answer(capsys, "data", "check", path, "--json"))["examples"] == 20
    assert answer(capsys, "data", "check", path) == f"{path}: all 20 examples are right\n"
    lines = (tmp_path / "set.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines[1:4]] == shown
    assert json.loads(answer(capsys, "data", "stats", task, *knobs, "--size", "50", "--json"))["examples"] == 50


@pytest.mark.parametrize("size", [1, 499, 500, 501, 1200])
def test_a_sample_is_printed_part_by_part_as_one(size, capsys):
    examples = EditDistance(length=4).examples(0, "train", range(size))
    asked = ["data", "sample", "edit-distance", "--task.length", "4", "--size", str(size)]
    assert answer(capsys, *asked, "--json") == json.dumps({"examples": examples}) + "\n"
    texts = ["\n".join(f"{name}: {value}" for name, value in example.items()) for example in examples]
    assert answer(capsys, *asked) == "\n\n".join(texts) + "\n"


def test_a_sample_is_never_drawn_at_once(capsys, monkeypatch):
    drawn = []
    make = EditDistance.examples
    monkeypatch.setattr(EditDistance, "examples", lambda self, *keys: drawn.append(len(keys[-1])) or make(self, *keys))
    answer(capsys, "data", "sample", "edit-distance", "--task.length", "4", "--size", "1200")
    assert (sum(drawn), max(drawn)) == (1200, 500)


def test_of_flags_that_choose_the_defaults_the_last_counts_too():
    assert peek(["lcs", "--recipe", "laptop", "--recipe=paper"], "--recipe") == "paper"
    assert peek(["lcs", "--recipe=laptop", "--recipe", "paper", "--recipe"], "--recipe") == "paper"
    assert peek(["lcs", "--recipes", "laptop"], "--recipe") is None


def test_theory_verbs_build_and_draw(tmp_path, capsys):
    built = json.loads(answer(capsys, "theory", "approximate", "--function", "attn", "--cells", "4", "--json"))
    assert [built["size"][name] for name in ("dims", "heads", "width", "loops")] == [26, 2, 74, 134]
    assert built["measured_lp"] <= built["bound_total"]
    own = tmp_path / "mine.py"
    own.write_text("def swap(x):\n    return x[:, ::-1].copy() if x.shape[1] == 2 else x\n")
    arguments = ["--function", f"{own}:swap", "--cells", "2", "--variant", "modulated-minimal", "--p", "inf"]
    text = answer(capsys, "theory", "approximate", *arguments)
    assert "f(representative)" in text
    assert json.loads(answer(capsys, "theory", "approximate", *arguments, "--json"))["p"] == "inf"
    with pytest.raises(SystemExit) as refuted:
        answer(capsys, "theory", "approximate", "--function", "attn", "--cells", "2", "--lipschitz", "0.01")
    assert refuted.value.code == 1
    assert "VIOLATED" in capsys.readouterr().out
    picture = tmp_path / "new" / "stairs.png"
    assert answer(capsys, "theory", "plot", "staircase", "--out", str(picture)) == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    asked = ["theory", "plot", "staircase", "--out", str(picture), "--json"]
    assert json.loads(answer(capsys, *asked)) == {"path": str(picture)}


def test_theory_verify_prints_every_row_as_json(capsys, monkeypatch):
    from looped.theory import verify

    monkeypatch.setattr(verify, "CHECKS", (verify._ids, verify._sharpness))  # the quick ones
    assert main(["theory", "verify", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is True
    assert len(said["rows"]) == 10
    assert all(row["ok"] is True and row["corrected"].startswith("PASS") for row in said["rows"])


def test_solve_shows_the_answer_after_every_loop(run, capsys):
    asked = json.loads(answer(capsys, "solve", run, "--input", "abca|bcca", "--loops", "5", "--json"))
    assert [frame["loop"] for frame in asked["frames"]] == [1, 2, 3, 4, 5]
    assert asked["input"] == "abca|bcca"
    assert asked["answer"] == asked["frames"][-1]["answer"]
    assert asked["truth"] == "4"  # a goes (2) and another c comes (2)
    assert all(0 < frame["confidence"] <= 1 for frame in asked["frames"])
    text = answer(capsys, "solve", run, "--index", "3")
    assert text.count("loop ") == 3
    assert "truth" in text


def test_a_trees_question_is_short_and_whole_in_json(tmp_path, capsys):
    run = str(tmp_path / "tree")
    small = ["--task.points", "9", "--task.dims", "8", "--model.dim", "16", "--model.num-loops", "2",
             "--train.num-steps", "1", "--train.batch-size", "2", "--train.eval-size", "4",
             "--train.device", "cpu"]  # fmt: skip
    answer(capsys, "train", "decision-tree", "--recipe", "laptop", *small, "--out", run)
    whole = json.loads(answer(capsys, "solve", run, "--json"))["input"].splitlines()
    assert len(whole) == 9
    heading, first, second, query, *rest = answer(capsys, "solve", run).splitlines()
    assert heading == "8 points of 8 numbers and their values: the first 2, then the query"
    for line, full in ((first, whole[0]), (second, whole[1]), (query, whole[8])):
        numbers, value = full.split(" -> ")
        said, _, said_value = line.partition(" ... -> ")
        assert [float(each) for each in said.split()] == [round(float(each), 2) for each in numbers.split()[:6]]
        assert said_value == (value if value == "?" else f"{float(value):.2f}")
    assert [line.split()[0] for line in rest] == ["loop", "loop", "truth"]
    own = ";".join(["0 1 2 3 4 5 6 7 -> 1", "7 6 5 4 3 2 1 0 -> ?"])
    assert answer(capsys, "solve", run, "--input", own).startswith("1 point of 8 numbers and its value, then")


HELPS = [
    *(f"train {task}" for task in TASKS), *(f"paper {verb}" for verb in ("list", "run", "report")),
    "eval", "solve", "inspect", "models list", "models check", "models pack", "data check",
    "theory verify", "theory approximate", "theory plot", "bench train", "bench infer", "bench scaling",
]  # fmt: skip


@pytest.mark.parametrize("command", HELPS)
def test_help_names_one_default_of_a_flag(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert any("-h, --help" in line for line in lines)
    assert [line for line in lines if line.count("default") > 1] == []


@pytest.mark.parametrize("verb", ["eval", "solve", "inspect"])
def test_help_says_what_may_stand_for_a_run(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert "or a task, which stands for its best shipped model" in capsys.readouterr().out


def test_help_shows_every_knob_with_its_meaning(capsys):
    from dataclasses import fields

    from looped.config import ModelConfig, TrainConfig

    with pytest.raises(SystemExit) as stop:
        main(["train", "edit-distance", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for part, config in (("model", ModelConfig), ("train", TrainConfig)):
        for each in fields(config):
            assert f"--{part}.{each.name.replace('_', '-')} " in text
    assert "times the stack is applied in training" in text


def test_help_without_a_task_names_no_default(capsys):
    """Each is up to the task and its recipe."""
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "default" not in text
    assert all(task in text for task in TASKS)
    assert "looped train TASK --help" in text


@pytest.mark.parametrize("verb", ["data", "theory", "paper"])
def test_a_verb_of_verbs_lists_them(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert "VERB is one of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "own"),
    [
        ("list", set()),
        ("run", {"root", "results", "seeds", "workers", "again", "minutes"}),
        ("status", {"root", "results", "seeds"}),
        ("collect", {"root", "results", "replace"}),
        ("report", {"root", "results", "out", "readme"}),
    ],
)
def test_a_verb_of_the_paper_shows_and_takes_its_own_flags_alone(verb, own, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["paper", verb, "--help"])
    assert stop.value.code == 0
    shown = set(re.findall(r"--(?!no-)(\w+)", capsys.readouterr().out))
    assert shown == {"help", "scale", "cells", "json"} | own
    foreign = "readme" if "readme" not in own else "minutes"
    assert f"Unrecognized options: --{foreign}" in complaint(capsys, "paper", verb, f"--{foreign}", "3")


def test_on_a_terminal_too_a_mistake_is_one_line():
    """tyro colours its complaints where it sees a terminal."""
    command = f"{sys.executable} -m looped.cli train edit-distance --model.blok looped"
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True)
    assert done.stdout.strip() == "looped: Unrecognized options: --model.blok, looped; did you mean --model.block?"


@pytest.fixture(params=[EditDistance(length=4), DecisionTree(points=3, dims=2, depth=1)], ids=lambda task: task.name)
def overflowing(request, tmp_path) -> str:
    """A run whose state is multiplied by a large number in every loop."""
    config = tiny(task=request.param, model={"block": "looped", "norm": "none", "positions": "none"})
    trainer = Trainer(config, tmp_path / "run", quiet=True)
    with torch.no_grad():
        trainer.model.stack.layers[0].w_in.mul_(30)
        trainer.model.stack.layers[0].w_back.mul_(30)
    trainer.folder.claim(config)
    trainer.step = config.train.num_steps
    trainer.save()
    return str(tmp_path / "run")


def test_what_overflows_is_told_and_not_scored(overflowing, capsys):
    ask = ["eval", overflowing, "--loops", "1", "300", "--size", "5"]
    report = json.loads(answer(capsys, *ask, "--json"), parse_constant=lambda constant: pytest.fail(constant))
    few, many = report["rows"]
    metric = report["metric"]
    assert None not in few.values()
    assert {many[name] for name in many if name not in ("loops", "curve")} == {None}
    _, _, first, second, _ = answer(capsys, *ask).splitlines()
    assert first.split()[:2] == ["1", f"{few[metric]:.4f}"]
    assert second.split(maxsplit=1) == ["300", f"the outputs overflow: no {metric}"]
    for verb in ("solve", "inspect"):
        line = complaint(capsys, verb, overflowing, "--loops", "300")
        assert re.fullmatch(r"looped: expected a network with finite outputs, got one that overflows in loop \d+", line)
    assert answer(capsys, "solve", overflowing, "--loops", "1", "--json")


@pytest.mark.parametrize(
    ("curriculum_steps", "said"), [("30", ["size 2 of 4", "--train.curriculum-steps (now 30)"]), ("6", [])]
)
def test_a_training_too_short_for_its_curriculum_says_so_first(curriculum_steps, said, tmp_path, capsys):
    assert main([*TRAIN, "--train.curriculum-steps", curriculum_steps, "--out", str(tmp_path / "run")]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("looped: ") == bool(said)
    assert all(part in first for part in said)


def test_a_stopped_training_does_not_count_as_success(tmp_path):
    arguments = [*TRAIN, "--train.num-steps", "1000000", "--out", str(tmp_path / "run")]
    process = subprocess.Popen([sys.executable, "-m", "looped.cli", *arguments], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "log.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on" in out


@pytest.mark.parametrize("arguments", [["--version"], ["data", "--help"]])
@pytest.mark.parametrize("buffered", [True, False])
def test_an_output_that_takes_nothing(arguments, buffered):
    """On a full disk one line and exit code 2; where nobody reads on, not a word."""
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "looped.cli", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert (done.returncode, done.stderr) == (2, "looped: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken:
        done = subprocess.run(command, stdout=broken, stderr=subprocess.PIPE, text=True, env=environment)
    assert (done.returncode, done.stderr) == (1, "")


def test_what_the_system_refuses_is_one_line(monkeypatch, capsys):
    def refused(_):
        raise PermissionError(13, "Permission denied", "/some/where")

    monkeypatch.setattr("looped.cli.data.data", refused)
    assert complaint(capsys, "data") == "looped: /some/where: Permission denied"


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        (MemoryError(), "machine"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"), "machine"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "card"),
    ],
)
def test_memory_that_runs_out_is_one_line(error, whose, run, monkeypatch, capsys):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr("looped.models.LoopModel.iterate", refused)
    monkeypatch.setattr("looped.models.LoopModel.states_at", refused)
    expected = f"looped: the {whose}'s memory is too small for this command: expected one that asks for less"
    for verb in ("eval", "solve", "inspect"):
        assert complaint(capsys, verb, run) == expected


def test_a_bug_is_not_told_as_a_lack_of_memory(run, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("looped.models.LoopModel.iterate", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        main(["solve", run])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean 'train'"),
        (["train"], "expected a task first"),
        (["train", "edit-distanc"], "did you mean 'edit-distance'"),
        (["train", "edit-distance", "--model.blok", "looped"], "did you mean --model.block?"),
        (["train", "edit-distance", "--model.block", "modular"], "'modular'; did you mean 'modulated'?"),
        (["train", "edit-distance", "--model.dim", "wide"], "--model.dim: expected a whole number, got 'wide'"),
        (["train", "edit-distance", "--train.learning-rate", "low"], "--train.learning-rate: expected a number, got"),
        (["train", "edit-distance", "--model.dim", "10", "--model.num-heads", "4"], "expected a divisor of 10, got 4"),
        (
            ["train", "lcs", "--model.dim", "1" + 13 * "0", "--model.num-heads", "1", "--out", "{new}"],
            "memory is too small for a model of dim 10000000000000, ",
        ),
        (["train", "edit-distance", "--recipe", "quick"], "unknown recipe 'quick'"),
        (["train", "edit-distance", "--train.init-from", "/nowhere", "--out", "{new}"], "no run at /nowhere"),
        ([*TRAIN, "--seed", "5", "--out", "{run}"], "holds another run: its seed is 0, this one's is 5"),
        (["eval"], "looped eval"),
        (["eval", "/nowhere"], "no run at /nowhere"),
        (["eval", "{folder}"], "is not a run"),
        (["eval", "{run}", "--loops", "0"], "loops must be at least 1, got 0"),
        (["eval", "{run}", "--loops", "8", "999999"], "num_loops must be at most 100,000, got 999999"),
        (["eval", "{run}", "--size", "0"], "size must be at least 1, got 0"),
        (["eval", "{run}", "--size", "1" + 15 * "0"], "size must be at most 1,000,000, got 1000000000000000"),
        (["inspect", "{run}", "--size", "1" + 15 * "0"], "size must be at most 1,000,000, got 1000000000000000"),
        (["eval", "{run}", "--split", "exam"], "exam"),
        (["solve", "{run}", "--input", "abca"], "expected two strings"),
        (["solve", "{run}", "--input", "abca|bcca", "--index", "3"], "expected an input or an index, got both"),
        (["solve", "{run}", "--index", "-1"], "index must be in 0..4611686018427387904, got -1"),
        (["eval", "{run}", "--loops", "few"], "--loops: expected numbers, got 'few'"),
        (["solve", "{run}", "--input", "abzz|abca"], "'z'"),
        (["solve", "{run}", "--input", "abcabc|abca"], "letters, got 6"),
        (["solve", "{run}", "--input", "abca|abca", "--loops", "0"], "num_loops must be at least 1, got 0"),
        (["solve", "{run}", "--loops", "all"], "--loops: expected a whole number, got 'all'"),
        (["eval", "{run}", "--sets"], "edit-distance has no further test sets"),
        (["data"], "expected a verb first"),
        (["data", "sample"], "expected a task first"),
        (["data", "sample", "sudokus"], "did you mean 'sudoku'"),
        (["data", "sample", "lcs", "--size", "0"], "size must be at least 1, got 0"),
        (["data", "sample", "lcs", "--size", "1000000000"], "size must be at most 1,000,000, got 1000000000"),
        (["data", "stats", "sudoku", "--task.side", "4", "--size", "1000001"], "size must be at most 1,000,000, got"),
        (["data", "stats", "decision-tree", "--size", "100000"], "size must be at most 16,693, got 100000"),
        (["data", "check", "{folder}/notes.txt"], "line 1: expected a JSON object"),
        (["data", "build", "lcs", "--size", "0", "--out", "{new}"], "size must be at least 1, got 0"),
        (["theory", "prove"], "unknown verb 'prove'"),
        (["theory", "approximate", "--cells", "1"], "cells >= 2"),
        (["theory", "approximate", "--cells", "400"], "take fewer cells"),
        (["theory", "approximate", "--function", "atn"], "did you mean 'attn'"),
        (["theory", "approximate", "--function", "{mine}.py:bad"], "the function bad raised ZeroDivisionError: "),
        (["theory", "approximate", "--p", "nan"], "expected p >= 1 (inf too), got nan"),
        (["theory", "approximate", "--lipschitz", "nan"], "finite Lipschitz constant >= 0, got nan"),
        (["theory", "approximate", "--lipschitz", "-1"], "finite Lipschitz constant >= 0, got -1"),
        (["theory", "plot", "stairs"], "stairs"),
        (["theory", "plot", "ids", "--out", "{new}/x.txt"], "ends in .png, .svg, .pdf, got"),
        (["theory", "plot", "staircase", "--out", "{folder}/notes.txt/x.png"], "cannot write"),
        (["paper"], "expected a verb first"),
        (["paper", "run", "table9"], "unknown experiment 'table9'"),
        (["paper", "report", "--root", "{folder}", "--results", "{new}", "--out", "{new}"], "nothing to report"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, run, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "mine.py").write_text("def bad(x):\n    return x / (0 // 0)\n")
    places = {"run": run} | {name: str(tmp_path / name) for name in ("folder", "new", "mine")}
    line = complaint(capsys, *(argument.format(**places) for argument in arguments))
    assert message in line
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "folder" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["language", "--task.text", "{folder}/nothing.txt"], "no text "),
        (["language", "--task.text", "{folder}/empty.txt"], "is empty: expected text"),
        (["sudoku", "--task.file", "{folder}/nothing.csv"], "cannot read "),
        (["edit-distance", "--train.track", "wandb"], "needs an extra"),
        (["edit-distance", "--model.num-loops", "1000000000"], "num_loops must be at most 100,000, got 1000000000"),
        (["edit-distance", "--train.batch-size", "1" + 15 * "0"], "expected a smaller train.batch_size"),
        (["edit-distance", "--train.eval-size", "1" + 15 * "0"], "size must be at most 1,000,000"),
        (["edit-distance", "--train.batch-size", "1" + 21 * "0"], "num_steps x batch_size must be at most "),
        (["edit-distance", "--train.num-examples", "1" + 21 * "0"], "num_examples must be at most "),
        (["edit-distance", "--train.num-examples", "1" + 15 * "0"], "expected a smaller train.num_examples"),
        (["edit-distance", "--train.num-examples", "4" + 18 * "0"], "expected a smaller train.num_examples"),
        (
            ["edit-distance", "--train.batch-size", "4" + 18 * "0", "--train.num-steps", "1"],
            "expected a smaller train.batch_size",
        ),
        (["edit-distance", "--train.num-threads", "1" + 15 * "0"], "num_threads must be at most 1024, got 1000"),
        (["edit-distance", "--train.num-threads", "100000"], "num_threads must be at most 1024, got 100000"),
        (["edit-distance", "--train.num-workers", "100000"], "num_workers must be at most 1024, got 100000"),
    ],
)
@pytest.mark.parametrize("out", ["new/run", "made"])
def test_a_training_that_is_refused_leaves_nothing(arguments, message, out, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    (tmp_path / "made").mkdir()
    (tmp_path / "empty.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    given = [argument.format(folder=tmp_path) for argument in arguments]
    line = complaint(capsys, "train", *given, "--recipe", "laptop", "--out", str(tmp_path / out))
    assert message in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_gpu_is_told_in_words_that_were_typed(run, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    expected = "looped: device 'cuda' needs a GPU that PyTorch can see, found none"
    assert complaint(capsys, "eval", run, "--device", "cuda") == expected
    assert complaint(capsys, "bench", "train", "--device", "cuda") == expected


def test_a_damaged_config_names_the_file(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in complaint(capsys, "eval", str(tmp_path))
    (tmp_path / "config.json").write_text('{"task": {"name": "edit-distance", "lenght": 3}}')
    assert "did you mean 'task.length'" in complaint(capsys, "eval", str(tmp_path))


def test_a_damaged_newest_checkpoint_is_said_by_whatever_reads_the_run(tmp_path, capsys):
    folder = tmp_path / "run"
    answer(capsys, *TRAIN, "--train.checkpoint-every", "4", "--out", str(folder))
    (folder / "checkpoints" / "step-000000006" / "state.json").write_text("{")
    for verb in (["eval", "--size", "5"], ["solve"], ["inspect", "--size", "5"]):
        assert main([verb[0], str(folder), *verb[1:]]) == 0
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert "step-000000006 is not a checkpoint: " in line
        assert line.endswith("; step 4 is used instead")
        assert "not finished" not in out
        assert ("measured at step 4 of 6" in out) == (verb[0] == "eval")


def test_an_untrained_run_says_so(tmp_path, capsys):
    from looped.config import RunConfig

    (tmp_path / "config.json").write_text(json.dumps(RunConfig(EditDistance(length=4)).to_json()))
    assert "has no checkpoint yet" in complaint(capsys, "eval", str(tmp_path))


def test_the_installed_command_answers():
    done = subprocess.run([sys.executable, "-m", "looped.cli", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("looped 0.")


def test_what_is_only_collected_is_trained_again_where_asked(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("looped.experiments.runner.run_experiment", lambda *_, **given: seen.append(given["results"]))
    for flags in ([], ["--again"]):
        main(
            ["paper", "run", "table2", "--scale", "smoke", "--root", str(tmp_path), "--results", str(tmp_path), *flags]
        )
    assert seen == [tmp_path, None]
