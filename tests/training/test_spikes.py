"""Steps along gradients that are far longer than usual are passed over, and nothing else is changed by that."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from looped.models import build_model
from looped.training.batches import batch_at
from looped.training.loss import to_device
from looped.training.optim import SpikeGuard
from looped.training.step import Stepper
from looped.training.trainer import Diverged, Trainer
from tests.refusal import refused
from tests.training.conftest import tiny

CPU = torch.device("cpu")


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=60), st.floats(1.5, 20))
def test_spike_guard_detects_a_norm_above_the_factor_times_the_mean(norms, factor):
    guard = SpikeGuard(factor, CPU)
    usual = np.float64(norms[0])
    for number, norm in enumerate(norms):
        limit = factor * usual
        taken = bool(guard.accepts(torch.tensor(norm)))
        if number > 0 and abs(norm - limit) > 1e-3 * limit:
            assert taken == (norm < limit)
        usual = 0.98 * usual + 0.02 * min(norm, limit)
        assert float(guard.usual) == pytest.approx(usual, rel=1e-3)


def test_spike_guard_accepts_a_lasting_change():
    guard = SpikeGuard(4.0, CPU)
    guard.accepts(torch.tensor(1.0))
    taken = [bool(guard.accepts(torch.tensor(1000.0))) for _ in range(200)]
    assert not taken[0]
    assert all(taken[150:])


def weights_of(stepper: Stepper) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in stepper.model.parameters()])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("gradient", ["long", "nan", "infinite"])
def test_spike_guard_skips_the_step_and_not_the_next(optimizer, gradient, monkeypatch):
    config = tiny(train={"spike_factor": 3.0, "optimizer": optimizer, "weight_decay": 0.1, "muon_weight_decay": 0.1})
    stepper = Stepper(build_model(config.model, config.task.spec), config.train, CPU)
    plain = stepper.gradients

    def spiked(*arguments):
        seen = plain(*arguments)
        for parameter in stepper.model.parameters():
            if gradient == "long":
                parameter.grad.mul_(1e4)
            else:
                parameter.grad.flatten()[0] = float(gradient[:3])
        return seen

    def step(number: int) -> tuple[bool, bool]:
        before = weights_of(stepper)
        seen = stepper(number, to_device(batch_at(number, config), CPU), 3, 0.5)
        return bool(seen[3]), torch.equal(before, weights_of(stepper))

    assert [step(number) for number in range(3)] == [(False, False)] * 3
    monkeypatch.setattr(stepper, "gradients", spiked)
    assert step(3) == (True, True)
    monkeypatch.undo()
    assert step(4) == (False, False)
    assert torch.isfinite(weights_of(stepper)).all()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_spike_guard_resumes_bitwise_and_logs_skipped_steps(tmp_path, precision):
    config = tiny(train={"spike_factor": 1.1, "num_steps": 12, "learning_rate": 1.0}, model={"precision": precision})
    whole = Trainer(config, tmp_path / "whole", quiet=True)
    whole.fit()
    stopping = replace(config, train=config.train.override(max_minutes=1e-9))
    while not Trainer(stopping, tmp_path / "stopped", quiet=True).fit().finished:
        pass
    resumed = Trainer(config, tmp_path / "stopped", quiet=True)
    resumed.resume()
    assert torch.equal(weights_of(whole.stepper), weights_of(resumed.stepper))
    assert torch.equal(whole.stepper.guard.usual, resumed.stepper.guard.usual)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert {line["skipped"] for line in lines if "loss" in line} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("every", "skipped"),
    [
        ({"log_every": 4}, {4: 0.0, 8: 0.25, 12: 0.0}),
        ({"log_every": 1}, {step: float(step == 7) for step in range(1, 13)}),
        ({"log_every": 6, "checkpoint_every": 7}, {6: 0.0, 7: 1.0, 12: 0.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("guarded", [True, False])
def test_non_finite_gradient_ends_the_run_only_if_its_step_was_taken(guarded, every, skipped, tmp_path, monkeypatch):
    config = tiny(train={"spike_factor": 3.0 if guarded else None, "num_steps": 12, **every})
    trainer = Trainer(config, tmp_path / "run", quiet=True)
    plain, calls = trainer.stepper.gradients, []

    def spiked(*arguments):
        seen = plain(*arguments)
        calls.append(len(calls))
        if calls[-1] == 6:
            next(trainer.model.parameters()).grad.flatten()[0] = float("inf")
        return seen

    monkeypatch.setattr(trainer.stepper, "gradients", spiked)
    if not guarded:
        with refused("loss" if every == {"log_every": 4} else "grad_norm", error=Diverged):
            trainer.fit()
        return
    assert trainer.fit().finished
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    assert {line["step"]: line["skipped"] for line in lines} == skipped
    # Where no step was made there is no gradient to tell; elsewhere it is a number.
    assert all(math.isfinite(line["grad_norm"]) if line["skipped"] < 1 else "grad_norm" not in line for line in lines)
