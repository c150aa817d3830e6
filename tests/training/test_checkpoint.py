"""Checkpoints: equal after a round trip, readable by others, and skipped if anything in them is damaged."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from looped.training import checkpoint
from looped.training.checkpoint import Checkpoint, load_checkpoint, load_newest, save_checkpoint
from looped.utils.errors import InputError
from looped.utils.files import read_sealed, save_sealed
from tests.refusal import refused
from tests.training.conftest import damage


def random_checkpoint(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    parts = {
        "model": {
            "stack.large": torch.randn(300, 1000, generator=generator),
            "half": torch.randn(3, 7, generator=generator).bfloat16(),
            "empty": torch.zeros(0, 5),
        },
        "ema": {"half": torch.ones(3, 7)},
        "optimizer": {"adamw.step.half": torch.tensor(4.0)},
    }
    return Checkpoint(step, 1.5, parts)


def assert_equal(back: Checkpoint | None, expected: Checkpoint) -> None:
    assert back is not None
    assert (back.step, back.seconds) == (expected.step, expected.seconds)
    assert {part: [*tensors] for part, tensors in back.parts.items()} == {
        part: sorted(tensors, key=list(back.parts[part]).index) for part, tensors in expected.parts.items()
    }
    for part, tensors in expected.parts.items():
        for name, tensor in tensors.items():
            assert back.parts[part][name].dtype == tensor.dtype
            assert torch.equal(back.parts[part][name], tensor)


def two_checkpoints(folder):
    for step in (1, 2):
        save_checkpoint(folder, random_checkpoint(step))
    return folder / "step-000000002"


def assert_step_1_is_used(folder, capsys):
    back = load_newest(folder)
    assert back is not None
    assert back.step == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "step-000000002" in line


def test_save_checkpoint_keeps_the_last_two_and_loads_equal(tmp_path, capsys):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, random_checkpoint(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-000000003"]
    assert_equal(load_newest(tmp_path), random_checkpoint(3))
    assert capsys.readouterr().err == ""


def test_checkpoint_files_open_with_safetensors_under_their_own_names(tmp_path):
    folder = save_checkpoint(tmp_path, random_checkpoint(5))
    names = ["ema.safetensors", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    weights = load_file(folder / "model.safetensors")
    assert torch.equal(weights["stack.large"], random_checkpoint(5).parts["model"]["stack.large"])


def test_weights_are_the_average_if_one_is_kept():
    whole = random_checkpoint(1)
    assert whole.weights is whole.parts["ema"]
    assert whole._replace(parts={"model": whole.parts["model"]}).weights is whole.parts["model"]


def test_large_parts_are_split_with_an_index(tmp_path):
    folder = save_checkpoint(tmp_path, random_checkpoint(7), max_file_bytes=1_200_000)
    files = sorted(path.name for path in folder.glob("model*"))
    assert files == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((folder / files[-1]).read_text())
    assert index["metadata"]["total_size"] == 300 * 1000 * 4 + 3 * 7 * 2
    for name, file in index["weight_map"].items():
        assert name in load_file(folder / file)
    assert_equal(load_checkpoint(folder), random_checkpoint(7))


@pytest.mark.parametrize("name", ["model.safetensors", "ema.safetensors", "optimizer.safetensors"])
def test_damaged_file_is_skipped(name, tmp_path, capsys):
    newest = two_checkpoints(tmp_path)
    damage(newest / name)
    with refused(newest / name):
        load_checkpoint(newest)
    assert_step_1_is_used(tmp_path, capsys)


def test_every_bit_of_state_json_is_covered_by_its_hash(tmp_path):
    newest = two_checkpoints(tmp_path)
    path = newest / "state.json"
    original = path.read_bytes()
    state = json.loads(original)
    for place in range(len(original)):
        for bit in range(8):
            changed = bytearray(original)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                load_checkpoint(newest)
            except InputError:
                continue
            assert json.loads(changed) == state  # white space only


def test_swapped_folders_are_refused(tmp_path):
    newest = two_checkpoints(tmp_path)
    newest.rename(tmp_path / "step-000000003")
    with refused(None, tmp_path / "step-000000003", "step 2"):
        load_checkpoint(tmp_path / "step-000000003")


@pytest.mark.parametrize("name", ["/etc/hostname", "../step-000000001/model.safetensors", "model.bin"])
def test_file_names_outside_the_checkpoint_are_refused(name, tmp_path):
    newest = two_checkpoints(tmp_path)
    state = read_sealed(newest / "state.json")
    state["files"][name] = "0" * 64
    save_sealed(newest / "state.json", state)
    with refused(None, newest / name):
        load_checkpoint(newest)


def test_file_that_is_no_safetensors_is_skipped_even_if_its_hash_is_right(tmp_path, capsys):
    newest = two_checkpoints(tmp_path)
    (newest / "model.safetensors").write_bytes(b"\xff" * 100)
    state = read_sealed(newest / "state.json")
    state["files"]["model.safetensors"] = hashlib.sha256(b"\xff" * 100).hexdigest()
    save_sealed(newest / "state.json", state)
    assert_step_1_is_used(tmp_path, capsys)


def test_load_newest_without_any_whole_checkpoint_fails(tmp_path):
    two_checkpoints(tmp_path)
    for path in tmp_path.glob("*/state.json"):
        path.write_text("{")
    with refused(None, tmp_path):
        load_newest(tmp_path)


def test_save_on_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, random_checkpoint(1))

    def full(path, value):
        raise InputError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(checkpoint, "save_sealed", full)
    with refused(tmp_path / ".step-000000002" / "state.json"):
        save_checkpoint(tmp_path, random_checkpoint(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_leftovers_of_a_killed_save_are_ignored_and_removed(tmp_path):
    (tmp_path / ".step-000000009").mkdir()
    (tmp_path / ".step-000000009" / "model.safetensors").write_bytes(b"half")
    assert load_newest(tmp_path) is None
    save_checkpoint(tmp_path, random_checkpoint(9))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000009"]


def test_save_replaces_a_checkpoint_of_the_same_step(tmp_path):
    save_checkpoint(tmp_path, random_checkpoint(4)._replace(seconds=9.0))
    save_checkpoint(tmp_path, random_checkpoint(4))
    assert_equal(load_newest(tmp_path), random_checkpoint(4))
    shutil.rmtree(tmp_path / "step-000000004")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["state.json", "model.safetensors"])
def test_load_newest_with_a_link_in_place_of_a_file_uses_the_previous_checkpoint(name, tmp_path, capsys):
    newest = two_checkpoints(tmp_path)
    (newest / name).rename(tmp_path / "moved")
    (newest / name).symlink_to(tmp_path / "moved")
    assert_step_1_is_used(tmp_path, capsys)


def test_save_checkpoint_hides_an_old_one_on_disk_before_it_deletes_a_file_of_it(tmp_path, monkeypatch):
    two_checkpoints(tmp_path)
    events = []
    sync, rmtree = checkpoint.sync_folder, shutil.rmtree

    def synced(folder):
        events.append({path.name for path in folder.iterdir()})
        sync(folder)

    monkeypatch.setattr(checkpoint, "sync_folder", synced)
    monkeypatch.setattr(shutil, "rmtree", lambda path, **named: (events.append(path.name), rmtree(path, **named)))
    save_checkpoint(tmp_path, random_checkpoint(3))
    hidden = ".step-000000001.old"
    deleted = events.index(hidden)
    assert {hidden, "step-000000002", "step-000000003"} in events[:deleted]
