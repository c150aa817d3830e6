"""A table on a local Ray cluster: a worker killed in the middle of a run, Ctrl-C, and wrong wishes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from looped.cli.main import main
from looped.experiments import runner
from looped.experiments.runner import run_experiment
from looped.experiments.workers import RayWorkers
from looped.training.run_folder import RunFolder
from tests.experiments.test_runner import finished, slow, start_runner, wait_until, weights
from tests.refusal import refused

needs_ray = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import ray"], capture_output=True).returncode != 0,
    reason="needs the extra `ray`",
)
NUM_STEPS = 600


def worker_of(runs: Path, run: Path) -> int:
    """Return the process that holds the lock of a run."""
    return json.loads((runs / ".locks" / f"{run.name}.json").read_text())["pid"]


@needs_ray
def test_ray_worker_killed_in_the_middle_of_a_run_is_replaced_and_ends_with_the_same_bits(tmp_path):
    runs = tmp_path / "runs"
    process = start_runner(runs, NUM_STEPS, where="ray")
    try:
        wait_until(lambda: bool(list(runs.glob("*/checkpoints/step-*"))), "no checkpoint")
        run = next(runs.glob("*/checkpoints/step-*")).parents[1]
        os.kill(worker_of(runs, run), signal.SIGKILL)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert said.count("its Ray worker died") == 1
    assert finished(runs) == 3
    assert run_experiment(slow(NUM_STEPS), tmp_path / "local", num_workers=1)
    assert weights(runs) == weights(tmp_path / "local")


@needs_ray
def test_ray_runs_stopped_by_ctrl_c_keep_a_checkpoint_of_their_last_step(tmp_path):
    runs = tmp_path / "runs"
    process = start_runner(runs, 100_000, workers=1, where="ray")
    try:
        wait_until(lambda: bool(list(runs.glob("*/checkpoints/step-*"))), "no checkpoint")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in said
    (run,) = {path.parents[1] for path in runs.glob("*/checkpoints/step-*")}
    checkpoint = RunFolder(run).newest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.step % 50, "the last checkpoint is a regular one"


OWN_LOSS = """
import torch

def plain_loss(scores, batch):
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch.targets.flatten())
"""


@needs_ray
def test_plugins_reach_workers_of_a_cluster_that_was_running_before(tmp_path, monkeypatch, plugins):
    import ray  # pyright: ignore[reportMissingImports] (an extra)

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        (tmp_path / "own.py").write_text(OWN_LOSS)
        monkeypatch.setenv("LOOPED_PLUGINS", str(tmp_path / "own.py"))
        made = slow(2)
        config = replace(made.cells[0].config, train=made.cells[0].config.train.override(loss="plain_loss"))
        with RayWorkers(1, 0.0, tmp_path / "runs", made.eval_plan) as workers:
            workers.start(config)
            ((_, found),) = workers.finished(seconds=120)
    finally:
        ray.shutdown()
    assert found.state == "finished", found.text


@needs_ray
@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999", "10.0.0..1:6379", "127.0.0.1:\u00b2"]
)
def test_address_without_a_ray_cluster_is_one_line(address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert main(["paper", "run", "table1", "--scale", "smoke", "--cells", "ED40:standard", "--on", "ray"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"looped: RAY_ADDRESS: expected a running Ray cluster, got {address}")


def test_missing_extra_ray_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # an import then fails
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "run", "table1", "--scale", "smoke", "--cells", "ED40:standard", "--on", "ray"]) == 2
    said = capsys.readouterr().err
    assert said == "looped: --on ray needs an extra: pip install 'looped[ray]'\n"


@pytest.mark.parametrize("wanted", ["-1", "1.5", "nan", "inf"])
def test_number_of_gpus_that_ray_cannot_give_is_refused(wanted, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["paper", "run", "table1", "--scale", "smoke", "--cells", "ED40:standard", "--on", "ray"]
    assert main([*words, "--gpus-per-run", wanted]) == 2
    said = capsys.readouterr().err
    assert said.startswith("looped: --gpus-per-run: expected a number from 0 to 1")
    assert said.count("\n") == 1


@pytest.mark.parametrize("is_finished", [False, True])
def test_gpus_per_run_without_ray_is_refused(is_finished, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "lacking", lambda *_: not is_finished)
    with refused("gpus-per-run", 0.5):
        run_experiment(slow(2), tmp_path, gpus_per_run=0.5)
    assert not list(tmp_path.iterdir())
