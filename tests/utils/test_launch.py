"""The environment that torchrun sets."""

import socket
import types

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from looped.cli.main import main
from looped.utils import launch
from looped.utils.errors import InputError
from looped.utils.launch import launched_rank
from tests.refusal import refused

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
MISTAKES = [
    ["tarin"],
    ["train", "sudoku", "--plugin", "missing.py"],
    ["paper", "rnu"],
    ["paper", "run", "table1", "--sede", "1"],
    ["paper", "run", "--scale", "smoke"],
    ["sweep", "edit-distance", "--gird", "train.num-steps=1,2"],
    [*SMALL_SWEEP, "train.num_steps"],
]


@pytest.mark.parametrize("words", [SMALL_TABLE, SMALL_SWEEP, *MISTAKES], ids=" ".join)
@pytest.mark.parametrize("first", ["0", "1"])
def test_mistake_before_the_ranks_connect_is_reported_by_the_first_alone(words, first, monkeypatch, capsys, tmp_path):
    store = HashStore()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(launch, "connect_store", lambda seconds: store)
    monkeypatch.setattr(launch, "atexit", types.SimpleNamespace(register=lambda *_: None))
    for each in TORCHRUN.items():
        monkeypatch.setenv(*each)
    monkeypatch.setenv("RANK", first)
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("RANK", str(1 - int(first)))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_mistake_of_a_rank_that_cannot_reach_the_others_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(launch, "REPORT_SECONDS", 0.1)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with socket.socket() as silent:
        silent.bind(("", 0))
        for each in {**TORCHRUN, "MASTER_PORT": str(silent.getsockname()[1])}.items():
            monkeypatch.setenv(*each)
        assert main(["tarin"]) == 2
    assert capsys.readouterr().err.startswith("looped: unknown verb")


@pytest.mark.parametrize(("rank", "local_rank", "lines"), [("0", "0", 1), ("1", "0", 1), ("1", "1", 0)])
def test_rank_that_waits_for_others_says_so_once_on_each_machine(rank, local_rank, lines, monkeypatch, capsys):
    for name in ("NOTICE_SECONDS", "KNOCK_SECONDS"):
        monkeypatch.setattr(launch, name, 0.01)
    monkeypatch.setattr(launch, "CONNECT_SECONDS", 0.3)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with socket.socket() as silent:
        silent.bind(("", 0))
        port = str(silent.getsockname()[1])
        for each in {**TORCHRUN, "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": local_rank}.items():
            monkeypatch.setenv(*each)
        with refused("WORLD_SIZE" if rank == "0" else "MASTER_ADDR"):
            launch.wait_for(["never"], HashStore()) if rank == "0" else launch.connect_store(0.3)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all(("other processes" if rank == "0" else port) in line for line in said)
