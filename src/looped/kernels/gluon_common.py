"""Helpers of the Gluon kernels, and the names that differ between versions of Triton.

Gluon is experimental, so every Gluon kernel has a Triton kernel or a library call that computes the same. `attempt`
returns whether a launch succeeded, and the caller falls back if it did not.
"""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright does not understand @gluon.jit.

import sys
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Triton 3.9 still has the names of 3.6, but they only raise an error.
copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

# A sequence of 65 to 128 tokens is two tiles: its first 64 tokens and its last 64. Below 128 tokens, the tiles overlap.
# Tokens in both are computed twice, with equal results, and `pairs_seen` counts them once in attention.
SHORTEST, LONGEST = 65, 128
HEAD = 64
"""channels of a head in the attention kernels"""
POWER = gl.constexpr(HEAD**-0.5 * 1.4426950408889634)
"""factor of the scores in powers of 2: the scale of attention times log2(e)"""
HOPPER = 9
"""compute capability of the GPUs with the instructions of these kernels"""
_failed: set[str] = set()


def attempt(purpose: str, launch: Callable[[], object]) -> bool:
    """Launch a kernel and return True. If it does not compile or start, print one line and return False."""
    if purpose in _failed:
        return False
    try:
        launch()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the compiler of an experimental language raises anything
        _failed.add(purpose)
        reason = next(iter(str(error).strip().splitlines()[-1:]), "")
        print(
            f"looped: {purpose} uses the Triton kernels, the Gluon kernel failed: {type(error).__name__} {reason}",
            file=sys.stderr,
        )
        return False
    return True


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors, each of which runs one program; 0 if the kernels cannot run."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != HOPPER:
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


def box_of(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Describe a tensor, flattened to two axes, for copies of (rows, columns) boxes."""
    box = [rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor.view(-1, tensor.shape[-1]), box, layout)


@gluon.jit
def tanh(x):
    """Return tanh by the hardware's approximation."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def pairs_of(x):
    """Split (rows, columns) into its even and its odd columns."""
    return gl.split(gl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@gluon.jit
def load_angles(angles_ptr, first, LAYOUT: gl.constexpr):
    """Load the cosines and sines of 64 positions, stored side by side as rows of 64 numbers."""
    rows = first + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, LAYOUT))
    return pairs_of(gl.load(angles_ptr + rows[:, None] * 64 + columns[None, :]))


@gluon.jit
def rotate(x, cos, sin, LAYOUT: gl.constexpr):
    """Rotate neighbouring columns of (64, 64) by their angles, in the higher of both precisions."""
    left, right = pairs_of(x)
    both = gl.join(left * cos - right * sin, left * sin + right * cos)
    return gl.convert_layout(gl.reshape(both, x.shape), LAYOUT, assert_trivial=True)


@gluon.jit
def pairs_seen(start, seq_len, CAUSAL: gl.constexpr, BY_KEY: gl.constexpr, LAYOUT: gl.constexpr):
    """Return which pairs of 64 queries, from position `start` on, and 128 keys count.

    Every key counts once, and with CAUSAL no later one does. With BY_KEY, rows are keys and columns are queries."""
    columns = gl.arange(0, 128, layout=gl.SliceLayout(0, LAYOUT))
    places = gl.where(columns < 64, columns, columns - (128 - seq_len))
    seen = ((columns < 64) | (places >= 64))[None, :]
    if CAUSAL:
        rows = start + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
        seen = seen & (places[None, :] >= rows[:, None] if BY_KEY else places[None, :] <= rows[:, None])
    return seen
