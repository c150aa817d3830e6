"""What every rank does in the tests of distributed training: `python -m tests.training.ranks FOLDER`."""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from looped.config import RunConfig
from looped.tasks import EditDistance
from looped.training.callbacks import Callback
from looped.training.distributed import Group, joined
from looped.training.logger import read_log
from looped.training.run_folder import RunFolder
from looped.training.trainer import Interrupted, Trainer
from tests.training.conftest import tiny

PIECES = 4
MUON = {"optimizer": "muon", "ema_decay": 0.9, "spike_factor": 1.05, "muon_learning_rate": 0.1}

CASES: dict[str, RunConfig] = {
    "looped, AdamW, accumulation": tiny(model={"block": "looped"}, train={"accumulation": 8}),
    "modulated, AdamW, spike guard, average": tiny(train={"ema_decay": 0.9, "spike_factor": 1.05}),
    "looped, Muon, spike guard, average": tiny(model={"block": "looped"}, train=MUON),
    "modulated, Muon, accumulation, growth limit": tiny(train={**MUON, "accumulation": 2, "growth_limit": 1.5}),
    "curriculum of sizes and loops": tiny(train={
        **MUON, "num_steps": 8, "size_schedule": "growing", "size_choices": (0.5, 1.0), "loop_schedule": "growing",
        "loop_choices": (1, 3), "curriculum_steps": 4, "supervision": "mean",
    }),
    "random loops, fixed set": tiny(
        train={"loop_schedule": "random", "loop_choices": (1, 2, 3), "num_examples": 21, "num_steps": 6}
    ),
    "dropout, random starts, free loops": tiny(
        model={"block": "looped", "dropout": 0.2, "start": "random"}, train={"free_loops": (0, 3), "accumulation": 4}
    ),
    "weighted positions": tiny(
        train=MUON, task=EditDistance(length=4, alphabet=3, max_letters=3, answers="prefixes")
    ),
}  # fmt: skip


def with_pieces(config: RunConfig) -> RunConfig:
    return replace(config, train=config.train.override(pieces=PIECES))


def fingerprint(trainer: Trainer) -> str:
    """Return the SHA-256 of all weights, moments, averages and the spike guard, with their names."""
    digest = hashlib.sha256()
    for part, tensors in sorted(trainer.stepper.state().items()):
        for name, value in sorted(tensors.items()):
            digest.update(f"{part} {name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def common_fingerprint(trainer: Trainer) -> str:
    """Return the fingerprint of this rank, after checking that rank 0 has the same."""
    own = fingerprint(trainer)
    assert own == trainer.group.from_main(lambda: own), "ranks ended with different states"
    return own


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line, _ in read_log(folder / "log.jsonl")]
    return [record["loss"] for record in records if "loss" in record]


def train_cases(folder: Path, group: Group) -> dict[str, Any]:
    """Train every case with and without pieces. Return fingerprints and losses, after checking that all ranks agree."""
    found: dict[str, Any] = {"with pieces": {}, "without pieces": {}}
    for number, (name, config) in enumerate(CASES.items()):
        trainer = Trainer(with_pieces(config), folder / f"pieces-{number}", quiet=True, group=group)
        assert trainer.fit().finished
        found["with pieces"][name] = common_fingerprint(trainer)
        Trainer(config, folder / f"plain-{number}", quiet=True, group=group).fit()
        if group.is_main:
            found["without pieces"][name] = losses(folder / f"plain-{number}")
    return found


def stop_jointly(folder: Path, group: Group) -> dict[str, Any]:
    """Let the last rank alone reach its time limit, and then get a signal. Return where the run stopped each time."""
    config, is_last = with_pieces(tiny(train={"num_steps": 6})), group.rank == group.size - 1
    first = Trainer(hurried(config) if is_last else config, folder / "stopped", quiet=True, group=group).fit()
    trainer = Trainer(config, folder / "stopped", quiet=True, group=group)
    step = trainer.train_step

    def interrupted_step(number: int, *rest: Any) -> torch.Tensor:
        if is_last and number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(number, *rest)

    trainer.train_step = interrupted_step
    try:
        trainer.fit()
    except Interrupted as stop:
        second = stop.result
    else:
        raise AssertionError("a signal on one rank was ignored")
    trainer = Trainer(config, folder / "stopped", quiet=True, group=group)
    assert trainer.fit().finished
    stops = [[result.step, result.stopped_by] for result in (first, second)]
    return {"stops": stops, "fingerprint": common_fingerprint(trainer)}


