"""One run on 1, 2 and 4 processes: the same state to the last bit with pieces, and joint decisions."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from looped.training import distributed
from looped.training.distributed import ALONE, Group, joined, tree_sum
from looped.training.trainer import Trainer
from looped.utils import launch
from looped.utils.errors import InputError
from tests.experiments.test_runner import wait_until
from tests.forks import Ended, ForkServer, Program
from tests.paths import ROOT
from tests.training.conftest import tiny
from tests.training.killed import train_to_the_end
from tests.training.ranks import CASES, MOVED, PARTS, hurried, with_pieces


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    return {
        **os.environ, **{name: str(value) for name, value in numbers.items()},
        "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    }  # fmt: skip


def free_port() -> int:
    """Return a port that is free and stays so: the system gives clients those from 32,768 on."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")


class Ranks:
    """Processes that train one run together."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def start(self, size: int, *words: str, last: Sequence[str] = (), others: Sequence[str] = ()) -> list[Program]:
        """Start ranks with the same words, and with some more for the last one and for the others."""
        port = free_port()
        return [
            self._server.start(
                *words, *(last if rank == size - 1 else others), environment=environment(rank, size, port)
            )
            for rank in range(size)
        ]

    def run(self, size: int, *words: str, seconds: float = 120, **more: Sequence[str]) -> list[Ended]:
        """Start ranks, wait for every one, and return how it ended. Kill what takes longer than this."""
        return finish(self.start(size, *words, **more), seconds)


def finish(ranks: list[Program], seconds: float) -> list[Ended]:
    end = time.monotonic() + seconds
    return [each.finish(end - time.monotonic()) for each in ranks]


@pytest.fixture(scope="module")
def ranks(programs) -> Ranks:
    return Ranks(programs)


@pytest.fixture(scope="module")
def found(tmp_path_factory, ranks) -> dict[int, dict[str, Any]]:
    """Return what 1, 2 and 4 processes found. Starting them takes most of the time, so they do everything at once."""
    torch.set_num_threads(1)
    alone = tmp_path_factory.mktemp("alone")
    single = {name: part(alone, ALONE) for name, part in PARTS.items() if name not in ("stop", "move")}
    results = {1: json.loads(json.dumps(single))}
    for size in (2, 4):
        folder = tmp_path_factory.mktemp(f"ranks-{size}")
        Trainer(hurried(MOVED), folder / "moved", quiet=True).fit()
        ended = ranks.run(size, "-m", "tests.training.ranks", str(folder), seconds=300)
        assert [each.code for each in ended] == [0] * size, "\n".join(each.messages for each in ended)
        results[size] = json.loads((folder / "found.json").read_text()) | {"folder": str(folder)}
    return results


@pytest.mark.parametrize("case", CASES)
def test_pieces_any_number_of_ranks_trains_the_same_bits(found, case):
    hashes = {size: found[size]["cases"]["with pieces"][case] for size in found}
    assert len(set(hashes.values())) == 1, hashes


@pytest.mark.parametrize("case", [name for name, config in CASES.items() if not config.model.is_random])
def test_all_reduce_loss_curves_agree_closely(found, case):
    """Rounding differs, and Muon's bfloat16 iteration amplifies that. The growth limit sees fewer examples per rank."""
    curves = [torch.tensor(found[size]["cases"]["without pieces"][case]) for size in found]
    optimizer = CASES[case].train.optimizer
    tolerance = 0.3 if optimizer.growth_limit else 2e-2 if optimizer.kind == "muon" else 1e-5
    for curve in curves[1:]:
        torch.testing.assert_close(curve, curves[0], rtol=tolerance, atol=0)


def test_ranks_stop_together_when_one_wants_to(found):
    for size in (2, 4):
        assert found[size]["stop"]["stops"] == [[1, "time limit"], [4, "signal"]]
    assert found[2]["stop"]["fingerprint"] == found[4]["stop"]["fingerprint"]


def test_ranks_take_over_weights_and_state_that_rank_0_read(found):
    assert found[1]["take over"] == found[2]["take over"] == found[4]["take over"]


@pytest.mark.parametrize(("name", "tolerance"), [("AdamW", 1e-5), ("Muon", 2e-2)])
def test_shards_train_with_the_losses_of_one_process(found, name, tolerance):
    curves = [torch.tensor(found[size]["shard"][name]) for size in found]
    for curve in curves[1:]:
        torch.testing.assert_close(curve, curves[0], rtol=tolerance, atol=0)


