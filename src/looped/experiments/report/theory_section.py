"""The theory's part of the report: error against loops, measured and proved, of the proof's own networks."""

from functools import cache
from typing import NamedTuple

from looped.experiments.report.document import Entry, Figure, Section, Table, Words
from looped.viz.plots import PALETTE, Lines, Series, draw
from looped.theory import CONSTRUCTIONS, approximate, load
from looped.theory.grid import Grid

VARIANTS: dict[str, str] = {
    "paper": "the paper's, weight-tied",
    "lean": "ours, weight-tied",
    "modulated": "Appendix B, with timestep",
    "modulated-sqrt": "ours, with timestep",
}
FUNCTION, BITS, NORM = "attn", 6, 2
MOST_LOOPS, MOST_CELLS = 500, 24


class Point(NamedTuple):
    loops: int
    measured: float
    bound: float


@cache
def errors(variant: str) -> tuple[Point, ...]:
    """One token's function of two tokens, approximated on finer and finer grids; a few seconds for all variants."""
    target, found, cells = load(FUNCTION, 1, 2), [], 2
    kind = CONSTRUCTIONS[variant]
    while cells <= MOST_CELLS and (loops := kind(Grid(1, 2, cells, "centre"), BITS).loops) <= MOST_LOOPS:
        bound = approximate(target, 1, 2, cells, variant, "centre", bits=BITS).bound(NORM)
        found.append(Point(loops, bound.measured_lp, bound.total))
        cells = max(cells + 1, round(1.25 * cells))
    return tuple(found)


def theory_section() -> Section:
    """Computed anew for every report: exact networks need no training."""
    series, ends, rows = [], [], []
    for (variant, name), colour in zip(VARIANTS.items(), PALETTE, strict=False):
        points = errors(variant)
        loops = [point.loops for point in points]
        series.append(Series(name, colour, loops, [point.measured for point in points]))
        # A name that begins so has no place in the legend: the caption tells what is dashed.
        series.append(Series(f"_{name}", colour, loops, [point.bound for point in points], style="dashed"))
        first, last = points[0], points[-1]
        ends.append(
            f"{name}: from {first.measured:.3f} at {first.loops} loops to {last.measured:.3f} at {last.loops} "
            f"(proved: {first.bound:.2f} and {last.bound:.2f})"
        )
        numbers = [(str(point.loops), f"{point.measured:.3f}", f"{point.bound:.2f}") for point in (first, last)]
        rows.append((Entry(name), *(Entry(text) for three in numbers for text in three)))
    below = all(point.measured <= point.bound for variant in VARIANTS for point in errors(variant))
    words = (
        "The networks of the proof, built with real weights and run in exact arithmetic, approximate one attention "
        f"head (`{FUNCTION}`) over two tokens of one entry each. More loops mean a finer grid and a smaller error. The "
        f"measured error is {'below the proved bound at every point' if below else 'ABOVE THE BOUND somewhere: a bug'}."
    )
    head = ("network", "fewest loops", "error", "bound", "most loops", "error", "bound")
    table = Table(
        f"Error in L{NORM} at the fewest and the most loops shown (no training is involved)", head, tuple(rows)
    )
    chart = Lines("", "loops r", f"L{NORM} error", tuple(series), x_scale="log", y_scale="log")
    alt = f"Error of the proof's networks against their loops. {'; '.join(ends)}."
    caption = "Theory: measured error (points) and proved bound (dashed) against loops."
    figure = Figure("theory-error", alt, caption, (draw([chart], "theory-error", alt),))
    return Section("The theory: error against loops", "theory", (Words(words), table, figure))
