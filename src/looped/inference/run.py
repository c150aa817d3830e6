"""Trained runs in use: load one, and watch it answer loop by loop."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from looped.config import RunConfig
from looped.models import LoopModel, build_model
from looped.models.engines import set_engine
from looped.models.model import load_weights
from looped.tasks import Batch, Task
from looped.training.evaluation import EVALUATION_SEED
from looped.training.run_folder import RunFolder
from looped.training.schedules import trained_size
from looped.utils.errors import require


@dataclass(frozen=True)
class Frame:
    """What the model would answer after one loop."""

    loop: int
    """loops done, from 1"""
    outputs: np.ndarray
    """(seq,) classes or (seq, out) values"""
    answer: str
    confidence: float | None
    """probability of the answer's classes, averaged over the positions that count (None for values, which have none)"""
    change: float
    """how far the state moved in this loop, relative to its size"""
    probabilities: np.ndarray
    """(seq,) the probability of each position's class (1 for values, and where what was asked stands)"""

    @property
    def how_sure(self) -> str:
        """The confidence in words, where there is one."""
        return "" if self.confidence is None else f"confidence {self.confidence:.3f}"


@dataclass(frozen=True)
class Run:
    """A trained run: its config, its task and its model, ready for questions."""

    config: RunConfig = field(repr=False)
    model: LoopModel = field(repr=False)
    step: int
    """training steps behind the weights"""
    name: str = ""
    """its folder, or the name of a shipped model"""
    kept: Batch | None = field(default=None, repr=False)
    """the first test examples, where they came with the weights"""

    @property
    def task(self) -> Task:
        return self.config.task

    def test_example(self, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of a test example by its number."""
        if self.kept is not None and 0 <= index < len(self.kept.inputs):
            return self.kept.inputs[index], self.kept.targets[index]
        drawn = self.task.sample(EVALUATION_SEED, "test", [index], trained_size(self.config))
        return drawn.inputs[0], drawn.targets[0]

    def solve(self, question: str | np.ndarray, num_loops: int | None = None) -> Iterator[Frame]:
        """What it would answer after every loop to a question as a person types it, or to an example's inputs."""
        inputs = self.task.parse(question) if isinstance(question, str) else question
        return solve(self.model, self.task, inputs, num_loops)


def load_run(path: str | Path, device: str | torch.device = "cpu") -> Run:
    """The model of a run's newest checkpoint."""
    folder = RunFolder(path)
    config = folder.read_config()
    model = build_model(config.model, config.task.spec)
    checkpoint = folder.require_checkpoint()
    load_weights(model, checkpoint.weights, str(path))
    return Run(config, on_device(model, device), checkpoint.step, str(path))


def on_device(model: LoopModel, device: str | torch.device) -> LoopModel:
    """A model ready to answer there, by the fastest engine for it."""
    model = model.to(device).eval()
    set_engine(model.stack)
    return model


def with_changes(states: Iterable[Tensor]) -> Iterator[tuple[Tensor, float]]:
    """Each loop's state, and how far it moved in the loop (the first: from nothing), relative to its size."""
    before = None
    for state in states:
        moved = state if before is None else state - before
        yield state, float(moved.norm() / state.norm().clamp(min=1e-30))
        before = state


@torch.no_grad()  # as a decorator, it holds while the generator works and not while its caller does
def solve(model: LoopModel, task: Task, inputs: np.ndarray, num_loops: int | None = None) -> Iterator[Frame]:
    """One frame per loop for one example's inputs, as `task.parse` or `task.sample` gives them."""
    require(inputs.ndim == (1 if task.spec.kind == "tokens" else 2), "solve takes the inputs of one example")
    counted = task.counted(inputs[None])[0]
    batch = torch.from_numpy(inputs)[None].to(next(model.parameters()).device)
    for t, (state, change) in enumerate(with_changes(model.iterate(batch, num_loops))):
        scores = model.read_out(state)[0]
        finite = bool(scores[torch.from_numpy(counted).to(scores.device)].isfinite().all())
        require(finite, f"expected a network with finite outputs, got one that overflows in loop {t + 1}")
        if task.spec.kind == "tokens":
            likeliest, classes = (each.cpu().numpy() for each in scores.float().softmax(dim=-1).max(dim=-1))
            confidence = float(likeliest[counted].mean()) if counted.any() else 1.0
            # Where no answer is read the model says nothing of worth: what was asked stands there.
            outputs, probabilities = np.where(counted, classes, inputs), np.where(counted, likeliest, 1.0)
        else:
            outputs, confidence, probabilities = scores.cpu().numpy(), None, np.ones(len(inputs))
        yield Frame(t + 1, outputs, task.answer(outputs), confidence, change, probabilities)
