"""Functions of tensors, replayed from CUDA graphs; and streams for work beside the current one.

At r = 100 it is the launching of thousands of small kernels, one by one from Python, that would take the time: a graph
launches them all at once.
"""

import gc
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])

PLAIN_CALLS = 2


@cache
def stream_for(purpose: str, device: torch.device) -> torch.cuda.Stream:
    """One for each purpose: libraries keep memory for every stream that they have seen."""
    return torch.cuda.Stream(device)


def side_by_side(calls: Sequence[Callable[[], object]], device: torch.device) -> None:
    """Run calls that have nothing to do with each other, all but the first on streams beside the current one."""
    here = torch.cuda.current_stream(device)
    beside = [stream_for(f"call {number} of several", device) for number in range(1, len(calls))]
    for stream in beside:
        stream.wait_stream(here)
    try:
        calls[0]()
        for stream, call in zip(beside, calls[1:], strict=True):
            with torch.cuda.stream(stream):
                call()
    finally:  # whatever happened, the memory of all this will be used again
        for stream in beside:
            here.wait_stream(stream)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """No garbage collection inside: one that finds the graph of a model no longer used would end a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    given: tuple[Tensor, ...]
    """the memory that the graph reads its tensors from"""
    found: tuple[Tensor, ...]


class Replayed(Generic[Tensors]):
    """`function(tensors, *arguments)`, captured once per kind of tensors, arguments and whatever `also` names.

    The first calls of a kind run plainly: they compile, and let libraries and optimizers set up what a capture may not.
    With `most`, so many kinds are captured, and where memory does not suffice for it, none: a graph holds its own.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], most: int | None = None) -> None:
        self.function, self.most = function, most
        self.plain_calls: dict[Hashable, int] = {}
        self.captured: dict[Hashable, _Captured] = {}
        self.usable = True
        # Graphs run one after the other and leave nothing behind in their memory, so they can share it.
        self._pool = torch.cuda.graph_pool_handle()
        self._one_at_a_time = threading.Lock()

    def __call__(self, tensors: Tensors, *arguments: Hashable, also: Hashable = None) -> tuple[Tensor, ...]:
        kinds = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
        key = kinds, arguments, also, torch.is_inference_mode_enabled()
        with self._one_at_a_time:
            calls = self.plain_calls.get(key, 0)
            room = self.most is None or len(self.captured) < self.most
            if not self.usable or calls < PLAIN_CALLS or not (room or key in self.captured):
                self.plain_calls[key] = calls + 1
                return self._aside(tensors, arguments)
            if key not in self.captured:
                try:
                    self.captured[key] = self._capture(tensors, arguments)
                except RuntimeError as error:
                    if isinstance(error, torch.OutOfMemoryError) and self.most is None:
                        raise
                    self.usable = False
                    print(f"looped: no CUDA graph, kernels are launched one by one ({error})", file=sys.stderr)
                    return self.function(tensors, *arguments)
            captured = self.captured[key]
            for memory, tensor in zip(captured.given, tensors, strict=True):
                memory.copy_(tensor, non_blocking=True)
            captured.graph.replay()
            return tuple(tensor.clone() for tensor in captured.found)

    def _aside(self, tensors: Tensors, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Call on a stream of its own, as a capture will."""
        side = stream_for("calls before a capture", tensors[0].device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = self.function(tensors, *arguments)
        torch.cuda.current_stream().wait_stream(side)
        return found

    def _capture(self, tensors: Tensors, arguments: tuple[Any, ...]) -> _Captured:
        make: Any = getattr(type(tensors), "_make", tuple)  # a named tuple stays one
        given: Tensors = make(tensor.clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        with _nothing_collected(), torch.cuda.graph(graph, pool=self._pool):
            found = self.function(given, *arguments)
        return _Captured(graph, given, found)
