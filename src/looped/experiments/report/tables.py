"""Arrange results as tables: plain data, which the page and the Markdown blocks both render."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from looped.config import RunConfig, differences
from looped.experiments.metrics import metric_named, metric_of, short_power
from looped.experiments.records import Record, cell_evaluation, seedless_key
from looped.experiments.report.compare import CellResult, distinct_records, grouped
from looped.experiments.scales import BLOCKS
from looped.experiments.spec import Cell, Experiment
from looped.training.schedules import trained_size
from looped.utils.text import plural

RECIPE_TEXTS = {
    "paper": "is what the paper states",
    "fast": "learns the most in minutes on one GPU",
    "dense": "also trains on the answers for all prefixes",
    "long": "is dense with four times the steps",
    "warm": "is dense from the weights of a shipped model",
    "tune": "is warm with a hundredth of its examples",
}
"""the known recipes in the order of their columns"""
SIGNS = {"agrees": "=", "better": "▲", "worse": "▼", "inconclusive": "?"}


@dataclass(frozen=True)
class Entry:
    """One field of a table."""

    text: str
    note: str = ""
    """smaller text beside it, such as an interval"""
    mark: str = ""
    """a key of SIGNS, which also gives the colour"""


@dataclass(frozen=True)
class Table:
    """A table of texts with a heading per column."""

    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    """the first entry of a row is its heading"""


def _table(head: Sequence[str], rows: Iterable[Sequence[Entry | str]]) -> Table:
    entries = (tuple(Entry(each) if isinstance(each, str) else each for each in row) for row in rows)
    return Table(tuple(head), tuple(entries))


def result_entry(one: CellResult | None, *, compact: bool = False) -> Entry:
    """Return a number with its interval and the mark of its verdict; `compact` shortens the interval to `±0.6`."""
    if one is None:
        return Entry("")
    seeds = f", {len(one.records)} seeds" if len(one.records) > 1 else ""
    interval = one.metric.show_interval(one.low, one.high)
    if compact and one.low is not None and one.high is not None:
        interval = f"±{one.metric.show(max(one.high - one.value, one.value - one.low), unit=False)}"
    mark = one.verdict if one.verdict in SIGNS else ""
    return Entry(one.metric.show(one.value, unit=False), f"{interval}{seeds}", mark)


def paper_text(cell: Cell) -> str:
    """Return the paper's number as it is printed there; nothing if there is none."""
    if cell.paper is None:
        return ""
    metric = metric_of(cell)
    return metric.show(cell.paper, unit=False) if metric.is_share else f"{cell.paper:g}"


def recipes_of(results: Iterable[CellResult]) -> list[str]:
    """Return the recipes that have results, the known ones first."""
    names = dict.fromkeys(one.cell.recipe for one in results)
    order = list(RECIPE_TEXTS)
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def rows_table(
    rows: Sequence[str], cells: Sequence[Cell], results: Sequence[CellResult], *, compact: bool = False
) -> Table:
    """Return the models of some rows: the paper's number if there is one, and ours with one column per recipe."""
    shown = [cell for cell in cells if cell.row in rows]
    recipes = recipes_of(one for one in results if one.cell.row in rows)
    found = {(one.cell.name, one.cell.recipe): one for one in reversed(results)}  # the first scale wins
    has_paper = any(cell.paper is not None for cell in shown)
    lines = []
    for name, cell in {cell.name: cell for cell in shown}.items():
        of_cell = [found.get((name, recipe)) for recipe in recipes]
        if cell.paper is not None or any(of_cell):
            label = cell.column if len(rows) == 1 else cell.label
            paper = [paper_text(cell)] if has_paper else []
            lines.append((label, *paper, *(result_entry(one, compact=compact) for one in of_cell)))
    head = ("", *(["paper"] if has_paper else []), *(f"ours, {recipe}" if recipe else "ours" for recipe in recipes))
    return _table(head, lines)


