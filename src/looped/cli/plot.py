"""`looped plot RUN... --out FILE.svg`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from looped.cli.args import SeveralRuns, parse, require_svg, show
from looped.cli.compare import measure_all
from looped.utils.errors import require
from looped.utils.types import Device

if TYPE_CHECKING:
    from looped.experiments.comparison import MeasuredRun
    from looped.viz.plots import Lines

MAX_COLUMNS = 4


@dataclass(frozen=True)
class PlotCommand:
    """Draw trained runs side by side: scores against loops, learning curves and modulation."""

    runs: SeveralRuns
    out: Path
    """SVG file to write"""
    loops: tuple[int, ...] = ()
    """loop counts to evaluate at, besides the trained number (none given: evenly up to twice the trained number)"""
    size: int | None = None
    """number of test examples (None: 1000; for text, all)"""
    device: Device = "auto"
    """device to compute on"""
    json: bool = False
    """print one JSON object"""


def plot(arguments: list[str]) -> None:
    """Write a picture of trained runs."""
    command = parse(PlotCommand, arguments, "looped plot")
    require_svg("--out", command.out)

    from looped.experiments.measure import loops_to_read
    from looped.utils.files import save_text
    from looped.viz.plots import PALETTE

    count = len(command.runs)
    require(1 <= count <= len(PALETTE), f"runs: expected 1 to {len(PALETTE)}, one colour each, got {count}")
    measured = measure_all(command, loops_to_read)
    save_text(command.out, picture(measured))
    about = {"picture": str(command.out), "runs": [each.to_json() for each in measured]}
    show(about, f"wrote {command.out}", as_json=command.json)


def picture(runs: "Sequence[MeasuredRun]") -> str:
    """Return all charts as one SVG. A run has the same colour in every chart."""
    from looped.utils.text import listed
    from looped.viz.plots import draw

    charts = [*_scores(runs), *_learning_curves(runs), *_modulation(runs)]
    names = listed([each.run.name for each in runs])
    columns = min(MAX_COLUMNS, -(-len(charts) // 2)) if len(charts) > 3 else len(charts)
    return draw(charts, "runs", f"Scores against loops and learning curves of {names}", columns=columns) + "\n"


def _scores(runs: "Sequence[MeasuredRun]") -> "list[Lines]":
    """Return a chart per metric: the score after several numbers of loops. Dotted lines mark the trained ones."""
    from looped.experiments.metrics import metric_named
    from looped.viz.plots import PALETTE, Lines, Series

    charts = []
    for name in dict.fromkeys(each.test.metric for each in runs):
        metric, series, marks = metric_named(name), [], set()
        for colour, each in zip(PALETTE, runs, strict=False):
            rows = [row for row in each.test.rows if row.is_finite]
            if each.test.metric == name and rows:
                values, low, high = zip(*((row.metrics[name], row.low, row.high) for row in rows), strict=True)
                series.append(Series(each.run.name, colour, [row.loops for row in rows], values, low, high))
                marks.add(float(each.test.trained_loops))
        scale = "linear" if metric.is_share else "log"
        look = {"y_scale": scale, "y_range": metric.axis_range, "percent": metric.is_share}
        charts.append(
            Lines("Test, with 95 % intervals", "loops", metric.label, tuple(series), marks=tuple(sorted(marks)), **look)
        )
    return charts


def _learning_curves(runs: "Sequence[MeasuredRun]") -> "list[Lines]":
    """Return charts of the training loss and, for each metric, of the validations in the runs' logs."""
    from looped.experiments.metrics import metric_named
    from looped.viz.plots import PALETTE, Lines, Series

    def series(name: str, metric: str | None = None) -> tuple[Series, ...]:
        curves = [
            (each.run.name, colour, each.curve_of(name))
            for colour, each in zip(PALETTE, runs, strict=False)
            if metric in (None, each.test.metric)
        ]
        return tuple(
            Series(label, colour, *zip(*points, strict=True), style="line")
            for label, colour, points in curves
            if len(points) > 1
        )

    charts = []
    for name in dict.fromkeys(each.test.metric for each in runs):
        metric = metric_named(name)
        look = {"y_range": metric.axis_range, "percent": metric.is_share}
        charts.append(Lines("Validation", "training samples", metric.label, series("validation", name), **look))
    charts.append(Lines("Training", "training samples", "training loss", series("loss")))
    return [chart for chart in charts if chart.series]


def _modulation(runs: "Sequence[MeasuredRun]") -> "list[Lines]":
    """Return a chart per part of the modulation that the conditioning of any run sets."""
    from looped.analysis.inside import MODULATIONS, modulated, modulation
    from looped.viz.plots import PALETTE, Lines, Series

    found: dict[str, list[Series]] = {name: [] for name in MODULATIONS}
    for colour, each in zip(PALETTE, runs, strict=False):
        tables = modulation(each.run.model)
        for name in modulated(each.run.model):
            sizes = tables[name].double().square().mean(dim=(1, 2)).sqrt().tolist()
            found[name].append(Series(each.run.name, colour, range(1, len(sizes) + 1), sizes, style="line"))
    return [
        Lines(f"Modulation: {name}", "loop", "root mean square", tuple(series))
        for name, series in found.items()
        if series
    ]
