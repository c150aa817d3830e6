"""The report of `looped theory approximate`: size, bound term by term, measured error, exactness of the output."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Literal

import numpy as np

from looped.theory.constructions.approximate import MOST_CELLS, Approximation, approximate
from looped.theory.grid import TokenIds, label
from looped.theory.network import Size
from looped.theory.targets import load, require_norm


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
    lipschitz: float | None = None  # the constant that the user gave

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, nested dataclasses as dicts."""
        return asdict(self)

    def text(self) -> str:
        """Return the report as lines of text."""
        size = self.size
        kind = "upper bounds of the moduli" if self.certified else "estimated moduli: indicative only"
        lines = [
            f"{self.function} on [0,1]^({self.dim} x {self.tokens}), {self.cells} cells per axis, {self.variant}",
            f"size      {size.dims} rows, {size.heads} head{'s' * (size.heads != 1)}, width {size.width}, "
            f"{size.loops:,} loops, {size.parameters:,} numbers, longest {size.max_bits:,} bits",
            f"bound     {self.bound_total:.4g} in L^{self.p:g} ({kind})",
            *(f"            {name:<12}{value:.4g}" for name, value in self.terms.items()),
            f"paper's   {sum(self.printed.values()):.4g} with the constants of its O-terms set to 1",
            *(f"            {name:<28}{value:.4g}" for name, value in self.printed.items()),
            f"measured  {self.measured_lp:.4g} in L^{self.p:g}, sup {self.measured_sup:.4g} on the good set "
            f"(bound there {self.bound_good:.4g}): {self._verdict}",
            f"exact     {self._exactness}",
        ]
        return "\n".join(lines)

    @property
    def refuted(self) -> bool:
        """True if a proved statement failed: the network is wrong, or f exceeds the given Lipschitz constant."""
        return not self.equals_code or (self.certified and not self.holds)

    @property
    def _verdict(self) -> str:
        if self.holds:
            return "holds"
        given = self.certified and self.equals_code and self.lipschitz is not None
        return "VIOLATED" + (f": f is steeper than its Lipschitz constant {self.lipschitz:g}" if given else "")

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
    return Report(*settings, net.size, *bounds, *measured, checked, equals_code, exact, lipschitz)


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
