"""An experiment's results as Markdown and as one self-contained HTML page."""

import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from looped.errors import require
from looped.experiments.figures import COLOURS, Series, line_figure
from looped.experiments.runner import at_trained_loops, cell_folder, read_test
from looped.experiments.spec import Cell, Experiment
from looped.files import read_json, save_text


class Finished(NamedTuple):
    """A cell with what its run and its test recorded. A number without these cannot appear in a report."""

    cell: Cell
    result: dict[str, Any]
    test: dict[str, Any]
    log: list[dict[str, Any]]

    @property
    def score(self) -> dict[str, Any]:
        return at_trained_loops(self.test)

    @property
    def value(self) -> float:
        """The task's metric at the trained number of loops."""
        return self.score[self.test["metric"]]


def write_report(experiment: Experiment, root: Path, out: Path) -> Path:
    """Write `report.md` and `index.html`; returns the page's path."""
    finished = collect(experiment, root)
    require(bool(finished), f"nothing to report: no finished cell of {experiment.id} under {root}")
    save_text(out / "report.md", markdown(experiment, finished))
    save_text(out / "index.html", page(experiment, finished))
    return out / "index.html"


def write_readme(experiment: Experiment, root: Path, readme: Path) -> None:
    """Put the table between the README's marks, and its figure beside it: numbers in a README are never typed."""
    finished = collect(experiment, root)
    missing = len(experiment.cells) - len(finished)
    require(missing == 0, f"the README shows whole tables: {missing} cells of {experiment.id} are not finished")
    text = readme.read_text() if readme.exists() else ""
    parts = re.split(f"({_README_START}.*?\n|{_README_END})", text, flags=re.DOTALL)
    require(len(parts) == 5, f"expected the lines '{_README_START} ...' and '{_README_END}' in {readme}")
    parts[2] = f"\n{table(finished)}\n\n{summary(finished)}\n\n"
    save_text(readme.parent / "docs" / "accuracy.svg", accuracy_against_loops(finished))
    save_text(readme, "".join(parts))


_README_START, _README_END = "<!-- results:", "<!-- end of results -->"


def collect(experiment: Experiment, root: Path) -> list[Finished]:
    """The finished cells, in the experiment's order."""
    found = []
    for cell in experiment.cells:
        test = read_test(root, cell)
        if test is not None:
            folder = cell_folder(root, cell)
            lines = (folder / "log.jsonl").read_text().splitlines()
            found.append(Finished(cell, read_json(folder / "result.json"), test, [json.loads(line) for line in lines]))
    return found


def markdown(experiment: Experiment, finished: list[Finished]) -> str:
    """Title, table and the runs behind it."""
    lines = [f"# {experiment.title}", "", experiment.about, "", table(finished), "", summary(finished), ""]
    return "\n".join(lines)


def table(finished: list[Finished]) -> str:
    """The cells as a Markdown table; the README holds a copy of it."""
    header = "| model | | accuracy | 95 % interval | parameters | samples | seconds |\n|---|---|---|---|---|---|---|"
    rows = [f"| {' | '.join(values)} |" for values in _table_rows(finished)]
    return "\n".join([header, *rows])


def _table_rows(finished: list[Finished]) -> list[list[str]]:
    return [
        [
            one.cell.row,
            one.cell.column,
            f"{100 * one.value:.1f} %",
            f"{100 * one.score['low']:.1f} to {100 * one.score['high']:.1f}",
            f"{one.result['parameters']:,}",
            f"{one.result['samples']:,}",
            f"{one.result['seconds']:.0f}",
        ]
        for one in finished
    ]


def summary(finished: list[Finished]) -> str:
    """What was measured on what, in words."""
    best = max(finished, key=lambda one: one.value)
    test, result = best.test, best.result
    seconds = sum(one.result["seconds"] for one in finished)
    return (
        f"Best: {best.cell.label}, {100 * best.value:.1f} % of {test['size']:,} held-out examples; "
        f"the most frequent answer alone gives {100 * test['baseline']:.1f} %. "
        f"Hardware: {result['hardware']} per cell; {seconds:,.0f} seconds of training in all, one seed; "
        f"torch {result['versions']['torch']}, looped {result['versions']['looped']}."
    )


