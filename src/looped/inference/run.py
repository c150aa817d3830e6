"""Use trained runs: load one and watch its answer after every loop."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from looped.config import RunConfig
from looped.inference.early_exit import ExitRule, halting_at, require_supported
from looped.inference.generate import Continuation, Sampling, continue_texts
from looped.models import LoopModel, build_model
from looped.models.engines import set_engine
from looped.models.model import load_weights
from looped.tasks import Batch, Split, Task
from looped.tasks.language import Language
from looped.training.evaluation import EVALUATION_SEED, Evaluation, evaluate
from looped.training.run_folder import RunFolder
from looped.training.schedules import trained_size
from looped.utils.errors import require, require_field, require_type
from looped.utils.types import Precision


@dataclass(frozen=True)
class Frame:
    """The model's answer after one loop."""

    loop: int
    """number of loops done, from 1"""
    outputs: np.ndarray
    """(seq,) classes or (seq, out) values"""
    answer: str
    confidence: float | None
    """probability of the answered classes, averaged over the counted positions (None for regression)"""
    change: float
    """how far the state moved in this loop, relative to its size"""
    probabilities: np.ndarray
    """(seq,) probability of each position's class (1 for regression and at positions of the question)"""

    @property
    def how_sure(self) -> str:
        """Return the confidence in words, or nothing for regression."""
        return "" if self.confidence is None else f"confidence {self.confidence:.3f}"


