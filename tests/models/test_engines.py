"""All engines train to the same weights. Without a GPU, the fused kernels run in Triton's interpreter."""

import copy
import io
from dataclasses import replace

import pytest
import torch

from looped.config import ModelConfig, OptimizerConfig, RunConfig
from looped.models import LoopStack
from looped.models.engines import Compiled
from looped.training import set_engine
from looped.training.batches import batch_at
from looped.training.loss import to_device
from looped.training.optim import Muon, orthogonalise
from looped.training.trainer import Trainer
from looped.utils.errors import InputError
from tests.refusal import refused
from tests.training.conftest import tiny

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="with a card, tests/gpu has these on the card")


def opened(config: RunConfig, folder, **volatile) -> Trainer:
    """Return a trainer with open gates, because a new gated block is the identity and would compare nothing."""
    trainer = Trainer(replace(config, train=config.train.override(**volatile)), folder, quiet=True)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return trainer


def trained(trainer: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all weights after the steps of the config, and the outcomes of the steps."""
    config = trainer.config
    seen = [
        trainer.train_step(step, to_device(batch_at(step, config), trainer.device))
        for step in range(config.train.num_steps)
    ]
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return weights.double(), torch.stack(seen)


def distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


# Slow learning rates: AdamW divides a gradient by its size, so rounding decides the step where a gradient is tiny.
FEW_STEPS = {"num_steps": 3, "batch_size": 4, "learning_rate": 3e-3}

CASES = {
    "standard": {"model": {"block": "standard", "num_loops": 1, "num_layers": 2}},
    "looped": {"model": {"block": "looped"}},
    "looped without injection": {"model": {"block": "looped", "injection": "none", "num_layers": 2}},
    **{
        f"modulated by {each}": {"model": {"conditioning": each}}
        for each in ("none", "timestep", "static", "table", "eta", "scale", "gate", "shift")
    },
    "heads on the chip": {"model": {"dim": 32, "num_heads": 1, "positions": "rotary", "attention": "causal"}},
    "heads elsewhere": {"model": {"dim": 24, "num_heads": 2, "positions": "rotary", "activation": "silu"}},
    "the mean of all loops": {"train": {"supervision": "mean"}},
    "the sum of two loops": {"train": {"supervision": "sum", "supervised_loops": 2}},
    "growing loops and sizes": {
        "train": {
            "loop_schedule": "growing", "loop_choices": (1, 2, 3), "size_schedule": "growing",
            "size_choices": (0.5, 1.0), "num_steps": 4, "curriculum_steps": 4,
        }
    },
    "random loops": {"train": {"loop_schedule": "random", "loop_choices": (1, 3)}},
    "truncated backpropagation": {"train": {"backprop_loops": 2}},
    "pieces of a batch, and an average": {"train": {"accumulation": 2, "ema_decay": 0.9}},
    "remat": {"train": {"remat": 2}},
    "limited growth": {"train": {"growth_limit": 1.02}},
    "limited growth of the mean of all loops": {"train": {"growth_limit": 1.02, "supervision": "mean"}},
}  # fmt: skip


@interpreted
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_fused_engine_trains_to_the_weights_of_the_plain_one(changes, tmp_path):
    config = tiny(**{**changes, "train": {**FEW_STEPS, **changes.get("train", {})}})
    plain, plain_seen = trained(opened(config, tmp_path / "eager", engine="eager", remat=0))
    trainer = opened(config, tmp_path / "fused", engine="fused")
    start = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]).double()
    fast, fast_seen = trained(trainer)
    assert trainer.stepper.engine == "fused"
    assert distance(fast, plain) < 1e-5
    assert distance(fast - start, plain - start) < 1e-3  # both have changed alike
    assert distance(fast_seen, plain_seen) < 1e-5


@interpreted
def test_fused_engine_with_muon_trains_to_the_weights_of_the_plain_one(tmp_path):
    """Allow for rounding: Muon rounds its direction to bfloat16 and enlarges small singular values up to 485 times.

    The last bit of a float32 can therefore change the result visibly (3.4445^5 = 485).
    """
    config = tiny(train={**FEW_STEPS, "optimizer": "muon"})
    plain, _ = trained(opened(config, tmp_path / "eager", engine="eager"))
    fast, _ = trained(opened(config, tmp_path / "fused", engine="fused"))
    assert distance(fast, plain) < 1e-3


UNSUPPORTED = {
    "weights in float64": {"precision": "float64"},
    "hardmax attention": {"attention_weights": "hardmax"},
    "norm 'none'": {"norm": "none"},
    "norm 'query-key'": {"norm": "query-key"},
    "injection 'concat'": {"injection": "concat"},
    "conditioning 'additive'": {"conditioning": "additive"},
    "heads of odd": {"dim": 6, "num_heads": 2},
}


@interpreted
@pytest.mark.parametrize(("reason", "model"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_unsupported_model_trains_without_the_fused_engine(reason, model, tmp_path, capsys):
    config = tiny(model=model, train={"num_steps": 2})
    plain = trained(opened(config, tmp_path / "eager", engine="eager"))
    assert capsys.readouterr().err == ""
    trainer = opened(config, tmp_path / "fused", engine="fused")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("looped: not the fused kernels but the eager engine: ")
    assert reason in said
    assert trainer.stepper.engine == "eager"
    for got, wanted in zip(trained(trainer), plain, strict=True):
        assert torch.equal(got, wanted)


def test_fused_engine_without_gpu_or_interpreter_trains_plainly(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert opened(tiny(), tmp_path / "run", engine="fused").stepper.engine == "eager"
    assert "they need a GPU" in capsys.readouterr().err
    assert opened(tiny(), tmp_path / "run", engine="auto").stepper.engine == "eager"
    assert capsys.readouterr().err == ""


@pytest.mark.filterwarnings("default")  # compilers emit warnings of their own
def test_compiled_engine_trains_to_the_weights_of_the_plain_one(tmp_path):
    config = tiny(model={"positions": "rotary"}, train=FEW_STEPS)
    plain, plain_seen = trained(opened(config, tmp_path / "eager", engine="eager"))
    trainer = opened(config, tmp_path / "compiled", engine="compiled")
    fast, fast_seen = trained(trainer)
    assert trainer.stepper.engine == "compiled"
    assert distance(fast, plain) < 1e-5
    assert distance(fast_seen, plain_seen) < 1e-5


@pytest.mark.filterwarnings("default")  # compilers emit warnings of their own
def test_compiled_stack_can_be_pickled():
    stack, embeddings = LoopStack(tiny().model, quiet=True), torch.randn(2, 4, tiny().model.dim)
    set_engine(stack, "compiled")
    true = stack(embeddings)  # the first call compiles
    file = io.BytesIO()
    torch.save(stack, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(stack)):
        assert torch.equal(other(embeddings), true)
        assert all(isinstance(part, Compiled) for part in (other.add_attention, other.add_feed_forward))


@interpreted
@pytest.mark.filterwarnings("default")  # compilers emit warnings of their own
def test_set_engine_replaces_the_last_engine():
    stack = LoopStack(tiny().model, quiet=True)
    assert (set_engine(stack, "fused"), stack.all_loops is None) == ("fused", False)
    assert (set_engine(stack), stack.all_loops is None) == ("eager", True)
    plain = stack.add_attention
    assert (set_engine(stack, "compiled"), stack.add_attention is plain) == ("compiled", False)
    assert (set_engine(stack, "eager"), stack.add_attention is plain) == ("eager", True)
    with refused("engine", "fused"):
        set_engine(stack, "fuse")


@interpreted
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_fused_engine_with_other_dtypes_falls_back(dtype, capsys):
    """Refuse other dtypes for any config, because the kernels would lose digits or fail."""
    stack = LoopStack(tiny().model, quiet=True).to(dtype)
    assert set_engine(stack, "fused") == "eager"
    assert f"they do not cover weights in {str(dtype)[6:]}" in capsys.readouterr().err
    assert stack(torch.randn(2, 4, stack.config.dim)).dtype == dtype


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    batch = to_device(batch_at(0, trainer.config), trainer.device)
    trainer.stepper.gradients(batch, trainer.config.model.num_loops)
    return {name: parameter.grad.clone() for name, parameter in trainer.model.named_parameters()}


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"supervision": "mean"},
        {"backprop_loops": 3},
        {"backprop_loops": 3, "supervision": "mean"},
        {"growth_limit": 1.02},
    ],
    ids=str,
)
@pytest.mark.parametrize("remat", [1, 2, 5, 9])
def test_rematerialisation_gives_the_same_gradients(train, remat, tmp_path):
    config = tiny(model={"num_loops": 5}, train=train)
    kept = gradients(opened(config, tmp_path / "kept", engine="eager"))
    again = gradients(opened(config, tmp_path / "again", engine="eager", remat=remat))
    for name, wanted in kept.items():
        assert distance(again[name], wanted) < 1e-6, name


def test_rematerialisation_stores_fewer_tensors(tmp_path):
    """Check that each piece of loops stores one state instead of everything."""
    kept = {}
    for remat in (0, 1, 5):
        trainer = opened(tiny(model={"num_loops": 10}), tmp_path / str(remat), engine="eager", remat=remat)
        batch, numbers = to_device(batch_at(0, trainer.config), trainer.device), []

        def keep(tensor, numbers=numbers):
            numbers.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            list(trainer.model.states_at(batch.inputs, 10, [9]))
        kept[remat] = sum(numbers)
    assert kept[5] < kept[1] < kept[0] / 5


class Matrices(torch.nn.Module):
    """Return tall, wide and square matrices, two of them with the same shape."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"w_qkv": (48, 16), "w_out": (16, 16), "w_in": (64, 16), "w_back": (16, 64), "again": (64, 16)}
        generator = torch.Generator().manual_seed(2)
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape, generator=generator)))


