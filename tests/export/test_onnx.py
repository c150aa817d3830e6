"""Exported graphs: ONNX files in onnxruntime, `torch.export` and `torch.compile`."""

import numpy as np
import pytest
import torch

import looped
from looped.config import ModelConfig, RunConfig
from looped.export.onnx import (
    TOLERANCE,
    _largest_difference,
    compare_at,
    export_file,
    export_program,
    open_session,
)
from looped.inference import Run
from looped.models import build_model
from looped.tasks import DecisionTree, Language, Sudoku, Task
from looped.training.schedules import trained_size
from looped.utils.errors import InputError
from looped.utils.shipped import list_models
from tests.cli.command import answer, complaint

MODELS = {
    "looped": {"block": "looped", "injection": "add"},
    "modulated": {"block": "modulated", "num_layers": 2, "extrapolation": "clamp"},
    "rescaled": {"block": "modulated", "extrapolation": "rescale", "injection": "concat", "positions": "rotary"},
    "biased": {"block": "looped", "attention_bias": "alibi"},
    "additive": {"block": "modulated", "conditioning": "additive", "positions": "sinusoidal"},
}
TEXT = Language(text="synthetic:stories", vocabulary="wiki2k", seq_len=12)
TREES = DecisionTree(points=5, dims=3)
PUZZLES = Sudoku(side=4)


def random_run(task: Task = PUZZLES, **knobs) -> Run:
    config = ModelConfig(**{"dim": 16, "num_heads": 2, "num_loops": 3} | knobs)
    model = build_model(config, task.spec, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    return Run(RunConfig(task, config), model, 7, "runs/mine")


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_program_equals_the_model_at_any_number_of_loops_and_batch_size(name):
    run = random_run(**MODELS[name])
    program = export_program(run).module()
    inputs = torch.from_numpy(PUZZLES.sample(0, "test", range(5)).inputs)
    for num_loops in (1, 3, 7):
        found = program(inputs, torch.tensor(num_loops))
        torch.testing.assert_close(found, run.model(inputs, num_loops), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("task", "knobs"), [(PUZZLES, MODELS["modulated"]), (TREES, MODELS["looped"]),
                                             (TEXT, MODELS["rescaled"])], ids=["puzzles", "trees", "text"])  # fmt: skip
@torch.no_grad()
def test_file_gives_the_models_scores_in_onnxruntime(task, knobs, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    pytest.importorskip("onnxscript", reason="needs the extra export")
    run = random_run(task, **knobs)
    export_file(run, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    session = open_session(tmp_path / "model.onnx")
    inputs = task.sample(0, "test", range(4)).inputs
    for num_loops in (1, 3, 6):
        (scores,) = session.run(None, {"inputs": inputs, "num_loops": np.array(num_loops)})
        np.testing.assert_allclose(scores, run.model(torch.from_numpy(inputs), num_loops), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_file_of_a_shipped_model_gives_its_scores(name, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    pytest.importorskip("onnxscript", reason="needs the extra export")
    run, path = looped.load(name), tmp_path / "model.onnx"
    export_file(run, path)
    is_text = isinstance(run.task, Language)  # its text is not in the package, but one example is
    batch = run.stored_example if is_text else run.task.sample(0, "test", range(12), trained_size(run.config))
    inputs = torch.from_numpy(batch.inputs)
    trained = run.config.model.num_loops
    found = compare_at(run, path, inputs, (1, trained, 2 * trained))
    assert found.other_answers == 0
    assert found.difference <= found.allowed


def test_comparison_finds_a_file_of_another_model(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    pytest.importorskip("onnxscript", reason="needs the extra export")
    run, other = random_run(**MODELS["looped"]), random_run(**MODELS["looped"])
    with torch.no_grad():
        other.model.embedding.mul_(1.5)
    export_file(run, tmp_path / "model.onnx")
    inputs = torch.from_numpy(PUZZLES.sample(0, "test", range(8)).inputs)
    same, different = (compare_at(each, tmp_path / "model.onnx", inputs, (1, 4)) for each in (run, other))
    assert same.difference <= TOLERANCE
    assert same.rounding < 1e-4
    assert same.other_answers == 0
    assert different.difference > different.allowed
    assert different.other_answers > 0


def test_comparison_finds_an_overflow_on_one_side_alone():
    one, other = torch.tensor([1.0, torch.nan, torch.inf]), torch.tensor([1.5, torch.inf, -torch.inf])
    assert _largest_difference(one, other) == 0.5
    for overflown in one[1:2], one[2:]:
        assert _largest_difference(overflown, torch.ones(1)) == torch.inf
        assert _largest_difference(torch.ones(1), overflown) == torch.inf


def test_random_start_is_refused(tmp_path):
    with pytest.raises(InputError) as caught:
        export_file(random_run(start="random", injection="add"), tmp_path / "model.onnx")
    assert caught.value.field == "model.start"
    assert list(tmp_path.iterdir()) == []


def test_export_command_with_a_mistake_says_so_in_one_line(tmp_path, capsys):
    complaint(capsys, "export", "sudoku", "--to", "onnx", "--out", str(tmp_path / "model.txt"))
    complaint(capsys, "export", "sudoku", "--to", "tflite")
    complaint(capsys, "export", "nothing-like-it")
    complaint(capsys, "export", "sudoku", "--to", "onnx", "--out", "/proc/model.onnx")
    complaint(capsys, "export", "sudoku", "--to", "hf", "--out", "/proc/folder")
    assert list(tmp_path.iterdir()) == []


def test_export_command_without_the_extra_names_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    said = complaint(capsys, "export", "sudoku", "--to", "onnx", "--out", str(tmp_path / "model.onnx"))
    assert "looped[export]" in said
    assert list(tmp_path.iterdir()) == []


def test_export_command_writes_a_file(tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    pytest.importorskip("onnxscript", reason="needs the extra export")
    said = answer(capsys, "export", "lcs/words-looped-r20", "--to", "onnx", "--out", str(tmp_path / "new" / "lcs.onnx"))
    assert str(tmp_path / "new" / "lcs.onnx") in said
    assert [path.stat().st_size > 1_000_000 for path in (tmp_path / "new").iterdir()] == [True]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")  # of the compiler about its own parts
def test_model_compiles_as_one_graph(name):
    model = random_run(**MODELS[name]).model
    inputs = torch.from_numpy(PUZZLES.sample(0, "test", range(2)).inputs)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(inputs, 4), model(inputs, 4))
    compiled(inputs, 4).sum().backward()
    assert model.stack._layers()[0].w_qkv.grad is not None
