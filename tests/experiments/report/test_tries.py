"""Runs that no table shows are told of, beside the cell that they differ least from."""

from dataclasses import replace

from looped.cli.main import main
from looped.experiments.tables import experiment
from looped.experiments.report.build import report
from looped.experiments.records import Record, run_key
from looped.experiments.spec import Experiment
from looped.experiments.report.tries import HEAD, other_tries, tries_section
from looped.recipes import recipe
from tests.experiments.fake_records import fake_record, fake_records
from tests.experiments.report.pages import percent
from tests.experiments.report.test_report import LAPTOP, saved, trained


def changed(pattern: str, **train) -> Record:
    """The record of a cell's run with other settings."""
    (cell,) = LAPTOP.select([pattern]).cells
    return fake_record(replace(cell.config, train=cell.config.train.override(**train)), 0.5)


def row_of(record: Record, known: Experiment = LAPTOP) -> dict[str, str]:
    ((_, table),) = [tries_section([record], [known]).blocks]
    (row,) = table.rows
    return dict(zip(HEAD, (entry.text for entry in row), strict=True))


def test_only_what_is_in_no_table_is_another_try():
    shown = fake_records([LAPTOP], num_seeds=2)
    other = changed("ED40:looped r=4", muon_learning_rate=0.5)
    everything = {**shown, run_key(other.config): other}
    assert other_tries(everything.values(), [LAPTOP]) == [other]
    anchors = [section.anchor for section in report([LAPTOP], everything, [LAPTOP]).sections]
    assert anchors.count("tries") == 1
    for without in (report([LAPTOP], everything), report([LAPTOP], shown, [LAPTOP])):
        assert "tries" not in [section.anchor for section in without.sections]


def test_a_try_names_its_cell_and_every_setting_that_differs():
    record = changed("ED40:timestep r=8", muon_learning_rate=0.5, schedule="cosine")
    found = row_of(record)
    assert found["try"] == "ED40, timestep r=8 (table1, laptop scale)"
    assert found["what differs"] == "train.optimizer.muon_learning_rate 0.5, not 0.01; train.schedule cosine, not linear"
    row = trained(record.test)
    value, low, high = (percent(row[name]) for name in ("accuracy", "low", "high"))
    assert found["result"] == f"accuracy {value} % ({low} to {high})"


def test_a_try_is_put_beside_a_cell_of_its_own_problem():
    """Even where a cell of another problem has fewer other settings: here all but one of them."""
    made = experiment("table1", "laptop")
    shorter, longer = made.select(["LCS60:TF"]).cells[0], made.select(["LCS100:TF"]).cells[0]
    assert shorter.config.task != longer.config.task
    settings = shorter.config.train.override(num_steps=7, batch_size=3, learning_rate=0.5)
    near = replace(shorter, config=replace(shorter.config, train=settings))
    for first, second in ((near, longer), (longer, near)):
        known = replace(made, cells=(first, second))
        found = row_of(fake_record(replace(longer.config, train=settings), 0.5), known)
        assert found["try"] == "LCS100, TF (table1, laptop scale)"
        assert "task." not in found["what differs"]
    # Where there is no cell of its problem, the nearest problem is named with what differs.
    found = row_of(fake_record(replace(longer.config, train=settings), 0.5), replace(made, cells=(near,)))
    assert found["try"] == "LCS60, TF (table1, laptop scale)"
    assert f"task.length {longer.config.task.length}, not {shorter.config.task.length}" in found["what differs"]


def test_a_try_is_put_beside_a_cell_of_its_own_loops():
    made = experiment("table1", "laptop").select(["ED40:looped r=*"])
    few, *_, many = made.cells
    settings = few.config.train.override(num_steps=7, batch_size=3)
    near = replace(few, config=replace(few.config, train=settings))
    for cells in ((near, many), (many, near)):
        found = row_of(fake_record(replace(many.config, train=settings), 0.5), replace(made, cells=cells))
        assert found["try"] == f"{many.label} (table1, laptop scale)"


def test_a_try_without_a_test_says_what_its_training_knew():
    stopped = replace(changed("ED40:looped r=8", learning_rate=1.0), finished=False, test=None, steps=7, note="spiked")
    points = [{"samples": 10, "loss": 2.0, "validation": 0.25}, {"samples": 20, "loss": 3.125}]
    found = row_of(replace(stopped, curve=points))
    assert found["steps"] == "7 of 2,700"
    assert (found["result"], found["note"]) == ("accuracy 25.0 % on validation data, after 10 samples", "spiked")
    assert row_of(replace(stopped, curve=points[1:]))["result"] == "loss 3.12 at the end"
    assert row_of(replace(stopped, curve=[{"samples": 20}]))["result"] == "nothing"


def test_a_try_of_a_task_without_a_table():
    record = fake_record(recipe("laptop", "lcs"), 0.5)
    assert row_of(record)["try"] == record.config.folder_name
    assert row_of(record)["what differs"] == "no cell is like it"


def test_the_whole_report_tells_of_them_and_one_experiment_does_not(tmp_path, capsys):
    other = changed("ED40:looped r=4", muon_learning_rate=0.5)
    smoke = fake_records([experiment("table1", "smoke").select(["ED60:timestep r=3"])])
    saved({run_key(other.config): other, **fake_records([LAPTOP]), **smoke}, tmp_path / "results")
    where = ["--results", str(tmp_path / "results"), "--root", str(tmp_path), "--out", str(tmp_path / "report")]
    for names, told in (([], True), (["table1"], False), (["table1", "--cells", "ED40:*"], False)):
        assert main(["paper", "report", *names, *where]) == 0
        text = (tmp_path / "report" / "report.md").read_text()
        assert ("muon_learning_rate 0.5, not 0.01" in text) == told
        section = text.partition("## What else was tried")[2].partition("\n## ")[0]
        assert section.count("\n| ") == (3 if told else 0)  # two of the head, one try: smoke scale is for tests
    # A pattern of one scale's columns.
    assert main(["paper", "report", "table1", "--scale", "smoke", "--cells", "ED60:timestep r=3", *where]) == 0
    capsys.readouterr()
