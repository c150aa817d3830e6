"""Models that ship with the package: what is packed, how it is found, and how it is measured afresh."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from looped.config import ModelConfig, RunConfig, TrainConfig
from looped.inference import shipping
from looped.inference.run import load_run
from looped.models import pretrained
from looped.models.pretrained import ShippedScore
from looped.tasks import DecisionTree, EditDistance, Language
from looped.tasks.language.stories import story_file
from looped.training import evaluate, train
from looped.utils.files import content_hash
from looped.utils.version import __version__
from tests.refusal import refused

TASK = EditDistance(length=4, alphabet=3, max_letters=3)
MODEL = ModelConfig(block="modulated", dim=16, num_heads=2, num_loops=3)
TRAIN = TrainConfig().override(num_steps=3, batch_size=8, learning_rate=1e-2, ema_decay=0.5, device="cpu", eval_size=10)
NAME = "edit-distance/modulated-r3"
ORIGIN = {"commit": "0123abc", "date": "2026-01-31"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    train(RunConfig(TASK, MODEL, TRAIN), folder, quiet=True)
    return folder


@pytest.fixture
def weights(tmp_path, monkeypatch) -> Path:
    """An empty folder in the place of the package's weights."""
    monkeypatch.setenv("LOOPED_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights"


@pytest.fixture
def packed(run, weights) -> pretrained.ModelCard:
    return shipping.ship(run, NAME, size=40, **ORIGIN)


def rewrite(shipped: pretrained.ModelCard, **changed) -> None:
    """Change what a file says of itself, and leave its weights as they are."""
    with safe_open(shipped.path, "pt") as file:
        about = json.loads(file.metadata()["looped"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    del about["card_sha256"]
    about |= changed
    about["card_sha256"] = content_hash(about)
    save_file(tensors, shipped.path, {"looped": json.dumps(about)})


def test_the_package_ships_models_that_load_and_are_small():
    sizes = [shipping.load(name).model.num_parameters() for name in pretrained.list_models()]
    shipped = [pretrained.model_card(name) for name in pretrained.list_models()]
    assert sizes == [each.parameters for each in shipped]
    assert sum(each.num_bytes for each in shipped) <= 36_000_000


def test_what_is_loaded_is_the_rounded_average(run, packed):
    before, after = load_run(run), shipping.load(NAME)
    for (name, ours), theirs in zip(after.model.named_parameters(), before.model.parameters(), strict=True):
        assert ours.dtype == theirs.dtype, name
        assert torch.equal(ours, theirs.bfloat16().float()), name
    assert after.config.identity() == before.config.identity()
    assert (after.step, after.name) == (3, NAME)
    assert not any(module.training for module in after.model.modules())
    assert 2 * packed.parameters < packed.num_bytes < 2 * packed.parameters + 10_000


def test_the_stored_number_is_the_rounded_models(packed):
    run = shipping.load(NAME)
    again = evaluate(run.model, run.task, "test", 40).rows[0]
    assert packed.test == ShippedScore("accuracy", again.metrics["accuracy"], again.low, again.high, 40, 3)
    assert (packed.samples, packed.commit, packed.date) == (24, "0123abc", "2026-01-31")
    assert packed.record == run.config.folder_name


def test_the_same_input_gives_the_same_bytes(run, packed):
    first = packed.path.read_bytes()
    for _ in range(3):
        assert shipping.ship(run, NAME, size=40, **ORIGIN).path.read_bytes() == first
    assert [path.name for path in packed.path.parent.iterdir()] == ["modulated-r3.safetensors"]


def test_pack_to_a_file_elsewhere_loads_the_rounded_weights_with_a_card(run, tmp_path):
    out = tmp_path / "handed" / "on.safetensors"
    card = shipping.pack(run, out, size=40)
    loaded = shipping.load(out)
    for ours, theirs in zip(loaded.model.parameters(), load_run(run).model.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())
    assert (loaded.name, loaded.step, loaded.task) == (str(out), 3, TASK)
    row = loaded.evaluate(size=40).rows[0]
    assert (card.test.value, card.test.low, card.test.high) == (row.metrics["accuracy"], row.low, row.high)
    first = out.read_bytes()
    shipping.pack(run, out, size=40)
    assert out.read_bytes() == first


def test_pack_without_a_record_names_what_trained_the_run(run, tmp_path, monkeypatch):
    folder, out = tmp_path / "run", tmp_path / "model.safetensors"
    monkeypatch.setenv("LOOPED_COMMIT", "abc123")
    train(RunConfig(TASK, MODEL, TRAIN), folder, quiet=True)
    os.utime(folder / "checkpoints", (0, 0))
    monkeypatch.setenv("LOOPED_COMMIT", "of another day")
    card = shipping.pack(folder, out, size=10)
    assert (card.commit, card.date) == ("abc123", "1970-01-01")
    (folder / "result.json").unlink()  # as in a run that was stopped
    assert shipping.pack(folder, out, size=10).commit == f"looped {__version__}"
    assert shipping.pack(folder, out, size=10, **ORIGIN).commit == ORIGIN["commit"]


def test_pack_to_a_wrong_place_is_refused(run, tmp_path):
    with refused("out", ".safetensors"):
        shipping.pack(run, tmp_path / "model.bin", size=10)
    assert list(tmp_path.iterdir()) == []
    with refused(None, tmp_path / "model.safetensors"):
        shipping.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("task", [TASK, DecisionTree(points=5, dims=2)])
def test_an_example_comes_with_the_weights(task, tmp_path, weights, monkeypatch):
    train(RunConfig(task, MODEL, TRAIN), tmp_path / "run", quiet=True)
    name = f"{task.name}/small"
    shipping.ship(tmp_path / "run", name, size=10, **ORIGIN)
    drawn = task.sample(0, "test", range(100))
    run = shipping.load(name)
    assert np.array_equal(run.test_example(1)[0], drawn.inputs[1])
    monkeypatch.setattr(type(task), "sample", lambda *_: pytest.fail("drawn afresh"))
    inputs, targets = run.test_example()
    assert (inputs.dtype, targets.dtype) == (drawn.inputs.dtype, drawn.targets.dtype)
    (index,) = (i for i in range(100) if np.array_equal(drawn.inputs[i], inputs))
    assert np.array_equal(targets, drawn.targets[index])
    solved = [task.is_right(x, [*run.solve(x)][-1].outputs, task.answer(y)) for x, y in zip(*drawn[:2], strict=True)]
    assert index == (solved.index(True) if any(solved) else 0)


def test_a_task_stands_for_its_best_model(run, packed):
    rewrite(packed, test={**vars(packed.test), "value": 0.25, "low": 0.1, "high": 0.4})
    better = shipping.ship(run, "edit-distance/better", size=40, **ORIGIN)
    rewrite(better, test={**vars(packed.test), "value": 0.75, "low": 0.6, "high": 0.9})
    assert pretrained.list_models() == ["edit-distance/better", NAME]
    assert shipping.load("edit-distance").name == "edit-distance/better"


def test_a_smaller_error_is_better(tmp_path, weights):
    task = DecisionTree(points=5, dims=2)
    train(RunConfig(task, MODEL, TRAIN), tmp_path / "run", quiet=True)
    for name, value in (("a", 2.0), ("b", 0.5), ("c", 1.0)):
        made = shipping.ship(tmp_path / "run", f"decision-tree/{name}", size=10, **ORIGIN)
        rewrite(made, test={**vars(made.test), "value": value})
    assert pretrained.best_model("decision-tree").name == "decision-tree/b"


def test_a_folder_of_a_run_comes_before_a_name(run, packed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edit-distance").mkdir()
    assert shipping.load(NAME).name == NAME  # a folder that is no run stands in nobody's way
    (tmp_path / NAME).symlink_to(run)
    assert shipping.load(NAME).stored_example is None


def test_commit_date_and_size_come_from_the_record(run, weights, tmp_path):
    folder = tmp_path / "recorded"
    shutil.copytree(run, folder)
    loaded = load_run(run)
    known = evaluate(loaded.model, TASK, "test", 30).to_json()
    (folder / "record.json").write_text(json.dumps({"commit": "fff", "date": "2026-02-01", "test": known}))
    made = shipping.ship(folder, NAME)
    assert (made.commit, made.date, made.test.size) == ("fff", "2026-02-01", 30)
    known["rows"][0]["accuracy"] = 1.0
    (folder / "record.json").write_text(json.dumps({"commit": "fff", "date": "2026-02-01", "test": known}))
    with refused(None, folder, "0.0333"):
        shipping.ship(folder, NAME)
    assert pretrained.model_card(NAME).test == made.test
    for nonsense in ("[]", '{"test": 3}', '{"test": {"rows": []}}', "{"):
        (folder / "record.json").write_text(nonsense)
        with refused(folder / "record.json"):
            shipping.ship(folder, NAME, **ORIGIN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "edit-distance"),
        ("name", "sudoku/modulated-r3"),
        ("name", "edit-distance/../x"),
        ("commit", None),
        ("date", ""),
        ("size", 0),
    ],
)
def test_ship_with_an_invalid_value_is_refused(field, value, run, weights):
    with refused(field, value or ""):
        shipping.ship(**{"run_folder": run, "name": NAME, "size": 10, **ORIGIN, field: value})
    assert not weights.exists()


def test_ship_of_a_missing_run_is_refused(weights):
    with refused(None, "/nowhere"):
        shipping.ship("/nowhere", NAME, size=10, **ORIGIN)
    assert not weights.exists()


@pytest.fixture
def story_model(tmp_path, weights, monkeypatch) -> pretrained.ModelCard:
    """A shipped model of a text that can be taken away."""
    (tmp_path / "data").mkdir()
    shutil.copy(story_file(), tmp_path / "data" / "stories.txt")
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path / "data"))
    task = Language(text="stories.txt", seq_len=16, vocabulary="wiki2k")
    train(RunConfig(task, replace(MODEL, num_loops=2), TRAIN), tmp_path / "run", quiet=True)
    return shipping.ship(tmp_path / "run", "language/small", size=30, **ORIGIN)


