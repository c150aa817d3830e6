"""`looped inspect`: a run from inside, as a table, as JSON and as a picture."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from looped.cli.inspect import picture
from looped.cli.main import main
from looped.inference.run import load_run
from looped.training import evaluate
from looped.viz import plots
from tests.cli.command import answer, complaint
from tests.paths import ROOT

KNOBS = [
    "--recipe", "laptop", "--task.length", "4", "--model.dim", "16", "--model.num-loops", "20",
    "--train.num-steps", "3", "--train.batch-size", "4", "--train.eval-size", "10", "--train.runtime.device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("inside") / "ed4")
    assert main(["train", "edit-distance", "--model.block", "modulated", *KNOBS, "--out", folder]) == 0
    return folder


def test_inspect_as_json_has_a_row_and_a_score_per_loop(run, capsys):
    found = json.loads(answer(capsys, "inspect", run, "--size", "30", "--loops", "22", "--json"))
    assert (found["task"], found["num_examples"], found["trained_loops"]) == ("edit-distance", 30, 20)
    assert [row["loop"] for row in found["rows"]] == list(range(1, 23))
    loaded = load_run(run)
    wanted = evaluate(loaded.model, loaded.task, "test", 30, range(1, 23)).rows
    assert [row["accuracy"] for row in found["rows"]] == [row.metrics["accuracy"] for row in wanted]


def test_inspect_table_shows_the_first_and_the_last_loop(run, capsys):
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
def test_inspect_with_svg_writes_one_picture(block, run, capsys, tmp_path):
    path = tmp_path / "new" / "inside.svg"
    if block == "looped":
        run = str(tmp_path / "looped")
        answer(capsys, "train", "edit-distance", "--model.block", block, *KNOBS, "--out", run)
    answer(capsys, "inspect", run, "--size", "2", "--svg", str(path))
    drawn = " ".join(ElementTree.fromstring(path.read_text()).itertext())
    for word in ("Answers", "Size of the state", "continuity coefficient"):
        assert word in drawn
    for word in ("Modulation", "modulation", "alpha2", "gamma1"):
        assert (word in drawn + path.read_text()) == (block == "modulated")


@pytest.mark.parametrize("names", [(), ("alpha1", "alpha2", "gamma1", "gamma2", "shift1", "shift2")])
def test_picture_gives_each_legend_entry_its_own_colour(names, monkeypatch):
    drawn: list[plots.Lines] = []
    monkeypatch.setattr(plots, "draw", lambda charts, *_, **__: drawn.extend(charts) or "")
    row = {"loop": 1, "state": 1.0, "change": 1.0, "continuity": 1.0, "accuracy": 1.0}
    rows = [{**row, "modulation": {name: {"rms": 1.0} for name in names}}]
    picture({"run": "mine", "metric": "accuracy", "trained_loops": 1, "modulated": list(names), "rows": rows})
    legend = {(one.label, one.colour) for chart in drawn for one in chart.series if one.label}
    assert {label for label, _ in legend} == {"state", "change", *names}
    assert len({colour for _, colour in legend}) == len(legend)
    assert all(len(chart.series) == 1 or all(one.label for one in chart.series) for chart in drawn)


def test_inspect_of_a_model_without_conditioning_has_no_modulation_columns(capsys, tmp_path):
    run = str(tmp_path / "looped")
    answer(capsys, "train", "edit-distance", "--model.block", "looped", *KNOBS, "--out", run)
    text = answer(capsys, "inspect", run, "--size", "2")
    assert text.splitlines()[1].split() == ["loop", "state", "change", "continuity", "accuracy"]
    assert "modulation" not in text
    found = json.loads(answer(capsys, "inspect", run, "--size", "2", "--json"))
    assert found["modulated"] == []
    assert list(found["rows"][0]["modulation"]) == ["alpha1", "alpha2"]  # the gains are there for who looks for them


def test_inspect_with_a_png_name_is_refused_before_the_work(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("looped.inference.shipping.load", lambda *_: pytest.fail("the run was loaded"))
    assert "ends in .svg, got" in complaint(capsys, "inspect", run, "--svg", str(tmp_path / "inside.png"))
    assert list(tmp_path.iterdir()) == []


def test_inspect_writes_attention_maps_as_numbers_and_as_pictures(run, capsys, tmp_path):
    numbers, pictures = tmp_path / "maps.json", tmp_path / "maps.svg"
    for path in (numbers, pictures):
        answer(capsys, "inspect", run, "--size", "2", "--loops", "9", "--attention", str(path))
    found = json.loads(numbers.read_text())
    loaded = load_run(run)
    maps = torch.tensor(found["maps"])
    assert maps.shape == (9, 1, 4, loaded.task.spec.seq_len, loaded.task.spec.seq_len)
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones(maps.shape[:-1]), atol=1e-3, rtol=0)
    assert found["input"] == loaded.task.render(loaded.test_example(0)[0])
    drawn = " ".join(ElementTree.fromstring(pictures.read_text()).itertext())
    assert [f"loop {loop}, layer 1, head 4" in " ".join(drawn.split()) for loop in (1, 2, 9)] == [True, False, True]
    assert "--attention" in complaint(capsys, "inspect", run, "--attention", str(tmp_path / "maps.png"))


def test_inspect_with_wrong_input_prints_one_line(run, capsys, tmp_path):
    assert "size: expected" in complaint(capsys, "inspect", run, "--size", "0")
    assert "--loops: expected" in complaint(capsys, "inspect", run, "--loops", "0")
    assert "no run at" in complaint(capsys, "inspect", "edit-distanse")
    (tmp_path / "file").write_text("mine")
    assert "cannot write" in complaint(capsys, "inspect", run, "--size", "2", "--svg", str(tmp_path / "file" / "a.svg"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model", "digits"), [("looped", "looped", 2), ("modulated", "modulated", 0)])
def test_inspect_of_sixty_loops_gives_the_documented_numbers(name, model, digits, capsys):
    text = (ROOT / "docs" / "continuity.md").read_text()
    (options,) = re.findall(r"`looped inspect sudoku/looped-r32 ([^`]*)`", text)
    found = json.loads(answer(capsys, "inspect", f"sudoku/{model}-r32", *options.split(), "--json"))
    row, size = found["rows"][59], found["num_examples"]
    assert row["loop"] == 60
    assert (
        f"| {name} | {row['state']:.{digits}f} | {row['continuity']:.0f} times | {100 * row['change']:.1f} % | "
        f"{row['accuracy'] * size:.0f} of {size} |"
    ) in text
