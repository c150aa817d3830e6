"""Experiments and their records as Markdown and as one self-contained HTML page, and the README's table."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from looped.config import RunConfig
from looped.utils.errors import InputError, require
from looped.experiments.report.charts import figures, readme_figure
from looped.experiments.report.compare import compares_numbers, compares_order
from looped.experiments.report.document import (Block, Document, Points, Section, Words, markdown, markdown_block, markdown_table, panel_path)
from looped.experiments.report.cells import Measured, measured_cells
from looped.experiments.report.page import page
from looped.experiments.records import Record
from looped.experiments.spec import SCALES, Experiment
from looped.experiments.report.theory_section import theory_section
from looped.experiments.report.tries import other_tries, tries_section
from looped.experiments.report.tables import beside_paper, claims_table, continuity, details, matrix
from looped.experiments.report.words import (Part, compute, conditions, distinct_records, legend, not_run, notes_on_runs, rules, summary, verdicts)
from looped.utils.files import save_text

TITLE = "On Expressive Power of Looped Transformers: what we could reproduce"
_README_START, _README_END = "<!-- results:", "<!-- end of results -->"


def write_report(
    experiments: Sequence[Experiment], records: Mapping[str, Record], out: Path, known: Sequence[Experiment] = ()
) -> Path:
    """Write `report.md` with its figures and `index.html`; returns the page's path."""
    made = report(experiments, records, known)
    for figure in made.figures:
        for index, svg in enumerate(figure.panels):
            save_text(out / panel_path(figure, index), svg + "\n")
    save_text(out / "report.md", markdown(made))
    save_text(out / "index.html", page(made))
    return out / "index.html"


def report(
    experiments: Sequence[Experiment], records: Mapping[str, Record], known: Sequence[Experiment] = ()
) -> Document:
    """The whole report as data. Where all `known` experiments are given, it also tells of runs that belong to none."""
    parts: list[Part] = []
    missing = []
    for experiment in experiments:
        measured = measured_cells(experiment, records)
        parts += [(experiment, measured)] if measured else []
        missing += [] if measured else [experiment]
    several = any(len(one.records) > 1 for _, measured in parts for one in measured)
    sections = [_overview(parts, {one: notes_on_runs(one, records) for one in missing})]
    shown: set[RunConfig] = set()
    for experiment, measured in parts:
        configs = {one.cell.config for one in measured}
        notes = notes_on_runs(experiment, records)
        sections.append(_section(experiment, measured, notes, of_runs=not configs <= shown))
        shown |= configs
    if known and (tries := other_tries(records.values(), known)):
        sections.append(tries_section(tries, known))
    sections.append(theory_section())
    sections.append(Section("How to read this", "rules", (Points(tuple(rules(several))),)))
    return Document(TITLE, tuple(summary(parts, missing)), tuple(sections))


def _overview(parts: Sequence[Part], missing: Mapping[Experiment, list[str]]) -> Section:
    """What was and what was not reproduced, over all experiments."""
    blocks: list[Block] = []
    for experiment, measured in parts:
        if compares_order(experiment):
            left = not_run(experiment, measured)
            title = f"{experiment.label}: {left}" if left else experiment.label
            blocks.append(Points(tuple(verdicts(experiment, measured)), title))
    if missing:
        lines = (
            f"{one.label}: {' '.join(['no result yet.', *notes]) if notes else 'not run yet'}"
            for one, notes in missing.items()
        )
        blocks.append(Points(tuple(lines), "Not run yet"))
    if not blocks:
        blocks.append(Words("Nothing that could be compared with the paper has been run yet."))
    return Section("What was reproduced, and what was not", "verdicts", tuple(blocks))


def _section(experiment: Experiment, measured: list[Measured], notes: list[str], *, of_runs: bool) -> Section:
    """An experiment's tables and figures; those of its runs only if no experiment before it had all of them."""
    table = matrix(experiment, measured)
    blocks: list[Block | None] = [
        Words(experiment.about),
        Words(conditions(experiment, measured)),
        table,
        Words(legend(table, measured)),
        claims_table(experiment, measured) if compares_order(experiment) else None,
        continuity(measured),
        *figures(experiment, measured, of_runs=of_runs),
        details(experiment, measured),
        Points(tuple(notes), "Notes on runs") if notes else None,
    ]
    present = tuple(block for block in blocks if block is not None)
    return Section(experiment.label, f"{experiment.id}-{experiment.scale}", present)


def write_readme(experiment: Experiment, records: Mapping[str, Record], readme: Path) -> None:
    """Put the table between the README's marks, and its figure where it shows one: numbers there are never typed."""
    measured, parts, place = _readme_place(experiment, records, readme)
    parts[place + 1] = f"\n{readme_part(experiment, measured)}\n\n"
    text, figure = "".join(parts), f"docs/{experiment.id}-{experiment.scale}.svg"
    if figure in text and (svg := readme_figure(experiment, measured)) is not None:
        save_text(readme.parent / figure, svg + "\n")
    save_text(readme, text)


def check_readme(experiment: Experiment, records: Mapping[str, Record], readme: Path) -> None:
    """`InputError` if the README has no place for the experiment, or nothing of it is finished: to be known before a
    report is written."""
    _readme_place(experiment, records, readme)


def _readme_place(
    experiment: Experiment, records: Mapping[str, Record], readme: Path
) -> tuple[list[Measured], list[str], int]:
    """What there is to show, the README's parts, and which of them is the experiment's mark."""
    measured, count = measured_cells(experiment, records), len(experiment.cells)
    require(bool(measured), f"nothing to show in a README: all {count} cells of {experiment.id} are not finished")
    try:
        text = readme.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"expected text in UTF-8 in {readme}, found other bytes") from None
    except OSError as error:
        raise InputError(f"cannot read {readme}: expected a file of text ({error.strerror})") from None
    parts = re.split(f"({_README_START}.*?\n|{_README_END})", text)
    marks = [part for part in parts if part.startswith((_README_START, _README_END))]
    paired = [mark.startswith(_README_START) for mark in marks] == [True, False] * (len(marks) // 2)
    require(bool(marks) and paired, f"expected the lines '{_README_START} ...' and '{_README_END}' in {readme}")
    # A README with several places says in each mark what belongs there, as in `results: table1 gpu`.
    return measured, parts, _place(parts, f"{_README_START} {experiment.id} {experiment.scale}")


def _place(parts: Sequence[str], wanted: str) -> int:
    """The mark that names the experiment and its scale, or else the first one that names none."""
    starts = [index for index, part in enumerate(parts) if part.startswith(_README_START)]
    for index in starts:
        if parts[index].startswith(wanted):
            return index
    plain = [index for index in starts if not re.match(rf"{_README_START} [\w-]+ ({'|'.join(SCALES)})\b", parts[index])]
    require(bool(plain), f"expected a line '{wanted} ...' in the README, found only marks of other experiments")
    return plain[0]


def readme_part(experiment: Experiment, measured: list[Measured]) -> str:
    """The table, what its signs mean, what it says about the paper, and what it cost."""
    same_problems = any(compares_numbers(experiment, one) for one in measured)
    table = (beside_paper if same_problems else matrix)(experiment, measured)
    points = markdown_block(Points(tuple(verdicts(experiment, measured, brief=True))))
    cost = "; ".join(filter(None, (compute(distinct_records(measured)), not_run(experiment, measured)))) + "."
    return "\n\n".join([f"{table.caption}.", markdown_table(table), legend(table, measured), points, cost])