def test_muon_equals_pytorch_step_by_step():
    """Compare the momentum bit by bit, and directions up to 2^-8, a unit in the last place of bfloat16.

    A library may sum the bfloat16 matmuls of a batch of matrices in another order.
    """
    config = OptimizerConfig(kind="muon", muon_learning_rate=0.05, muon_momentum=0.9, muon_weight_decay=0.1)
    ours, theirs = Matrices(), Matrices()
    muon = Muon(dict(ours.named_parameters()), config)
    true = torch.optim.Muon(theirs.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    generator = torch.Generator().manual_seed(3)
    for step in range(5):
        lr_fraction = torch.tensor(1 - step / 10)
        for group in true.param_groups:
            group["lr"] = 0.05 * float(lr_fraction)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator) * (1 + 10.0 ** torch.randn((), generator=generator))
            other.grad = one.grad.clone()
        start = {name: one.detach().clone() for name, one in ours.named_parameters()}
        muon.step(lr_fraction)
        true.step()
        for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert torch.equal(muon.momentum[name], true.state[other]["momentum_buffer"])
            assert distance(one.detach() - start[name], other.detach() - start[name]) < 2**-8
            with torch.no_grad():
                one.copy_(other)  # each step by itself


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 48, 16), (2, 16, 64)])
def test_orthogonalised_matrices_are_nearly_orthogonal(shape):
    """Check that singular values are in the quintic's range, and that singular vectors are those of the matrix."""
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    found = orthogonalise(matrices).float()
    for matrix, got in zip(matrices, found, strict=True):
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        assert torch.linalg.svdvals(got).min() > 0.4
        assert torch.linalg.svdvals(got).max() < 1.3
        inner = left.T @ got @ right.T  # diagonal, where the vectors are the same
        assert (inner - inner.diagonal().diag()).norm() < 0.1 * inner.norm()


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB ..."), "GPU memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), "memory"),
        (MemoryError(), "memory"),
    ],
)
def test_out_of_memory_raises_in_one_line(error, whose, tmp_path):
    trainer = opened(tiny(train={"accumulation": 2, "remat": 3}), tmp_path / "run", engine="eager")

    def out_of_memory(*_):
        raise error

    trainer.stepper._step = out_of_memory
    with pytest.raises(InputError) as caught:
        trainer.fit()
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"out of {whose} for ")
    for part in ("a batch of 8 with 3 loops", "train.accumulation (now 2)", "train.remat (now 3"):
        assert part in text
    assert caught.value.__cause__ is None
    assert not (tmp_path / "run").exists()


