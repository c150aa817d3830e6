"""`looped sweep`: a run for every combination of some settings."""

import json
from pathlib import Path

import pytest

from looped.cli.main import main
from tests.cli.command import answer, complaint

TASK = ["sweep", "edit-distance"]
KNOBS = [
    "--recipe", "laptop", "--task.length", "4", "--model.dim", "16", "--train.num-steps", "4",
    "--train.batch-size", "8", "--train.eval-size", "20", "--train.runtime.device", "cpu", "--workers", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A finished sweep over two numbers of loops."""
    folder = tmp_path_factory.mktemp("sweep")
    assert main([*TASK, "--grid", "model.num-loops=2,3", "--root", str(folder), *KNOBS]) == 0
    return folder


def logs(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in root.glob("*/log.jsonl")}


def test_sweep_trains_each_value_and_gives_the_scores_of_eval(root, capsys):
    found = json.loads(answer(capsys, *TASK, "--grid", "model.num-loops=2,3", "--root", str(root), *KNOBS, "--json"))
    assert [cell["column"] for cell in found["cells"]] == ["model.num-loops 2", "model.num-loops 3"]
    for loops, cell in zip((2, 3), found["cells"], strict=True):
        test = json.loads(answer(capsys, "eval", cell["run"], "--size", "2000", "--json"))
        (row,) = test["rows"]
        assert (row["loops"], found["metric"]) == (loops, test["metric"])
        assert (cell["value"], cell["low"]) == pytest.approx((row["accuracy"], row["low"]), abs=1e-5)


def test_sweep_with_a_larger_grid_trains_only_the_new_runs(root, capsys):
    before = logs(root)
    grid = ["--grid", "model.num-loops=2,3", "model.block=looped,modulated"]
    assert main([*TASK, *grid, "--root", str(root), *KNOBS]) == 0
    said = capsys.readouterr()
    assert "2 of 4 runs to do" in said.err
    after = logs(root)
    assert len(before) == 2
    assert len(after) == 4
    assert before.items() <= after.items()
    heads, *rows = said.out.splitlines()
    assert heads.split()[:2] == ["edit-distance-4", "seed"]
    assert [row.split("  ")[0] for row in rows] == [
        f"model.num-loops {loops}, model.block {block}" for loops in (2, 3) for block in ("looped", "modulated")
    ]


def test_sweep_with_seeds_lists_them_by_setting_with_their_mean(root, capsys):
    grid = [*TASK, "--grid", "model.num-loops=3,2", "--seeds", "2", "--root", str(root), *KNOBS]
    _, *rows = answer(capsys, *grid).splitlines()
    assert [row.split()[1:3] for row in rows] == [[str(r), seed] for r in (3, 2) for seed in ("0", "1", "mean")]
    cells = json.loads(answer(capsys, *grid, "--json"))["cells"]
    for place, pair in ((2, cells[:2]), (5, cells[2:])):
        mean = sum(cell["value"] for cell in pair) / 2
        assert float(rows[place].split()[3]) == pytest.approx(mean, abs=1e-4)


def test_sweep_with_wrong_input_prints_one_line_and_trains_nothing(capsys, tmp_path):
    place = ["--root", str(tmp_path / "runs"), *KNOBS]
    for grid, text in {
        "model.num-loops": "--grid: expected FLAG=VALUE,VALUE",
        "model.num-loops=2,2": "with different values",
        "model.num-loops=2,x": "expected a whole number, got 'x'",
        "model.num-lops=2": "did you mean --model.num-loops",
        "model.num-loops=2,0": "--model.num-loops: expected",
        "seed=1,2": "--seeds their number of seeds",
        "train.runtime.num-threads=1,2": "got two equal runs",
    }.items():
        assert text in complaint(capsys, *TASK, "--grid", grid, *place)
    assert "--out: expected other flags" in complaint(
        capsys, *TASK, "--grid", "model.num-loops=2", *place, "--out", "a"
    )
    assert "--grid: expected FLAG=VALUE,VALUE, got none" in complaint(capsys, *TASK, "--grid", *place)
    assert "unknown task" in complaint(capsys, "sweep", "edit", "--grid", "model.num-loops=2", *place)
    assert list(tmp_path.iterdir()) == []
