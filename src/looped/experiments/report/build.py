"""Build the report: from records to one self-contained HTML page."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from looped.experiments.records import Record, seedless_key
from looped.experiments.report.charts import MARKER_NAMES, RECIPE_MARKERS, further_charts, main_charts
from looped.experiments.report.compare import CellResult, distinct_results
from looped.experiments.report.tables import (
    RECIPE_TEXTS,
    SIGNS,
    Table,
    cost_text,
    matrix,
    other_runs,
    other_runs_table,
    problem_name,
    recipes_of,
    rows_table,
    runs_table,
    settings_table,
)
from looped.experiments.spec import SCALE_TEXT, Cell, Experiment, Scale
from looped.experiments.tables import EXPERIMENTS, SAME_TABLE, experiment, is_built_in
from looped.utils.errors import InputError
from looped.utils.files import read_text, save_text
from looped.viz.plots import Chart, Lines, draw

TITLE, OWN_TITLE = "Looped Transformers: the paper and our results", "Results"
FINDINGS = "findings.toml"
"""file in the folder of the records: a text written by a person per experiment, by scale (`full` for full size)"""


Findings = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Panel:
    """A chart with the table of its numbers."""

    title: str
    svg: str
    table: Table | None = None


@dataclass(frozen=True)
class Section:
    """One experiment on the page."""

    anchor: str
    title: str
    about: str
    finding: str
    cost: str
    results: tuple[CellResult, ...]
    panels: tuple[Panel, ...]
    tables: tuple[tuple[str, Table], ...] = ()
    """folded tables with their titles"""
    further: tuple[Panel, ...] = ()
    """folded charts"""


@dataclass(frozen=True)
class Report:
    """All content of the page, ready for the template."""

    title: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Section, ...]
    """the paper's experiments at full size, and a user's own runs"""
    studies: tuple[Section, ...]
    small: tuple[Section, ...]
    """the paper's experiments on small problems"""
    other: Table | None
    """runs that belong to no experiment"""
    missing: tuple[str, ...]
    """titles of experiments without any result"""
    written: str
    """the date of the findings"""
    is_of_paper: bool
    """False for a user's own runs"""


def build_report(
    records: Mapping[str, Record],
    experiments: Sequence[Experiment] | None = None,
    *,
    title: str | None = None,
    findings: Findings | None = None,
    every_run: bool = True,
    names: Mapping[str, str] | None = None,
) -> Report:
    """Return the report of any set of records.

    Without `experiments`, the runs are grouped by their problem, and `names` has a name for each record's key. With
    `every_run`, runs that belong to none of the experiments are listed as well.
    """
    chosen = own_experiments(records.values(), names or {}) if experiments is None else experiments
    is_of_paper = any(map(is_built_in, chosen))
    texts = findings or {}
    tables, studies, small, missing = [], [], [], []
    for name in dict.fromkeys(SAME_TABLE.get(one.id, one.id) for one in chosen):
        group = [one for one in chosen if SAME_TABLE.get(one.id, one.id) == name]
        found = distinct_results(group, records)
        if not any(found.values()):
            missing.append(group[0].title)
        elif group[0].is_study:
            studies.append(_own_table(group, found, texts))
        else:
            full = [one for one in group if one.is_full_size or not is_built_in(one)]
            if any(found[one] for one in full):
                tables.append(_paper_table(full, [result for one in full for result in found[one]], texts))
            small += [_own_table([one], found, texts) for one in group if one not in full and found[one]]
    others = other_runs(records.values(), chosen)
    hidden = set() if every_run else {record.key for record in others}
    return Report(
        title or (TITLE if is_of_paper else OWN_TITLE),
        _facts(tables, [record for key, record in records.items() if key not in hidden]),
        tuple(tables),
        tuple(studies),
        tuple(small),
        other_runs_table(others, chosen) if others and every_run else None,
        tuple(missing),
        _text(texts, "about", "written"),
        is_of_paper,
    )


