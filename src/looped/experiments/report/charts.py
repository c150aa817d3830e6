"""The report's figures: each is drawn where the records have what it shows, with its numbers in words beside it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from looped.experiments.report.compare import row_name
from looped.experiments.report.document import Figure
from looped.viz.plots import COLOURS, PALETTE, Bars, BarSeries, Chart, Lines, Series, draw
from looped.experiments.report.cells import Measured, by_group, by_row, distinct_runs, grouped, measure_named
from looped.experiments.records import Record, at_trained_loops
from looped.experiments.spec import Experiment
from looped.utils.text import plural

OTHER_TIMES = ("clamp", "rescale")
"""test sets that are the same examples with other times for loops beyond the trained number"""
FEWEST_RUNS = 5
"""that a correlation is told of: over fewer than a handful it says nothing"""
Panels = list[tuple[Chart, str]]
"""charts, and what each of them shows in one sentence"""


def figures(experiment: Experiment, measured: Sequence[Measured], *, of_runs: bool = True) -> list[Figure]:
    """All figures that an experiment's records allow; without those of single runs where these are shown elsewhere."""
    found = []
    # A line of a single run is not a mean, and ends elsewhere than the table's number.
    seeds = " Of several seeds the first is drawn." if any(len(one.records) > 1 for one in measured) else ""
    of_single_runs = {make: caption + seeds for make, caption in _OF_RUNS.items()} if of_runs else {}
    for make, caption in {**_OF_CELLS, **of_single_runs}.items():
        panels = _with_problems(make(measured), experiment, measured)
        if panels:
            name = f"{experiment.id}-{experiment.scale}-{make.__name__.replace('_', '-')}"
            svgs = [draw([chart], f"{name}-{index}", words) for index, (chart, words) in enumerate(panels)]
            alt = " ".join(words for _, words in panels)
            found.append(Figure(name, alt, caption, tuple(svgs)))
    return found


def _with_problems(panels: Panels, experiment: Experiment, measured: Sequence[Measured]) -> Panels:
    """Charts of a row named as in the tables, with the problem that is really run."""
    names = {row: row_name(experiment, members) for row, members in by_row(measured).items()}
    return [
        (replace(chart, title=names[chart.title]), words.replace(chart.title, names[chart.title], 1))
        if chart.title in names
        else (chart, words)
        for chart, words in panels
    ]


def against_loops(measured: Sequence[Measured]) -> Panels:
    """The number against the loops a model was trained with: a chart per row, or one where rows are the models."""
    panels: Panels = []
    for title, members in grouped(measured, lambda one: one.cell.row if one.group else "").items():
        first = members[0]
        alike = (one for one in members if one.measure == first.measure and one.cell.shows == first.cell.shows)
        lines = grouped(alike, lambda one: one.group or one.cell.row)
        ladders = {name: sorted(cells, key=lambda one: one.loops) for name, cells in lines.items()}
        rising = {name: cells for name, cells in ladders.items() if len({one.loops for one in cells}) > 1}
        if not rising:
            continue
        standard = {name: cells[0].value for name, cells in ladders.items() if cells[0].block == "standard"}
        measure = members[0].measure
        colours = _colours([cells[0] for cells in rising.values()])
        series = tuple(map(_ladder_series, rising, colours, rising.values()))
        ends = (f"{name} from {cells[0].shown()} at r={cells[0].loops} to {cells[-1].shown()} at r={cells[-1].loops}"
                for name, cells in rising.items())  # fmt: skip
        words = f"{title or 'Loops'}: {', '.join(ends)}"
        words += "".join(f"; {name} {measure.show(value)}" for name, value in standard.items()) + "."
        levels = {**standard, **_baseline(members)}
        chart = Lines(
            title, "loops r, trained and tested", measure.label, series, levels, x_scale="powers", y_range=measure.axis
        )
        panels.append((chart, words))
    return panels