def test_check_of_a_language_model_measures_other_windows(story_model):
    (row,) = shipping.evaluate_shipped(1000)
    run = shipping.load("language")
    batch = run.task.sample(0, "test", range(30, 60))
    scores = run.model(torch.from_numpy(batch.inputs)).detach().double()
    chosen = scores.log_softmax(dim=-1).gather(2, torch.from_numpy(batch.targets)[..., None])[..., 0]
    assert row["measured"]["value"] == pytest.approx(math.exp(-chosen[torch.from_numpy(batch.mask)].mean()), rel=1e-5)
    assert row["consistent"]


def test_check_without_the_text_leaves_a_language_model_out(story_model, tmp_path, capsys):
    (tmp_path / "data" / "stories.txt").unlink()
    assert shipping.evaluate_shipped(1000) == []
    assert "language/small is not checked: no text 'stories.txt'" in capsys.readouterr().err


def test_too_many_bytes_are_refused(run, packed, monkeypatch):
    monkeypatch.setattr(shipping, "MAX_TOTAL_BYTES", packed.num_bytes + 100)
    shipping.ship(run, NAME, size=40, **ORIGIN)  # it takes its own place
    with refused(None, f"{packed.num_bytes + 100:,}"):
        shipping.ship(run, "edit-distance/another", size=40, **ORIGIN)
    assert pretrained.list_models() == [NAME]


