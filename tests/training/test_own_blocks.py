"""What a user adds to the loop: each changes the outcome, trains, resumes bitwise and falls back from fused kernels."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import looped
from looped.config import ModelConfig
from looped.models import LoopStack, build_model
from looped.models.engines import set_engine
from looped.models.fused import why_not_fused
from looped.training import step
from looped.training.step import Stepper
from looped.training.trainer import Trainer
from looped.utils.errors import InputError
from tests.refusal import refused
from tests.training.conftest import TASK, tiny

LOOPED = {"block": "looped", "num_loops": 3}
KEY, SUM = "316ff8d321", 3.806243594706757  # of `tiny()` before the knobs existed


class Mixer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear = nn.Linear(config.dim, config.dim)

    def forward(self, state):
        return state + torch.tanh(self.linear(state.mean(dim=1, keepdim=True) + state))


class Noisy(Mixer):
    def forward(self, state):
        return F.dropout(super().forward(state), 0.3, self.training)


def first_half(seq_len, num_heads):
    return (torch.arange(seq_len) < seq_len // 2).expand(1, seq_len, seq_len)


@pytest.fixture(autouse=True)
def _own_code(plugins):
    looped.register(Mixer)
    looped.register(Noisy)
    looped.register(first_half)


KNOBS = {
    "layer": {"layer": "Mixer"},
    "layer with dropout of its own": {"layer": "Noisy"},
    "alibi": {"attention_bias": "alibi"},
    "mask": {"attention_bias": "first_half"},
    "dropout": {"dropout": 0.3},
    "prelude": {"prelude_layers": 2},
    "coda": {"coda_layers": 1},
    "start": {"start": "random"},
}
FUSED_ANYWAY = {"prelude", "coda"}  # they are outside the loop


def outcome(config, folder):
    trainer = Trainer(config, folder, quiet=True)
    assert trainer.fit().finished
    inputs = torch.from_numpy(TASK.sample(0, "test", range(4)).inputs)
    trainer.model.eval()
    with torch.no_grad():
        return trainer.model(inputs, num_loops=5)


@pytest.mark.parametrize("knob", KNOBS)
def test_knob_changes_the_outcome_and_resumes_bitwise(knob, tmp_path):
    config = tiny(model={**LOOPED, **KNOBS[knob]})
    whole = outcome(config, tmp_path / "whole")
    stopping = replace(config, train=config.train.override(max_minutes=1e-9))
    stops = 0
    while not Trainer(stopping, tmp_path / "stopped", quiet=True).fit().finished:
        torch.rand(7)  # the global random numbers of another process
        stops += 1
    assert stops == config.train.num_steps - 1
    assert torch.equal(whole, outcome(config, tmp_path / "stopped"))
    assert not torch.allclose(whole, outcome(tiny(model=LOOPED), tmp_path / "plain"), atol=1e-4)


@pytest.mark.parametrize("knob", KNOBS)
def test_knob_is_a_reason_against_the_fused_kernels_in_one_line(knob, capsys, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # otherwise they ask for a GPU
    config = replace(tiny(model=LOOPED).model, **KNOBS[knob])
    stack = build_model(config, TASK.spec).stack
    assert (why_not_fused(stack) is None) == (knob in FUSED_ANYWAY)
    if knob not in FUSED_ANYWAY:
        assert set_engine(stack, "fused") == "eager"
        assert capsys.readouterr().err.count("\n") == 1


def test_unused_knobs_leave_key_and_weights_of_a_run_alone():
    """Run keys and weights from before the knobs existed."""
    assert tiny().key == KEY
    weights = build_model(tiny().model, TASK.spec).stack.layers[0].w_qkv
    assert float(weights.detach().double().sum()) == pytest.approx(SUM, abs=1e-12)


def test_own_layer_computes_what_the_module_does():
    config = ModelConfig(
        block="looped", dim=8, num_heads=2, num_loops=3, injection="add", positions="none", layer="Mixer"
    )
    stack = LoopStack(config, quiet=True)
    embeddings = torch.randn(2, 5, 8)
    (layer,) = stack.layers
    state = torch.zeros_like(embeddings)
    for _ in range(3):
        state = layer(state + embeddings)
    torch.testing.assert_close(stack(embeddings), state)


def test_attention_bias_equals_masked_attention():
    """With a mask, the state equals that of attention over the visible keys alone, written out here."""
    config = ModelConfig(dim=8, num_heads=2, positions="none", attention_bias="first_half")
    stack = LoopStack(config, quiet=True)
    x = torch.randn(1, 6, 8)
    seen = []
    stack.register_layer_hook(lambda loop, layer, before, after: seen.append((before, after)))
    found = stack(x)
    layer = stack.layers[0]
    hidden = F.rms_norm(x, (8,), layer.gain_attention, eps=1e-6)
    query, key, value = (hidden @ layer.w_qkv.T).view(1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
    mixed = torch.softmax(query @ key[:, :, :3].mT / 2, dim=-1) @ value[:, :, :3]
    state = x + mixed.transpose(1, 2).reshape(1, 6, 8) @ layer.w_out.T
    hidden = F.rms_norm(state, (8,), layer.gain_feed_forward, eps=1e-6)
    expected = state + F.gelu(hidden @ layer.w_in.T + layer.b_in) @ layer.w_back.T + layer.b_back
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(seen[0][1], found)


def test_attention_bias_keeps_a_causal_model_causal():
    config = ModelConfig(dim=8, num_heads=2, positions="none", num_loops=2, attention_bias="alibi")
    stack = LoopStack(config, causal=True, quiet=True)
    x = torch.randn(1, 6, 8)
    later = x.clone()
    later[:, 4:] += 1
    torch.testing.assert_close(stack(x)[:, :4], stack(later)[:, :4])
    assert not torch.allclose(stack(x)[:, 4:], stack(later)[:, 4:])


def test_dropout_and_random_start_are_off_outside_training():
    config = replace(tiny(model=LOOPED).model, dropout=0.5, start="random")
    model = build_model(config, TASK.spec)
    inputs = torch.from_numpy(TASK.sample(0, "test", range(4)).inputs)
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))
    torch.testing.assert_close(model(inputs)[:1], model(inputs[:1]))  # not a matter of the batch
    before = model(inputs)
    model.stack.start_seed = 1
    assert not torch.equal(before, model(inputs))


@pytest.mark.parametrize("knob", [{"dropout": 0.5}, {"layer": "Noisy"}])
def test_dropout_with_recomputed_loops_has_the_gradient_of_stored_ones(knob):
    config = replace(tiny(model=LOOPED).model, **knob)
    inputs = torch.from_numpy(TASK.sample(0, "test", range(4)).inputs)
    gradients = []
    for remat in (0, 2):
        model = build_model(config, TASK.spec)
        model.stack.remat = remat
        torch.manual_seed(3)
        model(inputs).square().mean().backward()
        gradients.append(model.embedding.grad)
    torch.testing.assert_close(*gradients)


class Recorded:
    """Stand for a function that CUDA graphs replay, which need a GPU."""

    def __init__(self, function, agree):
        pass

    def drop_graphs(self):
        pass


@pytest.mark.filterwarnings("default")  # compilers emit warnings of their own
@pytest.mark.parametrize(
    ("layer", "remat", "replayed"), [("Mixer", 0, True), ("Mixer", 1, False), ("transformer", 1, True)]
)
def test_own_layer_with_recomputed_loops_is_not_replayed(layer, remat, replayed, monkeypatch):
    """Recomputed loops need the state of the random numbers, which cannot be read during a capture."""
    monkeypatch.setattr(step, "Replayed", Recorded)
    config = tiny(model={**LOOPED, "layer": layer}, train={"remat": remat, "engine": "compiled"})
    stepper = Stepper(build_model(config.model, TASK.spec), config.train, torch.device("cuda"))
    assert isinstance(stepper._step, Recorded) == replayed


def test_layer_hook_sees_every_layer_and_may_replace_its_state():
    stack = LoopStack(ModelConfig(dim=8, num_heads=2, num_layers=2, num_loops=3, positions="none"), quiet=True)
    x = torch.randn(1, 4, 8)
    seen = []
    handle = stack.register_layer_hook(lambda loop, layer, before, after: seen.append((loop, layer)))
    plain = stack(x)
    assert seen == [(loop, layer) for loop in range(3) for layer in range(2)]
    handle.remove()
    stack.register_layer_hook(lambda loop, layer, before, after: before)
    assert torch.equal(stack(x), x)  # every layer is undone
    assert not torch.equal(plain, x)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"coda_layers": -1}, "coda_layers"),
        ({"start": "random", "injection": "none"}, "start"),
        ({"layer": "Mixer", "block": "modulated"}, "layer"),
        ({"layer": "Mixer", "attention_bias": "alibi"}, "layer"),
    ],
)
def test_settings_that_do_not_fit_raise(settings, field):
    with pytest.raises(InputError) as caught:
        tiny(model={**LOOPED, **settings})
    assert caught.value.field == field


def test_own_code_that_does_not_fit_raises():
    class Buffered(nn.BatchNorm1d):
        def __init__(self, config):
            super().__init__(config.dim)

    def wrong_shape(seq_len, num_heads):
        return torch.zeros(seq_len, seq_len)

    def blind(seq_len, num_heads):
        return torch.zeros(1, seq_len, seq_len, dtype=torch.bool)

    def one_argument(seq_len):
        return torch.zeros(1, seq_len, seq_len)

    def raises(seq_len, num_heads):
        return [][num_heads]

    def listed(seq_len, num_heads):
        return [0.0]

    def whole_numbers(seq_len, num_heads):
        return torch.zeros(1, seq_len, seq_len, dtype=torch.long)

    biases = [wrong_shape, blind, one_argument, raises, listed, whole_numbers]
    for item in (Buffered, *biases):
        looped.register(item)
    config = tiny(model=LOOPED).model
    with refused("model.layer", "running_mean"):
        LoopStack(replace(config, layer="Buffered"), quiet=True)
    for name in ("nobody", *(each.__name__ for each in biases)):
        value = "IndexError" if name == "raises" else name
        with refused("model.attention_bias", value):
            LoopStack(replace(config, attention_bias=name), causal=True, quiet=True)(torch.randn(1, 4, 16))
