"""Draw results: ours as solid lines and filled dots, the paper's numbers as dashed lines and hollow dots."""

import re
from collections.abc import Sequence
from typing import Any

from looped.experiments.metrics import Metric, metric_named, metric_of
from looped.experiments.report.compare import CellResult, distinct_records, grouped
from looped.experiments.report.tables import row_name
from looped.experiments.spec import MANY_LOOPS, Cell
from looped.utils.stats import correlation
from looped.viz.plots import COLOURS, GREY, PALETTE, Chart, Dots, Level, Lines, Series

RECIPE_MARKERS = {"fast": "o", "dense": "s", "long": "P", "warm": "D", "tune": "X", "paper": "^"}
MARKER_NAMES = {"s": "squares", "P": "plus signs", "D": "diamonds", "X": "crosses", "^": "triangles"}
"""all markers but the dots, which any recipe may have"""
EXTRAPOLATIONS = ("clamp", "rescale")
"""test sets with the same examples, but other time indices beyond the trained loops"""
FEWEST_RUNS = 5
"""a correlation over fewer runs says nothing"""


def without_loops(name: str) -> str:
    """Remove the number of loops from the name of a row or column: `looped r=5` becomes `looped`."""
    return re.sub(r",?\s*\br=\d+", "", name).strip()


def against_loops(cells: Sequence[Cell], results: Sequence[CellResult], *, with_paper: bool) -> list[Lines]:
    """Return a chart per row: the numbers against the loops that the models were trained with."""
    charts = []
    for title, members in grouped(results, lambda one: without_loops(one.cell.row)).items():
        name_recipes = with_paper or len({one.cell.recipe for one in members}) > 1
        series: list[Series] = []
        levels: list[Level] = []
        models = grouped(members, lambda one: (without_loops(one.cell.column), one.cell.recipe))
        for (name, recipe), line in models.items():
            line.sort(key=lambda one: one.loops)
            colour, label = COLOURS.get(line[0].block, GREY), f"{name}, {recipe}" if recipe and name_recipes else name
            if line[0].block == "standard":
                levels.append(Level(label, line[0].value, colour, dashed=False))
            else:
                numbers = [one.loops for one in line], [one.value for one in line], *_bounds(line)
                series.append(Series(label, colour, *numbers, marker=RECIPE_MARKERS.get(recipe, "o")))
        of_row = [cell for cell in cells if without_loops(cell.row) == title and cell.paper is not None and with_paper]
        first_recipe = [cell for cell in of_row if cell.recipe == of_row[0].recipe]
        for name, line in grouped(first_recipe, lambda cell: without_loops(cell.column)).items():
            block, values = line[0].config.model.block, [cell.paper or 0.0 for cell in line]
            if block == "standard":
                levels.append(Level(f"{name}, paper", values[0], COLOURS[block]))
            else:
                loops = [cell.config.model.num_loops for cell in line]
                series.append(Series(f"{name}, paper", COLOURS[block], loops, values, style="reference", marker="o"))
        if max((len(one.x) for one in series), default=0) > 1:
            heading, metric = row_name(members[0].cell) if title else "", members[0].metric
            labels = heading, "loops r in training and test", metric.label
            charts.append(Lines(*labels, tuple(series), tuple(levels), x_scale="powers", **_y_axis(metric)))
    return charts


def _y_axis(metric: Metric) -> dict[str, Any]:
    return {"y_range": metric.axis_range, "percent": metric.is_share}