def _ladder_series(name: str, colour: str, cells: Sequence[Measured]) -> Series:
    known = all(one.low is not None and one.high is not None for one in cells)
    return Series(
        name,
        colour,
        [one.loops for one in cells],
        [one.value for one in cells],
        [one.low or 0.0 for one in cells] if known else None,
        [one.high or 0.0 for one in cells] if known else None,
    )


def _baseline(members: Sequence[Measured]) -> dict[str, float]:
    level = members[0].constant(members[0].records[0])
    alike = all(one.constant(one.records[0]) == level for one in members)
    return {"constant answer": level} if level is not None and alike and members[0].measure.is_share else {}


def by_loop(measured: Sequence[Measured]) -> Panels:
    """What a trained model would answer after each loop, also beyond those it was trained with."""
    panels: Panels = []
    for title, members in _lines(measured).items():
        series, ends, marks = [], [], set()
        for label, one, colour in members:
            record = one.records[0]
            measure = measure_named(one.cell.config.task.metric)
            # The other times that loops beyond the trained number may have are lines of their own.
            beyond = {f"{label}, {name}": record.sets[name] for name in OTHER_TIMES if name in record.sets}
            for name, test in {label: record.test, **beyond}.items():
                if test is None or len(test["rows"]) < 2:
                    continue
                loops, values = [row["loops"] for row in test["rows"]], [row[test["metric"]] for row in test["rows"]]
                style = "line" if name == label else "dashed"
                series.append(Series(name, colour, loops, values, style=style))
                trained = measure.show(at_trained_loops(test)[test["metric"]])
                last = f"{measure.show(values[-1])} at {loops[-1]}"
                ends.append(f"{name} {trained} at its trained {plural(one.loops, 'loop')}, {last}")
                marks.add(float(one.loops))
        if series:
            measure = measure_named(members[0][1].cell.config.task.metric)
            chart = Lines(title, "loop at which the answer is read", measure.label, tuple(series),
                          marks=tuple(sorted(marks)), y_scale="linear" if measure.is_share else "log",
                          y_range=measure.axis)  # fmt: skip
            panels.append((chart, _sentence(title, ends)))
    return panels


def learning(measured: Sequence[Measured]) -> Panels:
    """Validation while the largest models train; where it was not measured, the training loss."""
    panels: Panels = []
    for title, members in _lines(measured).items():
        curves = [one.records[0].curve for _, one, _ in members]
        validated = all(sum("validation" in point for point in curve) > 1 for curve in curves)
        name = "validation" if validated else "loss"
        measure = measure_named(members[0][1].cell.config.task.metric if validated else "loss")
        series, ends = [], []
        for (label, _, colour), curve in zip(members, curves, strict=True):
            points = [point for point in curve if name in point]
            if len(points) > 1:
                samples, values = [point["samples"] for point in points], [point[name] for point in points]
                series.append(Series(label, colour, samples, values, style="line"))
                ends.append(f"{label} ends at {measure.show(values[-1])} after {samples[-1]:,} samples")
        if series:
            chart = Lines(title, "training samples", f"validation {measure.label}" if validated else "training loss",
                          tuple(series), y_scale="linear" if measure.is_share or not validated else "log",
                          y_range=measure.axis)  # fmt: skip
            panels.append((chart, _sentence(title, ends)))
    return panels


def train_and_test(measured: Sequence[Measured]) -> Panels:
    """A point per run: its number on examples it was trained on against that on held-out ones."""
    panels: Panels = []
    for metric in dict.fromkeys(one.cell.config.task.metric for one in measured):
        measure = measure_named(metric)
        of_metric = [one for one in distinct_runs(measured) if one.cell.config.task.metric == metric]
        rows = by_row(of_metric)
        kinds = rows if len(rows) > 1 else by_group(of_metric)
        points = {name: [pair for one in members for pair in map(train_test_pair, one.records) if pair]
                  for name, members in kinds.items()}  # fmt: skip
        colours = _colours([members[0] for members in kinds.values()])
        pairs = [pair for inside in points.values() for pair in inside]
        found = correlation(pairs)
        if found is None:
            continue
        series = [
            Series(name, colour, [x for x, _ in inside], [y for _, y in inside], style="dots")
            for (name, inside), colour in zip(points.items(), colours, strict=True)
            if inside
        ]
        runs = f"Training and test {measure.label} of {len(pairs)} runs"
        words = f"{runs}; their correlation is {show_correlation(found)}."
        chart = Lines("", f"training {measure.label}", f"test {measure.label}", tuple(series),
                      y_range=measure.axis, diagonal=True)  # fmt: skip
        panels.append((chart, words))
    return panels


