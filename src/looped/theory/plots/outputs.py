"""The function beside the output of its network."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from looped.theory.constructions.approximate import Approximation, approximate
from looped.theory.grid import evaluate
from looped.theory.plots.style import BLUE, GREY, INK, label_axis, new_figure, require_drawable
from looped.theory.targets import load
from looped.utils.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS_PER_CELL = {1: 32, 2: 8, 3: 8}  # along an axis, by the number of tokens
DRAWN_EPSILON = 8  # trifling intervals are drawn as 1/8 of a cell
MOST_POINTS = 128  # along an axis of a map


def beside_network(
    function: str = "wave",
    variant: str = "modulated-minimal",
    cells: int = 6,
    tokens: int = 2,
    input: Sequence[float] | None = None,
    bits: int = 8,
) -> Figure:
    """Draw f beside the output of its network: a curve if there is one token, else maps over two.

    With three tokens the third has a fixed value, the last of `input` or 1/2. Trifling intervals are drawn wide.
    """
    require_drawable(cells, tokens)
    require(tokens <= 3, f"tokens: expected 1, 2 or 3, because a page has two axes, got {tokens}")
    others = [] if tokens < 3 else [0.5 if input is None else float(input[-1])]
    require(
        input is None or tokens == 3, f"input: expected none with {tokens} tokens, which fill the page, got {input}"
    )
    epsilon = Fraction(1, DRAWN_EPSILON * cells)
    net = approximate(load(function, 1, tokens), 1, tokens, cells, variant, "centre", bits=bits, epsilon=epsilon)
    return _curve(net) if tokens == 1 else _maps(net, others)


def _curve(net: Approximation) -> Figure:
    n, width = net.grid.cells, float(net.epsilon)
    count = POINTS_PER_CELL[1] * n
    xs = _middles(count)
    outputs = net(xs.reshape(-1, 1, 1)).astype(float)[:, 0, 0]
    xs = xs.astype(float)
    values = np.array([evaluate(net.target.function, np.array([[x]]))[0, 0] for x in xs])
    figure, (axis,) = new_figure(7.2, 4)
    for k in range(1, n + 1):
        axis.axvspan(k / n - width, k / n, color=GREY, alpha=0.25, lw=0, label="trifling" if k == 1 else None)
    axis.plot(xs, values, color=INK, lw=1.4, label="f")
    axis.plot(xs, outputs, color=BLUE, lw=1.2, label="network")
    axis.legend(fontsize=8, frameon=False)
    title = f"{net.target.name} and {net.construction.name}: n = {n}, {net.size.loops:,} loops"
    label_axis(axis, f"{title} (trifling intervals drawn wide)", "x", "value")
    return figure


def _maps(net: Approximation, others: list[float]) -> Figure:
    n, tokens = net.grid.cells, net.grid.tokens
    count = min(POINTS_PER_CELL[tokens] * n, MOST_POINTS)
    own, other = np.meshgrid(_middles(count), _middles(count))
    fixed = [np.full(own.size, Fraction(x), dtype=object) for x in others]
    points = np.stack([own.ravel(), other.ravel(), *fixed], axis=1)[:, None, :]
    shape = (count, count)
    outputs = net(points).astype(float)[:, 0, 0].reshape(shape)
    values = np.array([evaluate(net.target.function, x)[0, 0] for x in points.astype(float)]).reshape(shape)
    low, high = min(values.min(), outputs.min()), max(values.max(), outputs.max())
    third = f", third token {others[0]:g}" if others else ""
    figure, axes = new_figure(11, 3.6, columns=3)
    panels = (
        (f"f: {net.target.name}", values, {"cmap": "viridis", "vmin": low, "vmax": high}),
        ("network", outputs, {"cmap": "viridis", "vmin": low, "vmax": high}),
        ("absolute difference", np.abs(outputs - values), {"cmap": "magma_r", "vmin": 0}),
    )
    for axis, (title, picture, options) in zip(axes, panels, strict=True):
        image = axis.imshow(picture, origin="lower", extent=(0, 1, 0, 1), interpolation="nearest", **options)
        figure.colorbar(image, ax=axis, shrink=0.72).ax.tick_params(labelsize=8)
        _cell_borders(axis, n)
        label_axis(axis, title, "own token $x_1$", "other token $x_2$")
    equal = "" if net.serves_duplicates else "; wrong where two tokens share a cell"
    text = f"{net.construction.name}, n = {n}, {net.size.loops:,} loops: values of the first token{third}{equal}"
    figure.suptitle(f"{text} (trifling intervals drawn wide)", fontsize=9, x=0.01, ha="left")
    return figure


def _middles(count: int) -> np.ndarray:
    """Return the middles of `count` equal parts of [0, 1] as short Fractions, with which the engine is fast."""
    return np.array([Fraction(2 * k + 1, 2 * count) for k in range(count)], dtype=object)


def _cell_borders(axis: Axes, cells: int) -> None:
    for k in range(1, cells):
        for line in (axis.axvline, axis.axhline):
            line(k / cells, color="white", lw=0.4, alpha=0.7)
