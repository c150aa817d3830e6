"""Loss, gradient, clipping, average and validation, against the same numbers computed in plain PyTorch or by hand."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from looped.config import ModelConfig, TrainConfig
from looped.models import LoopModel, build_model
from looped.tasks import Spec
from looped.tasks.decision_tree import DecisionTree
from looped.training import train
from looped.training.checkpoint import load_checkpoint
from looped.training.evaluation import evaluate
from looped.training.loss import LARGE_VOCABULARY, TensorBatch
from looped.training.optim import Average
from looped.training.step import Stepper
from tests.training.conftest import tiny

CPU = torch.device("cpu")
LOOPS = 5
CLASSES = Spec(kind="tokens", input_size=5, output_size=7, seq_len=6)
SPECS = {
    "classes": CLASSES,
    "a large vocabulary": Spec(kind="tokens", input_size=5, output_size=LARGE_VOCABULARY, seq_len=6),
    "values": Spec(kind="vectors", input_size=3, output_size=2, seq_len=6),
}
# Of 6 positions: no two examples count the same ones, and no two halves or quarters of the batch as many.
MASK = torch.tensor(
    [
        [0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0],
    ]
).bool()  # fmt: skip


def model_of(spec: Spec) -> LoopModel:
    """In float64, and with open gates: at its start a gated block does nothing, and all loops would be alike."""
    config = ModelConfig(
        block="modulated", dim=8, num_heads=2, num_loops=LOOPS, injection="add", positions="learned",
        precision="float64",
    )  # fmt: skip
    model, generator = build_model(config, spec), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def batch_of(model: LoopModel) -> TensorBatch:
    sizes, generator = (model.spec.input_size, model.spec.output_size), torch.Generator().manual_seed(2)
    if model.spec.kind == "vectors":
        inputs, targets = (torch.randn(*MASK.shape, size, generator=generator) for size in sizes)
    else:
        inputs, targets = (torch.randint(size, MASK.shape, generator=generator) for size in sizes)
        targets[::2] = model(inputs).argmax(dim=-1)[::2]  # some answers are right
    return TensorBatch(inputs, targets, MASK)


def loss_by_hand(model: LoopModel, batch: TensorBatch, weights: list[float]) -> tuple[Tensor, Tensor]:
    """The weighted losses of all loops over the counted positions, picked out; and the last loop's share right."""
    total, wanted = torch.zeros((), dtype=torch.float64), batch.targets[batch.mask]
    scores = torch.empty(0)
    for weight, state in zip(weights, model.iterate(batch.inputs, len(weights)), strict=True):
        scores = model.read_out(state)[batch.mask]
        if wanted.is_floating_point():
            total = total + weight * F.mse_loss(scores, wanted.double())
        else:
            total = total + weight * F.cross_entropy(scores, wanted)
    if wanted.is_floating_point():
        return total, -F.mse_loss(scores, wanted.double())
    return total, (scores.argmax(dim=-1) == wanted).double().mean()


