"""Where and how the loops are computed. Engines give the same numbers; they differ in speed alone."""

import warnings
from typing import Literal

import torch

from looped import kernels
from looped.errors import InputError
from looped.models import LoopStack


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("train.device 'cuda' needs a GPU that PyTorch can see, found none")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def prepare_engine(
    stack: LoopStack, wanted: Literal["auto", "eager", "compiled"], device: torch.device
) -> Literal["eager", "compiled"]:
    """Let a stack use the chosen engine; returns its name.

    The two sublayers are compiled, not the loop: the graph is the same whatever the number of loops.
    """
    engine = wanted if wanted != "auto" else ("compiled" if device.type == "cuda" else "eager")
    if engine == "compiled":
        # Inductor tells of float32 products that could be TF32; we want the precision that was asked for.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        stack.add_attention = torch.compile(kernels.add_attention, dynamic=False)
        stack.add_feed_forward = torch.compile(kernels.add_feed_forward, dynamic=False)
    return engine
