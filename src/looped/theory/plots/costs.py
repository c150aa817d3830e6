"""Draw what the constructions cost: error against loops with the proved slopes, and loops against stored labels."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from looped.theory.bounds import memorizer_bounds
from looped.theory.constructions import CONSTRUCTIONS
from looped.theory.constructions.approximate import approximate
from looped.theory.grid import Grid
from looped.theory.plots.style import COLOURS, GREY, label_axis, new_figure, require_drawable
from looped.theory.targets import load
from looped.utils.errors import require_one_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRIDS = (2, 3, 4, 6, 8, 12, 16, 24)
MOST_LABELS = 1e6


def error(
    function: str = "attn",
    variant: str | None = None,
    tokens: int | None = None,
    most_loops: int = 600,
    bits: int = 6,
    p: float = 2,
) -> Figure:
    """Draw the measured error against the loops, with the slopes of the theorems, for two and for three tokens.

    One variant or one number of tokens can be chosen. Parallel to a slope means: falls like that power of the loops.
    """
    if variant is not None:
        require_one_of("variant", variant, CONSTRUCTIONS)
    chosen = list(CONSTRUCTIONS) if variant is None else [variant]
    counts = (2, 3) if tokens is None else (tokens,)
    for count in counts:
        require_drawable(2, count)
    figure, axes = new_figure(4.6 * len(counts), 4.4, columns=len(counts))
    for axis, count in zip(axes, counts, strict=True):
        for name in chosen:
            _draw_errors(axis, name, function, count, most_loops, bits, p)
        _draw_slopes(axis, count)
        axis.tick_params(which="minor", labelsize=7)
        equal = "\ncrosses: equal tokens not served" if count > 2 else ""
        title = f"{function}, d = 1, N = {count}{equal}"
        label_axis(axis, title, "loops r", f"measured $L^{{{p:g}}}$ error, centres stored")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=5, fontsize=8, frameon=False)
    return figure


def _draw_errors(axis: Axes, variant: str, function: str, tokens: int, most_loops: int, bits: int, p: float) -> None:
    construction, target = CONSTRUCTIONS[variant], load(function, 1, tokens)
    grids = [n for n in GRIDS if construction(Grid(1, tokens, n, "centre"), bits).loops <= most_loops]
    nets = [approximate(target, 1, tokens, n, variant, "centre", bits=bits) for n in grids]
    errors = [net.measured_error(p)[1] for net in nets]
    served = construction(Grid(1, tokens, 2)).serves_duplicates
    style = "o-" if served else "x:"
    axis.loglog([net.size.loops for net in nets], errors, style, ms=4, lw=1.3, color=COLOURS[variant], label=variant)


def _draw_slopes(axis: Axes, tokens: int) -> None:
    """Draw one grey line for each exponent of the theorems, side by side above the curves."""
    left, right = axis.get_xlim()
    top = axis.get_ylim()[1]
    powers = (Fraction(1, tokens + 1), Fraction(1, tokens), Fraction(2, tokens))
    start = left * (right / left) ** 0.45
    ends = np.array([start, right])
    for power in powers:
        exponent = float(power)
        axis.loglog(ends, top * (ends / start) ** -exponent, color=GREY, lw=0.9, ls="--")
        height = top * (right / start) ** -exponent
        axis.text(right, height, f"$r^{{-{power}}}$", fontsize=8, color=GREY, ha="left", va="center")
    axis.set_xlim(left, right)


def loops(bits: int = 6) -> Figure:
    """Draw the loops that store K labels of q bits, and the loops that every layer of that size needs."""
    figure, (axis,) = new_figure(6.6, 4.4)
    counts = np.unique(np.geomspace(8, MOST_LABELS, 40).astype(int)).tolist()
    costs = [memorizer_bounds(k, bits) for k in counts]
    for name, variant in (("stream, weight-tied", "lean-stream"), ("sqrt, time-modulated", "modulated-sqrt")):
        axis.loglog(counts, [cost[name].loops for cost in costs], lw=1.6, color=COLOURS[variant], label=name)
        needed = [cost[name].needed for cost in costs]
        axis.loglog(counts, needed, "--", lw=1, color=COLOURS[variant], label="needed by every layer of its size")
    one_per_loop = [k - 1 for k in counts]
    axis.loglog(counts, one_per_loop, lw=1.6, color=COLOURS["modulated"], label="bits (half a jump), modulated (exact)")
    axis.legend(fontsize=8, frameon=False)
    label_axis(axis, f"Loops to store K labels of {bits} bits", "labels K", "loops r")
    return figure
