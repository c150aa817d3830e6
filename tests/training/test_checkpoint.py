"""Checkpoints: read back as they were, and passed over where they are damaged or half written."""

import json
import math

import pytest
import torch

from looped.training import checkpoint
from looped.training.checkpoint import Checkpoint, load_checkpoint, load_newest, save_checkpoint
from looped.utils.errors import InputError
from tests.training.conftest import damage


def random_checkpoint(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "large": torch.randn(5_000_000, generator=generator),
        "half": torch.randn(3, 7, generator=generator).bfloat16(),
        "count": torch.tensor(4.0),
        "empty": torch.zeros(0, 5),
    }
    return Checkpoint(step, tensors, {"seconds": 1.5})


def test_checkpoints_come_back_as_they_were_in_small_shards(tmp_path, capsys):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, random_checkpoint(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-000000003"]
    assert max(path.stat().st_size for path in tmp_path.glob("*/*.safetensors")) <= 15_000_000 + 1000
    back = load_newest(tmp_path)
    assert capsys.readouterr().err == ""
    assert back is not None
    assert back.step == 3
    for name, tensor in random_checkpoint(3).tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor)


def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys):
    for step in (1, 2):
        save_checkpoint(tmp_path, random_checkpoint(step))
    damage(tmp_path / "step-000000002" / "shard-000.safetensors")
    with pytest.raises(InputError, match="damaged"):
        load_checkpoint(tmp_path / "step-000000002")
    back = load_newest(tmp_path)
    assert back is not None
    assert back.step == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"looped: {tmp_path / 'step-000000002' / 'shard-000.safetensors'} is damaged: ")
    assert line.endswith("; step 1 is used instead")
    (tmp_path / "step-000000001" / "state.json").write_text("{")
    with pytest.raises(InputError, match="no checkpoint"):
        load_newest(tmp_path)


@pytest.mark.parametrize(("name", "shape"), [("half", [3, 8]), ("half", [-1, -1]), ("large", []), ("empty", [1, 5])])
def test_a_checkpoint_whose_shapes_are_damaged_is_passed_over(name, shape, tmp_path, capsys):
    for step in (1, 2):
        save_checkpoint(tmp_path, random_checkpoint(step))
    damaged = tmp_path / "step-000000002" / "state.json"
    state = json.loads(damaged.read_text())
    state["shapes"][name] = shape
    damaged.write_text(json.dumps(state))
    assert_passed_over(tmp_path, capsys)


@pytest.mark.parametrize(("field", "value"), [("step", math.inf), ("step", None), ("extra", None), ("extra", 3)])
def test_a_checkpoint_whose_state_is_damaged_is_passed_over(field, value, tmp_path, capsys):
    for step in (1, 2):
        save_checkpoint(tmp_path, random_checkpoint(step))
    damaged = tmp_path / "step-000000002" / "state.json"
    damaged.write_text(json.dumps(json.loads(damaged.read_text()) | {field: value}))
    assert_passed_over(tmp_path, capsys)


def assert_passed_over(folder, capsys):
    """That the second of two checkpoints is."""
    back = load_newest(folder)
    assert back is not None
    assert back.step == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"looped: {folder / 'step-000000002'} is not a checkpoint: ")
    assert line.endswith("; step 1 is used instead")


def test_a_checkpoint_that_the_disk_did_not_take_leaves_nothing(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, random_checkpoint(1))

    def full(path, value):
        raise InputError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(checkpoint, "save_json", full)
    with pytest.raises(InputError, match="No space left"):
        save_checkpoint(tmp_path, random_checkpoint(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_a_half_written_checkpoint_is_not_one(tmp_path):
    (tmp_path / ".step-000000009").mkdir()
    (tmp_path / ".step-000000009" / "shard-000.safetensors").write_bytes(b"half")
    assert load_newest(tmp_path) is None
    save_checkpoint(tmp_path, random_checkpoint(9))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000009"]
