"""Right sides: the error bounds of the theorems with explicit constants, loops for a wished error, and lower bounds.

`error_bound` puts the bound of a construction beside its measured error; `theorem_right_side` is Theorem "universal" as
printed, for any r; the three lower bounds say what no construction of a given size can beat (proofs in docs/theory.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import e, inf, log2, sqrt
from numbers import Integral

from looped.theory.constructions import CONSTRUCTIONS
from looped.theory.constructions.base import Construction
from looped.theory.constructions.paper import Paper
from looped.theory.grid import Grid
from looped.theory.moduli import Moduli, moduli
from looped.theory.targets import ModulusFunction, ModulusName, Target, require_norm
from looped.utils.errors import InputError, as_number, require, require_counts, require_one_of

MOST_CELLS, MOST_BITS = 10_000, 64  # limits of a search


@dataclass(frozen=True)
class Bound:
    """|f~ - f|_{L^p} <= total = sum of terms; on the good set (no trifling point, no unserved duplicate) <= good."""

    p: float
    terms: dict[str, float]
    certified: bool  # False: the moduli are estimates from below, so the bound is only indicative
    printed: dict[str, float]  # the paper's right side at the same moduli, with the O-terms' constants set to 1
    measured_sup: float  # over sampled points of the good set, p-norm
    measured_lp: float  # over sampled points of all cells; for p = inf their largest error, so at least measured_sup

    @property
    def good(self) -> float:
        return sum(value for name, value in self.terms.items() if name not in ("duplicates", "trifling"))

    @property
    def total(self) -> float:
        return sum(self.terms.values())

    @property
    def holds(self) -> bool:
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
    """How far a point of a cell can be from its representative."""
    whole = sqrt(grid.dim * grid.tokens) / grid.cells
    return whole / 2 if grid.representative == "centre" else whole


def printed_terms(grid: Grid, omega: ModulusFunction, p: float, largest_weight: float = inf) -> dict[str, float]:
    """Theorem "universal" as printed, its O-terms with constant 1; M = 1/epsilon is the largest weight of Step 1."""
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
    """The volume of inputs with two tokens in one cell."""
    distinct = 1.0
    for used in range(grid.tokens):
        distinct *= max(0.0, 1 - used / grid.base)
    return 1 - distinct


# ---- the theorem for any r, loops for an error, bits --------------------------------------------------------------


def cells_for_loops(variant: str, loops: int, dim: int, tokens: int, bits: int = 8) -> int:
    """The finest grid whose network fits into `loops` loops (0 if not even two cells do)."""
    cells = 1
    while CONSTRUCTIONS[variant](Grid(dim, tokens, cells + 1), bits).loops <= loops:
        cells += 1
    return cells if cells > 1 else 0


def theorem_right_side(
    loops: int, p: float, dim: int, tokens: int, omega: ModulusFunction, largest_weight: float = inf
) -> dict[str, float]:
    """Theorem "universal" for r loops and weights up to M, at the delta = 1/n that r loops really allow.

    The printed delta(r) = ((r-N)/2)^(-1/((N+1)d+1)) is not attained for every r: r may lie between two grids.
    """
    cells = cells_for_loops(Paper.name, loops, dim, tokens)
    if cells == 0:
        least = Paper(Grid(dim, tokens, 2)).loops
        raise InputError(f"loops: expected at least {least} for a grid with two cells, got {loops}")
    return printed_terms(Grid(dim, tokens, cells), omega, p, largest_weight)


def printed_delta(loops: int, dim: int, tokens: int) -> float:
    return ((loops - tokens) / 2) ** (-1 / ((tokens + 1) * dim + 1))


def loops_for_error(
    error: float, variant: str, dim: int, tokens: int, omega: ModulusFunction, p: float = 2, span: float = 1.0
) -> Construction:
    """The fewest loops whose bound on the good set is at most `error`: `.loops` of the plan, with its grid and bits.

    Loops grow with the cells and with a stream's bits, but a stream may do with fewer bits on a finer grid: such a grid
    is looked at as long as one bit on it would take fewer loops than the best so far.
    """
    require_one_of("variant", variant, CONSTRUCTIONS)
    require_norm(p)
    require_counts(dim=dim, tokens=tokens)
    require(as_number(error) > 0, f"expected an error > 0, got {error!r}")
    require(as_number(span) >= 0, f"expected a span >= 0, got {span!r}")
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
        raise InputError(f"no grid of fewer than {MOST_CELLS:,} cells reaches an error of {error}")
    return best


# ---- lower bounds -------------------------------------------------------------------------------------------------


def bits_needed(num_labels: int, label_bits: int, dim: int) -> int:
    """W weights of b bits make at most 2^(W b) functions, so W b >= q K d for all tables of K q-bit labels in R^d."""
    require_counts(num_labels=num_labels, label_bits=label_bits, dim=dim)
    return num_labels * label_bits * dim


def loops_needed(num_labels: int, label_bits: int, width: int, parameters: int, dims_per_loop: int = 0) -> int:
    """The least r allowed by counting sign patterns, for a feed-forward layer looped r times with real weights.

    q K <= r (1 + W log2(4 e K w (r+1) / W)) + 1 + W log2(4 e K 2^q (r+1) / W), where a W beyond the number of
    polynomials (K w, or K 2^q) counts as that number. Time modulation adds parameters with every loop, and a factor to
    every degree, so that 4 e becomes 6 e: pass the number of modulated rows as `dims_per_loop`.
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


def block_loops_needed(
    num_sequences: int, tokens: int, heads: int, width: int, parameters: int, dims_per_loop: int = 0
) -> int:
    """The least r allowed by counting sign patterns, for a block with hard attention that must be able to give each of
    S sequences of N tokens a high or a low value, in every combination.

    S <= (2r+1) W log2(64 e (r+1) P / W), P = S N^3 max(heads, width), where a W beyond P counts as P.
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
        require(fits, f"{name} must be a whole number, 0 or more, got {value!r}")


def _least(capacity: Callable[[int], float], wanted: int) -> int:
    """The least r >= 0 whose capacity, which grows with r, is as wanted."""
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
    """Whether K d <= W (+ r m with free eta(t)); if not, almost no table of real labels can be stored, for any r."""
    require_counts(num_labels=num_labels, dim=dim, parameters=parameters)
    _require_natural(loops=loops, modulated_rows=modulated_rows)
    return num_labels * dim <= parameters + loops * modulated_rows
