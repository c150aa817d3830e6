"""`looped report`: a page about any finished runs."""

import json
from pathlib import Path

import pytest

from looped.cli.main import main
from tests.cli.command import TRAIN, answer, complaint


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[str]:
    """Three runs of one task, two of which have the same model."""
    folder = tmp_path_factory.mktemp("runs")
    for name, flags in {
        "one": [],
        "two": ["--train.learning-rate", "0.5"],
        "three": ["--model.num-loops", "2"],
    }.items():
        assert main([*TRAIN, *flags, "--out", str(folder / name)]) == 0
    return [str(folder / name) for name in ("one", "two", "three")]


def test_report_names_runs_and_stores_the_score_of_eval(runs, capsys, tmp_path):
    told = json.loads(answer(capsys, "report", *runs, "--out", str(tmp_path), "--size", "60", "--json"))
    page = Path(told["page"]).read_text()
    assert "learning_rate 0.5" in page
    for run in runs:
        assert run in page
        (row,) = json.loads(answer(capsys, "eval", run, "--size", "60", "--json"))["rows"]
        record = json.loads((Path(run) / "record.json").read_text())
        at_trained = [each for each in record["test"]["rows"] if each["loops"] == row["loops"]]
        assert [each["accuracy"] for each in at_trained] == [pytest.approx(row["accuracy"], abs=1e-5)]


def test_report_measures_a_run_once(runs, capsys, tmp_path):
    answer(capsys, "report", runs[0], "--out", str(tmp_path), "--size", "60")
    path = Path(runs[0]) / "record.json"
    before = path.stat().st_mtime_ns
    answer(capsys, "report", runs[0], "--out", str(tmp_path), "--size", "60")
    assert path.stat().st_mtime_ns == before


def test_report_with_wrong_input_prints_one_line_and_writes_nothing(runs, capsys, tmp_path):
    page = ["--out", str(tmp_path / "page")]
    assert "runs: expected one folder" in complaint(capsys, "report", *page)
    assert "no run at" in complaint(capsys, "report", str(tmp_path / "none"), *page)
    unfinished = str(tmp_path / "unfinished")
    answer(capsys, *TRAIN, "--train.max-minutes", "0.00001", "--out", unfinished)
    assert "expected a finished run" in complaint(capsys, "report", unfinished, *page)
    (tmp_path / "file").write_text("mine")
    assert "--out must be a folder" in complaint(capsys, "report", runs[0], "--out", str(tmp_path / "file"))
    assert not (tmp_path / "page").exists()
