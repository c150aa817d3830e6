"""Mistakes, and what the system refuses: one line each, exit code 2, and nothing half written."""

import os
import subprocess
import sys

import pytest
import torch

from looped.cli.main import main
from looped.tasks import EditDistance
from looped.utils.files import save_sealed
from tests.cli.command import TRAIN, answer, complaint


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("cli") / "run")
    assert main([*TRAIN, "--out", folder]) == 0
    return folder


def test_wrong_input_on_a_terminal_prints_one_line():
    """tyro colours its complaints where it sees a terminal."""
    command = f"{sys.executable} -m looped train edit-distance --model.blok looped"
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True)
    assert done.stdout.strip() == "looped: Unrecognized options: --model.blok, looped; did you mean --model.block?"


@pytest.mark.parametrize("arguments", [["--version"], ["data", "--help"]])
@pytest.mark.parametrize("buffered", [True, False])
def test_output_to_a_full_disk_prints_one_line_and_to_a_broken_pipe_none(arguments, buffered):
    """On a full disk one line and exit code 2; where nobody reads on, not a word."""
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "looped", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert (done.returncode, done.stderr) == (2, "looped: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken:
        done = subprocess.run(command, stdout=broken, stderr=subprocess.PIPE, text=True, env=environment)
    assert (done.returncode, done.stderr) == (1, "")


def test_operating_system_error_prints_one_line(monkeypatch, capsys):
    def refused(_):
        raise PermissionError(13, "Permission denied", "/some/where")

    monkeypatch.setattr("looped.cli.data.data", refused)
    assert complaint(capsys, "data") == "looped: /some/where: Permission denied"


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "GPU memory"),
    ],
)
def test_out_of_memory_prints_one_line(error, whose, run, monkeypatch, capsys):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr("looped.models.LoopModel.iterate", refused)
    monkeypatch.setattr("looped.models.LoopModel.states_at", refused)
    for verb in ("eval", "solve", "inspect"):
        assert complaint(capsys, verb, run).startswith(f"looped: out of {whose}")


