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
from looped.training.callbacks import Callback
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


class History(Callback):
    """Keep copies of what every step found: its outcome, its gradients, and all weights and moments after it.

    In this order, what differs first is where two runs part. A backward pass begins with the last weights.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_step(self, trainer: Trainer, step: int, outcome: torch.Tensor) -> None:
        found = dict(zip(("loss", "accuracy", "gradient norm", "skipped"), outcome.clone(), strict=True))
        found |= gradients_of(trainer.model)
        found |= {f"{part} {name}": each.clone() for part, tensors in trainer.stepper.state().items()
                  for name, each in tensors.items()}  # fmt: skip
        self.steps.append(found)


def gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = [(name, each.grad) for name, each in model.named_parameters() if each.grad is not None]
    return {f"gradient of {name}": grad.clone() for name, grad in reversed(named)}


def trained(folder, group: Group, base: RunConfig = SMALL, **settings) -> tuple[Trainer, History]:
    config, history = replace(base, train=base.train.override(**TRAIN, **settings)), History()
    trainer = Trainer(config, folder, quiet=True, group=group, callbacks=[history])
    assert trainer.fit().finished
    return trainer, history


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], when: str) -> None:
    """Compare two sets of tensors. If they differ, say in which tensors and by how much."""
    assert one.keys() == other.keys()
    lines = [
        f"{name}: {int((value != other[name]).sum())} of {value.numel()} numbers, by a share of "
        f"{error(other[name], value):.1e}"
        for name, value in one.items()
        if not torch.equal(value, other[name])
    ]
    if lines:
        pytest.fail(f"{when}: {len(lines)} of {len(one)} tensors differ\n" + "\n".join(lines))


def assert_same_runs(one: History, other: History) -> None:
    """Compare two runs step by step. If they differ, say where that begins."""
    for step, (mine, yours) in enumerate(zip(one.steps, other.steps, strict=True)):
        way = "before" if step < PLAIN_CALLS else "after"
        assert_same_bits(mine, yours, f"step {step}, {way} the capture, is the first that differs")


@pytest.mark.parametrize("engine", ["fused", "compiled", "eager"])
@pytest.mark.parametrize("num_loops", [1, LARGE.model.num_loops])
def test_gradients_of_one_batch_have_the_same_bits_every_time(num_loops, engine):
    """One gradient that varies makes all earlier ones vary, but with one loop they come in order."""
    device = torch.device("cuda")
    model = build_model(replace(LARGE.model, modulation_init="random"), LARGE.task.spec).to(device)
    stepper = Stepper(model, LARGE.train.override(**TRAIN, engine=engine), device)
    batch = to_device(batch_at(0, LARGE), device)

    def found() -> dict[str, torch.Tensor]:
        loss, accuracy = stepper.gradients(batch, num_loops)
        return {"loss": loss.clone(), "accuracy": accuracy.clone(), **gradients_of(model)}

    first = found()
    # What is injected from the second loop on is not missed by a single one.
    assert {f"gradient of {name}" for name, _ in model.named_parameters()} < first.keys()
    for call in range(1, 11):
        assert_same_bits(first, found(), f"calls 0 and {call}")


@pytest.mark.parametrize("engine", ["fused", "compiled", "eager"])
def test_two_equal_runs_have_the_same_bits(engine, tmp_path):
    _, one = trained(tmp_path / "one", ALONE, LARGE, engine=engine)
    _, other = trained(tmp_path / "other", ALONE, LARGE, engine=engine)
    assert_same_runs(one, other)


@pytest.mark.parametrize("pieces", [None, 2])
@pytest.mark.parametrize(("engine", "base"), [("fused", SMALL), ("fused", LARGE), ("compiled", SMALL)])
def test_group_of_one_over_nccl_captures_a_graph_and_trains_as_one_process(engine, base, pieces, group, tmp_path):
    _, alone = trained(tmp_path / "alone", ALONE, base, engine=engine, pieces=pieces)
    trainer, grouped = trained(tmp_path / "group", group, base, engine=engine, pieces=pieces)
    assert isinstance(trainer.stepper._step, Replayed)
    assert trainer.stepper._step.usable
    assert trainer.stepper._step.captured
    assert_same_runs(alone, grouped)


def test_shards_on_a_group_of_one_over_nccl_train_as_one_process(group, tmp_path):
    whole, _ = trained(tmp_path / "alone", ALONE)
    config = replace(SMALL, train=SMALL.train.override(**TRAIN, shard=True))
    trainer = Trainer(config, tmp_path / "shards", quiet=True, group=group)
    assert trainer.fit().finished
    assert not isinstance(trainer.stepper._step, Replayed)
    alone = {part: {name: value.cpu() for name, value in tensors.items()}
             for part, tensors in whole.stepper.state().items()}  # fmt: skip
    torch.testing.assert_close(trainer.stepper.state(), alone, rtol=0.05, atol=0.02)


def test_capture_goes_on_while_another_thread_pins_memory():
    started, ended = threading.Event(), threading.Event()

    def pin() -> None:
        while not ended.is_set():
            torch.empty(1 << 20).pin_memory()
            started.set()

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        assert started.wait(30)
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