def test_other_errors_are_not_reported_as_out_of_memory(tmp_path):
    trainer = opened(tiny(), tmp_path / "run", engine="eager")

    def wrong(*_):
        raise RuntimeError("shapes do not fit")

    trainer.stepper._step = wrong
    with pytest.raises(RuntimeError, match="shapes"):
        trainer.fit()


@pytest.mark.parametrize(("engine", "reason"), [("eager", "the eager engine does not have it"), ("fused", None)])
def test_float8_in_another_engine_runs_in_bfloat16_and_says_so(engine, reason, capsys):
    config = ModelConfig(block="looped", dim=512, num_heads=8, num_loops=2, positions="none", precision="float8")
    stack = LoopStack(config, generator=torch.Generator().manual_seed(0))
    plain = LoopStack(replace(config, precision="bfloat16"), generator=torch.Generator().manual_seed(0))
    x = torch.randn(1, 16, 512, generator=torch.Generator().manual_seed(1))
    assert set_engine(stack, engine) == engine
    told = capsys.readouterr().err
    assert told == ("" if reason is None else f"looped: matmuls in bfloat16 instead of float8: {reason}\n")
    set_engine(plain, engine)
    with torch.no_grad():
        distance = (stack(x) - plain(x)).norm() / plain(x).norm()
    assert distance == 0 if reason else 1e-3 < distance < 0.1
