"""Generation by a CUDA graph gives the scores of a whole pass."""

import pytest
import torch

from looped.config import ModelConfig
from looped.inference.cache import Decoder
from looped.inference.early_exit import ExitRule
from looped.models import build_model
from looped.tasks import Spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SPEC = Spec("tokens", input_size=64, output_size=64, seq_len=40, causal=True, shared_vocabulary=True)


@pytest.mark.parametrize("block", ["looped", "modulated"])
@torch.no_grad()
def test_captured_tokens_have_the_scores_of_a_whole_pass(block):
    config = ModelConfig(block=block, dim=64, num_heads=4, num_loops=5, positions="rotary",
                         modulation_init="random" if block == "modulated" else "exact")  # fmt: skip
    model = build_model(config, SPEC).cuda()
    text = torch.randint(64, (3, 40), generator=torch.Generator().manual_seed(0)).cuda()
    decoder = Decoder(model, 40, torch.zeros(3, dtype=torch.long), 7)
    pieces = [decoder.read(text[:, :5]), *(decoder.read(text[:, place : place + 1]) for place in range(5, 40))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(text, 7), rtol=0, atol=1e-4)
    assert decoder._replayed is not None
    assert decoder._replayed.captured


@torch.no_grad()
def test_padded_text_has_its_scores_alone():
    config = ModelConfig(block="looped", dim=64, num_heads=4, num_loops=5, positions="rotary")
    model = build_model(config, SPEC).cuda()
    text = torch.randint(64, (1, 20), generator=torch.Generator().manual_seed(0)).cuda()
    padded = torch.cat((torch.zeros(1, 9, dtype=torch.long).cuda(), text), dim=1)
    decoder = Decoder(model, 29, torch.tensor([9]))
    pieces = [decoder.read(padded[:, :12]), *(decoder.read(padded[:, place : place + 1]) for place in range(12, 29))]
    torch.testing.assert_close(torch.cat(pieces, dim=1)[:, 9:], model(text), rtol=0, atol=1e-4)


@torch.no_grad()
def test_early_exit_runs_on_a_gpu():
    model = build_model(ModelConfig(dim=64, num_heads=4, num_loops=5, positions="rotary"), SPEC).cuda()
    decoder = Decoder(model, 3, torch.zeros(2, dtype=torch.long))
    scores, loops = decoder.read_until(torch.tensor([[1], [2]]).cuda(), ExitRule("stable", 2))
    assert scores.isfinite().all()
    assert all(2 <= each <= 5 for each in loops)