def test_bug_with_memory_in_its_message_is_not_reported_as_out_of_memory(run, monkeypatch):
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
        (["train", "{mine}.py"], "task: expected FILE.py:CLASS, got"),
        (["report", "sudoku/looped-r32", "--out", "{new}"], "got the model sudoku/looped-r32. A model has no log"),
        (["plot", "{run}", "--out", "{new}.png"], "--out: expected a picture's file that ends in .svg"),
        (["train", "edit-distance", "--model.blok", "looped"], "did you mean --model.block?"),
        (["train", "edit-distance", "--model.block", "modular"], "'modular'; did you mean 'modulated'?"),
        (["train", "edit-distance", "--model.dim", "wide"], "--model.dim: expected a whole number, got 'wide'"),
        (
            ["train", "edit-distance", "--train.learning-rate", "low"],
            "learning-rate: expected a number, got",
        ),
        (["train", "edit-distance", "--model.dim", "10", "--model.num-heads", "4"], "--model.num-heads: expected"),
        (
            ["train", "lcs", "--model.dim", "1" + 13 * "0", "--model.num-heads", "1", "--out", "{new}"],
            "out of memory for a model of dim 10000000000000, ",
        ),
        (["train", "edit-distance", "--recipe", "quick"], "unknown recipe 'quick'"),
        (["train", "edit-distance", "--train.init-from", "/nowhere", "--out", "{new}"], "no run at /nowhere"),
        (["train", "lcs", "--train.init-from", "lsc", "--out", "{new}"], "did you mean 'lcs'?"),
        (
            [*TRAIN, "--model.block", "looped", "--train.init-from", "{run}", "--out", "{new}"],
            "its model.block is 'modulated', this one's is 'looped'",
        ),
        ([*TRAIN, "--seed", "5", "--out", "{run}"], "holds another run: its seed is 0, this one's is 5"),
        ([*TRAIN, "--out", "{folder}/notes.txt/run"], "notes.txt is a file, expected a folder"),
        ([*TRAIN, "--out", "{broken}"], "broken is a broken link, expected a folder"),
        ([*TRAIN, "--out", "{broken}/run"], "broken is a broken link, expected a folder"),
        ([*TRAIN, "--out", "{folder}/a\0b"], "expected arguments without a NUL character, got "),
        (["eval", "a\0b"], "expected arguments without a NUL character, got 'a\\x00b'"),
        (["eval"], "looped eval"),
        (["eval", "/nowhere"], "no run at /nowhere"),
        (["eval", "{folder}"], "is not a run"),
        (["eval", "{run}", "--loops", "0"], "looped: --loops: expected"),
        (["eval", "{run}", "--loops", "8", "999999"], "--loops: expected at most 100000"),
        (["eval", "{run}", "--size", "0"], "looped: --size: expected"),
        (["eval", "{run}", "--size", "1" + 15 * "0"], "size: expected"),
        (["inspect", "{run}", "--size", "1" + 15 * "0"], "size: expected"),
        (["eval", "{run}", "--split", "exam"], "exam"),
        (["solve", "{run}", "--input", "abca"], "expected two strings"),
        (["solve", "{run}", "--input", "abca|bcca", "--index", "3"], "expected --input or --index, got both"),
        (["solve", "{run}", "--index", "-1"], "--index: expected"),
        (["eval", "{run}", "--loops", "few"], "--loops: expected whole numbers, got 'few'"),
        (["eval", "{run}", "--loops", "8", "1.5"], "--loops: expected whole numbers, got '8', '1.5'"),
        (
            ["train", "lcs", "--train.size-choices", "all"],
            "size-choices: expected numbers, got 'all'",
        ),
        (["train", "lcs", "--train.num-steps", "0"], "looped: --train.num-steps: expected"),
        (["solve", "{run}", "--input", "abzz|abca"], "'z'"),
        (["solve", "{run}", "--input", "abcabc|abca"], "letters, got 6"),
        (["solve", "{run}", "--input", "abca|abca", "--loops", "0"], "looped: --loops: expected"),
        (["solve", "{run}", "--loops", "all"], "--loops: expected a whole number, got 'all'"),
        (["eval", "{run}", "--sets"], "edit-distance has no further test sets"),
        (["models", "--json", "list"], "expected a verb first"),
        (["data"], "expected a verb first"),
        (["data", "--json", "sample", "lcs"], "expected a verb first"),
        (["data", "sample"], "expected a task first"),
        (["data", "sample", "sudokus"], "did you mean 'sudoku'"),
        (["data", "sample", "lcs", "--size", "0"], "size: expected an integer in 1..1000000,"),
        (["data", "sample", "lcs", "--size", "1000000000"], "size: expected an integer in 1..1000000,"),
        (
            ["data", "stats", "sudoku", "--task.side", "4", "--size", "1000001"],
            "size: expected an integer in 1..1000000,",
        ),
        (["data", "stats", "decision-tree", "--size", "100000"], "size: expected an integer in 1..16693,"),
        (["data", "check", "{folder}/notes.txt"], "line 1: expected a JSON object"),
        (["data", "build", "lcs", "--out", "{new}.npz"], "--out: expected a file of JSON lines"),
        (["data", "build", "lcs", "--size", "0", "--out", "{new}"], "size: expected an integer in 1.."),
        (["data", "build", "lcs", "--out", "{folder}/notes.txt/x"], "notes.txt is a file, expected a folder"),
        (["completion", "bash", "zsh"], "Unrecognized options: zsh"),
        (["train", "lcs", "--recipe", "warm", "--model.block", "standard"], "--model.block: expected"),
        (["theory", "prove"], "unknown verb 'prove'"),
        (["theory", "approximate", "--cells", "1"], "cells: expected at least 2, got 1"),
        (["theory", "approximate", "--cells", "400"], "Take fewer cells"),
        (["theory", "approximate", "--function", "atn"], "did you mean 'attn'"),
        (["theory", "approximate", "--function", "{mine}.py:bad"], "function: bad raised ZeroDivisionError: "),
        (["theory", "approximate", "--p", "nan"], "p: expected a number >= 1 (inf allowed), got nan"),
        (["theory", "approximate", "--lipschitz", "nan"], "lipschitz: expected a finite constant >= 0, got nan"),
        (["theory", "approximate", "--lipschitz", "-1"], "lipschitz: expected a finite constant >= 0, got -1"),
        (["theory", "plot", "stairs"], "stairs"),
        (["theory", "plot", "ids", "--tokens", "3"], "tokens: expected an option of ids (cells), got tokens=3"),
        (["theory", "plot", "trace", "--input", "0.1", "2"], "input: expected numbers in [0, 1), got [0.1, 2.0]"),
        (["theory", "memorize", "0.1"], "labels: expected at least two"),
        (["theory", "memorize", "1/3", "1"], "looped: expected numbers, got '1/3', '1'"),
        (["theory", "bounds", "--function", "{mine}.py:bad"], "lipschitz: expected a constant of"),
        (["theory", "moduli", "--function", "{mine}.py:first"], "function: expected a permutation equivariant one"),
        (["theory", "bounds", "--error", "0"], "error: expected a number > 0, got 0"),
        (["theory", "moduli", "--delta", "0"], "delta: expected a finite number > 0, got 0"),
        (["theory", "plot", "ids", "--out", "{new}/x.txt"], "ends in .png, .svg, .pdf, got"),
        (["theory", "plot", "staircase", "--out", "{folder}/notes.txt/x.png"], "notes.txt is a file, expected"),
        (["paper"], "expected a verb first"),
        (["paper", "run", "table9"], "unknown experiment 'table9'"),
        (["paper", "report", "--root", "{folder}", "--results", "{new}", "--out", "{new}"], "nothing to report"),
    ],
)
def test_wrong_input_prints_one_line_and_exits_with_2(arguments, message, run, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "mine.py").write_text(
        "def bad(x):\n    return x / (0 // 0)\n\ndef first(x):\n    return x[:, :1] + 0 * x\n"
    )
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    places = {"run": run} | {name: str(tmp_path / name) for name in ("folder", "new", "mine", "broken")}
    line = complaint(capsys, *(argument.format(**places) for argument in arguments))
    assert message in line
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.npz").exists()
    assert not (tmp_path / "nothing").exists()
    assert (tmp_path / "folder" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["language", "--task.text", "{folder}/nothing.txt"], "no text "),
        (["language", "--task.text", "{folder}/empty.txt"], "is empty: expected text"),
        (["sudoku", "--task.file", "{folder}/nothing.csv"], "no puzzles "),
        (["edit-distance", "--train.runtime.track", "wandb"], "needs an extra"),
        (["edit-distance", "--model.num-loops", "1000000000"], "--model.num-loops: expected at most 100000"),
        (["edit-distance", "--train.batch-size", "1" + 15 * "0"], "a smaller --train.batch-size"),
        (["edit-distance", "--train.eval-size", "1" + 15 * "0"], "size: expected"),
        (["edit-distance", "--train.batch-size", "1" + 18 * "0"], "num_steps x batch_size: expected"),
        (["edit-distance", "--train.num-examples", "1" + 21 * "0"], "--train.num-examples: expected"),
        (["edit-distance", "--train.num-examples", "1" + 15 * "0"], "a smaller --train.num-examples"),
        (["edit-distance", "--train.num-examples", "4" + 18 * "0"], "a smaller --train.num-examples"),
        (
            ["edit-distance", "--train.batch-size", "4" + 18 * "0", "--train.num-steps", "1"],
            "a smaller --train.batch-size",
        ),
        (["edit-distance", "--train.num-threads", "1" + 15 * "0"], "looped: --train.num-threads: expected"),
        (["edit-distance", "--train.num-threads", "100000"], "looped: --train.num-threads: expected"),
        (["edit-distance", "--train.num-workers", "100000"], "looped: --train.num-workers: expected"),
    ],
)
@pytest.mark.parametrize("out", ["new/run", "made"])
def test_train_with_refused_settings_leaves_no_folder(arguments, message, out, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    (tmp_path / "made").mkdir()
    (tmp_path / "empty.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    given = [argument.format(folder=tmp_path) for argument in arguments]
    line = complaint(capsys, "train", *given, "--recipe", "laptop", "--out", str(tmp_path / out))
    assert message in line
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_gpu_is_reported_with_the_typed_flag(run, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    expected = "looped: device 'cuda' needs a GPU that PyTorch can see, found none"
    assert complaint(capsys, "eval", run, "--device", "cuda") == expected
    assert complaint(capsys, "bench", "train", "--device", "cuda") == expected


def test_damaged_config_names_the_file(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{")
    for flags in ([], ["--json"]):
        assert complaint(capsys, "eval", str(tmp_path), *flags).startswith(f"looped: {tmp_path / 'config.json'}: ")
    save_sealed(tmp_path / "config.json", {"task": {"name": "edit-distance", "lenght": 3}})
    assert "did you mean 'task.length'" in complaint(capsys, "eval", str(tmp_path))


def test_damaged_newest_checkpoint_is_reported_by_every_verb_that_reads_the_run(tmp_path, capsys):
    folder = tmp_path / "run"
    answer(capsys, *TRAIN, "--train.checkpoint-every", "4", "--out", str(folder))
    (folder / "checkpoints" / "step-000000006" / "state.json").write_text("{")
    for verb in (["eval", "--size", "5"], ["solve"], ["inspect", "--size", "5"]):
        assert main([verb[0], str(folder), *verb[1:]]) == 0
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert "step-000000006/state.json" in line
        assert line.endswith("; using step 4 instead")
        assert "not finished" not in out
        assert ("measured at step 4 of 6" in out) == (verb[0] == "eval")


def test_run_without_checkpoint_is_reported(tmp_path, capsys):
    from looped.config import RunConfig

    save_sealed(tmp_path / "config.json", RunConfig(EditDistance(length=4)).to_json())
    assert "has no checkpoint yet" in complaint(capsys, "eval", str(tmp_path))


def test_name_that_no_file_system_accepts_prints_one_short_line(capsys):
    assert len(complaint(capsys, "inspect", "x" * 3000)) < 1000
