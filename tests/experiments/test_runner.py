"""The runner as a user meets it: it skips, resumes, shares its work, stops in time, and survives being killed."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from looped.cli.main import main
from looped.cli.paper import RunCommand, StatusCommand
from looped.config import RunConfig
from looped.experiments import one_run, runner, workers
from looped.experiments.one_run import WorkerResult
from looped.experiments.records import RECORD_NAME, load_records, read_record
from looped.experiments.runner import MAX_LOSSES, CellsFailed, run_experiment, status
from looped.experiments.spec import EvalPlan, Experiment
from looped.experiments.tables import EXPERIMENTS, experiment
from looped.experiments.workers import LocalWorkers, Workers, threads_per_worker
from looped.training.logger import read_log
from looped.training.run_folder import RunFolder
from looped.training.trainer import Diverged
from looped.utils.files import read_sealed, save_sealed
from tests.paths import ROOT
from tests.refusal import refused


def small(*patterns: str) -> Experiment:
    return experiment("table1", "smoke").select(patterns or ("ED40:standard", "ED40:modulated r=*"))


def slow(num_steps: int, test_size: int = 4) -> Experiment:
    """Three runs, long enough to be stopped on the way."""
    made = small("ED40:standard", "ED40:modulated r=1", "ED40:looped r=2")
    cells = []
    for cell in made.cells:
        train = cell.config.train.override(num_steps=num_steps, checkpoint_every=50, log_every=50, eval_every=10**6)
        cells.append(replace(cell, config=replace(cell.config, train=train)))
    return replace(made, cells=tuple(cells), eval_plan=replace(made.eval_plan, size=test_size))


RUNNER = """
import sys
from pathlib import Path
from looped.experiments.runner import run_experiment
from tests.experiments.test_runner import slow
if __name__ == "__main__":
    steps, size, workers = map(int, sys.argv[2:5])
    run_experiment(slow(steps, size), Path(sys.argv[1]), num_workers=workers, where=sys.argv[5])
"""


def start_runner(
    root: Path, num_steps: int, test_size: int = 4, workers: int = 2, where: str = "local"
) -> subprocess.Popen:
    script = root.parent / "run.py"
    script.write_text(RUNNER)
    folders = (str(ROOT), str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(":"))
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, folders))}
    command = [sys.executable, str(script), str(root), str(num_steps), str(test_size), str(workers), where]
    return subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def workers_of(parent: int) -> list[int]:
    """Processes that a runner has started, found by their parent."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def stop(process: subprocess.Popen, how: signal.Signals) -> str:
    """Stop a runner as a user or a machine would, and see that none of its workers outlives it."""
    workers = workers_of(process.pid)
    assert workers
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # what Ctrl-C does
    else:
        process.send_signal(how)
    _, said = process.communicate(timeout=60)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "workers outlived the runner")
    return said


def finished(root: Path) -> int:
    return len(list(root.glob(f"*/{RECORD_NAME}")))


class WorkersHere(Workers):
    """Work in this process, for tests of what the runner does with the results: a new one imports for seconds."""

    limit = 1

    def __init__(self, root: Path, plan: EvalPlan) -> None:
        self.root, self.plan = root, plan
        self.running: list[RunConfig] = []

    def start(self, config: RunConfig) -> None:
        self.running.append(config)

    def finished(self, seconds: float) -> list[tuple[RunConfig, WorkerResult]]:
        config = self.running.pop()
        return [(config, one_run.finish_cell(config, str(self.root), self.plan, 1))]

    def close(self) -> None:
        pass


@pytest.fixture
def workers_here(monkeypatch):
    monkeypatch.setattr(runner, "open_workers", lambda _, __, root, plan, *___: WorkersHere(root, plan))