def side_by_side(cells: Sequence[Cell], results: Sequence[CellResult], *, with_paper: bool) -> list[Dots]:
    """Return a chart per metric with a dot per cell, for cells that do not differ in their loops.

    Beside the paper every cell is a group and every recipe a series. Otherwise groups and series are rows and columns.
    """
    charts = []
    for metric, members in grouped(results, lambda one: one.metric).items():
        shown = [cell for cell in cells if metric_of(cell) == metric] if with_paper else [one.cell for one in members]
        one_row = len({cell.row for cell in shown}) == 1
        by_row = len({cell.row for cell in shown}) >= len({cell.column for cell in shown})

        def group(cell: Cell, by_row: bool = by_row, one_row: bool = one_row) -> str:
            if with_paper:
                return cell.column if one_row else cell.label
            return cell.row if by_row else cell.column

        def series_name(one: CellResult, by_row: bool = by_row) -> str:
            return one.cell.recipe or "ours" if with_paper else one.cell.column if by_row else one.cell.row

        groups = list(dict.fromkeys(map(group, shown)))
        lines = grouped(members, series_name)
        series = []
        for (name, line), colour in zip(lines.items(), _colours(list(lines.values())), strict=True):
            places = [groups.index(group(one.cell)) for one in line]
            series.append(Series(name, colour, [one.value for one in line], places, *_bounds(line), style="dots"))
        if with_paper and (printed := {group(cell): cell.paper for cell in shown if cell.paper is not None}):
            places = [groups.index(name) for name in printed]
            series.append(Series("paper", GREY, [*printed.values()], places, style="reference", marker="D"))
        values = [value for one in series for value in one.x]
        log = not metric.is_share and min(values) > 0 and max(values) > 5 * min(values)
        charts.append(
            Dots(
                "",
                metric.label,
                tuple(groups),
                tuple(series),
                x_scale="log" if log else "linear",
                x_range=metric.axis_range,
                percent=metric.is_share,
            )
        )
    return charts


def _bounds(line: Sequence[CellResult]) -> tuple[list[float], list[float]]:
    """Return the ends of the intervals; a number without an interval gets one of width zero."""
    low = [one.value if one.low is None else one.low for one in line]
    high = [one.value if one.high is None else one.high for one in line]
    return low, high


def _colours(lines: Sequence[Sequence[CellResult]]) -> list[str]:
    """Return the colours of the models if every line is a model of its own; otherwise one colour per line."""
    blocks = [{one.block for one in line} for line in lines]
    if all(len(each) == 1 for each in blocks) and len({*map(frozenset, blocks)}) == len(lines):
        return [COLOURS[each.pop()] for each in blocks]
    return [PALETTE[index % len(PALETTE)] for index in range(len(lines))]


def train_against_test(results: Sequence[CellResult]) -> list[Lines]:
    """Return a chart with a dot per run: its number on training examples against that on held-out examples."""
    metric = metric_named(results[0].cell.config.task.metric)
    points = [
        (record.config.model.block, *(each.trained.metrics[each.metric] for each in (record.train, record.test)))
        for record in distinct_records(results)
        if record.train is not None and record.test is not None
    ]
    if not points:
        return []
    found = correlation([x for _, x, _ in points], [y for _, _, y in points]) if len(points) >= FEWEST_RUNS else None
    title = f"correlation {found:.3f} over {len(points)} runs" if found is not None else f"{len(points)} runs"
    series = tuple(
        Series(block, COLOURS[block], [x for _, x, _ in line], [y for _, _, y in line], style="dots")
        for block, line in grouped(points, lambda point: point[0]).items()
    )
    axes = f"training {metric.label}", f"test {metric.label}"
    return [Lines(title, *axes, series, diagonal=True, **_y_axis(metric))]


def loop_by_loop(results: Sequence[CellResult]) -> list[Lines]:
    """Return a chart per row: the answer of the largest models after every loop, also beyond those of training."""
    charts = []
    for title, members in _largest(results).items():
        metric = metric_named(members[0].cell.config.task.metric)
        series = []
        for one in members:
            record, label = one.records[0], _label(one, members)
            further = {f"{label}, {name}": record.sets[name] for name in EXTRAPOLATIONS if name in record.sets}
            for index, (name, test) in enumerate({label: record.test, **further}.items()):
                if test is not None and len(test.rows) > 1:
                    loops, values = zip(*((row.loops, row.metrics[test.metric]) for row in test.rows), strict=True)
                    colour = COLOURS[one.block] if index == 0 else PALETTE[2 + index]
                    series.append(Series(name, colour, loops, values, style="dashed" if index else "line"))
        if series:
            marks = tuple(sorted({float(one.loops) for one in members if one.block != "standard"}))
            charts.append(
                Lines(
                    title,
                    "loops at which the answer is read",
                    metric.label,
                    tuple(series),
                    marks=marks,
                    y_scale="linear" if metric.is_share else "log",
                    **_y_axis(metric),
                )
            )
    return charts


