"""An experiment from its declaration to the page, at a size that takes seconds."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from looped.config import RunConfig
from looped.experiments import runner
from looped.experiments.report import collect, table, write_readme, write_report
from looped.experiments.spec import Experiment
from looped.experiments.tables import EXPERIMENTS, laptop
from looped.training.folder import RunFolder


def smallest(experiment: Experiment) -> Experiment:
    """The first cell of every row and the last one, with hardly any training."""
    cells = [next(cell for cell in experiment.cells if cell.row == row) for row in experiment.rows]
    shrunk = []
    for cell in [*cells, experiment.cells[-1]]:
        train = replace(cell.config.train, num_steps=3, batch_size=4, eval_size=10, device="cpu")
        shrunk.append(replace(cell, config=replace(cell.config, train=train)))
    return replace(experiment, cells=tuple(shrunk), test_size=30)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_round_trips_and_has_a_place_of_its_own(name):
    experiment = EXPERIMENTS[name]()
    for cell in experiment.cells:
        assert RunConfig.from_json(json.loads(json.dumps(cell.config.to_json()))) == cell.config
    assert len({cell.config.key for cell in experiment.cells}) == len(experiment.cells)
    assert len({(cell.row, cell.column) for cell in experiment.cells}) == len(experiment.cells)


def test_the_laptop_table_compares_on_equal_terms():
    """Equal samples, recipe and task for all cells; three kinds of models; several loop counts."""
    cells = laptop().cells
    assert len({json.dumps(cell.config.to_json()["train"]) for cell in cells}) == 1
    assert len({cell.config.task for cell in cells}) == 1
    assert {cell.config.model.block for cell in cells} == {"standard", "looped", "modulated"}
    for block in ("looped", "modulated"):
        loops = [cell.config.model.num_loops for cell in cells if cell.config.model.block == block]
        assert loops[:3] == [1, 2, 4]
        assert max(loops) > 4


def test_run_skip_and_report(tmp_path, monkeypatch):
    experiment = smallest(laptop())
    runs, out = tmp_path / "runs", tmp_path / "report"
    runner.run_experiment(experiment, runs, num_workers=2)
    stamps = {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")}
    runner.run_experiment(experiment, runs, num_workers=2)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")} == stamps

    finished = collect(experiment, runs)
    assert [one.cell for one in finished] == list(experiment.cells)
    # The table's numbers are the ones in the files, counted again here.
    shown = re.findall(r"\| (\d+\.\d) % \|", table(finished))
    for cell, text in zip(experiment.cells, shown, strict=True):
        test = json.loads((runs / cell.config.folder_name / "test.json").read_text())
        row = next(row for row in test["rows"] if row["loops"] == cell.config.model.num_loops)
        assert text == f"{100 * row['accuracy']:.1f}"

    page = write_report(experiment, runs, out).read_text()
    assert page.count("<svg") == 3
    assert page.count("<tr>") == 1 + len(experiment.cells)
    assert not re.search(r"(src|href)=[\"']https?:", page.replace("xlink:href", "")), "the page must need no network"
    assert (out / "report.md").read_text().startswith(f"# {experiment.title}")


def test_a_cell_that_fails_is_told(tmp_path):
    experiment = smallest(laptop())
    cell = experiment.cells[0]
    folder = tmp_path / cell.config.folder_name
    folder.mkdir(parents=True)
    (folder / "strange.txt").write_text("not a run")
    with pytest.raises(ValueError, match="is not a run"):
        runner.run_experiment(replace(experiment, cells=(cell,)), tmp_path, num_workers=1)


def test_the_readme_gets_the_table_between_its_marks(tmp_path):
    experiment = smallest(laptop())
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results: here -->\nold\n<!-- end of results -->\nafter\n")
    with pytest.raises(ValueError, match="are not finished"):
        write_readme(experiment, tmp_path / "runs", readme)
    assert "old" in readme.read_text()
    runner.run_experiment(experiment, tmp_path / "runs", num_workers=2)
    for _ in range(2):  # writing it again changes nothing
        write_readme(experiment, tmp_path / "runs", readme)
        text = readme.read_text()
        assert text.startswith("before\n<!-- results: here -->\n\n| model |")
        assert text.endswith("\n<!-- end of results -->\nafter\n")
        assert "old" not in text
        assert table(collect(experiment, tmp_path / "runs")) in text
    assert (tmp_path / "docs" / "accuracy.svg").read_text().startswith("<svg")
    readme.write_text("no marks")
    with pytest.raises(ValueError, match="expected the lines"):
        write_readme(experiment, tmp_path / "runs", readme)


RUNNER = """
import sys
from pathlib import Path
from looped.experiments.runner import run_experiment
from tests.integration.test_experiments import slow_experiment
if __name__ == "__main__":
    run_experiment(slow_experiment(), Path(sys.argv[1]), num_workers=2)
"""


def slow_experiment() -> Experiment:
    """Three cells for two workers, long enough to be stopped on the way."""
    experiment = smallest(laptop())
    cells = []
    for cell in experiment.cells[:3]:
        train = replace(cell.config.train, num_steps=1500, checkpoint_every=1, log_every=100, eval_every=10_000)
        cells.append(replace(cell, config=replace(cell.config, train=train)))
    return replace(experiment, cells=tuple(cells))


def workers_of(parent: int) -> list[int]:
    """Processes that a runner has started, found by their parent."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_runner_leaves_no_workers_and_a_second_start_finishes_the_table(how, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(RUNNER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while len(list(tmp_path.glob("runs/*/checkpoints/step-*"))) < 3:
        assert time.monotonic() < deadline, "no checkpoints"
        time.sleep(0.02)
    workers = workers_of(process.pid)
    assert workers
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # what Ctrl-C does
    else:
        process.kill()
    _, said = process.communicate(timeout=60)
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "workers outlived the runner"
        time.sleep(0.1)
    assert said.count("Traceback") <= 1  # this script's own, for the KeyboardInterrupt
    assert len(collect(slow_experiment(), tmp_path / "runs")) < 3, "nothing was left to finish"
    stopped_at = [RunFolder(folder).newest_checkpoint() for folder in (tmp_path / "runs").iterdir()]
    assert all(checkpoint is not None for checkpoint in stopped_at)
    assert subprocess.run(command, env=environment, stderr=subprocess.DEVNULL).returncode == 0
    assert len(collect(slow_experiment(), tmp_path / "runs")) == 3
