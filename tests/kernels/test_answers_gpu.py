"""On a card: answers without gradients are captured, replayed and cut in halves, and stay those of the plain engine."""

import copy

import pytest
import torch

from looped.config import ModelConfig
from looped.kernels.cuda_graphs import PLAIN_CALLS, Replayed
from looped.models import build_model
from looped.models.engines import set_engine
from looped.tasks import Spec
from tests.kernels.cases import error
from tests.kernels.plans import Case, Inputs, fused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers warn about their own affairs
]

CUDA = torch.device("cuda")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_answers_are_replayed_and_follow_the_weights(precision):
    """In one launch from the third time on; also after the weights have changed in place, or have moved."""
    spec = Spec("tokens", 11, 7, 33)
    config = ModelConfig(
        block="modulated", dim=64, num_heads=2, num_loops=5, injection="add", positions="rotary",
        modulation_init="random", precision=precision,
    )  # fmt: skip
    plain, fast = (build_model(config, spec).to(CUDA) for _ in range(2))
    set_engine(fast.stack, "fused")
    generator = torch.Generator().manual_seed(3)

    def assert_same() -> None:
        inputs = torch.randint(11, (9, 33), generator=generator).to(CUDA)
        with torch.no_grad():
            wanted, found = (model(inputs, 5, [2, 5]) for model in (plain, fast))
        assert error(found, wanted.double()) < (1e-4 if precision == "float32" else 2e-2)

    for _ in range(PLAIN_CALLS + 2):
        assert_same()
    assert len(fast.stack.all_loops._replayed.captured) == 1
    for model in (plain, fast):
        with torch.no_grad():
            for place, parameter in enumerate(model.parameters()):
                parameter.mul_(1 + 0.1 * (-1) ** place)
    assert_same()
    for parameter in fast.parameters():
        parameter.data = parameter.data.clone()
    for _ in range(PLAIN_CALLS + 2):
        assert_same()
    assert len(fast.stack.all_loops._replayed.captured) == 2


def test_answers_of_copies_and_in_every_mode():
    """A copy has no graphs of its own yet; what was captured in one mode is not replayed in another."""
    spec = Spec("tokens", 11, 7, 33)
    config = ModelConfig(block="looped", dim=64, num_heads=2, num_loops=3, positions="rotary")
    model = build_model(config, spec).to(CUDA)
    inputs = torch.randint(11, (4, 33), device=CUDA)
    with torch.no_grad():
        wanted = model(inputs)
    set_engine(model.stack, "fused")
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        for _ in range(PLAIN_CALLS + 2):
            with mode():
                assert error(model(inputs), wanted.double()) < 1e-4
    copied = copy.deepcopy(model)
    with torch.no_grad():
        assert error(copied(inputs), wanted.double()) < 1e-4


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_answers_in_halves_are_the_same(monkeypatch, batch, precision, tolerance, mode):
    """Launched one by one, and replayed; an odd one goes to the second half, and a single one has no halves."""
    spec = Spec("tokens", 11, 7, 33)
    config = ModelConfig(
        block="modulated", dim=64, num_heads=2, num_loops=5, injection="add", positions="rotary",
        modulation_init="random", precision=precision,
    )  # fmt: skip
    model = build_model(config, spec).to(CUDA)
    inputs = torch.randint(11, (batch, 33), generator=torch.Generator().manual_seed(3)).to(CUDA)
    with torch.no_grad():
        wanted = model(inputs, 5, [2, 5])
    set_engine(model.stack, "fused")
    monkeypatch.setattr("looped.kernels.triton_loops.HALVED_TOKENS", 1)
    for _ in range(PLAIN_CALLS + 2):
        with mode():
            assert error(model(inputs, 5, [2, 5]), wanted.double()) < tolerance


@pytest.mark.parametrize("captured", [False, True])
def test_operands_are_not_overwritten_before_they_are_multiplied(monkeypatch, captured):
    """Twelve loops in groups of two, whose products take longer than the loops in between leave them."""
    from looped.kernels import triton_weight_grads  # Triton is not everywhere

    inputs = Inputs(Case(batch=64, seq_len=128, dim=256, num_heads=4, ff_dim=1024, num_loops=12, read=(11,)))
    wanted = fused(inputs, torch.bfloat16)
    per_loop = 64 * 128 * (6 * 256 + 2 * 1024) * 2
    monkeypatch.setattr(triton_weight_grads, "OPERAND_BYTES", 2 * per_loop)
    found = []

    def call(_given):
        found.append(fused(inputs, torch.bfloat16))
        return tuple(each for each in found[-1].values() if each is not None)

    if captured:
        steps = Replayed(call)
        for _ in range(PLAIN_CALLS + 1):
            results = steps((torch.zeros(1, device=CUDA),))
        got = dict(zip((name for name, each in wanted.items() if each is not None), results, strict=True))
    else:
        call(None)
        got = found[0]
    for name, each in got.items():
        if each is not None:
            assert error(each, wanted[name]) < 1e-3, name
