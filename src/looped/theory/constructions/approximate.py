"""`approximate(f, ...)`: a function to the network of its proof, with exact values, every state and the error bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import comb
from typing import TYPE_CHECKING, Literal

import numpy as np

from looped.theory.constructions import lean, paper
from looped.theory.engine.engine import Engine
from looped.theory.faults import require_known
from looped.theory.grid import (
    Function,
    Grid,
    TokenIds,
    Vector,
    evaluate,
    fill,
    label,
    labels_by_id,
    lean_id,
    lean_labels,
    multiset_id,
    others_multiset_id,
    paper_id,
    plain_id,
    require_countable,
    tabulate,
)
from looped.theory.lemmas.memorizer import DifferenceCode
from looped.theory.lemmas.quantizer import trifling
from looped.theory.lemmas.streams import Grouping, StreamCode
from looped.theory.moduli import as_target
from looped.theory.network import LoopedNetwork, Number, Size, entries, exactly
from looped.theory.targets import Lipschitz, Target
from looped.utils.errors import InputError, require, require_counts, require_one_of

if TYPE_CHECKING:
    from looped.theory.bounds import Bound

Variant = Literal[
    "paper",
    "lean",
    "lean-stream",
    "lean-horner",
    "lean-multiset",
    "modulated",
    "modulated-minimal",
    "modulated-sqrt",
]
Codes = Sequence[DifferenceCode] | Sequence[StreamCode]
MOST_BITS = 10**9
MOST_BYTES = 4 * 2**30
MOST_SECONDS = 3600.0
BYTES_PER_LABEL, SECONDS_PER_LOOP, SECONDS_PER_BIT = 400, 3e-4, 1.5e-9  # measured on one core; used for refusals only


@dataclass(frozen=True)
class Plan:
    """What a variant will need, known before anything is built."""

    variant: Variant
    grid: Grid
    num_bits: int

    @property
    def num_ids(self) -> int:
        """Labels that the network stores: K, B^N or the realizable ids R."""
        base, tokens, sequences = self.grid.base, self.grid.tokens, self.grid.num_sequences
        return {
            "paper": 2 * base * sequences,
            "modulated": base * sequences,
            "modulated-minimal": base * comb(base + tokens - 2, tokens - 1),
            "lean": 2 * sequences,
            "lean-multiset": tokens * (base * (tokens + 1)) ** (tokens - 1) * base,
        }.get(self.variant, sequences)

    @property
    def loops(self) -> int:
        grid, ids = self.grid, self.num_ids
        start = grid.cells + grid.tokens
        if self.variant in ("paper", "modulated"):
            return start + ids
        if self.variant == "lean":
            return start - 1 + ids
        if self.variant == "modulated-minimal":
            return start - 2 + ids
        if self.variant in ("lean-stream", "lean-multiset"):
            return start + self.num_bits * (ids - 1)
        if self.variant == "lean-horner":
            return start + self.num_bits * ids
        return start - 1 + Grouping.best(ids, self.num_bits).loops

    @property
    def code_bits(self) -> int:
        """Digits of the longest number that labels are packed into, about."""
        if self.variant in ("modulated", "modulated-minimal"):
            return 0
        if self.variant == "modulated-sqrt":
            return self.num_bits * Grouping.best(self.num_ids, self.num_bits).group
        per_label = {"paper": 1, "lean": 1, "lean-horner": 2 * self.num_bits}.get(self.variant, self.num_bits)
        return self.num_ids * per_label

    @property
    def fits_float64(self) -> bool:
        """Whether the code survives 53 digits: the slope that takes it apart is as long as it is, so twice its own."""
        return 2 * self.code_bits <= 53

    def refuse_if_too_large(self) -> None:
        bytes_ = self.num_ids * self.grid.dim * BYTES_PER_LABEL
        seconds = self.loops * (SECONDS_PER_LOOP + self.grid.dim * self.code_bits * SECONDS_PER_BIT)
        if bytes_ > MOST_BYTES or seconds > MOST_SECONDS:
            streams = self.num_bits > 1 and self.loops != replace(self, num_bits=1).loops
            bits, fewer = (f", bits={self.num_bits:,}", "cells or bits") if streams else ("", "cells")
            raise InputError(
                f"{self.variant} with dim={self.grid.dim}, tokens={self.grid.tokens}, cells={self.grid.cells}{bits} "
                f"needs {self.num_ids:,} labels ({bytes_ / 2**30:,.1f} GiB) and {self.loops:,} loops ({seconds:,.0f} s "
                f"per evaluation); the limits are {MOST_BYTES / 2**30:.0f} GiB and {MOST_SECONDS:,.0f} s: take fewer "
                f"{fewer}"
            )


@dataclass(frozen=True)
class Trace:
    """The state after every loop: `values[t, i, j]` is row `rows[i]` of token j after t loops (t = 0: the encoding)."""

    rows: tuple[str, ...]
    values: np.ndarray

    def row(self, name: str) -> np.ndarray:
        return self.values[:, self.rows.index(name)]


@dataclass(frozen=True)
class Approximation:
    """A function's network. Call it on X in [0, 1] of shape (dim, tokens) or (batch, dim, tokens), for exact values."""

    target: Target
    plan: Plan
    network: LoopedNetwork
    epsilon: Fraction
    jumps: tuple[Fraction, ...]  # per coordinate: the largest |y_k - y_{k-1}| (0 where labels are stored themselves)
    spans: tuple[Fraction, ...]  # per coordinate: the range of the labels
    resolutions: tuple[Fraction, ...]  # per coordinate: span 2^-q of a stream (0 for the other variants)
    labels: dict[TokenIds, Sequence[Vector]]
    value_of: Callable[[TokenIds, int], Vector]
    engine: Engine

    @property
    def grid(self) -> Grid:
        return self.plan.grid

    @property
    def size(self) -> Size:
        return self.network.size

    @property
    def serves_duplicates(self) -> bool:
        """Whether inputs with two tokens in one cell are covered by the construction."""
        return self.plan.variant in ("modulated-minimal", "lean-multiset") or self.grid.tokens <= 2

    def code_value(self, token_ids: Sequence[int]) -> list[Vector]:
        """What the network must return for these cells, computed without it."""
        ordered = tuple(sorted(token_ids, reverse=True))
        return [self.value_of(ordered, z) for z in token_ids]

    def __call__(self, inputs: np.ndarray | Sequence) -> np.ndarray:
        array, single = self._inputs(inputs)
        values = self.engine(array)
        return values[0] if single else values

    def trace(self, inputs: np.ndarray | Sequence) -> Trace:
        """Every row after every loop, for one input."""
        array, single = self._inputs(inputs)
        if not single:
            raise InputError(f"trace takes one input of shape (dim, tokens), got {np.shape(inputs)}")
        states = [np.stack([state.row(name)[0] for name in self.network.rows]) for state in self.engine.states(array)]
        return Trace(self.network.rows, np.stack(states))

    def bound(self, p: float = 2, seed: int = 0) -> Bound:
        """The error bound term by term with the measured error beside it."""
        from looped.theory.bounds import error_bound  # bounds.py needs this class

        return error_bound(self, p, seed)

    def _inputs(self, inputs: np.ndarray | Sequence) -> tuple[np.ndarray, bool]:
        array = np.asarray(inputs)
        if array.dtype != object and not np.issubdtype(array.dtype, np.number):
            raise InputError(f"expected numbers or Fractions, got an array of {array.dtype}")
        shape = (self.grid.dim, self.grid.tokens)
        if array.shape[-2:] != shape or array.ndim not in (2, 3):
            raise InputError(
                f"expected an input of shape {shape} or (batch, {shape[0]}, {shape[1]}), got {array.shape}"
            )
        if not array.size:
            raise InputError(f"expected at least one input, got an array of shape {array.shape}")
        exact = entries(array)
        # the cells are half-open, and 1 lies in none: it counts to the last one, as that one's corner
        exact[exact == 1] = Fraction(self.grid.cells - 1, self.grid.cells)
        return exact.reshape(-1, *shape), array.ndim == 2


