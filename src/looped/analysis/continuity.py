"""How continuous a trained network is: the paper's coefficient loop by loop, and the three moduli, as JSON."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from looped.analysis.coefficient import Ratios, measure_ratios, row_lengths
from looped.analysis.network import Network, Output, Precision, exact_products, precise_twin
from looped.analysis.network_moduli import Found, ModulusName, measure_moduli
from looped.analysis.samples import Samples
from looped.models import LoopModel
from looped.tasks.base import MAX_SEED
from looped.utils.errors import as_number, require, require_counts, require_one_of
from looped.utils.stats import bootstrap

MODULI: tuple[ModulusName, ...] = get_args(ModulusName)
DEFINITIONS = {
    "coefficient": "mean of |f_t(X + D)_n - f_t(X)_n| / |D_n|, every token moved at random by epsilon * token_size",
    "relative": "mean coefficient * token_size / size: share of change of the output per share of change of the input",
    "sequence": "sup |f(X) - f(X')| for |X - X'| <= delta",
    "context": "sup |f(X)_n - f(X')_n| for |X - X'| <= delta and X_n = X'_n",
    "token": "sup |f(X)_n - f(X')_n| for |X_n - X'_n| <= delta and X_q = X'_q for q != n",
    "local": "modulus / delta as delta -> 0 at each X (and n): largest singular value of that part of the Jacobian",
}


def measure_continuity(
    model: LoopModel,
    inputs: Tensor | np.ndarray,
    *,
    num_loops: int | None = None,
    epsilon: float = 1e-3,
    directions: int = 4,
    seed: int = 0,
    moduli: Sequence[ModulusName] = MODULI,
    deltas: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0),
    positions: int = 4,
    iterations: int = 20,
    output: Output = "state",
    precision: Precision | None = None,
    batch_size: int | None = None,
) -> dict[str, Any]:
    """Continuity coefficient and moduli of a model around the given examples. The model is left as it was.

    `epsilon` and `deltas` are relative to `token_size`, the typical length of an embedded token. `directions` are drawn
    per example. The moduli take most of the time: `positions` places per example and `iterations` steps of power
    iteration each; `moduli=()` leaves them out. `output` is the state or what the read-out multiplies.
    `precision` is the measurement's (default: the model's, and float32 at least). `batch_size`, the sequences of one
    pass, changes time and memory alone.
    """
    precision = precision or ("float64" if model.config.precision == "float64" else "float32")
    _check_names(precision=[precision], output=[output], modulus=moduli)
    require_counts(directions=directions, positions=positions, iterations=iterations)
    if batch_size is not None:
        require_counts(batch_size=batch_size)
    require(0 <= seed <= MAX_SEED, f"seed must be in 0..{MAX_SEED}, got {seed}")
    _check_changes(precision, epsilon, deltas)
    examples = _as_examples(inputs, model.spec.kind)

    with torch.no_grad(), exact_products():
        twin = precise_twin(model, precision)
        twin.iterate(examples, num_loops)  # refuses inputs and loops that the model cannot take, and computes no loop
        embeddings = twin.embed(examples)
        token_size = float(row_lengths(embeddings).double().square().mean().sqrt())
        require(token_size > 0, "expected inputs whose embeddings are not all 0")
        device = next(model.parameters()).device
        network = Network(twin.to(device), num_loops or model.config.num_loops, output)
        batch_size = batch_size or network.sequences_per_pass(embeddings.shape[1])
        samples = Samples(examples, embeddings, seed, directions, positions, device)
        loops = measure_ratios(network, samples.batches(batch_size), epsilon * token_size)
        for t, loop in enumerate(loops):
            finite = bool(np.isfinite(loop.ratio).all())
            require(finite, f"expected a network with finite outputs, got one that overflows in loop {t + 1}")
        lengths = [delta * token_size for delta in deltas]
        parts = [
            measure_moduli(network, batch, moduli, lengths, iterations, batch_size)
            for batch in samples.batches(max(1, batch_size // positions))
            if moduli
        ]
    per_loop = [{"loop": t + 1, **_coefficient_row(loop, token_size)} for t, loop in enumerate(loops)]
    return {
        "definitions": DEFINITIONS,
        "output": output,
        "precision": precision,
        "num_examples": len(examples),
        "seq_len": examples.shape[1],
        "num_loops": network.num_loops,
        "token_size": token_size,
        "epsilon": epsilon,
        "directions": directions,
        "positions": min(positions, examples.shape[1]),
        "iterations": iterations,
        "seed": seed,
        "coefficient": per_loop[-1],
        "per_loop": per_loop,
        "moduli": {
            name: _modulus_rows([part[name] for part in parts], len(examples), deltas, lengths) for name in moduli
        },
    }


def _check_names(**given: Sequence[str]) -> None:
    known = {"precision": get_args(Precision), "output": get_args(Output), "modulus": MODULI}
    for what, names in given.items():
        for name in names:
            require_one_of(what, name, known[what])


def _check_changes(precision: Precision, epsilon: float, deltas: Sequence[float]) -> None:
    # A change must stand out of the rounding of what is changed.
    smallest = 100 * torch.finfo(getattr(torch, precision)).eps
    require(isinstance(deltas, Sequence), f"expected a list of deltas, got {deltas!r}")
    for name, value in [("epsilon", epsilon), *(("deltas", delta) for delta in deltas)]:
        fits = smallest <= as_number(value) < np.inf
        require(fits, f"{name} must be at least {smallest:.1e} in {precision}, got {value}")
    require(list(deltas) == sorted(set(deltas)), f"deltas must increase, got {tuple(deltas)}")


def _as_examples(inputs: Tensor | np.ndarray, kind: str) -> Tensor:
    """Token ids as int64 or vectors as float64, on the CPU: there the model looks at every value."""
    if isinstance(inputs, Tensor):
        inputs = inputs.detach().cpu()
        array = (inputs.double() if inputs.is_floating_point() else inputs).numpy()
    else:
        require(isinstance(inputs, np.ndarray), f"expected a tensor or an array, got {type(inputs).__name__}")
        array = inputs
    allowed, words = ("iu", "whole numbers as token ids") if kind == "tokens" else ("iuf", "numbers")
    require(array.dtype.kind in allowed, f"expected {words}, got {array.dtype}")
    require(array.ndim >= 2 and array.size > 0, f"expected at least one example, got the shape {array.shape}")
    array = np.ascontiguousarray(array, dtype=np.int64 if kind == "tokens" else np.float64)
    require(bool(np.isfinite(array).all()), "expected finite inputs, got some that are not")
    return torch.from_numpy(array)


def _coefficient_row(loop: Ratios, token_size: float) -> dict[str, float | None]:
    row = _summary(loop.ratio)
    relative = row["mean"] * token_size / loop.size if loop.size else None
    return {**row, "size": loop.size, "relative": relative}


def _modulus_rows(
    parts: Sequence[Found], num_examples: int, deltas: Sequence[float], lengths: Sequence[float]
) -> dict[str, Any]:
    """The local Lipschitz constants and a row per delta; `largest` stands for the supremum."""
    ratio, sampled = (
        np.concatenate([getattr(part, name).double().cpu().numpy() for part in parts], axis=1).reshape(
            1 + len(deltas), num_examples, -1
        )
        for name in ("ratio", "sampled")
    )
    # Of X and X' at most delta apart, some may be nearer: a modulus never falls.
    reached = np.maximum.accumulate(ratio[1:] * np.reshape(lengths, (-1, 1, 1)), axis=0)
    rows = [
        {
            "relative_delta": delta,
            "delta": length,
            "modulus": float(values.max()),
            "ratio": float(values.max()) / length,
            "sampled": float(drawn.max()) * length,
            "per_case": _summary(values),
        }
        for delta, length, values, drawn in zip(deltas, lengths, reached, sampled[1:], strict=True)
    ]
    local = {"largest": float(ratio[0].max()), "sampled": float(sampled[0].max()), **_summary(ratio[0])}
    return {"local": local, "rows": rows}


def _summary(values: np.ndarray) -> dict[str, float]:
    """Mean and median of all, and a 95 % interval of the mean: the bootstrap's over examples, the first axis."""
    # Sorted, so that the order of the examples cannot matter.
    of_examples = np.sort(values.reshape(len(values), -1).mean(axis=1))
    low, high = bootstrap(lambda rows: float(of_examples[rows].mean()), len(of_examples))
    return {
        "mean": float(of_examples.mean()),
        "median": float(np.median(values)),
        "low": low,
        "high": high,
    }
