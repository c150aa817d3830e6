"""Verdicts on numbers made by hand."""

from dataclasses import replace

import pytest

from looped.config import RunConfig
from looped.experiments.records import Value, run_key
from looped.experiments.report.compare import CellResult, best_results, cell_results
from looped.experiments.spec import Cell
from looped.experiments.tables import experiment
from looped.tasks import TASKS
from tests.experiments.fake_records import fake_record, fake_records

ACCURACY = RunConfig(TASKS["edit-distance"](length=4))
ERROR = RunConfig(TASKS["decision-tree"]())


def result(value, low, high, paper=None, config=ACCURACY, **cell) -> CellResult:
    made = Cell("ED", "looped r=1", config, paper, **cell)
    return CellResult(made, (fake_record(config),), (Value(value, low, high),))


@pytest.mark.parametrize(
    ("paper", "config", "verdict"),
    [
        (0.50, ACCURACY, "agrees"),
        (0.48, ACCURACY, "agrees"),  # the end of the interval belongs to it
        (0.47, ACCURACY, "better"),
        (0.53, ACCURACY, "worse"),
        (0.53, ERROR, "better"),  # a lower error is better
        (0.40, ERROR, "worse"),
        (None, ACCURACY, None),
    ],
)
def test_verdict_of_a_number_follows_from_its_interval(paper, config, verdict):
    found = result(0.5, 0.48, 0.52, paper, config)
    assert found.verdict == verdict
    assert found.difference == (None if paper is None else pytest.approx(0.5 - paper))


@pytest.mark.parametrize(
    ("interval", "paper", "config", "verdict"),
    [
        ((0.0002, 0.0010), 0.0, ACCURACY, "agrees"),  # printed as 0.0 %, so below 0.05 %
        ((0.0006, 0.0014), 0.0, ACCURACY, "better"),
        ((0.7004, 0.7040), 0.700, ACCURACY, "agrees"),  # printed as 70.0 %
        ((0.7006, 0.7040), 0.700, ACCURACY, "better"),
        ((0.00174, 0.0018), 1.7e-3, ERROR, "agrees"),  # up to 1.75e-3
        ((0.00176, 0.0018), 1.7e-3, ERROR, "worse"),
        ((15.94, 16.2), 15.9, ERROR, "agrees"),
        ((15.96, 16.2), 15.9, ERROR, "worse"),
    ],
)
def test_verdict_allows_for_the_rounding_of_printed_numbers(interval, paper, config, verdict):
    low, high = interval
    assert result((low + high) / 2, low, high, paper, config).verdict == verdict


def test_verdict_without_interval_or_for_another_problem_is_no_judgement():
    assert result(0.5, None, None, 0.5).verdict == "inconclusive"
    other = result(0.9, 0.88, 0.92, 0.1, comparable=False)
    assert (other.verdict, other.difference) == ("not comparable", None)


def test_only_full_size_experiments_are_comparable():
    def comparable(name: str, scale: str) -> bool:
        (answer,) = {cell.comparable for cell in experiment(name, scale).cells}
        return answer

    for name in ("table1", "table2"):
        assert {scale: comparable(name, scale) for scale in ("smoke", "laptop", "gpu", "paper")} == {
            "smoke": False, "laptop": False, "gpu": True, "paper": True,
        }  # fmt: skip
    assert not comparable("table3", "gpu")  # another text
    assert comparable("table3", "paper")


def test_cell_results_need_a_finished_and_tested_run():
    table = experiment("table1", "laptop").select(["ED40:*"])
    records = fake_records([table])
    keys = [run_key(cell.config) for cell in table.cells]
    records[keys[0]] = replace(records[keys[0]], test=None)
    records[keys[1]] = replace(records[keys[1]], finished=False, steps=3, note="out of memory")
    del records[keys[2]]
    assert [one.cell for one in cell_results(table, records)] == list(table.cells[3:])


def test_cell_results_of_several_seeds_are_a_mean_within_all_intervals():
    table = experiment("table1", "laptop").select(["ED40:looped r=8"])
    records = fake_records([table], num_seeds=3)
    (found,) = cell_results(table, records)
    rows = [one.test.at(8) for one in records.values()]
    assert [record.config.seed for record in found.records] == [0, 1, 2]
    assert found.value == pytest.approx(sum(row.metrics["accuracy"] for row in rows) / 3)
    assert (found.low, found.high) == (min(row.low for row in rows), max(row.high for row in rows))


@pytest.mark.parametrize("name", ["table1", "table2"])
@pytest.mark.parametrize("first_is_better", [True, False])
def test_best_results_are_chosen_by_validation_and_not_by_the_test(name, first_is_better):
    """The other recipe may have the better test. Lower validations are better in Table 2."""
    one = experiment(name, "gpu")
    one = replace(one, cells=one.cells[:1])
    longer = replace(one.cells[0].config, train=one.cells[0].config.train.override(num_steps=77))
    other = replace(one, id="other", cells=(replace(one.cells[0], config=longer, recipe="longer"),))
    records = {run_key(each.cells[0].config): fake_record(each.cells[0].config) for each in (one, other)}
    validations = (0.9, 0.8) if first_is_better == (name == "table1") else (0.8, 0.9)
    for (key, record), value in zip(records.items(), validations, strict=True):
        records[key] = replace(record, curve=[{"samples": 1, "validation": 0.5}, {"samples": 2, "validation": value}])
    (best,) = best_results([one, other], records).values()
    assert best.cell.recipe == ("fast" if first_is_better else "longer")


def test_validation_of_several_seeds_is_the_mean_of_their_last_ones():
    curves = [[{"samples": 1, "validation": 0.1}, {"samples": 2, "validation": last}] for last in (0.5, 0.75)]
    records = tuple(replace(fake_record(replace(ACCURACY, seed=seed)), curve=curves[seed]) for seed in (0, 1))
    assert CellResult(Cell("ED", "looped r=1", ACCURACY), records, ()).validation == 0.625


def test_best_results_prefer_any_validation_to_none():
    one = experiment("table1-dense", "gpu").select(["ED40:looped r=50"])
    other = experiment("table1", "gpu").select(["ED40:looped r=50"])
    records = {run_key(each.cells[0].config): fake_record(each.cells[0].config) for each in (one, other)}
    first, second = records
    records[first] = replace(records[first], curve=[])
    assert best_results([one, other], records)["ED40:looped r=50"].records == (records[second],)
