"""`looped check` finds the file that was damaged, and says what is still usable."""

import json
import shutil
from pathlib import Path

import pytest

from looped.cli.main import main
from looped.experiments.integrity import check_path
from looped.tasks import EditDistance, datasets
from looped.training.trainer import train
from looped.utils.shipped import weights_folder
from tests.refusal import refused
from tests.training.conftest import damage, tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny(train={"checkpoint_every": 2}), folder, quiet=True)
    return folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def test_check_path_of_a_whole_run_finds_no_damage(run):
    report = check_path(run)
    assert [each.kind for each in report.files] == ["config", "log", "result", "checkpoint", "checkpoint"]
    assert not report.damaged
    assert report.usable == (f"{run} can be used from step 4 on",)


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        ("config.json", "cannot be used"),
        ("result.json", "from step 4 on"),
        ("checkpoints/step-000000004/state.json", "from step 2 on"),
        ("checkpoints/step-000000004/optimizer.safetensors", "from step 2 on"),
    ],
)
def test_check_path_names_the_damaged_file_and_what_is_usable(name, usable, run):
    damage(run / name)
    report = check_path(run)
    (damaged,) = report.damaged
    assert damaged.path == str(run / ("/".join(name.split("/")[:2])))
    assert usable in report.usable[0]


def test_check_path_finds_a_log_that_was_cut_off(run):
    log = run / "log.jsonl"
    log.write_bytes(log.read_bytes()[:-5])
    (damaged,) = check_path(run).damaged
    assert damaged.kind == "log"


def test_check_path_of_a_folder_of_runs_checks_each(run):
    damage(run / "result.json")
    shutil.copytree(run, run.parent / "other")
    assert len(check_path(run.parent).damaged) == 2


def test_check_path_of_a_data_set_checks_its_examples(tmp_path):
    path = tmp_path / "d.jsonl"
    datasets.build(EditDistance(length=4), path, 5)
    assert not check_path(path).damaged
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert "expected 5 examples" in str(check_path(path).damaged[0].problem)


def test_check_path_of_a_model_finds_a_changed_weight(tmp_path):
    (shipped,) = list(weights_folder().glob("edit-distance/looped*.safetensors"))[:1]
    path = tmp_path / "edit-distance" / shipped.name
    path.parent.mkdir()
    shutil.copy(shipped, path)
    assert not check_path(path).damaged
    damage(path)
    assert check_path(path).damaged


def test_check_path_of_nothing_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with refused(path):
            check_path(path)


def test_check_on_the_command_line_ends_with_2_where_something_is_damaged(run, capsys):
    assert main(["check", str(run)]) == 0
    damage(run / "result.json")
    capsys.readouterr()
    assert main(["check", str(run), "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["usable"] == [f"{run} can be used from step 4 on"]
    assert err.startswith("looped: 1 file of 5 damaged: ")
