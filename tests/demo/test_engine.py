"""The browser's engine against PyTorch: same answers, same scores."""

import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

from looped.config import ModelConfig
from looped.models.model import build_model
from looped.tasks import TASKS
from looped.utils.shipped import shipped_path
from tests.demo.reference import SHIPPED, scores_at, shipped_model

TOLERANCE = 1e-3
QUICK_LOOPS = 4
SPREAD = 10  # errors of two float32 programs that add in different orders are of one order of magnitude, not equal


def engine_scores(node, tmp_path, path, kernel, inputs, loops, shape):
    case, out = tmp_path / "case.json", tmp_path / "scores.bin"
    case.write_text(json.dumps({"inputs": [np.ravel(each).tolist() for each in inputs], "loops": loops}))
    kind = node("engine_check.mjs", path, case, kernel, out).strip()
    return kind, np.fromfile(out, dtype=np.float32).reshape(shape)


def assert_equal_to_torch(node, tmp_path, name, kernel, num_examples, loops):
    config, model = shipped_model(name)
    _, precise = shipped_model(name, "float64")
    inputs = config.task.sample(0, "test", range(num_examples)).inputs
    expected, exact = scores_at(model, inputs, loops), scores_at(precise, inputs, loops)
    _, scores = engine_scores(node, tmp_path, shipped_path(name), kernel, inputs, loops, expected.shape)
    read = np.broadcast_to(config.task.counted(inputs)[:, None, :], expected.shape[:3])
    error = np.abs(scores - exact)[read].max(axis=-1)
    # Late loops can multiply the rounding of early ones by a thousand. PyTorch's error in float32 tells how far.
    torch_error = np.abs(expected - exact)[read].max(axis=-1)
    allowed = max(TOLERANCE, SPREAD * np.max(torch_error))
    assert np.mean(error) < TOLERANCE
    assert np.max(error) <= allowed
    if config.task.spec.kind == "tokens":
        # Answers are equal unless the two likeliest are level within these errors.
        best = np.sort(exact[read], axis=-1)
        decided = best[:, -1] - best[:, -2] > 2 * allowed
        assert decided.mean() >= 0.9
        assert (scores.argmax(-1)[read] == exact.argmax(-1)[read])[decided].all()


@pytest.mark.parametrize("name", SHIPPED)
def test_engine_on_a_shipped_model_gives_the_scores_of_torch(node, tmp_path, kernel, name):
    assert_equal_to_torch(node, tmp_path, name, kernel, 20, [1, QUICK_LOOPS])


@pytest.mark.parametrize("name", SHIPPED)
def test_engine_after_all_trained_loops_gives_the_scores_of_torch(node, tmp_path, kernel, name):
    config, _ = shipped_model(name)
    assert_equal_to_torch(node, tmp_path, name, kernel, 1, [config.model.num_loops])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_engine_on_many_examples_gives_the_scores_of_torch(node, tmp_path, kernel, name):
    config, _ = shipped_model(name)
    assert_equal_to_torch(node, tmp_path, name, kernel, 200, [config.model.num_loops])


SMALL = ModelConfig("looped", dim=24, num_heads=2, num_layers=2, num_loops=3, ff_dim=20, injection="add")
VARIANTS = {
    "standard": replace(SMALL, block="standard", num_loops=1, injection="none"),
    "learned positions": replace(SMALL, positions="learned"),
    "sinusoidal positions": replace(SMALL, positions="sinusoidal"),
    "no positions": replace(SMALL, positions="none"),
    "rotary positions": replace(SMALL, positions="rotary"),
    "coordinates": replace(SMALL, positions="coordinates"),
    "concat": replace(SMALL, injection="concat"),
    "no injection": replace(SMALL, injection="none"),
    "relu": replace(SMALL, activation="relu"),
    "silu": replace(SMALL, activation="silu"),
    "causal": replace(SMALL, attention="causal"),
    "hardmax": replace(SMALL, attention_weights="hardmax"),
    "norm of queries and keys": replace(SMALL, norm="query-key"),
    "no norm": replace(SMALL, norm="none"),
    "odd sizes": replace(SMALL, dim=20, num_heads=5, ff_dim=13),
    **{
        name: replace(SMALL, block="modulated", conditioning=name)
        for name in ("timestep", "static", "additive", "scale", "gate", "shift", "table", "eta")
    },
    "clamp": replace(SMALL, block="modulated", extrapolation="clamp"),
    "rescale": replace(SMALL, block="modulated", conditioning="table", extrapolation="rescale"),
}


@pytest.mark.parametrize("plain", [False, True], ids=["simd", "plain"])
@pytest.mark.parametrize("name", VARIANTS)
def test_engine_on_every_kind_of_block_gives_the_scores_of_torch(node, tmp_path, kernel, name, plain):
    config, task = VARIANTS[name], TASKS["sudoku"](side=4)
    model = build_model(config, task.spec).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # a fresh model's gates are 0, and would hide what they scale
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    about = {"config": {"model": vars(config), "task": {"name": "sudoku", **vars(task)}}}
    path = tmp_path / "small.safetensors"
    path.write_bytes(safetensors.torch.save(dict(model.state_dict()), {"looped": json.dumps(about)}))
    inputs = np.random.default_rng(0).integers(0, 5, size=(3, 16))
    beyond = {"clamp": 5, "rescale": 5}.get(name, config.num_loops)
    expected = scores_at(model, inputs, [beyond])
    wasm = "none" if plain else kernel
    kind, scores = engine_scores(node, tmp_path, path, wasm, inputs, [beyond], expected.shape)
    assert kind == ("plain" if plain else "simd")
    np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-4 * max(1, np.abs(expected).max()))
