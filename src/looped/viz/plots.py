"""Draw charts as SVG text. The same numbers always give the same bytes."""

import html
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colours of Okabe and Ito, which people with any kind of colour vision can tell apart; one per model.
COLOURS = {"standard": "#009e73", "looped": "#0072b2", "modulated": "#d55e00"}
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6670", "#8c564b", "#b3a100")
MARKERS = "os^Dvp*Xh"
INK, GREY = "#1d2329", "#8a949e"  # grey stays readable on light and dark backgrounds
PANEL_SIZE = (3.8, 2.75)  # inches
LEGEND_LINE = 0.17  # inches
GROUP_WIDTH = 24  # characters


@dataclass(frozen=True)
class Series:
    """One line or row of dots in a chart."""

    label: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: Literal["marked", "line", "dashed", "dots", "reference"] = "marked"
    """`reference` is for numbers from elsewhere, such as a paper: hollow markers on a dashed line"""
    marker: str | None = None
    """a marker of matplotlib (default: one per series)"""


@dataclass(frozen=True)
class Level:
    """A horizontal line across the chart."""

    label: str
    value: float
    colour: str = GREY
    dashed: bool = True


@dataclass(frozen=True)
class Lines:
    """Values against numbers, with horizontal levels and vertical marks."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()
    marks: tuple[float, ...] = ()
    x_scale: Literal["linear", "powers", "log"] = "linear"
    """`powers` is logarithmic with a tick at every value"""
    y_scale: Literal["linear", "log"] = "linear"
    y_range: tuple[float, float] | None = None
    diagonal: bool = False
    percent: bool = False


@dataclass(frozen=True)
class Dots:
    """Values of named groups on a horizontal axis: one line per group, one dot per series.

    A series holds the index of the group as `y` and the value as `x`; `low` and `high` bound the value.
    """

    title: str
    x_label: str
    groups: tuple[str, ...]
    series: tuple[Series, ...]
    x_scale: Literal["linear", "log"] = "linear"
    x_range: tuple[float, float] | None = None
    percent: bool = False


@dataclass(frozen=True)
class Matrix:
    """Numbers from 0 to their maximum as colours: one square per row and column."""

    title: str
    x_label: str
    y_label: str
    values: Sequence[Sequence[float]]


Chart = Lines | Dots | Matrix

_STYLES: Mapping[str, Mapping[str, Any]] = {
    "marked": {},
    "line": {"marker": None},
    "dashed": {"marker": None, "linestyle": "--", "linewidth": 1.1},
    "dots": {"linestyle": "none"},
    "reference": {"linestyle": (0, (3, 2)), "linewidth": 1.2, "markerfacecolor": "none", "alpha": 0.8},
}


def draw(
    charts: Sequence[Chart],
    name: str,
    alt: str,
    columns: int = 1,
    *,
    legend: bool = True,
    background: bool = True,
    size: tuple[float, float] = PANEL_SIZE,
) -> str:
    """Return one SVG with the charts side by side.

    `name` makes the ids of the SVG unique within a page. Without `background` the SVG is transparent.
    """
    settings: Any = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": [
            "DejaVu Sans",
            "Helvetica",
            "Arial",
        ],  # matplotlib ships the first, so it decides the layout
        "font.size": 9.5,
        "text.color": INK,
        "axes.titlesize": 10,
        "axes.labelcolor": INK,
        "axes.edgecolor": GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "xtick.color": GREY,
        "xtick.labelcolor": INK,
        "ytick.color": GREY,
        "ytick.labelcolor": INK,
        "figure.facecolor": "white" if background else "none",
        "savefig.facecolor": "auto",
    }
    columns = min(columns, len(charts))
    rows = -(-len(charts) // columns)
    with matplotlib.rc_context(settings):
        from matplotlib.figure import Figure

        height = max(_height(chart, size[1]) for chart in charts)
        figure = Figure(figsize=(size[0] * columns, height * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        handles = {}
        for axes, chart in zip(grid, charts, strict=False):
            _DRAWERS[type(chart)](axes, chart)
            axes.set_title(textwrap.fill(chart.title, 30), loc="left", color=INK)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        for axes in grid[len(charts) :]:
            axes.set_visible(False)
        if legend and len(handles) > 1:
            # A long name needs a line of its own.
            across = 2 * columns if max(map(len, handles)) < 28 else columns
            lines = -(-len(handles) // across)
            figure.set_figheight(figure.get_figheight() + LEGEND_LINE * lines)
            figure.legend(
                handles.values(), handles.keys(), loc="outside lower center", ncols=across, frameon=False, fontsize=8.5
            )
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _embed(text.getvalue(), name, alt)


def _height(chart: Chart, usual: float) -> float:
    """Return the height of a chart in inches; the height of dots depends on the number of groups."""
    if not isinstance(chart, Dots):
        return usual
    lines = max(len(textwrap.wrap(name, GROUP_WIDTH)) for name in chart.groups)
    return 0.75 + (0.26 if lines == 1 else 0.34) * max(3, len(chart.groups))


def _look(one: Series, index: int) -> dict[str, Any]:
    marker = one.marker or MARKERS[index % len(MARKERS)]
    usual = {"color": one.colour, "label": one.label, "linewidth": 1.7, "markersize": 4.5, "marker": marker}
    return {**usual, **_STYLES[one.style]}


def _draw_lines(axes: "Axes", chart: Lines) -> None:
    from matplotlib.ticker import MaxNLocator

    if chart.diagonal:
        ends = chart.y_range or [value for one in chart.series for value in (*one.x, *one.y)]
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=GREY, alpha=0.6, linewidth=1.2, zorder=0)
    for index, one in enumerate(chart.series):
        if one.low is not None and one.high is not None:
            arms = _arms(one.y, one.low, one.high)
            axes.errorbar(one.x, one.y, arms, capsize=2.5, elinewidth=1.1, **_look(one, index))
        else:
            axes.plot(one.x, one.y, **_look(one, index))
    for level in chart.levels:
        axes.axhline(
            level.value,
            color=level.colour,
            linestyle=(0, (3, 2)) if level.dashed else "-",
            linewidth=1.3,
            alpha=0.8,
            label=level.label,
            zorder=1,
        )
    for mark in chart.marks:
        axes.axvline(mark, color=GREY, linewidth=1, linestyle=(0, (1, 2)), zorder=0)
    if chart.x_scale != "linear":
        axes.set_xscale("log")
    elif not chart.diagonal:  # the axis counts loops, points or samples
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.x_scale == "linear" and max((x for one in chart.series for x in one.x), default=0) >= 10_000:
        axes.xaxis.set_major_formatter(lambda x, _: _count(x))
    if chart.x_scale == "log":
        axes.xaxis.set_major_formatter("{x:g}")
    if chart.x_scale == "powers":
        ticks = sorted({x for one in chart.series for x in one.x})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    if chart.y_scale == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}" if _is_narrow([y for one in chart.series for y in one.y]) else "")
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
        if chart.diagonal:
            axes.set_xlim(*chart.y_range)
    if chart.percent:
        axes.yaxis.set_major_formatter(_percent)
        if chart.diagonal:
            axes.xaxis.set_major_formatter(_percent)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y", color=GREY, alpha=0.22)


def _draw_dots(axes: "Axes", chart: Dots) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    num_series = len(chart.series)
    for index, one in enumerate(chart.series):
        # Dots of one group stand slightly above each other, so that none hides another.
        shift = (index - (num_series - 1) / 2) * min(0.22, 0.7 / num_series)
        places = [place + shift for place in one.y]
        look = {**_look(one, index), "linestyle": "none"}
        if one.low is not None and one.high is not None:
            axes.errorbar(one.x, places, xerr=_arms(one.x, one.low, one.high), capsize=2, elinewidth=1.1, **look)
        else:
            axes.plot(one.x, places, **look)
    axes.set_yticks(range(len(chart.groups)), [textwrap.fill(name, GROUP_WIDTH) for name in chart.groups])
    axes.set_ylim(len(chart.groups) - 0.45, -0.55)
    if chart.x_scale == "log":
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    if chart.x_range is not None:
        axes.set_xlim(*chart.x_range)
    if chart.percent:
        axes.xaxis.set_major_formatter(_percent)
    axes.set_xlabel(chart.x_label)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="both", color=GREY, alpha=0.22)
    axes.set_axisbelow(True)


def _draw_matrix(axes: "Axes", chart: Matrix) -> None:
    axes.imshow(chart.values, cmap="Blues", vmin=0, interpolation="nearest")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.spines[["top", "right"]].set_visible(True)


_DRAWERS: Mapping[type, Any] = {Lines: _draw_lines, Dots: _draw_dots, Matrix: _draw_matrix}


def _is_narrow(values: Sequence[float]) -> bool:
    """Return True if the values span less than a power of ten, so that minor ticks need numbers."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) < 8 * min(positive)


def _percent(value: float, _: Any) -> str:
    return f"{100 * value:.0f} %"


def _count(number: float) -> str:
    """Return `150k` or `1.5M`."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return f"{number:g}"


def _arms(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the lengths of error bars; rounding may put a mean over seeds slightly outside of its interval."""
    below = [max(0.0, value - end) for value, end in zip(values, low, strict=True)]
    above = [max(0.0, end - value) for value, end in zip(values, high, strict=True)]
    return below, above


def _embed(svg: str, name: str, alt: str) -> str:
    """Return the <svg> element alone, with a description, without metadata, and with ids that start with `name`."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}" ', 1)
