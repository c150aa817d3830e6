"""Cells, ids and labels: what the network is to know about f, computed without any network (proof of Theorem "rate").

A token id z numbers the n^d cells; a sequence is the descending tuple of its token ids; a contextual id numbers
(token, sequence). Ids that no input reaches get a label by linear interpolation between the realizable neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, pairwise
from typing import Literal

import numpy as np

from looped.theory.network import HALF, Number
from looped.utils.errors import InputError, require

Function = Callable[[np.ndarray], np.ndarray]
Vector = list[Fraction]
TokenIds = tuple[int, ...]
Labels = Mapping[TokenIds, Sequence[Vector]]
LabelSequence = Sequence[Number] | Sequence[Sequence[Number]]
MOST_DIGITS = 100  # binary ones, of a number of cells
LARGEST = 2.0**1000  # of a value of f: sums and differences of a few are then still numbers of float64


@dataclass(frozen=True)
class Grid:
    """[0, 1]^(dim x tokens) cut into cubes of side delta = 1/cells, each with one representative point."""

    dim: int
    tokens: int
    cells: int
    representative: Literal["corner", "centre"] = "corner"

    @property
    def base(self) -> int:
        return self.cells**self.dim  # B

    @property
    def num_sequences(self) -> int:
        return self.base**self.tokens  # B^N

    @property
    def repunit(self) -> int:
        """1 + B + ... + B^(N-1)."""
        return (self.num_sequences - 1) // (self.base - 1)

    def coordinates(self, token_id: int) -> tuple[int, ...]:
        """Cell number per coordinate, the first one most significant."""
        return tuple(token_id // self.cells**power % self.cells for power in reversed(range(self.dim)))

    def point(self, token_id: int) -> Vector:
        offset = HALF if self.representative == "centre" else 0
        return [(cell + offset) / Fraction(self.cells) for cell in self.coordinates(token_id)]

    def points(self, sequence: Sequence[int]) -> np.ndarray:
        """The representatives of a sequence as a (dim, tokens) float array."""
        return np.array([[float(x) for x in self.point(z)] for z in sequence]).T

    def sequences(self, duplicates: bool) -> Iterator[TokenIds]:
        """All descending tuples of token ids."""
        ids = range(self.base - 1, -1, -1)
        return (combinations_with_replacement if duplicates else combinations)(ids, self.tokens)


def trifling(cells: int, exponent: int = 20) -> Fraction:
    """Return epsilon = 2^-exponent / n, for which 1/epsilon and delta/epsilon are integers for every n."""
    return Fraction(1, cells * 2**exponent)


def require_countable(dim: int, tokens: int, cells: int) -> None:
    """That the cells of all sequences can be counted: what needs far more than any memory has is not even computed."""
    digits = dim * tokens * (cells.bit_length() - 1)
    require(
        digits <= MOST_DIGITS,
        f"dim={dim}, tokens={tokens}, cells={cells} make more than 2^{MOST_DIGITS} cells: take fewer",
    )


def vectors(labels: LabelSequence) -> list[Vector]:
    """Return labels as K lists of d Fractions. Plain numbers count as d = 1."""
    return [[Fraction(v) for v in (y if isinstance(y, Sequence) else [y])] for y in labels]


def tabulate(function: Function, grid: Grid, duplicates: bool) -> Labels:
    """The exact values of f's floats at the representatives of every sequence, column by column."""
    table: dict[TokenIds, Sequence[Vector]] = {}
    for sequence in grid.sequences(duplicates):
        values = evaluate(function, grid.points(sequence))
        table[sequence] = [[Fraction(v) for v in column] for column in values.T.tolist()]
    return table


def evaluate(function: Function, points: np.ndarray) -> np.ndarray:
    """f at one input. What a user's function does wrong is said in one line."""
    try:
        came = function(points.copy())  # a copy, so that a function that changes its input does no harm
        values = np.asarray(came, dtype=np.complex128 if np.iscomplexobj(came) else np.float64)
    except Exception as error:
        name = getattr(function, "__name__", "f")
        raise InputError(f"the function {name} raised {described(error)} at X = {points.tolist()}") from error
    if values.shape != points.shape:
        raise InputError(f"the function must return an array of shape {points.shape}, got {values.shape}")
    if np.iscomplexobj(values):
        raise InputError(f"the function must return real numbers, got {values.tolist()} at {points.tolist()}")
    if not np.isfinite(values).all():
        raise InputError(f"the function must be finite on [0, 1], got {values.tolist()} at {points.tolist()}")
    if np.abs(values).max() >= LARGEST:
        raise InputError(f"the function must stay below {LARGEST:.2g}, got {values.tolist()} at {points.tolist()}")
    return values


