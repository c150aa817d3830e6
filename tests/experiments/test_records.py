"""Records: what is written is read back, nonsense is named, and collecting never loses what was there."""

import csv
import json
import math
import shutil
from dataclasses import replace

import pytest

from looped.cli.main import main
from looped.experiments.measure import lacking
from looped.experiments.one_run import finish_run
from looped.experiments.records import (
    RECORD_NAME,
    Record,
    cell_value,
    collect,
    evaluation_value,
    load_records,
    read_record,
    save_record,
    training_curve,
)
from looped.experiments.report.compare import cell_results
from looped.experiments.spec import Cell
from looped.experiments.tables import experiment
from looped.training.evaluation import Evaluation, LoopScore, evaluate
from looped.training.schedules import trained_size
from looped.utils.errors import InputError
from looped.utils.files import read_sealed_values, save_sealed
from tests.experiments.fake_records import fake_record
from tests.refusal import refused

MADE = experiment("table1", "smoke").select(["ED40:modulated r=4"])
CONFIG = MADE.cells[0].config


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("records") / "runs"
    for seed in (0, 1):
        assert finish_run(replace(CONFIG, seed=seed), root, MADE.eval_plan).state == "finished"
    return root


def _overflowed(score: LoopScore) -> LoopScore:
    return replace(score, metrics={**score.metrics, "loss": math.nan})


def _evaluation(metric: str, score: LoopScore) -> Evaluation:
    return Evaluation("any", "test", 1, metric, 1.0, score.loops, (score,))


@pytest.fixture
def record(runs) -> Record:
    return read_record(runs / CONFIG.folder_name / RECORD_NAME)


def test_record_saved_and_read_is_equal(record, tmp_path):
    path = tmp_path / record.path
    save_record(path, record)
    assert read_record(path) == record
    assert read_record(path).to_json() == record.to_json()
    assert path.stat().st_size < 20_000
    assert max(map(len, path.read_text().splitlines())) < 400


def test_read_record_with_a_flipped_bit_raises(record, tmp_path):
    path = tmp_path / "one.json"
    save_record(path, record)
    good = path.read_bytes()
    for bit in range(0, 8 * len(good), 101):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(InputError) as caught:
            read_record(path)
        assert str(path) in str(caught.value)


def test_read_record_without_a_hash_reads_a_record_of_an_older_version(record, tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(record.to_json()))
    assert read_record(path) == record


def test_record_rounds_measurements_to_six_digits_but_not_the_config(record):
    long = replace(
        record, seconds=1.23456789, config=replace(CONFIG, train=CONFIG.train.override(final_fraction=1 / 3))
    )
    assert long.to_json()["seconds"] == 1.23457
    assert long.to_json()["config"]["train"]["schedule"]["final_fraction"] == 1 / 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("finished", "yes"), ("date", "yesterday"), ("steps", -1), ("samples", 3), ("seconds", "long"),
        ("parameters", 1.5), ("versions", {"torch": 2}), ("test", None), ("sets", []), ("curve", [{"loss": 1}]),
        ("note", None), ("version", 2),
    ],
)  # fmt: skip
def test_paper_with_a_wrong_field_in_a_record_names_file_and_field(field, value, record, tmp_path, capsys):
    path = tmp_path / "results" / record.path
    path.parent.mkdir(parents=True)
    text = json.dumps({**record.to_json(), field: value})
    path.write_text(text)
    with refused({"versions": "versions.torch", "curve": "curve.0"}.get(field, field), path):
        read_record(path)
    smallest = ["table1", "--scale", "smoke", "--cells", "ED40:standard"]
    for words in (["status", "table1"], ["report", "--out", str(tmp_path / "out")], ["run", *smallest]):
        places = ["--results", str(path.parent), "--root", str(tmp_path / "runs")]
        assert main(["paper", *words, *places]) == 2
        complaint = capsys.readouterr().err.strip().splitlines()
        assert len(complaint) == 1
        assert str(path) in complaint[0]
    assert path.read_text() == text, "nothing is overwritten"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"accuracy": 2.0}, "test.rows.0.accuracy"),
        ({"low": 0.9, "high": 0.95, "accuracy": 0.1}, "test.rows.0.accuracy"),
        ({"loops": 0}, "test.rows.0.loops"),
        ({"low": None}, "test.rows.0.low"),
        ({"loss": "x"}, "test.rows.0.loss"),
        ({"loss": math.nan}, "test.rows.0.loss"),
        ({"perplexity": math.inf}, "test.rows.0.perplexity"),
        ({"perplexity": 0}, "test.rows.0.perplexity"),
        ({"loss": 10**400}, "test.rows.0.loss"),
        ({"curve": "abc"}, "test.rows.0.curve"),
        ({"curve": [1, "a"]}, "test.rows.0.curve.1"),
        ({"curve": []}, "test.rows.0.curve"),
    ],
)
def test_record_with_a_wrong_loop_score_names_the_field(change, expected, record):
    data = record.to_json()
    data["test"]["rows"][0].update(change)
    with refused(expected, "file"):
        Record.from_json(data, "file")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"task": "sudoku"}, "test.task"),
        ({"metric": "loss"}, "test.metric"),
        ({"trained_loops": 7}, "test.trained_loops"),
        ({"rows": []}, "test.rows"),
        ({"size": 0}, "test.size"),
    ],
)
def test_record_with_an_evaluation_of_another_run_names_the_field(change, expected, record):
    data = record.to_json()
    data["test"].update(change)
    with pytest.raises(InputError) as caught:
        Record.from_json(data)
    assert caught.value.field == expected