def approximate(
    function: Function | Target,
    dim: int,
    tokens: int,
    cells: int,
    variant: Variant = "paper",
    representative: Literal["corner", "centre"] = "corner",
    bits: int = 8,
    softmax: bool = False,
    sharpness: Number | float | None = None,
    lipschitz: float | Lipschitz | None = None,
    printed: Collection[str] = (),
) -> Approximation:
    """Build the network for f. `bits` is q of the stream variants; `softmax` uses the proved (or given) sharpness.

    `printed` switches faults of the paper's block on (`paper.FAULTS`); `code_value` stays what would be right.
    """
    require_one_of("variant", variant, BUILDERS)
    require_known(printed, paper.FAULTS)
    require(variant == "paper" or not printed, f"only the variant paper has printed faults, got {variant!r}")
    require_one_of("representative", representative, ("corner", "centre"))
    require_counts(dim=dim, tokens=tokens, cells=cells, bits=bits)
    require(cells >= 2, f"expected cells >= 2, got {cells}")
    dim, tokens, cells, bits = int(dim), int(tokens), int(cells), int(bits)  # numpy's would overflow
    require_countable(dim, tokens, cells)
    require(bits <= MOST_BITS, f"bits must be at most {MOST_BITS:,}, got {bits}")
    grid = Grid(dim, tokens, cells, representative)
    plan = Plan(variant, grid, bits)
    plan.refuse_if_too_large()
    target = as_target(function, lipschitz)
    refuse_if_not_equivariant(target.function, grid)
    if sharpness is not None:
        sharpness = exactly(sharpness, "a number as sharpness")
        require(sharpness > 0, f"expected a sharpness > 0, got {sharpness}")
    elif softmax:
        sharpness = lean.sharpness(variant, grid, bits)
    labels = dict(tabulate(target.function, grid, duplicates=True))
    build = partial(_paper, printed=printed) if printed else BUILDERS[variant]
    network, codes, value_of = build(grid, labels, bits, sharpness)
    jumps = tuple(code.largest_jump if isinstance(code, DifferenceCode) else Fraction(0) for code in codes)
    resolutions = tuple(code.span / 2**bits if isinstance(code, StreamCode) else Fraction(0) for code in codes)
    flat = [[column[i] for columns in labels.values() for column in columns] for i in range(dim)]
    spans = tuple(max(values) - min(values) for values in flat)
    engine = Engine(network)
    return Approximation(target, plan, network, trifling(cells), jumps, spans, resolutions, labels, value_of, engine)


