"""Locks of several runners on one folder, and machines that fail: one run's failure does not touch the others."""

import json
import os
import time

import pytest
import torch

from looped.cli.main import main
from looped.experiments import locks, one_run, runner
from looped.experiments.locks import is_locked, run_lock
from looped.experiments.one_run import finish_cell
from looped.experiments.records import load_records
from looped.experiments.tables import experiment
from tests.refusal import refused

MADE = experiment("table1", "smoke").select(["ED40:modulated r=4"])
CONFIG = MADE.cells[0].config


def test_run_lock_keeps_others_out_and_ends_with_its_holder(tmp_path):
    assert not is_locked(tmp_path, "run")
    with run_lock(tmp_path, "run") as free:
        assert free
        assert is_locked(tmp_path, "run")
        with run_lock(tmp_path, "run") as again:
            assert not again
        with run_lock(tmp_path, "other") as other:
            assert other
    assert not is_locked(tmp_path, "run")
    with run_lock(tmp_path, "run") as free:
        assert free


@pytest.mark.parametrize(("host", "age", "free"), [
    ("another", 10, False),  # alive, on a machine whose locks do not reach this one
    ("another", 1000, True),  # dead
    ("here", 10, True),  # dead: the system has freed its lock
    (None, 10, False),  # made a moment ago, and not written yet
    (None, 1000, True),
])  # fmt: skip
def test_run_lock_of_another_machine_holds_while_it_is_touched(host, age, free, tmp_path):
    path = tmp_path / locks.FOLDER / "run.json"
    path.parent.mkdir()
    name = locks._this_process()["host"] if host == "here" else host
    path.write_text("" if host is None else json.dumps({"host": name, "pid": 1}))
    stamp = path.stat().st_mtime - age
    os.utime(path, (stamp, stamp))
    assert is_locked(tmp_path, "run") != free
    with run_lock(tmp_path, "run") as got:
        assert got == free
    assert path.exists() != free, "a lock that holds stays, one that was taken is given back"


def test_run_lock_is_touched_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.01)
    path = tmp_path / locks.FOLDER / "run.json"
    with run_lock(tmp_path, "run"):
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 30
        while path.stat().st_mtime == 1:
            assert time.monotonic() < deadline, "no heartbeat"
            time.sleep(0.01)


def test_run_lock_outlives_several_missed_heartbeats():
    assert locks.STALE_AFTER_SECONDS >= 5 * locks.HEARTBEAT_SECONDS


def test_run_lock_that_another_machine_renewed_is_put_back(tmp_path, monkeypatch):
    """Both find it stale; the other one is the first to move it away and to create its own."""
    path = tmp_path / locks.FOLDER / "run.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"host": "dead", "pid": 1}))
    os.utime(path, (1, 1))
    judge, judged = locks._is_stale, []

    def slow_judge(asked):
        stale = judge(asked)
        if not judged:
            path.unlink()
            path.write_text(json.dumps({"host": "faster", "pid": 2}))
        judged.append(stale)
        return stale

    monkeypatch.setattr(locks, "_is_stale", slow_judge)
    with run_lock(tmp_path, "run") as free:
        assert not free
    assert judged == [True, False]
    assert json.loads(path.read_text())["host"] == "faster"
    assert [each.name for each in path.parent.iterdir() if each.suffix != ".lock"] == ["run.json"]


def test_sweep_locks_deletes_what_is_left_of_dead_processes_alone(tmp_path):
    folder = tmp_path / locks.FOLDER
    host, dead = locks._this_process()["host"], 2**22 + 1  # beyond the kernel's largest process id
    with run_lock(tmp_path, "held"):
        (folder / "left.json").write_text(json.dumps({"host": host, "pid": dead}))
        (folder / "elsewhere.json").write_text(json.dumps({"host": "another", "pid": dead}))
        for name in (f".clock.{host}-{dead}", f".left.json.{host}-{dead}.new", f".x.json.{host}-{dead}"):
            (folder / name).touch()
        kept = {f".x.json.{host}-{os.getpid()}.new", f".left.json.another-{dead}.new"}
        for name in kept:
            (folder / name).touch()
        locks.sweep_locks(tmp_path)
        left = {path.name for path in folder.iterdir() if path.suffix != ".lock"}
    assert left == {"held.json", "elsewhere.json", *kept}


