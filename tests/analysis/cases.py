"""Shared cases of the continuity tests: small measurements, and a network with known constants."""

import torch

from looped.models import build_model
from tests.models.cases import TOKENS, examples, small

QUICK = {"positions": 2, "iterations": 2, "directions": 2, "deltas": (1e-3, 1e-1)}


def mixing_model(mix: float, num_loops: int, seq_len: int, spec=TOKENS, dim: int = 8):
    """Return a linear model whose loop is x_n + mix * (mean of all x): no norm, no feed-forward, equal attention."""
    config = small(block="looped", num_loops=num_loops, norm="none", positions="none", activation="relu", dim=dim)
    model = build_model(config, spec)
    (layer,) = model.stack.layers
    with torch.no_grad():
        layer.w_qkv.zero_()
        layer.w_qkv[-dim:] = torch.eye(dim)
        layer.w_out.copy_(mix * torch.eye(dim, dtype=torch.float64))
        layer.w_back.zero_()
    return model, examples(spec, batch=3, seq_len=seq_len)
