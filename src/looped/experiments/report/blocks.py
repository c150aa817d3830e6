"""Rewrite the marked blocks of Markdown files from records, so that no number there is typed by hand.

A block names an experiment and a scale (`gpu` stands for full size, whatever the recipe):

    <!-- results: table1 gpu -->
    <!-- end of results -->

The name `tries` stands for the number of runs that each cell of Table 1 has had. A picture `table1-gpu.svg` that the
file shows is drawn again as well.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from looped.experiments.records import Record
from looped.experiments.report.charts import main_charts
from looped.experiments.report.compare import CellResult, distinct_results
from looped.experiments.report.tables import SIGNS, Entry, Table, cost_text, matrix, rows_table, tries_table
from looped.experiments.spec import FULL_SIZE, Cell, Experiment, check_scale
from looped.experiments.tables import all_recipes, experiment
from looped.utils.errors import require
from looped.utils.files import read_text, save_text
from looped.viz.plots import draw

BLOCK = re.compile(r"(<!-- results: ([\w-]+) (\w+)[^\n]*-->\n)(.*?)(<!-- end of results -->)", re.DOTALL)
PICTURE = re.compile(r"\]\(((?:[\w.-]+/)*([\w-]+)-(smoke|laptop|gpu|paper)\.svg)\)")
TRIES = "tries"
LEGEND = (
    f"In brackets: 95 % intervals. {SIGNS['agrees']} the paper's number lies in our interval; {SIGNS['better']} ours "
    f"is better; {SIGNS['worse']} ours is worse."
)


def update_blocks(path: Path, records: Mapping[str, Record]) -> None:
    """Rewrite all blocks and pictures of one Markdown file; raise InputError before anything is written."""
    text = read_text(path)
    marks = re.findall(r"<!-- (results:|end of results)", text)
    require(
        bool(marks) and len(BLOCK.findall(text)) == len(marks) / 2,
        f"{path}: expected blocks from '<!-- results: EXPERIMENT SCALE -->' to '<!-- end of results -->'.",
    )
    updated = BLOCK.sub(lambda found: f"{found[1]}\n{_block(found[2], found[3], records)}\n\n{found[5]}", text)
    pictures = {name: _picture(which, scale, records) for name, which, scale in PICTURE.findall(text)}
    for name, svg in pictures.items():
        save_text(path.parent / name, svg + "\n")
    save_text(path, updated)


def _results(name: str, scale: str, records: Mapping[str, Record]) -> tuple[Experiment, list[Cell], list[CellResult]]:
    """Return an experiment with its cells and results; full size combines the scales and so the recipes."""
    size = check_scale(scale)
    group = all_recipes(name, size) if size in FULL_SIZE else [experiment(name, size)]
    results = [one for found in distinct_results(group, records).values() for one in found]
    require(bool(results), f"{name} {scale}: expected a finished run, got none")
    return group[0], [cell for each in group for cell in each.cells], results


def _tries(scale: str, records: Mapping[str, Record]) -> str:
    cells = [cell for each in all_recipes("table1", check_scale(scale)) for cell in each.cells]
    return markdown(tries_table(cells, records.values()))


def _block(name: str, scale: str, records: Mapping[str, Record]) -> str:
    if name == TRIES:
        return _tries(scale, records)
    first, cells, results = _results(name, scale, records)
    metric = results[0].metric
    percent, direction = " in %" * metric.is_share, "higher" if metric.higher_is_better else "lower"
    unit = f"{metric.label}{percent}, {direction} is better"
    caption = f"{first.title}, {'full size' if first.is_full_size else f'{scale} scale'}: {unit}."
    if first.is_full_size and not first.is_study:
        table = rows_table(list(dict.fromkeys(cell.row for cell in cells)), cells, results)
        table = replace(table, rows=tuple(row for row in table.rows if any(entry.mark or entry.note for entry in row)))
        legend = [LEGEND] if any(entry.mark for row in table.rows for entry in row) else []
    else:
        table, legend = matrix(cells, results), []
    cost = cost_text(results, len({cell.name for cell in cells}))
    return "\n\n".join([caption, markdown(table), *legend, f"{cost}."])


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    lines = [table.head, [":--", *["--:"] * (len(table.head) - 1)]]
    lines += [[_entry(entry) for entry in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _entry(entry: Entry) -> str:
    note = f" ({entry.note})" if entry.note else ""
    sign = f" {SIGNS[entry.mark]}" if entry.mark else ""
    return f"{entry.text}{note}{sign}".replace("|", "\\|").replace("<", "&lt;")


def _picture(name: str, scale: str, records: Mapping[str, Record]) -> str:
    first, cells, results = _results(name, scale, records)
    charts = main_charts(first.id, cells, results, with_paper=first.is_full_size)
    require(bool(charts), f"{name} {scale}: expected results that can be drawn, got too few")
    return draw(charts, f"{name}-{scale}", f"{first.title}: {results[0].metric.label}", columns=min(3, len(charts)))