@pytest.mark.parametrize(
    ("place", "change", "expected"),
    [
        ("train.rows.0", {"loss": "x"}, "train.rows.0.loss"),
        ("extra", {"continuity": "x"}, "extra.continuity"),
        ("extra", {"continuity": {"coefficient": "x"}}, "extra.continuity.coefficient"),
        ("extra", {"continuity": {"coefficient": 1.0, "coefficient_low": "a"}}, "extra.continuity.coefficient_low"),
        ("extra", {"continuity": {"coefficient": 1.0, "coefficient_high": None}}, "extra.continuity.coefficient_high"),
        ("extra", {"continuity": {"coefficient": 1.0, "per_loop": [1.0, math.nan]}}, "extra.continuity.per_loop.1"),
        ("curve.0", {"loss": "x"}, "curve.0.loss"),
    ],
)
def test_record_with_a_wrong_number_anywhere_names_its_path(place, change, expected, record):
    data = record.to_json()
    found = data
    for name in place.split("."):
        found = found[int(name) if name.isdigit() else name]
    found.update(change)
    with pytest.raises(InputError) as caught:
        Record.from_json(data)
    assert caught.value.field == expected


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [
        ("table2", "test.rows.0.squared_error_over_dims", "x"),
        ("table3", "test.rows.0.low", -1),
        ("table3", "test.rows.0.low", 0),
        ("table3", "test.baseline", -3),
    ],
)
def test_record_with_a_perplexity_of_zero_or_an_error_in_words_names_the_field(of, field, value):
    data = fake_record(experiment(of, "smoke").cells[0].config).to_json()
    Record.from_json(data)
    *path, last = field.split(".")
    found = data
    for name in path:
        found = found[int(name) if name.isdigit() else name]
    assert last in found
    found[last] = value
    with pytest.raises(InputError) as caught:
        Record.from_json(data)
    assert caught.value.field == field


def test_save_record_of_what_could_not_be_read_again_writes_nothing(record, tmp_path):
    rows = tuple(_overflowed(row) for row in record.test.rows)
    path = tmp_path / "one.json"
    save_record(path, record)
    before = path.read_text()
    for field, wrong in (
        ("test.rows.0.loss", replace(record, test=replace(record.test, rows=rows))),
        ("extra.continuity.coefficient", replace(record, extra={"continuity": {"coefficient": math.inf}})),
        ("seconds", replace(record, seconds=math.nan)),
        ("steps", replace(record, steps=record.steps + 1)),
    ):
        with refused(field, path):
            save_record(path, wrong)
    assert path.read_text() == before


def test_measure_run_drops_non_finite_loop_counts_and_notes_them(tmp_path, monkeypatch):
    plan = replace(MADE.eval_plan, sizes=(0.5,))

    def overflowing(*arguments, example_size=None, **named):
        found = evaluate(*arguments, example_size=example_size, **named)
        far = [row.loops > 6 or example_size == sizes[0.5] for row in found.rows]
        rows = (_overflowed(row) if each else row for row, each in zip(found.rows, far, strict=True))
        return replace(found, rows=tuple(rows))

    usual = trained_size(CONFIG)
    sizes = {0.5: round(0.5 * usual)}
    monkeypatch.setattr("looped.training.evaluation.evaluate", overflowing)
    assert finish_run(CONFIG, tmp_path, plan).state == "finished"
    record = read_record(tmp_path / CONFIG.folder_name / RECORD_NAME)
    assert [row.loops for row in record.test.rows] == [1, 2, 3, 4, 5, 6]
    assert record.sets == {}
    assert record.note == (
        "the test is not finite at 7, 8 loops; without the test set '0.5 n' (not finite at the trained loops)"
    )
    assert not lacking(record, CONFIG, plan), "it would be tried again and again"
    assert lacking(record, CONFIG, replace(plan, sizes=(0.5, 1.0)))


