"""On a GPU: captured engines equal the plain one, and bfloat16 is close to float64, at real widths."""

import json
import shutil

import pytest
import torch

from looped.config import ModelConfig, RunConfig, TrainConfig
from looped.kernels.cuda_graphs import PLAIN_CALLS, Replayed
from looped.models import build_model
from looped.models.engines import set_engine
from looped.tasks import Spec
from looped.training import loss as objectives
from looped.training.batches import batch_at
from looped.training.loss import TensorBatch, to_device
from looped.training.schedules import loops_at
from looped.training.step import Stepper
from looped.training.trainer import Trainer
from tests.kernels.cases import assert_near, error
from tests.kernels.plans import KINDS, Case, Inputs, by_definition, fused
from tests.training.conftest import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers emit warnings of their own
]

ENGINES = ("compiled", "fused")
CUDA = torch.device("cuda")


# ------------------------------------------------------------------ whole steps, captured


GROWING = {
    "num_steps": 28, "loop_schedule": "growing", "loop_choices": (2, 3), "size_schedule": "growing",
    "size_choices": (0.5, 1.0, 0.75), "curriculum_steps": 24,
}  # fmt: skip
# Captured steps are replayed after other graphs that share their memory.
RANDOM = {
    "num_steps": 24, "loop_schedule": "random", "loop_choices": (2, 3), "size_schedule": "random",
    "size_choices": (0.5, 1.0),
}  # fmt: skip
LIMITED = {"num_steps": 12, "growth_limit": 1.1}
MODELS = {
    "standard": {"block": "standard", "num_loops": 1, "num_layers": 2},
    "looped": {"block": "looped"},
    "modulated": {"num_layers": 2},
    "heads on the chip": {"dim": 64, "num_heads": 2, "positions": "rotary"},
    "heads elsewhere": {"dim": 48, "num_heads": 2, "positions": "rotary", "attention": "causal"},
    "a free table": {"conditioning": "table"},
    "shifts": {"conditioning": "shift"},
}


def train_steps(config: RunConfig, folder) -> tuple[torch.Tensor, torch.Tensor, Trainer]:
    """Return all weights after the steps of a run, the outcomes of the steps, and the stepper."""
    trainer = Trainer(config, folder, quiet=True)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # open the gates, because a closed block would compare nothing
        for parameter in trainer.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(CUDA))
    seen = [
        trainer.train_step(step, to_device(batch_at(step, config), trainer.device))
        for step in range(config.train.num_steps)
    ]
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return weights, torch.stack(seen), trainer


def on_card(model, engine, **train) -> RunConfig:
    return tiny(
        model=model, train={"device": "cuda", "batch_size": 16, "learning_rate": 3e-3, "engine": engine, **train}
    )


def assert_captured(trainer: Trainer) -> None:
    """Check that every kind of step that occurred often enough was replayed from a graph."""
    steps, config = trainer.stepper._step, trainer.config
    assert isinstance(steps, Replayed)
    assert steps.usable
    kinds = [
        (loops_at(step, config), tuple(batch_at(step, config).inputs.shape)) for step in range(config.train.num_steps)
    ]
    often = {kind for kind in kinds if kinds.count(kind) > PLAIN_CALLS}
    assert {(loops, tuple(given[0][0])) for given, (loops, _), *_ in steps.captured} == often


def assert_alike(weights, seen, true_weights, true_seen) -> None:
    """Compare weights, losses and norms. The accuracy may differ where two scores are nearly equal."""
    assert error(weights, true_weights) < 1e-3
    torch.testing.assert_close(seen[:, [0, 2]], true_seen[:, [0, 2]], rtol=1e-3, atol=1e-3)


# Compilation is slow, so only cases that compile differently.
STEPS = [("fused", name) for name in MODELS] + [("compiled", name) for name in ("looped", "heads elsewhere")]


@pytest.mark.parametrize(("engine", "name"), STEPS)
def test_captured_steps_equal_plain_ones(engine, name, tmp_path):
    model = MODELS[name]
    changes = {"num_steps": 6} if model.get("block") == "standard" else GROWING
    plain, plain_seen, _ = train_steps(on_card(model, "eager", **changes), tmp_path / "eager")
    fast, fast_seen, trainer = train_steps(on_card(model, engine, **changes), tmp_path / engine)
    assert trainer.stepper.engine == engine
    assert_captured(trainer)
    assert_alike(fast, fast_seen, plain, plain_seen)