@pytest.mark.usefixtures("workers_here")
def test_runner_skips_finished_runs_and_status_shows_them(tmp_path, capsys):
    made, runs = small(), tmp_path / "runs"
    before = status(made, runs, load_records(None, runs))
    assert {cell["state"] for cell in before} == {"not begun"}
    assert run_experiment(made, runs, num_workers=2)
    stamps = {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")}
    assert run_experiment(made, runs, num_workers=2)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")} == stamps
    rows = status(made, runs, load_records(None, runs))
    assert all(row["finished"] for row in rows)
    for row in rows:
        record = read_record(runs / row["run"] / RECORD_NAME)
        own = record.test.at(record.config.model.num_loops)
        assert (row["value"], row["low"], row["high"]) == (own.metrics["accuracy"], own.low, own.high)
    # What was collected is finished, too, on a machine that has no runs.
    results = str(tmp_path / "results")
    assert main(["paper", "collect", "--root", str(runs), "--results", results]) == 0
    assert run_experiment(made, tmp_path / "none", results=Path(results), num_workers=1)
    assert not (tmp_path / "none").exists()
    words = [
        "paper",
        "status",
        "table1",
        "--scale",
        "smoke",
        "--cells",
        "ED40:standard",
        "--root",
        str(tmp_path / "none"),
    ]
    capsys.readouterr()
    assert main([*words, "--results", results, "--json"]) == 0
    said = capsys.readouterr()
    (shown,) = json.loads(said.out)["experiments"]
    assert [cell["finished"] for cell in shown["cells"]] == [True]
    assert said.err == ""


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize(
    ("name", "patterns"), [("table2", ("*:standard*",)), ("table3", ("*:standard*",)), ("loops", ("fixed:*",))]
)
def test_runner_progress_shows_the_numbers_of_the_cells(name, patterns, tmp_path, capsys):
    made = experiment(name, "smoke").select(patterns)
    assert run_experiment(made, tmp_path, num_workers=1)
    lines = re.findall(r"^\[ *\d+ s\] (.*): ([a-z ]+) ([\d.e+]+ \(.*\))$", capsys.readouterr().err, re.MULTILINE)
    rows = status(made, tmp_path, load_records(None, tmp_path))
    assert {(label, number) for label, _, number in lines} == {
        (f"{row['row']}, {row['column']}", row["state"]) for row in rows
    }
    kind = {"table2": "squared error per dimension", "table3": "perplexity", "loops": "accuracy"}[name]
    assert [measure for _, measure, _ in lines] == [kind] * len(rows)


def test_status_without_records_says_where_it_looked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "status", "table1", "--scale", "smoke", "--cells", "ED40:standard"]) == 0
    said = capsys.readouterr()
    assert said.out == "table1, smoke scale: 0 of 1 cells finished\n  ED40, standard: not begun\n"
    expected = "looped: no record of a run in results or under runs: --results and --root say where to look\n"
    assert said.err == expected


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("how", [
    signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL
])  # fmt: skip
def test_runner_stopped_in_training_resumes_from_the_last_checkpoint(how, tmp_path):
    runs, num_steps = tmp_path / "runs", 600
    process = start_runner(runs, num_steps)
    wait_until(lambda: len(list(runs.glob("*/checkpoints/step-*"))) >= 3, "no checkpoints")
    said = stop(process, how)
    assert said.count("Traceback") <= 1  # the script's own, for the KeyboardInterrupt
    assert how == signal.SIGKILL or "leaked" not in said
    assert finished(runs) < 3, "nothing was left to finish"
    kept = {folder.name: RunFolder(folder).newest_checkpoint() for folder in runs.iterdir() if folder.name[0] != "."}
    assert all(checkpoint is not None for checkpoint in kept.values())
    assert run_experiment(slow(num_steps), runs)
    assert finished(runs) == 3
    for name in kept:
        steps = [step for _, step in read_log(runs / name / "log.jsonl")]
        assert steps == sorted(steps)
        assert steps[-1] == num_steps


