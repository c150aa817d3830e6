"""Records: what is written is read back, nonsense is named, and collecting never loses what was there."""

import json
import os
import time
from dataclasses import replace

import pytest

from looped.cli import main
from looped.errors import InputError
from looped.experiments import claims
from looped.experiments.claims import claimed, is_claimed
from looped.experiments.paper import experiment
from looped.experiments.results import (
    RECORD_NAME,
    Record,
    cell_records,
    cell_value,
    collect,
    evaluation_value,
    load_records,
    read_record,
    save_record,
    training_curve,
)
from looped.experiments.spec import Cell
from looped.experiments.worker import finish_run

MADE = experiment("table1", "smoke").select(["ED40:timestep r=4"])
CONFIG = MADE.cells[0].config


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("records") / "runs"
    for seed in (0, 1):
        assert finish_run(replace(CONFIG, seed=seed), root, MADE.measures).state == "finished"
    return root


@pytest.fixture
def record(runs) -> Record:
    return read_record(runs / CONFIG.folder_name / RECORD_NAME)


def test_a_record_is_read_back_as_it_was_written(record, tmp_path):
    path = tmp_path / record.file_name
    save_record(path, record)
    assert read_record(path) == record
    assert Record.from_json(json.loads(path.read_text())).to_json() == record.to_json()
    assert path.stat().st_size < 20_000
    assert max(map(len, path.read_text().splitlines())) < 400


def test_measurements_have_six_digits_and_configs_all_of_theirs(record):
    long = replace(record, seconds=1.23456789, config=replace(CONFIG, train=replace(CONFIG.train, final_rate=1 / 3)))
    assert long.to_json()["seconds"] == 1.23457
    assert long.to_json()["config"]["train"]["final_rate"] == 1 / 3


NONSENSE = {
    "finished": ("yes", "true or false"),
    "date": ("yesterday", "a date"),
    "steps": (-1, "not negative"),
    "samples": (3, "steps times batch size"),
    "seconds": ("long", "a number"),
    "parameters": (1.5, "a whole number"),
    "versions": ({"torch": 2}, "versions by name"),
    "test": (None, "an evaluation"),
    "sets": ([], "evaluations by name"),
    "curve": ([{"loss": 1}], "points with samples"),
    "note": (None, "text"),
    "version": (2, "must be 1"),
}


@pytest.mark.parametrize("field", NONSENSE)
def test_a_field_of_nonsense_is_named_with_its_file(field, record, tmp_path, capsys):
    value, expected = NONSENSE[field]
    path = tmp_path / "results" / record.file_name
    path.parent.mkdir()
    text = json.dumps({**record.to_json(), field: value})
    path.write_text(text)
    with pytest.raises(InputError, match=expected) as caught:
        read_record(path)
    assert str(path) in str(caught.value)
    assert f"{field!r}" in str(caught.value)
    for words in (["status", "table1"], ["report"], ["run", "table1", "--scale", "smoke", "--cells", "ED40:TF"]):
        places = ["--results", str(path.parent), "--root", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
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
        ({"low": 0.9, "high": 0.95, "accuracy": 0.1}, "inside its interval"),
        ({"loops": 0}, "test.rows.0.loops"),
        ({"low": None}, "test.rows.0.low"),
    ],
)
def test_a_row_of_nonsense_is_named(change, expected, record):
    data = record.to_json()
    data["test"]["rows"][0].update(change)
    with pytest.raises(InputError, match=expected):
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
def test_an_evaluation_of_another_run_is_refused(change, expected, record):
    data = record.to_json()
    data["test"].update(change)
    with pytest.raises(InputError, match=expected):
        Record.from_json(data, "file")


def test_configs_that_are_none_and_fields_that_are_unknown_are_refused(record):
    for data, expected in [
        ({**record.to_json(), "config": {"task": {"name": "nonsense"}}}, "'config' does not describe a run"),
        ({**record.to_json(), "speed": 3}, "unknown field 'speed'"),
        ([], "expected an object"),
    ]:
        with pytest.raises(InputError, match=expected):
            Record.from_json(data, "file")


def test_an_unfinished_try_needs_no_test_but_shows_nothing(record, tmp_path):
    failed = replace(record, finished=False, test=None, steps=1, samples=2, note="expected a finite loss, got nan")
    save_record(tmp_path / "one.json", failed)
    known = load_records(tmp_path, None)
    assert known[record.key].note == failed.note
    assert cell_records(MADE.cells[0], known) == []
    save_record(tmp_path / "two.json", record)  # a finished one speaks, whatever the order of the files
    assert load_records(tmp_path, None)[record.key].finished


def test_records_are_found_by_their_config_and_by_seed(runs, tmp_path):
    collect(load_records(None, runs).values(), tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / f"renamed-{path.name}")
    found = cell_records(MADE.cells[0], load_records(tmp_path, None))
    assert [one.config.seed for one in found] == [0, 1]
    other = replace(MADE.cells[0], config=replace(CONFIG, model=replace(CONFIG.model, dim=16)))
    assert cell_records(other, load_records(tmp_path, None)) == []