@dataclass(frozen=True)
class Run:
    """A trained run with its config, task and model, ready for questions."""

    config: RunConfig = field(repr=False)
    model: LoopModel = field(repr=False)
    step: int
    """training steps behind the weights"""
    name: str = ""
    """the run's folder or the model's name"""
    stored_example: Batch | None = field(default=None, repr=False)
    """a test example that came with the weights"""

    @property
    def task(self) -> Task:
        """Return the task that the model was trained on."""
        return self.config.task

    def test_example(self, index: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of a test example (None: the stored one, or else number 0)."""
        if index is None and self.stored_example is not None:
            batch = self.stored_example
        else:
            batch = self.task.sample(EVALUATION_SEED, "test", [index or 0], trained_size(self.config))
        return batch.inputs[0], batch.targets[0]

    def with_precision(self, precision: Precision) -> "Run":
        """Return this run with its model computing in another precision. Hundreds of loops need float32."""
        config = replace(self.config, model=replace(self.config.model, precision=precision))
        model = build_model(config.model, self.task.spec)
        model.load_state_dict(self.model.state_dict())
        return replace(self, config=config, model=on_device(model, next(self.model.parameters()).device))

    def evaluate(
        self, loops: int | Sequence[int] | None = None, size: int | None = None, split: Split = "test"
    ) -> Evaluation:
        """Return metrics at each loop count (default: the trained number) on held-out examples, with intervals."""
        return evaluate(self.model, self.task, split, size, loops, example_size=trained_size(self.config))

    def answer(self, question: str | np.ndarray, num_loops: int | None = None) -> str:
        """Return the answer to one question after the last loop."""
        *_, frame = self.solve(question, num_loops)
        return frame.answer

    def generate(
        self,
        prompts: str | Sequence[str] = "",
        max_tokens: int = 100,
        num_loops: int | None = None,
        *,
        temperature: float = 0.8,
        top_p: float = 0.95,
        seed: int = 0,
        exit_rule: str | None = None,
    ) -> list[Continuation]:
        """Continue one or more texts with a language model and return a continuation for each.

        A temperature of 0 takes the likeliest token. The same seed gives the same text. `exit_rule`, such as
        `stable:3`, lets each token stop at its own loop.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        rule = None if exit_rule is None else ExitRule.parse(exit_rule)
        *_, texts = self.grow_texts(prompts, max_tokens, num_loops, Sampling(temperature, top_p, seed), rule)
        return texts

    def grow_texts(
        self,
        prompts: Sequence[str],
        max_tokens: int,
        num_loops: int | None,
        sampling: Sampling,
        exit_rule: ExitRule | None = None,
    ) -> Iterator[list[Continuation]]:
        """Yield the continuations of all prompts after every token."""
        task = self.task
        require(isinstance(task, Language), f"{self.name}: expected a model of language, got one of {task.name}")
        assert isinstance(task, Language)
        return continue_texts(
            self.model,
            task.tokenizer,
            prompts,
            max_tokens=max_tokens,
            num_loops=num_loops,
            sampling=sampling,
            exit_rule=exit_rule,
        )

    def solve(
        self, question: str | np.ndarray, num_loops: int | None = None, *, exit_rule: str | None = None
    ) -> Iterator[Frame]:
        """Yield the answer after every loop. A question is text as a person types it, or the inputs of an example.

        `exit_rule`, such as `stable:3`, may stop before the last loop.
        """
        is_known = isinstance(question, str | np.ndarray)
        require_field(is_known, "question", "text or the inputs of one example", type(question).__name__)
        inputs = self.task.parse(question) if isinstance(question, str) else question
        rule = None if exit_rule is None else ExitRule.parse(exit_rule)
        return solve(self.model, self.task, inputs, num_loops, rule)


def load_run(path: str | Path, device: str | torch.device = "cpu") -> Run:
    """Load the model of a run's newest checkpoint."""
    folder = RunFolder(path)
    config = folder.read_config()
    model = build_model(config.model, config.task.spec)
    checkpoint = folder.require_checkpoint()
    for name in folder.changed_code(config):
        print(f"looped: {name} has changed since {path} was trained", file=sys.stderr)
    load_weights(model, checkpoint.weights, str(path))
    return Run(config, on_device(model, device), checkpoint.step, str(path))


def on_device(model: LoopModel, device: str | torch.device) -> LoopModel:
    """Move a model to a device and give it the fastest engine there."""
    model = model.to(device).eval()
    set_engine(model.stack)
    return model


def with_changes(states: Iterable[Tensor]) -> Iterator[tuple[Tensor, float]]:
    """Yield each loop's state and how far it moved in the loop, relative to its size (the first: from zero)."""
    before = None
    for state in states:
        moved = state if before is None else state - before
        yield state, float(moved.norm() / state.norm().clamp(min=1e-30))
        before = state


def solve(
    model: LoopModel, task: Task, inputs: np.ndarray, num_loops: int | None = None, exit_rule: ExitRule | None = None
) -> Iterator[Frame]:
    """Yield one frame per loop for the inputs of one example, as `task.parse` or `task.sample` returns them.

    An exit rule may stop before the last loop.
    """
    require_type("model", model, LoopModel)
    require_type("inputs", inputs, np.ndarray)
    of_one = inputs.ndim == (1 if task.spec.kind == "tokens" else 2)
    require_field(of_one, "inputs", "those of one example", f"the shape {inputs.shape}")
    return _frames(model, task, inputs, num_loops, exit_rule)


@torch.no_grad()  # as a decorator it applies inside the generator only, not to its caller
def _frames(
    model: LoopModel, task: Task, inputs: np.ndarray, num_loops: int | None, exit_rule: ExitRule | None
) -> Iterator[Frame]:
    counted = task.counted(inputs[None])[0]
    batch = torch.from_numpy(inputs)[None].to(next(model.parameters()).device)
    is_done = _exit_test(model, counted, exit_rule)
    for t, (state, change) in enumerate(with_changes(model.iterate(batch, num_loops))):
        scores = model.read_out(state)[0]
        finite = bool(scores[torch.from_numpy(counted).to(scores.device)].isfinite().all())
        require(finite, f"model: expected finite outputs, got an overflow in loop {t + 1}")
        if task.spec.kind == "tokens":
            likeliest, classes = (each.cpu().numpy() for each in scores.float().softmax(dim=-1).max(dim=-1))
            confidence = float(likeliest[counted].mean()) if counted.any() else 1.0
            # Positions without an answer show the question.
            outputs, probabilities = np.where(counted, classes, inputs), np.where(counted, likeliest, 1.0)
        else:
            outputs, confidence, probabilities = scores.cpu().numpy(), None, np.ones(len(inputs))
        yield Frame(t + 1, outputs, task.answer(outputs), confidence, change, probabilities)
        if is_done(state, scores):
            return


def _exit_test(model: LoopModel, counted: np.ndarray, rule: ExitRule | None) -> Callable[[Tensor, Tensor], bool]:
    """Return a function of one example's state and scores after each loop that says whether the rule stops it."""
    if rule is None:
        return lambda state, scores: False
    require_supported(model, rule)
    watch, device = rule.watcher(), model.stack.device
    places = torch.from_numpy(counted).to(device)
    owners = torch.zeros(int(counted.sum()), dtype=torch.long, device=device)

    def is_done(state: Tensor, scores: Tensor) -> bool:
        return bool(watch(state, scores[places], owners, halting_at(model, state[0, places])))

    return is_done
