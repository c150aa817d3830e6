"""Right sides: the error bounds of the theorems with explicit constants, loops for a wished error, and lower bounds.

`error_bound` puts the bound of a construction beside its measured error; `theorem_right_side` is Theorem "universal" as
printed, for any r; the three lower bounds say what no construction of a given size can beat (proofs in docs/theory.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import e, inf, log2, sqrt
from numbers import Integral

import numpy as np

from looped.theory.constructions.approximate import BUILDERS, Approximation, Plan, Variant
from looped.theory.grid import Grid, evaluate
from looped.theory.moduli import moduli
from looped.theory.targets import ModulusName, norm, require_norm
from looped.utils.errors import InputError, as_number, require, require_counts, require_one_of

MOST_CELLS, POINTS_PER_CELL = 1024, 24  # of a measurement
MOST_GRID, MOST_BITS = 10_000, 64  # of a search
STREAMS: tuple[Variant, ...] = ("lean-stream", "lean-horner", "lean-multiset", "modulated-sqrt")
Modulus = Callable[[ModulusName, float], float]  # (which, delta) -> omega(delta)


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


def modulus_of(net: Approximation, p: float, seed: int = 0) -> tuple[Modulus, bool]:
    """Upper bounds of the moduli if the target has any (certified), else estimates from below."""
    dim, tokens = net.grid.dim, net.grid.tokens
    if net.target.lipschitz is not None:
        return lambda which, delta: net.target.upper(which, delta, p, dim, tokens) or 0.0, True
    found: dict[float, object] = {}

    def estimate(which: ModulusName, delta: float) -> float:
        if delta not in found:
            found[delta] = moduli(net.target, dim, tokens, delta, p, seed=seed)
        return getattr(found[delta], which).lower

    return estimate, False


def error_bound(net: Approximation, p: float = 2, seed: int = 0) -> Bound:
    """The bound of this construction, term by term, and its measured error."""
    require_norm(p)
    grid = net.grid
    omega, certified = modulus_of(net, p, seed)
    entries = (grid.dim * grid.tokens) ** (1 / p)
    terms = {"cell": omega("sequence", cell_radius(grid))} | code_terms(net.plan, omega, p)
    if any(net.resolutions):
        # the resolution is known exactly: no modulus is needed
        resolution = norm(np.array([float(step) for step in net.resolutions]), p)
        terms["code"] = resolution * grid.tokens ** (1 / p)
    spread = net.target.high - net.target.low
    spread = spread if spread < inf else float(max(net.spans)) + terms["cell"]
    # a stream may have more room than its labels fill, and a sample at a wrong time lies anywhere in it
    room = float(max(net.resolutions, default=Fraction(0)) * 2**net.plan.num_bits)
    spread += room if room > spread else 0.0
    # off the good set the output still lies between values that can be stored, up to one overlapping sample
    worst = entries * (2 * spread + float(max(net.jumps, default=Fraction(0))))
    terms["duplicates"] = 0.0 if net.serves_duplicates else worst * duplicate_measure(grid) ** (1 / p)
    terms["trifling"] = worst * min(1.0, grid.dim * grid.tokens * grid.cells * float(net.epsilon)) ** (1 / p)
    sup, lp = measured_error(net, p, seed)
    return Bound(p, terms, certified, printed_terms(grid, omega, p, 1 / float(net.epsilon)), sup, lp)


def cell_radius(grid: Grid) -> float:
    """How far a point of a cell can be from its representative."""
    whole = sqrt(grid.dim * grid.tokens) / grid.cells
    return whole / 2 if grid.representative == "centre" else whole


def code_terms(plan: Plan, omega: Modulus, p: float) -> dict[str, float]:
    """What the label code adds on the good set: half the largest jump per entry, in moduli; nothing if exact."""
    grid, n = plan.grid, plan.grid.cells
    delta, entries = 1 / n, (grid.dim * grid.tokens) ** (1 / p)
    if plan.variant == "paper":
        carry = (n - 1) / (n + 1)
        apart = delta * sqrt((grid.tokens - 1) * grid.dim)
        changed = (n - 1) / (2 * (grid.tokens - 1) * grid.base ** (grid.tokens - 1) + 2) if grid.tokens > 1 else carry
        jump = max(
            omega("context", delta) if grid.tokens > 1 else 0.0,
            carry * omega("context", apart) if grid.tokens > 1 else 0.0,
            changed * (omega("token", delta * sqrt(grid.dim)) + (omega("context", apart) if grid.tokens > 1 else 0.0)),
        )
        return {"code": entries * jump / 2}
    if plan.variant == "lean":
        carry = (n - 1) / (n + 1)
        jump = max(omega("token", delta), carry * omega("sequence", delta * sqrt(grid.dim * grid.tokens)))
        return {"code": entries * jump / 2}
    return {}


def printed_terms(grid: Grid, omega: Modulus, p: float, largest_weight: float = inf) -> dict[str, float]:
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


def measured_error(net: Approximation, p: float, seed: int = 0) -> tuple[float, float]:
    """(sup on the good set, L^p over all cells) of |f~ - f|_p at points of every cell, or of 1024 random cells.

    Both leave out the trifling part of a cell. The sup looks at its two extreme corners too, and the network runs at
    those two: between them it is given the same cell numbers, and its output is that of the lower one.
    """
    grid, rng = net.grid, np.random.default_rng(seed)
    if grid.num_sequences <= MOST_CELLS:
        cells = np.array(list(product(range(grid.base), repeat=grid.tokens)))
    else:
        cells = rng.integers(grid.base, size=(MOST_CELLS, grid.tokens))
    corners = np.array([[grid.coordinates(int(z)) for z in cell] for cell in cells]).transpose(0, 2, 1)
    exact = np.vectorize(lambda k: Fraction(int(k), grid.cells), otypes=[object])(corners)
    upper_corners = exact + (Fraction(1, grid.cells) - net.epsilon)
    lower, upper = np.split(net(np.concatenate([exact, upper_corners])).astype(float), 2)
    inside = float(1 - net.epsilon * grid.cells)  # the part of a cell that is not trifling
    sup, powers = 0.0, []
    for cell, corner, at_lower, at_upper in zip(cells, corners, lower, upper, strict=True):
        good = net.serves_duplicates or len(set(cell.tolist())) == grid.tokens
        offsets = [np.zeros(corner.shape), np.full(corner.shape, inside)]
        offsets += [rng.random(corner.shape) * inside for _ in range(POINTS_PER_CELL)]
        for number, offset in enumerate(offsets):
            output = at_upper if number == 1 else at_lower
            difference = evaluate(net.target.function, (corner + offset) / grid.cells) - output
            error = norm(difference, p)
            sup = max(sup, error) if good else sup
            if number >= 2 or p == inf:  # the two extreme corners would bias a mean, and belong to a maximum
                powers.append(error)
    largest = max(powers)
    if p == inf or largest == 0:
        return sup, largest
    return sup, largest * float(np.mean((np.array(powers) / largest) ** p)) ** (1 / p)


# ---- the theorem for any r, loops for an error, bits --------------------------------------------------------------


def cells_for_loops(variant: Variant, loops: int, dim: int, tokens: int, bits: int = 8) -> int:
    """The finest grid whose network fits into `loops` loops (0 if not even two cells do)."""
    cells = 1
    while Plan(variant, Grid(dim, tokens, cells + 1), bits).loops <= loops:
        cells += 1
    return cells if cells > 1 else 0


def theorem_right_side(
    loops: int, p: float, dim: int, tokens: int, omega: Modulus, largest_weight: float = inf
) -> dict[str, float]:
    """Theorem "universal" for r loops and weights up to M, at the delta = 1/n that r loops really allow.

    The printed delta(r) = ((r-N)/2)^(-1/((N+1)d+1)) is not attained for every r: r may lie between two grids.
    """
    cells = cells_for_loops("paper", loops, dim, tokens)
    if cells == 0:
        least = Plan("paper", Grid(dim, tokens, 2), 1).loops
        raise InputError(f"{loops} loops allow no grid with two cells, {least} are the least")
    return printed_terms(Grid(dim, tokens, cells), omega, p, largest_weight)


def printed_delta(loops: int, dim: int, tokens: int) -> float:
    return ((loops - tokens) / 2) ** (-1 / ((tokens + 1) * dim + 1))


def loops_for_error(
    error: float, variant: Variant, dim: int, tokens: int, omega: Modulus, p: float = 2, span: float = 1.0
) -> Plan:
    """The fewest loops whose bound on the good set is at most `error`: `.loops` of the plan, with its grid and bits.

    Loops grow with the cells and with a stream's bits, but a stream may do with fewer bits on a finer grid: such a grid
    is looked at as long as one bit on it would take fewer loops than the best so far.
    """
    require_one_of("variant", variant, BUILDERS)
    require_norm(p)
    require_counts(dim=dim, tokens=tokens)
    require(as_number(error) > 0, f"expected an error > 0, got {error!r}")
    require(as_number(span) >= 0, f"expected a span >= 0, got {span!r}")
    entries = (dim * tokens) ** (1 / p)
    best: Plan | None = None
    for cells in range(2, MOST_GRID):
        grid = Grid(dim, tokens, cells, "centre")
        if best is not None and Plan(variant, grid, 1).loops >= best.loops:
            break
        cell = omega("sequence", cell_radius(grid))
        for bits in range(1, MOST_BITS + 1) if variant in STREAMS else (8,):
            plan = Plan(variant, grid, bits)
            if cell > error or (best is not None and plan.loops >= best.loops):
                break
            code = entries * span / 2**bits if variant in STREAMS else code_terms(plan, omega, p).get("code", 0.0)
            if cell + code <= error:
                best = plan
                break
    if best is None:
        raise InputError(f"no grid of fewer than {MOST_GRID:,} cells reaches an error of {error}")
    return best


# ---- lower bounds -------------------------------------------------------------------------------------------------


def bits_needed(num_labels: int, label_bits: int, dim: int) -> int:
    """W weights of b bits make at most 2^(W b) functions, so W b >= q K d for all tables of K q-bit labels in R^d."""
    return num_labels * label_bits * dim


def loops_needed(num_labels: int, label_bits: int, width: int, parameters: int, dims_per_loop: int = 0) -> int:
    """The least r allowed by counting sign patterns, for a feed-forward layer looped r times with real weights.

    q K <= r (1 + W log2(4 e K w (r+1) / W)) + 1 + W log2(4 e K 2^q (r+1) / W), where a W beyond the number of
    polynomials (K w, or K 2^q) counts as that number. Time modulation adds parameters with every loop, and a factor to
    every degree, so that 4 e becomes 6 e: pass the number of modulated rows as `dims_per_loop`.
    """
    require_counts(num_labels=num_labels, label_bits=label_bits, width=width, parameters=parameters)
    _require_rows(dims_per_loop)
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
    _require_rows(dims_per_loop)
    polynomials = num_sequences * tokens**3 * max(heads, width)

    def capacity(loops: int) -> float:
        free = min(parameters + dims_per_loop * loops, polynomials)
        return (2 * loops + 1) * free * (log2(64 * e * (loops + 1)) + log2(polynomials) - log2(free))

    return _least(capacity, num_sequences)


def _require_rows(dims_per_loop: int) -> None:
    fits = isinstance(dims_per_loop, Integral) and dims_per_loop >= 0
    require(fits, f"dims_per_loop must be a whole number, 0 or more, got {dims_per_loop!r}")


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
    return num_labels * dim <= parameters + loops * modulated_rows
