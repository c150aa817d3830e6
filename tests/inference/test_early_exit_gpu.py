"""Early exit on a GPU: blocks of loops of the fused engine stop examples where single loops of plain PyTorch do."""

import pytest
import torch

from looped.config import ModelConfig
from looped.inference.early_exit import ExitRule, answer_early
from looped.models import build_model
from looped.models.engines import set_engine
from looped.tasks import Spec
from tests.kernels.cases import DEVICE, error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers emit warnings of their own
]


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 2e-2)])
@pytest.mark.parametrize(("dim", "batch"), [(64, 1), (64, 35), (256, 150)])  # the last one has a kernel for all loops
def test_examples_stop_where_single_loops_stop_them(dim, batch, precision, tolerance):
    """Allow a fifth of the examples another loop, because two of their classes may be nearly equal."""
    config = ModelConfig(
        block="looped", dim=dim, num_heads=dim // 64, num_loops=4, injection="add", positions="rotary",
        precision=precision,
    )  # fmt: skip
    model = build_model(config, Spec("tokens", 7, 5, 97)).to(DEVICE).eval()
    inputs = torch.randint(7, (batch, 97), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    counted = torch.arange(97, device=DEVICE).expand_as(inputs) < 2
    given = inputs, counted, ExitRule("stable", 3), 11
    wanted = answer_early(model, *given)
    assert set_engine(model.stack, "fused") == "fused"
    found = answer_early(model, *given)
    same = found.loops == wanted.loops
    assert same.sum() >= 0.8 * batch
    assert error(found.scores[same], wanted.scores[same]) < tolerance