# The fields of a config, and what each of five loops then weighs.
SUPERVISION = [
    ({"supervision": "last"}, [0, 0, 0, 0, 1]),
    ({"supervision": "mean"}, [1 / 5] * 5),
    ({"supervision": "mean", "supervised_loops": 2}, [0, 0, 0, 1 / 2, 1 / 2]),
    ({"supervision": "mean", "supervised_loops": 9}, [1 / 5] * 5),
    ({"supervision": "sum"}, [1] * 5),
    ({"supervision": "sum", "supervised_loops": 3}, [0, 0, 1, 1, 1]),
]


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_loss_and_gradient_with_weights_equal_those_of_positions_counted_as_often(spec, accumulation):
    """Weights 1, 2 and 3 on one side; on the other, the picked positions once, twice and three times."""
    model = model_of(spec)
    inputs, targets, mask = batch_of(model)
    times = mask * (1 + torch.arange(mask.numel()).view_as(mask) % 3)
    scores = model(inputs)
    repeated = [each.flatten(0, 1).repeat_interleave(times.flatten(), dim=0) for each in (scores, targets)]
    loss = F.mse_loss(*repeated) if spec.kind == "vectors" else F.cross_entropy(*repeated)
    expected = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    stepper = Stepper(model, TrainConfig(accumulation=accumulation, batch_size=len(inputs)), CPU)
    seen = stepper.gradients(TensorBatch(inputs, targets, times.float()), LOOPS)
    torch.testing.assert_close(seen[0], loss.detach())
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize(("supervision", "weights"), SUPERVISION, ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_loss_and_gradient_are_those_of_the_counted_positions_of_the_supervised_loops(
    spec, supervision, weights, accumulation
):
    """Of the whole batch, however it is cut."""
    model = model_of(spec)
    batch = batch_of(model)
    loss, right = loss_by_hand(model, batch, weights)
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    config = TrainConfig().override(batch_size=8, accumulation=accumulation, **supervision)
    seen = Stepper(model, config, CPU).gradients(batch, LOOPS)
    assert seen.tolist() == pytest.approx([loss.item(), right.item()], rel=1e-6)
    for (name, parameter), gradient in zip(model.named_parameters(), wanted, strict=True):
        assert (parameter.grad - gradient).norm() <= 1e-6 * gradient.norm(), name


NOT_DECAYED = ("gain", "b_in", "b_back", "b3", "b4", "b5")


@pytest.mark.parametrize("clip_norm", [None, 1.5])
def test_steps_equal_adamw_on_clipped_gradients(clip_norm):
    """A long gradient, then a short one: AdamW does not see the length of gradients that are all as long."""
    config = TrainConfig().override(
        batch_size=8, supervision="sum", learning_rate=0.02, beta1=0.8, beta2=0.9, weight_decay=0.3, clip_norm=clip_norm
    )
    model = model_of(CLASSES)
    batch, true = batch_of(model), copy.deepcopy(model)
    named = dict(true.named_parameters())
    groups = [
        {"params": [parameter], "weight_decay": 0.0 if name.endswith(NOT_DECAYED) else 0.3}
        for name, parameter in named.items()
    ]
    adamw = torch.optim.AdamW(groups, betas=(0.8, 0.9), foreach=False)
    stepper, norms = Stepper(model, config, CPU), []
    for step, (num_loops, lr_fraction) in enumerate([(5, 1.0), (1, 0.5), (5, 0.25)]):
        loss, _ = loss_by_hand(true, batch, [1] * num_loops)
        gradients = torch.autograd.grad(loss, list(named.values()))
        norm = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
        for parameter, gradient in zip(named.values(), gradients, strict=True):
            parameter.grad = gradient * (1.0 if clip_norm is None else min(1.0, clip_norm / norm))
        for group in adamw.param_groups:
            group["lr"] = 0.02 * lr_fraction
        adamw.step()
        seen = stepper(step, batch, num_loops, lr_fraction)
        assert seen[2].item() == pytest.approx(norm, rel=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, named[name], rtol=1e-6, atol=1e-6, msg=name)
        norms.append(norm)
    assert norms[1] < 1.5 < min(norms[0], norms[2])


def test_moving_average_warms_up_and_then_uses_its_decay():
    """It keeps (1 + step) / (10 + step) of itself, but at most its decay: 1/10, 2/11, 1/4 and again 1/4."""
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(model.weight, 4.0)
    average = Average(model, 0.25)
    for step, (weight, averaged) in enumerate([(14.0, 13.0), (2.0, 4.0), (8.0, 7.0), (0.0, 1.75)]):
        torch.nn.init.constant_(model.weight, weight)
        average.set_step(step)
        average.update()
        assert average.values["weight"].item() == pytest.approx(averaged, rel=1e-12)
        with average.applied():
            assert model.weight.item() == pytest.approx(averaged, rel=1e-12)
        assert model.weight.item() == weight


def test_moving_average_includes_the_weights_of_its_step():
    model = model_of(CLASSES)
    batch, wanted = batch_of(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stepper = Stepper(model, TrainConfig().override(batch_size=8, learning_rate=0.1, ema_decay=0.25), CPU)
    for step, kept in enumerate([1 / 10, 2 / 11, 1 / 4, 1 / 4]):
        stepper(step, batch, LOOPS, 1.0)
        assert stepper.average is not None
        for name, weight in model.state_dict().items():
            wanted[name] = kept * wanted[name] + (1 - kept) * weight
            torch.testing.assert_close(stepper.average.values[name], wanted[name], msg=name)


def test_logged_validation_is_that_of_the_averaged_weights(tmp_path):
    """On values, whose error tells any two weights apart; in the middle of a run and at its end."""
    task = DecisionTree(points=3, dims=2, depth=1)
    config = tiny(
        task=task, model={"positions": "rotary"},
        train={"learning_rate": 0.1, "ema_decay": 0.9, "eval_every": 2, "checkpoint_every": 2},
    )  # fmt: skip
    result = train(config, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["validation"] for line in lines if "validation" in line}
    assert logged.keys() == {2, 4}
    assert result.validation == logged[4]
    for step, validation in logged.items():
        tensors, errors = load_checkpoint(tmp_path / "run" / "checkpoints" / f"step-{step:09d}").parts, {}
        for kind in ("ema", "model"):
            model = build_model(config.model, task.spec)
            model.load_state_dict(tensors[kind])
            (row,) = evaluate(model, task, "validation", 20).rows
            errors[kind] = row.metrics["squared_error"]
        assert validation == pytest.approx(errors["ema"], rel=1e-6)
        assert errors["model"] != pytest.approx(errors["ema"], rel=1e-4)