def learning_curves(results: Sequence[CellResult]) -> list[Lines]:
    """Return a chart per row: validation of the largest models during training, or the training loss."""
    charts = []
    for title, members in _largest(results).items():
        curves = [one.records[0].curve for one in members]
        validated = all(sum("validation" in point for point in curve) > 1 for curve in curves)
        name = "validation" if validated else "loss"
        metric = metric_named(members[0].cell.config.task.metric if validated else "loss")
        series = []
        for one, curve in zip(members, curves, strict=True):
            points = [(point["samples"], point[name]) for point in curve if name in point]
            if len(points) > 1:
                samples, values = zip(*points, strict=True)
                series.append(Series(_label(one, members), COLOURS[one.block], samples, values, style="line"))
        if series:
            charts.append(
                Lines(
                    title,
                    "training samples",
                    f"validation {metric.label}" if validated else "training loss",
                    tuple(series),
                    y_scale="linear" if metric.is_share or not validated else "log",
                    **_y_axis(metric),
                )
            )
    return charts


def further_test_sets(results: Sequence[CellResult]) -> list[Dots]:
    """Return a chart per row with the further test sets of its largest models, such as puzzles by difficulty."""
    charts = []
    for title, members in _largest(results).items():
        metric = metric_named(own := members[0].cell.config.task.metric)
        all_names = [name for one in members for name in one.records[0].sets]
        names = tuple(name for name in dict.fromkeys(all_names) if not _has_the_tests_examples(name))
        series = []
        for one in members:
            found = {names.index(name): test for name, test in one.records[0].sets.items() if name in names}
            if scores := [test.trained for test in found.values()]:
                values, low, high = zip(*((row.metrics[own], row.low, row.high) for row in scores), strict=True)
                numbers = values, list(found), low, high
                series.append(Series(_label(one, members), COLOURS[one.block], *numbers, style="dots"))
        if series:
            axis = {"x_range": metric.axis_range, "percent": metric.is_share}
            charts.append(Dots(title, metric.label, names, tuple(series), **axis))
    return charts


def _has_the_tests_examples(name: str) -> bool:
    """Return whether a set is the test itself, read with other time indices or after more loops."""
    return name in EXTRAPOLATIONS or name.startswith(MANY_LOOPS)


def _label(one: CellResult, members: Sequence[CellResult]) -> str:
    """Return the name of a model, with its recipe if the chart has several."""
    several = len({each.cell.recipe for each in members}) > 1
    return f"{one.block}, {one.cell.recipe}" if several else one.block


def _largest(results: Sequence[CellResult]) -> dict[str, list[CellResult]]:
    """Return, for each row, the run with the most loops of each model and recipe."""
    first_rows: dict[str, str] = {}
    for one in results:  # rows that show other numbers of the same runs would repeat the charts
        first_rows.setdefault(one.records[0].key, one.cell.row)
    shown = [one for one in results if first_rows[one.records[0].key] == one.cell.row]
    return {
        row: list({(one.block, one.cell.recipe): one for one in sorted(line, key=lambda one: one.loops)}.values())
        for row, line in grouped(shown, lambda one: one.cell.row).items()
    }


def main_charts(
    name: str, cells: Sequence[Cell], results: Sequence[CellResult], *, with_paper: bool = False
) -> Sequence[Chart]:
    """Return the charts that answer the question of an experiment."""
    if name == "correlation":
        return train_against_test(results)
    if name == "loops":
        return loop_by_loop(results)
    return against_loops(cells, results, with_paper=with_paper) or side_by_side(cells, results, with_paper=with_paper)


def further_charts(results: Sequence[CellResult]) -> list[Chart]:
    """Return the charts of single runs: loop by loop, learning curves and further test sets."""
    return [*loop_by_loop(results), *learning_curves(results), *further_test_sets(results)]