def test_a_test_leaves_examples_for_a_check(run, weights, monkeypatch):
    monkeypatch.setattr(EditDistance, "num_distinct", lambda self, *_: 25)
    with refused(None, 25):
        shipping.ship(run, NAME, size=25, **ORIGIN)
    shipping.ship(run, NAME, size=20, **ORIGIN)
    (row,) = shipping.evaluate_shipped(1000)
    assert row["measured"]["size"] == 5
    monkeypatch.setattr(EditDistance, "num_distinct", lambda self, *_: 20)
    with refused(None, NAME, 20):
        shipping.evaluate_shipped(1000)


def test_load_of_an_unknown_name_is_refused(run, weights):
    with refused(None, NAME):
        shipping.load(NAME)
    with refused(None, "edit-distance"):
        shipping.load("edit-distance")
    shipping.ship(run, NAME, size=5, **ORIGIN)
    with refused("model", NAME):
        shipping.load("edit-distance/modulated-r4")
    with refused(None, "sudoku"):
        shipping.load("sudoku")
    with refused(None, "nonsense"):
        shipping.load("nonsense")
    with refused(None, "sudokus", "'sudoku'"):
        shipping.load("sudokus")


@pytest.mark.parametrize("place", [0.2, 0.99])
def test_a_changed_byte_is_noticed(place, packed):
    data = bytearray(packed.path.read_bytes())
    data[int(place * len(data))] ^= 1
    packed.path.write_bytes(data)
    with refused(packed.path):
        shipping.load(NAME)


@pytest.mark.parametrize("data", [b"", b"not a model", None])
def test_half_a_file_is_noticed(data, packed):
    packed.path.write_bytes(packed.path.read_bytes()[:-7] if data is None else data)
    with refused(packed.path):
        pretrained.model_card(NAME)


