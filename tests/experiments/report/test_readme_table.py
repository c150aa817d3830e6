"""The README's table: between its marks, or one line about why not."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from looped.cli.main import main
from looped.utils.errors import InputError
from looped.experiments.report.compare import MEANINGS
from looped.experiments.report.document import Words
from looped.experiments.report.cells import measured_cells
from looped.experiments.report.build import check_readme, readme_part, report, write_readme
from looped.experiments.records import save_record
from looped.experiments.report.words import verdicts
from tests.experiments.fake_records import fake_records
from tests.experiments.report.pages import markdown_tables, percent
from tests.experiments.report.test_report import GPU, LAPTOP, of_cell, saved, sign, small, trained
from tests.paths import ROOT

README = "before ![](docs/table1-laptop.svg)\n<!-- results: here -->\nold\n<!-- end of results -->\nafter\n"
NAMED = README + "<!-- results: table1 gpu, by `looped paper report` -->\n<!-- end of results -->\nlast\n"


def test_the_readme_gets_its_tables_between_its_marks(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(NAMED)
    records = fake_records([LAPTOP, GPU])
    files = saved(records, tmp_path / "results")
    with pytest.raises(InputError, match="are not finished"):
        write_readme(LAPTOP, {}, readme)
    assert readme.read_text() == NAMED
    for _ in range(2):  # writing it again changes nothing
        write_readme(LAPTOP, records, readme)
        write_readme(GPU, records, readme)
        first, second = markdown_tables(readme.read_text())
        assert "old" not in readme.read_text()
        fields = [field for row in first[1:] for field in row[1:]]
        for cell, text in zip(LAPTOP.cells, fields, strict=True):
            assert f"{percent(trained(of_cell(cell, files)['test'])['accuracy'])} %" in text
            assert f"paper {percent(cell.paper)} %" in text
        for cell, (name, ours, paper, samples, seconds) in zip(GPU.cells, second[1:], strict=True):
            record = of_cell(cell, files)
            value, low, high = (trained(record["test"])[name] for name in ("accuracy", "low", "high"))
            assert name == f"{cell.row}, {cell.column}"
            assert ours.startswith(f"{percent(value)} % ({percent(low)} to {percent(high)})")
            assert paper == f"{percent(cell.paper)} %"
            assert (samples, seconds) == (f"{record['samples']:,}", f"{record['seconds']:,.0f}")
    text = readme.read_text()
    assert "| ED40 (n = 6) |" in text
    assert "paper 41.4 % (r=5) |" in text
    assert text.startswith("before ![](docs/table1-laptop.svg)\n<!-- results: here -->\n\nTable 1")
    assert text.endswith("\n<!-- end of results -->\nlast\n")
    (figure,) = (tmp_path / "docs").iterdir()  # the README shows no other
    assert figure.name == "table1-laptop.svg"
    ElementTree.fromstring(figure.read_text())


def test_the_figure_that_our_own_readme_shows_is_drawn_again(tmp_path):
    """By its own links and marks, over an older figure."""
    readme, figures = tmp_path / "README.md", tmp_path / "docs"
    readme.write_text((ROOT / "README.md").read_text())
    shown = re.findall(r"!\[.*?\]\((docs/.*?)\)", readme.read_text())
    figures.mkdir()
    for path in shown:
        (tmp_path / path).write_text("old")
    for chosen in (LAPTOP, GPU):
        write_readme(chosen, fake_records([chosen]), readme)
    drawn = {f"docs/{path.name}" for path in figures.iterdir() if path.read_text() != "old"}
    assert drawn == {"docs/table1-laptop.svg"} < set(shown)


def test_the_readme_shows_any_table(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(README)
    for chosen in (small("table2", "laptop"), small("perturbed", "laptop"), small("table2", "laptop", "*:TF*")):
        write_readme(chosen, fake_records([chosen]), readme)
        assert len(markdown_tables(readme.read_text())[0]) == 1 + len(chosen.rows)


TREES = small("table2", "gpu")


@pytest.mark.parametrize(
    ("chosen", "better"),
    [
        (LAPTOP, "Accuracy: higher is better."),
        (GPU, "Accuracy: higher is better."),
        (TREES, "Squared error over dimensions: lower is better."),
        (small("table1", "smoke", "ED40:*"), "Accuracy: higher is better."),
    ],
)
def test_the_readme_explains_the_signs_of_its_table_and_no_others(chosen, better):
    text = readme_part(chosen, measured_cells(chosen, fake_records([chosen])))
    (table,) = markdown_tables(text)
    used = {sign(field.replace("<br>", " ")) for row in table[1:] for field in row[1:]} - {""}
    (line,) = [line for line in text.splitlines() if line.endswith(better)]
    assert set("=▲▼✓✗?") & set(line) == used
    assert bool(used) == (chosen.scale != "smoke")
    # The report has the same words, below the table and among its rules.
    made = report([chosen], fake_records([chosen]))
    below, rules = made.sections[1].blocks[3], made.sections[-1].blocks[0].items
    assert isinstance(below, Words)
    for each in used:
        assert MEANINGS[each] in line
        assert MEANINGS[each] in below.text
        assert any(MEANINGS[each] in rule for rule in rules)


def test_the_same_sign_marks_the_better_number_of_accuracies_and_of_errors():
    """Numbers far above the paper's: good ones as accuracies, bad ones as errors."""
    for chosen, metric, wanted in ((GPU.select(["Sudoku:TF"]), "accuracy", "▲"), (TREES, "squared_error", "▼")):
        records = fake_records([chosen])
        for key, record in records.items():
            row = {**trained(record.test), metric: 0.9, "squared_error_over_dims": 0.9, "low": 0.89, "high": 0.91}
            loops = record.test["trained_loops"]
            rows = [row if one["loops"] == loops else one for one in record.test["rows"]]
            records[key] = replace(record, test={**record.test, "rows": rows})
        (table,) = markdown_tables(readme_part(chosen, measured_cells(chosen, records)))
        assert {sign(row[1]) for row in table[1:]} == {wanted}