def accuracy_against_loops(finished: list[Finished]) -> str:
    """The figure of the table: a line per looped model, levels for the standard one and the best constant answer."""
    series, levels = [], {}
    for row in dict.fromkeys(one.cell.row for one in finished):
        cells = [one for one in finished if one.cell.row == row]
        if cells[0].cell.config.model.block == "standard":
            levels[cells[0].cell.label] = cells[0].value
            continue
        scores = [one.score for one in cells]
        series.append(
            Series(
                row,
                COLOURS[cells[0].cell.config.model.block],
                [score["loops"] for score in scores],
                [one.value for one in cells],
                [score["low"] for score in scores],
                [score["high"] for score in scores],
            )
        )
    levels["most frequent answer"] = finished[0].test["baseline"]
    return line_figure(series, x_label="loops r (trained and tested)", y_label="accuracy", levels=levels, log_x=True)


def learning_curves(finished: list[Finished]) -> str:
    """Validation accuracy of the largest models against samples."""
    series = []
    for one in _largest(finished):
        points = [record for record in one.log if "validation" in record]
        samples = [point["step"] * one.cell.config.train.batch_size for point in points]
        accuracy = [point["validation"] for point in points]
        series.append(Series(one.cell.label, COLOURS[one.cell.config.model.block], samples, accuracy))
    return line_figure(series, x_label="training samples", y_label="validation accuracy")


def answers_by_loop(finished: list[Finished]) -> str:
    """What one trained model would answer after each loop, also beyond the loops it was trained with."""
    series, trained = [], 1
    for one in _largest(finished):
        if len(one.test["rows"]) > 1:
            rows = one.test["rows"]
            trained = one.test["trained_loops"]
            loops, accuracy = [row["loops"] for row in rows], [row[one.test["metric"]] for row in rows]
            series.append(Series(one.cell.label, COLOURS[one.cell.config.model.block], loops, accuracy))
    return line_figure(series, x_label="loop at which the answer is read", y_label="accuracy", marks=[trained])


def _largest(finished: list[Finished]) -> list[Finished]:
    """Of each row, the cell with the most loops."""
    largest = {one.cell.row: one for one in sorted(finished, key=lambda one: one.cell.config.model.num_loops)}
    return [largest[row] for row in dict.fromkeys(one.cell.row for one in finished)]


def page(experiment: Experiment, finished: list[Finished]) -> str:
    """One HTML page with everything in it."""
    figures = [
        (accuracy_against_loops, "Accuracy against the number of loops, one training per point."),
        (learning_curves, "Validation accuracy while the largest models train."),
        (
            answers_by_loop,
            "Accuracy if the answer is read after each loop; the line marks the trained number of loops.",
        ),
    ]
    drawn = "\n".join(
        f'<figure role="img" aria-label="{html.escape(text)}">{draw(finished)}<figcaption>{text}</figcaption></figure>'
        for draw, text in figures
    )
    head = "".join(f"<th>{name}</th>" for name in _HEADINGS)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row) + "</tr>" for row in _table_rows(finished)
    )
    return _PAGE.format(
        title=html.escape(experiment.title),
        about=html.escape(experiment.about),
        head=head,
        body=body,
        summary=html.escape(summary(finished)),
        figures=drawn,
    )


_HEADINGS = ("model", "", "accuracy", "95 % interval", "parameters", "samples", "seconds")

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 54rem; margin: 2rem auto;
  padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.2; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .35rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }}
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) {{ text-align: left; }}
th {{ font-weight: 600; border-bottom: 2px solid #888; }}
figure {{ margin: 2rem 0; break-inside: avoid; overflow-x: auto; }}
figure svg {{ width: 100%; min-width: 30rem; height: auto; }}
figcaption {{ color: #555; font-size: .9rem; }}
@media print {{ body {{ margin: 0; max-width: none; }} }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></div>
<p>{summary}</p>
{figures}
</body>
</html>
"""
