"""Measurements inside a trained network as JSON, loop by loop: modulation, size and change of the state, continuity."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from looped.analysis.continuity import measure_continuity
from looped.inference.run import with_changes
from looped.kernels import attention_map
from looped.models import LoopModel
from looped.models.conditioning import PARTS
from looped.utils.errors import require

# The paper's names -> a field of Modulation, and attention (0) or the feed-forward layer (1).
MODULATIONS = {
    "alpha1": ("scale", 0),
    "alpha2": ("scale", 1),
    "gamma1": ("gate", 0),
    "gamma2": ("gate", 1),
    "shift1": ("shift", 0),
    "shift2": ("shift", 1),
}
DEFINITIONS = {
    "state": "root mean square of the state after the loop",
    "change": "root mean square of the change in the loop, as a fraction of that of the state after it",
    "continuity": "change of the state per length of a small random change of the input (docs/continuity.md)",
    "modulation": "root mean square over layers and channels of the scales, gates and shifts of the loop",
    "modulated": "parts of the modulation that the conditioning sets; the others are gains, equal in every loop",
    "low, high": "first and last decile of the modulation over layers and channels",
}


def inspect_model(model: LoopModel, inputs: Tensor | np.ndarray, *, num_loops: int | None = None) -> dict[str, Any]:
    """Return one row per loop for some examples, token ids (batch, seq) or vectors. The model does not change."""
    continuity = measure_continuity(model, inputs, num_loops=num_loops, moduli=())
    num_loops = int(continuity["num_loops"])
    tables = modulation(model, num_loops)
    rows = [
        {
            "loop": t + 1,
            "state": state,
            "change": change,
            "continuity": continuity["per_loop"][t]["mean"],
            "modulation": {name: _spread(table[t]) for name, table in tables.items()},
        }
        for t, (state, change) in enumerate(_sizes(model, inputs, num_loops))
    ]
    return {
        "definitions": DEFINITIONS,
        "num_examples": continuity["num_examples"],
        "num_loops": num_loops,
        "trained_loops": model.config.num_loops,
        "modulated": modulated(model),
        "rows": rows,
    }


@torch.no_grad()
def modulation(model: LoopModel, num_loops: int | None = None) -> dict[str, Tensor]:
    """Return the modulation tables (loop, layer, dim) by the paper's names, without those that the model lacks."""
    num_loops = model.stack.checked_loops(num_loops)
    tables = model.stack.modulation(num_loops, next(model.parameters()).device)
    named = {name: getattr(tables[sublayer], kind) for name, (kind, sublayer) in MODULATIONS.items()}
    return {name: table.cpu() for name, table in named.items() if table is not None}


def modulated(model: LoopModel) -> list[str]:
    """Return the paper's names of the parts that the conditioning sets. Other parts are equal in every loop."""
    return [name for name, part in MODULATIONS.items() if part in PARTS[model.config.resolved_conditioning]]


@torch.no_grad()
def attention_maps(
    model: LoopModel, inputs: Tensor | np.ndarray, *, num_loops: int | None = None
) -> Float[Tensor, "loop layer head batch query key"]:
    """Return how much every query attends to every key, in each loop, layer and head. The model does not change."""
    stack, config = model.stack, model.config
    ours = config.layer == "transformer"
    require(ours, f"model.layer: expected a Transformer layer for maps of its attention, got {config.layer}")
    tokens, num_loops = torch.as_tensor(inputs).to(stack.device), stack.checked_loops(num_loops)
    embeddings = model.embed(tokens)
    prepared = stack.prepare(num_loops, tokens.shape[1], stack.device)
    maps: list[Tensor] = []

    def look(loop: int, layer: int, before: Tensor, _: Tensor) -> None:
        seen = attention_map(
            before,
            prepared.modulation[loop][layer][0],
            prepared.weights[layer].w_qkv,
            num_heads=config.num_heads,
            causal=stack.causal and prepared.bias is None,
            bias=prepared.bias,
            rotation=prepared.rotation,
            attention_weights=config.attention_weights,
            norm=config.norm,
        )
        maps.append(seen.transpose(0, 1).float().cpu())

    handle = stack.register_layer_hook(look)
    try:
        for _ in stack.iterate(embeddings, num_loops):
            pass
    finally:
        handle.remove()
    return torch.stack(maps).unflatten(0, (num_loops, config.num_layers))


@torch.no_grad()
def _sizes(model: LoopModel, inputs: Tensor | np.ndarray, num_loops: int) -> list[tuple[float, float]]:
    """Return the size of the state after each loop, and the size of its change relative to it."""
    states = model.iterate(torch.as_tensor(inputs).to(next(model.parameters()).device), num_loops)
    return [(_rms(state), change) for state, change in with_changes(states)]


def _spread(values: Tensor) -> dict[str, float]:
    values = values.double().flatten()
    low, high = torch.quantile(values, torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
    return {"rms": _rms(values), "low": low, "high": high}


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())
