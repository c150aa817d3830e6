"""A run stopped anywhere, by SIGKILL too, and taken up again is the run that was never stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import looped
from looped.config import RunConfig
from looped.inference.shipping import pack
from looped.models import build_model
from looped.recipes import recipe
from looped.tasks import Language
from looped.training import evaluation
from looped.training.run_folder import RunFolder
from looped.training.trainer import Interrupted, Trainer, train
from tests.refusal import refused
from tests.training.conftest import damage, tiny

LONG = {
    "num_steps": 200, "checkpoint_every": 3, "optimizer": "muon", "ema_decay": 0.9, "num_examples": 50,
    "loop_schedule": "random", "loop_choices": (1, 3),
}  # fmt: skip

WORKER = """
import json, sys
import torch
from looped.config import RunConfig
from looped.training import train
torch.set_num_threads(1)
train(RunConfig.from_json(json.loads(sys.argv[1])), sys.argv[2], quiet=True)
"""


def start_worker(config: RunConfig, folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, json.dumps(config.to_json()), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = RunFolder(folder).newest_checkpoint()
    assert checkpoint is not None
    return {f"{part}/{name}": tensor for part, tensors in checkpoint.parts.items() for name, tensor in tensors.items()}


def test_train_killed_and_resumed_equals_an_uninterrupted_run(tmp_path):
    config = tiny(train=LONG)
    train(config, tmp_path / "whole", quiet=True)
    killed = tmp_path / "killed"
    for _ in range(2):
        process = start_worker(config, killed)
        before = {path.name for path in killed.glob("checkpoints/step-*")}
        deadline = time.monotonic() + 60
        while {path.name for path in killed.glob("checkpoints/step-*")} <= before:
            assert time.monotonic() < deadline, "no new checkpoint appeared"
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the worker was done before it could be killed"
    assert start_worker(config, killed).wait() == 0
    whole, resumed = all_tensors(tmp_path / "whole"), all_tensors(killed)
    assert whole.keys() == resumed.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name
    steps = [json.loads(line)["step"] for line in (killed / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[-1] == 200


def test_train_resumed_with_another_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    text, moved = tmp_path / "text.txt", tmp_path / "moved.txt"
    text.write_text(" ".join(f"loop {number}" for number in range(900)))
    config = tiny(task=Language(text=str(text), seq_len=6), model={"dim": 8}, train={"max_minutes": 1e-9})
    assert not train(config, tmp_path / "run", quiet=True).finished
    before = text.read_text()
    text.write_text(before.replace("loop 500", "hoop 500"))
    noted = (tmp_path / "run" / "data.json").read_bytes()
    with refused(None, tmp_path / "run"):
        train(config, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "data.json").read_bytes() == noted
    # The same words are the same text, whenever they were written.
    text.write_text(before)
    os.utime(text, (0, 0))
    config = replace(config, train=config.train.override(max_minutes=None))
    result = train(config, tmp_path / "run", quiet=True)
    assert result.finished
    # What is finished takes no more text.
    text.rename(moved)
    assert train(config, tmp_path / "run", quiet=True) == result


def test_train_stopped_by_a_signal_saves_a_checkpoint(tmp_path):
    process = start_worker(tiny(train={**LONG, "num_steps": 100_000, "checkpoint_every": 100_000}), tmp_path / "run")
    deadline = time.monotonic() + 60
    log = tmp_path / "run" / "log.jsonl"
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 1  # the script does not go on
    checkpoint = RunFolder(tmp_path / "run").newest_checkpoint()
    assert checkpoint is not None
    assert 0 < checkpoint.step < 100_000


def signalled(monkeypatch, *numbers: int) -> list[int]:
    """Signals reach this process in the first batch of every validation, which is then counted."""
    measure, batches = evaluation.measure, []

    def measured(*arguments):
        batches.append(1)
        for number in numbers:
            signal.raise_signal(number)
        return measure(*arguments)

    monkeypatch.setattr(evaluation, "measure", measured)
    return batches


@pytest.mark.parametrize(("num_steps", "reached"), [(4, 3), (2, 2)])
def test_train_stopped_in_validation_ends_at_the_next_batch(num_steps, reached, tmp_path, monkeypatch):
    """In the middle of a run there follows one step, with a checkpoint; at its end all is saved already."""
    config = tiny(train={"num_steps": num_steps, "eval_every": 2, "eval_size": 600, "ema_decay": 0.9})
    with monkeypatch.context() as patched:
        batches = signalled(patched, signal.SIGTERM)
        with pytest.raises(Interrupted) as stop:
            train(config, tmp_path / "run", quiet=True)
    result = stop.value.result
    assert len(batches) == 1  # of three
    assert (result.finished, result.stopped_by, result.step) == (False, "signal", reached)
    assert RunFolder(tmp_path / "run").newest_checkpoint().step == reached
    assert train(config, tmp_path / "run", quiet=True).finished
    train(config, tmp_path / "whole", quiet=True)
    whole = all_tensors(tmp_path / "whole")
    assert all(torch.equal(whole[name], tensor) for name, tensor in all_tensors(tmp_path / "run").items())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_train_at_a_second_signal_ends_at_once(number, tmp_path, monkeypatch):
    before = signal.getsignal(number)
    signalled(monkeypatch, number, number)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(train={"eval_every": 2, "checkpoint_every": 1}), tmp_path / "run", quiet=True)
    assert signal.getsignal(number) is before
    assert RunFolder(tmp_path / "run").newest_checkpoint().step == 1


def test_train_of_a_finished_run_returns_its_result(tmp_path):
    first = train(tiny(), tmp_path / "run", quiet=True)
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    assert train(tiny(), tmp_path / "run", quiet=True) == first
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log


def test_train_in_the_folder_of_another_config_is_refused(tmp_path):
    train(tiny(), tmp_path / "run", quiet=True)
    with refused("train.optimizer.learning_rate"):
        train(tiny(train={"learning_rate": 0.5}), tmp_path / "run", quiet=True)
    # Time limits, logging and paths are no part of what a run is.
    train(tiny(train={"max_minutes": 3, "log_every": 7, "eval_every": 2}), tmp_path / "run", quiet=True)


def test_train_with_a_damaged_last_checkpoint_repeats_the_end(tmp_path):
    config = tiny(train={"num_steps": 6, "checkpoint_every": 3})
    train(config, tmp_path / "run", quiet=True)
    whole = all_tensors(tmp_path / "run")
    damage(tmp_path / "run" / "checkpoints" / "step-000000006" / "model.safetensors")
    assert RunFolder(tmp_path / "run").newest_checkpoint().step == 3
    train(config, tmp_path / "run", quiet=True)
    again = all_tensors(tmp_path / "run")
    assert RunFolder(tmp_path / "run").newest_checkpoint().step == 6
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_train_keeps_ignored_signals_ignored(tmp_path, monkeypatch):
    """A runner's workers ignore the terminal's Ctrl-C: that and the runner's own request would be two."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        signalled(monkeypatch, signal.SIGINT, signal.SIGTERM)
        with pytest.raises(Interrupted) as stop:
            train(tiny(train={"eval_every": 2, "checkpoint_every": 100}), tmp_path / "run", quiet=True)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert stop.value.result.stopped_by == "signal"
    assert RunFolder(tmp_path / "run").newest_checkpoint().step == stop.value.result.step


