"""Write a trained run as one ONNX file that takes the number of loops as an input. Needs the extra `export`.

The loops are an ONNX `Loop`, so one file serves any number of loops. Weights and matmuls are in float32, because
onnxruntime has no bfloat16 matmul on a CPU. After writing, the file is run in onnxruntime and compared with PyTorch.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from looped.inference import Run
from looped.models import LoopModel
from looped.training.evaluation import EVALUATION_SEED
from looped.training.schedules import trained_size
from looped.utils.errors import InputError, require, require_field
from looped.utils.files import save

if TYPE_CHECKING:
    import onnxruntime  # pyright: ignore[reportMissingImports]

TOLERANCE = 1e-3
"""difference between the scores of onnxruntime and of PyTorch that always passes"""
ROUNDING = 10
"""otherwise, how many times PyTorch's own rounding it may be: two programs round differently, and loops multiply it"""


class LoopsAsInput(nn.Module):
    """A model whose number of loops is a tensor, so that `torch.export` keeps the loop instead of unrolling it."""

    def __init__(self, model: LoopModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, num_loops: Tensor) -> Tensor:
        """Return the answer after `num_loops` loops, which has no axes."""
        from torch._higher_order_ops.while_loop import while_loop

        model, stack = self.model, self.model.stack
        embeddings = model.embed(inputs)

        def is_unfinished(loop: Tensor, state: Tensor) -> Tensor:
            return loop < num_loops

        def next_loop(loop: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            prepared = stack.prepare_times(self._time(loop, num_loops)[None], embeddings.shape[1])
            return loop + 1, stack.loop(state, embeddings, prepared, 0)

        start = torch.zeros((), dtype=torch.int64, device=inputs.device), stack.start(embeddings).clone()
        _, state = while_loop(is_unfinished, next_loop, start)
        return model.read_out(state)

    def _time(self, loop: Tensor, num_loops: Tensor) -> Tensor:
        """Return the time of a loop, as `loop_times` does for all loops at once."""
        config, time = self.model.config, loop.to(self.model.stack.count_dtype)
        if config.extrapolation == "clamp":
            return time.clamp(max=config.num_loops - 1)
        if config.extrapolation == "rescale":
            return time * (config.num_loops / num_loops.clamp(min=config.num_loops))
        return time


def export_program(run: Run) -> torch.export.ExportedProgram:
    """Return a run as a program of `torch.export`, for any batch size and any number of loops.

    Sequences have the task's length. A shorter text can be padded on the right, because attention is causal.
    """
    model = run.with_precision("float32").model.cpu().requires_grad_(False)
    example = _example(run, batch=2)
    with torch.no_grad(), _quiet():
        return torch.export.export(
            LoopsAsInput(model),
            (example, torch.tensor(model.config.num_loops)),
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, None),
        )


def export_file(run: Run, path: Path) -> "Comparison":
    """Write a run as an ONNX file and return how far its scores are from PyTorch's.

    Raise InputError, and write nothing, if they are too far.
    """
    require(
        run.model.config.block != "standard", "run: expected a looped model, because loops are an input of the file"
    )
    start = run.model.config.start
    require_field(start == "input", "model.start", "input for an export to ONNX", repr(start))
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports] # noqa: F401
        import onnxscript  # pyright: ignore[reportMissingImports] # noqa: F401
    except ImportError as error:
        missing = f"{error.name}: expected the extra `export`, got none"
        raise InputError(f"{missing}. Run pip install 'looped[export]'.") from None
    with _quiet():
        program = torch.onnx.export(
            export_program(run), dynamo=True, input_names=["inputs", "num_loops"], output_names=["scores"],
            verbose=False,
        )  # fmt: skip
        assert program is not None
        content = program.model_proto.SerializeToString()
    found = compare(run, content)
    within = found.difference <= found.allowed
    require(within, f"{run.name}: expected scores within {found.allowed:.1e}, got {found.difference:.1e}")
    save(path, lambda handle: handle.write(content))
    return found


@dataclass(frozen=True)
class Comparison:
    """How far the scores of onnxruntime are from those of PyTorch in float32, at several numbers of loops."""

    difference: float
    """largest difference of a score"""
    rounding: float
    """largest difference between PyTorch's scores in float32 and in float64"""
    other_answers: int
    """number of answered positions with another class"""

    @property
    def allowed(self) -> float:
        """Return the largest difference that passes."""
        return max(TOLERANCE, ROUNDING * self.rounding)


def compare(run: Run, file: Path | bytes) -> Comparison:
    """Compare onnxruntime with PyTorch on a test example at 1, the trained and twice the trained number of loops."""
    trained, inputs = run.config.model.num_loops, _example(run, batch=3)
    return compare_at(run, file, inputs, (1, trained, 2 * trained))


def compare_at(run: Run, file: Path | bytes, inputs: Tensor, loops: Sequence[int]) -> Comparison:
    """Compare the scores of some inputs after each number of loops."""
    session = open_session(file)
    ours, exact = (run.with_precision(precision).model.cpu() for precision in ("float32", "float64"))
    differences, roundings, others = [], [], 0
    for num_loops in loops:
        (found,) = session.run(None, {"inputs": inputs.numpy(), "num_loops": np.array(num_loops)})
        scores = torch.from_numpy(found)
        with torch.no_grad():
            expected, truth = ours(inputs, num_loops), exact(inputs, num_loops)
        differences.append(_largest_difference(scores, expected))
        roundings.append(_largest_difference(expected, truth))
        if run.task.spec.kind == "tokens":
            counted = torch.from_numpy(run.task.counted(inputs.numpy()))
            others += int((scores.argmax(dim=-1) != expected.argmax(dim=-1))[counted].sum())
    return Comparison(max(differences), max(roundings), others)


def _largest_difference(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of a score. Scores that overflow in both are equal; in one alone, they differ."""
    differences = torch.where(first.isfinite() | second.isfinite(), (first - second).abs(), 0.0)
    return float(differences.nan_to_num(nan=torch.inf, posinf=torch.inf).max())


def open_session(file: Path | bytes) -> "onnxruntime.InferenceSession":
    """Return an onnxruntime session on the CPU for a file or for its content."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    source = file if isinstance(file, bytes) else str(file)
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])


def _example(run: Run, batch: int) -> Tensor:
    """Return inputs like a test example, drawn without the task's data where they come with the weights."""
    if run.stored_example is not None:
        return torch.from_numpy(run.stored_example.inputs[:1]).repeat_interleave(batch, dim=0)
    examples = run.task.sample(EVALUATION_SEED, "test", range(batch), trained_size(run.config))
    return torch.from_numpy(examples.inputs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporters log and warn about their own parts."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