def test_other_files_are_no_models(packed):
    save_file({"weight": torch.zeros(3)}, packed.path)
    with refused(packed.path):
        shipping.load(NAME)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"config": {"task": {"name": "chess"}}}, "'chess'"),
        ({"config": None}, "config"),
        ({"step": "many"}, "step"),
        ({"commit": 7}, "commit"),
        ({"test": {"metric": "accuracy"}}, "test.value"),
        ({"example": []}, "example"),
        ({"sha256": "0" * 64}, "0" * 12),
    ],
)
def test_load_with_an_invalid_header_names_the_fault(changed, named, packed):
    rewrite(packed, **changed)
    with refused(packed.path, named):
        shipping.load(NAME)


def test_load_from_the_folder_of_another_task_is_refused(packed):
    wrong = packed.path.parents[1] / "lcs"
    wrong.mkdir()
    packed.path.rename(wrong / packed.path.name)
    with refused(None, "lcs/modulated-r3", "edit-distance"):
        shipping.load("lcs/modulated-r3")


def test_load_of_weights_of_another_shape_is_refused(packed):
    config = replace(RunConfig(TASK, MODEL, TRAIN), model=replace(MODEL, dim=32))
    rewrite(packed, config=config.to_json())
    with refused(None, packed.path, (6, 32), (6, 16)):
        shipping.load(NAME)


def test_fresh_examples_are_those_after_the_recorded_ones(packed):
    (row,) = shipping.evaluate_shipped(1000)
    run = shipping.load(NAME)
    batch = run.task.sample(0, "test", range(40, 80))
    said = run.model(torch.from_numpy(batch.inputs)).argmax(dim=-1).numpy()
    right = np.all((said == batch.targets) | ~batch.mask, axis=1)
    assert row["measured"]["value"] == pytest.approx(right.mean())
    assert (row["measured"]["size"], row["first_index"], row["recorded"]["size"]) == (40, 40, 40)
    assert row["consistent"]
    assert json.loads(json.dumps(row)) == row


def test_values_are_checked_too(tmp_path, weights):
    task = DecisionTree(points=5, dims=2)
    train(RunConfig(task, MODEL, TRAIN), tmp_path / "run", quiet=True)
    made = shipping.ship(tmp_path / "run", "decision-tree/small", size=60, **ORIGIN)
    (row,) = shipping.evaluate_shipped(1000)
    assert row["measured"]["metric"] == "squared_error"
    assert row["consistent"]
    rewrite(made, test={**vars(made.test), "value": 100.0, "low": 99.0, "high": 101.0})
    assert not shipping.evaluate_shipped(1000)[0]["consistent"]


class Clock:
    """Time that passes with the examples asked."""

    def __init__(self, monkeypatch, seconds_per_example: float) -> None:
        self.now, self.asked = 0.0, []
        draw = EditDistance.sample

        def sample(task, seed, split, indices, size=None):
            self.now += seconds_per_example * len(indices)
            self.asked += [(seed, split, index) for index in indices]
            return draw(task, seed, split, indices, size)

        monkeypatch.setattr(EditDistance, "sample", sample)

    def __call__(self) -> float:
        return self.now


def test_the_time_is_shared_and_the_examples_fit_into_it(run, packed, monkeypatch, capsys):
    shipping.ship(run, "edit-distance/twin", size=1000, **ORIGIN)
    clock = Clock(monkeypatch, 0.5)
    rows = shipping.evaluate_shipped(60, clock=clock)
    assert [row["name"] for row in rows] == [NAME, "edit-distance/twin"]
    # Half of the time would do for 60 examples, of which there are 40: the other model gets what is left.
    assert [row["measured"]["size"] for row in rows] == [40, 80]
    assert clock.now == 60
    assert clock.asked == [(0, "test", i) for i in (*range(40, 80), *range(1000, 1080))]
    assert capsys.readouterr().err.count("fresh examples, recorded") == 2


def test_without_time_some_are_asked(packed, monkeypatch):
    (row,) = shipping.evaluate_shipped(0.001, clock=Clock(monkeypatch, 10))
    assert row["measured"]["size"] == shipping.LEAST == 32


def test_a_check_may_take_as_long_as_it_likes(packed, monkeypatch):
    (row,) = shipping.evaluate_shipped(math.inf, clock=Clock(monkeypatch, 10))
    (long,) = shipping.evaluate_shipped(1e9, clock=Clock(monkeypatch, 10))
    assert row["measured"]["size"] == long["measured"]["size"] > shipping.LEAST


def test_what_is_not_there_is_said_of_a_path_as_of_a_name():
    for name in ("nosuch", Path("nosuch")):
        with refused(None, "nosuch"):
            shipping.load(name)


def test_nothing_shipped_is_nothing_to_check(weights):
    assert shipping.evaluate_shipped(1) == []
    with refused("seconds", 0):
        shipping.evaluate_shipped(0)