def test_run_lock_leaves_the_file_of_another_machine_alone(tmp_path):
    path = tmp_path / locks.FOLDER / "run.json"
    with run_lock(tmp_path, "run"):
        path.write_text(json.dumps({"host": "another", "pid": 2}))
    assert path.exists()


def test_heartbeat_goes_on_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.01)
    touch, failures = os.utime, [OSError(5, "Input/output error"), PermissionError(13, "Permission denied")]

    def failing(*arguments, **named):
        if failures:
            raise failures.pop()
        touch(*arguments, **named)

    with run_lock(tmp_path, "run"):
        touch(path := tmp_path / locks.FOLDER / "run.json", (1, 1))
        monkeypatch.setattr(locks.os, "utime", failing)
        deadline = time.monotonic() + 30
        while path.stat().st_mtime == 1:
            assert time.monotonic() < deadline, "no heartbeat"
            time.sleep(0.01)
    assert failures == []


@pytest.mark.parametrize("name", ["file", "file/runs"])
def test_run_lock_in_a_root_that_cannot_be_made_is_one_line(name, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with refused(None, tmp_path / name / ".locks", tmp_path / "file"), run_lock(tmp_path / name, "run"):
        pass


@pytest.mark.parametrize(("verbs", "words", "expected"), [
    ("run status collect report", ["--results", "file"], "--results must be a folder, got the file file"),
    ("run status collect report", ["--root", "file"], "--root must be a folder, got the file file"),
    ("run status collect report", ["--root", "file/runs"], "--root must be a folder, got the file file"),
    ("report", ["--out", "file/page"], "--out must be a folder, got the file file"),
    ("run status", ["--seeds", "0"], "--seeds: expected an integer in 1..1,000, got 0"),
    ("run status", ["--seeds", "1" + 15 * "0"], "--seeds: expected an integer in 1..1,000, got 1000000000000000"),
])  # fmt: skip
def test_paper_verbs_with_bad_folders_or_seeds_print_one_line(verbs, words, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    for verb in verbs.split():
        assert main(["paper", verb, "table1", "--scale", "smoke", *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"looped: {expected}\n"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def failing_run(error):
    def run(*_):
        raise error

    return run


@pytest.mark.parametrize(("error", "expected"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore."), "CUDA out of memory. Tried to"),
    (RuntimeError("CUDA error: an illegal memory access was encountered\nMore."), "CUDA error: an illegal"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2 bytes"), "can't allocate"),
    (OSError(28, "No space left on device"), "No space left on device"),
    (MemoryError(), "MemoryError"),
])  # fmt: skip
def test_finish_cell_when_the_machine_fails_returns_one_line(error, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(one_run, "finish_run", failing_run(error))
    outcome = finish_cell(CONFIG, str(tmp_path), MADE.eval_plan, 1)
    assert outcome.state == "failed"
    assert expected in outcome.text
    assert "\n" not in outcome.text


def test_finish_cell_does_not_hide_a_bug(monkeypatch, tmp_path):
    monkeypatch.setattr(one_run, "finish_run", failing_run(RuntimeError("shapes do not fit")))
    with pytest.raises(RuntimeError, match="shapes"):
        finish_cell(CONFIG, str(tmp_path), MADE.eval_plan, 1)


def test_paper_run_reports_a_failure_after_all_experiments(monkeypatch, tmp_path, capsys):
    seen = []

    def run(one, *_, **__):
        seen.append(one.id)
        if one.id == "table1":
            raise runner.CellsFailed("ED40, standard could not be finished: CUDA out of memory")
        return True

    monkeypatch.setattr(runner, "run_experiment", run)
    words = ["table1", "table2", "--scale", "smoke", "--root", str(tmp_path / "runs"), "--results", str(tmp_path)]
    assert main(["paper", "run", *words]) == 2
    assert seen == ["table1", "table2"]
    assert "table1: ED40, standard could not be finished: CUDA out of memory" in capsys.readouterr().err


def test_status_of_a_locked_run_says_so_before_its_first_step(tmp_path):
    with run_lock(tmp_path, CONFIG.folder_name):
        (row,) = runner.status(MADE, tmp_path, load_records(None, tmp_path))
    assert row["state"] == "being done, no step logged yet"
    (row,) = runner.status(MADE, tmp_path, load_records(None, tmp_path))
    assert row["state"] == "not begun"