def matrix(cells: Sequence[Cell], results: Sequence[CellResult]) -> Table:
    """Return our numbers alone, rows and columns as in the experiment. Other recipes get rows of their own."""
    rows, columns = (list(dict.fromkeys(getattr(cell, name) for cell in cells)) for name in ("row", "column"))
    several = len({one.cell.recipe for one in results if one.cell.recipe != one.cell.row}) > 1
    lines = []
    for row in rows:
        for recipe in recipes_of(one for one in results if one.cell.row == row):
            found = {one.cell.column: one for one in results if (one.cell.row, one.cell.recipe) == (row, recipe)}
            heading = row_name(next(iter(found.values())).cell)
            heading = f"{heading}, {recipe}" if several else heading
            lines.append((heading, *(result_entry(found.get(column)) for column in columns)))
    return _table(("", *columns), lines)


def runs_table(results: Sequence[CellResult]) -> Table:
    """Return every run with its number, the paper's, their difference and what the run cost."""
    head = ("cell", "recipe", "seed", "ours", "95 % interval", "paper", "difference", "verdict", "test examples",
            "parameters", "samples", "FLOPs", "seconds", "hardware", "commit", "note")  # fmt: skip
    lines = []
    for one in results:
        difference = "" if one.difference is None else one.metric.show_difference(one.difference)
        for record, value in zip(one.records, one.values, strict=True):
            evaluation = cell_evaluation(one.cell, record)
            lines.append((
                one.cell.label, one.cell.recipe, str(record.config.seed), one.metric.show(value.value),
                one.metric.show_interval(value.low, value.high), paper_text(one.cell), difference, one.verdict or "",
                f"{evaluation.size:,}" if evaluation else "", f"{record.parameters:,}", f"{record.samples:,}",
                short_power(record.flops), f"{record.seconds:,.0f}", record.hardware,
                _short_commit(record.commit), record.note,
            ))  # fmt: skip
    return _table(head, lines)


def settings_table(results: Sequence[CellResult]) -> Table:
    """Return the settings in which the runs differ from the first of them."""
    first = results[0].cell.config
    lines = []
    for one in results:
        changes = differences(replace(one.cell.config, seed=first.seed), first)
        texts = (f"{name} {ours} (first: {other})" for name, (ours, other) in changes.items())
        lines.append((one.cell.label, "; ".join(texts)))
    return _table(("run", "differences from the first run"), lines)


def _short_commit(commit: str | None) -> str:
    return f"{commit[:10]}{'+' if commit.endswith('+') else ''}" if commit else ""


def other_runs(records: Iterable[Record], experiments: Sequence[Experiment]) -> list[Record]:
    """Return the records that belong to no cell, sorted by task, model and length."""
    shown = {seedless_key(config) for experiment in experiments for config in experiment.configs()}
    others = [record for record in records if seedless_key(record.config) not in shown]

    def place(record: Record) -> tuple[Any, ...]:
        config = record.config
        return config.task.name, config.model.block, config.model.num_loops, -record.samples, record.path

    return sorted(others, key=place)


def other_runs_table(records: Sequence[Record], experiments: Sequence[Experiment]) -> Table:
    """Return runs that no table shows, each with its differences from the most similar cell."""
    head = ("most similar cell", "seed", "result", "samples", "steps", "differences", "note", "hardware")
    lines = []
    for record in records:
        label, changes = _most_similar(record.config, experiments)
        lines.append((
            label or record.config.folder_name, str(record.config.seed), _outcome(record), f"{record.samples:,}",
            f"{record.steps:,} of {record.config.train.num_steps:,}",
            "; ".join(f"{name} {ours} (cell: {others})" for name, (ours, others) in changes.items()),
            record.note, record.hardware,
        ))  # fmt: skip
    return _table(head, lines)


def _most_similar(config: RunConfig, experiments: Sequence[Experiment]) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """Return the cell of the same task and block with the fewest differences, and these differences.

    Differences of the task weigh most, then those of the model.
    """
    alike = [
        (f"{cell.label} ({one.id}, {one.scale})", differences(replace(config, seed=cell.config.seed), cell.config))
        for one in experiments
        for cell in one.cells
        if (cell.config.task.name, cell.config.model.block) == (config.task.name, config.model.block)
    ]

    def distance(candidate: tuple[str, dict[str, Any]]) -> list[int]:
        return [sum(name.startswith(part) for name in candidate[1]) for part in ("task.", "model.", "")]

    return min(alike, key=distance, default=("", {}))


