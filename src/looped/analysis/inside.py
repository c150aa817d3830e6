"""A trained network from inside, loop by loop, as JSON: what its modulation sets, how large the state is and how much a
loop changes it, and how far a small change of the input has grown."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from looped.analysis.continuity import measure_continuity
from looped.inference.run import with_changes
from looped.models import LoopModel
from looped.models.conditioning import PARTS

# The paper's names: a field of Modulation, of attention (0) or of the feed-forward layer (1).
MODULATIONS = {
    "alpha1": ("scale", 0),
    "alpha2": ("scale", 1),
    "gamma1": ("gate", 0),
    "gamma2": ("gate", 1),
    "shift1": ("shift", 0),
    "shift2": ("shift", 1),
}
DEFINITIONS = {
    "state": "root mean square of the state's numbers after the loop",
    "change": "root mean square of what the loop added to it, as a share of the state after it",
    "continuity": "how far the state moves per length of a small random change of the input (docs/continuity.md)",
    "modulation": "root mean square over layers and channels of what scales (or shifts) the loop's norms and gates",
    "modulated": "what of the modulation the model's conditioning sets; the rest are gains, the same in every loop",
    "low, high": "of the modulation: a tenth of them lie below, a tenth above",
}


def look_inside(model: LoopModel, inputs: Tensor | np.ndarray, *, num_loops: int | None = None) -> dict[str, Any]:
    """One row per loop for the given examples, token ids (batch, seq) or vectors. The model is left as it was."""
    continuity = measure_continuity(model, inputs, num_loops=num_loops, moduli=())
    num_loops = int(continuity["num_loops"])
    tables = modulation(model, num_loops)
    rows = []
    for t, (state, change) in enumerate(_sizes(model, inputs, num_loops)):
        rows.append({
            "loop": t + 1,
            "state": state,
            "change": change,
            "continuity": continuity["per_loop"][t]["mean"],
            "modulation": {name: _spread(table[t]) for name, table in tables.items()},
        })  # fmt: skip
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
    """Tables (loop, layer, dim) by the paper's names; what a model leaves alone (1, or no shift) has none."""
    num_loops = model.stack.checked_loops(num_loops)
    tables = model.stack.modulation(num_loops, next(model.parameters()).device)
    found = {name: getattr(tables[sublayer], kind) for name, (kind, sublayer) in MODULATIONS.items()}
    return {name: table.cpu() for name, table in found.items() if table is not None}


def modulated(model: LoopModel) -> list[str]:
    """What of the modulation the conditioning sets, by the paper's names; the rest is the same in every loop."""
    return [name for name, part in MODULATIONS.items() if part in PARTS[model.config.resolved_conditioning]]


@torch.no_grad()
def _sizes(model: LoopModel, inputs: Tensor | np.ndarray, num_loops: int) -> list[tuple[float, float]]:
    """Of each loop: the state's size, and that of its change relative to it."""
    states = model.iterate(torch.as_tensor(inputs).to(next(model.parameters()).device), num_loops)
    return [(_rms(state), change) for state, change in with_changes(states)]


def _spread(values: Tensor) -> dict[str, float]:
    values = values.double().flatten()
    low, high = torch.quantile(values, torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
    return {"rms": _rms(values), "low": low, "high": high}


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())