def described(error: Exception) -> str:
    """An exception of a user's code in one line: its type and its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no text'}"


def label(labels: Labels, sequence: TokenIds, token_id: int) -> Vector:
    return list(labels[sequence][sequence.index(token_id)])


# ---- contextual ids -----------------------------------------------------------------------------------------------


def number(digits: Sequence[int], base: int) -> int:
    result = 0
    for digit in digits:
        result = result * base + digit
    return result


def valid_id(grid: Grid, sequence: TokenIds) -> int:
    """s_valid = 2 s - (last digit of the smallest token): n used numbers, then n dummies."""
    return 2 * number(sequence, grid.base) - sequence[-1] % grid.cells


def paper_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    return 2 * token_id * grid.num_sequences + valid_id(grid, sequence)


def plain_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """k = z B^N + s, without dummies."""
    return token_id * grid.num_sequences + number(sequence, grid.base)


def lean_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """k' = (the other tokens' digits, then the own): every number below B^N is used."""
    others = list(sequence)
    others.remove(token_id)
    return number([*others, token_id], grid.base)


def multiset_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """Round by round (largest id left, tokens gone before) in base S = B(N+1): tells multiplicities apart."""
    remaining, digits = list(sequence), []
    for _ in range(grid.tokens):
        largest = max(remaining, default=sequence[0])
        digits.append(largest + grid.base * (grid.tokens - len(remaining)))
        remaining = [z for z in remaining if z != largest]
    return number([token_id, *digits], grid.base * (grid.tokens + 1))


def others_multiset_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """The same with the own token's round taken out: ((s N + its count) B + z) with s in base S; below N S^(N-1) B."""
    rounds, remaining, own = [], list(sequence), 0
    for _ in range(grid.tokens):
        gone = grid.tokens - len(remaining)
        largest = max(remaining, default=sequence[0])
        if largest == token_id and token_id in remaining:
            own = gone
        else:
            rounds.append(largest + grid.base * gone)
        remaining = [z for z in remaining if z != largest]
    return (number(rounds, grid.base * (grid.tokens + 1)) * grid.tokens + own) * grid.base + token_id


def labels_by_id(grid: Grid, labels: Labels, numbering: Callable[[Grid, TokenIds, int], int]) -> dict[int, Vector]:
    """Contextual id -> label, for every token of every sequence."""
    return {numbering(grid, s, z): label(labels, s, z) for s in labels for z in set(s)}


def lean_labels(grid: Grid, labels: Labels) -> list[Vector]:
    """The label of every k' in 0..B^N-1; f is symmetric in the other tokens, so their order does not matter."""
    table = []
    for k in range(grid.num_sequences):
        digits = [k // grid.base**power % grid.base for power in range(grid.tokens)]
        table.append(label(labels, tuple(sorted(digits, reverse=True)), digits[0]))
    return table


def multiset_labels(grid: Grid, labels: Labels) -> list[Vector]:
    """Return the labels of all ids below N S^(N-1) B, S = B(N+1). Most are never reached and may have any label."""
    known = labels_by_id(grid, labels, others_multiset_id)
    unused = next(iter(known.values()))
    num_ids = grid.tokens * (grid.base * (grid.tokens + 1)) ** (grid.tokens - 1) * grid.base
    return [known.get(k, unused) for k in range(num_ids)]


def fill(known: Mapping[int, Vector], num_ids: int) -> list[Vector]:
    """Linear in k between consecutive known ids and constant outside: the fill with the smallest largest jump."""
    ids = sorted(known)
    table: list[Vector] = [known[ids[0]]] * (ids[0] + 1)
    for a, b in pairwise(ids):
        slope = [(high - low) / (b - a) for low, high in zip(known[a], known[b], strict=True)]
        table += [[y + t * m for y, m in zip(known[a], slope, strict=True)] for t in range(1, b - a)] + [known[b]]
    return table + [known[ids[-1]]] * (num_ids - len(table))


def printed_fill(known: Mapping[int, Vector], num_ids: int, cells: int) -> list[Vector]:
    """The paper's lin_interp, which divides by n whatever the gap is and so overshoots."""
    ids = sorted(known)
    table = fill(known, num_ids)
    for a, b in pairwise(ids):
        for k in range(a + 1, b):
            weight = Fraction(k - a, cells)
            table[k] = [low + weight * (high - low) for low, high in zip(known[a], known[b], strict=True)]
    return table


def largest_jump(table: Sequence[Vector], p: float) -> float:
    """max_k |y_k - y_{k-1}|_p, in floating point."""
    values = np.array([[float(v) for v in y] for y in table])
    return float(np.linalg.norm(np.diff(values, axis=0), ord=p, axis=1).max(initial=0.0))
