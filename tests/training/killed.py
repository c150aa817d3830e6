"""A rank that is killed once per restart, in a place that the restart's number chooses.

`torchrun --max-restarts N -m tests.training.killed FOLDER N` ends after N kills with a finished run.
`python -m tests.training.killed FOLDER SIZE N` does the same with SIZE ranks that are forked, so that a restart imports
nothing.
"""

import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from looped.config import RunConfig
from looped.training import checkpoint, step
from looped.training.distributed import Group, joined
from looped.training.trainer import Trainer
from tests.training.conftest import tiny
from tests.training.ranks import common_fingerprint

PLACES = {"step": 5, "save": 2, "gather": 15, "sum": 9}
"""where a rank dies, and in which call: after a checkpoint or two, early enough for many restarts"""
CONFIG: RunConfig = tiny(
    train={
        "num_steps": 60, "pieces": 4, "checkpoint_every": 2, "optimizer": "muon", "ema_decay": 0.9, "spike_factor": 2.0
    }
)  # fmt: skip


def kill_in(place: str, rank: int) -> None:
    """Replace a function so that one of its calls kills this process, if it has that rank."""
    target, name = {
        "step": (step.Stepper, "_backward"),
        "save": (checkpoint, "save_sealed"),  # the tensors are written, what belongs together is not
        "gather": (step.Group, "all_gather"),
        "sum": (step.Group, "sum"),
    }[place]
    original, left = getattr(target, name), [PLACES[place]]

    def deadly(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(target, name, deadly)


def train_to_the_end(folder: Path, group: Group) -> str:
    trainer = Trainer(CONFIG, folder, quiet=True, group=group)
    assert trainer.fit().finished
    return common_fingerprint(trainer)


def main(folder: Path, num_kills: int) -> None:
    torch.set_num_threads(1)
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if restart < num_kills:
        place = list(PLACES)[restart % len(PLACES)]
        rank = 0 if place == "save" else restart % int(os.environ["WORLD_SIZE"])  # rank 0 alone saves
        kill_in(place, rank)
    with joined("cpu") as group:
        found = train_to_the_end(folder / "run", group)
        if group.is_main:
            (folder / "found.txt").write_text(f"{restart} {found}")


def launch(folder: Path, size: int, num_kills: int) -> None:
    """Train with torchrun's agent, which restarts all ranks when one is killed."""
    settings = LaunchConfig(
        1, 1, size, max_restarts=num_kills, start_method="fork", run_id=uuid.uuid4().hex,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0",
    )  # fmt: skip
    elastic_launch(settings, main)(folder, num_kills)


if __name__ == "__main__":
    (main if "RANK" in os.environ else launch)(Path(sys.argv[1]), *map(int, sys.argv[2:]))
