"""Charts as SVG text: no network, no files, the same bytes for the same numbers."""

import html
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; one per block, in every figure.
COLOURS = {"modulated": "#d55e00", "looped": "#0072b2", "standard": "#009e73"}
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6670", "#8c564b", "#b3a100")
MARKERS = "os^Dvp*Xh"
INK, GREY, PALE = "#1d2329", "#777777", "#e4e7ea"
PANEL_SIZE = (3.8, 3.1)
"""inches, with a legend of two lines"""
LEGEND_LINE = 0.17


@dataclass(frozen=True)
class Series:
    label: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: Literal["marked", "line", "dashed", "dots"] = "marked"
    """points joined by a line, a line alone, a dashed line, or points alone"""


@dataclass(frozen=True)
class Lines:
    """Values against numbers, with horizontal levels such as a baseline and vertical marks."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    levels: Mapping[str, float] = field(default_factory=dict)
    marks: tuple[float, ...] = ()
    x_scale: Literal["linear", "powers", "log"] = "linear"
    """powers: logarithmic with a tick at every value"""
    y_scale: Literal["linear", "log"] = "linear"
    y_range: tuple[float, float] | None = None
    diagonal: bool = False


@dataclass(frozen=True)
class BarSeries:
    label: str
    colour: str
    values: Sequence[float | None]
    """one per group; None where there is nothing to show"""
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, so that long names can be read on a narrow screen; a bar per group and series."""

    title: str
    x_label: str
    groups: tuple[str, ...]
    series: tuple[BarSeries, ...]
    levels: Mapping[str, float] = field(default_factory=dict)
    x_range: tuple[float, float] | None = None


Chart = Lines | Bars


def draw(charts: Sequence[Chart], name: str, alt: str, columns: int = 1) -> str:
    """One SVG with the charts side by side. `name` keeps the ids of several SVGs in one page apart."""
    settings: Any = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["Liberation Sans", "Helvetica", "Arial", "DejaVu Sans"],
        "font.size": 9.5,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    columns = min(columns, len(charts))
    rows = -(-len(charts) // columns)
    with matplotlib.rc_context(settings):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(PANEL_SIZE[0] * columns, _height(charts) * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        handles = {}
        for axes, chart in zip(grid, charts, strict=False):
            _draw_lines(axes, chart) if isinstance(chart, Lines) else _draw_bars(axes, chart)
            axes.set_title(textwrap.fill(chart.title, 30), loc="left", color=INK)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        for axes in grid[len(charts) :]:
            axes.set_visible(False)
        if len(handles) > 1:
            # Long names need a line of their own.
            across = 2 * columns if max(map(len, handles)) < 28 else columns
            lines = -(-len(handles) // across)
            figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, lines - 2))
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=across, frameon=False,
                          fontsize=8.5)  # fmt: skip
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _embed(text.getvalue(), name, alt)


def _height(charts: Sequence[Chart]) -> float:
    """Bars need room for each of them."""
    bars = max((len(chart.groups) * len(chart.series) for chart in charts if isinstance(chart, Bars)), default=0)
    return max(PANEL_SIZE[1], 1.2 + 0.2 * bars)


def _draw_lines(axes: "Axes", chart: Lines) -> None:
    from matplotlib.ticker import MaxNLocator

    if chart.diagonal:
        ends = [value for one in chart.series for value in (*one.x, *one.y)]
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="#b9c0c6", linewidth=1.2, zorder=0)
    for index, one in enumerate(chart.series):
        marker = MARKERS[index % len(MARKERS)]
        look: dict[str, Any] = {"color": one.colour, "label": one.label, "linewidth": 1.6, "markersize": 4.5}
        look |= {
            "marked": {"marker": marker},
            "line": {},
            "dashed": {"linestyle": "--", "linewidth": 1.1},
            "dots": {"marker": marker, "linestyle": "none"},
        }[one.style]
        if one.low is not None and one.high is not None:
            axes.errorbar(one.x, one.y, _arms(one.y, one.low, one.high), capsize=2.5, elinewidth=1.1, **look)
        else:
            axes.plot(one.x, one.y, **look)
    _draw_levels(chart.levels, axes.axhline)
    for mark in chart.marks:
        axes.axvline(mark, color="#b9c0c6", linewidth=1, linestyle=(0, (4, 2)), zorder=0)
    if chart.x_scale != "linear":
        axes.set_xscale("log")
    elif not chart.diagonal:  # loops, points and samples are counted
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.x_scale == "linear" and max(x for one in chart.series for x in one.x) >= 10_000:
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
        axes.yaxis.set_minor_formatter("{x:g}" if _is_narrow(chart) else "")
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
        if chart.diagonal:
            axes.set_xlim(*chart.y_range)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y", color=PALE)


def _draw_bars(axes: "Axes", chart: Bars) -> None:
    from matplotlib.ticker import MaxNLocator

    thickness = 0.8 / len(chart.series)
    for index, one in enumerate(chart.series):
        shown = [place for place, value in enumerate(one.values) if value is not None]
        places = [place + (index - (len(chart.series) - 1) / 2) * thickness for place in shown]
        values, low, high = ([float(part[place] or 0.0) for place in shown] for part in (one.values, one.low, one.high))
        axes.barh(places, values, 0.9 * thickness, color=one.colour, label=one.label, xerr=_arms(values, low, high),
                  error_kw={"elinewidth": 1, "capsize": 2, "ecolor": INK})  # fmt: skip
    _draw_levels(chart.levels, axes.axvline)
    axes.set_yticks(range(len(chart.groups)), [textwrap.fill(name, 20) for name in chart.groups])
    axes.invert_yaxis()
    if chart.x_range is not None:
        axes.set_xlim(*chart.x_range)
    axes.set_xlabel(chart.x_label)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color=PALE)
    axes.set_axisbelow(True)


def _is_narrow(chart: Lines) -> bool:
    """Whether so few powers of ten are spanned that the ticks between them need their numbers."""
    values = [y for one in chart.series for y in one.y if y > 0]
    return bool(values) and max(values) < 8 * min(values)


def _count(number: float) -> str:
    """`150k`, `1.5M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def _draw_levels(levels: Mapping[str, float], draw_line: Any) -> None:
    for dashes, (label, level) in zip(("--", ":", "-."), levels.items(), strict=False):
        draw_line(level, color=GREY, linestyle=dashes, linewidth=1.2, label=label)


def _arms(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> tuple[list[float], list[float]]:
    """Lengths of the error bars; a mean of seeds may lie outside by rounding."""
    below = [max(0.0, value - end) for value, end in zip(values, low, strict=True)]
    above = [max(0.0, end - value) for value, end in zip(values, high, strict=True)]
    return below, above


def _embed(svg: str, name: str, alt: str) -> str:
    """The element alone, with a description, without the writer's notes, and with ids that are this figure's own."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}" ', 1)