def write_report(report: Report, out: Path) -> Path:
    """Write the page as `index.html` in the folder `out` and return its path."""
    environment = Environment(
        loader=PackageLoader("looped.experiments.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = resources.files("looped.experiments.report").joinpath("report.css").read_text(encoding="utf-8")
    shown = recipes_of(result for section in report.tables for result in section.results)
    recipes = {name: text for name, text in RECIPE_TEXTS.items() if name in ("paper", "fast", *shown)}
    markers = {name: MARKER_NAMES.get(RECIPE_MARKERS[name]) for name in recipes if name in shown}
    page = environment.get_template("report.html.j2").render(
        report=report, css=css, signs=SIGNS, scales=SCALE_TEXT, recipes=recipes, markers=markers
    )
    save_text(out / "index.html", page)
    return out / "index.html"


def reported_experiments(
    records: Mapping[str, Record], names: Iterable[str] = (), scale: Scale | None = None
) -> list[Experiment]:
    """Return the experiments of a report, by default all of them at every scale that has results.

    Runs at smoke scale are shown only if there is nothing else, or if that scale is asked for.
    """
    names = list(dict.fromkeys(names)) or list(EXPERIMENTS)
    if scale is not None:
        return [experiment(name, scale) for name in names]
    finished = {seedless_key(record.config) for record in records.values() if record.finished}

    def has_results(one: Experiment) -> bool:
        return any(seedless_key(config) in finished for config in one.configs())

    real = [experiment(name, size) for name in names for size in ("gpu", "paper", "laptop")]
    smoke = [experiment(name, "smoke") for name in names]
    if not any(map(has_results, real)) and any(map(has_results, smoke)):
        return smoke
    # An experiment without results is listed once as missing. A user's own may be the same at every scale.
    return list(dict.fromkeys(one for one in real if has_results(one) or one.scale in ("laptop", None)))


def own_experiments(records: Iterable[Record], names: Mapping[str, str] | None = None) -> list[Experiment]:
    """Return an experiment per problem for runs that belong to no table.

    The columns are the models. If two runs have the same model but other settings, each run has a row with its name.
    """
    problems: dict[str, dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: record.config.model.num_loops):
        title = f"{record.config.task.name}, {problem_name(record.config)}"
        problems.setdefault(title, {}).setdefault(seedless_key(record.config), record)
    return [
        Experiment(f"runs-{index}", title, "", None, _own_cells(list(runs.values()), names or {}))
        for index, (title, runs) in enumerate(problems.items())
    ]


def _own_cells(records: Sequence[Record], names: Mapping[str, str]) -> tuple[Cell, ...]:
    """Return a cell per run of one problem. A run without a name is called `variant 2`, and so on."""
    models = [record.config.model for record in records]
    columns = ["standard" if model.block == "standard" else f"{model.block} r={model.num_loops}" for model in models]
    repeated = len(set(columns)) < len(columns)
    cells = []
    for place, (record, column) in enumerate(zip(records, columns, strict=True)):
        number = 1 + columns[:place].count(column)
        row = problem_name(record.config) if number == 1 else f"variant {number}"
        cells.append(Cell(names.get(record.key, row) if repeated else row, column, record.config))
    return tuple(cells)


def read_findings(folder: Path) -> dict[str, dict[str, str]]:
    """Return the texts of `findings.toml`, by experiment and scale; nothing if the file does not exist."""
    path = folder / FINDINGS
    if not path.exists():
        return {}
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: expected TOML, got {error}") from None


def _paper_table(group: Sequence[Experiment], results: list[CellResult], texts: Findings) -> Section:
    """Return an experiment of the paper at full size: a panel per row, with one column per recipe."""
    first, cells = group[0], [cell for one in group for cell in one.cells]
    charts = main_charts(first.id, cells, results, with_paper=first.is_full_size)
    rows = list(dict.fromkeys(one.cell.row for one in results))
    alike = len(charts) == len(rows)
    tables = [rows_table(each, cells, results, compact=True) for each in ([[row] for row in rows] if alike else [rows])]
    titles = rows if alike and len(rows) > 1 else [chart.title for chart in charts]
    return Section(
        first.id,
        first.title,
        first.about,
        _text(texts, first.id, "full"),
        cost_text(results, len({cell.name for cell in cells})),
        tuple(results),
        _panels(first, charts, titles, tables, legend=len(charts) < 3),
        (("All runs", runs_table(results)), *([] if first.scale else [("Settings", settings_table(results))])),
        _panels(first, charts := further_charts(results), [chart.title for chart in charts], prefix="further"),
    )


def _own_table(group: Sequence[Experiment], found: Mapping[Experiment, list[CellResult]], texts: Findings) -> Section:
    """Return a study, or an experiment of the paper on small problems: our numbers alone, all scales side by side."""
    shown = sorted((one for one in group if found[one]), key=lambda one: not one.is_full_size)
    panels: list[Panel] = []
    tables: list[tuple[str, Table]] = []
    for one in shown:
        results = found[one]
        size = ", ".join(filter(None, (problem_name(results[0].cell.config), one.scale and f"{one.scale} scale")))
        numbers = matrix(one.cells, results)
        if one.against is None or len(numbers.rows) > 1:  # otherwise there is nothing to compare
            charts = main_charts(one.id, one.cells, results)
            notes = [size] if one.is_study else []
            titles = [" · ".join([*filter(None, [chart.title]), *notes]) for chart in charts]
            panels += _panels(one, charts, titles, [numbers] if len(charts) == 1 else [])
        tables += [(f"Numbers, {size}", numbers), (f"All runs, {size}", runs_table(results))]
    if len(panels) != 1:  # only a single panel has room for its numbers beside the chart
        panels = [replace(panel, table=None) for panel in panels]
    everything = [result for one in shown for result in found[one]]
    last = shown[-1]
    names = ("full", "laptop", "smoke") if last.is_study else (str(last.scale),)
    return Section(
        last.id if last.is_study else f"{last.id}-{last.scale}",
        last.title,
        last.about,
        " ".join(filter(None, (_text(texts, last.id, name) for name in names))),
        cost_text(everything, len({(one.scale, cell.name) for one in shown for cell in one.cells})),
        tuple(everything),
        tuple(panels),
        tables=tuple(tables),
    )


def _panels(
    one: Experiment,
    charts: Sequence[Chart],
    titles: Sequence[str],
    tables: Sequence[Table] = (),
    *,
    prefix: str = "main",
    legend: bool = True,
) -> tuple[Panel, ...]:
    """Draw charts. Their titles move into the page, where its font and colours apply."""
    panels = []
    for index, (chart, title) in enumerate(zip(charts, titles, strict=True)):
        name = f"{one.id}-{one.scale or 'own'}-{prefix}-{index}"
        axes = f"{chart.y_label} against {chart.x_label}" if isinstance(chart, Lines) else chart.x_label
        alt = f"{title or one.title}: {axes}. The tables hold the numbers."
        svg = draw([replace(chart, title="")], name, alt, legend=legend, background=False)
        panels.append(Panel(title, svg, tables[index] if index < len(tables) else None))
    return tuple(panels)


def _text(texts: Findings, name: str, scale: str) -> str:
    return texts.get(name, {}).get(scale, "").strip()


def _facts(tables: Sequence[Section], records: Iterable[Record]) -> tuple[tuple[str, str], ...]:
    """Return the numbers at the top of the page, each with its meaning."""
    compared = [one.verdict for section in tables for one in section.results if one.difference is not None]
    finished = [record for record in records if record.finished]
    names = {"agrees": "agree", "better": "are better", "worse": "are worse"}
    facts = [(str(len(compared)), "numbers compared with the paper")]
    facts += [(str(compared.count(verdict)), text) for verdict, text in names.items()]
    hours = sum(record.seconds for record in finished) / 3600
    return *(facts if compared else []), (str(len(finished)), "finished runs"), (f"{hours:.1f} h", "of training")