@pytest.mark.parametrize("size", [2, 4])
def test_checkpoints_move_between_one_process_replicas_and_shards(found, size, tmp_path):
    assert found[size]["move"]["steps"] == [2, 3]
    assert found[size]["move"]["share"] < 0.8, "nothing was sharded"
    moved = Trainer(MOVED, Path(found[size]["folder"]) / "moved", quiet=True)
    assert moved.fit().finished
    undisturbed = Trainer(MOVED, tmp_path / "undisturbed", quiet=True)
    undisturbed.fit()
    for part, tensors in undisturbed.stepper.state().items():
        for name, value in tensors.items():
            torch.testing.assert_close(moved.stepper.state()[part][name], value, rtol=1e-3, atol=1e-5)


def test_shards_need_several_processes(tmp_path):
    with pytest.raises(InputError) as caught:
        Trainer(tiny(train={"shard": True}), tmp_path / "run")
    assert caught.value.field == "train.shard"
    with pytest.raises(InputError) as caught:
        tiny(train={"shard": True, "pieces": 2})
    assert caught.value.field == "shard"


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_tree_sum_of_partial_sums_equals_the_whole_to_the_last_bit(num_ranks):
    terms = [[each] for each in torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))]
    each = len(terms) // num_ranks
    partial = [tree_sum(terms[start : start + each]) for start in range(0, len(terms), each)]
    assert torch.equal(tree_sum(partial)[0], tree_sum(terms)[0])
    torch.testing.assert_close(tree_sum(terms)[0], torch.stack([each[0] for each in terms]).sum(dim=0))


@pytest.mark.parametrize(
    ("train", "size", "field"),
    [({}, 3, "train.batch_size"), ({"pieces": 2}, 4, "train.pieces"), ({"pieces": 8}, 3, "train.pieces")],
)
def test_group_that_cannot_share_a_batch_equally_is_refused(train, size, field):
    with pytest.raises(InputError) as caught:
        Group(0, size).require_fit(tiny(train=train).train)
    assert caught.value.field == field


def test_shares_of_all_ranks_make_up_the_batch_in_order():
    items = list(range(12))
    assert [each for rank in range(4) for each in items[Group(rank, 4).share(12)]] == items


def test_pieces_are_part_of_a_runs_identity_and_their_absence_is_not():
    config = tiny()
    assert with_pieces(config).key != config.key
    assert config.key == "316ff8d321"  # as before there were pieces


KILLED = "tests.training.killed"


def test_rank_killed_again_and_again_restarts_and_ends_with_the_same_bits(programs, tmp_path):
    words = ("-m", KILLED, str(tmp_path), "2", "2")
    ended = programs.start(*words, environment=os.environ).finish(seconds=600)
    assert ended.code == 0, ended.messages
    assert_undisturbed(tmp_path, num_kills=2)


@pytest.mark.slow
def test_rank_killed_ten_times_under_torchrun_ends_with_the_same_bits(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    words = [*command, "--max-restarts", "10", "-m", KILLED, str(tmp_path), "10"]
    ran = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert_undisturbed(tmp_path, num_kills=10)


def assert_undisturbed(folder: Path, num_kills: int) -> None:
    restarts, fingerprint = (folder / "found.txt").read_text().split()
    assert int(restarts) == num_kills
    assert fingerprint == train_to_the_end(folder / "undisturbed", ALONE)


LOOPED = ["-m", "looped", "train", "edit-distance", "--recipe", "laptop", "--task.length", "4", "--model.dim", "16",
          "--train.batch-size", "8", "--train.num-steps", "100000", "--train.device", "cpu"]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--train.pieces", "1"], "train.pieces: expected a multiple of the 2 processes, got 1"),
        (["--train.device", "cuda"], "train.device: expected a GPU for every process"),
        (["--train.optimizer", "adamw", "--train.learning-rate", "1e30"], "expected a finite number"),
    ],
)
def test_mistake_is_one_line_of_one_rank(ranks, flags, part, tmp_path):
    ended = ranks.run(2, *LOOPED, "--out", str(tmp_path / "run"), *flags)
    assert [each.code for each in ended] == [2, 2]
    lines = [line for each in ended for line in each.messages.splitlines() if part in line]
    assert len(lines) == 1
    assert lines[0].startswith("looped: ")
    assert not any("Traceback" in each.messages for each in ended)