@pytest.mark.parametrize(
    ("engine", "train"),
    [
        ("compiled", RANDOM),
        ("fused", RANDOM),
        ("compiled", LIMITED),
        ("fused", LIMITED),
        ("fused", {**GROWING, "supervision": "mean", "ema_decay": 0.9}),
        ("fused", {**GROWING, "accumulation": 2, "remat": 2}),
        ("fused", {**GROWING, "backprop_loops": 2, "remat": 1}),
    ],
    ids=["compiled, random", "random", "compiled, limited", "limited", "mean", "accumulation", "truncated"],
)
def test_captured_steps_of_every_loss_equal_plain_ones(engine, train, tmp_path):
    plain, plain_seen, one = train_steps(on_card({}, "eager", **{**train, "remat": 0}), tmp_path / "eager")
    fast, fast_seen, other = train_steps(on_card({}, engine, **train), tmp_path / engine)
    assert_captured(other)
    assert_alike(fast, fast_seen, plain, plain_seen)
    if one.stepper.average is not None:
        for name, value in one.stepper.average.values.items():
            torch.testing.assert_close(other.stepper.average.values[name], value, rtol=1e-2, atol=1e-3)


def test_captured_steps_with_muon_equal_plain_ones(tmp_path):
    """Allow for rounding: Muon rounds its direction to bfloat16 and enlarges small singular values."""
    train = {**GROWING, "optimizer": "muon", "muon_learning_rate": 3e-3}
    plain, _, _ = train_steps(on_card({}, "eager", **train), tmp_path / "eager")
    fast, _, trainer = train_steps(on_card({}, "fused", **train), tmp_path / "fused")
    assert_captured(trainer)
    assert error(fast, plain) < 1e-2


def test_replayed_step_uses_the_scheduled_learning_rate(tmp_path):
    """At a learning rate of 0 the weights do not change, whatever the rate was at capture."""
    config = on_card({}, "fused", num_steps=5, weight_decay=0.0)
    trainer = Trainer(config, tmp_path / "run", quiet=True)
    batch = to_device(batch_at(0, config), CUDA)
    for step in range(PLAIN_CALLS + 1):
        trainer.stepper(step, batch, 3, 1.0)
    assert trainer.stepper._step.captured
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.stepper(PLAIN_CALLS + 1, batch, 3, 0.0)
    assert all(torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True))
    trainer.stepper(PLAIN_CALLS + 2, batch, 3, 1.0)
    assert not all(torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_resumed_run_has_the_same_curve(engine, tmp_path):
    """Resume in the middle. The resumed run captures again, so some of its steps are plain and not replayed.

    Sums on a GPU have no fixed order, so the curves are not compared bit by bit.
    """
    config = on_card({"positions": "rotary"}, engine, num_steps=12, checkpoint_every=6, ema_decay=0.9)
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert Trainer(config, whole, quiet=True).fit().finished
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / "step-000000012")
    (again / "result.json").unlink()
    trainer = Trainer(config, again, quiet=True)
    trainer.resume()
    assert trainer.step == 6
    assert trainer.fit().finished
    curves = [
        [
            (row["step"], row["loss"])
            for row in map(json.loads, (folder / "log.jsonl").read_text().splitlines())
            if "loss" in row
        ]
        for folder in (whole, again)
    ]
    assert [step for step, _ in curves[0]] == list(range(1, 13))
    assert curves[0][:6] == curves[1][:6]
    torch.testing.assert_close(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=1e-3, atol=0)


def test_bfloat16_learns_on_the_gpu(tmp_path):
    model = {"precision": "bfloat16", "positions": "rotary", "dim": 64}
    config = on_card(model, "auto", num_steps=60)
    trainer = Trainer(config, tmp_path / "run", quiet=True)
    result = trainer.fit()
    assert trainer.stepper.engine == "fused"
    assert_captured(trainer)
    assert result.finished
    assert not result.hardware.startswith("CPU")
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_unsupported_model_is_compiled(capsys):
    model = build_model(ModelConfig(dim=16, num_heads=2, precision="float64"), Spec("tokens", 7, 5, 6)).to(CUDA)
    assert set_engine(model.stack, "fused") == "compiled"
    assert "looped: not the fused kernels but the compiled engine" in capsys.readouterr().err


# ------------------------------------------------------------------ bfloat16 at real widths


REAL = {
    "reasoning, 84 tokens": Case(
        batch=8, seq_len=84, dim=256, num_heads=4, ff_dim=1024, num_loops=8, read=(3, 7), attention=KINDS
    ),
    "reasoning, 128 tokens": Case(batch=8, seq_len=128, dim=256, num_heads=4, ff_dim=1024, num_loops=8, read=(7,)),
    "reasoning, causal": Case(
        batch=5, seq_len=101, dim=256, num_heads=4, ff_dim=1024, num_loops=4, read=(3,), causal=True, injection=False
    ),
    "language model": Case(
        batch=2, seq_len=1024, dim=768, num_heads=12, ff_dim=3072, num_loops=4, read=(3,), causal=True, injection=False
    ),
}


@pytest.mark.parametrize("case", REAL.values(), ids=REAL)
def test_bfloat16_at_real_widths_is_close_to_float64(case):
    inputs = Inputs(case)
    exact = by_definition(inputs, torch.float64)
    got = fused(inputs, torch.bfloat16)
    for name, wanted in exact.items():
        assert got[name].dtype == torch.float32
        assert error(got[name], wanted) <= 1e-2, name


