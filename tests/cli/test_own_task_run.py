"""A task outside the package, from training to a report, with a kill in between: all on the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.paths import ROOT

TASK = ROOT / "examples" / "own_task.py"
TRAIN = [
    "train", f"{TASK}:Majority", "--recipe", "laptop", "--model.dim", "32", "--model.num-loops", "3",
    "--train.num-steps", "120", "--train.checkpoint-every", "30", "--train.eval-every", "30", "--train.eval-size", "50",
    "--train.runtime.device", "cpu",
]  # fmt: skip
PATIENCE = 120  # seconds


def start(*arguments: str) -> subprocess.Popen[str]:
    command, environment = [sys.executable, "-m", "looped", *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(*arguments: str) -> str:
    process = start(*arguments)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out


def kill_after_first_checkpoint(folder: Path) -> None:
    """Start training and send SIGKILL once a checkpoint exists."""
    process = start(*TRAIN, "--out", str(folder))
    end = time.monotonic() + PATIENCE
    while not any(folder.glob("checkpoints/step-*/state.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "result.json").exists()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """A run that was killed and resumed, and one that was left alone."""
    folder = tmp_path_factory.mktemp("runs")
    killed, whole = folder / "killed", folder / "whole"
    kill_after_first_checkpoint(killed)
    for run in (killed, whole):
        assert json.loads(said(*TRAIN, "--out", str(run), "--json"))["finished"]
    return killed, whole


def test_killed_and_resumed_run_of_an_own_task_has_the_weights_of_an_undisturbed_one(runs):
    weights = [sorted(run.glob("checkpoints/step-*120/*.safetensors")) for run in runs]
    assert [path.name for path in weights[0]] == ["ema.safetensors", "model.safetensors", "optimizer.safetensors"]
    for one, other in zip(*weights, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_own_task_is_asked_and_compared_after_training(runs):
    killed, whole = map(str, runs)
    plugin = ["--plugin", str(TASK)]
    bits = "1 0 1 1 0 0 1 0 1 1 0 1 0 0 1"  # eight ones among fifteen
    assert json.loads(said("solve", killed, *plugin, "--input", bits, "--json"))["truth"] == "1"
    scores = [json.loads(said("eval", run, *plugin, "--size", "50", "--json")) for run in (killed, whole)]
    assert scores[0] == scores[1]
    found = json.loads(said("compare", killed, whole, *plugin, "--size", "50", "--loops", "3", "--json"))
    assert found["differences"] == {}
    assert [run["test"]["rows"] for run in found["runs"]] == [scores[0]["rows"]] * 2


def test_own_task_is_reported_with_the_score_of_eval(runs, tmp_path):
    killed, whole = map(str, runs)
    flags = ["--plugin", str(TASK), "--out", str(tmp_path / "page"), "--size", "400", "--json"]
    told = json.loads(said("report", killed, whole, *flags))
    assert told["runs"] == [killed]  # the other one has the same settings
    (row,) = json.loads(said("eval", killed, "--plugin", str(TASK), "--size", "400", "--json"))["rows"]
    page = Path(told["page"]).read_text()
    assert "majority, n = 15" in page
    assert f"{100 * row['accuracy']:.1f}" in page
