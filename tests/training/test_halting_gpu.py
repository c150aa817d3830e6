"""The halting gate on a GPU: its loss from the states of the fused kernels is the one of plain PyTorch."""

import pytest
import torch

from looped.models import build_model
from looped.models.engines import set_engine
from looped.training.loss import objective, to_device
from tests.training.conftest import TASK, tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers emit warnings of their own
]


def test_loss_and_gradients_of_the_fused_engine_equal_those_of_plain_pytorch():
    knobs = {"dim": 64, "num_heads": 4, "block": "looped", "halting_gate": True}
    config = tiny(model=knobs, train={"supervision": "halting"})
    model = build_model(config.model, TASK.spec).cuda()
    assert model.w_halt is not None
    with torch.no_grad():
        model.w_halt.normal_(generator=torch.Generator("cuda").manual_seed(1))
    batch = to_device(TASK.sample(0, "train", range(8)), torch.device("cuda"))
    found = {}
    for engine in ("eager", "fused"):
        assert set_engine(model.stack, engine) == engine
        model.zero_grad()
        loss = objective(model, batch, 3, config.train).loss
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in (model.w_halt, model.embedding)]
        found[engine] = [loss.detach(), *gradients]
    for eager, fused in zip(*found.values(), strict=True):
        torch.testing.assert_close(eager, fused, rtol=1e-2, atol=1e-4)
