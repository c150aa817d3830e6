"""On a GPU: the same bits every time, also in a group of one over NCCL, whose collectives are inside the CUDA graph."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from looped.config import RunConfig
from looped.kernels.cuda_graphs import PLAIN_CALLS, Replayed
from looped.models import build_model
from looped.tasks import EditDistance
from looped.training.batches import batch_at
from looped.training.distributed import ALONE, Group, joined
from looped.training.loss import to_device
from looped.training.step import Stepper
from looped.training.trainer import Trainer
from tests.kernels.cases import error
from tests.training.conftest import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers emit warnings of their own
]

TRAIN = {
    "device": "cuda", "num_steps": 8, "optimizer": "muon", "ema_decay": 0.9, "spike_factor": 5.0, "num_threads": None,
    "eval_size": 8,
}  # fmt: skip


@pytest.fixture
def group(monkeypatch) -> Iterator[Group]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {
        "RANK": 0,
        "WORLD_SIZE": 1,
        "LOCAL_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        monkeypatch.setenv(name, str(value))
    with joined("cuda") as group:
        yield group
    assert not dist.is_initialized()


KIND = {"positions": "rotary", "precision": "bfloat16"}
SMALL = tiny(model={"dim": 64, "num_heads": 2, **KIND}, train={"batch_size": 32})
# 128 sequences of 84 tokens are enough for every kernel of the fused engine; 64 in a piece are too few for the one that
# runs all loops (`triton_loops.BUSY_FOR_TRAINING`).
LARGE = tiny(
    model={"dim": 256, "num_heads": 4, "num_loops": 10, **KIND}, train={"batch_size": 128}, task=EditDistance(length=40)
)


def state_after(folder, group: Group, base: RunConfig = SMALL, **settings) -> tuple[Trainer, dict[str, torch.Tensor]]:
    config = replace(base, train=base.train.override(**TRAIN, **settings))
    trainer = Trainer(config, folder, quiet=True, group=group)
    assert trainer.fit().finished
    state = {f"{part} {name}": each.clone() for part, tensors in trainer.stepper.state().items()
             for name, each in tensors.items()}  # fmt: skip
    return trainer, state


def differing(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that differ in at least one bit, and print by how much."""
    assert state.keys() == other.keys()
    names = [name for name, value in state.items() if not torch.equal(value, other[name])]
    for name in names:
        print(f"{name} differs by a share of {error(other[name], state[name]):.1e}")
    return names


@pytest.mark.parametrize("engine", ["fused", "compiled", "eager"])
def test_gradients_of_one_batch_have_the_same_bits_every_time(engine):
    """One gradient that varies makes all weights vary after a few steps, so the gradients tell which it is."""
    device = torch.device("cuda")
    model = build_model(replace(LARGE.model, modulation_init="random"), LARGE.task.spec).to(device)
    stepper = Stepper(model, LARGE.train.override(**TRAIN, engine=engine), device)
    batch, named = to_device(batch_at(0, LARGE), device), dict(model.named_parameters())

    def gradients() -> dict[str, torch.Tensor]:
        stepper.gradients(batch, LARGE.model.num_loops)
        return {name: each.grad.clone() for name, each in named.items() if each.grad is not None}

    first = gradients()
    assert first.keys() == named.keys()
    assert not [name for _ in range(10) for name in differing(first, gradients())]


@pytest.mark.parametrize("engine", ["fused", "compiled", "eager"])
def test_two_equal_runs_end_with_the_same_bits(engine, tmp_path):
    _, one = state_after(tmp_path / "one", ALONE, LARGE, engine=engine)
    _, other = state_after(tmp_path / "other", ALONE, LARGE, engine=engine)
    assert not differing(one, other)


@pytest.mark.parametrize("pieces", [None, 2])
@pytest.mark.parametrize(("engine", "base"), [("fused", SMALL), ("fused", LARGE), ("compiled", SMALL)])
def test_group_of_one_over_nccl_captures_a_graph_and_trains_as_one_process(engine, base, pieces, group, tmp_path):
    _, alone = state_after(tmp_path / "alone", ALONE, base, engine=engine, pieces=pieces)
    trainer, grouped = state_after(tmp_path / "group", group, base, engine=engine, pieces=pieces)
    assert isinstance(trainer.stepper._step, Replayed)
    assert trainer.stepper._step.usable
    assert trainer.stepper._step.captured
    assert not differing(alone, grouped)


def test_shards_on_a_group_of_one_over_nccl_train_as_one_process(group, tmp_path):
    _, alone = state_after(tmp_path / "alone", ALONE)
    trainer, sharded = state_after(tmp_path / "shards", group, shard=True)
    assert not isinstance(trainer.stepper._step, Replayed)
    for name, value in alone.items():
        torch.testing.assert_close(sharded[name], value.cpu(), rtol=0.05, atol=0.02)


def test_capture_goes_on_while_another_thread_pins_memory():
    started, ended = threading.Event(), threading.Event()

    def pin() -> None:
        while not ended.is_set():
            torch.empty(1 << 20).pin_memory()
            started.set()

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        started.wait()
        doubled = Replayed(lambda tensors: (torch.stack([tensors[0] * 2 for _ in range(200)]).sum(dim=0),))
        for _ in range(PLAIN_CALLS + 2):
            (found,) = doubled((torch.ones(4, device="cuda"),))
    finally:
        ended.set()
        thread.join()
    assert doubled.usable
    assert len(doubled.captured) == 1
    assert found.tolist() == [400] * 4


def test_capture_that_fails_on_another_rank_is_given_up_on_this_one():
    answers = [False]
    doubled = Replayed(lambda tensors: (2 * tensors[0],), agree=lambda succeeded: succeeded and answers.pop())
    for _ in range(PLAIN_CALLS + 2):
        (found,) = doubled((torch.ones(4, device="cuda"),))
    assert not doubled.usable
    assert not doubled.captured
    assert found.tolist() == [2] * 4
