"""Continuity of a trained network as JSON: the paper's coefficient loop by loop, and the three moduli."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from looped.analysis.coefficient import Ratios, measure_ratios, row_lengths
from looped.analysis.network import Network, Output, Precision, exact_products, precise_twin
from looped.analysis.network_moduli import LargestChanges, ModulusName, measure_moduli
from looped.analysis.samples import Samples
from looped.models import LoopModel
from looped.tasks.base import MAX_SEED
from looped.utils.errors import as_number, require, require_counts, require_field, require_one_of, require_within
from looped.utils.stats import bootstrap

MODULI: tuple[ModulusName, ...] = get_args(ModulusName)
DEFINITIONS = {
    "coefficient": "mean of |f_t(X + D)_n - f_t(X)_n| / |D_n|, for random changes of length epsilon * token_size",
    "relative": "mean coefficient * token_size / size: relative change of the output per relative change of the input",
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
    """Return the continuity coefficient and the moduli of a model around some examples. The model does not change.

    `epsilon` and `deltas` are relative to `token_size`, the typical length of an embedded token. `directions` random
    directions are drawn per example. The moduli take most of the time, and `moduli=()` skips them. They use `positions`
    places per example and `iterations` steps of power iteration. `output` is the state, or the normalised state that
    the head multiplies. `precision` is that of the measurement (default: the model's, at least float32). `batch_size`,
    the number of sequences in one pass, changes only time and memory.
    """
    precision = precision or ("float64" if model.config.precision == "float64" else "float32")
    _check_names(precision=[precision], output=[output], modulus=moduli)
    require_counts(directions=directions, positions=positions, iterations=iterations)
    if batch_size is not None:
        require_counts(batch_size=batch_size)
    require_within("seed", seed, 0, MAX_SEED)
    _check_changes(precision, epsilon, deltas)
    examples = _as_examples(inputs, model.spec.kind)

    with torch.no_grad(), exact_products():
        twin = precise_twin(model, precision)
        twin.iterate(examples, num_loops)  # checks inputs and loops, and computes none of them
        embeddings = twin.embed(examples)
        token_size = float(row_lengths(embeddings).double().square().mean().sqrt())
        require(token_size > 0, "inputs: expected embeddings that are not all 0, got only zeros")
        device = next(model.parameters()).device
        network = Network(twin.to(device), num_loops or model.config.num_loops, output)
        batch_size = batch_size or network.sequences_per_pass(embeddings.shape[1])
        samples = Samples(examples, embeddings, seed, directions, positions, device)
        loops = measure_ratios(network, samples.batches(batch_size), epsilon * token_size)
        for t, loop in enumerate(loops):
            is_finite = bool(np.isfinite(loop.ratio).all())
            require(is_finite, f"model: expected finite outputs, got an overflow in loop {t + 1}")
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


def _check_names(**settings: Sequence[str]) -> None:
    choices = {"precision": get_args(Precision), "output": get_args(Output), "modulus": MODULI}
    for setting, names in settings.items():
        for name in names:
            require_one_of(setting, name, choices[setting])


def _check_changes(precision: Precision, epsilon: float, deltas: Sequence[float]) -> None:
    # A change must be well above the rounding error of the numbers that it changes.
    smallest = 100 * torch.finfo(getattr(torch, precision)).eps
    require_field(isinstance(deltas, Sequence), "deltas", "a list of numbers", repr(deltas))
    for name, value in [("epsilon", epsilon), *(("deltas", delta) for delta in deltas)]:
        in_range = smallest <= as_number(value) < np.inf
        require_field(in_range, name, f"at least {smallest:.1e} in {precision}", value)
    require_field(list(deltas) == sorted(set(deltas)), "deltas", "increasing numbers", tuple(deltas))


def _as_examples(inputs: Tensor | np.ndarray, kind: str) -> Tensor:
    """Return token ids as int64 or vectors as float64, on the CPU, where the model checks every value."""
    if isinstance(inputs, Tensor):
        inputs = inputs.detach().cpu()
        array = (inputs.double() if inputs.is_floating_point() else inputs).numpy()
    else:
        require(isinstance(inputs, np.ndarray), f"inputs: expected a tensor or an array, got {type(inputs).__name__}")
        array = inputs
    allowed, expected = ("iu", "integer token ids") if kind == "tokens" else ("iuf", "numbers")
    require(array.dtype.kind in allowed, f"inputs: expected {expected}, got {array.dtype}")
    require(array.ndim >= 2 and array.size > 0, f"inputs: expected at least one example, got shape {array.shape}")
    array = np.ascontiguousarray(array, dtype=np.int64 if kind == "tokens" else np.float64)
    require(bool(np.isfinite(array).all()), "inputs: expected finite numbers, got NaN or infinity")
    return torch.from_numpy(array)


def _coefficient_row(loop: Ratios, token_size: float) -> dict[str, float | None]:
    row = _summary(loop.ratio)
    relative = row["mean"] * token_size / loop.size if loop.size else None
    return {**row, "size": loop.size, "relative": relative}


def _modulus_rows(
    parts: Sequence[LargestChanges], num_examples: int, deltas: Sequence[float], lengths: Sequence[float]
) -> dict[str, Any]:
    """Return the local Lipschitz constants and a row per delta. `largest` is a lower bound of the supremum."""
    ratio, sampled = (
        np.concatenate([getattr(part, name).double().cpu().numpy() for part in parts], axis=1).reshape(
            1 + len(deltas), num_examples, -1
        )
        for name in ("ratio", "sampled")
    )
    # A modulus never decreases, because it also covers X and X' that are closer than delta.
    changes = np.maximum.accumulate(ratio[1:] * np.reshape(lengths, (-1, 1, 1)), axis=0)
    rows = [
        {
            "relative_delta": delta,
            "delta": length,
            "modulus": float(values.max()),
            "ratio": float(values.max()) / length,
            "sampled": float(ratios.max()) * length,
            "per_case": _summary(values),
        }
        for delta, length, values, ratios in zip(deltas, lengths, changes, sampled[1:], strict=True)
    ]
    local = {"largest": float(ratio[0].max()), "sampled": float(sampled[0].max()), **_summary(ratio[0])}
    return {"local": local, "rows": rows}


def _summary(values: np.ndarray) -> dict[str, float]:
    """Return mean and median, and a 95 % bootstrap interval of the mean over examples, the first axis."""
    # Sorted, so that the order of the examples does not matter.
    example_means = np.sort(values.reshape(len(values), -1).mean(axis=1))
    low, high = bootstrap(lambda rows: float(example_means[rows].mean()), len(example_means))
    return {
        "mean": float(example_means.mean()),
        "median": float(np.median(values)),
        "low": low,
        "high": high,
    }
