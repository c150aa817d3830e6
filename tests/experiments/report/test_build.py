"""The report from records to the page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from looped.cli.main import main
from looped.experiments.records import Record, run_key, save_record
from looped.experiments.report import build
from looped.experiments.report.build import (
    Report,
    build_report,
    read_findings,
    reported_experiments,
    write_report,
)
from looped.experiments.spec import Experiment
from looped.experiments.tables import experiment
from tests.experiments.fake_records import fake_record, fake_records
from tests.experiments.report.pages import Page
from tests.refusal import refused

LAPTOP = experiment("table1", "laptop").select(["Sudoku:*", "ED40:*"])
GPU = experiment("table1", "gpu").select(["Sudoku:*", "ED40:*"])
DEPTH = experiment("depth", "laptop")


def page_of(report: Report, out: Path) -> Page:
    return Page(write_report(report, out).read_text())


@pytest.fixture(scope="module")
def everything() -> list[Experiment]:
    names = ("table2", "table3", "correlation", "perturbed")
    return [GPU, LAPTOP, *(experiment(name, "gpu") for name in names), experiment("conditioning", "gpu"), DEPTH]


@pytest.fixture(scope="module")
def whole(everything) -> Report:
    other = fake_record(replace(LAPTOP.cells[0].config, train=LAPTOP.cells[0].config.train.override(num_steps=7)))
    return build_report({**fake_records(everything), run_key(other.config): other}, everything)


def test_report_sorts_experiments_into_tables_studies_and_small_problems(whole):
    assert [one.anchor for one in whole.tables] == ["table1", "table2", "table3", "correlation", "perturbed"]
    assert [one.anchor for one in whole.studies] == ["conditioning", "depth"]
    assert [one.anchor for one in whole.small] == ["table1-laptop"]
    assert [panel.title for panel in whole.tables[0].panels] == ["Sudoku", "ED40"]
    assert len(whole.other.rows) == 1


def test_report_judges_full_size_numbers_only(whole):
    verdicts = {one.anchor: {result.verdict for result in one.results} for one in (*whole.tables, *whole.small)}
    assert verdicts["table1"] <= {"agrees", "better", "worse"}
    assert verdicts["table1-laptop"] == verdicts["table3"] == {"not comparable"}
    facts = {name: number for number, name in whole.facts}
    compared = len(GPU.cells) + 3  # Tables 1 and 2
    assert facts["numbers compared with the paper"] == str(compared)
    assert sum(int(facts[name]) for name in ("agree", "are better", "are worse")) == compared


def test_report_lists_experiments_without_results_as_missing():
    report = build_report(fake_records([GPU]), [GPU, DEPTH])
    assert report.missing == (DEPTH.title,)
    assert report.studies == ()


def test_report_of_own_runs_groups_them_by_problem():
    config = replace(LAPTOP.cells[-1].config, task=replace(LAPTOP.cells[-1].config.task, length=11))
    looped = replace(config, model=replace(config.model, block="looped"))
    slower = replace(config, train=config.train.override(learning_rate=0.5))
    other_seed = replace(config, seed=1)
    puzzle = LAPTOP.cells[0].config
    records = {run_key(each): fake_record(each, 0.5) for each in (config, looped, slower, other_seed, puzzle)}
    report = build_report(records)
    sections = {section.title: section for section in report.tables}
    assert sections.keys() == {"edit-distance, n = 11", "sudoku, 4x4"}
    strings = sections["edit-distance, n = 11"]
    cells = {one.cell.label: len(one.records) for one in strings.results}
    assert cells == {"n = 11, modulated r=8": 2, "n = 11, looped r=8": 1, "variant 2, modulated r=8": 1}
    ((_, settings),) = [(title, table) for title, table in strings.tables if title == "Settings"]
    assert [("learning_rate 0.5" in row[1].text) for row in settings.rows] == [False, False, True]
    assert all(result.verdict is None for result in strings.results)
    assert report.other is None


def test_page_is_well_formed_and_needs_no_network(whole, tmp_path):
    text = write_report(whole, tmp_path).read_text()
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    assert not {"script", "link", "img", "iframe"} & page.tags
    assert not re.search(r"@import|url\((?!#)", text)
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink",
    }  # fmt: skip
    assert len(list(tmp_path.iterdir())) == 1


def test_page_explains_itself_first_and_folds_all_but_tables_and_studies(whole, tmp_path):
    page = page_of(whole, tmp_path)
    assert page.headings[1] == "How to read this page"
    assert [name for name in page.headings if name.startswith(("Table 1", "Layers", "More"))] == [
        "Table 1: reasoning tasks", DEPTH.title, "More",
    ]  # fmt: skip
    visible, hidden = " ".join(page.visible), " ".join(page.hidden)
    assert "87.9" in visible  # the paper's number for looped Sudoku
    for folded in ("0123456789+", "num_steps 7 (cell: 2700)", "Sudoku, looped r=32"):  # commits, other runs, all runs
        assert folded in hidden
        assert folded not in visible
    assert len(page.visible) < 600  # pieces of text: the page stays readable


def test_page_explains_the_marker_and_the_settings_of_every_recipe_that_it_shows(tmp_path):
    group = [experiment(name, "gpu").select(["ED40:*"]) for name in ("table1", "table1-long", "table1-warm")]
    page = page_of(build_report(fake_records(group), group), tmp_path)
    text = " ".join(page.visible).partition("How to read this page")[2].partition("Table 1")[0]
    assert "plus signs long , diamonds warm ." in text
    assert "long is dense with four times the steps" in text
    assert "squares" not in text  # no run has the recipe dense
    assert page.tables[0][0] == ["", "paper", "ours, fast", "ours, long", "ours, warm"]


def test_further_test_sets_leave_out_the_test_after_many_loops(tmp_path):
    """The runs that the dense table and the study of many loops share have such sets."""
    study = experiment("loops-dense", "gpu")
    dense = experiment("table1-dense", "gpu").select(["ED40:*r=50"])
    section = build_report(fake_records([study]), [dense]).tables[0]
    (record,) = {run.key: run for one in section.results for run in one.records if one.block == "looped"}.values()
    assert "many loops" in record.sets
    assert not [panel for panel in section.further if "many loops" in panel.svg]


def test_page_opens_small_problems_if_there_is_nothing_else(tmp_path):
    text = write_report(build_report(fake_records([LAPTOP]), [LAPTOP]), tmp_path).read_text()
    assert '<details open id="table1-laptop">' in text


def test_page_escapes_all_texts(tmp_path):
    evil = "<b>&\"'|`"
    cell = replace(GPU.cells[0], row=evil, column=f"looped {evil}")
    made = replace(GPU, title=evil, about=evil, cells=(cell,))
    records = {key: replace(one, note=evil, hardware=evil) for key, one in fake_records([made]).items()}
    report = build_report(records, [made], title=evil, findings={"table1": {"full": evil}})
    page = page_of(report, tmp_path)
    assert "b" not in {tag for tag in page.tags if tag == "b"} or page.visible.count(evil) >= 4
    assert page.headings[0] == evil
    for texts in (page.visible, page.hidden):
        assert evil in texts
    assert evil in " ".join(field for table in page.tables for row in table for field in row)


def test_page_of_the_same_records_has_the_same_bytes(tmp_path):
    records = fake_records([LAPTOP])
    first, second = (
        write_report(build_report(records, [LAPTOP]), tmp_path / name).read_bytes() for name in ("one", "two")
    )
    assert first == second


def test_write_report_that_fails_keeps_the_old_page(tmp_path, monkeypatch):
    report = build_report(fake_records([LAPTOP]), [LAPTOP])
    page = write_report(report, tmp_path)
    before = page.read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "recipes_of", killed)
    with pytest.raises(KeyboardInterrupt):
        write_report(report, tmp_path)
    assert page.read_bytes() == before


def test_reported_experiments_are_those_with_results_and_smoke_only_alone():
    smoke, laptop, gpu = (experiment("table2", scale) for scale in ("smoke", "laptop", "gpu"))

    def scales(*run: Experiment) -> list[str]:
        return [one.scale for one in reported_experiments(fake_records(run), ["table2"])]

    assert scales(smoke) == ["smoke"]
    assert scales(smoke, laptop) == ["laptop"]
    assert scales(smoke, gpu) == ["gpu", "laptop"]  # the second is then missing
    assert [one.scale for one in reported_experiments({}, ["table2"], "paper")] == ["paper"]


def save(records: dict[str, Record], folder: Path) -> list[str]:
    for record in records.values():
        save_record(folder / "results" / record.path, record)
    return ["--results", str(folder / "results"), "--root", str(folder / "none"), "--out", str(folder / "report")]


def test_report_command_with_cells_uses_laptop_scale(tmp_path, capsys):
    places = save(fake_records([LAPTOP, GPU]), tmp_path)
    assert main(["paper", "report", "table1", "--cells", "ED40:looped r=4", *places]) == 0
    page = Page((tmp_path / "report" / "index.html").read_text())
    assert "Table 1: reasoning tasks, on small problems" in page.visible
    assert len(next(table for table in page.tables if "commit" in table[0])) == 2  # the head and one run
    capsys.readouterr()


def test_report_command_lists_other_runs_only_in_a_whole_report(tmp_path, capsys):
    cell = LAPTOP.cells[0]
    other = fake_record(replace(cell.config, train=cell.config.train.override(num_steps=7)), 0.5)
    places = save({run_key(other.config): other, **fake_records([LAPTOP])}, tmp_path)
    for names, listed in (([], True), (["table1"], False)):
        assert main(["paper", "report", *names, *places]) == 0
        page = (tmp_path / "report" / "index.html").read_text()
        assert ("num_steps 7 (cell: 2700)" in page) == listed
    capsys.readouterr()


def test_findings_stand_beside_their_table(tmp_path, capsys):
    places = save(fake_records([GPU]), tmp_path)
    (tmp_path / "results" / "findings.toml").write_text('[table1]\nfull = """\nIt *works*\n"""\n')
    assert main(["paper", "report", "table1", *places]) == 0
    assert "It *works*" in Page((tmp_path / "report" / "index.html").read_text()).visible
    capsys.readouterr()
    (tmp_path / "results" / "findings.toml").write_text("table1 = [")
    with refused(tmp_path / "results" / "findings.toml"):
        read_findings(tmp_path / "results")
    assert read_findings(tmp_path) == {}
