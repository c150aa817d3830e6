"""Run folders that a killed process, a bad disk or a stranger has left in a bad state."""

import math
import os
from pathlib import Path

import pytest
import torch

from looped.training.checkpoint import load_newest, save_checkpoint
from looped.training.run_folder import RunFolder
from looped.training.trainer import Diverged, Trainer, train
from looped.utils.errors import InputError
from tests.refusal import refused
from tests.training.conftest import tiny


@pytest.mark.parametrize("name", [".config.json.1-1", ".looped-0123456789abcdef.tmp"])
def test_train_in_a_folder_with_a_killed_process_s_config_starts_and_deletes_it(name, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text("{")
    assert train(tiny(), run, quiet=True).finished
    assert not (run / name).exists()


def test_train_of_a_finished_run_deletes_half_a_checkpoint(tmp_path):
    train(tiny(), tmp_path / "run", quiet=True)
    left = tmp_path / "run" / "checkpoints" / ".step-000000002.old"
    left.mkdir()
    (left / "state.json").touch()
    train(tiny(), tmp_path / "run", quiet=True)
    assert not left.exists()


@pytest.mark.parametrize("name", [pytest.param("config.json", marks=pytest.mark.slow), "result.json"])
def test_every_bit_of_a_run_s_json_files_is_covered_by_a_hash(name, tmp_path):
    train(tiny(), tmp_path, quiet=True)
    run, path = RunFolder(tmp_path), tmp_path / name
    read = run.read_config if name == "config.json" else run.read_result
    original = path.read_bytes()
    for place in range(8 * len(original)):
        changed = bytearray(original)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(InputError):
            read()


@pytest.mark.parametrize("name", [".lock", "config.json", "log.jsonl", "result.json"])
def test_train_through_a_link_leaves_its_target_alone(name, tmp_path):
    precious, run = tmp_path / "precious", tmp_path / "run"
    precious.write_text("precious")
    run.mkdir()
    (run / name).symlink_to(precious)
    with refused(run / name):
        train(tiny(), run, quiet=True)
    assert precious.read_text() == "precious"


def test_train_with_linked_checkpoints_deletes_nothing_behind_the_link(tmp_path):
    train(tiny(), tmp_path / "run", quiet=True)
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "run" / "checkpoints").rename(elsewhere)
    (elsewhere / ".step-000000001").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(elsewhere)
    with refused(tmp_path / "run" / "checkpoints"):
        train(tiny(), tmp_path / "run", quiet=True)
    assert (elsewhere / ".step-000000001").is_dir()


def test_train_stopped_before_its_result_was_written_logs_no_line_twice(tmp_path):
    train(tiny(), tmp_path, quiet=True)
    whole = (tmp_path / "log.jsonl").read_text()
    (tmp_path / "result.json").unlink()
    assert train(tiny(), tmp_path, quiet=True).finished
    assert (tmp_path / "log.jsonl").read_text() == whole


def test_train_syncs_its_log_before_each_checkpoint_and_the_result(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((path.name, path.read_text().count("\n") if path.name == "log.jsonl" else 0))
        sync(handle)

    monkeypatch.setattr("os.fsync", note)
    train(tiny(train={"num_steps": 4, "checkpoint_every": 2}), tmp_path, quiet=True)
    names = [name for name, _ in synced]
    assert [lines for name, lines in synced if name == "log.jsonl"] == [2, 4, 5]
    assert names.index("log.jsonl") < names.index(".step-000000002")
    last_of_log = len(names) - names[::-1].index("log.jsonl")
    assert [name for name in names[last_of_log:] if not name.startswith(".looped-")] == [tmp_path.name]  # the result's


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_train_whose_last_update_overflows_saves_no_checkpoint_of_it(value, tmp_path):
    trainer = Trainer(tiny(train={"num_steps": 4, "checkpoint_every": 2}), tmp_path, quiet=True)
    step = trainer.stepper.optimizer.step

    def overflow() -> None:
        step()
        if trainer.step == 3:
            next(trainer.model.parameters()).data.view(-1)[0] = value

    trainer.stepper.optimizer.step = overflow
    with refused("embedding", error=Diverged):
        trainer.fit()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000002"]


@pytest.mark.parametrize("name", ["adamw.exp_avg.nonsense", "muon.momentum.nonsense", "nonsense"])
def test_train_from_a_checkpoint_that_does_not_fit_uses_the_previous_one(name, tmp_path, capsys):
    config = tiny(train={"num_steps": 4, "checkpoint_every": 2})
    train(config, tmp_path, quiet=True)
    newest = load_newest(tmp_path / "checkpoints")
    assert newest is not None
    newest.parts["optimizer"][name] = torch.zeros(3)
    save_checkpoint(tmp_path / "checkpoints", newest)
    trainer = Trainer(config, tmp_path, quiet=True)
    assert trainer.resume()
    assert trainer.step == 2
    assert "using step 2 instead" in capsys.readouterr().err
