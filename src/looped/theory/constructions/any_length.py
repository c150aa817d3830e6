"""One network for sequences of every length 1..Nmax, equal tokens included. The paper fixes N.

Without a marker no Transformer distinguishes X from [X, X], because both give the same attention. With one marker
token a uniform head reads the length: 2d+8 rows, width 2d+6, two heads, time-modulated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from looped.theory.constructions import steps
from looped.theory.engine import Engine
from looped.theory.grid import (
    Function,
    Grid,
    TokenIds,
    Vector,
    label,
    number,
    refuse_if_not_equivariant,
    require_countable,
    selection_rounds,
    tabulate,
    trifling,
)
from looped.theory.network import HALF, FeedForward, Form, Head, LoopedNetwork, Size, entries, row
from looped.utils.errors import InputError, require, require_counts

MOST_IDS = 100_000


@dataclass(frozen=True)
class AnyLength:
    """The network of a function. Call it on X of shape (dim, tokens) with 1..`most_tokens` tokens, for exact values."""

    network: LoopedNetwork
    dim: int
    most_tokens: int
    engine: Engine

    @property
    def size(self) -> Size:
        """The size of the network, counted from its matrices."""
        return self.network.size

    def __call__(self, inputs: np.ndarray | Sequence) -> np.ndarray:
        array = np.asarray(inputs)
        if array.ndim != 2 or array.shape[0] != self.dim or not 1 <= array.shape[1] <= self.most_tokens:
            raise InputError(f"inputs: expected shape ({self.dim}, 1..{self.most_tokens}), got {array.shape}")
        tokens = array.shape[1]
        marked = np.zeros((1, self.dim + 1, tokens + 1), dtype=object)
        marked[0, : self.dim, :tokens] = entries(array)
        marked[0, self.dim, tokens] = 1  # the marker: all coordinates 0, flag 1
        return self.engine(marked)[0, :, :tokens]


def approximate_any_length(
    function: Function, dim: int, most_tokens: int, cells: int, representative: Literal["corner", "centre"] = "corner"
) -> AnyLength:
    """Build the block for f, a function of (dim, tokens) arrays of any length up to `most_tokens`."""
    require_counts(dim=dim, most_tokens=most_tokens, cells=cells)
    require(cells >= 2, f"cells: expected at least 2, got {cells}")
    dim, most_tokens, cells = int(dim), int(most_tokens), int(cells)  # NumPy integers would overflow
    require_countable(dim, most_tokens, cells)
    base = cells**dim
    num_ids = base * math.comb(base + most_tokens - 1, most_tokens - 1)
    if num_ids > MOST_IDS:
        raise InputError(f"cells: expected at most {MOST_IDS:,} ids, got {num_ids:,}. Take fewer cells or tokens.")
    known: dict[int, Vector] = {}
    for tokens in range(1, most_tokens + 1):
        grid = Grid(dim, tokens, cells, representative)
        refuse_if_not_equivariant(function, dim, tokens, grid)
        labels = tabulate(function, grid, duplicates=True)
        known |= {length_id(base, most_tokens, s, z): label(labels, s, z) for s in labels for z in set(s)}
    network = any_length_block(Grid(dim, most_tokens, cells), known)
    return AnyLength(network, dim, most_tokens, Engine(network))


def count_unit(most_tokens: int) -> int:
    """Return lcm(1..Nmax+1), which makes the head's result, a multiple of (fetched + 1)/(tokens + 1), an integer."""
    return math.lcm(*range(1, most_tokens + 2))


def length_id(base: int, most_tokens: int, sequence: TokenIds, token_id: int) -> int:
    """Return the number with the token's id in front and the digits (largest id left, count) of Nmax rounds."""
    unit, tokens = count_unit(most_tokens), len(sequence)
    rounds = selection_rounds(sequence, most_tokens)
    digits = [fetched + base * unit * (before + 1) // (tokens + 1) for fetched, before in rounds]
    return number([token_id, *digits], base * (unit + 1))


def any_length_block(grid: Grid, known: dict[int, Vector]) -> LoopedNetwork:
    """Return modulated-minimal for up to `grid.tokens` tokens, with a row that keeps the marker from being selected."""
    base, unit = grid.base, count_unit(grid.tokens)
    radix = base * (unit + 1)
    ids = sorted(known)
    encode = steps.start_rows(grid, "count", "marker", per_output=("out",))
    encode["marker"] = row("flag")
    encode |= {f"out{i}": Form(const=y) for i, y in enumerate(known[ids[0]], 1)}
    layer = FeedForward(tuple(encode))
    steps.count_thresholds(layer, grid, trifling(grid.cells))
    chosen = row("id") + row("gone") - row("best") + HALF - (base + 1) * row("marker")
    layer.add("gone", -4 * base * layer.relu(chosen))
    steps.read_digits_and_labels(layer, grid, radix)
    modulation, schedule = steps.label_schedule(grid, ids, known)
    key = row("id") + row("gone") - 4 * base * row("marker")
    selecting = Head(row("id"), key, row("one"), "best")
    counting = Head(Fraction(-unit, 2 * base) * row("gone") + unit * row("marker"), Form(), Form(), "count")
    inputs = (*(f"x{i}" for i in range(1, grid.dim + 1)), "flag")
    decode = tuple(row(f"out{i}") for i in range(1, grid.dim + 1))
    return LoopedNetwork(inputs, encode, layer, decode, len(schedule), (selecting, counting), modulation)
