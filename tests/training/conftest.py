"""Runs small enough to train in a fraction of a second."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from looped.config import ModelConfig, RunConfig, TrainConfig
from looped.tasks import EditDistance

TASK = EditDistance(length=4, alphabet=3, max_letters=3)
MODEL = ModelConfig(block="modulated", dim=16, num_heads=2, num_loops=3, injection="add", positions="learned")
TRAIN = TrainConfig().override(
    num_steps=4, batch_size=8, learning_rate=1e-2, warmup_steps=1, device="cpu", num_threads=1, eval_size=20,
    log_every=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def tiny(*, model: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **rest: Any) -> RunConfig:
    """A tiny run with some fields changed."""
    config = RunConfig(TASK, replace(MODEL, **(model or {})), TRAIN.override(**(train or {})))
    return replace(config, **rest)


def damage(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
