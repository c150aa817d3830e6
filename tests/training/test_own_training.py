"""A user's loss and callbacks, and loops without a gradient before the trained ones."""

import json
from dataclasses import replace

import pytest
import torch

from looped import Callback
from looped.config import RunConfig
from looped.models.stack import MOST_LOOPS
from looped.training.flops import training_flops
from looped.training.loss import TensorBatch, loss_and_answers, objective, to_device
from looped.training.run_folder import RunFolder
from looped.training.schedules import free_loops_at
from looped.training.trainer import Trainer, train
from looped.utils.errors import InputError
from tests.cli.command import complaint
from tests.paths import ROOT
from tests.refusal import refused
from tests.training.conftest import MODEL, TASK, tiny


def doubled(scores, batch):
    """Twice the usual loss, written out anew."""
    probabilities = scores.log_softmax(dim=-1).gather(-1, batch.targets[..., None])[..., 0]
    return -2 * (probabilities * batch.mask).sum() / batch.mask.sum()


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def trained(config, folder, **options):
    trainer = Trainer(config, folder, quiet=True, **options)
    assert trainer.fit().finished
    return weights(trainer)


def test_own_loss_is_used_and_named_in_the_config(tmp_path):
    """Adam does not see a factor of the loss, so the weights differ by rounding only; the logged loss is doubled."""
    config = tiny(train={"clip_norm": None, "num_steps": 1})
    ours, usual = (tmp_path / name for name in ("ours", "usual"))
    torch.testing.assert_close(trained(config, ours, loss=doubled), trained(config, usual), rtol=0, atol=1e-4)
    first = [json.loads((folder / "log.jsonl").read_text().splitlines()[0])["loss"] for folder in (ours, usual)]
    assert first[0] == pytest.approx(2 * first[1], rel=1e-5)
    assert RunFolder(ours).read_config().train.loss == "doubled"


def test_own_loss_of_wrong_shape_is_one_line(tmp_path):
    def no_scalar(scores, batch):
        return scores

    with refused("train.loss"):
        Trainer(tiny(), tmp_path / "run", quiet=True, loss=no_scalar).fit()
    with refused("train.loss", "nobody"):
        Trainer(tiny(train={"loss": "nobody"}), tmp_path / "run", quiet=True)


class Recorder(Callback):
    def __init__(self, stop_at=None):
        self.events, self.stop_at = [], stop_at

    def on_step(self, trainer, step, outcome):
        self.events.append(("step", step))
        assert outcome.shape == (4,)
        if step == self.stop_at:
            trainer.request_stop()

    def on_evaluation(self, trainer, step, validation):
        self.events.append(("evaluation", step))
        assert 0 <= validation <= 1

    def on_checkpoint(self, trainer, step, path):
        self.events.append(("checkpoint", step))
        assert (path / "model.safetensors").exists()


def test_callbacks_are_called_in_order(tmp_path):
    recorder = Recorder()
    config = tiny(train={"num_steps": 4, "eval_every": 2, "checkpoint_every": 2})
    train(config, tmp_path / "run", quiet=True, callbacks=[recorder])
    assert recorder.events == [
        ("step", 0), ("step", 1), ("evaluation", 2), ("checkpoint", 2), ("step", 2), ("step", 3), ("checkpoint", 4),
        ("evaluation", 4),
    ]  # fmt: skip


def test_request_stop_leaves_a_run_that_resumes_bitwise(tmp_path):
    result = train(tiny(), tmp_path / "run", quiet=True, callbacks=[Recorder(stop_at=1)])
    assert (result.step, result.stopped_by, result.finished) == (2, "callback", False)
    assert torch.equal(trained(tiny(), tmp_path / "run"), trained(tiny(), tmp_path / "whole"))


FREE = {"free_loops": (0, 2, 5), "num_steps": 6}


