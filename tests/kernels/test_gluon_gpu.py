"""On a GPU of the Hopper kind: the Gluon kernels against the definition in float64, at real sizes."""

from dataclasses import replace

import pytest
import torch

from looped.kernels.reference import Rotation
from tests.kernels.cases import bound, error
from tests.kernels.plans import Case, Inputs, by_definition, check, taken_apart

CUDA = torch.device("cuda")
BFLOAT16 = torch.bfloat16


def is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_hopper(), reason="no Hopper GPU"),
    pytest.mark.filterwarnings("default"),  # compilers warn about their own affairs
]

REAL = Case(batch=3, seq_len=128, dim=256, num_heads=4, ff_dim=1024, num_loops=3, read=(2,))
CASES = {
    "128 tokens": REAL,
    "122 tokens": replace(REAL, seq_len=122),
    "101 tokens, causal, two answers": replace(REAL, seq_len=101, causal=True, read=(0, 2)),
    "65 tokens": replace(REAL, seq_len=65, batch=7),
    "no rotation, no injection": replace(REAL, rotary=False, injection=False, activation="relu"),
    "no modulation": replace(REAL, attention=(), feed_forward=(), activation="silu", seq_len=127),
    "growth limit": replace(REAL, batch=5, growth_limit=1.05),
}
KERNELS = {"loops": "run_loops", "activation": "activation_products", "attention": "attend_backward"}


@pytest.fixture
def launches(monkeypatch) -> dict[str, int]:
    """Let the kernels run whatever the batch, and count their calls; what goes wrong in them is an error."""
    from looped.kernels import triton_loops
    from looped.kernels.triton_common import gluon_kernels

    counts = dict.fromkeys(KERNELS, 0)
    for name, function in KERNELS.items():
        module = gluon_kernels(name)
        monkeypatch.setattr(module, "attempt", lambda _purpose, launch: launch() is None)
        original = getattr(module, function)

        def counted(*args, name=name, original=original, **options) -> None:
            counts[name] += 1
            original(*args, **options)

        monkeypatch.setattr(module, function, counted)
    for limit in ("BUSY_FOR_ANSWERS", "BUSY_FOR_TRAINING", "FEWEST_TOKENS"):
        monkeypatch.setattr(triton_loops, limit, 0)
    return counts


def answers(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    from looped.kernels.triton_loops import LoopPlan, fused_loops  # Triton is not everywhere

    case = inputs.case
    rotation = None if inputs.rotation is None else Rotation(*(each.to(BFLOAT16) for each in inputs.rotation))
    plan = LoopPlan(case.num_loops, case.read, case.num_heads, case.causal, case.activation, BFLOAT16, rotation)
    with torch.no_grad():
        return fused_loops(plan, *taken_apart(inputs.tensors))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_answers_in_one_launch_match_definition(case, launches):
    inputs = Inputs(case)
    exact, plain = by_definition(inputs, torch.float64), by_definition(inputs, torch.float32, BFLOAT16)
    for t, state in zip(case.read, answers(inputs), strict=True):
        wanted = exact[f"state {t}"]
        assert error(state, wanted) <= bound(BFLOAT16, error(plain[f"state {t}"], wanted))
    assert launches == {"loops": 1, "activation": 0, "attention": 0}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_states_and_gradients_match_definition(case, launches):
    check(case, BFLOAT16)
    assert launches == {"loops": 1, "activation": case.num_loops, "attention": case.num_loops}


@pytest.mark.parametrize("seq_len", [128, 122])
def test_many_sequences_give_the_same_bits_again(seq_len, launches):
    """More of them than multiprocessors, several times: a race would show."""
    inputs = Inputs(replace(REAL, batch=300, seq_len=seq_len, num_loops=6, read=(5,)))
    (first,) = answers(inputs)
    for _ in range(5):
        (again,) = answers(inputs)
        assert torch.equal(first, again)
    few = Inputs(inputs.case)
    few.tensors[:2] = [each[-2:] for each in inputs.tensors[:2]]
    (last,) = answers(few)
    assert torch.equal(first[-2:], last)