def test_train_with_a_size_that_the_task_refuses_leaves_no_folder(tmp_path):
    config = recipe("laptop", "countdown")
    late = {"size_schedule": "growing", "size_choices": (1.0, 0.34), "num_steps": 2, "device": "cpu"}
    with refused("size", "2..3", 1):
        train(replace(config, train=config.train.override(**late)), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_train_after_a_failed_start_can_use_the_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.claim(tiny(seed=1))
    train(tiny(), tmp_path / "run", quiet=True)
    assert folder.read_config().seed == 0


def test_train_in_a_child_outlives_its_parent(tmp_path):
    train(tiny(), tmp_path / "parent", quiet=True)
    child = tiny(train={"init_from": str(tmp_path / "parent"), "max_minutes": 1e-9})
    train(child, tmp_path / "child", quiet=True)
    shutil.rmtree(tmp_path / "parent")
    while not train(child, tmp_path / "child", quiet=True).finished:
        pass


def test_train_with_a_non_finite_gradient_saves_no_checkpoint(tmp_path):
    trainer = Trainer(tiny(train={"checkpoint_every": 1, "log_every": 100}), tmp_path / "run", quiet=True)
    gradients = trainer.stepper.gradients

    def broken(*arguments):
        seen = gradients(*arguments)
        if trainer.step == 2:
            next(trainer.model.parameters()).grad.fill_(float("nan"))
        return seen

    trainer.stepper.gradients = broken
    with refused("grad_norm"):
        trainer.fit()
    checkpoint = trainer.folder.newest_checkpoint()
    assert checkpoint.step == 2
    assert all(torch.isfinite(tensor).all() for tensor in all_tensors(tmp_path / "run").values())


def test_train_resumed_with_a_damaged_log_goes_on(tmp_path):
    config = tiny(train={"max_minutes": 1e-9})
    train(config, tmp_path / "run", quiet=True)
    with open(tmp_path / "run" / "log.jsonl", "ab") as log:
        log.write(
            b'scribble\n{"step": Infinity}\n{"step": "1"}\n[1]\n{"step": 1, "note": "\xff"}\ngarb\xff\n{"step": 1, "lo'
        )
    assert train(tiny(), tmp_path / "run", quiet=True).finished
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_train_in_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with refused(tmp_path):
        train(tiny(), tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_train_in_a_folder_in_use_is_refused(tmp_path):
    trainer = Trainer(tiny(), tmp_path / "run", quiet=True)
    with trainer.folder.locked(), refused(None, trainer.folder.path):
        Trainer(tiny(), tmp_path / "run", quiet=True).fit()


def test_train_resumes_a_run_that_another_process_began_meanwhile(tmp_path):
    """The first step, made before the folder is held, is then forgotten."""
    late = Trainer(tiny(), tmp_path / "run", quiet=True)
    first_step = late._first_step

    def overtaken():
        made = first_step()
        assert train(tiny(train={"max_minutes": 1e-9}), tmp_path / "run", quiet=True).step == 1
        return made

    late._first_step = overtaken
    assert late.fit().finished
    train(tiny(), tmp_path / "whole", quiet=True)
    whole, taken_up = all_tensors(tmp_path / "whole"), all_tensors(tmp_path / "run")
    assert all(torch.equal(whole[name], tensor) for name, tensor in taken_up.items())


def test_train_with_max_minutes_keeps_the_schedule(tmp_path):
    config = tiny(train={"max_minutes": 1e-9})
    stopped = Trainer(config, tmp_path / "run", quiet=True)
    assert not stopped.fit().finished
    train(tiny(), tmp_path / "run", quiet=True)
    train(tiny(), tmp_path / "whole", quiet=True)
    rates = [
        [json.loads(line).get("lr_fraction") for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("run", "whole")
    ]
    assert rates[0] == rates[1]


def test_init_from_uses_the_averaged_weights(tmp_path):
    train(tiny(train={"ema_decay": 0.9}), tmp_path / "first", quiet=True)
    first = RunFolder(tmp_path / "first").require_checkpoint().weights
    second = Trainer(tiny(train={"init_from": str(tmp_path / "first")}), tmp_path / "second", quiet=True)
    average = {name: value for name, value in all_tensors(tmp_path / "first").items() if name.startswith("ema/")}
    for name, parameter in second.model.named_parameters():
        assert torch.equal(parameter, first[name])
        assert torch.equal(parameter, average[f"ema/{name}"])
    with refused(None, tmp_path / "first", (6, 32), (6, 16)):
        Trainer(tiny(model={"dim": 32}, train={"init_from": str(tmp_path / "first")}), tmp_path / "third", quiet=True)
    with refused(None, tmp_path / "nowhere"):
        Trainer(tiny(train={"init_from": str(tmp_path / "nowhere")}), tmp_path / "fourth", quiet=True)


def test_init_from_a_problem_with_fewer_classes_keeps_the_own_rows_of_new_classes(tmp_path):
    short = tiny(model={"positions": "rotary"})
    train(short, tmp_path / "short", quiet=True)
    first = RunFolder(tmp_path / "short").require_checkpoint().weights
    origin = short.train.override(init_from=str(tmp_path / "short"))
    longer = replace(short, task=replace(short.task, length=short.task.length + 2), train=origin)
    model = Trainer(longer, tmp_path / "long", quiet=True).model
    untrained = build_model(longer.model, longer.task.spec, longer.seed)
    known = len(first["head"])
    assert known < len(model.head)
    assert torch.equal(model.head[:known], first["head"])
    assert torch.equal(model.head[known:], untrained.head[known:])


def test_init_from_an_unfinished_run_warns(tmp_path, capsys):
    train(tiny(train={"max_minutes": 1e-9}), tmp_path / "stopped", quiet=True)
    train(tiny(), tmp_path / "finished", quiet=True)
    for name, said in (("stopped", "is unfinished: its weights are of step 1 of 4\n"), ("finished", "")):
        Trainer(tiny(train={"init_from": str(tmp_path / name)}), tmp_path / f"from-{name}")
        assert capsys.readouterr().err == (f"looped: {tmp_path / name} {said}" if said else "")


@pytest.mark.parametrize("name", ["edit-distance/looped-r50", "edit-distance"])
def test_init_from_a_shipped_model_uses_its_weights(name, tmp_path):
    shipped = looped.load(name)
    config = replace(shipped.config, train=tiny(train={"init_from": name}).train)
    started = Trainer(config, quiet=True)
    for key, weights in shipped.model.state_dict().items():
        assert torch.equal(started.model.state_dict()[key], weights)
    # The run and its folder are those of the model, however it was called.
    whole = replace(config, train=config.train.override(init_from=shipped.name))
    assert (started.config, started.folder.path) == (whole, Path("runs") / whole.folder_name)
    with refused("model", "edit-distance/looped-r50"):
        Trainer(tiny(train={"init_from": "edit-distance/looped-r5"}), tmp_path / "run", quiet=True)


def test_init_from_a_model_file_uses_its_weights(tmp_path):
    train(tiny(), tmp_path / "first", quiet=True)
    file = pack(tmp_path / "first", tmp_path / "model.safetensors", size=10).path
    started, packed = Trainer(tiny(train={"init_from": str(file)}), tmp_path / "second", quiet=True), looped.load(file)
    for key, weights in packed.model.state_dict().items():
        assert torch.equal(started.model.state_dict()[key], weights)
    with refused(tmp_path / "none.safetensors"):
        Trainer(tiny(train={"init_from": str(tmp_path / "none.safetensors")}), tmp_path / "third", quiet=True)


def test_continue_from_a_finished_run_keeps_its_optimizer_state(tmp_path):
    short, longer = tiny(train={"schedule": "stable", "decay_fraction": 0.0}), tmp_path / "longer"
    train(short, tmp_path / "short", quiet=True)
    more = {"num_steps": 7, "continue_from": str(tmp_path / "short")}
    config = replace(short, train=short.train.override(**more))
    result = train(config, longer, quiet=True)
    assert (result.finished, result.step) == (True, 7)
    # At a constant learning rate, four steps and three more are seven steps in one go.
    train(replace(short, train=short.train.override(num_steps=7)), tmp_path / "whole", quiet=True)
    whole, continued = all_tensors(tmp_path / "whole"), all_tensors(longer)
    assert all(torch.equal(whole[name], continued[name]) for name in whole)
    # The new folder resumes by itself, even if the old one is gone.
    shutil.rmtree(tmp_path / "short")
    assert train(config, longer, quiet=True).finished


def test_continue_from_with_fewer_steps_or_another_model_is_refused(tmp_path):
    train(tiny(), tmp_path / "short", quiet=True)
    origin = {"continue_from": str(tmp_path / "short")}
    with refused("train.num_steps"):
        Trainer(tiny(train=origin), tmp_path / "new", quiet=True)
    with refused(None, "model.dim"):
        Trainer(tiny(model={"dim": 32}, train={**origin, "num_steps": 9}), tmp_path / "new", quiet=True)
    with refused("train.num_steps"):
        train(tiny(train={"num_steps": 9}), tmp_path / "short", quiet=True)
    assert not (tmp_path / "new").exists()
