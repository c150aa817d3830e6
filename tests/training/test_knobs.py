"""No dead knob: every value of every enumeration trains, resumes bitwise, and changes the outcome."""

from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from looped.config import ModelConfig, RunConfig, TrainConfig
from looped.tasks import TASKS
from looped.training.trainer import Trainer
from tests.training.conftest import tiny

# A value that stands for another one: it must give the very same outcome, and all others a different one.
ALIASES = {("conditioning", "auto"): "timestep", ("attention", "task"): "full", ("tie_embeddings", "task"): "no"}

# What else a value needs to be allowed, or to matter.
COMPANIONS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("block", "standard"): {"model": {"num_loops": 1}},
    ("loop_schedule", "growing"): {"train": {"loop_choices": (1, 3)}},
    ("loop_schedule", "random"): {"train": {"loop_choices": (1, 2, 3)}},
    ("supervision", "halting"): {"model": {"halting_gate": True}},
    ("size_schedule", "growing"): {"train": {"size_choices": (0.5, 1.0)}},
    ("size_schedule", "random"): {"train": {"size_choices": (0.5, 0.75, 1.0)}},
}


# Needs a wide model and a GPU; tests/kernels/test_float8.py covers it.
ELSEWHERE = ("float8",)


def enumerations(config: type) -> dict[str, tuple[str, ...]]:
    hints = get_type_hints(config)
    volatile = {each.name for each in fields(config) if each.metadata.get("volatile")}
    return {
        name: tuple(value for value in get_args(hint) if value not in ELSEWHERE)
        for name, hint in hints.items()
        if get_origin(hint) is Literal and name not in volatile
    }


KNOBS = [("model", name, values) for name, values in enumerations(ModelConfig).items()] + [
    ("train", name, values) for name, values in enumerations(TrainConfig).items()
]


def with_value(part: str, name: str, value: str) -> RunConfig:
    changes: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
    for which, more in COMPANIONS.get((name, value), {}).items():
        changes[which].update(more)
    changes[part][name] = value
    config = tiny(**changes)
    if name == "conditioning":
        # A free table has no rows beyond the trained loops.
        config = replace(config, model=replace(config.model, extrapolation="clamp"))
    if name == "positions":
        # The only task whose positions have coordinates.
        config = replace(config, task=TASKS["sudoku"](side=4))
    if name == "tie_embeddings":
        # One whose answers are tokens of its inputs.
        config = replace(config, task=TASKS["countdown"](count=3, max_input=10, max_target=30))
    return config


def outcome(config: RunConfig, folder) -> torch.Tensor:
    """What the trained model says at its own loops and at twice as many (where policies for those matter)."""
    trainer = Trainer(config, folder, quiet=True)
    assert trainer.fit().finished
    inputs = torch.from_numpy(config.task.sample(0, "test", range(4)).inputs)
    beyond = 1 if config.model.block == "standard" else 2
    trainer.model.eval()
    with torch.no_grad():
        return torch.cat(
            [trainer.model(inputs, num_loops=config.model.num_loops * times).float() for times in (1, beyond)]
        )


def stop_after_every_step(config: RunConfig) -> RunConfig:
    return replace(config, train=config.train.override(max_minutes=1e-9))


@pytest.mark.parametrize(("part", "name", "values"), KNOBS, ids=[name for _, name, _ in KNOBS])
def test_every_choice_trains_resumes_bitwise_and_has_an_effect(part, name, values, tmp_path):
    outcomes: dict[str, torch.Tensor] = {}
    for value in values:
        config = with_value(part, name, value)
        outcomes[value] = outcome(config, tmp_path / value)
        stopping = stop_after_every_step(config)
        stops = 0
        while not Trainer(stopping, tmp_path / f"{value}-stopped", quiet=True).fit().finished:
            stops += 1
        assert stops == config.train.num_steps - 1
        resumed = outcome(config, tmp_path / f"{value}-stopped")
        assert torch.equal(outcomes[value], resumed), f"{name}={value} does not resume bitwise"
    for value in values:
        for other in values:
            alias = ALIASES.get((name, value)) == other or ALIASES.get((name, other)) == value or value == other
            same = outcomes[value].shape == outcomes[other].shape and torch.equal(outcomes[value], outcomes[other])
            assert same == alias, f"{name}: {value} and {other} {'agree' if same else 'differ'}"


NUMBERS = [
    ("train", {"accumulation": 2}, "same"),
    ("train", {"pieces": 4}, "same"),
    ("train", {"num_examples": 5}, "other"),
    ("train", {"weight_decay": 0.5}, "other"),
    ("train", {"beta1": 0.5}, "other"),
    ("train", {"beta2": 0.5}, "other"),
    ("train", {"clip_norm": 0.01}, "other"),
    ("train", {"clip_norm": None}, "other"),
    ("train", {"final_fraction": 0.5}, "other"),
    ("train", {"ema_decay": 0.9}, "same"),
    ("train", {"supervision": "mean", "supervised_loops": 2}, "other"),
    ("train", {"backprop_loops": 1}, "other"),
    ("train", {"num_workers": 3}, "same"),
    ("model", {"ff_dim": 24}, "other"),
    ("model", {"num_layers": 2}, "other"),
]


@pytest.mark.parametrize(("part", "change", "expected"), NUMBERS, ids=[str(change) for _, change, _ in NUMBERS])
def test_numeric_settings_have_their_stated_effect(part, change, expected, tmp_path):
    """Cutting a batch, keeping an average and adding workers leave the weights alone; the rest changes them."""
    # Clipping must bite for its norm to matter.
    start = {"train": {"clip_norm": 0.02}}
    plain = outcome(tiny(**start), tmp_path / "plain")
    start.setdefault(part, {})
    changed = outcome(tiny(**{**start, part: {**start[part], **change}}), tmp_path / "changed")
    same = torch.allclose(plain, changed, atol=2e-5)
    assert same == (expected == "same")


def test_muon_settings_have_an_effect(tmp_path):
    start = {"optimizer": "muon"}
    plain = outcome(tiny(train=start), tmp_path / "plain")
    for number, change in enumerate(
        [{"muon_learning_rate": 0.1}, {"muon_momentum": 0.5}, {"muon_weight_decay": 0.9}, {"schedule": "cosine"}]
    ):
        assert not torch.allclose(plain, outcome(tiny(train={**start, **change}), tmp_path / str(number)), atol=1e-6)