@pytest.mark.parametrize(
    ("flag", "value", "part"),
    [
        ("--train.batch-size", "16", "--train.batch-size: expected 8 as on rank 0, got 16 on rank 1"),
        pytest.param(
            "--train.init-from",
            "edit-distance",
            "--train.init-from: expected None as on rank 0, got 'given' on rank 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "--train.checkpoint-every",
            "3",
            "--train.checkpoint-every: expected 1000 as on rank 0, got 3 on rank 1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_with_different_commands_are_one_line_of_one_rank(ranks, flag, value, part, tmp_path):
    ended = ranks.run(2, *LOOPED, "--out", str(tmp_path / "run"), last=[flag, value])
    assert [each.code for each in ended] == [2, 2]
    assert [line for each in ended for line in each.messages.splitlines() if line.startswith("looped: ")] == [
        f"looped: {part}. Start the same command on every machine."
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_flag_that_one_rank_mistypes_ends_all_ranks_with_its_line(ranks, rank, tmp_path):
    flags = {"last" if rank else "others": ["--train.peices", "2"]}
    ended = ranks.run(2, *LOOPED, "--out", str(tmp_path / "run"), **flags)
    assert [each.code for each in ended] == [2, 2]
    assert [each.messages.count("\n") for each in ended] == [1 - rank, rank]
    assert "did you mean --train.pieces" in ended[rank].messages
    assert not (tmp_path / "run").exists()


OWN_LOSS = """
import torch.nn.functional as F

def own(scores, batch):
    return {factor} * F.cross_entropy(scores.flatten(0, 1), batch.targets.flatten())
"""


@pytest.mark.slow
def test_ranks_with_different_code_are_one_line_of_one_rank(ranks, tmp_path):
    flags = []
    for factor in (1, 5):
        path = tmp_path / str(factor) / "losses.py"
        path.parent.mkdir()
        path.write_text(OWN_LOSS.format(factor=factor))
        flags.append(["--train.loss", f"{path}:own"])
    ended = ranks.run(2, *LOOPED, "--out", str(tmp_path / "run"), others=flags[0], last=flags[1])
    assert [each.code for each in ended] == [2, 2]
    lines = [line for each in ended for line in each.messages.splitlines() if line.startswith("looped: ")]
    assert len(lines) == 1
    assert "losses.py: expected" in lines[0]
    assert not (tmp_path / "run").exists()


FULL_DISK = """
import errno
import looped

class FullDisk(looped.Callback):
    def on_checkpoint(self, trainer, step, path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
"""


@pytest.mark.slow
def test_disk_that_is_full_on_rank_0_is_one_line(ranks, tmp_path):
    (tmp_path / "disk.py").write_text(FULL_DISK)
    flags = ["--callback", f"{tmp_path / 'disk.py'}:FullDisk", "--train.checkpoint-every", "3"]
    ended = ranks.run(2, *LOOPED, "--out", str(tmp_path / "run"), *flags)
    assert [each.code for each in ended] == [2, 2]
    said = [line for each in ended for line in each.messages.splitlines() if line.startswith("looped: ")]
    assert "No space left on device" in said[-1]
    assert not any("lost the connection" in line for line in said)
    assert not any("Traceback" in each.messages for each in ended)


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_cannot_reach_the_store_is_refused(rank, monkeypatch, capfd):
    """Rank 0 cannot listen where another process does, and nobody answers rank 1."""
    monkeypatch.setattr(distributed, "CONNECT_SECONDS", 0.1)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with socket.socket() as other:
        other.bind(("", 0))
        if rank == 0:
            other.listen()
        for name, value in environment(rank, 2, other.getsockname()[1]).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(InputError) as caught, joined("cpu"):
            pass
    assert caught.value.field == "MASTER_ADDR"
    assert capfd.readouterr().err == "", "PyTorch has printed its own messages"


def test_rank_0_without_the_others_is_refused(monkeypatch):
    monkeypatch.setattr(launch, "CONNECT_SECONDS", 0.1)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    for name, value in environment(0, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as caught, joined("cpu"):
        pass
    assert caught.value.field == "WORLD_SIZE"


def test_rank_whose_neighbour_dies_ends_with_one_line(ranks, tmp_path):
    processes = ranks.start(2, *LOOPED, "--out", str(tmp_path / "run"), "--train.checkpoint-every", "5")
    wait_until(lambda: any((tmp_path / "run").glob("checkpoints/step-*")), "no checkpoint")
    processes[1].kill()
    left, killed = finish(processes, seconds=60)
    assert (left.code, killed.code) == (2, -signal.SIGKILL)
    assert "lost the connection to another rank" in left.messages.splitlines()[-1]
    assert "Traceback" not in left.messages


def test_example_trains_the_block_alike_with_ddp_and_fsdp2(ranks):
    script = str(ROOT / "examples" / "parallel.py")
    losses = {}
    for name, size, flags in (("DDP", 2, []), ("FSDP2", 2, ["--shard"])):
        ended = ranks.run(size, script, *flags)
        assert [each.code for each in ended] == [0] * size, ended[0].messages
        losses[name] = [float(loss) for loss in re.findall(r"loss ([\d.]+)$", ended[0].output, re.MULTILINE)]
    assert len(losses["DDP"]) == 20
    assert losses["DDP"][-1] < 0.75 * losses["DDP"][0]
    assert losses["FSDP2"] == pytest.approx(losses["DDP"], abs=2e-4)
