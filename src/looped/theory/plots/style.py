"""Figures, axes and colours of all pictures.

matplotlib is imported when a picture is drawn, so that the theory itself needs only NumPy.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from looped.theory.constructions import CONSTRUCTIONS
from looped.utils.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, RED, BLUE = "#1b1b1b", "#8a8a8a", "#c0392b", "#2471a3"
PALETTE = (RED, BLUE, "#17a589", "#5d6d7e", "#a04000", "#d68910", "#7d3c98", "#1e8449", "#d16ba5", "#4a69bd")
COLOURS = dict(zip(CONSTRUCTIONS, cycle(PALETTE), strict=False))
MOST_CELLS, MOST_TOKENS = 64, 6  # limits of what a picture can show


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1, **options) -> tuple[Figure, np.ndarray]:
    """Return a figure and its axes in one flat array."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = np.atleast_1d(np.array(figure.subplots(rows, columns, **options))).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8, colors=INK)
    return figure, axes


def label_axis(axis: Axes, title: str, x: str, y: str) -> None:
    """Write the title and the names of both axes."""
    axis.set_title(title, fontsize=10, loc="left", color=INK)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)


def require_drawable(cells: int, tokens: int = 1) -> None:
    """Raise InputError if a picture would have too many cells or tokens to be seen."""
    require(2 <= cells <= MOST_CELLS, f"cells: expected 2..{MOST_CELLS} in a picture, got {cells}")
    require(1 <= tokens <= MOST_TOKENS, f"tokens: expected 1..{MOST_TOKENS} in a picture, got {tokens}")
