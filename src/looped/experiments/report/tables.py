"""The report's tables: ours beside the paper's, the claims, the runs behind every number."""

from collections.abc import Iterable, Sequence

from looped.experiments.checks import is_number
from looped.experiments.report.compare import (SIGNS, TONES, Mark, claims, compares_numbers, compares_order, difference, place_in_order, row_name)
from looped.experiments.report.document import Entry, Table
from looped.experiments.report.cells import (Measured, by_row, distinct_runs, grouped, hardware_text, seeds_in_words, short_power, split_column)
from looped.experiments.records import cell_evaluation
from looped.experiments.spec import Cell, Experiment

EMPTY = "-"
NOTHING = Entry(EMPTY)


def matrix(experiment: Experiment, measured: Sequence[Measured]) -> Table:
    """One line per row of the experiment, as in the paper: ours above, the paper's number below.

    Every cell has its place, also where its neighbours are not run yet; a row without any number is left out.
    """
    rows = by_row(measured)
    found = {one.cell.name: one for one in measured}
    cells = {name: _by_group(cell for cell in experiment.cells if cell.row == name) for name in rows}
    widths: dict[str, int] = {}
    for groups in cells.values():
        for group, inside in groups.items():
            widths[group] = max(widths.get(group, 0), len(inside))
    places = [(group, place) for group, width in widths.items() for place in range(width)]
    heads = [_common_loops([groups.get(group, []) for groups in cells.values()], place) for group, place in places]
    constants = {_constant_note(members) for members in rows.values()}
    lines = []
    for name, members in rows.items():
        entries = [Entry(row_name(experiment, members), below="" if len(constants) == 1 else _constant_note(members))]
        for (group, place), head in zip(places, heads, strict=True):
            inside = cells[name].get(group, [])
            one = found.get(inside[place].name) if place < len(inside) else None
            entries.append(_entry(experiment, one, members, head) if one else NOTHING)
        lines.append(tuple(entries))
    caption = _caption(experiment, measured) + (
        f"; {note}" if len(constants) == 1 and (note := constants.pop()) else ""
    )
    if not any(widths) or (not any(heads) and set(widths.values()) == {1}):  # one line of headings says it all
        heads = [head or group for head, (group, _) in zip(heads, places, strict=True)]
        return Table(caption, ("", *heads), tuple(lines))
    return Table(caption, ("", *heads), tuple(lines), (("", 1), *widths.items()))


def beside_paper(experiment: Experiment, measured: Sequence[Measured]) -> Table:
    """One line per cell: ours with its interval, the paper's number, and what ours cost. Means over seeds."""
    labels = {one.measure.label for one in measured}
    head = ("", labels.pop() if len(labels) == 1 else "ours", "paper", "samples", "seconds of training")
    rows, neighbours = [], by_row(measured)
    for one in measured:
        found = _judge(experiment, one, neighbours[one.cell.row])
        samples, seconds = (
            sum(getattr(record, name) for record in one.records) / len(one.records) for name in ("samples", "seconds")
        )
        rows.append((
            Entry(one.cell.label if one.cell.row else one.cell.column),
            Entry(one.with_interval(), sign=found.sign if found else "", tone=found.tone if found else None),
            Entry(one.papers() or EMPTY),
            Entry(f"{samples:,.0f}"),
            Entry(f"{seconds:,.0f}"),
        ))  # fmt: skip
    return Table(f"{experiment.title}, {experiment.scale} scale, {seeds_in_words(measured)}", head, tuple(rows))


