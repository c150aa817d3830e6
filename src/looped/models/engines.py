"""How the loops are computed. Engines give the same numbers within stated tolerances; they differ in speed.

eager     plain PyTorch
compiled  the two sublayers compiled, one graph whatever the number of loops
fused     all loops as one function with a backward pass of its own (`kernels/triton_loops.py`)

On a GPU, the last two capture the whole step as one CUDA graph per loop count and shape (`kernels/cuda_graphs.py`).
"""

import platform
import sys
import warnings
from collections.abc import Callable
from typing import Any, get_args

import torch

from looped import kernels
from looped.models import LoopStack
from looped.models.fused import FusedLoops, why_not_float8, why_not_fused
from looped.utils.errors import InputError, require_one_of
from looped.utils.text import plural
from looped.utils.types import Device, Engine, EngineChoice


def describe_device(device: torch.device) -> str:
    """Return a device in words, for records and benchmarks."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"Apple GPU, {platform.machine()}"
    return f"CPU, {plural(torch.get_num_threads(), 'thread')}, {platform.machine()}"


def choose_device(wanted: Device) -> torch.device:
    """Return the device to use. Raise InputError if a GPU is asked for and there is none."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' needs a GPU that PyTorch can see, found none")
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps' needs an Apple GPU that PyTorch can see, found none")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def set_engine(stack: LoopStack, wanted: EngineChoice = "auto") -> Engine:
    """Let a stack compute its loops on its device with an engine or the next best one, and return that engine."""
    engine = _set_engine(stack, wanted)
    if stack.config.precision == "float8":
        reason = why_not_float8(stack) if engine == "fused" else f"the {engine} engine does not have it"
        if reason is not None:
            print(f"looped: matmuls in bfloat16 instead of float8: {reason}", file=sys.stderr)
    return engine


def _set_engine(stack: LoopStack, wanted: EngineChoice) -> Engine:
    require_one_of("engine", wanted, get_args(EngineChoice))
    device = stack.device
    # As it was made: it may have had another engine before.
    stack.all_loops, stack.add_attention, stack.add_feed_forward = None, kernels.add_attention, kernels.add_feed_forward
    if wanted == "auto":
        wanted = "fused" if device.type == "cuda" else "eager"
    if wanted == "fused":
        reason = why_not_fused(stack)
        if reason is None:
            stack.all_loops = FusedLoops(stack)
            return "fused"
        wanted = "compiled" if device.type == "cuda" else "eager"
        print(f"looped: not the fused kernels but the {wanted} engine: {reason}", file=sys.stderr)
    if wanted == "compiled":
        # Inductor tells of float32 products that could be TF32; we want the precision that was asked for.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        stack.add_attention = Compiled(stack.add_attention)
        stack.add_feed_forward = Compiled(stack.add_feed_forward)
    return wanted


class Compiled:
    """A function, compiled for every shape that it is called with: a curriculum has up to sixteen, with and without
    gradients."""

    def __init__(self, function: Callable[..., Any]) -> None:
        torch._dynamo.config.recompile_limit = 64
        self.function, self._fast = function, torch.compile(function, dynamic=False)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._fast(*args, **options)

    def __reduce__(self) -> tuple[type["Compiled"], tuple[Callable[..., Any]]]:
        """So that a whole stack can be pickled: machine code cannot, and is made anew where it is called."""
        return Compiled, (self.function,)
