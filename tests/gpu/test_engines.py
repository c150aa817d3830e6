"""On a card: the captured engine gives the numbers of the plain one."""

import pytest
import torch

from looped.training.data import batch_at
from looped.training.engine import GraphedGradients
from looped.training.objective import to_device
from looped.training.trainer import Trainer
from tests.training.conftest import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers warn about their own affairs
]

CHANGING = {
    "num_steps": 12, "batch_size": 16, "accumulation": 2, "device": "cuda", "ema_decay": 0.9,
    "loop_schedule": "growing", "loop_choices": (2, 3), "size_schedule": "growing", "size_choices": (0.5, 1.0),
}  # fmt: skip


def train_steps(engine: str, folder, **model) -> tuple[torch.Tensor, list[list[float]], Trainer]:
    config = tiny(model=model, train={**CHANGING, "engine": engine})
    trainer = Trainer(config, folder, quiet=True)
    seen = [
        trainer.train_step(step, to_device(batch_at(step, config), trainer.device)).tolist()
        for step in range(config.train.num_steps)
    ]
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]), seen, trainer


@pytest.mark.parametrize("block", ["looped", "modulated"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_captured_engine_equals_the_plain_one(block, positions, tmp_path):
    plain, plain_seen, _ = train_steps("eager", tmp_path / "eager", block=block, positions=positions)
    fast, fast_seen, trainer = train_steps("compiled", tmp_path / "compiled", block=block, positions=positions)
    assert isinstance(trainer.gradients, GraphedGradients)
    assert trainer.gradients.usable
    assert len(trainer.gradients.captured) >= 3  # loops and sizes changed on the way
    torch.testing.assert_close(torch.tensor(fast_seen), torch.tensor(plain_seen), rtol=1e-3, atol=1e-3)
    assert (plain - fast).norm() / plain.norm() < 1e-3


def test_bfloat16_trains_on_the_card(tmp_path):
    config = tiny(model={"precision": "bfloat16", "positions": "rotary"}, train={"device": "cuda", "num_steps": 30})
    result = Trainer(config, tmp_path / "run", quiet=True).fit()
    assert result["finished"]
    assert not result["hardware"].startswith("CPU")
