"""How the loops are computed. Engines give the same numbers within stated tolerances; they differ in speed.

eager     plain PyTorch
compiled  the two sublayers compiled, one graph whatever the number of loops
fused     all loops as one function with a backward pass of its own (`kernels/triton_loops.py`)

On a GPU the whole step is also captured as one CUDA graph per loop count and shape: at r = 100 it is the launching of
thousands of small kernels, one by one from Python, that would take the time.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from looped import kernels
from looped.errors import InputError
from looped.models import LoopModel
from looped.models.fused import FusedLoops, why_not_fused
from looped.training.objective import TensorBatch

Engine = Literal["eager", "compiled", "fused"]
Step = Callable[[TensorBatch, int], Tensor]
"""One optimizer step on a batch with a number of loops; returns what was seen on the way."""

PLAIN_STEPS = 2


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("train.device 'cuda' needs a GPU that PyTorch can see, found none")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def set_engine(model: LoopModel, wanted: Literal["auto", "eager", "compiled", "fused"], device: torch.device) -> Engine:
    """Let a model compute its loops with the chosen engine, or with the next best one; returns which."""
    if wanted == "auto":
        wanted = "fused" if device.type == "cuda" else "eager"
    if wanted == "fused":
        reason = why_not_fused(model.config, device)
        if reason is None:
            model.stack.all_loops = FusedLoops(model.stack)
            return "fused"
        wanted = "compiled" if device.type == "cuda" else "eager"
        print(f"looped: not the fused kernels but the {wanted} engine: {reason}", file=sys.stderr)
    if wanted == "compiled":
        # One compilation per shape: a curriculum has up to sixteen, with and without gradients.
        torch._dynamo.config.recompile_limit = 64
        # Inductor tells of float32 products that could be TF32; we want the precision that was asked for.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        model.stack.add_attention = torch.compile(kernels.add_attention, dynamic=False)
        model.stack.add_feed_forward = torch.compile(kernels.add_feed_forward, dynamic=False)
    return wanted


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: TensorBatch
    """the memory that the graph reads its batch from"""
    seen: Tensor


class CapturedSteps:
    """Steps replayed from CUDA graphs, one per loop count and batch shape.

    The first steps of a kind run plainly: they compile, and let libraries and optimizers set up what a capture may not.
    """

    def __init__(self, step: Step) -> None:
        self.plain = step
        self.plain_steps: dict[tuple[int, torch.Size], int] = {}
        self.captured: dict[tuple[int, torch.Size], _Captured] = {}
        self.usable = True
        # Graphs run one after the other and leave nothing behind in their memory, so they can share it.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: TensorBatch, num_loops: int) -> Tensor:
        key = num_loops, batch.inputs.shape
        done = self.plain_steps.get(key, 0)
        if not self.usable or done < PLAIN_STEPS:
            self.plain_steps[key] = done + 1
            return self._aside(batch, num_loops)
        if key not in self.captured:
            try:
                self.captured[key] = self._capture(batch, num_loops)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self.usable = False
                print(f"looped: no CUDA graph, kernels are launched one by one ({error})", file=sys.stderr)
                return self.plain(batch, num_loops)
        captured = self.captured[key]
        for memory, tensor in zip(captured.batch, batch, strict=True):
            memory.copy_(tensor, non_blocking=True)
        captured.graph.replay()
        return captured.seen.clone()

    def _aside(self, batch: TensorBatch, num_loops: int) -> Tensor:
        """Run a step on a stream of its own, as a capture will."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            seen = self.plain(batch, num_loops)
        torch.cuda.current_stream().wait_stream(side)
        return seen

    def _capture(self, batch: TensorBatch, num_loops: int) -> _Captured:
        memory = TensorBatch(*(tensor.clone() for tensor in batch))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            seen = self.plain(memory, num_loops)
        return _Captured(graph, memory, seen)