def train_test_pair(record: Record) -> tuple[float, float] | None:
    if record.train is None or record.test is None:
        return None
    metric = record.test["metric"]
    return at_trained_loops(record.train)[metric], at_trained_loops(record.test)[metric]


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's coefficient; None of too few points, and where one side does not vary."""
    if len(pairs) < FEWEST_RUNS:
        return None
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = math.sqrt(sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys))
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if spread else None


def show_correlation(coefficient: float) -> str:
    """With three digits, of which nothing short of 1 is rounded to it."""
    return "above 0.999" if 0.9995 <= coefficient < 1 else f"{coefficient:.3f}"


def over_points(measured: Sequence[Measured]) -> Panels:
    """For tasks with a curve over an example's places: the error after each number of points seen."""
    panels: Panels = []
    for title, members in _lines(measured).items():
        series, ends = [], []
        for label, one, colour in members:
            test = one.records[0].test
            curve = at_trained_loops(test).get("curve") if test else None
            if curve:
                measure = measure_named(one.cell.config.task.metric)
                series.append(Series(label, colour, range(len(curve)), curve, style="line"))
                first, last = measure.show(curve[0]), measure.show(curve[-1])
                ends.append(f"{label} from {first} to {last} after {len(curve) - 1} points")
        if series:
            measure = measure_named(members[0][1].cell.config.task.metric)
            chart = Lines(title, "points seen before the question", measure.label, tuple(series), y_range=measure.axis)
            panels.append((chart, _sentence(title, ends)))
    return panels


def test_sets(measured: Sequence[Measured]) -> Panels:
    """The further test sets of the largest models, such as puzzles by difficulty; not those that are cells."""
    panels: Panels = []
    elsewhere = {*OTHER_TIMES, *(one.cell.shows.removeprefix("sets/") for one in measured)}
    for title, members in _lines(measured).items():
        all_sets = [one.records[0].sets for _, one, _ in members]
        names = tuple(dict.fromkeys(name for sets in all_sets for name in sets if name not in elsewhere))
        if not names:
            continue
        metric = members[0][1].cell.config.task.metric
        measure = measure_named(metric)
        series, ends = [], []
        for (label, _, colour), sets in zip(members, all_sets, strict=True):
            rows = [at_trained_loops(sets[name]) if name in sets else None for name in names]
            columns = [[row[part] if row else None for row in rows] for part in (metric, "low", "high")]
            shown = [f"{name} {measure.show(row[metric])}" for name, row in zip(names, rows, strict=True) if row]
            if shown:
                series.append(BarSeries(label, colour, *columns))
                ends.append(f"{label}: {', '.join(shown)}")
        panels.append((Bars(title, measure.label, names, tuple(series), x_range=measure.axis), _sentence(title, ends)))
    return panels


def side_by_side(measured: Sequence[Measured]) -> Panels:
    """Bars of the cells themselves, where there are no loops to draw them against: a chart per kind of number."""
    if against_loops(measured):
        return []
    panels: Panels = []
    kinds = list(dict.fromkeys(one.measure for one in measured))
    for measure in kinds:
        members = [one for one in measured if one.measure == measure]
        if len(members) < 2:
            continue
        rows = list(dict.fromkeys(one.cell.row for one in members))
        columns = list(dict.fromkeys(one.cell.column for one in members))
        if len(rows) == 1:  # then the columns are what differs
            groups, names = columns, rows
            places = {(one.cell.column, one.cell.row): one for one in members}
        else:
            groups, names = rows, columns
            places = {(one.cell.row, one.cell.column): one for one in members}
        lined_up = {name: [places.get((group, name)) for group in groups] for name in names}
        colours = _colours([next(one for one in cells if one) for cells in lined_up.values()])
        series = tuple(map(_bar_series, lined_up, colours, lined_up.values()))
        ordered = sorted(members, key=lambda one: one.value, reverse=measure.higher_is_better)
        best, worst = ordered[0], ordered[-1]
        words = (
            f"{measure.label.capitalize()} from {best.cell.label}, {best.with_interval()}, the best, "
            f"to {worst.cell.label}, {worst.with_interval()}."
        )
        title = members[0].cell.row if len(kinds) > 1 and len(rows) == 1 else ""
        panels.append((Bars(title, measure.label, tuple(groups), series, _baseline(members), measure.axis), words))
    return panels


