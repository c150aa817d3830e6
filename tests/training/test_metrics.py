"""What an evaluation says, against the same numbers computed another way."""

import json
import math

import numpy as np
import pytest
import torch

from looped.config import ModelConfig
from looped.models import build_model
from looped.tasks import EditDistance
from looped.tasks.decision_tree import DecisionTree
from looped.tasks.language.task import Language
from looped.training import train
from looped.training.evaluation import EVALUATION_SEED, evaluate
from looped.training.trainer import Diverged, Trainer
from tests.refusal import refused

from .conftest import tiny


def test_evaluate_computes_accuracy_and_loss_of_the_examples():
    task = EditDistance(length=4, alphabet=3, max_letters=3)
    model = build_model(ModelConfig(block="looped", dim=16, num_heads=2, num_loops=2), task.spec, seed=3)
    report = evaluate(model, task, "test", 30, [1, 2, 5])
    batch = task.sample(EVALUATION_SEED, "test", range(30))
    for row in report.rows:
        scores = model(torch.from_numpy(batch.inputs), num_loops=row.loops)[:, -1].detach().double()
        answers = batch.targets[:, -1]
        right = [int(scores[i].argmax()) == answers[i] for i in range(30)]
        surprise = [-math.log(scores[i].softmax(0)[answers[i]]) for i in range(30)]
        assert row.metrics["accuracy"] == pytest.approx(np.mean(right))
        assert row.metrics["loss"] == pytest.approx(np.mean(surprise), rel=1e-5)
    counts = np.unique(batch.targets[:, -1], return_counts=True)[1]
    assert report.baseline == counts.max() / 30


def test_evaluate_with_rescaled_times_runs_each_loop_count_alone():
    task = EditDistance(length=4, alphabet=3, max_letters=3)
    config = ModelConfig(block="modulated", dim=16, num_heads=2, num_loops=2, extrapolation="rescale", injection="add")
    model = build_model(config, task.spec)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    together = {row.loops: row.metrics["loss"] for row in evaluate(model, task, "test", 20, [1, 2, 3, 4, 8]).rows}
    for loops, loss in together.items():
        (alone,) = evaluate(model, task, "test", 20, [loops]).rows
        assert alone.metrics["loss"] == pytest.approx(loss, rel=1e-6)


def test_evaluate_counts_every_token_of_a_text_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    words = np.random.default_rng(0).choice(["loop", "time", "step", "gate", "state", "norm"], size=900)
    (tmp_path / "text.txt").write_text("\n".join(" ".join(words[i : i + 9]) for i in range(0, 900, 9)))
    task = Language(text=str(tmp_path / "text.txt"), seq_len=12, stride=5)
    model = build_model(ModelConfig(block="looped", dim=8, num_heads=2, num_loops=2), task.spec, seed=1)
    report = evaluate(model, task, "test")
    (row,) = report.rows
    # The same windows by hand: each starts 5 tokens later and counts what no earlier one has counted.
    text = task.tokens("test").astype(np.int64)
    total, counted, start = 0.0, 1, 0
    while counted < len(text):
        start = min(start, len(text) - 13)
        window = torch.from_numpy(text[start : start + 13])
        logs = model(window[None, :-1])[0].detach().double().log_softmax(dim=-1)
        for place in range(counted, start + 13):
            total -= logs[place - start - 1, text[place]].item()
        counted = start + 13
        start += 5
    assert row.metrics["loss"] == pytest.approx(total / (len(text) - 1), rel=1e-6)
    assert row.metrics["perplexity"] == pytest.approx(math.exp(total / (len(text) - 1)), rel=1e-6)
    assert row.low < row.metrics["perplexity"] < row.high
    frequent = np.unique(text[1:], return_counts=True)[1] / (len(text) - 1)
    assert report.baseline == pytest.approx(np.prod(frequent**-frequent))


def test_evaluate_of_overflowing_outputs_is_nan(tmp_path):
    config = tiny()
    trainer = Trainer(config, tmp_path / "run", quiet=True)
    with torch.no_grad():
        trainer.model.embedding.fill_(float("inf"))
    (row,) = trainer.evaluate("test", 20).rows
    numbers = [row.metrics[name] for name in ("accuracy", "loss", "perplexity")]
    assert all(map(math.isnan, (*numbers, row.low, row.high)))
    with refused("validation", error=Diverged):
        trainer._validate(lambda: False)


def test_evaluate_covers_a_text_with_windows_of_any_size(tmp_path, monkeypatch):
    """Also where a run was trained on shorter windows than its task has room for: with more of them."""
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(" ".join(f"loop {number}" for number in range(900)))
    task = Language(text=str(tmp_path / "text.txt"), seq_len=24)
    model = build_model(ModelConfig(block="looped", dim=8, num_heads=2, num_loops=2), task.spec, seed=1)
    text = torch.from_numpy(task.tokens("test").astype(np.int64))
    total, windows = 0.0, range(0, len(text) - 1, 6)
    for start in windows:  # each predicts the six tokens after its first one; the last begins where six are left
        first = min(start, len(text) - 7)
        logs = model(text[None, first : first + 6])[0].detach().double().log_softmax(dim=-1)
        total -= sum(logs[place - first - 1, text[place]].item() for place in range(start + 1, first + 7))
    report = evaluate(model, task, "test", example_size=6)
    assert report.size == len(windows)
    assert report.rows[0].metrics["loss"] == pytest.approx(total / (len(text) - 1), rel=1e-6)
    assert evaluate(model, task, "test", 10**6, example_size=6).rows == report.rows


def test_evaluate_of_trees_has_an_error_per_example_seen():
    task = DecisionTree(points=6, dims=3, depth=2)
    model = build_model(ModelConfig(dim=8, num_heads=2, num_loops=2), task.spec, seed=1)
    (row,) = evaluate(model, task, "test", 40).rows
    batch = task.sample(EVALUATION_SEED, "test", range(40))
    came = model(torch.from_numpy(batch.inputs)).detach().numpy()
    for k in range(6):
        errors = [(came[i, 2 * k, 0] - batch.targets[i, 2 * k, 0]) ** 2 for i in range(40)]
        assert row.curve[k] == pytest.approx(np.mean(errors), rel=1e-4)
    assert row.metrics["squared_error"] == pytest.approx(row.curve[-1])


def test_train_on_values_logs_their_squared_error(tmp_path):
    """With the loss of the last loop alone, that is the loss."""
    config = tiny(task=DecisionTree(points=3, dims=2, depth=1), model={"positions": "rotary"})
    train(config, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 4
    for line in steps:
        assert "accuracy" not in line
        assert line["squared_error"] == pytest.approx(line["loss"], rel=1e-6)