def test_the_readme_lists_what_a_table_says_and_the_report_the_numbers():
    records = fake_records([LAPTOP])  # about the paper's numbers, so that these turned round contradict them
    backwards = replace(LAPTOP, cells=tuple(replace(cell, paper=1 - cell.paper) for cell in LAPTOP.cells))
    measured = measured_cells(backwards, records)
    told, full = verdicts(backwards, measured, brief=True), verdicts(backwards, measured)
    points = re.findall(r"^- (.*)$", readme_part(backwards, measured), flags=re.MULTILINE)
    assert points == told
    assert len(points) == len(full) > 3
    for point, whole in zip(points, full, strict=True):
        rows = re.findall(r"Against the paper: (\w+),", whole)
        assert point.count("Against the paper") == bool(rows)
        assert not rows or point.endswith(f" Against the paper: {' and '.join(rows)}.")
        assert len(point) < 220
    assert any("Against the paper: Sudoku and ED40." in point for point in points)
    assert sum(whole.count("(") for whole in full) > sum(point.count("(") for point in points)


@pytest.mark.parametrize("text", ["no marks", "<!-- results: a -->\n", "<!-- end of results -->\n<!-- results: -->\n"])
def test_a_readme_without_marks_is_left_alone(text, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(InputError, match="expected the lines"):
        write_readme(LAPTOP, fake_records([LAPTOP]), readme)
    assert readme.read_text() == text


@pytest.mark.parametrize("kind", ["missing", "folder", "latin", "marks"])
def test_a_readme_that_cannot_be_written_is_known_before(kind, tmp_path):
    readme = tmp_path / "README.md"
    if kind == "folder":
        readme.mkdir()
    elif kind != "missing":
        readme.write_bytes(README.encode() + (b"\xe9t\xe9" if kind == "latin" else b"<!-- results: again -->\n"))
    for check in (check_readme, write_readme):
        with pytest.raises(InputError) as caught:
            check(LAPTOP, fake_records([LAPTOP]), readme)
        assert str(readme) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert ("cannot read" in str(caught.value)) == (kind in ("missing", "folder"))
    assert list(tmp_path.iterdir()) == [readme] * readme.exists()


def test_a_table_is_not_put_into_the_place_of_another(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("<!-- results: table1 gpu -->\n<!-- end of results -->\n")
    with pytest.raises(InputError, match="table1 laptop"):
        write_readme(LAPTOP, fake_records([LAPTOP]), readme)


def test_where_nothing_is_finished_no_report_is_written_either(tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text(README)
    for record in fake_records([GPU]).values():
        save_record(tmp_path / "results" / record.path, record)
    places = [
        "--results",
        str(tmp_path / "results"),
        "--root",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "report"),
    ]
    assert main(["paper", "report", LAPTOP.id, "--scale", "laptop", *places, "--readme", str(readme)]) == 2
    assert "nothing to show in a README" in capsys.readouterr().err
    assert readme.read_text() == README
    assert not (tmp_path / "report").exists()
