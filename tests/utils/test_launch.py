"""The environment that torchrun sets."""

import pytest

from looped.cli.main import main
from looped.utils import launch
from looped.utils.errors import InputError
from looped.utils.launch import launched_rank

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_launched_rank_without_torchrun_is_none(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert launched_rank() == 1
    monkeypatch.delenv("MASTER_ADDR")
    assert launched_rank() is None


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("value", ["", "one", "-1", "\u00b2", "9" * 5000])
def test_train_with_a_number_of_torchrun_that_is_none_ends_in_one_line(name, value, monkeypatch, capsys, tmp_path):
    for each in TORCHRUN.items():
        monkeypatch.setenv(*each)
    monkeypatch.setenv(name, value)
    assert main(["train", "edit-distance", "--recipe", "laptop", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(f"looped: {name}: expected a number")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value"), [("RANK", "2"), ("WORLD_SIZE", "0"), ("MASTER_PORT", "65536")])
def test_launched_rank_out_of_range_is_refused(name, value, monkeypatch):
    for each in TORCHRUN.items():
        monkeypatch.setenv(*each)
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as caught:
        launched_rank()
    assert caught.value.field == ("RANK" if name == "WORLD_SIZE" else name)


SMALL_TABLE = ["paper", "run", "table1", "--scale", "smoke", "--cells", "ED40:standard"]
SMALL_SWEEP = ["sweep", "edit-distance", "--recipe", "laptop", "--grid", "train.num-steps=1,2"]


@pytest.mark.parametrize("words", [SMALL_TABLE, SMALL_SWEEP, ["tarin"], ["train", "sudoku", "--plugin", "missing.py"]])
def test_mistake_that_every_rank_makes_is_reported_by_rank_0_alone(words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "LINGER_SECONDS", 0.0)
    for each in TORCHRUN.items():
        monkeypatch.setenv(*each)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("RANK", "0")
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())