def _by_group(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    return grouped(cells, lambda cell: split_column(cell.column)[0])


def _common_loops(rows: Sequence[Sequence[Cell]], place: int) -> str:
    """`r=5` if all rows have that number of loops at this place, else nothing: then each entry tells its own."""
    found = {split_column(cells[place].column)[1] for cells in rows if place < len(cells)}
    return found.pop() if len(found) == 1 else ""


def _judge(experiment: Experiment, one: Measured, row: Sequence[Measured]) -> Mark | None:
    if not compares_order(experiment):
        return None
    return difference(one) if compares_numbers(experiment, one) else place_in_order(one, row)


def _caption(experiment: Experiment, measured: Sequence[Measured]) -> str:
    labels = list(dict.fromkeys(one.measure.label for one in measured))
    seeds = seeds_in_words(measured)
    parts = [f"{' and '.join(labels).capitalize()}, {'one seed each' if seeds == 'one seed' else f'mean of {seeds}'}"]
    with_paper = [one for one in measured if one.cell.paper is not None]
    if with_paper:
        own = (
            ""
            if any(compares_numbers(experiment, one) for one in with_paper)
            else ", of its own problem, which is another one"
        )
        other = ", with its loops or layers in brackets" if any(one.cell.paper_column for one in with_paper) else ""
        parts.append(f"the paper's number below{own}{other}")
    return f"{experiment.title}, {experiment.scale} scale. {'; '.join(parts)}"


def _entry(experiment: Experiment, one: Measured, row: Sequence[Measured], head: str) -> Entry:
    paper = f"paper {one.papers()}" if one.papers() else ""
    found = _judge(experiment, one, row)
    above = "" if head else split_column(one.cell.column)[1]
    if found is None:
        return Entry(one.shown(), above, paper)
    return Entry(one.shown(), above, paper, found.sign, found.tone)


def _constant_note(members: Sequence[Measured]) -> str:
    """The best constant answer of a row, where all its cells have the same; else nothing."""
    baselines = {text for one in members for text in _constants(one)} - {EMPTY}
    return f"constant answer {baselines.pop()}" if len(baselines) == 1 else ""


def claims_table(experiment: Experiment, measured: Sequence[Measured]) -> Table | None:
    """What the paper says about pairs of models, and what our intervals allow us to say."""
    found = [claim for claim in claims(measured) if claim.papers is not None]
    if not found:
        return None
    names = list(dict.fromkeys(claim.name for claim in found))
    rows = []
    for row in dict.fromkeys(claim.row for claim in found):
        of_row = {claim.name: claim for claim in found if claim.row == row}
        entries = []
        for name in names:
            claim = of_row.get(name)
            if claim is None:
                entries.append(NOTHING)
                continue
            entries.append(
                Entry(
                    claim.ours,
                    below=f"paper {claim.papers}",
                    sign=SIGNS[claim.verdict],
                    tone=TONES[claim.verdict],
                )
            )
        rows.append((Entry(row_name(experiment, by_row(measured)[row])), *entries))
    return Table("The paper's claims, at the most loops that were run", ("", *names), tuple(rows))


def details(experiment: Experiment, measured: Sequence[Measured]) -> Table:
    """Every run with its cost: a number is worth as much as what is known about it."""
    labels = {one.measure.label for one in measured}
    value = labels.pop() if len(labels) == 1 else "value"
    head = ("cell", "seed", value, "95 % interval", "constant answer", "test examples", "parameters", "samples",
            "FLOPs", "seconds", "hardware", "commit")  # fmt: skip
    rows = []
    for one in measured:
        for record, found, constant in zip(one.records, one.values, _constants(one), strict=True):
            own = cell_evaluation(one.cell, record)
            shown = one.measure.show(found.value)
            texts = (
                one.cell.label if one.cell.row else one.cell.column,
                str(record.config.seed),
                shown if value != "value" else f"{shown} {one.measure.label}",
                one.measure.show_interval(found.low, found.high),
                constant,
                f"{own['size']:,}" if own else EMPTY,
                f"{record.parameters:,}",
                f"{record.samples:,}",
                short_power(record.flops),
                f"{record.seconds:,.0f}" if record.seconds >= 10 else f"{record.seconds:.1f}",
                hardware_text(record),
                _short_commit(record.commit),
            )  # fmt: skip
            rows.append(tuple(Entry(text) for text in texts))
    caption = f"The runs behind {experiment.title}, {experiment.scale} scale"
    return Table(caption, head, tuple(rows), text_columns=("hardware", "commit"))


def _short_commit(commit: str | None) -> str:
    """Its first letters; what was changed on top of it stays told."""
    return f"{commit[:10]}{'+' if commit.endswith('+') else ''}" if commit else "unknown"


def _constants(one: Measured) -> list[str]:
    """Of each run the best constant answer, written in what the cell shows."""
    found = [one.constant(record) for record in one.records]
    return [EMPTY if number is None else one.measure.show(number) for number in found]


def continuity(measured: Sequence[Measured]) -> Table | None:
    """How far the output moves with the input, where that was measured."""
    runs = [one for one in distinct_runs(measured) if isinstance(one.records[0].extra.get("continuity"), dict)]
    names = list(dict.fromkeys(
        name
        for one in runs
        for name, value in one.records[0].extra["continuity"].items()
        if is_number(value)
    ))  # fmt: skip
    if not names:
        return None
    rows = []
    for one in runs:
        for record in one.records:
            found = record.extra.get("continuity") or {}
            numbers = [f"{found[name]:.4g}" if name in found else EMPTY for name in names]
            texts = (one.cell.column, str(record.config.seed), *numbers)
            rows.append(tuple(Entry(text) for text in texts))
    head = ("model", "seed", *(name.replace("_", " ") for name in names))
    return Table("Change of the output over a small change of the input", head, tuple(rows))
