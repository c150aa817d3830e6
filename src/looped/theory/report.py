"""The report of `looped theory approximate`: an example, size, bound term by term, measured error, exactness."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Literal

import numpy as np

from looped.theory.constructions.approximate import MOST_CELLS, Approximation, approximate
from looped.theory.constructions.paper import FAULTS, Paper
from looped.theory.grid import TokenIds, evaluate, label
from looped.theory.network import Size
from looped.theory.targets import load, require_norm

TERMS = {
    "cell": "f changes by that much within a cell",
    "code": "labels are stored rounded",
    "duplicates": "inputs with two tokens in one cell (0: this network serves them)",
    "trifling": "inputs just below the border of a cell, where a step is undecided",
}
WORDS = """\
words     cell: a cube of side 1/n; the network sees only the cell of each token. label: f at a point of a cell, its
          corner or centre. good set: inputs away from trifling intervals and, unless the network counts equal tokens,
          with all tokens in different cells. numbers: weights, biases and eta(t)."""


@dataclass(frozen=True)
class Example:
    """One input with the network's output and f, one list per coordinate."""

    inputs: list[list[float]]
    network: list[list[float]]
    f: list[list[float]]


@dataclass(frozen=True)
class Report:
    """All numbers of one construction, for `--json` (`as_dict`) and for a terminal (`text`)."""

    function: str
    variant: str
    dim: int
    tokens: int
    cells: int
    representative: str
    p: float
    size: Size
    terms: dict[str, float]
    bound_good: float
    bound_total: float
    certified: bool
    printed: dict[str, float]
    measured_sup: float
    measured_lp: float
    holds: bool
    cells_checked: int
    equals_code: bool  # output = stored label, as Fractions, on every checked cell
    exact: bool  # output = f(representative), as Fractions, on every checked cell
    steps: dict[str, tuple[int, int]]  # first and last loop of each step
    example: Example
    lipschitz: float | None = None  # the constant that the user gave

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, nested dataclasses as dicts."""
        return asdict(self)

    def text(self) -> str:
        """Return the report as lines of text."""
        size = self.size
        kind = "upper bounds of the moduli" if self.certified else "estimated moduli: indicative only"
        steps = ", ".join(f"{name} in loops {first}..{last}" for name, (first, last) in self.steps.items())
        lines = [
            f"{self.function} on [0,1]^({self.dim} x {self.tokens}), {self.cells} cells per axis, {self.variant}",
            f"example   X = {_short(self.example.inputs)}: network {_short(self.example.network)}, "
            f"f {_short(self.example.f)}",
            f"steps     {steps}",
            f"size      {size.dims} rows, {size.heads} head{'s' * (size.heads != 1)}, width {size.width}, "
            f"{size.loops:,} loops, {size.parameters:,} numbers, longest {size.max_bits:,} bits",
            f"bound     {self.bound_total:.4g} in L^{self.p:g} ({kind})",
            *(f"            {name:<12}{value:<10.4g}{TERMS[name]}" for name, value in self.terms.items()),
            f"printed   {sum(self.printed.values()):.4g} on the right side of the paper's theorem, if the constants of "
            "its O-terms, which it does not give, were 1",
            *(f"            {name:<28}{value:.4g}" for name, value in self.printed.items()),
            f"measured  {self.measured_lp:.4g} in L^{self.p:g}, {self._sup}",
            f"exact     {self._exactness}",
        ]
        if self.variant == Paper.name:
            lines.append(
                f"faults    {len(FAULTS)} of the printed block are corrected here; `looped theory verify` shows each"
            )
        lines.append(WORDS)
        return "\n".join(lines)

    @property
    def refuted(self) -> bool:
        """True if a proved statement failed: the network is wrong, or f exceeds the given Lipschitz constant."""
        return not self.equals_code or (self.certified and not self.holds)

    @property
    def is_steeper(self) -> bool:
        """True if the network is right and f exceeds the Lipschitz constant that the user gave."""
        return self.refuted and self.equals_code and self.lipschitz is not None

    @property
    def _sup(self) -> str:
        if not self.cells_checked:
            return "no point of the good set: fewer cells than tokens"
        return f"sup {self.measured_sup:.4g} on the good set (bound there {self.bound_good:.4g}): {self._verdict}"

    @property
    def _verdict(self) -> str:
        if self.holds:
            return "holds"
        if self.is_steeper:
            return f"VIOLATED: f is steeper than its Lipschitz constant {self.lipschitz:g}"
        return "VIOLATED"

    @property
    def _exactness(self) -> str:
        if not self.cells_checked:
            return "nothing to check: fewer cells than tokens, so no cell has distinct tokens"
        if not self.equals_code:
            return f"NO: not the stored label on all of {self.cells_checked} cells checked"
        value = "f(representative)" if self.exact else "the stored label"
        return f"{value} on all of {self.cells_checked} cells checked"


def report(
    function: str,
    dim: int,
    tokens: int,
    cells: int,
    variant: str = "paper",
    representative: Literal["corner", "centre"] = "corner",
    bits: int = 8,
    p: float = 2,
    lipschitz: float | None = None,
    epsilon: float | None = None,
    show_step: Callable[[str], None] = lambda text: None,
) -> Report:
    """Build, run and measure a network. `function` is a built-in name or `file.py:name`. `show_step` shows progress."""
    require_norm(p)  # fails before the work starts
    target = load(function, dim, tokens)
    show_step("building the network")
    net = approximate(target, dim, tokens, cells, variant, representative, bits, lipschitz=lipschitz, epsilon=epsilon)
    show_step(f"measuring its error, {net.construction.loops:,} loops")
    bound = net.bound(p)
    show_step("checking all cells")
    checked, equals_code, exact = check_cells(net)
    settings = (function, variant, dim, tokens, cells, representative, p)
    bounds = (bound.terms, bound.good, bound.total, bound.certified, bound.printed)
    measured = (bound.measured_sup, bound.measured_lp, bound.holds)
    outcome = (checked, equals_code, exact, steps_of(net), example_of(net))
    return Report(*settings, net.size, *bounds, *measured, *outcome, lipschitz)


def steps_of(net: Approximation) -> dict[str, tuple[int, int]]:
    """Return the first and the last loop, counted from 1, of the three steps."""
    ready = net.grid.cells - 1 + net.construction.hand_over_loops
    ids = ready + net.grid.tokens
    return {"cell numbers": (1, ready), "ids": (ready + 1, ids), "labels": (ids + 1, net.construction.loops)}


def example_of(net: Approximation) -> Example:
    """Return the network's output and f at tokens spread over [0, 1), a third into their cells."""
    grid = net.grid
    numbers = [(j * grid.cells // grid.tokens + i) % grid.cells for i in range(grid.dim) for j in range(grid.tokens)]
    points = [Fraction(3 * k + 1, 3 * grid.cells) for k in numbers]
    x = np.array(points, dtype=object).reshape(grid.dim, grid.tokens)
    values = evaluate(net.target.function, x.astype(float))
    return Example(x.astype(float).tolist(), net(x).astype(float).tolist(), values.tolist())


def _short(values: list[list[float]]) -> str:
    rows = ["(" + ", ".join(f"{value:.4g}" for value in row) + ")" for row in values]
    return rows[0] if len(rows) == 1 else "(" + ", ".join(rows) + ")"


def check_cells(net: Approximation) -> tuple[int, bool, bool]:
    """Return (cells checked, output = stored label, output = f(representative)) for at most 1024 served cells."""
    grid, cells = net.grid, served_cells(net, MOST_CELLS)
    if not cells:
        return 0, True, True
    corners = [[[Fraction(k, grid.cells) for k in grid.coordinates(z)] for z in cell] for cell in cells]
    outputs = net(np.array(corners, dtype=object).transpose(0, 2, 1))
    values = [[list(column) for column in output.T] for output in outputs]
    stored = [net.code_value(cell) for cell in cells]
    exact = [[label(net.labels, tuple(sorted(cell, reverse=True)), z) for z in cell] for cell in cells]
    return len(cells), values == stored, values == exact


def served_cells(net: Approximation, most: int) -> list[TokenIds]:
    """Return all cells on which the network is right, or those among `most` random cells."""
    grid = net.grid
    if grid.num_sequences <= most:
        candidates: Sequence[TokenIds] = list(product(range(grid.base), repeat=grid.tokens))
    else:
        drawn = np.random.default_rng(0).integers(grid.base, size=(most, grid.tokens))
        candidates = [tuple(int(z) for z in cell) for cell in drawn]
    return [z for z in candidates if net.serves_duplicates or len(set(z)) == grid.tokens]
