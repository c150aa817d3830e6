"""Experiments and their records as Markdown and as one self-contained HTML page, and the README's table."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from looped.config import RunConfig
from looped.errors import require
from looped.experiments.charts import figures, readme_figure
from looped.experiments.compare import compares_order
from looped.experiments.document import Block, Document, Points, Section, Words, markdown, markdown_table, panel_path
from looped.experiments.measured import Measured, measured_cells
from looped.experiments.page import page
from looped.experiments.results import Record
from looped.experiments.spec import SCALES, Experiment
from looped.experiments.theory_section import theory_section
from looped.experiments.views import claims_table, continuity, details, matrix
from looped.experiments.words import Part, compute, conditions, distinct_records, rules, summary, unfinished, verdicts
from looped.files import save_text

TITLE = "On Expressive Power of Looped Transformers: what we could reproduce"
_README_START, _README_END = "<!-- results:", "<!-- end of results -->"


def write_report(experiments: Sequence[Experiment], records: Mapping[str, Record], out: Path) -> Path:
    """Write `report.md` with its figures and `index.html`; returns the page's path."""
    made = report(experiments, records)
    for figure in made.figures:
        for index, svg in enumerate(figure.panels):
            save_text(out / panel_path(figure, index), svg + "\n")
    save_text(out / "report.md", markdown(made))
    save_text(out / "index.html", page(made))
    return out / "index.html"


def report(experiments: Sequence[Experiment], records: Mapping[str, Record]) -> Document:
    """The whole report as data."""
    parts: list[Part] = []
    missing = []
    for experiment in experiments:
        measured = measured_cells(experiment, records)
        parts += [(experiment, measured)] if measured else []
        missing += [] if measured else [experiment]
    several = any(len(one.records) > 1 for _, measured in parts for one in measured)
    sections = [_overview(parts, missing)]
    shown: set[RunConfig] = set()
    for experiment, measured in parts:
        configs = {one.cell.config for one in measured}
        tries = unfinished(experiment, measured, records)
        sections.append(_section(experiment, measured, tries, of_runs=not configs <= shown))
        shown |= configs
    sections.append(theory_section())
    sections.append(Section("How to read this", "rules", (Points(tuple(rules(several))),)))
    return Document(TITLE, tuple(summary(parts, missing)), tuple(sections))


def _overview(parts: Sequence[Part], missing: Sequence[Experiment]) -> Section:
    """What was and what was not reproduced, over all experiments."""
    blocks: list[Block] = []
    for experiment, measured in parts:
        if compares_order(experiment):
            blocks.append(Points(tuple(verdicts(experiment, measured)), name(experiment)))
    if missing:
        blocks.append(Points(tuple(f"{name(experiment)}: not run yet" for experiment in missing), "Not run yet"))
    if not blocks:
        blocks.append(Words("Nothing that could be compared with the paper has been run yet."))
    return Section("What was reproduced, and what was not", "verdicts", tuple(blocks))


def _section(experiment: Experiment, measured: list[Measured], tries: list[str], *, of_runs: bool) -> Section:
    """An experiment's tables and figures; those of its runs only if no experiment before it had all of them."""
    blocks: list[Block | None] = [
        Words(experiment.about),
        Words(conditions(experiment, measured)),
        matrix(experiment, measured),
        claims_table(measured) if compares_order(experiment) else None,
        continuity(measured),
        *figures(experiment, measured, of_runs=of_runs),
        details(experiment, measured),
        Points(tuple(tries), "Notes on runs") if tries else None,
    ]
    present = tuple(block for block in blocks if block is not None)
    return Section(name(experiment), f"{experiment.id}-{experiment.scale}", present)


def name(experiment: Experiment) -> str:
    return f"{experiment.title} ({experiment.scale} scale)"


def write_readme(experiment: Experiment, records: Mapping[str, Record], readme: Path) -> None:
    """Put the table between the README's marks, and its figure beside it: numbers in a README are never typed."""
    measured = measured_cells(experiment, records)
    count = len(experiment.cells)
    require(bool(measured), f"nothing to show in a README: all {count} cells of {experiment.id} are not finished")
    text = readme.read_text() if readme.exists() else ""
    parts = re.split(f"({_README_START}.*?\n|{_README_END})", text)
    marks = [part for part in parts if part.startswith((_README_START, _README_END))]
    paired = [mark.startswith(_README_START) for mark in marks] == [True, False] * (len(marks) // 2)
    require(bool(marks) and paired, f"expected the lines '{_README_START} ...' and '{_README_END}' in {readme}")
    # A README with several places says in each mark what belongs there, as in `results: table1 gpu`.
    wanted = f"{_README_START} {experiment.id} {experiment.scale}"
    place, figure = _place(parts, wanted, f"{experiment.id}-{experiment.scale}.svg")
    parts[place + 1] = f"\n{readme_part(experiment, measured)}\n\n"
    if (svg := readme_figure(measured)) is not None:
        save_text(readme.parent / "docs" / figure, svg + "\n")
    save_text(readme, "".join(parts))


def _place(parts: Sequence[str], wanted: str, own_figure: str) -> tuple[int, str]:
    """The mark that names the experiment and its scale, or else the first one that names none."""
    starts = [index for index, part in enumerate(parts) if part.startswith(_README_START)]
    for index in starts:
        if parts[index].startswith(wanted):
            return index, own_figure
    plain = [index for index in starts if not re.match(rf"{_README_START} [\w-]+ ({'|'.join(SCALES)})\b", parts[index])]
    require(bool(plain), f"expected a line '{wanted} ...' in the README, found only marks of other experiments")
    return plain[0], "accuracy.svg"


def readme_part(experiment: Experiment, measured: list[Measured]) -> str:
    """The table, what it cost, and what it says about the paper."""
    table = matrix(experiment, measured)
    words = " ".join(verdicts(experiment, measured))
    left = len(experiment.cells) - len(measured)
    missing = f"; {left} of {len(experiment.cells)} cells not run yet" if left else ""
    cost = f"{compute(distinct_records(measured))}{missing}."
    return f"{table.caption}.\n\n{markdown_table(table)}\n\n{words}\n\n{cost}"