def take_over(folder: Path, group: Group) -> dict[str, Any]:
    """Start from another run's weights, and continue another run. Rank 0 alone reads its folder."""
    start = with_pieces(tiny(train={"schedule": "stable", "decay_fraction": 0.0}))
    origin = folder / "origin"
    Trainer(start, origin, quiet=True, group=group).fit()
    found = {}
    for field, steps in (("init_from", 4), ("continue_from", 6)):
        # Other ranks see a path that does not exist, as on another machine.
        path = str(origin) if group.is_main else str(folder / "elsewhere")
        config = replace(start, train=start.train.override(num_steps=steps, **{field: path}))
        trainer = Trainer(config, folder / field, quiet=True, group=group)
        assert trainer.fit().finished
        found[field] = common_fingerprint(trainer)
    return found


def hurried(config: RunConfig, **settings: Any) -> RunConfig:
    """Return a config whose run stops after every step."""
    return replace(config, train=config.train.override(max_minutes=1e-9, **settings))


MOVED = tiny(train={"num_steps": 5, "ema_decay": 0.9, "spike_factor": 5.0})


def move(folder: Path, group: Group) -> dict[str, Any]:
    """Take a run that one process began one step further as replicas, then one step with shards."""
    begun = Trainer(hurried(MOVED), folder / "moved", quiet=True, group=group).fit()
    before = RunFolder(folder / "moved").newest_checkpoint()
    trainer = Trainer(hurried(MOVED, shard=True), folder / "moved", quiet=True, group=group)
    assert trainer.resume()
    own_part = next(trainer.model.parameters()).to_local().numel()  # pyright: ignore[reportAttributeAccessIssue]
    state = trainer.stepper.state()
    if group.is_main:
        for part, tensors in before.parts.items():
            for name, value in tensors.items():
                assert torch.equal(state[part][name], value), f"{part} {name} changed when it was sharded"
    result = Trainer(hurried(MOVED, shard=True), folder / "moved", quiet=True, group=group).fit()
    return {"steps": [begun.step, result.step], "share": own_part / next(trainer.model.parameters()).numel()}


class Evaluating(Callback):
    """Evaluate anew what was just validated."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    def on_evaluation(self, trainer: Trainer, step: int, validation: float) -> None:
        for _ in range(2):
            found = trainer.evaluate("validation", trainer.config.train.runtime.eval_size)
            assert found.trained.metrics[found.metric] == validation
            self.scores.append(found.trained.metrics["loss"])


def shard(folder: Path, group: Group) -> dict[str, Any]:
    """Train with shards: AdamW, and Muon with everything around it. Return the losses, of training and validation."""
    found = {}
    for name, config in SHARDED.items():
        path, callback = folder / f"shard {name}", Evaluating()
        config = replace(config, train=config.train.override(shard=group.size > 1))
        assert Trainer(config, path, quiet=True, group=group, callbacks=[callback]).fit().finished
        found[name] = [*losses(path), *callback.scores] if group.is_main else []
    return found


SHARDED = {
    "AdamW": tiny(train={"accumulation": 4, "ema_decay": 0.9, "spike_factor": 1.05}),
    "Muon": tiny(
        train={**MUON, "spike_factor": 2.0, "loop_schedule": "random", "loop_choices": (1, 3), "supervision": "mean"}
    ),
}
PARTS: dict[str, Callable[[Path, Group], dict[str, Any]]] = {
    "cases": train_cases, "stop": stop_jointly, "take over": take_over, "shard": shard, "move": move,
}  # fmt: skip


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with joined("cpu") as group:
        found = {name: part(folder, group) for name, part in PARTS.items()}
        if group.is_main:
            (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