def test_measure_run_non_finite_at_the_trained_loops_records_a_failed_try(tmp_path, monkeypatch):
    def overflowing(*arguments, **named):
        found = evaluate(*arguments, **named)
        return replace(found, rows=tuple(map(_overflowed, found.rows)))

    monkeypatch.setattr("looped.training.evaluation.evaluate", overflowing)
    with refused("test"):
        finish_run(CONFIG, tmp_path, MADE.eval_plan)
    (record,) = load_records(None, tmp_path).values()
    assert not record.finished
    assert "finite numbers" in record.note


@pytest.mark.parametrize(("field", "value"), [("finished", True), ("step", "x"), ("versions", None), ("flops", True)])
def test_finish_run_with_a_wrong_result_file_names_it_and_the_field(field, value, runs, tmp_path):
    folder = tmp_path / CONFIG.folder_name
    shutil.copytree(runs / CONFIG.folder_name, folder)
    (folder / RECORD_NAME).unlink()
    path = folder / "result.json"
    whole = {} if field == "finished" else read_sealed_values(path)
    save_sealed(path, {**whole, field: value})
    with refused(path, "step" if field == "finished" else field):
        finish_run(CONFIG, tmp_path, MADE.eval_plan)


def test_record_with_a_wrong_config_or_an_unknown_field_names_it(record):
    for data, field in [
        ({**record.to_json(), "config": {"task": {"name": "nonsense"}}}, "config.task"),
        ({**record.to_json(), "config": {**CONFIG.to_json(), "seed": "x"}}, "config.seed"),
        ({**record.to_json(), "speed": 3}, "speed"),
        ([], "file"),
    ]:
        with refused(field, "file"):
            Record.from_json(data, "file")


def test_record_of_an_unfinished_run_needs_no_test_and_fills_no_cell(record, tmp_path):
    failed = replace(record, finished=False, test=None, steps=1, samples=2, note="expected a finite loss, got nan")
    save_record(tmp_path / "one.json", failed)
    known = load_records(tmp_path, None)
    assert known[record.key].note == failed.note
    assert cell_results(MADE, known) == []
    save_record(tmp_path / "two.json", record)  # a finished one speaks, whatever the order of the files
    assert load_records(tmp_path, None)[record.key].finished


def test_cell_results_find_records_by_config_and_order_them_by_seed(runs, tmp_path):
    collect(load_records(None, runs).values(), tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / f"renamed-{path.name}")
    (found,) = cell_results(MADE, load_records(tmp_path, None))
    assert [one.config.seed for one in found.records] == [0, 1]
    other = replace(MADE.cells[0], config=replace(CONFIG, model=replace(CONFIG.model, dim=16)))
    assert cell_results(replace(MADE, cells=(other,)), load_records(tmp_path, None)) == []


def test_load_records_prefers_the_record_in_the_run_folder(runs, record, tmp_path):
    save_record(tmp_path / record.path, replace(record, note="collected"))
    assert load_records(tmp_path, None)[record.key].note == "collected"
    assert load_records(tmp_path, runs)[record.key].note == ""


