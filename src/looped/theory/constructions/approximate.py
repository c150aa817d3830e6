"""`approximate(f, ...)`: the network of the proof for a function f, with exact values, every state and the bound."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import inf
from typing import Literal

import numpy as np

from looped.theory.bounds import Bound, cell_radius, duplicate_measure, grid_moduli, printed_terms
from looped.theory.constructions import CONSTRUCTIONS
from looped.theory.constructions.base import Construction
from looped.theory.constructions.paper import FAULTS, Paper
from looped.theory.engine import Engine
from looped.theory.grid import (
    Function,
    Grid,
    Labels,
    TokenIds,
    Vector,
    evaluate,
    refuse_if_not_equivariant,
    require_countable,
    tabulate,
    trifling,
)
from looped.theory.lemmas import require_known
from looped.theory.network import LoopedNetwork, Number, Size, entries, exactly
from looped.theory.targets import Lipschitz, Target, as_target, norm, require_norm
from looped.utils.errors import InputError, require, require_counts, require_one_of

MOST_BITS = 10**9
MOST_BYTES = 4 * 2**30
FINEST = Fraction(1, 2**1000)  # of epsilon: its reciprocal must be a float
MOST_SECONDS = 3600.0
BYTES_PER_LABEL, SECONDS_PER_LOOP, SECONDS_PER_BIT = 400, 3e-4, 1.5e-9  # measured on one core; used for refusals only
MOST_CELLS, POINTS_PER_CELL = 1024, 24  # of a measurement


@dataclass(frozen=True)
class Trace:
    """The state after every loop: `values[t, i, j]` is row `rows[i]` of token j after t loops (t = 0: the encoding)."""

    rows: tuple[str, ...]
    values: np.ndarray

    def row(self, name: str) -> np.ndarray:
        """Return one row as an array of shape (loops + 1, tokens)."""
        require_one_of("row", name, self.rows)
        return self.values[:, self.rows.index(name)]


@dataclass(frozen=True)
class Approximation:
    """The network of a function. Call it on X in [0, 1], of shape ([batch,] dim, tokens), for exact values."""

    target: Target
    construction: Construction
    network: LoopedNetwork
    epsilon: Fraction
    jumps: tuple[Fraction, ...]  # per coordinate: the largest |y_k - y_{k-1}| (0 for streams)
    spans: tuple[Fraction, ...]  # per coordinate: the range of the labels
    resolutions: tuple[Fraction, ...]  # per coordinate: span 2^-q of a stream (0 for difference codes)
    labels: Labels
    value_of: Callable[[TokenIds, int], Vector]
    engine: Engine

    @property
    def grid(self) -> Grid:
        """The grid of cells."""
        return self.construction.grid

    @property
    def size(self) -> Size:
        """The size of the network, counted from its matrices."""
        return self.network.size

    @property
    def serves_duplicates(self) -> bool:
        """True if the network is also right for two tokens in one cell."""
        return self.construction.serves_duplicates

    def code_value(self, token_ids: Sequence[int]) -> list[Vector]:
        """Return the value that the network must have on these cells, computed without the network."""
        ordered = tuple(sorted(token_ids, reverse=True))
        return [self.value_of(ordered, z) for z in token_ids]

    def __call__(self, inputs: np.ndarray | Sequence) -> np.ndarray:
        array, single = self._inputs(inputs)
        values = self.engine(array)
        return values[0] if single else values

    def trace(self, inputs: np.ndarray | Sequence) -> Trace:
        """Return every row after every loop for a single input."""
        array, single = self._inputs(inputs)
        if not single:
            raise InputError(f"inputs: expected one input of shape (dim, tokens), got shape {np.shape(inputs)}")
        states = [np.stack([state.row(name)[0] for name in self.network.rows]) for state in self.engine.states(array)]
        return Trace(self.network.rows, np.stack(states))

    def bound(self, p: float = 2, seed: int = 0) -> Bound:
        """Return the error bound term by term, with the measured error beside it."""
        require_norm(p)
        grid = self.grid
        omega, certified = grid_moduli(self.target, grid, p, seed)
        terms = {"cell": omega("sequence", cell_radius(grid))}
        jump = self.construction.jump_bound(omega)
        if jump is not None:
            terms["code"] = (grid.dim * grid.tokens) ** (1 / p) * jump / 2
        elif any(self.resolutions):
            # the resolution is known exactly, so that no modulus is needed
            resolution = norm(np.array([float(step) for step in self.resolutions]), p)
            terms["code"] = resolution * grid.tokens ** (1 / p)
        spread = self.target.high - self.target.low
        spread = spread if spread < inf else float(max(self.spans)) + terms["cell"]
        # a stream may have a wider range than its labels, and a sample at a wrong time lies anywhere in that range
        room = float(max(self.resolutions, default=Fraction(0)) * 2**self.construction.num_bits)
        spread += room if room > spread else 0.0
        if self.construction.starts_at_zero:
            values = [float(value) for columns in self.labels.values() for column in columns for value in column]
            spread += max(0.0, min(values), -max(values))
        # off the good set the output still lies between values that can be stored, up to one overlapping sample
        jumps = float(max(self.jumps, default=Fraction(0)))
        worst = (grid.dim * grid.tokens) ** (1 / p) * (2 * spread + jumps)
        terms["duplicates"] = 0.0 if self.serves_duplicates else worst * duplicate_measure(grid) ** (1 / p)
        terms["trifling"] = worst * min(1.0, grid.dim * grid.tokens * grid.cells * float(self.epsilon)) ** (1 / p)
        sup, lp = self.measured_error(p, seed)
        return Bound(p, terms, certified, printed_terms(grid, omega, p, 1 / float(self.epsilon)), sup, lp)

    def measured_error(self, p: float, seed: int = 0) -> tuple[float, float]:
        """Return the error |f~ - f|_p at points of up to 1024 cells: its sup on the good set, and its L^p norm.

        Both leave out the trifling part of a cell. The sup also includes the two extreme corners of a cell, and the
        network runs at these two. Between them it sees the same cell numbers, so its output is that of the lower one.
        """
        grid, rng = self.grid, np.random.default_rng(seed)
        if grid.num_sequences <= MOST_CELLS:
            cells = np.array(list(product(range(grid.base), repeat=grid.tokens)))
        else:
            cells = rng.integers(grid.base, size=(MOST_CELLS, grid.tokens))
        corners = np.array([[grid.coordinates(int(z)) for z in cell] for cell in cells]).transpose(0, 2, 1)
        exact = np.vectorize(lambda k: Fraction(int(k), grid.cells), otypes=[object])(corners)
        upper_corners = exact + (Fraction(1, grid.cells) - self.epsilon)
        lower, upper = np.split(self(np.concatenate([exact, upper_corners])).astype(float), 2)
        inside = float(1 - self.epsilon * grid.cells)  # the part of a cell that is not trifling
        sup, errors = 0.0, []
        for cell, corner, at_lower, at_upper in zip(cells, corners, lower, upper, strict=True):
            good = self.serves_duplicates or len(set(cell.tolist())) == grid.tokens
            offsets = [np.zeros(corner.shape), np.full(corner.shape, inside)]
            offsets += [rng.random(corner.shape) * inside for _ in range(POINTS_PER_CELL)]
            for number, offset in enumerate(offsets):
                output = at_upper if number == 1 else at_lower
                error = norm(evaluate(self.target.function, (corner + offset) / grid.cells) - output, p)
                sup = max(sup, error) if good else sup
                if number >= 2 or p == inf:  # the two extreme corners would bias a mean, but belong to a maximum
                    errors.append(error)
        largest = max(errors)
        if p == inf or largest == 0:
            return sup, largest
        return sup, largest * float(np.mean((np.array(errors) / largest) ** p)) ** (1 / p)

    def _inputs(self, inputs: np.ndarray | Sequence) -> tuple[np.ndarray, bool]:
        array = np.asarray(inputs)
        if array.dtype != object and not np.issubdtype(array.dtype, np.number):
            raise InputError(f"inputs: expected numbers or Fractions, got an array of {array.dtype}")
        shape = (self.grid.dim, self.grid.tokens)
        if array.shape[-2:] != shape or array.ndim not in (2, 3) or not array.size:
            raise InputError(
                f"inputs: expected shape {shape} or (batch, {shape[0]}, {shape[1]}), not empty, got {array.shape}"
            )
        exact = entries(array)
        # cells are half-open and 1 lies in none of them: it counts as the corner of the last cell
        exact[exact == 1] = Fraction(self.grid.cells - 1, self.grid.cells)
        return exact.reshape(-1, *shape), array.ndim == 2


def approximate(
    function: Function | Target,
    dim: int,
    tokens: int,
    cells: int,
    variant: str = "paper",
    representative: Literal["corner", "centre"] = "corner",
    bits: int = 8,
    softmax: bool = False,
    sharpness: Number | float | None = None,
    lipschitz: float | Lipschitz | None = None,
    printed: Collection[str] = (),
    epsilon: Number | float | None = None,
) -> Approximation:
    """Build the network for f. `variant` is a name in `CONSTRUCTIONS`.

    Stream variants store `bits` bits per label. `softmax` uses the proved sharpness, or the given one. `printed` builds
    faults of the paper (`paper.FAULTS`) into its block; `code_value` still returns the correct values. `epsilon` is the
    length of the trifling intervals below the borders of cells, by default 2^-20/n (2^-8/n for `modulated-digits`).
    Their part of the error goes to 0 with it.
    """
    require_one_of("variant", variant, CONSTRUCTIONS)
    require_known(printed, FAULTS)
    require(variant == Paper.name or not printed, f"variant: expected paper, which has printed faults, got {variant!r}")
    require_one_of("representative", representative, ("corner", "centre"))
    require_counts(dim=dim, tokens=tokens, cells=cells, bits=bits)
    require(cells >= 2, f"cells: expected at least 2, got {cells}")
    dim, tokens, cells, bits = int(dim), int(tokens), int(cells), int(bits)  # NumPy integers would overflow
    require_countable(dim, tokens, cells)
    require(bits <= MOST_BITS, f"bits: expected at most {MOST_BITS:,}, got {bits}")
    grid = Grid(dim, tokens, cells, representative)
    construction = Paper(grid, bits, tuple(printed)) if printed else CONSTRUCTIONS[variant](grid, bits)
    _refuse_if_too_large(construction)
    target = as_target(function, lipschitz)
    refuse_if_not_equivariant(target.function, dim, tokens, grid)
    if sharpness is not None:
        sharpness = exactly(sharpness, "sharpness", "a number > 0")
        require(sharpness > 0, f"sharpness: expected a number > 0, got {sharpness}")
    elif softmax:
        sharpness = construction.sharpness()
    width = (
        trifling(cells, construction.trifling_exponent) if epsilon is None else exactly(epsilon, "epsilon", "a number")
    )
    require(FINEST <= width <= Fraction(1, cells), f"epsilon: expected 2^-1000 <= epsilon <= 1/{cells}, got {epsilon}")
    labels = tabulate(target.function, grid, duplicates=True)
    built = construction.build(labels, width, sharpness)
    jumps = tuple(code.largest_jump for code in built.codes)
    resolutions = tuple(code.resolution for code in built.codes)
    flat = [[column[i] for columns in labels.values() for column in columns] for i in range(dim)]
    spans = tuple(max(values) - min(values) for values in flat)
    network, value_of = built.network, built.value_of
    return Approximation(
        target, construction, network, width, jumps, spans, resolutions, labels, value_of, Engine(network)
    )


def _refuse_if_too_large(construction: Construction) -> None:
    """Raise InputError if the network needs more memory or time than the limits."""
    grid, bits, loops = construction.grid, construction.num_bits, construction.loops
    gigabytes = construction.num_ids * grid.dim * BYTES_PER_LABEL / 2**30
    seconds = loops * (SECONDS_PER_LOOP + grid.dim * construction.code_bits * SECONDS_PER_BIT)
    if gigabytes > MOST_BYTES / 2**30 or seconds > MOST_SECONDS:
        size, fewer = f"dim={grid.dim}, tokens={grid.tokens}, cells={grid.cells}", "cells"
        if construction.streams and bits > 1:
            size, fewer = f"{size}, bits={bits:,}", "cells or bits"
        raise InputError(
            f"cells: expected at most {MOST_BYTES / 2**30:.0f} GiB and {MOST_SECONDS:,.0f} s per evaluation, got "
            f"{construction.num_ids:,} labels ({gigabytes:,.1f} GiB) and {loops:,} loops ({seconds:,.0f} s) for "
            f"{construction.name} with {size}. Take fewer {fewer}."
        )
