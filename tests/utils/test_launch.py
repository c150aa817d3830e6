"""The environment that torchrun sets."""

import pytest

from looped.cli.main import main
from looped.utils.launch import launched_rank

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_launched_rank_without_torchrun_is_none(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert launched_rank() == 1
    monkeypatch.delenv("MASTER_ADDR")
    assert launched_rank() is None


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("value", ["", "one", "-1", "\u00b2"])
def test_train_with_a_number_of_torchrun_that_is_none_ends_in_one_line(name, value, monkeypatch, capsys, tmp_path):
    for each in TORCHRUN.items():
        monkeypatch.setenv(*each)
    monkeypatch.setenv(name, value)
    assert main(["train", "edit-distance", "--recipe", "laptop", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(f"looped: {name}: expected a number")
    assert not (tmp_path / "run").exists()
