"""How the network works: Step 1 as a staircase, Step 2 as keys and fetches, ids, labels, and rows over the loops."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import islice, product
from typing import TYPE_CHECKING

import numpy as np

from looped.theory.constructions.approximate import Approximation, approximate
from looped.theory.grid import Grid, evaluate, fill, labels_by_id, paper_id, printed_fill, tabulate
from looped.theory.lemmas.memorizer import DifferenceCode
from looped.theory.lemmas.quantizer import quantizer
from looped.theory.network import attention_weights
from looped.theory.plots.style import BLUE, GREY, INK, RED, label_axis, new_figure, require_drawable
from looped.theory.targets import load
from looped.utils.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 60  # of a trace
FAULTS = ("rectangle", "start")  # of the printed quantizer
WIDE = 16  # trifling intervals are drawn as 1/16 of a cell


def staircase(cells: int = 6) -> Figure:
    """Draw Step 1: the output of the quantizer after every loop, as corrected and as printed in the paper."""
    require_drawable(cells)
    figure, axes = new_figure(9.6, 3.8, columns=2)
    panels = (("As corrected: one step more per loop", ()), ("As printed: wrong start, overlapping steps", FAULTS))
    for axis, (title, printed) in zip(axes, panels, strict=True):
        _draw_staircase(axis, cells, printed)
        label_axis(axis, f"{title} (n = {cells})", "x (slanted: trifling intervals, drawn wide)", "cell number so far")
    axes[0].legend(title="loops done", fontsize=8, title_fontsize=8, frameon=False, ncols=1 + cells // 12)
    plain = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    axes[0].text(0.98, 0.6, "the last trifling interval ends at 1", ha="right", fontsize=8, color=GREY, bbox=plain)
    return figure


def _draw_staircase(axis: Axes, cells: int, printed: tuple[str, ...]) -> None:
    from matplotlib import colormaps

    network = quantizer(cells, epsilon=Fraction(1, WIDE * cells), printed=printed)
    xs = [Fraction(i, 64 * cells) for i in range(64 * cells + 1)]
    runs = [[state[0]["cell1"] for state in network.states([[x]])] for x in xs]
    for loop in range(cells):
        colour = colormaps["plasma"](0.9 * loop / max(cells - 1, 1))
        line = [float(run[loop]) for run in runs]
        width = 3 if loop == cells - 1 else 1.2
        axis.plot([float(x) for x in xs], line, color=colour, lw=width, zorder=cells - loop, label=f"{loop}")


def attention(
    function: str = "wave",
    variant: str = "modulated-minimal",
    cells: int = 6,
    tokens: int = 3,
    input: Sequence[float] | None = None,
) -> Figure:
    """Draw Step 2: the keys of all tokens in every round, and the token that all of them fetch."""
    net, columns = _network(function, variant, cells, tokens, input)
    first = cells - 1 + net.construction.hand_over_loops
    head = net.network.heads[0]
    ids = [int(column[0] * cells) for column in columns]
    states = list(islice(net.network.states(columns), first + tokens))
    names = [f"token {j + 1}\nid {z}" for j, z in enumerate(ids)]
    figure, axes = new_figure(2.3 * tokens + 1, 3.6, columns=tokens, sharey=True)
    for number, axis in enumerate(axes):
        state = states[first + number]
        keys = [head.key.at(token) for token in state]
        weights = attention_weights(keys, softmax=False)
        fetched = sum(weight * head.value.at(token) for weight, token in zip(weights, state, strict=True))
        colours = [RED if weight else GREY for weight in weights]
        axis.bar(names, [float(key) for key in keys], color=colours, width=0.6)
        axis.axhline(0, color=INK, lw=0.6)
        for place, key in enumerate(keys):
            side = "bottom" if key >= 0 else "top"
            axis.text(place, float(key), f"{float(key):g}", ha="center", va=side, fontsize=8, color=INK)
        _draw_fetches(axis, weights, len(names), float(max(keys)))
        again = "" if max(keys) >= 0 else ", nobody waits"
        label_axis(axis, f"Round {number + 1}: all fetch {float(fetched):g}{again}", "", "key" if number == 0 else "")
        axis.tick_params(axis="x", labelsize=7)
        axis.margins(y=0.25)
    shown = ", ".join(f"{float(column[0]):.3g}" for column in columns)
    text = f"{variant}: X = ({shown}). Red: the largest key. A fetched token loses 2B = {2 * cells} and waits no more."
    figure.suptitle(text, fontsize=9, x=0.01, ha="left")
    return figure


def _draw_fetches(axis: Axes, weights: Sequence[int | Fraction], tokens: int, height: float) -> None:
    """Draw an arrow from every other token to a fetched one."""
    chosen = [place for place in range(tokens) if weights[place]]
    for place in range(tokens):
        if place not in chosen:
            target = min(chosen, key=lambda other, place=place: abs(other - place))
            bend = 0.3 if place < target else -0.3
            style = {"arrowstyle": "->", "color": RED, "lw": 0.9, "connectionstyle": f"arc3,rad={-bend}"}
            axis.annotate("", (target, max(height, 0)), (place, max(height, 0)), arrowprops=style)


def contextual_ids(cells: int = 4) -> Figure:
    """Draw Step 2: the id of one of two tokens for every pair of cells, and the position of these ids among all K."""
    require_drawable(cells)
    grid = Grid(1, 2, cells)
    total = 2 * grid.base * grid.num_sequences
    table = np.full((cells, cells), np.nan)
    for own, other in product(range(cells), repeat=2):
        table[other, own] = paper_id(grid, (max(own, other), min(own, other)), own)
    figure, (left, right) = new_figure(9, 3.8, columns=2, width_ratios=(1, 1.6))
    image = left.imshow(table, origin="lower", cmap="viridis")
    for (other, own), value in np.ndenumerate(table):
        ink = "white" if value < 0.6 * total else INK
        left.text(own, other, f"{int(value)}", ha="center", va="center", fontsize=8 if cells <= 8 else 4, color=ink)
    left.set_xticks(range(cells))
    left.set_yticks(range(cells))
    label_axis(left, "Contextual id of a token", "own cell z", "the other token's cell")
    figure.colorbar(image, ax=left, shrink=0.8)
    for own in range(cells):
        ids = sorted(table[:, own])
        right.vlines(ids, own - 0.35, own + 0.35, color=RED, lw=2)
        right.hlines(own, own * 2 * grid.num_sequences, (own + 1) * 2 * grid.num_sequences - 1, color=GREY, lw=0.6)
    right.set_yticks(range(cells))
    title = f"{cells * cells} ids in use among K = {total}; the others are filled linearly"
    label_axis(right, title, "id k", "own cell z")
    return figure


def labels(function: str = "wave", cells: int = 4) -> Figure:
    """Draw Step 3: the labels y_k, their linear fill, the +-1 code that the network stores, and the printed fill."""
    require_drawable(cells)
    grid = Grid(1, 2, cells)
    known = labels_by_id(grid, tabulate(load(function, 1, 2).function, grid, True), paper_id)
    total = 2 * grid.base * grid.num_sequences
    table, printed = fill(known, total), printed_fill(known, total, cells)
    code = DifferenceCode.of([y[0] for y in table])
    figure, (axis,) = new_figure(8.4, 4)
    ks = range(total)
    axis.plot(ks, [float(y[0]) for y in printed], color=GREY, lw=0.8, ls=":", label="fill as printed (divides by n)")
    axis.step(ks, [float(code.value(k)) for k in ks], where="mid", color=BLUE, lw=1, label="stored by the network")
    axis.plot(ks, [float(y[0]) for y in table], color=INK, lw=1.2, label="linear fill")
    axis.plot(list(known), [float(y[0]) for y in known.values()], "o", ms=4, color=RED, label="labels of f")
    low, high = min(float(y[0]) for y in table), max(float(y[0]) for y in table)
    axis.set_ylim(low - 0.35 * (high - low), high + 0.35 * (high - low))
    axis.legend(fontsize=8, frameon=False, ncols=2, loc="upper right")
    label_axis(axis, f"Labels of {function} over the contextual ids (n = {cells}, d = 1, N = 2)", "id k", "$y_k$")
    return figure


def trace(
    function: str = "wave",
    variant: str = "lean",
    cells: int = 3,
    tokens: int = 2,
    input: Sequence[float] | None = None,
    bits: int = 4,
) -> Figure:
    """Draw every row that changes over the loops, for every token, with its last value and the output beside f."""
    net, columns = _network(function, variant, cells, tokens, input, bits)
    inputs = np.array(columns, dtype=object).T
    recorded = net.trace(inputs)
    values = recorded.values.astype(float)
    changing = [i for i in range(len(recorded.rows)) if np.ptp(values[:, i], axis=0).any()]
    require(len(changing) <= MOST_ROWS, f"variant: expected at most {MOST_ROWS} rows that change, got {len(changing)}")
    output, exact = net(inputs).astype(float)[0], evaluate(net.target.function, inputs.astype(float))[0]
    figure, axes = new_figure(10, (0.2 * len(changing) + 0.7) * tokens + 0.8, rows=tokens, sharex=True)
    starts = (cells - 1, cells - 1 + net.construction.hand_over_loops + tokens)
    for token, axis in enumerate(axes):
        picture = values[:, changing, token].T
        scale = np.abs(picture).max(axis=1, keepdims=True)
        shown = picture / np.where(scale == 0, 1, scale)
        image = axis.imshow(shown, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        axis.set_yticks(range(len(changing)), [recorded.rows[i] for i in changing], fontsize=7)
        for place, last in enumerate(picture[:, -1]):
            axis.text(1.005, place, f"{last:.4g}", transform=axis.get_yaxis_transform(), fontsize=6, va="center")
        for border in starts:
            axis.axvline(border + 0.5, color=INK, lw=0.8, ls=":")
        x = float(columns[token][0])
        title = (
            f"token {token + 1}: x = {x:.3g}, cell {int(x * cells)}, output {output[token]:.4g}, f = {exact[token]:.4g}"
        )
        label_axis(axis, title, "loops done" if token == tokens - 1 else "", "")
    figure.colorbar(image, ax=list(axes), label="value / largest value of the row", pad=0.06, shrink=0.6)
    text = f"{variant}, {net.size.loops} loops. Dotted: end of Step 1 and of Step 2. Right: last value of each row."
    figure.suptitle(text, fontsize=9, x=0.01, ha="left")
    return figure


def _network(
    function: str, variant: str, cells: int, tokens: int, input: Sequence[float] | None, bits: int = 4
) -> tuple[Approximation, list[list[Fraction]]]:
    """Return the network of a picture and its input, one column per token; by default centres of different cells."""
    require_drawable(cells, tokens)
    net = approximate(load(function, 1, tokens), 1, tokens, cells, variant, "centre", bits=bits)
    if input is None:
        spread = [(j + 1) % tokens * cells // tokens for j in range(tokens)]
        chosen = [Fraction(2 * z + 1, 2 * cells) for z in spread]
        return net, [[x] for x in chosen]
    require(len(input) == tokens, f"input: expected {tokens} numbers, one per token, got {len(input)}")
    require(all(0 <= x < 1 for x in input), f"input: expected numbers in [0, 1), got {list(input)}")
    return net, [[Fraction(float(x))] for x in input]
