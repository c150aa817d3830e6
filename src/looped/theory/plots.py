"""Pictures for a lecture: how the network of the proof works, loop by loop, and its cost. Each is one figure.

matplotlib is imported when a picture is drawn, so that the theory itself needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from looped.theory.bounds import loops_needed
from looped.theory.constructions import CONSTRUCTIONS
from looped.theory.constructions.approximate import approximate
from looped.theory.grid import Grid, fill, labels_by_id, paper_id, printed_fill, tabulate
from looped.theory.lemmas.memorizer import DifferenceCode
from looped.theory.lemmas.quantizer import quantizer
from looped.theory.lemmas.streams import Grouping, sqrt_memorizer, stream_memorizer
from looped.theory.targets import load
from looped.utils.errors import require, require_one_of
from looped.utils.files import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY = "#1b1b1b", "#8a8a8a"
PALETTE = ("#c0392b", "#2471a3", "#17a589", "#5d6d7e", "#a04000", "#d68910", "#7d3c98", "#1e8449", "#d16ba5", "#b03a2e")
COLOURS = dict(zip(CONSTRUCTIONS, cycle(PALETTE), strict=False))


def _figure(width: float, height: float, columns: int = 1, rows: int = 1, **options) -> tuple[Figure, np.ndarray]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = np.atleast_1d(np.array(figure.subplots(rows, columns, **options))).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8, colors=INK)
    return figure, axes


def _label(axis: Axes, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10, loc="left", color=INK)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)


def staircase(cells: int = 6) -> Figure:
    """Draw Step 1: the output of the quantizer after every loop, as a function of x."""
    from matplotlib import colormaps

    network = quantizer(cells, epsilon=Fraction(1, 16 * cells))
    xs = [Fraction(i, 64 * cells) for i in range(64 * cells)]
    runs = [[state[0]["cell1"] for state in network.states([[x]])] for x in xs]
    figure, (axis,) = _figure(6.4, 4)
    for loop in range(cells):
        colour = colormaps["plasma"](0.9 * loop / max(cells - 1, 1))
        line = [float(run[loop]) for run in runs]
        width = 3 if loop == cells - 1 else 1.2
        axis.plot([float(x) for x in xs], line, color=colour, lw=width, zorder=cells - loop, label=f"{loop}")
    axis.legend(title="loops done", fontsize=8, title_fontsize=8, frameon=False)
    _label(axis, f"The quantizer adds one step of the staircase per loop (n = {cells})", "x", "cell number so far")
    return figure


def contextual_ids(cells: int = 4) -> Figure:
    """Draw Step 2: the id of one of two tokens for every pair of cells, and the position of these ids among all K."""
    grid = Grid(1, 2, cells)
    total = 2 * grid.base * grid.num_sequences
    table = np.full((cells, cells), np.nan)
    for own, other in product(range(cells), repeat=2):
        table[other, own] = paper_id(grid, (max(own, other), min(own, other)), own)
    figure, (left, right) = _figure(9, 3.8, columns=2, width_ratios=(1, 1.6))
    image = left.imshow(table, origin="lower", cmap="viridis")
    for (other, own), value in np.ndenumerate(table):
        ink = "white" if value < 0.6 * total else INK
        left.text(own, other, f"{int(value)}", ha="center", va="center", fontsize=8, color=ink)
    left.set_xticks(range(cells))
    left.set_yticks(range(cells))
    _label(left, "Contextual id of a token", "own cell z", "the other token's cell")
    figure.colorbar(image, ax=left, shrink=0.8)
    for own in range(cells):
        ids = sorted(table[:, own])
        right.vlines(ids, own - 0.35, own + 0.35, color=COLOURS["paper"], lw=2)
        right.hlines(own, own * 2 * grid.num_sequences, (own + 1) * 2 * grid.num_sequences - 1, color=GREY, lw=0.6)
    right.set_yticks(range(cells))
    _label(right, f"{cells * cells} ids in use among K = {total}; the others are filled linearly", "id k", "own cell z")
    return figure


def labels(function: str = "wave", cells: int = 4) -> Figure:
    """Draw Step 3: the labels y_k, their linear fill, the +-1 code that the network stores, and the printed fill."""
    grid = Grid(1, 2, cells)
    known = labels_by_id(grid, tabulate(load(function, 1, 2).function, grid, True), paper_id)
    total = 2 * grid.base * grid.num_sequences
    table, printed = fill(known, total), printed_fill(known, total, cells)
    code = DifferenceCode.of([y[0] for y in table])
    figure, (axis,) = _figure(8.4, 4)
    ks = range(total)
    axis.plot(ks, [float(y[0]) for y in printed], color=GREY, lw=0.8, ls=":", label="fill as printed (divides by n)")
    axis.step(ks, [float(code.value(k)) for k in ks], where="mid", color="#2471a3", lw=1, label="stored by the network")
    axis.plot(ks, [float(y[0]) for y in table], color=INK, lw=1.2, label="linear fill")
    axis.plot(
        list(known), [float(y[0]) for y in known.values()], "o", ms=4, color=COLOURS["paper"], label="labels of f"
    )
    low, high = min(float(y[0]) for y in table), max(float(y[0]) for y in table)
    axis.set_ylim(low - 0.35 * (high - low), high + 0.35 * (high - low))
    axis.legend(fontsize=8, frameon=False, ncols=2, loc="upper right")
    _label(axis, f"Labels of {function} over the contextual ids (n = {cells}, d = 1, N = 2)", "id k", "$y_k$")
    return figure


def error(function: str = "attn", most_loops: int = 2000, bits: int = 6, p: float = 2) -> Figure:
    """Draw error against loops for every variant, with bounds, and loops against labels, with lower bounds."""
    target = load(function, 1, 2)
    figure, (left, right) = _figure(11, 4.6, columns=2)
    for variant, construction in CONSTRUCTIONS.items():
        xs, measured, proved = [], [], []
        cells = 2
        while (loops := construction(Grid(1, 2, cells, "centre"), bits).loops) <= most_loops and cells <= 24:
            bound = approximate(target, 1, 2, cells, variant, "centre", bits=bits).bound(p)
            xs.append(loops)
            measured.append(bound.measured_lp)
            proved.append(bound.total)
            cells = max(cells + 1, round(cells * 1.25))
        left.loglog(xs, measured, "o-", ms=3.5, lw=1.4, color=COLOURS[variant], label=variant)
        left.loglog(xs, proved, "--", lw=0.9, color=COLOURS[variant])
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=5, fontsize=8, frameon=False)
    _label(
        left,
        f"Error of {function}, measured (solid) and proved (dashed); d = 1, N = 2",
        "loops r",
        f"$L^{{{p:g}}}$ error",
    )
    _memorizer_costs(right, bits)
    return figure


def _memorizer_costs(axis: Axes, bits: int) -> None:
    """Draw the loops that store K q-bit labels, and the lower bounds from counting sign patterns."""
    example = [Fraction(k % 2, 2) for k in range(4)]
    counts = np.unique(np.geomspace(8, 1e6, 40).astype(int)).tolist()
    modulated = sqrt_memorizer(example, bits)
    stream, root, rows = stream_memorizer(example, bits).size, modulated.size, len(modulated.modulation)
    curves = {
        "stream, weight-tied": ([bits * (k - 1) + 1 for k in counts], COLOURS["lean-stream"]),
        "bits (error: half a jump); modulated (exact)": ([k - 1 for k in counts], COLOURS["modulated"]),
        "sqrt, time-modulated": ([Grouping.best(k, bits).loops for k in counts], COLOURS["modulated-sqrt"]),
    }
    for name, (loops, colour) in curves.items():
        axis.loglog(counts, loops, lw=1.6, color=colour, label=name)
    tied = [loops_needed(k, bits, stream.width, stream.parameters) for k in counts]
    free = [loops_needed(k, bits, root.width, root.parameters - rows * root.loops, rows) for k in counts]
    axis.loglog(counts, tied, "--", lw=1, color=COLOURS["lean-stream"], label="lower bound, weight-tied")
    axis.loglog(counts, free, "--", lw=1, color=COLOURS["modulated-sqrt"], label="lower bound, time-modulated")
    axis.legend(fontsize=8, frameon=False)
    _label(axis, f"Loops to store K labels of {bits} bits", "labels K", "loops r")


def trace(function: str = "wave", variant: str = "lean", cells: int = 3) -> Figure:
    """Draw every row of one token over the loops, each row relative to its largest value."""
    require_one_of("variant", variant, CONSTRUCTIONS)
    net = approximate(load(function, 1, 2), 1, 2, cells, variant, bits=4)
    x = [[Fraction(3, 2 * cells), Fraction(2 * cells - 1, 2 * cells)]]
    recorded = net.trace(np.array(x, dtype=object))
    values = np.array([[float(v) for v in row] for row in recorded.values[:, :, 1]]).T
    scale = np.abs(values).max(axis=1, keepdims=True)
    figure, (axis,) = _figure(10, 0.24 * len(recorded.rows) + 1.4)
    picture = values / np.where(scale == 0, 1, scale)
    image = axis.imshow(picture, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    axis.set_yticks(range(len(recorded.rows)), recorded.rows, fontsize=7)
    first = cells - 1
    for border in (first, first + net.construction.hand_over_loops + net.grid.tokens):
        axis.axvline(border + 0.5, color=INK, lw=0.8, ls=":")
    figure.colorbar(image, ax=axis, label="value / largest value of the row", pad=0.01)
    title = f"{variant}: one token's state over {net.size.loops} loops (dotted: end of Step 1 and of Step 2)"
    _label(axis, title, "loops done", "")
    return figure


PLOTS: dict[str, Callable[..., Figure]] = {
    "staircase": staircase,
    "ids": contextual_ids,
    "labels": labels,
    "error": error,
    "trace": trace,
}
FORMATS = (".png", ".svg", ".pdf")


def plot(name: str, path: str | Path, **options) -> Path:
    """Draw one of PLOTS into a file, which is written completely or not at all. `options` go to the plot function."""
    require_one_of("picture", name, PLOTS)
    target = Path(path)
    kind = target.suffix.lower()
    require(kind in FORMATS, f"out: expected a file that ends in {', '.join(FORMATS)}, got {str(target)!r}")
    figure = PLOTS[name](**options)
    save(target, lambda handle: figure.savefig(handle, format=kind[1:]))
    return target