def _bar_series(name: str, colour: str, cells: Sequence[Measured | None]) -> BarSeries:
    values = [one and one.value for one in cells]
    low = [one and (one.value if one.low is None else one.low) for one in cells]
    high = [one and (one.value if one.high is None else one.high) for one in cells]
    return BarSeries(name, colour, values, low, high)


_OF_CELLS: dict[Callable[[Sequence[Measured]], Panels], str] = {
    against_loops: "More loops: each point is a cell of the table, with its 95 % interval.",
    side_by_side: "Each bar is a cell of the table, with its 95 % interval.",
    train_and_test: "Training against test: each point is a run; on the grey line both are equal.",
}
_OF_RUNS: dict[Callable[[Sequence[Measured]], Panels], str] = {
    by_loop: "Loop by loop: what the models with the most loops would answer after each loop; the vertical line marks "
    "the loops they were trained with.",
    learning: "Learning curves of the models with the most loops.",
    over_points: "The error over the points of a prompt, at the trained loops.",
    test_sets: "Further test sets, with 95 % intervals.",
}


def _lines(measured: Sequence[Measured]) -> dict[str, list[tuple[str, Measured, str]]]:
    """The runs that have a line of their own, as (name, run, colour), by the title of their chart: a chart per row, or
    one for all where each row is a single model."""
    rows = by_row(_largest(measured))
    runs = [one for members in rows.values() for one in members]
    if len(runs) == len(rows) and len({one.cell.config.task.metric for one in runs}) == 1:
        alike = len({one.cell.column for one in runs}) == 1
        named = {"": [(one.cell.row if alike else one.cell.label, one) for one in runs]}
    else:
        # Rows that are other numbers of the same runs leave one chart, which needs no name.
        alone = len(rows) == 1 and len(by_row(measured)) > 1
        named = {"" if alone else row: [(one.cell.column, one) for one in members] for row, members in rows.items()}
    return {
        title: [
            (label, one, colour)
            for (label, one), colour in zip(pairs, _colours([one for _, one in pairs]), strict=True)
        ]
        for title, pairs in named.items()
    }


def _sentence(title: str, ends: Sequence[str]) -> str:
    return f"{title}{': ' if title else ''}{'; '.join(ends)}."


def _largest(measured: Sequence[Measured]) -> list[Measured]:
    """Of each row and model the run with the most loops, in the order of the table."""
    runs = distinct_runs(measured)
    largest = {(one.cell.row, one.group): one for one in sorted(runs, key=lambda one: one.loops)}
    return [one for one in runs if largest[one.cell.row, one.group] is one]


def _colours(members: Sequence[Measured]) -> list[str]:
    """The blocks' own colours, unless two members are of one block and differ otherwise."""
    blocks = [one.block for one in members]
    if len(set(blocks)) == len(blocks):
        return [COLOURS[block] for block in blocks]
    return [PALETTE[index % len(PALETTE)] for index in range(len(blocks))]


def readme_figure(experiment: Experiment, measured: Sequence[Measured]) -> str | None:
    """The cells' charts in one SVG; None where there is nothing to draw."""
    panels = _with_problems(against_loops(measured) or side_by_side(measured), experiment, measured)
    if not panels:
        return None
    alt = " ".join(words for _, words in panels)
    return draw([chart for chart, _ in panels], "accuracy", alt, columns=3)
