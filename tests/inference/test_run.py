"""Asking a trained run."""

import numpy as np
import pytest
import torch

import looped
from looped.config import ModelConfig
from looped.inference.run import load_run, solve
from looped.models import build_model
from looped.tasks import TASKS
from looped.training import train
from tests.refusal import refused
from tests.training.conftest import TASK, tiny


def test_frames_are_the_read_outs_of_every_loop():
    model = build_model(ModelConfig(block="looped", dim=16, num_heads=2, num_loops=3), TASK.spec, seed=2)
    inputs = TASK.sample(0, "test", [7]).inputs[0]
    frames = list(solve(model, TASK, inputs, 5))
    for loop, frame in enumerate(frames, start=1):
        scores = model(torch.from_numpy(inputs)[None], num_loops=loop)[0, -1].detach()
        assert frame.loop == loop
        assert frame.answer == str(int(scores.argmax()))
        assert frame.confidence == pytest.approx(float(scores.softmax(0).max()), rel=1e-5)
    assert frames[0].change == pytest.approx(1.0)


def test_values_come_without_a_confidence():
    task = TASKS["decision-tree"](points=4, dims=2, depth=1)
    model = build_model(ModelConfig(dim=16, num_heads=2, num_loops=2), task.spec)
    inputs = task.sample(0, "test", [0]).inputs[0]
    assert [(frame.confidence, frame.how_sure) for frame in solve(model, task, inputs)] == [(None, "")] * 2


def test_asking_leaves_the_callers_gradient_mode_alone():
    model = build_model(ModelConfig(dim=16, num_heads=2, num_loops=3), TASK.spec)
    for _ in solve(model, TASK, TASK.sample(0, "test", [0]).inputs[0]):
        assert torch.is_grad_enabled()


def test_given_cells_stand_in_every_answer():
    task = TASKS["sudoku"](side=4)
    model = build_model(ModelConfig(dim=16, num_heads=2, num_loops=2), task.spec)
    puzzle = task.sample(0, "test", [0]).inputs[0]
    for frame in solve(model, task, puzzle):
        assert np.array_equal(frame.outputs[puzzle > 0], puzzle[puzzle > 0])


def test_a_loaded_run_answers_like_the_trained_model(tmp_path):
    from looped.training.trainer import Trainer

    train(tiny(train={"ema_decay": 0.5}), tmp_path / "run", quiet=True)
    run = load_run(tmp_path / "run")
    trainer = Trainer(tiny(train={"ema_decay": 0.5}), tmp_path / "run", quiet=True)
    trainer.resume()
    inputs = torch.from_numpy(TASK.sample(0, "test", range(5)).inputs)
    with trainer.evaluated_weights():
        assert torch.equal(run.model(inputs), trainer.model(inputs))
    assert not torch.equal(run.model(inputs), trainer.model(inputs))


def test_a_run_takes_a_question_as_typed_or_as_an_example(tmp_path):
    train(tiny(), tmp_path / "run", quiet=True)
    run = load_run(tmp_path / "run")
    inputs, _ = run.test_example(3)
    typed, drawn = (list(run.solve(question, 2)) for question in (TASK.render(inputs), inputs))
    assert [frame.answer for frame in typed] == [frame.answer for frame in drawn]
    assert typed[-1].answer == str(int(run.model(torch.from_numpy(inputs)[None], num_loops=2)[0, -1].argmax()))
    assert repr(run) == f"Run(step={run.step}, name={str(tmp_path / 'run')!r})"


def test_one_example_at_a_time():
    model = build_model(ModelConfig(dim=16, num_heads=2), TASK.spec)
    with refused("inputs", (2, 12)):
        next(solve(model, TASK, TASK.sample(0, "test", [0, 1]).inputs))


def test_train_by_task_name_then_evaluate_and_answer(tmp_path):
    small = {"length": 4, "alphabet": 3, "dim": 16, "num_loops": 2, "num_steps": 2, "batch_size": 4, "eval_size": 4}
    result = looped.train("edit-distance", tmp_path / "run", quiet=True, recipe="laptop", **small, seed=5)
    run = looped.load(tmp_path / "run")
    assert (result.step, run.config.seed, run.task.size, run.model.config.dim) == (2, 5, 4, 16)
    report = run.evaluate(loops=[1, 2], size=10)
    assert [row.loops for row in report.rows] == [1, 2]
    *_, frame = run.solve("abca|bcca")
    assert run.answer("abca|bcca") == frame.answer
    with refused("num_step", "num_steps"):
        looped.train("edit-distance", tmp_path / "other", recipe="laptop", num_step=3)
    with refused("num_steps"):
        looped.train(run.config, tmp_path / "other", num_steps=3)


def fresh_run():
    """Return a small untrained model of edit distance as a run."""
    task = looped.make_task("edit-distance", length=4)
    config = looped.RunConfig(task, ModelConfig(dim=8, num_heads=2, num_loops=2))
    return looped.Run(config, build_model(config.model, task.spec), 0)


@pytest.mark.parametrize(
    ("mistake", "field"),
    [
        (lambda run: run.answer(["abca|cab"]), "question"),
        (lambda run: run.solve(["abca|cab"]), "question"),  # before the first frame is asked for
        (lambda run: looped.solve(run, run.task, "abca|cab"), "model"),
        (lambda run: looped.solve(run.model, run.task, "abca|cab"), "inputs"),
        (lambda run: looped.evaluate(run, run.task), "model"),
        (lambda run: run.evaluate(loops=0), "loops"),
        (lambda run: run.evaluate(loops=[2, "many"]), "loops"),
        (lambda run: looped.build_model(run.config.model, "edit-distance"), "spec"),
        (lambda run: looped.LoopStack({"dim": 8}), "config"),
        (lambda run: looped.make_task("sudoku", sied=4), "sied"),
        (lambda run: looped.load(5), "name"),
    ],
)
def test_a_mistake_in_python_names_the_argument(mistake, field):
    with pytest.raises(looped.InputError) as error:
        mistake(fresh_run())
    assert error.value.field == field


def test_evaluate_takes_one_number_of_loops():
    run = fresh_run()
    assert [row.loops for row in run.evaluate(3, size=5).rows] == [3]
    assert [row.loops for row in run.evaluate([], size=5).rows] == [2]