def _outcome(record: Record) -> str:
    """Return the test result of a run; without a test, the last validation or loss."""
    metric = metric_named(record.config.task.metric)
    if record.test is not None:
        score = record.test.trained
        value = metric.show(score.metrics[record.test.metric])
        return f"{metric.label} {value} ({metric.show_interval(score.low, score.high)})"
    for name, label in (("validation", f"validation {metric.label}"), ("loss", "training loss")):
        if points := [point for point in record.curve if name in point]:
            shown = (metric if name == "validation" else metric_named("loss")).show(points[-1][name])
            return f"{label} {shown} after {points[-1]['samples']:,.0f} samples"
    return "none"


def tries_table(cells: Sequence[Cell], records: Iterable[Record]) -> Table:
    """Return how many runs each cell has had: by recipe, with other settings (`other`), or stopped (`given up`).

    The cells are those of one table by all its recipes. A run belongs to the cells of its problem, model and loops.
    """
    recipes = {seedless_key(cell.config): cell.recipe for cell in reversed(cells)}  # the first experiment wins
    tried: dict[tuple[Any, ...], Counter[str]] = {}
    for record in records:
        kind = recipes.get(seedless_key(record.config), "other") if record.finished else "given up"
        tried.setdefault(_place(record.config), Counter())[kind] += 1
    rows: dict[str, dict[str, Counter[str]]] = {}
    for variants in grouped(cells, lambda cell: cell.name).values():
        model, places = variants[0].config.model, {_place(cell.config) for cell in variants}
        row = variants[0].row if model.block == "standard" else f"{variants[0].row}, r={model.num_loops}"
        rows.setdefault(row, {})[model.block] = sum((tried.get(place, Counter()) for place in places), Counter[str]())
    lines = []
    for row, counts in rows.items():
        if any(counts.values()):
            texts = {block: _counted(counts.get(block, Counter())) for block in ("standard", *BLOCKS)}
            is_pair = any(counts.get(block) for block in BLOCKS)
            alike = "yes" if texts["looped"] == texts["modulated"] else "no"
            lines.append((row, *texts.values(), alike if is_pair else ""))
    return _table(("", "standard", *BLOCKS, "equal"), lines)


def _place(config: RunConfig) -> tuple[Any, ...]:
    model = config.model
    return config.task, model.block, model.num_layers, model.num_loops, model.conditioning


def _counted(counts: Counter[str]) -> str:
    last = ("other", "given up")
    names = [*RECIPE_TEXTS, *sorted({*counts} - {*RECIPE_TEXTS, *last}), *last]
    return ", ".join(f"{counts[name]} {name}" for name in names if counts[name])


_PROBLEMS = {
    "sudoku": "{side}x{side}",
    "countdown": "{count} numbers",
    "decision-tree": "{points} points, {dims} dimensions, depth {depth}",
    "language": "{text}, {seq_len} tokens",
}


def problem_name(config: RunConfig) -> str:
    """Return the size of a problem in the words of its task, such as `n = 6` or `9x9`."""
    text = _PROBLEMS.get(config.task.name)
    return text.format_map(asdict(config.task)) if text else f"n = {trained_size(config)}"


def row_name(cell: Cell) -> str:
    """Return the name of a row, with the size of its problem if that is not the paper's: `ED40 (n = 6)`."""
    return cell.row if cell.comparable else f"{cell.row} ({problem_name(cell.config)})"


def cost_text(results: Sequence[CellResult], num_cells: int) -> str:
    """Return the number of cells, the seeds and the cost of an experiment in one line."""
    records = distinct_records(results)
    fewest, most = (pick(len(one.records) for one in results) for pick in (min, max))
    hours = sum(record.seconds for record in records) / 3600
    return " · ".join((
        f"{len({one.cell.name for one in results})} of {plural(num_cells, 'cell')}",
        f"{plural(fewest, 'seed') if fewest == most else f'{fewest} to {most} seeds'} per cell",
        plural(len(records), "run"),
        f"{f'{hours:.1f} hours' if hours >= 2 else f'{60 * hours:.0f} minutes'} of training",
        f"{sum(record.samples for record in records):,} samples",
        " and ".join(dict.fromkeys(record.hardware for record in records)),
    ))  # fmt: skip
