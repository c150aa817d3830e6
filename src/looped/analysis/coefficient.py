"""The paper's continuity coefficient after every loop.

f_t maps the embeddings X of an example, (seq, dim) with positions included, to the output embeddings after loop t. With

    s    the root mean square length of an embedded token over all examples of the measurement,
    D    a change of X whose rows are independent, uniformly random directions, each of length epsilon * s,

the coefficient after loop t is the mean, over examples, draws of D and positions n, of

    |f_t(X + D)_n - f_t(X)_n| / |D_n|.

The paper only says "applying small perturbations to the input and quantifying the change in output embeddings".
docs/continuity.md lists our choices for the details.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from looped.analysis.network import Network
from looped.analysis.samples import Sample


class Ratios(NamedTuple):
    """The measurements after one loop."""

    ratio: Float[np.ndarray, "example direction position"]
    """change of the output divided by change of the input"""
    size: float
    """root mean square length of an output embedding"""


def measure_ratios(network: Network, batches: Iterable[Sample], length: float) -> list[Ratios]:
    """Return the ratios after every loop, for changes of `length` in every token."""
    ratios: list[list[np.ndarray]] = [[] for _ in range(network.num_loops)]
    squares: list[list[np.ndarray]] = [[] for _ in range(network.num_loops)]
    for batch in batches:
        inputs = [batch.embeddings, *_perturb(batch, length)]
        # Rounding makes the actual change differ a little from `length`.
        lengths = [row_lengths(perturbed - batch.embeddings) for perturbed in inputs[1:]]
        runs = zip(*(network.every_loop(each) for each in inputs), strict=True)
        for t, (before, *after) in enumerate(runs):
            changes = [row_lengths(each - before) / change for each, change in zip(after, lengths, strict=True)]
            ratios[t].append(torch.stack(changes, dim=1).double().cpu().numpy())
            squares[t].append(before.double().square().sum(dim=-1).cpu().numpy())
    return [
        Ratios(np.concatenate(each), float(np.sqrt(np.concatenate(square).mean())))
        for each, square in zip(ratios, squares, strict=True)
    ]


def row_lengths(rows: Float[Tensor, "... dim"]) -> Float[Tensor, "..."]:
    """Return the Euclidean length of every row."""
    return torch.linalg.vector_norm(rows, dim=-1)


def _perturb(batch: Sample, length: float) -> list[Tensor]:
    return [batch.embeddings + noise * (length / row_lengths(noise)[..., None]) for noise in batch.noise.unbind(dim=1)]
