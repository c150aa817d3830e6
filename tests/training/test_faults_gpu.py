"""On a GPU: a killed run goes on to the same weights, and too little memory or a failed capture is told in one line."""

import os
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from looped.cli.main import main
from looped.experiments.integrity import check_path
from looped.kernels.cuda_graphs import Replayed
from looped.training.run_folder import RunFolder
from looped.training.step import Stepper
from looped.training.trainer import Trainer
from looped.utils.errors import InputError
from tests.kernels.cases import error
from tests.training.conftest import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers emit warnings of their own
]

TOLERANCE = 1e-2
"""relative error of all weights after all steps: another PyTorch may add in another order"""
RUN = (
    "train edit-distance --recipe fast --task.length 8 --model.dim 64 --model.num-heads 2 --model.num-loops 4 "
    "--train.num-steps 40 --train.checkpoint-every 5 --train.log-every 1 --train.eval-size 64 --train.batch-size 32 "
    "--train.warmup-steps 10 --train.device cuda --train.engine fused --out"
)
PATIENCE = 90
"""seconds that a run may take, with its kernels still to be compiled"""
# Commands run in forks of one process that has imported everything, because an import takes longer than the training.
WARM = get_context("forkserver")
WARM.set_forkserver_preload(["pytest", "looped.cli.train", "looped.training.trainer", "looped.kernels.triton_loops"])


def run(folder: Path) -> None:
    """Carry out the command in this process. What it says goes to a file."""
    with said(folder).open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.exit(main([*RUN.split(), str(folder)]))


def said(folder: Path) -> Path:
    return folder.with_suffix(".txt")


def start(folder: Path) -> BaseProcess:
    process = WARM.Process(target=run, args=(folder,), daemon=True)  # so that a failed test leaves none behind
    process.start()
    return process


def logged(folder: Path) -> int:
    path = folder / "log.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after_lines(folder: Path, lines: int) -> None:
    process, deadline = start(folder), time.monotonic() + PATIENCE
    while logged(folder) < lines and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.join()
    assert logged(folder) >= lines, said(folder).read_text()
    assert process.exitcode == -signal.SIGKILL, "the run was done before it could be killed"


def finish(process: BaseProcess, folder: Path) -> None:
    """Wait for a run, and kill it if it takes too long."""
    process.join(PATIENCE)
    process.kill()
    process.join()
    assert process.exitcode == 0, said(folder).read_text()
    assert "no CUDA graph" not in said(folder).read_text()


def weights(folder: Path) -> torch.Tensor:
    checkpoint = RunFolder(folder).require_checkpoint()
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(checkpoint.weights.items())])


def test_run_killed_with_graphs_goes_on_to_the_same_weights(tmp_path, record_property):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = start(whole)
    for lines in (8, 23):
        kill_after_lines(killed, lines)
        damaged = [each for each in check_path(killed).damaged if each.kind != "log"]  # a cut line may be
        assert not damaged
    finish(start(killed), killed)
    finish(undisturbed, whole)
    assert not check_path(killed).damaged
    difference = error(weights(killed), weights(whole))
    record_property("relative error of the weights", difference)
    print(f"relative error of the weights after two kills: {difference:.2e}")
    assert difference < TOLERANCE


def test_train_without_enough_gpu_memory_names_the_settings_and_leaves_nothing(tmp_path):
    config = tiny(model={"dim": 256, "num_loops": 50}, train={"device": "cuda", "batch_size": 65_536})
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        with pytest.raises(InputError) as caught:
            Trainer(config, tmp_path / "run", quiet=True).fit()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    print(caught.value)
    assert "out of GPU memory" in str(caught.value)
    assert "--train.accumulation" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["compiled", "fused"])
def test_run_whose_capture_fails_says_so_in_one_line_and_goes_on(engine, tmp_path, monkeypatch, capsys):
    config = tiny(train={"device": "cuda", "engine": engine, "num_steps": 12, "batch_size": 16})
    Trainer(config, tmp_path / "captured", quiet=True).fit()
    gradients = Stepper.gradients

    def wait_for_device(self: Stepper, *arguments):
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()  # no capture allows it
        return gradients(self, *arguments)

    monkeypatch.setattr(Stepper, "gradients", wait_for_device)
    capsys.readouterr()
    trainer = Trainer(config, tmp_path / "launched", quiet=True)
    assert trainer.fit().finished
    assert isinstance(trainer.stepper._step, Replayed)
    assert not trainer.stepper._step.usable
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    print(lines)
    assert len(lines) == 1
    assert lines[0].startswith("looped: no CUDA graph")
    assert error(weights(tmp_path / "launched"), weights(tmp_path / "captured")) < TOLERANCE
