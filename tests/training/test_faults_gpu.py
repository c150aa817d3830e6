"""On a GPU: a killed run goes on to the same weights, and too little memory or a failed capture is told in one line."""

import faulthandler
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
from looped.training.logger import Log, read_log
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
    "--train.warmup-steps 10 --train.size-schedule fixed --train.supervision last --train.device cuda "
    "--train.engine fused --out"
)
LAST_STEP = 23
"""of the run that is killed: it goes on from step 20, plain at first and then from a graph"""
PATIENCE = 100
"""seconds for all runs together, with their kernels still to be compiled; `make gpu` ends a test after 120"""
# Commands run in forks of one process that has imported everything, because an import takes longer than the training.
WARM = get_context("forkserver")
WARM.set_forkserver_preload(["pytest", "looped.cli.train", "looped.training.trainer", "looped.kernels.triton_loops"])


def run(folder: Path, last_step: int | None) -> None:
    """Carry out the command in this process, which kills itself once it has logged the last step."""
    file = said(folder).open("w")
    os.dup2(file.fileno(), sys.stderr.fileno())
    faulthandler.enable(file)  # so that `ended` can ask where it is
    record = Log.record

    def record_and_die(self: Log, step: int, **values: float) -> None:
        record(self, step, **values)
        if step == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    Log.record = record_and_die
    sys.exit(main([*RUN.split(), str(folder)]))


def said(folder: Path) -> Path:
    return folder.with_suffix(".txt")


def start(folder: Path, last_step: int | None = None) -> BaseProcess:
    process = WARM.Process(target=run, args=(folder, last_step), daemon=True)  # a failed test leaves none behind
    process.start()
    return process


def ended(process: BaseProcess, folder: Path, deadline: float) -> int | None:
    """Return the exit code of a run. If it does not end in time, fail with the place where it is."""
    process.join(max(0.0, deadline - time.monotonic()))
    in_time = not process.is_alive()
    if not in_time:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGABRT)
        process.join(2)
        process.kill()
        process.join()
    reached = len(read_log(folder / "log.jsonl"))
    print(f"{folder.name}: exit code {process.exitcode}, {reached} lines logged. It said:\n{said(folder).read_text()}")
    assert in_time, f"{folder.name} was still running after {reached} logged lines"
    return process.exitcode


def weights(folder: Path) -> torch.Tensor:
    checkpoint = RunFolder(folder).require_checkpoint()
    return torch.cat([tensor.flatten().float() for _, tensor in sorted(checkpoint.weights.items())])


def test_killed_run_with_graphs_goes_on_to_the_same_weights(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    deadline = time.monotonic() + PATIENCE
    undisturbed, first = start(whole), start(killed, LAST_STEP)
    assert ended(first, killed, deadline) == -signal.SIGKILL
    assert not check_path(killed).damaged
    assert ended(start(killed), killed, deadline) == 0
    assert ended(undisturbed, whole, deadline) == 0
    for folder in (whole, killed):
        assert "no CUDA graph" not in said(folder).read_text()
    assert not check_path(killed).damaged
    difference = error(weights(killed), weights(whole))
    print(f"relative error of the weights after a kill: {difference:.2e}")
    assert difference < TOLERANCE


def test_train_without_enough_gpu_memory_names_the_settings_and_leaves_nothing(tmp_path):
    config = tiny(model={"dim": 256, "num_loops": 50}, train={"device": "cuda", "batch_size": 65_536})
    torch.cuda.empty_cache()  # what earlier tests have left would not count
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