def refuse_if_not_equivariant(function: Function, grid: Grid, tolerance: float = 1e-9) -> None:
    """Compare f(X P) with f(X) P at a few points; a failure is shown with its witness."""
    rng = np.random.default_rng(0)
    points = [rng.random((grid.dim, grid.tokens)) for _ in range(8)]
    points.append(grid.points([z % grid.base for z in range(grid.tokens)]))
    for x in points:
        order = rng.permutation(grid.tokens) if grid.tokens > 2 else np.arange(grid.tokens)[::-1]
        expected, came = evaluate(function, x)[:, order], evaluate(function, x[:, order])
        if not np.allclose(expected, came, rtol=tolerance, atol=tolerance):
            raise InputError(
                f"the function is not permutation equivariant: at X = {x.tolist()} with the tokens in the order "
                f"{order.tolist()} expected {expected.tolist()}, got {came.tolist()}"
            )


# ---- one builder per variant: the network, the label codes, and what it must return for a token of a sequence ------

Built = tuple[LoopedNetwork, Codes, Callable[[TokenIds, int], Vector]]
Table = dict[TokenIds, Sequence[Vector]]


def _served(grid: Grid, labels: Table) -> Table:
    """The sequences that get ids of their own: distinct tokens, and for up to two tokens all."""
    return {s: columns for s, columns in labels.items() if grid.tokens <= 2 or len(set(s)) == grid.tokens}


def _filled(grid: Grid, known: dict[int, Vector], num_ids: int) -> list[Vector]:
    # fewer cells than tokens: no id is realizable and any table will do
    return fill(known or {0: [Fraction(0)] * grid.dim}, num_ids)