def test_the_runs_own_record_wins_over_the_collected_one(runs, record, tmp_path):
    save_record(tmp_path / record.file_name, replace(record, note="collected"))
    assert load_records(tmp_path, None)[record.key].note == "collected"
    assert load_records(tmp_path, runs)[record.key].note == ""


def test_collecting_adds_but_never_replaces_unasked(runs, record, tmp_path, capsys):
    words = ["paper", "collect", "--root", str(runs), "--results", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["written"]) == 2
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == []
    path = tmp_path / record.file_name
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
    with pytest.raises(InputError, match="--replace"):
        collect([record], tmp_path)


def test_a_cell_shows_what_it_says(record):
    rows = record.test["rows"]
    trained, last = rows[3], rows[-1]
    assert (trained["loops"], last["loops"]) == (4, 8)

    def shown(**fields):
        return cell_value(Cell("row", "column", CONFIG, **fields), with_more)

    with_more = replace(
        record, sets={"1.5 n": record.test}, extra={"continuity": {"coefficient": 2.0, "coefficient_low": 1.0}}
    )
    assert shown() == (trained["accuracy"], trained["low"], trained["high"])
    assert shown(at_loops=8) == (last["accuracy"], last["low"], last["high"])
    assert shown(shows="test.loss") == (trained["loss"], None, None)
    assert shown(shows="sets/1.5 n", at_loops=8) == (last["accuracy"], last["low"], last["high"])
    assert shown(shows="extra.continuity.coefficient") == (2.0, 1.0, None)
    for missing in ({"shows": "sets/2 n"}, {"at_loops": 9}, {"shows": "extra.more.of"}, {"shows": "test.nothing"}):
        assert shown(**missing) is None


def test_intervals_of_other_measures_follow_from_the_own_one():
    text = {"metric": "perplexity", "trained_loops": 1,
            "rows": [{"loops": 1, "perplexity": 100.0, "loss": 4.60517, "low": 90.0, "high": 110.0}]}  # fmt: skip
    assert evaluation_value(text, "loss") == pytest.approx((4.60517, 4.49981, 4.70048), abs=1e-5)
    row = {"loops": 1, "squared_error": 0.4, "squared_error_over_dims": 0.02, "low": 0.2, "high": 0.6}
    trees = {"metric": "squared_error", "trained_loops": 1, "rows": [row]}
    assert evaluation_value(trees, "squared_error_over_dims") == pytest.approx((0.02, 0.01, 0.03))


def test_a_long_log_becomes_at_most_200_points_with_its_last_and_its_validations():
    lines = [{"step": step, "loss": 1 / step, "right": 0.5, "rate": 1.0} for step in range(50, 100_001, 50)]
    lines += [{"step": step, "validation": step / 1e5} for step in range(1000, 100_001, 1000)]
    curve = training_curve(lines, 64)
    assert len(curve) <= 200
    assert curve[-1] == {"samples": 6_400_000, "loss": 1e-5, "right": 0.5, "validation": 1.0}
    assert sum("validation" in point for point in curve) >= 99
    assert [point["samples"] for point in curve] == sorted({point["samples"] for point in curve})
    assert training_curve([], 64) == []


def test_a_claim_keeps_others_out_and_ends_with_its_holder(tmp_path):
    assert not is_claimed(tmp_path, "run")
    with claimed(tmp_path, "run") as free:
        assert free
        assert is_claimed(tmp_path, "run")
        with claimed(tmp_path, "run") as again:
            assert not again
        with claimed(tmp_path, "other") as other:
            assert other
    assert not is_claimed(tmp_path, "run")
    with claimed(tmp_path, "run") as free:
        assert free


@pytest.mark.parametrize(("host", "age", "free"), [
    ("another", 10, False),  # alive, on a machine whose locks do not reach this one
    ("another", 1000, True),  # dead
    ("here", 10, True),  # dead: the system has freed its lock
    (None, 10, False),  # made a moment ago, and not written yet
    (None, 1000, True),
])  # fmt: skip
def test_a_claim_of_another_machine_holds_while_it_is_touched(host, age, free, tmp_path):
    path = tmp_path / claims.FOLDER / "run.json"
    path.parent.mkdir()
    name = claims._here()["host"] if host == "here" else host
    path.write_text("" if host is None else json.dumps({"host": name, "pid": 1}))
    stamp = path.stat().st_mtime - age
    os.utime(path, (stamp, stamp))
    assert is_claimed(tmp_path, "run") != free
    with claimed(tmp_path, "run") as got:
        assert got == free
    assert path.exists() != free, "a claim that holds stays, one that was taken is given back"


def test_a_holder_touches_its_claim(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.01)
    path = tmp_path / claims.FOLDER / "run.json"
    with claimed(tmp_path, "run"):
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 30
        while path.stat().st_mtime == 1:
            assert time.monotonic() < deadline, "no heartbeat"
            time.sleep(0.01)
