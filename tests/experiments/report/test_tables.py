"""The tables of the report as data."""

from dataclasses import replace

from looped.experiments.records import Record, run_key
from looped.experiments.report.compare import cell_results
from looped.experiments.report.tables import (
    Table,
    matrix,
    other_runs,
    other_runs_table,
    problem_name,
    rows_table,
    runs_table,
    tries_table,
)
from looped.experiments.spec import Experiment
from looped.experiments.tables import experiment
from looped.recipes import recipe
from tests.experiments.fake_records import fake_record, fake_records

LAPTOP = experiment("table1", "laptop").select(["Sudoku:*", "ED40:*"])
GPU = experiment("table1", "gpu").select(["ED40:*"])


def texts(table: Table) -> list[list[str]]:
    return [[entry.text for entry in row] for row in table.rows]


def accuracy_of(record: Record, value: float, low: float, high: float) -> Record:
    """Return the record with this accuracy at the trained loops."""
    trained = replace(record.test.trained, metrics={"accuracy": value}, low=low, high=high)
    return replace(record, test=replace(record.test, rows=(trained,)))


def test_rows_table_gives_every_recipe_a_column_of_its_own():
    dense_cells = tuple(
        replace(cell, recipe="dense", config=replace(cell.config, train=cell.config.train.override(batch_size=96)))
        for cell in GPU.cells[:2]
    )
    both = replace(GPU, cells=(*GPU.cells, *dense_cells))
    records = {
        run_key(cell.config): accuracy_of(fake_record(cell.config), value, value - 0.01, value + 0.01)
        for cell, value in ((GPU.cells[0], 0.30), (GPU.cells[2], 0.579), (dense_cells[0], 0.80), (dense_cells[1], 0.10))
    }
    table = rows_table(["ED40"], both.cells, cell_results(both, records))
    assert table.head == ("", "paper", "ours, fast", "ours, dense")
    assert texts(table)[:4] == [
        ["standard", "54.2", "30.0", "80.0"],
        ["looped r=5", "41.4", "", "10.0"],
        ["looped r=10", "57.9", "57.9", ""],
        ["looped r=50", "85.4", "", ""],
    ]
    assert [[entry.mark for entry in row[2:]] for row in table.rows[:3]] == [
        ["worse", "better"],
        ["", "worse"],
        ["agrees", ""],
    ]


def test_matrix_of_small_problems_has_our_numbers_and_no_marks():
    records = fake_records([LAPTOP])
    results = cell_results(LAPTOP, records)
    table = matrix(LAPTOP.cells, results)
    assert [row[0].text for row in table.rows] == ["Sudoku (4x4)", "ED40 (n = 6)"]
    assert table.head[1:] == tuple(cell.column for cell in LAPTOP.cells[:9])
    assert not any(entry.mark for row in table.rows for entry in row)
    shown = [float(text) for row in texts(table) for text in row[1:]]
    assert shown == [round(100 * one.value + 1e-9, 1) for one in results]


def test_runs_table_has_a_row_per_seed_with_its_cost():
    table = experiment("table1", "gpu").select(["ED40:looped r=10"])
    records = fake_records([table], num_seeds=2)
    first, second = (
        accuracy_of(record, value, value - 0.1, value + 0.1)
        for record, value in zip(records.values(), (0.5, 0.6), strict=True)
    )
    made = runs_table(cell_results(table, {first.key: first, second.key: second}))
    rows = [dict(zip(made.head, row, strict=True)) for row in texts(made)]
    assert [row["ours"] for row in rows] == ["50.0 %", "60.0 %"]
    assert {row["difference"] for row in rows} == {"\N{MINUS SIGN}2.9"}  # of the mean, 55.0, from the paper's 57.9
    assert {(row["paper"], row["verdict"], row["recipe"]) for row in rows} == {("57.9", "agrees", "fast")}
    assert rows[0]["samples"] == f"{first.samples:,}"
    assert rows[0]["commit"] == "0123456789+"


def test_problem_name_is_the_size_in_training():
    assert problem_name(LAPTOP.cells[0].config) == "4x4"
    assert problem_name(GPU.cells[0].config) == "n = 40"
    assert problem_name(experiment("length", "gpu").cells[0].config) == "n = 40"  # the task has room for 80


# Runs that no table shows.