def test_free_loops_change_the_outcome_and_resume_bitwise(tmp_path):
    config = tiny(train=FREE)
    assert {free_loops_at(step, config) for step in range(40)} == {0, 2, 5}
    assert {free_loops_at(step, replace(config, seed=1)) for step in range(40)} == {0, 2, 5}
    whole = trained(config, tmp_path / "whole")
    stopping = replace(config, train=config.train.override(max_minutes=1e-9))
    while not Trainer(stopping, tmp_path / "stopped", quiet=True).fit().finished:
        pass
    assert torch.equal(whole, weights_of(config, tmp_path / "stopped"))
    assert not torch.allclose(whole, trained(tiny(train={"num_steps": 6}), tmp_path / "plain"))


def weights_of(config, folder):
    trainer = Trainer(config, folder, quiet=True)
    assert trainer.resume()
    return weights(trainer)


@pytest.mark.parametrize("supervision", ["last", "mean"])
def test_free_loops_equal_a_detached_start(supervision):
    """The gradient is that of the trained loops alone, started at the state that the free loops reach."""
    config = tiny(model={"block": "looped", "conditioning": "none"}, train={"supervision": supervision})
    trainer = Trainer(config, quiet=True)
    batch = to_device(TASK.sample(0, "train", range(8)), trainer.device)
    model = trainer.model
    objective(model, batch, 3, config.train, free_loops=4).loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()

    embeddings = model.embed(batch.inputs)
    prepared = model.stack.prepare(7, embeddings.shape[1], embeddings.device)
    with torch.no_grad():
        state = torch.zeros_like(embeddings)
        for t in range(4):
            state = model.stack.loop(state, embeddings, prepared, t)
    losses = []
    for t in range(4, 7):
        state = model.stack.loop(state, embeddings, prepared, t)
        losses.append(loss_and_answers(model, state, TensorBatch(*batch))[0])
    (losses[-1] if supervision == "last" else sum(losses) / 3).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-7)


def test_free_loops_are_counted_as_forward_work():
    plain, free = tiny(), tiny(train={"free_loops": (3,)})
    # Three trained loops count 3 + 2 * 3, so three more without a gradient add a third to the loops' work.
    loops = training_flops(tiny(train={"backprop_loops": 3})) - training_flops(tiny(model={"num_loops": 1}))
    added = training_flops(free) - training_flops(plain)
    assert added * 2 == loops


@pytest.mark.parametrize("loops", [(-1,), tuple(range(9))])
def test_free_loops_out_of_range_raise(loops):
    with pytest.raises(InputError) as caught:
        tiny(train={"free_loops": loops})
    assert caught.value.field == "free_loops"


def test_free_loops_of_a_standard_model_raise():
    with pytest.raises(InputError) as caught:
        RunConfig(TASK, replace(MODEL, block="standard", num_loops=1), tiny(train={"free_loops": (3,)}).train)
    assert caught.value.field == "free_loops"


def test_free_loops_that_a_table_has_no_rows_for_raise():
    with pytest.raises(InputError) as caught:
        tiny(model={"conditioning": "table"}, train={"free_loops": (0, 0, 4)})
    assert caught.value.field == "free_loops"
    tiny(model={"conditioning": "table", "extrapolation": "clamp"}, train={"free_loops": (0, 0, 4)})
    tiny(model={"conditioning": "table"}, train={"free_loops": (0,)})


def test_more_free_loops_than_a_stack_can_run_raise_before_the_first_step(tmp_path):
    config = tiny(train={"free_loops": (0,) * 7 + (MOST_LOOPS,)})
    with pytest.raises(InputError) as caught:
        train(config, tmp_path / "run", quiet=True)
    assert caught.value.field == "train.free_loops"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flag", "item"), [("--callback", "focal_loss"), ("--train.loss", "StopEarly"), ("--model.layer", "focal_loss")]
)
def test_own_code_of_another_kind_is_one_line(flag, item, plugins, tmp_path, capsys):
    file = ROOT / "examples" / "own_loss.py"
    said = complaint(
        capsys, "train", "lcs", "--recipe", "laptop", flag, f"{file}:{item}", "--out", str(tmp_path / "run")
    )
    assert item in said
    assert not (tmp_path / "run").exists()