def test_load_records_refuses_two_results_of_one_run_but_not_two_copies(record, tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    save_record(first, record)
    save_record(second, record)
    assert load_records(tmp_path, None) == {record.key: record}
    save_record(second, replace(record, seconds=record.seconds + 1))
    with refused(None, first, second):
        load_records(tmp_path, None)


@pytest.mark.parametrize("names", [("a.json", "b.json"), ("b.json", "a.json")])
def test_load_records_returns_a_failed_try_only_without_a_finished_run(names, record, tmp_path):
    failed = replace(record, finished=False, test=None, note="given up")
    save_record(tmp_path / names[0], failed)
    assert not load_records(tmp_path, None)[record.key].finished
    save_record(tmp_path / names[1], record)
    assert load_records(tmp_path, None)[record.key].finished
    save_record(tmp_path / "runs" / CONFIG.folder_name / RECORD_NAME, failed)
    assert load_records(tmp_path, tmp_path / "runs")[record.key].finished


def test_collect_adds_records_and_replaces_only_with_the_flag(runs, record, tmp_path, capsys):
    words = ["paper", "collect", "--root", str(runs), "--results", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["written"]) == 2
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == []
    path = tmp_path / record.path
    # Less than what the run has now: another test set was added since.
    save_record(path, replace(record, extra={}))
    save_record(path, replace(record, note="by hand"))
    before = path.read_text()
    assert main(words) == 2
    assert "holds another result of the same run" in capsys.readouterr().err
    assert path.read_text() == before
    assert main([*words, "--replace"]) == 0
    assert read_record(path) == record
    more = replace(record, sets={"2 n": record.test})
    assert collect([more], tmp_path) == [path]
    with refused(None, "--replace"):
        collect([record], tmp_path)


def test_collect_never_replaces_another_run_of_the_same_name(record, tmp_path):
    """As after a change of defaults: the name stays, the run is another one."""
    path = tmp_path / record.path
    other = replace(record, config=replace(CONFIG, train=CONFIG.train.override(weight_decay=0.5)))
    save_record(path, other)
    before = path.read_text()
    for replaced in (False, True):
        with refused(None, path):
            collect([record], tmp_path, replaced=replaced)
    assert path.read_text() == before


def test_collect_keeps_failed_tries_until_the_run_is_finished(record, tmp_path):
    failed = replace(record, finished=False, test=None, train=None, steps=1, samples=2, note="expected a finite loss")
    assert collect([replace(failed, note="")], tmp_path) == []
    (path,) = collect([failed], tmp_path)
    assert load_records(tmp_path, None)[record.key].note == failed.note
    again = replace(failed, note="expected a finite gradient")
    assert collect([again], tmp_path) == [path]
    (final,) = collect([record], tmp_path)
    assert not path.exists()
    assert collect([failed], tmp_path, replaced=True) == [], "a result stays"
    assert read_record(final) == record


def test_collect_writes_an_index_with_one_row_per_record(record, tmp_path):
    collect([record], tmp_path)
    with open(tmp_path / "index.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["path"] == record.path.as_posix()
    assert (row["task"], row["block"]) == (CONFIG.task.name, CONFIG.model.block)
    assert float(row["value"]) == pytest.approx(evaluation_value(record.test, "accuracy").value)


def test_collect_of_an_experiment_takes_every_seed(runs, tmp_path, capsys):
    words = ["paper", "collect", "table1", "--scale", "smoke", "--root", str(runs), "--results", str(tmp_path)]
    assert main([*words, "--cells", "ED40:standard", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == []
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["written"]) == 2
    assert sorted(one.config.seed for one in load_records(tmp_path, None).values()) == [0, 1]


def test_cell_value_reads_the_place_that_the_cell_names(record):
    rows = record.test.rows
    trained, last = rows[3], rows[-1]
    assert (trained.loops, last.loops) == (4, 8)

    def shown(**fields):
        return cell_value(Cell("row", "column", CONFIG, **fields), with_more)

    with_more = replace(
        record, sets={"1.5 n": record.test}, extra={"continuity": {"coefficient": 2.0, "coefficient_low": 1.0}}
    )
    assert shown() == (trained.metrics["accuracy"], trained.low, trained.high)
    assert shown(at_loops=8) == (last.metrics["accuracy"], last.low, last.high)
    assert shown(shows="test.loss") == (trained.metrics["loss"], None, None)
    assert shown(shows="sets/1.5 n", at_loops=8) == (last.metrics["accuracy"], last.low, last.high)
    assert shown(shows="extra.continuity.coefficient") == (2.0, 1.0, None)
    for missing in ({"shows": "sets/2 n"}, {"at_loops": 9}, {"shows": "extra.more.of"}, {"shows": "test.nothing"}):
        assert shown(**missing) is None


def test_evaluation_value_derives_intervals_of_related_metrics():
    text = _evaluation("perplexity", LoopScore(1, {"perplexity": 100.0, "loss": 4.60517}, 90.0, 110.0))
    assert evaluation_value(text, "loss") == pytest.approx((4.60517, 4.49981, 4.70048), abs=1e-5)
    errors = {"squared_error": 0.4, "squared_error_over_dims": 0.02}
    trees = _evaluation("squared_error", LoopScore(1, errors, 0.2, 0.6))
    assert evaluation_value(trees, "squared_error_over_dims") == pytest.approx((0.02, 0.01, 0.03))


def test_training_curve_of_a_long_log_keeps_200_points_the_last_and_all_validations():
    lines = [{"step": step, "loss": 1 / step, "accuracy": 0.5, "lr_fraction": 1.0} for step in range(50, 100_001, 50)]
    lines += [{"step": step, "validation": step / 1e5} for step in range(1000, 100_001, 1000)]
    curve = training_curve(lines, 64)
    assert len(curve) <= 200
    assert curve[-1] == {"samples": 6_400_000, "loss": 1e-5, "accuracy": 0.5, "validation": 1.0}
    assert sum("validation" in point for point in curve) >= 99
    assert [point["samples"] for point in curve] == sorted({point["samples"] for point in curve})
    assert training_curve([], 64) == []