def changed(pattern: str, **train) -> Record:
    (cell,) = LAPTOP.select([pattern]).cells
    return fake_record(replace(cell.config, train=cell.config.train.override(**train)), 0.5)


def row_of(record: Record, known: Experiment = LAPTOP) -> dict[str, str]:
    table = other_runs_table([record], [known])
    (row,) = texts(table)
    return dict(zip(table.head, row, strict=True))


def test_other_runs_are_those_of_no_cell():
    shown = fake_records([LAPTOP], num_seeds=2)
    other = changed("ED40:looped r=4", muon_learning_rate=0.5)
    assert other_runs([*shown.values(), other], [LAPTOP]) == [other]


def test_other_runs_table_names_the_most_similar_cell_and_the_differences():
    found = row_of(changed("ED40:modulated r=8", muon_learning_rate=0.5))
    assert found["most similar cell"] == "ED40, modulated r=8 (table1, laptop)"
    assert "muon_learning_rate 0.5 (cell: 0.01)" in found["differences"]
    assert ";" not in found["differences"]


def test_other_runs_table_prefers_a_cell_of_the_same_problem_and_loops():
    """Even if a cell of another problem, or with other loops, differs in fewer settings."""
    made = experiment("table1", "laptop")
    for patterns in (["LCS60:standard", "LCS100:standard"], ["ED40:looped r=1", "ED40:looped r=8"]):
        other, own = made.select(patterns).cells
        settings = other.config.train.override(num_steps=7, batch_size=3)
        near = replace(other, config=replace(other.config, train=settings))
        for cells in ((near, own), (own, near)):
            found = row_of(fake_record(replace(own.config, train=settings), 0.5), replace(made, cells=cells))
            assert found["most similar cell"].startswith(own.label)


def test_other_runs_table_without_a_test_shows_the_last_validation_or_loss():
    stopped = replace(changed("ED40:looped r=8", learning_rate=1.0), finished=False, test=None, steps=7, note="spiked")
    points = [{"samples": 10, "loss": 2.0, "validation": 0.25}, {"samples": 20, "loss": 3.125}]
    found = row_of(replace(stopped, curve=points))
    assert (found["steps"], found["note"]) == ("7 of 2,700", "spiked")
    assert found["result"] == "validation accuracy 25.0 % after 10 samples"
    assert row_of(replace(stopped, curve=points[1:]))["result"] == "training loss 3.12 after 20 samples"
    assert row_of(fake_record(recipe("laptop", "lcs"), 0.5))["differences"] == ""


def test_tries_table_counts_runs_by_recipe_and_tells_where_the_models_differ():
    dense = experiment("table1-dense", "gpu").select(["ED40:*"])
    cells = [cell for each in (GPU, dense) for cell in each.cells]
    records = fake_records([GPU.select(["*r=50", "*standard", "*looped r=5"]), dense.select(["*r=50"])])
    modulated = GPU.select(["*modulated r=50"]).cells[0].config
    other = replace(modulated, train=modulated.train.override(muon_learning_rate=0.5))
    stopped = replace(modulated, train=modulated.train.override(muon_learning_rate=0.7))
    other_loops = replace(modulated, model=replace(modulated.model, num_loops=20))
    other_model = replace(modulated, model=replace(modulated.model, conditioning="gate"))
    more = [fake_record(config, 0.5) for config in (other, replace(other, seed=1), stopped, other_loops, other_model)]
    more[2] = replace(more[2], finished=False, test=None, note="spiked")
    table = tries_table(cells, [*records.values(), *more])
    assert table.head == ("", "standard", "looped", "modulated", "equal")
    assert texts(table) == [
        ["ED40", "1 fast", "", "", ""],
        ["ED40, r=5", "", "1 fast", "", "no"],
        ["ED40, r=50", "", "1 fast, 1 dense", "1 fast, 1 dense, 2 other, 1 given up", "no"],
    ]


def test_tries_table_counts_every_seed_and_a_shared_run_for_the_first_experiment():
    """At laptop scale `dense` and `warm` are the same runs."""
    chosen = [experiment(name, "laptop").select(["ED40:*r=8"]) for name in ("table1-dense", "table1-warm")]
    records = fake_records(chosen, num_seeds=3)
    table = tries_table([cell for each in chosen for cell in each.cells], records.values())
    assert texts(table) == [["ED40, r=8", "", "3 dense", "3 dense", "yes"]]
