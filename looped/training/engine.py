"""Where and how the loops are computed. Engines give the same numbers; they differ in speed alone.

eager     plain PyTorch
compiled  the two sublayers compiled (one graph whatever the number of loops); on a GPU, forward and backward of all
          loops are also captured as one CUDA graph per loop count and shape, since at r = 100 it is the launching of
          thousands of small kernels, one by one from Python, that takes the time
"""

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from looped import kernels
from looped.errors import InputError
from looped.models import LoopModel
from looped.training.objective import TensorBatch

Gradients = Callable[[TensorBatch, int], Tensor]
"""Fills the parameters' gradients for a batch and a number of loops, and returns what was seen on the way."""

WARM_UPS = 3


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("train.device 'cuda' needs a GPU that PyTorch can see, found none")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def prepare_engine(
    model: LoopModel, gradients: Gradients, wanted: Literal["auto", "eager", "compiled"], device: torch.device
) -> Gradients:
    """Let a model use the chosen engine; returns the function that computes gradients with it."""
    engine = wanted if wanted != "auto" else ("compiled" if device.type == "cuda" else "eager")
    if engine == "eager":
        return gradients
    # One compilation per shape: a curriculum has up to sixteen, with and without gradients.
    torch._dynamo.config.recompile_limit = 64
    # Inductor tells of float32 products that could be TF32; we want the precision that was asked for.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    model.stack.add_attention = torch.compile(kernels.add_attention, dynamic=False)
    model.stack.add_feed_forward = torch.compile(kernels.add_feed_forward, dynamic=False)
    return GraphedGradients(gradients, model.parameters()) if device.type == "cuda" else gradients


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: TensorBatch
    """the memory that the graph reads its batch from"""
    seen: Tensor
    gradients: list[Tensor | None]


class GraphedGradients:
    """Gradients replayed from CUDA graphs, one per loop count and batch shape, captured when first needed."""

    def __init__(self, gradients: Gradients, parameters: Iterable[nn.Parameter]) -> None:
        self.plain = gradients
        self.parameters = list(parameters)
        self.captured: dict[tuple[int, torch.Size], _Captured] = {}
        self.usable = True

    def __call__(self, batch: TensorBatch, num_loops: int) -> Tensor:
        if not self.usable:
            return self.plain(batch, num_loops)
        key = num_loops, batch.inputs.shape
        if key not in self.captured:
            try:
                self.captured[key] = self._capture(batch, num_loops)
            except RuntimeError as error:
                self.usable = False
                print(f"looped: no CUDA graph, kernels are launched one by one ({error})", file=sys.stderr)
                return self.plain(batch, num_loops)
        captured = self.captured[key]
        for memory, tensor in zip(captured.batch, batch, strict=True):
            memory.copy_(tensor, non_blocking=True)
        captured.graph.replay()
        for parameter, gradient in zip(self.parameters, captured.gradients, strict=True):
            parameter.grad = gradient
        return captured.seen.clone()

    def _capture(self, batch: TensorBatch, num_loops: int) -> _Captured:
        memory = TensorBatch(*(tensor.clone() for tensor in batch))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):  # compiles, and lets libraries set up what a capture may not
                self._forget_gradients()
                self.plain(memory, num_loops)
        torch.cuda.current_stream().wait_stream(side)
        self._forget_gradients()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            seen = self.plain(memory, num_loops)
        return _Captured(graph, memory, seen, [parameter.grad for parameter in self.parameters])

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
