"""Error bounds with explicit constants, the loops that an error needs, and lower bounds for all constructions.

`Approximation.bound` combines the terms of the error bound. `theorem_right_side` is Theorem "universal" as printed, for
any r. Section 11 of theory-paper proves the lower bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import e, inf, log2, sqrt
from numbers import Integral

from looped.theory.constructions import CONSTRUCTIONS
from looped.theory.constructions.base import Construction
from looped.theory.constructions.paper import Paper
from looped.theory.grid import Grid
from looped.theory.lemmas.streams import Grouping, sqrt_memorizer, stream_memorizer
from looped.theory.moduli import Moduli, moduli
from looped.theory.targets import ModulusFunction, ModulusName, Target, require_norm
from looped.utils.errors import InputError, as_number, require, require_counts, require_one_of

MOST_CELLS, MOST_BITS = 10_000, 64  # limits of a search


@dataclass(frozen=True)
class Bound:
    """|f~ - f| <= total, the sum of all terms, in L^p; <= good on the good set (no trifling point, no duplicates)."""

    p: float
    terms: dict[str, float]
    certified: bool  # False: the moduli are lower estimates, so the bound is only indicative
    printed: dict[str, float]  # the paper's right side at the same moduli, with the O-terms' constants set to 1
    measured_sup: float  # over sampled points of the good set, p-norm
    measured_lp: float  # over sampled points of all cells; for p = inf the largest error, at least measured_sup

    @property
    def good(self) -> float:
        """The bound on the good set."""
        return sum(value for name, value in self.terms.items() if name not in ("duplicates", "trifling"))

    @property
    def total(self) -> float:
        """The bound in L^p over all inputs."""
        return sum(self.terms.values())

    @property
    def holds(self) -> bool:
        """True if both measured errors are within their bounds."""
        return self.measured_sup <= self.good * (1 + 1e-12) and self.measured_lp <= self.total * (1 + 1e-12)


def grid_moduli(target: Target, grid: Grid, p: float, seed: int = 0) -> tuple[ModulusFunction, bool]:
    """Return upper bounds of the moduli and True if the target has Lipschitz constants, else estimates and False."""
    dim, tokens = grid.dim, grid.tokens
    if target.lipschitz is not None:
        return lambda which, delta: target.upper(which, delta, p, dim, tokens) or 0.0, True
    estimates: dict[float, Moduli] = {}

    def estimate(which: ModulusName, delta: float) -> float:
        if delta not in estimates:
            estimates[delta] = moduli(target, dim, tokens, delta, p, seed=seed)
        return getattr(estimates[delta], which).lower

    return estimate, False


def cell_radius(grid: Grid) -> float:
    """Return the largest distance of a point of a cell from its representative."""
    whole = sqrt(grid.dim * grid.tokens) / grid.cells
    return whole / 2 if grid.representative == "centre" else whole


def printed_terms(grid: Grid, omega: ModulusFunction, p: float, largest_weight: float = inf) -> dict[str, float]:
    """Return Theorem "universal" as printed, with constant 1 in its O-terms. M = 1/epsilon is the largest weight."""
    delta, dim, tokens = 1 / grid.cells, grid.dim, grid.tokens
    entries = (dim * tokens) ** (1 / p)
    return {
        "token": entries * omega("token", delta * sqrt(dim)),
        "context": entries * omega("context", delta * sqrt(tokens * dim)) if tokens > 1 else 0.0,
        "sequence": omega("sequence", delta * sqrt(tokens * dim)),
        "O(N^(2/p) delta^(d/p))": tokens ** (2 / p) * delta ** (dim / p),
        "O((dN/(M delta))^(1/p))": (
            (dim * tokens / (largest_weight * delta)) ** (1 / p) if largest_weight < inf else 0.0
        ),
    }


def duplicate_measure(grid: Grid) -> float:
    """Return the volume of the inputs with two tokens in one cell."""
    distinct = 1.0
    for used in range(grid.tokens):
        distinct *= max(0.0, 1 - used / grid.base)
    return 1 - distinct


# ---- the theorem for any r, loops for an error, bits --------------------------------------------------------------


def cells_for_loops(variant: str, loops: int, dim: int, tokens: int, bits: int = 8) -> int:
    """Return the cells of the finest grid whose network needs at most `loops` loops, or 0 if two cells need more."""
    cells = 1
    while CONSTRUCTIONS[variant](Grid(dim, tokens, cells + 1), bits).loops <= loops:
        cells += 1
    return cells if cells > 1 else 0


def theorem_right_side(
    loops: int, p: float, dim: int, tokens: int, omega: ModulusFunction, largest_weight: float = inf
) -> dict[str, float]:
    """Return Theorem "universal" for r loops and weights up to M, at the finest grid that r loops allow.

    The printed delta(r) = ((r-N)/2)^(-1/((N+1)d+1)) is not attained if r lies between the loops of two grids.
    """
    cells = cells_for_loops(Paper.name, loops, dim, tokens)
    if cells == 0:
        least = Paper(Grid(dim, tokens, 2)).loops
        raise InputError(f"loops: expected at least {least} for a grid with two cells, got {loops}")
    return printed_terms(Grid(dim, tokens, cells), omega, p, largest_weight)


def printed_delta(loops: int, dim: int, tokens: int) -> float:
    """Return the delta(r) of the printed theorem."""
    return ((loops - tokens) / 2) ** (-1 / ((tokens + 1) * dim + 1))


def loops_for_error(
    error: float, variant: str, dim: int, tokens: int, omega: ModulusFunction, p: float = 2, span: float = 1.0
) -> Construction:
    """Return the construction with the fewest loops whose bound on the good set is at most `error`.

    Loops grow with the cells and with the bits of a stream, but a finer grid may need fewer bits. So finer grids are
    tried until even one bit would need more loops than the best construction so far.
    """
    require_one_of("variant", variant, CONSTRUCTIONS)
    require_norm(p)
    require_counts(dim=dim, tokens=tokens)
    require(as_number(error) > 0, f"error: expected a number > 0, got {error!r}")
    require(as_number(span) >= 0, f"span: expected a number >= 0, got {span!r}")
    kind, entries = CONSTRUCTIONS[variant], (dim * tokens) ** (1 / p)
    best: Construction | None = None
    for cells in range(2, MOST_CELLS):
        grid = Grid(dim, tokens, cells, "centre")
        if best is not None and kind(grid, 1).loops >= best.loops:
            break
        cell = omega("sequence", cell_radius(grid))
        for bits in range(1, MOST_BITS + 1) if kind.streams else (8,):
            candidate = kind(grid, bits)
            if cell > error or (best is not None and candidate.loops >= best.loops):
                break
            code = entries * (span / 2**bits if kind.streams else (candidate.jump_bound(omega) or 0.0) / 2)
            if cell + code <= error:
                best = candidate
                break
    if best is None:
        raise InputError(f"error: expected one that {MOST_CELLS:,} cells reach, got {error}")
    return best


# ---- lower bounds -------------------------------------------------------------------------------------------------


def bits_needed(num_labels: int, label_bits: int, dim: int) -> int:
    """Return q K d, the least W b for W weights of b bits that can store every table of K q-bit labels in R^d."""
    require_counts(num_labels=num_labels, label_bits=label_bits, dim=dim)
    return num_labels * label_bits * dim


def loops_needed(num_labels: int, label_bits: int, width: int, parameters: int, dims_per_loop: int = 0) -> int:
    """Return the least r that counting sign patterns allows, for a feed-forward layer looped r times with real weights.

    q K <= r (1 + W log2(4 e K w (r+1) / W)) + 1 + W log2(4 e K 2^q (r+1) / W), where W is at most the number of
    polynomials (K w, or K 2^q). Time modulation adds `dims_per_loop` parameters per loop, one per modulated row, and a
    factor to every degree, so that 4 e becomes 6 e.
    """
    require_counts(num_labels=num_labels, label_bits=label_bits, width=width, parameters=parameters)
    _require_natural(dims_per_loop=dims_per_loop)
    degree = 3 if dims_per_loop else 2

    def capacity(loops: int) -> float:
        def cells(polynomials: int) -> float:
            free = min(parameters + dims_per_loop * loops, polynomials)
            return 1 + free * (log2(2 * e * degree * (loops + 1)) + log2(polynomials) - log2(free))

        return loops * cells(num_labels * width) + cells(num_labels * 2**label_bits)

    return _least(capacity, num_labels * label_bits)


@dataclass(frozen=True)
class MemorizerCost:
    """The loops of a memorizer, and the least that counting allows for any layer of its size."""

    loops: int
    needed: int


def memorizer_bounds(num_labels: int, label_bits: int) -> dict[str, MemorizerCost]:
    """Return the costs of the stream memorizer (weight-tied) and of the square-root one (time-modulated), d = 1."""
    example = [Fraction(k % 2, 2) for k in range(4)]  # the size of a memorizer does not depend on its labels
    stream, modulated = stream_memorizer(example, label_bits).size, sqrt_memorizer(example, label_bits)
    root, rows = modulated.size, len(modulated.modulation)
    tied = loops_needed(num_labels, label_bits, stream.width, stream.parameters)
    free = loops_needed(num_labels, label_bits, root.width, root.parameters - rows * root.loops, rows)
    return {
        "stream, weight-tied": MemorizerCost(label_bits * (num_labels - 1) + 1, tied),
        "sqrt, time-modulated": MemorizerCost(Grouping.best(num_labels, label_bits).loops, free),
    }


def block_loops_needed(
    num_sequences: int, tokens: int, heads: int, width: int, parameters: int, dims_per_loop: int = 0
) -> int:
    """Return the least r that counting sign patterns allows, for a block with hard attention.

    The block must be able to give each of S sequences of N tokens a high or a low value, in every combination. This
    needs S <= (2r+1) W log2(64 e (r+1) P / W) with P = S N^3 max(heads, width), where W is at most P.
    """
    require_counts(num_sequences=num_sequences, tokens=tokens, heads=heads, width=width, parameters=parameters)
    _require_natural(dims_per_loop=dims_per_loop)
    polynomials = num_sequences * tokens**3 * max(heads, width)

    def capacity(loops: int) -> float:
        free = min(parameters + dims_per_loop * loops, polynomials)
        return (2 * loops + 1) * free * (log2(64 * e * (loops + 1)) + log2(polynomials) - log2(free))

    return _least(capacity, num_sequences)


def _require_natural(**given: int) -> None:
    for name, value in given.items():
        fits = isinstance(value, Integral) and value >= 0
        require(fits, f"{name}: expected an integer >= 0, got {value!r}")


def _least(capacity: Callable[[int], float], wanted: int) -> int:
    """Return the least r >= 0 whose capacity, which grows with r, reaches `wanted`."""
    low, high = -1, 0
    while capacity(high) < wanted:
        low, high = high, 2 * high + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if capacity(middle) >= wanted else (middle, high)
    return high


def real_labels_memorizable(
    num_labels: int, dim: int, parameters: int, loops: int = 0, modulated_rows: int = 0
) -> bool:
    """Return True if K d <= W (+ r m with free eta(t)). Otherwise almost no table of real labels can be stored."""
    require_counts(num_labels=num_labels, dim=dim, parameters=parameters)
    _require_natural(loops=loops, modulated_rows=modulated_rows)
    return num_labels * dim <= parameters + loops * modulated_rows