def _paper(
    grid: Grid, labels: Table, num_bits: int, sharpness: Fraction | None, printed: Collection[str] = ()
) -> Built:
    known = labels_by_id(grid, _served(grid, labels), paper_id)
    table = _filled(grid, known, 2 * grid.base * grid.num_sequences)
    codes = [DifferenceCode.of(column) for column in zip(*table, strict=True)]
    network = paper.paper_block(grid, table, sharpness=sharpness, printed=printed)
    return network, codes, lambda sequence, z: [code.value(paper_id(grid, sequence, z)) for code in codes]


def _modulated(grid: Grid, labels: Table, num_bits: int, sharpness: Fraction | None) -> Built:
    known = labels_by_id(grid, _served(grid, labels), plain_id)
    network = paper.modulated_block(grid, _filled(grid, known, grid.base * grid.num_sequences), sharpness=sharpness)
    return network, (), lambda sequence, z: label(labels, sequence, z)


def _modulated_minimal(grid: Grid, labels: Table, num_bits: int, sharpness: Fraction | None) -> Built:
    known = labels_by_id(grid, labels, multiset_id)
    network = lean.modulated_minimal_block(grid, known, sharpness=sharpness)
    return network, (), lambda sequence, z: label(labels, sequence, z)


def _lean(grid: Grid, labels: Table, num_bits: int, sharpness: Fraction | None) -> Built:
    known = {2 * k - k % grid.cells: y for k, y in enumerate(lean_labels(grid, labels))}
    table = fill(known, 2 * grid.num_sequences)
    codes = [DifferenceCode.of(column) for column in zip(*table, strict=True)]
    network = lean.lean_block(grid, table, sharpness=sharpness)

    def value_of(sequence: TokenIds, z: int) -> Vector:
        return [code.value(2 * lean_id(grid, sequence, z) - z % grid.cells) for code in codes]

    return network, codes, value_of


def _lean_stream(grid: Grid, labels: Table, num_bits: int, sharpness: Fraction | None) -> Built:
    table = lean_labels(grid, labels)
    codes = [StreamCode.of(column, num_bits) for column in zip(*table, strict=True)]
    network = lean.lean_stream_block(grid, table, num_bits, sharpness=sharpness)
    return network, codes, lambda sequence, z: [c.value(lean_id(grid, sequence, z), exact=False) for c in codes]


def _lean_horner(grid: Grid, labels: Table, num_bits: int, sharpness: Fraction | None) -> Built:
    table = lean_labels(grid, labels)
    codes = [StreamCode.of(column, num_bits) for column in zip(*table, strict=True)]
    network = lean.lean_horner_block(grid, table, num_bits, sharpness=sharpness)
    return network, codes, lambda sequence, z: [c.value(lean_id(grid, sequence, z), exact=True) for c in codes]


def _lean_multiset(grid: Grid, labels: Table, num_bits: int, sharpness: Fraction | None) -> Built:
    known = labels_by_id(grid, labels, others_multiset_id)
    unused = next(iter(known.values()))  # most ids are never reached and may hold any label
    num_ids = Plan("lean-multiset", grid, num_bits).num_ids
    table = [known.get(k, unused) for k in range(num_ids)]
    codes = [StreamCode.of(column, num_bits) for column in zip(*table, strict=True)]
    network = lean.lean_multiset_block(grid, table, num_bits, sharpness=sharpness)
    return network, codes, lambda sequence, z: [c.value(others_multiset_id(grid, sequence, z), True) for c in codes]


def _modulated_sqrt(grid: Grid, labels: Table, num_bits: int, sharpness: Fraction | None) -> Built:
    table = lean_labels(grid, labels)
    codes = [StreamCode.of(column, num_bits) for column in zip(*table, strict=True)]
    network = lean.modulated_sqrt_block(grid, table, num_bits, sharpness=sharpness)
    group = Grouping.best(len(table), num_bits).group
    return network, codes, lambda sequence, z: [c.value(lean_id(grid, sequence, z), False, group) for c in codes]


BUILDERS: dict[Variant, Callable[[Grid, Table, int, Fraction | None], Built]] = {
    "paper": _paper,
    "lean": _lean,
    "lean-stream": _lean_stream,
    "lean-horner": _lean_horner,
    "lean-multiset": _lean_multiset,
    "modulated": _modulated,
    "modulated-minimal": _modulated_minimal,
    "modulated-sqrt": _modulated_sqrt,
}
