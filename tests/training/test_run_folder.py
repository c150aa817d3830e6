"""Run folders that a killed process, a bad disk or a stranger has left in a bad state."""

import pytest

from looped.training.trainer import train
from tests.training.conftest import tiny


@pytest.mark.parametrize("name", [".config.json.1-1", ".looped-0123456789abcdef.tmp"])
def test_train_in_a_folder_with_a_killed_process_s_config_starts_and_deletes_it(name, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text("{")
    assert train(tiny(), run, quiet=True).finished
    assert not (run / name).exists()


def test_train_of_a_finished_run_deletes_half_a_checkpoint(tmp_path):
    train(tiny(), tmp_path / "run", quiet=True)
    left = tmp_path / "run" / "checkpoints" / ".step-000000002.old"
    left.mkdir()
    (left / "state.json").touch()
    train(tiny(), tmp_path / "run", quiet=True)
    assert not left.exists()
