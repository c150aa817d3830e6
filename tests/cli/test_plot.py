"""`looped plot`: trained runs as one picture."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from looped.cli.main import main
from looped.viz import plots
from tests.cli.command import TRAIN, answer, complaint


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    for block in ("looped", "modulated"):
        flags = ["--train.eval-every", "2", "--model.block", block, "--out", str(folder / block)]
        assert main([*TRAIN, *flags]) == 0
    return str(folder / "looped"), str(folder / "modulated")


@pytest.fixture
def drawn(monkeypatch) -> list[plots.Lines]:
    """The charts that a command draws."""
    charts: list[plots.Lines] = []

    def record(given, *_, **__):
        charts.extend(given)
        return "<svg/>"

    monkeypatch.setattr(plots, "draw", record)
    return charts


def test_plot_writes_one_picture_that_names_every_run(runs, capsys, tmp_path):
    path = tmp_path / "runs.svg"
    assert answer(capsys, "plot", *runs, "--size", "10", "--out", str(path)) == f"wrote {path}\n"
    texts = [each.text for each in ElementTree.parse(path).iter() if each.tag.endswith("}text")]
    assert {*runs, "Validation", "Modulation: gamma1"} <= set(texts)


def test_plot_draws_the_scores_of_eval_up_to_twice_the_loops(runs, drawn, capsys, tmp_path):
    answer(capsys, "plot", *runs, "--size", "40", "--out", str(tmp_path / "a.svg"))
    scores = drawn[0]
    assert scores.marks == (3.0,)
    for run, series in zip(runs, scores.series, strict=True):
        loops = ["1", "2", "3", "4", "5", "6"]
        wanted = json.loads(answer(capsys, "eval", run, "--size", "40", "--loops", *loops, "--json"))["rows"]
        assert list(series.x) == list(map(int, loops))
        assert [series.label, *series.y] == [run, *(row["accuracy"] for row in wanted)]
        assert (series.low, series.high) == (
            tuple(row["low"] for row in wanted),
            tuple(row["high"] for row in wanted),
        )


def test_plot_draws_the_validations_of_the_log_and_keeps_each_runs_colour(runs, drawn, capsys, tmp_path):
    answer(capsys, "plot", *runs, "--size", "5", "--out", str(tmp_path / "a.svg"))
    (validation,) = [chart for chart in drawn if chart.title == "Validation"]
    for run, series in zip(runs, validation.series, strict=True):
        with open(f"{run}/log.jsonl") as log:
            logged = [record["validation"] for record in map(json.loads, log) if "validation" in record]
        assert (list(series.x), list(series.y)) == ([16, 32, 48], logged)
    colours = {(series.label, series.colour) for chart in drawn for series in chart.series}
    assert len(colours) == len({colour for _, colour in colours}) == 2


def test_plot_draws_modulation_of_the_run_that_has_it(runs, drawn, capsys, tmp_path):
    from looped.inference import load

    answer(capsys, "plot", *runs, "--size", "5", "--out", str(tmp_path / "a.svg"))
    (gates,) = [chart for chart in drawn if chart.title == "Modulation: gamma2"]
    (series,) = gates.series
    assert series.label == runs[1]
    feed_forward = load(runs[1]).model.stack.modulation(3, torch.device("cpu"))[1]
    assert feed_forward.gate is not None
    wanted = [float(gate.detach().square().mean().sqrt()) for gate in feed_forward.gate]
    assert list(series.y) == pytest.approx(wanted, rel=1e-5)


def test_plot_of_a_shipped_model_has_no_learning_curve(drawn, capsys, tmp_path):
    answer(capsys, "plot", "decision-tree", "--size", "2", "--loops", "1", "--out", str(tmp_path / "a.svg"))
    assert not [chart for chart in drawn if chart.x_label == "training samples"]


def test_plot_with_wrong_input_prints_one_line_and_writes_nothing(runs, capsys, tmp_path):
    path = str(tmp_path / "a.svg")
    assert "ends in .svg" in complaint(capsys, "plot", runs[0], "--out", str(tmp_path / "a.png"))
    assert "runs: expected 1 to 9, one colour each, got 0" in complaint(capsys, "plot", "--out", path)
    assert "got 10" in complaint(capsys, "plot", *[runs[0]] * 10, "--out", path)
    assert "no run at" in complaint(capsys, "plot", "missing", "--out", path)
    assert "size: expected" in complaint(capsys, "plot", runs[0], "--size", "0", "--out", path)
    assert list(tmp_path.iterdir()) == []
