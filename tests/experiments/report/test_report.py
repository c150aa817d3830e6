"""The report from records to the page: what it says is what the records say."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.cli.main import main
from looped.experiments.report import build as report_module
from looped.experiments.report.document import Document, Entry, Section, Table, Words, markdown
from looped.experiments.report.cells import measured_cells
from looped.experiments.report.page import page
from looped.experiments.tables import experiment
from looped.experiments.report.build import report, write_report
from looped.experiments.records import Record, run_key, save_record
from looped.experiments.spec import Cell, Experiment
from looped.experiments.report.theory_section import VARIANTS, errors
from looped.theory.report import report as theory_report
from tests.experiments.fake_records import fake_records
from tests.experiments.report.pages import Page, markdown_tables, percent

TITLE = "Table 1: reasoning tasks, more loops, and a timestep"


def small(name: str, scale: str, *patterns: str) -> Experiment:
    return experiment(name, scale).select(patterns)


LAPTOP = small("table1", "laptop", "Sudoku:*", "ED40:*")
GPU = small("table1", "gpu", "Sudoku:*", "ED40:*")


def saved(records: Mapping[str, Record], folder: Path) -> list[dict]:
    """The records as JSON files hold them, read without the code under test."""
    for record in records.values():
        save_record(folder / record.path, record)
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))]


def written(experiments: list[Experiment], records: Mapping[str, Record], out: Path) -> Page:
    return Page(write_report(experiments, records, out).read_text())


def of_cell(cell: Cell, files: list[dict], seed: int = 0) -> dict:
    (found,) = [one for one in files if one["config"] == replace(cell.config, seed=seed).to_json()]
    return found


def trained(evaluation: dict) -> dict:
    (row,) = [row for row in evaluation["rows"] if row["loops"] == evaluation["trained_loops"]]
    return row


def sign(text: str) -> str:
    """The sign of an entry such as `r=4 68.4 % ✓ paper 65.6 %`; empty where it has none."""
    found = re.search(r" ([=▲▼✓?]|✗\d+)(?= |$)", text)
    return found[1][0] if found else ""


def test_every_number_of_the_tables_is_in_the_json(tmp_path):
    records = fake_records([LAPTOP])
    files = saved(records, tmp_path / "results")
    made = written([LAPTOP], records, tmp_path / "report")

    runs = made.table("The runs behind")
    assert len(runs.rows) == len(LAPTOP.cells)
    for cell, row in zip(LAPTOP.cells, runs.rows, strict=True):
        one = of_cell(cell, files)
        at = trained(one["test"])
        assert row == [
            f"{cell.row}, {cell.column}",
            "0",
            f"{percent(at['accuracy'])} %",
            f"{percent(at['low'])} to {percent(at['high'])}",
            f"{percent(one['test']['baseline'])} %",
            f"{one['test']['size']:,}",
            f"{one['parameters']:,}",
            f"{one['samples']:,}",
            row[8],
            f"{one['seconds']:,.0f}",
            one["hardware"],
            "0123456789+",
        ]
        assert float(row[8]) == pytest.approx(one["flops"], rel=0.006)

    matrix = made.table(f"{TITLE}, laptop scale. Accuracy")
    assert [row[0].split()[0] for row in matrix.rows] == LAPTOP.rows
    shown = [text for row in matrix.rows for text in row[1:]]
    for cell, text in zip(LAPTOP.cells, shown, strict=True):
        ours, papers = re.fullmatch(r"([\d.]+) %.* paper ([\d.]+) % \([rL]=\d+\)", text).groups()
        assert ours == percent(trained(of_cell(cell, files)["test"])["accuracy"])
        assert papers == percent(cell.paper)


def test_markdown_has_the_same_tables_and_words(tmp_path):
    records = fake_records([LAPTOP])
    made = written([LAPTOP], records, tmp_path)
    text = (tmp_path / "report.md").read_text()
    tables = markdown_tables(text)
    assert len(tables) == len(made.tables)
    for table, other in zip(tables, made.tables, strict=True):
        assert [[field.replace("<br>", " ") for field in row] for row in table[1:]] == other.rows
        assert len({len(row) for row in table}) == 1
    for title in made.headings:
        assert f"# {title}\n" in text
    for image in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (tmp_path / image).exists()
    assert len(re.findall(r"!\[", text)) == len(list(tmp_path.glob("figures/*.svg")))


def test_the_page_is_well_formed_and_needs_nothing_else(tmp_path):
    everything = [LAPTOP, small("table2", "laptop"), small("table3", "laptop"), small("perturbed", "laptop")]
    text = write_report(everything, fake_records(everything), tmp_path).read_text()
    made = Page(text)
    assert made.references
    assert all(reference.startswith("#") for reference in made.references), "the page must need no network"
    assert {reference[1:] for reference in made.references} <= set(made.ids)
    assert len(set(made.ids)) == len(made.ids)
    assert not {"script", "link", "img", "iframe"} & made.tags
    assert not re.search(r"@import|url\((?!#)", text)
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert all(set(table.scopes) <= {"col", "colgroup", "row"} and table.caption for table in made.tables)
    assert all(re.search(r"\d", label) for label in made.labels), "an alt text states the numbers"
    for path in tmp_path.glob("figures/*.svg"):
        root = ElementTree.fromstring(path.read_text())
        assert root.tag.endswith("svg")
        assert root.get("aria-label")


def test_the_same_records_give_the_same_bytes(tmp_path):
    records = fake_records([LAPTOP])
    for folder in ("one", "two"):
        write_report([LAPTOP], records, tmp_path / folder)
    for path in (tmp_path / "one").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_a_number_without_a_finished_and_tested_run_cannot_appear():
    records = fake_records([LAPTOP])
    keys = [run_key(cell.config) for cell in LAPTOP.cells]
    records[keys[0]] = replace(records[keys[0]], test=None)
    records[keys[1]] = replace(records[keys[1]], finished=False, steps=3, note="out of memory")
    del records[keys[2]]
    assert [one.cell for one in measured_cells(LAPTOP, records)] == list(LAPTOP.cells[3:])
    made = Page(page(report([LAPTOP], records)))
    shown = {row[0] for row in made.table("The runs behind").rows}
    assert shown == {cell.label for cell in LAPTOP.cells[3:]}
    matrix = made.table(f"{TITLE}, laptop scale. Accuracy")
    assert matrix.rows[0][1] == "-"
    assert any("stopped at step 3 of" in text and "out of memory" in text for text in made.texts)
    assert any(f"3 of {len(LAPTOP.cells)} cells not run yet" in text for text in made.texts)
    # Whoever reads what was reproduced is told there, too, of how much.
    label = f"{TITLE} (laptop scale)"
    overview = [heading for heading in made.headings if heading.startswith(label)]
    assert overview == [f"{label}: 3 of {len(LAPTOP.cells)} cells not run yet", label]
    whole = Page(page(report([LAPTOP], fake_records([LAPTOP]))))
    assert not any("not run yet" in text for text in (*whole.headings, *whole.texts))


def test_a_seed_that_failed_is_told_also_where_others_finished():
    cell = LAPTOP.cells[0]
    records = fake_records([LAPTOP])
    other_seed = replace(records[run_key(cell.config)], config=replace(cell.config, seed=1))
    failed = replace(other_seed, finished=False, test=None, steps=7, note="out of memory")
    texts = Page(page(report([LAPTOP], {**records, failed.key: failed}))).texts
    steps = f"{cell.config.train.num_steps:,}"
    assert f"{cell.label}, seed 1: stopped at step 7 of {steps}, no result (out of memory)." in texts
    assert not any(f"{cell.label}, seed 0:" in text for text in texts)
    # Also where nothing of the experiment finished.
    (line,) = [text for text in Page(page(report([LAPTOP], {failed.key: failed}))).texts if "seed 1" in text]
    assert line.startswith(f"{TITLE} (laptop scale): no result yet.")


def test_a_note_on_several_runs_is_told_once():
    records = fake_records([LAPTOP])
    first, second, third = (cell for cell in LAPTOP.cells[:3])
    for cell, note in ((first, "on a shared card"), (second, "in two pieces"), (third, "on a shared card")):
        records[run_key(cell.config)] = replace(records[run_key(cell.config)], note=note)
    texts = Page(page(report([LAPTOP], records))).texts
    assert [text for text in texts if ", seed 0" in text] == [
        f"{first.label}, seed 0; {third.label}, seed 0: on a shared card.",
        f"{second.label}, seed 0: in two pieces.",
    ]


def test_another_problem_and_the_papers_own_loops_are_told(tmp_path):
    whole = [small("table1", "laptop"), *(small(one, "laptop") for one in ("table2", "table3", "correlation"))]
    made = written(whole, fake_records(whole), tmp_path)
    matrix = made.table(f"{TITLE}, laptop scale. Accuracy")
    names = [f"{name} ({size})" for name, size in
             (("Sudoku", "4x4"), ("Countdown", "3 numbers"), ("LCS60", "n = 8"), ("LCS100", "n = 12"),
              ("ED40", "n = 6"), ("ED60", "n = 8"))]  # fmt: skip
    rows = matrix.rows
    assert all(row[0].startswith(name) for row, name in zip(rows, names, strict=True))
    # As the paper's Table 1 has them: 6 or 12 layers, 4 to 32 or 5 to 100 loops.
    puzzles, strings = ("L=6", "r=4", "r=8", "r=16", "r=32"), ("L=12", "r=5", "r=10", "r=50", "r=100")
    for row, (layers, *loops) in zip(rows, (puzzles,) * 2 + (strings,) * 4, strict=True):
        for text, own in zip(row[1:], (layers, *loops, *loops), strict=True):
            assert text.endswith(f" % ({own})")
    assert rows[4][2].endswith("paper 41.4 % (r=5)")
    assert "n\u00a0=\u00a06" in (tmp_path / "index.html").read_text()  # on one line
    page = (tmp_path / "index.html").read_text()
    for name in names:  # the charts of a row, in their titles and in words
        assert f">{name}</text>" in page
        assert any(f"{name}: " in label for label in made.labels)
    text = (tmp_path / "report.md").read_text()
    assert "| ED40 (n = 6)" in text
    assert "paper 41.4 % (r=5) |" in text
    assert made.table("decision trees learned in context, laptop scale. ").rows[0][0].startswith("Test (")
    assert made.table("language models, laptop scale. ").rows[0][0].startswith("Train (text ")
    assert made.table("accuracy of edit distance 60, laptop scale. ").rows[0][0].startswith("Train (n = 8)")
    keys = {key for cell in whole[0].to_json()["cells"] for key in cell}
    assert keys == {"row", "column", "paper", "shows", "config"}
    own = written([GPU], fake_records([GPU]), tmp_path).table(f"{TITLE}, gpu scale. Accuracy")
    assert not any("(" in text for row in own.rows for text in row)


def test_the_pairs_of_the_paper_are_counted_once_per_scale(tmp_path):
    made = written([LAPTOP, GPU], fake_records([LAPTOP, GPU]), tmp_path)
    # Of nine models there are 36 pairs; Sudoku has four with the same 0.0, and its TF, so 10 of its pairs are equal.
    for scale in ("laptop", "gpu"):
        assert any(f"t {scale} scale, of {36 + 36 - 10} pairs of models" in text for text in made.texts)


def test_what_was_not_run_is_one_line_and_nothing_else(tmp_path):
    made = written([LAPTOP, small("table2", "laptop")], fake_records([LAPTOP]), tmp_path)
    lines = [text for text in made.texts if "Table 2" in text]
    assert lines == ["Table 2: decision trees learned in context (laptop scale): not run yet"]
    nothing = Page(page(report([LAPTOP], {})))
    assert ["Error in L2" in table.caption for table in nothing.tables] == [True]  # the theory's, which needs no run
    assert "No experiment has been run yet." in nothing.texts


def test_small_problems_are_compared_by_order_and_the_papers_own_by_number(tmp_path):
    made = written([LAPTOP, GPU], fake_records([LAPTOP, GPU]), tmp_path)
    small_ones = made.table(f"{TITLE}, laptop scale. Accuracy")
    own = made.table(f"{TITLE}, gpu scale. Accuracy")
    assert "of its own problem, which is another one" in small_ones.caption
    assert "another one" not in own.caption
    for table, signs, tones in ((small_ones, "✓✗?", {"same", "worse", "far-worse", "open"}),
                                (own, "=▲▼", {"same", "better", "far-better", "worse", "far-worse"})):  # fmt: skip
        fields = [text for row in table.rows for text in row[1:]]
        assert {sign(text) for text in fields} <= set(signs)
        assert {tone for row in table.tones[len(table.head) :] for tone in row[1:]} <= tones
    assert any("on the paper's own problems, 18 numbers" in text.lower() for text in made.texts)
    # The text of the language models is another one at gpu scale, so its perplexity is not the paper's number.
    table3 = small("table3", "gpu", "Test:*")
    made = Page(page(report([table3], fake_records([table3]))))
    matrix = made.table("language models, gpu scale. Perplexity")
    assert "of its own problem, which is another one" in matrix.caption
    assert matrix.rows[0][0].startswith("Test (text enwiki2015, 1024 tokens)")
    assert any("the paper's problems (text: another one)" in text for text in made.texts)
    fields = [text for row in made.table("language models, gpu scale. Perplexity").rows for text in row[1:]]
    assert {sign(text) for text in fields} <= set("✓✗?")


def test_cells_that_are_named_are_of_laptop_scale(tmp_path):
    """Most names of cells are of one scale alone, such as this one."""
    saved(fake_records([LAPTOP, GPU]), tmp_path / "results")
    words = ["paper", "report", "table1", "--cells", "ED40:looped r=4", "--results", str(tmp_path / "results"),
             "--root", str(tmp_path / "none"), "--out", str(tmp_path / "report")]  # fmt: skip
    assert main(words) == 0
    made = Page((tmp_path / "report" / "index.html").read_text())
    assert {found for table in made.tables for found in re.findall(r"(\w+) scale", table.caption)} == {"laptop"}
    assert len(made.table("The runs behind").rows) == 1


@pytest.mark.parametrize("names", [[], ["table2"]])
def test_what_only_smoke_runs_have_is_shown_and_else_named_as_left_out(names, tmp_path, capsys):
    smoke = small("table2", "smoke")
    saved(fake_records([smoke]), tmp_path / "results")
    words = ["paper", "report", *names, "--results", str(tmp_path / "results"), "--root", str(tmp_path / "none"),
             "--out", str(tmp_path / "report")]  # fmt: skip
    runs = "The runs behind Table 2: decision trees learned in context, smoke scale"
    assert main(words) == 0
    made = Page((tmp_path / "report" / "index.html").read_text())
    assert len(made.table(runs).rows) == len(smoke.cells)
    assert "No experiment has been run yet." not in made.texts
    assert capsys.readouterr().err == ""
    saved(fake_records([small("table2", "laptop")]), tmp_path / "results")
    assert main(words) == 0
    assert runs not in {table.caption for table in Page((tmp_path / "report" / "index.html").read_text()).tables}
    expected = "looped: left out what was run at smoke scale (table2): --scale smoke shows it\n"
    assert capsys.readouterr().err == expected


def test_a_smoke_run_is_no_evidence(tmp_path):
    smoke = small("table1", "smoke", "ED40:*")
    made = written([smoke], fake_records([smoke]), tmp_path)
    assert not any(sign(text) for table in made.tables for row in table.rows for text in row[1:])
    assert any("smoke" in text for text in made.texts)


def test_several_seeds_are_a_mean_and_one_is_called_one(tmp_path):
    one_row = small("table1", "laptop", "ED40:*")
    records = fake_records([one_row], num_seeds=3)
    files = saved(records, tmp_path / "results")
    made = written([one_row], records, tmp_path / "report")
    matrix = made.table("mean of 3 seeds")
    assert len(made.table("The runs behind").rows) == 3 * len(one_row.cells)
    for cell, text, one in zip(one_row.cells, matrix.rows[0][1:], measured_cells(one_row, records), strict=True):
        rows = [trained(of_cell(cell, files, seed)["test"]) for seed in range(3)]
        assert text.startswith(f"{percent(sum(row['accuracy'] for row in rows) / 3)} %")
        assert one.low == pytest.approx(min(row["low"] for row in rows), rel=1e-5)
        assert one.high == pytest.approx(max(row["high"] for row in rows), rel=1e-5)
    captions = {figure.name: figure.caption for figure in report([one_row], records).figures}
    assert {name.rpartition("laptop-")[2] for name, text in captions.items() if "the first is drawn" in text} == {
        "by-loop",
        "learning",
    }
    made = written([one_row], fake_records([one_row]), tmp_path / "report")
    assert any("one seed" in text.lower() for text in made.texts)
    assert not any("seeds" in text for text in made.texts)


def test_numbers_of_several_kinds_in_one_table(tmp_path):
    together = [
        small("table1", "laptop", "ED40:*"),
        *(small(one, "laptop") for one in ("table2", "table3", "perturbed")),
    ]
    cells = [replace(cell, row=f"{one.id} {cell.row}") for one in together for cell in one.cells]
    mixed = Experiment("mixed", "Everything | at <once>", "Five kinds of numbers.", "laptop", tuple(cells))
    records = fake_records([small("perturbed", "laptop"), mixed])
    files = saved(records, tmp_path / "results")
    made = written([mixed], records, tmp_path / "report")
    assert any("Everything | at <once>" in heading for heading in made.headings)
    shown = {row[0]: row for row in made.table("The runs behind").rows}
    assert len(shown) == len(mixed.cells)
    for cell in mixed.cells:
        record, text = of_cell(cell, files), shown[cell.label][2]
        if cell.shows == "extra.continuity.coefficient":
            wanted, kind = record["extra"]["continuity"]["coefficient"], "continuity coefficient"
            assert shown[cell.label][3] == "none"
        elif cell.shows == "train.loss":
            wanted, kind = trained(record["train"])["loss"], "cross-entropy"
        elif cell.shows == "test.squared_error_over_dims":
            wanted, kind = trained(record["test"])["squared_error_over_dims"], "squared error over dimensions"
        elif record["test"]["metric"] == "perplexity":
            wanted, kind = trained(record[cell.shows])["perplexity"], "perplexity"
        else:
            wanted, kind = 100 * trained(record["test"])["accuracy"], "% accuracy"
        number, _, rest = text.partition(" ")
        assert float(number) == pytest.approx(wanted, rel=0.006)
        assert rest == kind


def test_training_against_test_is_told_with_its_correlation(tmp_path):
    import numpy as np

    chosen = small("correlation", "laptop")
    records = fake_records([chosen])
    files = saved(records, tmp_path / "results")
    made = written([chosen], records, tmp_path / "report")
    pairs = [(trained(one["train"])["accuracy"], trained(one["test"])["accuracy"]) for one in files]
    wanted = f"correlation {np.corrcoef(np.array(pairs).T)[0, 1]:.3f} over {len(pairs)} runs"
    assert any(wanted in text for text in made.texts)


def test_the_theory_is_the_theorys_own():
    for variant in VARIANTS:
        first = errors(variant)[0]
        wanted = theory_report("attn", 1, 2, 2, variant, "centre", 6)
        assert first == (wanted.size.loops, wanted.measured_lp, wanted.bound_total)
        assert all(point.measured <= point.bound for point in errors(variant))
    (table,) = Page(page(report([], {}))).tables
    for row, variant in zip(table.rows, VARIANTS, strict=True):
        for (loops, error, bound), point in zip(
            (row[1:4], row[4:]), (errors(variant)[0], errors(variant)[-1]), strict=True
        ):
            assert (int(loops), float(error)) == (point.loops, pytest.approx(point.measured, abs=6e-4))
            assert float(bound) == pytest.approx(point.bound, abs=6e-3)


def test_a_report_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    write_report([LAPTOP], fake_records([LAPTOP]), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}

    def killed(document):
        raise KeyboardInterrupt

    monkeypatch.setattr(report_module, "page", killed)
    with pytest.raises(KeyboardInterrupt):
        write_report([LAPTOP], fake_records([LAPTOP]), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


words = st.text(st.characters(exclude_categories=("C",), exclude_characters="`\u00a0"), max_size=30)


@settings(max_examples=200)
@given(words, words, words)
def test_any_text_comes_through_both_forms(title, text, note):
    table = Table("caption", ("", "one"), ((Entry(text), Entry(text, below=note, sign="=")),))
    document = Document(title, (text,), (Section(title, "a", (Words(text), table)),))
    made = Page(page(document))
    plain = " ".join(text.replace("\u00a0", " ").split())
    assert made.tables[0].rows[0][0] == plain
    assert made.tables[0].rows[0][1] == " ".join(f"{plain} = {note}".split())
    (rows,) = markdown_tables(markdown(document))
    assert [len(row) for row in rows] == [2, 2]
