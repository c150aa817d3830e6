"""The learned halting gate: its loss, its exit rule, and what a run with it keeps."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from looped.config import ModelConfig
from looped.inference.early_exit import ExitRule, answer_early, read_early
from looped.inference.generate import generate_tokens
from looped.models import build_model
from looped.models.fused import why_not_fused
from looped.tasks import Spec
from looped.training.loss import TensorBatch, objective
from looped.training.trainer import Trainer
from looped.utils.errors import InputError
from tests.cli.command import TRAIN, answer, complaint
from tests.models.cases import SHARED, TOKENS, examples, small
from tests.training.conftest import TASK, tiny

MODEL = {"model": {"halting_gate": True}}
GATED = {"model": {"halting_gate": True}, "train": {"supervision": "halting"}}


def gated_model(spec: Spec, **knobs):
    """Return a model in float64 whose gate stops different positions after different loops."""
    knobs = {"block": "looped", "num_loops": 4, "precision": "float64", "halting_gate": True} | knobs
    model = build_model(small(**knobs), spec, 1)
    generator = torch.Generator().manual_seed(3)
    assert model.w_halt is not None
    with torch.no_grad():
        model.w_halt.copy_(torch.randn(model.w_halt.shape, generator=generator))
    return model


def chances_by_definition(model, inputs, num_loops):
    """Return p[loop][example][position] of stopping in a loop, multiplied out; the last loop has the rest."""
    stops = [model.halting_logits(state).sigmoid().detach().numpy() for state in model.iterate(inputs, num_loops)]
    left, chances = np.ones_like(stops[0]), []
    for stop in stops[:-1]:
        chances.append(left * stop)
        left = left * (1 - stop)
    return np.stack([*chances, left])


@pytest.mark.parametrize("halting_loops", [None, 3.0])
def test_loss_is_the_expected_loss_plus_the_divergence_from_the_geometric_distribution(halting_loops):
    model, inputs = gated_model(TOKENS), examples(TOKENS, batch=3)
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(TOKENS.output_size, inputs.shape, generator=generator)
    mask = torch.rand(inputs.shape, generator=generator) < 0.5
    train = tiny(train={"supervision": "halting", "halting_cost": 0.3, "halting_loops": halting_loops}, **MODEL).train
    found = objective(model, TensorBatch(inputs, targets, mask), 5, train).loss

    chances = chances_by_definition(model, inputs, 5)
    stop = 1 / (halting_loops or 2.5)
    prior = [stop, (1 - stop) * stop, (1 - stop) ** 2 * stop, (1 - stop) ** 3 * stop, (1 - stop) ** 4]
    total = 0.0
    for loop, state in enumerate(model.iterate(inputs, 5)):
        shares = model.read_out(state).softmax(dim=-1).detach().numpy()
        for row, place in mask.nonzero().tolist():
            chance = chances[loop, row, place]
            loss = -np.log(shares[row, place, int(targets[row, place])])
            total += chance * (loss + 0.3 * np.log(chance / prior[loop]))
    assert float(found.detach()) == pytest.approx(total / int(mask.sum()), rel=1e-5)


def test_new_gate_stops_in_every_loop_equally_likely():
    model = build_model(small(block="looped", num_loops=4, halting_gate=True), TOKENS)
    for state in model.iterate(examples(TOKENS), 2):
        torch.testing.assert_close(model.halting_logits(state).sigmoid(), torch.full(state.shape[:2], 0.25).double())


def loops_by_definition(chances, counted, limit):
    """Return for each example the first loop by which every counted position has stopped with that probability."""
    done = np.cumsum(chances, axis=0)
    return [
        next(t + 1 for t in range(len(done)) if t == len(done) - 1 or (done[t, row, each] >= limit).all())
        for row, each in enumerate(counted)
    ]


@pytest.mark.parametrize("limit", [0.3, 0.9])
def test_rule_stops_an_example_when_its_gates_have_stopped(limit):
    model, inputs = gated_model(TOKENS), examples(TOKENS, batch=20)
    counted = np.random.default_rng(5).random(inputs.shape) < 0.4
    counted[:, 0] = True
    found = answer_early(model, inputs, torch.from_numpy(counted), ExitRule("gate", limit), 6)
    expected = loops_by_definition(chances_by_definition(model, inputs, 6), counted, limit)
    assert found.loops.tolist() == expected
    assert len(set(expected)) > 1


def test_rule_stops_each_token_of_a_text():
    model, tokens = gated_model(SHARED, positions="rotary"), examples(SHARED, batch=4)
    found = read_early(model, tokens, ExitRule("gate", 0.6), 6, skipped="computed")
    chances = chances_by_definition(model, tokens, 6)
    for row, places in enumerate(found.loops.tolist()):
        one_by_one = [np.arange(len(places)) == place for place in range(len(places))]
        assert places == [loops_by_definition(chances[:, [row]], each[None], 0.6)[0] for each in one_by_one]
    assert len(set(found.loops.flatten().tolist())) > 2


def trained(config, folder, **options):
    trainer = Trainer(config, folder, quiet=True, **options)
    assert trainer.fit().finished
    return trainer.model


def test_gate_changes_the_outcome_learns_and_resumes_bitwise(tmp_path):
    config = tiny(**GATED)
    whole = trained(config, tmp_path / "whole")
    assert any(values.abs().sum() > 0 for name, values in whole.named_parameters() if name == "w_halt")
    stopping = replace(config, train=config.train.override(max_minutes=1e-9))
    stops = 0
    while not Trainer(stopping, tmp_path / "stopped", quiet=True).fit().finished:
        stops += 1
    assert stops == config.train.num_steps - 1
    resumed = trained(config, tmp_path / "stopped")
    for name, value in whole.named_parameters():
        assert torch.equal(value, dict(resumed.named_parameters())[name]), name
    assert not torch.allclose(whole.embedding, trained(tiny(), tmp_path / "plain").embedding, atol=1e-4)


@pytest.mark.parametrize("change", [{"halting_cost": 1.0}, {"halting_cost": 1.0, "halting_loops": 2.9}])
def test_cost_and_mean_change_the_outcome(change, tmp_path):
    usual, other = tiny(**GATED), tiny(**{**GATED, "train": {**GATED["train"], **change}})
    first, second = (dict(trained(each, tmp_path / each.key).named_parameters())["b_halt"] for each in (usual, other))
    assert not torch.allclose(first, second, atol=1e-5)


def test_gate_needs_no_fallback_from_the_fused_kernels(monkeypatch):
    """It reads the states that the kernels return, and is no part of the loop."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # otherwise they ask for a GPU
    assert why_not_fused(build_model(tiny(**GATED).model, TASK.spec).stack) is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": {"halting_gate": True}}, "supervision"),
        ({"train": {"supervision": "halting"}}, "supervision"),
        ({**GATED, "train": {"supervision": "halting", "loss": "mine"}}, "loss"),
        ({**GATED, "train": {"supervision": "halting", "supervised_loops": 2}}, "supervised_loops"),
        ({**GATED, "train": {"supervision": "halting", "halting_loops": 1.0}}, "halting_loops"),
        ({**GATED, "train": {"supervision": "halting", "halting_cost": -1.0}}, "halting_cost"),
        ({**GATED, "train": {"supervision": "halting", "halting_cost": float("nan")}}, "halting_cost"),
        ({**GATED, "model": {"halting_gate": True, "block": "standard", "num_loops": 1}}, "halting_gate"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_do_not_fit_raise(change, field):
    with pytest.raises(InputError) as caught:
        tiny(**change)
    assert caught.value.field == field


def test_gate_rule_without_a_gate_raises():
    model, inputs = build_model(small(), TOKENS), examples(TOKENS)
    with pytest.raises(InputError) as caught:
        answer_early(model, inputs, torch.ones_like(inputs, dtype=torch.bool), ExitRule("gate", 0.5))
    assert caught.value.field == "exit"
    with pytest.raises(InputError):
        ExitRule("gate", 1.0)


def test_command_line_trains_evaluates_and_solves_with_the_gate(tmp_path, capsys):
    run = str(tmp_path / "run")
    answer(capsys, *TRAIN, "--model.halting-gate", "--train.supervision", "halting", "--out", run)
    shown = json.loads(answer(capsys, "eval", run, "--exit", "gate:0.5", "gate:0.99", "--size", "20", "--json"))
    first, second = (row["mean_loops"] for row in shown["rows"])
    assert 1 <= first < second <= 3
    frames = json.loads(answer(capsys, "solve", run, "--exit", "gate:0.0001", "--json"))["frames"]
    assert [frame["loop"] for frame in frames] == [1]
    complaint(capsys, "solve", run, "--exit", "gate:2")
    complaint(capsys, "solve", "lcs/words-looped-r20", "--exit", "gate:0.5")


def test_generated_tokens_stop_by_the_gate():
    config = ModelConfig(dim=16, num_heads=2, num_loops=4, positions="rotary", halting_gate=True)
    model = build_model(config, SHARED)
    assert model.b_halt is not None
    with torch.no_grad():
        model.b_halt.fill_(9.0)
    steps = list(generate_tokens(model, [[1, 2]], max_tokens=3, exit_rule=ExitRule("gate", 0.9)))
    assert [step.loops for step in steps] == [[4], [1], [1]]
