"""The command line as a user meets it: the whole way from training to an answer."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from looped.cli.args import peek
from looped.cli.main import main
from looped.cli.progress import Bar
from looped.cli.theory import _progress_line
from looped.inference import load
from looped.tasks import TASKS, DecisionTree, EditDistance
from looped.theory import VARIANTS, loops_for_error
from looped.training import evaluation
from looped.training.trainer import Trainer
from tests.cli.command import TRAIN, answer, complaint
from tests.training.conftest import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("cli") / "run")
    assert main([*TRAIN, "--out", folder]) == 0
    return folder


def test_train_prints_one_json_object_and_resumes(run, capsys):
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


def test_eval_of_a_task_names_the_model_that_it_stands_for(capsys):
    text = answer(capsys, "eval", "lcs", "--size", "2", "--loops", "1")
    assert text.startswith(f"model: {load('lcs').name}\n")
    whole = json.loads(answer(capsys, "eval", "lcs", "--size", "2", "--loops", "1", "--json"))
    assert whole["task"] == "lcs"
    assert not answer(capsys, "eval", "lcs/looped-r50", "--size", "2", "--loops", "1").startswith("model")


def test_eval_with_a_file_measures_its_rows(run, tmp_path, capsys):
    """Two rows with right answers. A wrong one is named with its line; another shape is refused."""
    own = tmp_path / "own.csv"
    own.write_text("first,second,answer\nabca,abca,0\nabca,abcb,3\n")
    report = json.loads(answer(capsys, "eval", run, "--task.file", str(own), "--loops", "1", "3", "--json"))
    assert (report["size"], len(report["rows"])) == (2, 2)
    own.write_text("first,second,answer\nabca,abca,0\nabca,abcb,4\n")
    assert f"{own}, line 3: answer: expected 3" in complaint(capsys, "eval", run, "--task.file", str(own))
    assert "keeps the shape" in complaint(capsys, "eval", run, "--task.length", "5")
    assert "--task.nothing" in complaint(capsys, "eval", run, "--task.nothing", "5")


def test_train_on_a_file_needs_no_other_flag(tmp_path, capsys):
    letters = ["--task.alphabet", "3", "--task.max-letters", "3", "--size", "300", "--out", str(tmp_path / "set.jsonl")]
    answer(capsys, "data", "build", "edit-distance", "--task.length", "4", *letters)
    command = [*TRAIN, "--task.file", str(tmp_path / "set.jsonl"), "--out", str(tmp_path / "run")]
    assert json.loads(answer(capsys, *command, "--json"))["finished"]
    assert "task.file" in json.loads((tmp_path / "run" / "data.json").read_text())


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


@pytest.mark.parametrize("split", ["test", "train"])
def test_eval_shows_on_a_terminal_how_far_it_is(split, run, capsys, monkeypatch):
    monkeypatch.setattr("looped.training.evaluation.MAX_BATCH", 8)
    told = []
    show = Bar.__call__
    monkeypatch.setattr(Bar, "__call__", lambda bar, done, total: (told.append((done, total)), show(bar, done, total)))
    command = ["eval", run, "--split", split, "--size", "20", "--json"]
    quiet = answer(capsys, *command)
    assert told == [(8, 20), (16, 20), (20, 20)]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out == quiet
    assert "examples" in err


def test_eval_with_sets_evaluates_and_names_further_test_sets(tmp_path, capsys, monkeypatch):
    run = str(tmp_path / "run")
    small = ["--model.dim", "16", "--train.num-steps", "2", "--train.batch-size", "4", "--train.eval-size", "4"]
    answer(capsys, "train", "countdown", "--recipe", "laptop", *small, "--out", run)
    sets = json.loads(answer(capsys, "eval", run, "--sets", "--size", "5", "--json"))["sets"]
    assert list(sets) == ["held-out targets", "training targets"]
    assert all(report["size"] == 5 for report in sets.values())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["eval", run, "--sets", "--size", "5"]) == 0
    out, err = capsys.readouterr()
    assert [out.count(f"countdown, {name}: 5 test examples") for name in sets] == [1, 1]
    assert all(name in err for name in sets)


def test_eval_with_sets_shows_each_set_before_the_next_is_evaluated(capsys, monkeypatch):
    before, original = [], evaluation.evaluate

    def evaluate(*arguments, **options):
        before.append(capsys.readouterr().out)
        return original(*arguments, **options)

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    assert main(["eval", "countdown", "--sets", "--size", "2", "--loops", "1"]) == 0
    assert ["countdown, " in text for text in before] == [False, True]


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
def test_data_sample_printed_in_parts_equals_one_sample(size, capsys):
    examples = EditDistance(length=4).examples(0, "train", range(size))
    asked = ["data", "sample", "edit-distance", "--task.length", "4", "--size", str(size)]
    assert answer(capsys, *asked, "--json") == json.dumps({"examples": examples}) + "\n"
    texts = ["\n".join(f"{name}: {value}" for name, value in example.items()) for example in examples]
    assert answer(capsys, *asked) == "\n\n".join(texts) + "\n"


def test_data_sample_draws_in_parts(capsys, monkeypatch):
    drawn = []
    make = EditDistance.examples
    monkeypatch.setattr(EditDistance, "examples", lambda self, *keys: drawn.append(len(keys[-1])) or make(self, *keys))
    answer(capsys, "data", "sample", "edit-distance", "--task.length", "4", "--size", "1200")
    assert (sum(drawn), max(drawn)) == (1200, 500)


def test_peek_at_a_repeated_flag_returns_the_last_value():
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
    steep = ["theory", "approximate", "--function", "attn", "--cells", "2", "--lipschitz", "0.01"]
    assert main(steep) == 2
    shown = capsys.readouterr()
    assert "VIOLATED" in shown.out
    assert shown.err.splitlines()[-1] == "looped: --lipschitz: expected a Lipschitz constant of attn, got 0.01"
    picture = tmp_path / "new" / "stairs.png"
    assert answer(capsys, "theory", "plot", "staircase", "--out", str(picture)) == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    asked = ["theory", "plot", "staircase", "--out", str(picture), "--json"]
    assert json.loads(answer(capsys, *asked)) == {"path": str(picture)}


def test_theory_moduli_prints_bounds_and_witnesses(capsys):
    found = json.loads(answer(capsys, "theory", "moduli", "--function", "mean", "--delta", "0.5", "--json"))
    assert found["token"]["lower"] == pytest.approx(0.25, abs=1e-6)  # one of two tokens moves by 0.5
    assert found["token"]["upper"] == 0.25
    x, y = found["sequence"]["witness"]
    assert len(x[0]) == len(y[0]) == 2
    assert "context" in answer(capsys, "theory", "moduli", "--function", "mean")


def test_theory_memorize_returns_the_labels(capsys):
    asked = ["theory", "memorize", "0", "0.5", "0.25", "0.75", "--variant", "sqrt", "--bits", "2"]
    assert "exact" in answer(capsys, *asked)
    assert json.loads(answer(capsys, *asked, "--json"))["values"] == [0, 0.5, 0.25, 0.75]


def test_theory_bounds_lists_all_constructions_and_lower_bounds(capsys):
    asked = ["theory", "bounds", "--function", "mean", "--error", "0.2"]
    text = answer(capsys, *asked)
    assert "modulated-digits" in text
    found = json.loads(answer(capsys, *asked, "--json"))
    assert found["bits"] == 10_000 * 8
    for each in found["labels"].values():
        assert 0 < each["needed"] < each["loops"]


def test_theory_bounds_of_an_own_function_are_those_of_its_lipschitz_constant(tmp_path, capsys):
    """The range 0 to sqrt(2) of x * sqrt(2) is what its Lipschitz constant allows for one token."""
    (tmp_path / "own.py").write_text("def own(x):\n    return 2**0.5 * x\n")
    asked = ["theory", "bounds", "--function", f"{tmp_path}/own.py:own", "--tokens", "1", "--error", "0.2"]
    found = json.loads(answer(capsys, *asked, "--lipschitz", str(2**0.5), "--json"))["error"]

    def omega(which, delta):
        return 2**0.5 * delta

    for variant, each in found.items():
        assert each["loops"] == loops_for_error(0.2, variant, 1, 1, omega, 2, 2**0.5).loops


def test_theory_plot_passes_its_options_to_the_picture(tmp_path, capsys):
    picture = tmp_path / "picture.svg"
    asked = ["theory", "plot", "attention", "--variant", "lean", "--cells", "4", "--tokens", "2"]
    answer(capsys, *asked, "--input", "0.1", "0.8", "--out", str(picture))
    assert "lean: X = (0.1, 0.8)" in picture.read_text()


def test_theory_progress_reports_a_long_step_in_a_pipe_and_keeps_quiet_about_a_short_one(capsys):
    with _progress_line(every=1000) as show_step:
        show_step("building the network")
    assert capsys.readouterr().err == ""
    said = ""
    with _progress_line(every=0.001) as show_step:
        show_step("measuring its error, 432,062 loops")
        for _ in range(10_000):
            said += capsys.readouterr().err
            if said:
                break
            time.sleep(0.001)
    assert re.match(r"measuring its error, 432,062 loops: \d+ s so far\n", said)


def test_theory_verify_prints_every_row_as_json(capsys, monkeypatch):
    from looped.theory import verify

    monkeypatch.setattr(verify, "CHECKS", (verify._ids, verify._sharpness))  # the quick ones
    assert main(["theory", "verify", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is True
    assert len(said["rows"]) == 2 + len(VARIANTS)
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


def test_solve_of_a_tree_prints_a_short_question_and_whole_json(tmp_path, capsys):
    run = str(tmp_path / "tree")
    small = ["--task.points", "9", "--task.dims", "8", "--model.dim", "16", "--model.num-loops", "2",
             "--train.num-steps", "1", "--train.batch-size", "2", "--train.eval-size", "4",
             "--train.runtime.device", "cpu"]  # fmt: skip
    answer(capsys, "train", "decision-tree", "--recipe", "laptop", *small, "--out", run)
    whole = json.loads(answer(capsys, "solve", run, "--json"))["input"].splitlines()
    assert len(whole) == 9
    model, heading, first, second, query, *rest = answer(capsys, "solve", run).splitlines()
    assert model.endswith(run)
    assert heading == "8 points of 8 numbers and their values: the first 2, then the query"
    for line, full in ((first, whole[0]), (second, whole[1]), (query, whole[8])):
        numbers, value = full.split(" -> ")
        said, _, said_value = line.partition(" ... -> ")
        assert [float(each) for each in said.split()] == [round(float(each), 2) for each in numbers.split()[:6]]
        assert said_value == (value if value == "?" else f"{float(value):.2f}")
    assert [line.split()[0] for line in rest] == ["loop", "loop", "truth", "wrong:"]
    own = ";".join(["0 1 2 3 4 5 6 7 -> 1", "7 6 5 4 3 2 1 0 -> ?"])
    assert "\n1 point of 8 numbers and its value, then" in answer(capsys, "solve", run, "--input", own)


HELPS = [
    *(f"train {task}" for task in TASKS), *(f"paper {verb}" for verb in ("list", "run", "report")),
    "eval", "solve", "inspect", "compare", "plot", "sweep", "models list", "models check", "models pack", "data check",
    "theory verify", "theory approximate", "theory plot", "theory moduli", "theory memorize", "theory bounds",
    "bench train", "bench infer", "bench scaling",
]  # fmt: skip


@pytest.mark.parametrize("command", HELPS)
def test_help_names_one_default_of_a_flag(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # wider terminals get several columns
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert "-h, --help" in text
    assert [flag for flag in text.split(" --") if flag.count("(default") > 1] == []


@pytest.mark.parametrize("verb", ["eval", "solve", "inspect"])
def test_help_lists_what_a_run_may_be(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert "or a task, which stands for its best shipped model" in capsys.readouterr().out


def test_help_shows_every_setting_with_its_meaning(capsys):
    from dataclasses import fields

    from looped.config import GROUPS, ModelConfig, TrainConfig

    with pytest.raises(SystemExit) as stop:
        main(["train", "edit-distance", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    parts = {"model": ModelConfig, "train": TrainConfig, **{f"train.{name}": group for name, group in GROUPS.items()}}
    for part, config in parts.items():
        for each in (one for one in fields(config) if one.name not in GROUPS):
            assert re.search(rf"--{part}\.{each.name.replace('_', '-')}[ ,]", text)
    assert "number of times the stack is applied in training" in text


def test_help_without_a_task_names_no_default(capsys):
    """Each is up to the task and its recipe."""
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "default" not in text
    assert all(task in text for task in TASKS)
    assert "looped train TASK --help" in text


def test_help_as_a_verb_prints_help(capsys):
    assert answer(capsys, "help") == answer(capsys, "--help") == answer(capsys)


@pytest.mark.parametrize(
    "words", [["data"], ["theory"], ["paper"], ["bench"], ["models"], ["train"], ["data", "build"]]
)
def test_help_of_a_group_explains_each_word_as_its_own_help_does(words, capsys):
    def help_of(*words) -> str:
        with pytest.raises(SystemExit) as stop:
            main([*words, "--help"])
        assert stop.value.code == 0
        return capsys.readouterr().out

    usage, *rows = (line for line in help_of(*words).splitlines() if line)
    assert usage.startswith(f"usage: looped {' '.join(words)}")
    assert len(rows) >= 3
    for row in rows:
        word, sentence = row.split(maxsplit=1)
        assert len(sentence.split()) >= 4
        if words in (["theory"], ["paper"], ["models"]):
            assert sentence.lower() in " ".join(help_of(*words, word).lower().split())


@pytest.mark.parametrize(
    ("verb", "own"),
    [
        ("list", set()),
        ("run", {"root", "results", "seeds", "workers", "again", "minutes", "on", "gpus"}),
        ("status", {"root", "results", "seeds"}),
        ("collect", {"root", "results", "replace"}),
        ("report", {"root", "results", "out", "update"}),
    ],
)
def test_paper_verb_shows_and_takes_only_its_own_flags(verb, own, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["paper", verb, "--help"])
    assert stop.value.code == 0
    shown = set(re.findall(r"--(?!no-)(\w+)", capsys.readouterr().out))
    assert shown == {"help", "scale", "cells", "json"} | own
    foreign = "update" if "update" not in own else "minutes"
    assert f"Unrecognized options: --{foreign}" in complaint(capsys, "paper", verb, f"--{foreign}", "3")


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


def test_eval_of_a_model_that_overflows_reports_it_without_a_score(overflowing, capsys):
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
        assert re.fullmatch(r"looped: .* overflow in loop \d+", line)
    assert answer(capsys, "solve", overflowing, "--loops", "1", "--json")


@pytest.mark.parametrize(
    ("curriculum_steps", "said"), [("30", ["size 2 of 4", "--train.curriculum-steps (now 30)"]), ("6", [])]
)
def test_train_too_short_for_its_curriculum_warns_first(curriculum_steps, said, tmp_path, capsys):
    assert main([*TRAIN, "--train.curriculum-steps", curriculum_steps, "--out", str(tmp_path / "run")]) == 0
    announced, warned = capsys.readouterr().err.splitlines()[:2]
    assert "recipe laptop" in announced
    assert warned.startswith("looped: ") == bool(said)
    assert all(part in warned for part in said)


def test_train_stopped_by_a_signal_exits_with_an_error(tmp_path):
    arguments = [*TRAIN, "--train.num-steps", "1000000", "--out", str(tmp_path / "run")]
    process = subprocess.Popen([sys.executable, "-m", "looped", *arguments], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "log.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command resumes it" in out


def test_installed_command_prints_its_version():
    done = subprocess.run([sys.executable, "-m", "looped", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("looped 0.")


def test_paper_run_again_trains_collected_runs(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("looped.experiments.runner.run_experiment", lambda *_, **given: seen.append(given["results"]))
    for flags in ([], ["--again"]):
        main(
            ["paper", "run", "table2", "--scale", "smoke", "--root", str(tmp_path), "--results", str(tmp_path), *flags]
        )
    assert seen == [tmp_path, None]
