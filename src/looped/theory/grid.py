"""Cells, ids and labels: the data that a network stores about f, computed without any network.

A token id z numbers the n^d cells. A sequence is the descending tuple of its token ids. A contextual id numbers the
pairs (token, sequence). Ids that no input reaches get labels by linear interpolation between reachable neighbours.
"""

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
MOST_DIGITS = 100  # binary digits of the number of cells
LARGEST = 2.0**1000  # limit for values of f, so that sums of a few of them are finite in float64


@dataclass(frozen=True)
class Grid:
    """[0, 1]^(dim x tokens) cut into cubes of side delta = 1/cells, each with one representative point."""

    dim: int
    tokens: int
    cells: int
    representative: Literal["corner", "centre"] = "corner"

    @property
    def base(self) -> int:
        """B, the number of cells of one token."""
        return self.cells**self.dim

    @property
    def num_sequences(self) -> int:
        """B^N, the number of cells of all tokens."""
        return self.base**self.tokens

    @property
    def repunit(self) -> int:
        """1 + B + ... + B^(N-1)."""
        return (self.num_sequences - 1) // (self.base - 1)

    def coordinates(self, token_id: int) -> tuple[int, ...]:
        """Return the cell number of every coordinate. The first one is the most significant digit of the id."""
        return tuple(token_id // self.cells**power % self.cells for power in reversed(range(self.dim)))

    def point(self, token_id: int) -> Vector:
        """Return the representative point of a cell."""
        offset = HALF if self.representative == "centre" else 0
        return [(cell + offset) / Fraction(self.cells) for cell in self.coordinates(token_id)]

    def points(self, sequence: Sequence[int]) -> np.ndarray:
        """Return the representatives of a sequence as a float array of shape (dim, tokens)."""
        return np.array([[float(x) for x in self.point(z)] for z in sequence]).T

    def sequences(self, duplicates: bool) -> Iterator[TokenIds]:
        """Return all descending tuples of token ids."""
        ids = range(self.base - 1, -1, -1)
        return (combinations_with_replacement if duplicates else combinations)(ids, self.tokens)


def trifling(cells: int, exponent: int = 20) -> Fraction:
    """Return epsilon = 2^-exponent / n, for which 1/epsilon and delta/epsilon are integers for every n."""
    return Fraction(1, cells * 2**exponent)


def require_countable(dim: int, tokens: int, cells: int) -> None:
    """Raise InputError if there are more than 2^100 cells, before any cost is computed."""
    digits = dim * tokens * (cells.bit_length() - 1)
    require(
        digits <= MOST_DIGITS,
        f"cells: expected at most 2^{MOST_DIGITS} cells in all, got dim={dim}, tokens={tokens}, cells={cells}",
    )


def vectors(labels: LabelSequence) -> list[Vector]:
    """Return labels as K lists of d Fractions. Plain numbers count as d = 1."""
    return [[Fraction(v) for v in (y if isinstance(y, Sequence) else [y])] for y in labels]


def tabulate(function: Function, grid: Grid, duplicates: bool) -> Labels:
    """Return the values of f at the representatives of every sequence, as exact Fractions of its floats."""
    table: dict[TokenIds, Sequence[Vector]] = {}
    for sequence in grid.sequences(duplicates):
        values = evaluate(function, grid.points(sequence))
        table[sequence] = [[Fraction(v) for v in column] for column in values.T.tolist()]
    return table


def evaluate(function: Function, points: np.ndarray) -> np.ndarray:
    """Return f at one input. Raise InputError if the user's function fails or returns unusable values."""
    try:
        result = function(points.copy())  # a copy, because the function may change its input
        values = np.asarray(result, dtype=np.complex128 if np.iscomplexobj(result) else np.float64)
    except Exception as error:
        name = getattr(function, "__name__", "f")
        raise InputError(f"function: {name} raised {described(error)} at X = {points.tolist()}") from error
    if values.shape != points.shape:
        expected = f"an array of shape {points.shape}"
    elif np.iscomplexobj(values):
        expected = "real numbers"
    elif np.abs(values).max() < LARGEST:  # False for NaN too
        return values
    else:
        expected = f"finite numbers below {LARGEST:.2g}"
    raise InputError(f"function: expected {expected}, got {values.tolist()} at X = {points.tolist()}")


def refuse_if_not_equivariant(
    function: Function, dim: int, tokens: int, grid: Grid | None = None, tolerance: float = 1e-9
) -> None:
    """Raise InputError with a witness if f(X P) differs from f(X) P at one of a few points, some of them on the grid.

    The tolerance is a share of the largest |f| at these points, so that a function of any size is judged alike.
    """
    rng = np.random.default_rng(0)
    points = [rng.random((dim, tokens)) for _ in range(8)]
    if grid is not None:
        points.append(grid.points([z % grid.base for z in range(tokens)]))
        points += [grid.points(rng.integers(grid.base, size=tokens).tolist()) for _ in range(8)]
    orders = [rng.permutation(tokens) if tokens > 2 else np.arange(tokens)[::-1] for _ in points]
    values = [
        (evaluate(function, x)[:, order], evaluate(function, x[:, order]))
        for x, order in zip(points, orders, strict=True)
    ]
    largest = max(np.abs(expected).max() for expected, _ in values)
    for x, order, (expected, came) in zip(points, orders, values, strict=True):
        if np.abs(expected - came).max() > tolerance * largest:
            raise InputError(
                f"function: expected a permutation equivariant one, but at X = {x.tolist()} with the tokens in the "
                f"order {order.tolist()} it gives {came.tolist()} instead of {expected.tolist()}"
            )


def described(error: Exception) -> str:
    """Return the type and the text of an exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no text'}"


def label(labels: Labels, sequence: TokenIds, token_id: int) -> Vector:
    """Return the label of one token of a sequence."""
    return list(labels[sequence][sequence.index(token_id)])


# ---- contextual ids -----------------------------------------------------------------------------------------------


def number(digits: Sequence[int], base: int) -> int:
    """Return the number with these digits, the most significant first."""
    result = 0
    for digit in digits:
        result = result * base + digit
    return result


def valid_id(grid: Grid, sequence: TokenIds) -> int:
    """Return s_valid = 2 s - (last digit of the smallest token), which leaves n unused numbers after every n."""
    return 2 * number(sequence, grid.base) - sequence[-1] % grid.cells


def paper_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """Return k = 2 z B^N + s_valid, the id of the paper."""
    return 2 * token_id * grid.num_sequences + valid_id(grid, sequence)


def plain_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """Return k = z B^N + s, without unused numbers."""
    return token_id * grid.num_sequences + number(sequence, grid.base)


def lean_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """Return the number whose digits are the other tokens and then this one. Every number below B^N is used."""
    others = list(sequence)
    others.remove(token_id)
    return number([*others, token_id], grid.base)


def selection_rounds(sequence: TokenIds, rounds: int) -> list[tuple[int, int]]:
    """Return (fetched id, number of tokens fetched before) of every round of Step 2.

    A round fetches all tokens with the largest id that is left, and the largest id of all when none is left.
    """
    remaining, result = list(sequence), []
    for _ in range(rounds):
        largest = max(remaining, default=sequence[0])
        result.append((largest, len(sequence) - len(remaining)))
        remaining = [z for z in remaining if z != largest]
    return result


def multiset_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """Return the id with one digit (largest id left, tokens fetched before) per round, in base B(N+1).

    It distinguishes multiplicities.
    """
    digits = [fetched + grid.base * before for fetched, before in selection_rounds(sequence, grid.tokens)]
    return number([token_id, *digits], grid.base * (grid.tokens + 1))


def others_multiset_id(grid: Grid, sequence: TokenIds, token_id: int) -> int:
    """Return ((s N + own count) B + z), where s has the digits of `multiset_id` without the token's own round."""
    rounds, own = [], 0
    for fetched, before in selection_rounds(sequence, grid.tokens):
        if fetched == token_id and before < grid.tokens:
            own = before
        else:
            rounds.append(fetched + grid.base * before)
    return (number(rounds, grid.base * (grid.tokens + 1)) * grid.tokens + own) * grid.base + token_id


def labels_by_id(grid: Grid, labels: Labels, numbering: Callable[[Grid, TokenIds, int], int]) -> dict[int, Vector]:
    """Return the label of every contextual id that a token of a sequence has."""
    return {numbering(grid, s, z): label(labels, s, z) for s in labels for z in set(s)}


def lean_labels(grid: Grid, labels: Labels) -> list[Vector]:
    """Return the label of every `lean_id`. f is symmetric in the other tokens, so their order does not matter."""
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
    """Return labels of all ids: linear between known ids, constant outside. No fill has a smaller largest jump."""
    ids = sorted(known)
    table: list[Vector] = [known[ids[0]]] * (ids[0] + 1)
    for a, b in pairwise(ids):
        slope = [(high - low) / (b - a) for low, high in zip(known[a], known[b], strict=True)]
        table += [[y + t * m for y, m in zip(known[a], slope, strict=True)] for t in range(1, b - a)] + [known[b]]
    return table + [known[ids[-1]]] * (num_ids - len(table))


def printed_fill(known: Mapping[int, Vector], num_ids: int, cells: int) -> list[Vector]:
    """Return the fill of the paper's lin_interp, which divides by n for every gap and therefore overshoots."""
    ids = sorted(known)
    table = fill(known, num_ids)
    for a, b in pairwise(ids):
        for k in range(a + 1, b):
            weight = Fraction(k - a, cells)
            table[k] = [low + weight * (high - low) for low, high in zip(known[a], known[b], strict=True)]
    return table


def largest_jump(table: Sequence[Vector], p: float) -> float:
    """Return max_k |y_k - y_{k-1}|_p, in floating point."""
    values = np.array([[float(v) for v in y] for y in table])
    return float(np.linalg.norm(np.diff(values, axis=0), ord=p, axis=1).max(initial=0.0))
