"""Answers of PyTorch in full precision, which the browser's engine must give."""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from looped.config import RunConfig
from looped.models.model import LoopModel, build_model
from looped.models.pretrained import read_shipped
from looped.utils.shipped import list_models

SHIPPED = [name for name in list_models() if not name.startswith("language/")]


def shipped_model(name: str, precision: Literal["float32", "float64"] = "float32") -> tuple[RunConfig, LoopModel]:
    """Return a shipped model that multiplies in this precision, whatever it was trained in."""
    card, weights = read_shipped(name)
    model = build_model(replace(card.config.model, precision=precision), card.config.task.spec)
    model.load_state_dict({key: value.to(model.stack.dtype) for key, value in weights.items()})
    return card.config, model.eval()


@torch.no_grad()
def scores_at(model: LoopModel, inputs: np.ndarray, loops: list[int]) -> np.ndarray:
    """Return (example, loop, position, output) scores after each of `loops`."""
    states = enumerate(model.iterate(torch.as_tensor(inputs), max(loops)), start=1)
    read = [model.read_out(state) for loop, state in states if loop in loops]
    return torch.stack(read, dim=1).numpy()
