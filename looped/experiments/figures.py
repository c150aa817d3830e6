"""The report's figures as SVG text: no network, no files, the same bytes for the same numbers."""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib

# One colour per block, in every figure.
COLOURS = {"modulated": "#d1495b", "looped": "#0b6e99", "standard": "#5c8001"}
GREY = "#777777"


class Series(NamedTuple):
    label: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def line_figure(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    levels: dict[str, float] | None = None,
    marks: Sequence[float] = (),
    log_x: bool = False,
) -> str:
    """Lines with error bars, horizontal levels such as a baseline, and vertical marks."""
    settings: Any = {
        "svg.hashsalt": "looped",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for one in series:
            if one.low is not None and one.high is not None:
                below = [y - low for y, low in zip(one.y, one.low, strict=True)]
                above = [high - y for y, high in zip(one.y, one.high, strict=True)]
                axes.errorbar(one.x, one.y, (below, above), label=one.label, color=one.colour, marker="o", capsize=3)
            else:
                axes.plot(one.x, one.y, label=one.label, color=one.colour, linewidth=1.6)
        for dashes, (label, level) in zip(("--", ":", "-."), (levels or {}).items(), strict=False):
            axes.axhline(level, color=GREY, linestyle=dashes, linewidth=1.2, label=label)
        for mark in marks:
            axes.axvline(mark, color="#cccccc", linewidth=1, zorder=0)
        if log_x:
            axes.set_xscale("log", base=2)
            ticks = sorted({x for one in series for x in one.x})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        axes.set_ylim(0, 1.02)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(axis="y", color="#eeeeee")
        axes.legend(frameon=False, fontsize=9)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
