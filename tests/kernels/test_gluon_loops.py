"""All loops in one launch, in the emulator: states and gradients against the definition in float64."""

from dataclasses import replace

import pytest
import torch

from tests.kernels.cases import DEVICE, error, laboratory
from tests.kernels.plans import Case, Inputs, bound, by_definition, check, taken_apart

pytest.importorskip("triton.experimental.gluon")

from looped.kernels import triton_loops
from looped.kernels.reference import LayerWeights, Rotation
from looped.kernels.triton_loops import LoopPlan, fused_loops
from tests.kernels.gluon_emulator import emulated

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="the GPU runs the kernel itself")
BFLOAT16 = torch.bfloat16
SHAPE = Case(batch=1, seq_len=128, dim=256, num_heads=4, ff_dim=256, num_loops=2, read=(1,))
CASES = {
    "several sequences": replace(SHAPE, batch=3),
    "122 tokens": replace(SHAPE, seq_len=122),
    "65 tokens, causal": replace(SHAPE, seq_len=65, causal=True),
    "odd, causal": replace(SHAPE, seq_len=101, causal=True, batch=2),
    "causal": replace(SHAPE, causal=True),
    "no rotation, no injection": replace(SHAPE, rotary=False, injection=False, activation="relu"),
    "no modulation": replace(SHAPE, attention=(), feed_forward=(), activation="silu"),
    "modulation of one sublayer": replace(SHAPE, attention=(), feed_forward=("scale",)),
    "several answers": replace(SHAPE, seq_len=90, num_loops=4, read=(0, 1, 3)),
    "many hidden channels": replace(SHAPE, ff_dim=1024, num_loops=1, read=(0,)),
}


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


@pytest.fixture
def launches(monkeypatch) -> list[bool]:
    """Let the fused function use the emulated kernel; return a list that grows with its calls: whether they keep."""
    gluon, seen = emulated("looped.kernels.gluon_loops"), []
    run_loops = gluon.run_loops

    def watched(*args, kept, **options) -> None:
        seen.append(kept is not None)
        run_loops(*args, kept=kept, **options)

    gluon.run_loops = watched
    monkeypatch.setattr(triton_loops, "gluon_kernels", {"loops": gluon}.get)
    for limit in ("BUSY_FOR_ANSWERS", "BUSY_FOR_TRAINING"):
        monkeypatch.setattr(triton_loops, limit, 0.0)
    return seen


def answers(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    case = inputs.case
    rotation = None if inputs.rotation is None else Rotation(*(each.to(BFLOAT16) for each in inputs.rotation))
    plan = LoopPlan(case.num_loops, case.read, case.num_heads, case.causal, case.activation, BFLOAT16, rotation)
    with torch.no_grad():
        return fused_loops(plan, *taken_apart(inputs.tensors))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_answers_in_one_launch_match_definition(case, launches):
    inputs = Inputs(case)
    exact = by_definition(inputs, torch.float64)
    plain = by_definition(inputs, torch.float32, BFLOAT16)
    for t, state in zip(case.read, answers(inputs), strict=True):
        wanted = exact[f"state {t}"]
        assert error(state, wanted) <= bound(BFLOAT16, error(plain[f"state {t}"], wanted))
    assert launches == [False]


TRAINED = {
    "122 tokens, causal": replace(SHAPE, seq_len=122, batch=3, causal=True),
    "no rotation, two answers": replace(SHAPE, seq_len=100, rotary=False, num_loops=3, read=(0, 2)),
    "no modulation": replace(SHAPE, attention=(), feed_forward=(), injection=False, activation="relu"),
}


@pytest.mark.parametrize("case", TRAINED.values(), ids=TRAINED)
def test_training_forward_in_one_launch_matches_definition(case, launches):
    check(case, BFLOAT16)
    assert launches == [True]


@pytest.mark.parametrize(
    "case",
    [
        replace(SHAPE, seq_len=64),
        replace(SHAPE, seq_len=129),
        replace(SHAPE, dim=128, num_heads=2),
        replace(SHAPE, num_heads=8),
        replace(SHAPE, ff_dim=320),
        replace(SHAPE, num_layers=2),
        replace(SHAPE, attention=("shift",)),
    ],
    ids=["short", "long", "narrow", "small heads", "hidden width", "layers", "shift"],
)
def test_answers_of_other_blocks_take_the_other_kernels(case, launches):
    answers(Inputs(replace(case, batch=1, num_loops=1, read=(0,))))
    assert launches == []


@pytest.mark.parametrize(("dtype", "covered"), [(torch.float32, False), (BFLOAT16, True)])
def test_covers_bfloat16_alone(dtype, covered):
    gluon = emulated("looped.kernels.gluon_loops")
    shapes = (1, 768, 256), (1, 256, 256), (1, 1024, 256), (1, 1024), (1, 256, 1024), (1, 256)
    weights = LayerWeights(*(torch.zeros(shape, dtype=dtype) for shape in shapes))
    assert gluon.covers(weights, num_heads=4, seq_len=122, tokens=122) == covered


@pytest.mark.parametrize(
    ("sequences", "seq_len", "busy"), [(132, 128, 1.0), (133, 128, 133 / 264), (66, 64, 0.25), (1, 128, 1 / 132)]
)
def test_share_busy_counts_rounds_and_tokens(sequences, seq_len, busy):
    gluon = emulated("looped.kernels.gluon_loops", num_multiprocessors=132)
    assert gluon.share_busy(sequences * seq_len, seq_len, torch.device("cpu")) == pytest.approx(busy)


def test_attempt_of_a_kernel_that_fails_says_so_once(capsys):
    from looped.kernels.gluon_common import attempt

    def fail() -> None:
        raise NotImplementedError("first line\nno such name")

    assert not attempt("a test", fail)
    assert not attempt("a test", lambda: None)
    assert attempt("another test", lambda: None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "looped: a test uses the Triton kernels, the Gluon kernel failed: NotImplementedError no such name"
