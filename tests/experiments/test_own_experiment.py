"""A user's experiment file runs like one of the package: run, stop, resume, status, collect and report."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import answer, complaint
from tests.docs.pages import blocks
from tests.paths import ROOT

PAGE = ROOT / "docs" / "own-runs.md"
NAME = "widths.py:widths"
PATIENCE = 120  # seconds


@pytest.fixture
def folder(tmp_path, monkeypatch, plugins) -> Path:
    """An empty folder with the file of the docs, with runs small enough for a test."""
    (text,) = [block for block in blocks(PAGE, "python") if block.startswith("# widths.py")]
    small = 'num_steps=steps, batch_size=4, eval_size=20, checkpoint_every=5, device="cpu"'
    (tmp_path / "widths.py").write_text(text.replace("num_steps=steps", small).replace("else 400", "else 60"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cells(capsys, *arguments: str) -> list[dict]:
    (found,) = json.loads(answer(capsys, "paper", *arguments, "--json"))["experiments"]
    return found["cells"]


def test_own_experiment_is_killed_resumed_collected_and_reported(folder, capsys):
    command = [sys.executable, "-m", "looped", "paper", "run", NAME, "--workers", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    runner = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + PATIENCE
    while not any(folder.glob("runs/*/checkpoints/step-*/state.json")):
        assert runner.poll() is None, runner.communicate()
        assert time.monotonic() < end, "no checkpoint"
        time.sleep(0.01)
    runner.send_signal(signal.SIGKILL)
    runner.communicate()
    states = cells(capsys, "status", NAME)
    assert [(cell["row"], cell["column"]) for cell in states] == [
        (f"width {dim}", f"looped r={loops}") for dim in (16, 32) for loops in (2, 4)
    ]
    assert not all(cell["finished"] for cell in states)
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=PATIENCE)
    done = cells(capsys, "status", NAME)
    assert all(cell["finished"] for cell in done)
    for cell in done:
        (row,) = json.loads(answer(capsys, "eval", f"runs/{cell['run']}", "--size", "2000", "--json"))["rows"]
        assert cell["value"] == pytest.approx(row["accuracy"], abs=1e-5)
    assert len(json.loads(answer(capsys, "paper", "collect", NAME, "--results", "kept", "--json"))["written"]) == 4
    assert len(list((folder / "kept").glob("cpu/lcs-4/*.json"))) == 4
    answer(capsys, "paper", "report", NAME, "--root", "none", "--results", "kept", "--out", "page")
    page = (folder / "page" / "index.html").read_text()
    assert "Width or loops?" in page
    assert "small problems" not in page
    for cell in done:
        assert f"{100 * cell['value']:.1f}" in page


def test_own_experiment_is_found_by_name_in_a_plugin(folder, capsys):
    found = cells(capsys, "status", "widths", "--scale", "smoke", "--plugin", "widths.py")
    assert [cell["state"] for cell in found] == ["not begun"] * 4


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 3", "expected a function from a scale to an Experiment"),
        ("return 1 / 0", "ZeroDivisionError: division by zero (line 5 of mine.py)"),
        ("return Experiment('mine', '', '', None, ())", "cells: expected a tuple of cells"),
        ("return Experiment('table1', '', '', None, CELLS)", "an id of its own, got 'table1'"),
        ("return Experiment('mine', '', '', None, 2 * CELLS)", "one cell per row, column and recipe"),
        ("return looped.configure('laptop', 'lcs', dimm=3)", "dimm"),
    ],
)
def test_own_experiment_with_a_mistake_is_one_line(body, expected, folder, capsys):
    cells = "CELLS = (Cell('a', 'b', looped.configure('laptop', 'lcs')),)"
    lines = ["import looped", "from looped.experiments import *", cells, "def mine(scale):", f"    {body}"]
    (folder / "mine.py").write_text("\n".join(lines))
    assert expected in complaint(capsys, "paper", "status", "mine.py:mine")


def test_own_experiment_that_does_not_exist_is_one_line(folder, capsys):
    assert "expected a class or a function 'width'" in complaint(capsys, "paper", "run", "widths.py:width")
    assert "did you mean 'table1'" in complaint(capsys, "paper", "run", "tabel1")
    assert "expected a Python file" in complaint(capsys, "paper", "run", "none.py:widths")