def test_runner_reports_a_worker_that_was_stopped_from_outside(tmp_path):
    runs = tmp_path / "runs"
    process = start_runner(runs, 2000, workers=1)
    wait_until(lambda: bool(list(runs.glob("*/checkpoints/step-*"))), "no checkpoint")
    for worker_id in workers_of(process.pid):
        os.kill(worker_id, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert "was stopped from outside; the same command goes on" in said
    assert finished(runs) == 0


def pool_processes(parent: int) -> list[int]:
    return [one for one in workers_of(parent) if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def weights(runs: Path) -> dict[str, str]:
    """Return the SHA-256 of every run's last weights."""
    newest = {folder: max(folder.glob("checkpoints/step-*")) for folder in runs.iterdir() if folder.name[0] != "."}
    return {
        folder.name: hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
        for folder, path in newest.items()
    }


@pytest.mark.usefixtures("workers_here")
def test_runner_whose_worker_is_killed_replaces_it_and_ends_with_the_same_bits(tmp_path):
    """As a system does that is out of memory: nobody asks the worker, which may hold or wait for anything."""
    runs = tmp_path / "runs"
    process = start_runner(runs, 400)
    wait_until(lambda: len({path.parent for path in runs.glob("*/checkpoints/step-*")}) == 2, "no checkpoints")
    os.kill(pool_processes(process.pid)[0], signal.SIGKILL)
    try:
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert said.count("its worker was killed (out of memory?); resuming it with a new one") == 1
    assert finished(runs) == 3
    assert run_experiment(slow(400), tmp_path / "undisturbed")
    assert weights(runs) == weights(tmp_path / "undisturbed")


class DeadlyWorkers(WorkersHere):
    """One run kills every worker it meets."""

    limit = 2

    def __init__(self, deadly: RunConfig, root: Path, plan: EvalPlan) -> None:
        super().__init__(root, plan)
        self.deadly = deadly

    def finished(self, seconds: float) -> list[tuple[RunConfig, WorkerResult]]:
        if self.running[-1] == self.deadly:
            return [(self.running.pop(), WorkerResult("lost", "its worker was killed"))]
        return super().finished(seconds)


def test_runner_gives_up_a_run_that_keeps_killing_its_workers_and_finishes_the_others(tmp_path, monkeypatch, capsys):
    made = small("ED40:standard", "ED40:modulated r=1")
    workers = DeadlyWorkers(made.cells[0].config, tmp_path, made.eval_plan)
    monkeypatch.setattr(runner, "open_workers", lambda *_: workers)
    with pytest.raises(CellsFailed, match="ED40, standard could not be finished: its worker was killed"):
        run_experiment(made, tmp_path)
    assert capsys.readouterr().err.count("resuming it with a new one") == MAX_LOSSES
    assert finished(tmp_path) == 1


@pytest.mark.usefixtures("workers_here")
def test_runner_killed_in_a_test_does_not_train_again(tmp_path):
    runs = tmp_path / "runs"
    process = start_runner(runs, 20, test_size=60_000, workers=1)
    wait_until(lambda: bool(list(runs.glob("*/result.json"))), "no training was finished")
    stop(process, signal.SIGKILL)
    assert finished(runs) == 0
    (result,) = runs.glob("*/result.json")
    before = result.read_text()
    made = slow(20)
    assert run_experiment(made, runs, num_workers=1)
    assert result.read_text() == before
    assert finished(runs) == 3


KILLED_REPORT = """
import os, signal, sys
from looped.utils import files
from looped.cli.main import main
from looped.cli.paper import RunCommand, StatusCommand
files.os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


def test_report_killed_while_writing_leaves_the_old_page(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "report"
    for cell in small().cells:
        one_run.finish_run(cell.config, runs, small().eval_plan)
    words = ["paper", "report", "table1", "--scale", "smoke", "--root", str(runs), "--results", str(tmp_path / "none"),
             "--out", str(out)]  # fmt: skip
    assert main(words) == 0
    whole = (out / "index.html").read_text()
    killed = subprocess.run([sys.executable, "-c", KILLED_REPORT, *words], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert (out / "index.html").read_text() == whole
    assert main(words) == 0
    assert (out / "index.html").read_text() == whole


def test_two_runners_on_one_folder_train_each_run_once(tmp_path):
    runs = tmp_path / "runs"
    both = [start_runner(runs, 400, workers=1) for _ in range(2)]
    said = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    done = [re.findall(r"^\[ *\d+ s\] (ED40, .*): accuracy", text, re.MULTILINE) for text in said]
    by_others = [re.findall(r"^\[ *\d+ s\] (ED40, .*): finished by another", text, re.MULTILINE) for text in said]
    for own, others in zip(done, by_others, strict=True):
        assert set(own).isdisjoint(others)
    for folder in runs.iterdir():
        if folder.name[0] != ".":
            steps = [json.loads(line) for line, _ in read_log(folder / "log.jsonl")]
            trained = [line["step"] for line in steps if "loss" in line]
            assert trained == list(range(50, 401, 50)), "two trained it"
    assert finished(runs) == 3
    assert not list((runs / ".locks").glob("*.json"))


def test_runner_with_a_time_limit_stops_and_resumes(tmp_path, capsys):
    made, runs = slow(3000), tmp_path / "runs"
    assert not run_experiment(made, runs, num_workers=1, minutes=0.15)
    assert "the same command goes on" in capsys.readouterr().err
    assert finished(runs) < 3
    # Nothing was lost: where a run was stopped, there is a checkpoint of that step.
    begun = [folder for folder in runs.iterdir() if (folder / "log.jsonl").exists()]
    for folder in begun:
        last = max((step for _, step in read_log(folder / "log.jsonl")), default=0)
        checkpoint = RunFolder(folder).newest_checkpoint()
        assert (checkpoint.step if checkpoint else 0) == last
    for words in (["--minutes", "0"], ["--workers", "0"], ["--seeds", "0"]):
        assert main(["paper", "run", "table1", "--scale", "smoke", "--root", str(runs), *words]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_runner_reports_a_folder_of_another_config_and_leaves_it_alone(tmp_path, capsys):
    made = small("ED40:standard")
    config = made.cells[0].config
    folder = tmp_path / "runs" / config.folder_name
    other = replace(config, train=config.train.override(weight_decay=0.5))
    assert one_run.finish_run(other, tmp_path / "other", made.eval_plan).state == "finished"
    (tmp_path / "runs").mkdir()
    (tmp_path / "other" / other.folder_name).rename(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    words = ["paper", "run", "table1", "--scale", "smoke", "--cells", "ED40:standard", "--root", str(tmp_path / "runs")]
    assert main(words) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert "holds another run: its train.optimizer.weight_decay is 0.5, this one's is 0.01" in said
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    # A field that no config has any more is named as well.
    stored = read_sealed(folder / "config.json")
    stored["train"]["forgotten"] = 1
    save_sealed(folder / "config.json", stored)
    assert main(words) == 2
    assert "train.forgotten" in capsys.readouterr().err


@pytest.mark.usefixtures("workers_here")
def test_runner_reports_a_failed_run_and_finishes_the_others(tmp_path, capsys):
    made, runs = small(), tmp_path / "runs"
    strange = runs / made.cells[1].config.folder_name
    strange.mkdir(parents=True)
    (strange / "strange.txt").write_text("not a run")
    with pytest.raises(ValueError, match=r"ED40, modulated r=1 could not be finished: .*is not a run"):
        run_experiment(made, runs, num_workers=1)
    assert finished(runs) == len(made.cells) - 1
    assert [(path.name, path.read_text()) for path in strange.iterdir()] == [("strange.txt", "not a run")]


def test_runner_notes_a_run_that_diverges(tmp_path, monkeypatch):
    made = small("ED40:looped r=2")
    cell = made.cells[0]
    wild = replace(cell.config, train=cell.config.train.override(learning_rate=1e30, clip_norm=None, num_steps=20,
                                              optimizer="adamw"))  # fmt: skip
    with pytest.raises(Diverged):
        one_run.finish_run(wild, tmp_path, made.eval_plan)
    (record,) = load_records(None, tmp_path).values()
    assert not record.finished
    assert record.note.startswith("loss: expected a finite number")
    (row,) = status(replace(made, cells=(replace(cell, config=wild),)), tmp_path, load_records(None, tmp_path))
    assert row["state"].startswith("failed: loss: expected a finite number")
    assert row["value"] is None
    assert not row["finished"]


def test_runner_without_a_text_of_the_plan_fails_before_training(tmp_path):
    made = experiment("table3", "smoke")
    made = replace(made, eval_plan=replace(made.eval_plan, texts=("no-such-text",)))
    with refused(None, "no-such-text"):
        run_experiment(made, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("workers_here")
def test_runner_trains_a_run_per_seed(tmp_path):
    made = small("ED40:looped r=1")
    assert run_experiment(made, tmp_path, num_seeds=2, num_workers=1)
    seeds = sorted(record.config.seed for record in load_records(None, tmp_path).values())
    assert seeds == [0, 1]
    assert len(status(made, tmp_path, load_records(None, tmp_path), num_seeds=3)) == 3


def test_paper_run_with_no_pattern_of_cells_trains_nothing(tmp_path, monkeypatch, capsys):
    """The pattern may be a variable of the shell that is empty."""
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "run", "table1", "--scale", "smoke", "--cells", "--workers", "1"]) == 2
    assert capsys.readouterr().err.startswith("looped: --cells: expected patterns")
    assert list(tmp_path.iterdir()) == []


def test_paper_list_has_every_experiment(capsys):
    assert main(["paper", "list", "--scale", "gpu", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["experiments"]
    assert [one["id"] for one in listed] == [*EXPERIMENTS]
    for one in listed:
        for cell in one["cells"]:
            assert {"row", "column", "paper", "config"} <= set(cell)
            RunConfig.from_json(cell["config"])
    assert len(listed[0]["cells"]) == 54
    assert main(["paper", "list", "--scale", "gpu"]) == 0
    text = capsys.readouterr().out
    for one in listed:
        assert re.search(
            rf"^{one['id']} +{len(one['cells'])} +\d+ +\d+ (s|min|h|days) +{re.escape(one['title'])}$", text, re.M
        )


def test_paper_run_with_a_repeated_name_runs_it_once(capsys):
    assert main(["paper", "list", "table2", "table1", "table2", "--json"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["experiments"]] == ["table2", "table1"]


def test_paper_list_counts_the_runs_that_would_be_trained(capsys):
    assert main(["paper", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["experiments"]
    assert {one["scale"] for one in listed} == {StatusCommand().scale, RunCommand().scale}


@pytest.mark.parametrize(("words", "expected"), [
    (["run"], "expected an experiment to run"),
    (["run", "tabel1"], "did you mean 'table1'"),
    (["run", "table1", "--scale", "huge"], "unknown scale 'huge'"),
    (["run", "table1", "--cells", "ED41:*"], "cells: expected"),
    (["status", "--cells", "ED40:*"], "--cells goes with one experiment"),
    (["collect", "--root", "nowhere"], "no record of a finished run under nowhere"),
    (["repotr"], "did you mean 'report'"),
])  # fmt: skip
def test_paper_verbs_with_wrong_input_print_one_line(words, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert expected in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wanted", "cores", "workers", "threads"),
    [(None, 8, 2, 4), ("1", 8, 2, 1), ("8", 8, 2, 4), ("2", 2, 2, 1), ("4,2", 8, 2, 4), (None, 1, 2, 1)],
)
def test_workers_share_the_cores_up_to_the_wanted_threads(monkeypatch, wanted, cores, workers, threads):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert threads_per_worker(workers) == threads


@pytest.mark.parametrize("wanted", [None, "3"])
def test_local_workers_leave_the_users_number_of_threads_alone(wanted, monkeypatch, tmp_path):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    inherited = []

    class Slot:
        def __init__(self, *_: object) -> None:
            self.pool = ThreadPoolExecutor(1)

        def submit(self, *arguments: object) -> object:
            inherited.append((os.environ["OMP_NUM_THREADS"], arguments[-1]))
            return Future()

    monkeypatch.setattr(workers, "_Slot", Slot)
    for num_workers in (8, 2):
        LocalWorkers(num_workers, [], tmp_path, small().eval_plan).start(small().cells[0].config)
    assert inherited == [("1", 1), (wanted or "4", int(wanted or 4))]
    assert os.environ.get("OMP_NUM_THREADS") == wanted