@pytest.mark.parametrize("name", ["reasoning, 84 tokens", "language model"])
def test_float32_at_real_widths_is_close_to_float64(name):
    inputs = Inputs(REAL[name])
    exact, got = by_definition(inputs, torch.float64), fused(inputs, torch.float32)
    for each, wanted in exact.items():
        assert error(got[each], wanted) <= 1e-5, each


def test_rematerialisation_gives_the_same_with_less_memory():
    """Store one state per loop instead of everything, at the width of the language model."""
    case = REAL["language model"]
    found, peaks = [], []
    for remat in (0, 1, 3):
        inputs = Inputs(case)
        inputs.case = Case(**{**vars(case), "remat": remat})
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found.append(fused(inputs, torch.bfloat16))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    for again in found[1:]:
        for name, wanted in found[0].items():
            assert error(again[name], wanted) < 1e-3, name  # PyTorch's attention sums in no fixed order
    assert max(peaks[1:]) < peaks[0]


# ------------------------------------------------------------------ head and cross-entropy


def language_batch(spec: Spec, size: int) -> TensorBatch:
    generator = torch.Generator().manual_seed(2)
    inputs, targets = torch.randint(spec.input_size, (2, size, spec.seq_len), generator=generator)
    mask = torch.rand(size, spec.seq_len, generator=generator) < 0.8
    return TensorBatch(*(each.to(CUDA) for each in (inputs, targets, mask)))


def gradients(
    monkeypatch, spec: Spec, precision: str, engine: str, large_from: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (loss and accuracy, all gradients) of a causal model whose head is its embedding."""
    monkeypatch.setattr(objectives, "LARGE_VOCABULARY", large_from)
    config = ModelConfig(
        block="modulated", dim=128, num_heads=2, num_loops=2, positions="rotary", modulation_init="random",
        precision=precision,
    )  # fmt: skip
    model = build_model(config, spec).to(CUDA)
    stepper = Stepper(model, TrainConfig().override(batch_size=6, engine=engine, accumulation=2), CUDA)
    seen = stepper.gradients(language_batch(spec, 6), 2)
    return seen, torch.cat([parameter.grad.flatten().double() for parameter in model.parameters()])


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 2e-2)])
def test_head_of_a_large_vocabulary_is_close_to_float64(monkeypatch, precision, tolerance):
    """Compare with all scores at once in float64. A bfloat16 head rounds its scores, and a loss is their difference."""
    spec = Spec("tokens", 10_007, 10_007, 96, causal=True, shared_vocabulary=True)
    exact_seen, exact = gradients(monkeypatch, spec, "float64", "eager", 10**9)
    seen, found = gradients(monkeypatch, spec, precision, "fused", 1)
    assert_near(seen[:1], exact_seen[:1], tolerance)
    assert error(found, exact) < tolerance


@pytest.mark.parametrize("engine", ENGINES)
def test_captured_steps_of_a_language_model_equal_plain_ones(engine):
    spec = Spec("tokens", 5003, 5003, 160, causal=True, shared_vocabulary=True)
    config = ModelConfig(
        block="modulated", dim=64, num_heads=2, num_loops=2, positions="rotary", modulation_init="random"
    )
    found = []
    for used in ("eager", engine):
        model = build_model(config, spec).to(CUDA)
        stepper = Stepper(model, TrainConfig().override(batch_size=8, engine=used, learning_rate=1e-3), CUDA)
        seen = [stepper(step, language_batch(spec, 8), 2, 1.0) for step in range(6)]
        found.append((torch.stack(seen), torch.cat([each.detach().flatten() for each in model.parameters()])))
    assert stepper._step.usable
    assert len(stepper._step.captured) == 1
    (plain_seen, plain), (seen, weights) = found
    assert_alike(weights, seen, plain, plain_seen)


@pytest.mark.parametrize("engine", ENGINES)
def test_captured_step_with_a_gradient_spike_is_skipped(engine):
    spec = Spec("tokens", 503, 503, 40, causal=True, shared_vocabulary=True)
    config = ModelConfig(block="modulated", dim=64, num_heads=2, num_loops=2, positions="rotary")
    train = TrainConfig().override(
        batch_size=8, engine=engine, optimizer="muon", muon_weight_decay=0.1, spike_factor=3.0
    )
    model = build_model(config, spec).to(CUDA)
    stepper = Stepper(model, train, CUDA)
    skipped, moved = [], []
    assert stepper.guard is not None
    for step in range(6):
        stepper.guard.usual.mul_({4: 1e-3, 5: 1e3}.get(step, 1.0))  # step 4 looks like a spike
        before = torch.cat([each.detach().flatten().clone() for each in model.parameters()])
        skipped.append(bool(stepper(step, language_batch(spec, 8), 2, 1.0)[3]))
        moved.append(not torch.equal(before, torch.cat([each.detach().flatten() for each in model.parameters()])))
    assert len(stepper._step.captured) == 1
    assert skipped == [False] * 4 + [True, False]
    assert moved == [not each for each in skipped]
