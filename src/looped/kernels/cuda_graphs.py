"""Replay functions of tensors from CUDA graphs, and run independent work on several streams.

With 100 loops, launching thousands of small kernels from Python takes longer than running them. A graph launches all of
them at once.
"""

import gc
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])

PLAIN_CALLS = 2


@cache
def stream_for(purpose: str, device: torch.device) -> torch.cuda.Stream:
    """Return the stream for a purpose. Streams are reused because libraries keep memory for each one they have seen."""
    return torch.cuda.Stream(device)


def side_by_side(calls: Sequence[Callable[[], object]], device: torch.device) -> None:
    """Run independent calls at the same time, all but the first on side streams."""
    current = torch.cuda.current_stream(device)
    side_streams = [stream_for(f"call {number} of several", device) for number in range(1, len(calls))]
    for stream in side_streams:
        stream.wait_stream(current)
    try:
        calls[0]()
        for stream, call in zip(side_streams, calls[1:], strict=True):
            with torch.cuda.stream(stream):
                call()
    finally:  # even after an error, because the memory will be reused
        for stream in side_streams:
            current.wait_stream(stream)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection inside this block: destroying an old graph would abort a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    """the memory that the graph reads"""
    outputs: tuple[Tensor, ...]


class Replayed(Generic[Tensors]):
    """Call `function(tensors, *arguments)` from a CUDA graph, one per shape, dtype, arguments and value of `also`.

    The first calls of each kind run without a graph, so that compilers, libraries and optimizers can set up what a
    capture may not. With `most`, only that many graphs are captured; if memory runs out, the function runs without one.

    If the function contains collectives, `agree` must return whether a capture succeeded on every rank: NCCL allows a
    graph on all ranks or on none.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        most: int | None = None,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        self.function, self.most, self.agree = function, most, agree
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
            has_room = self.most is None or len(self.captured) < self.most
            if not self.usable or calls < PLAIN_CALLS or not (has_room or key in self.captured):
                self.plain_calls[key] = calls + 1
                return self._warm_up(tensors, arguments)
            if key not in self.captured:
                problem = self._try_capture(key, tensors, arguments)
                if not self.agree(problem is None):
                    if isinstance(problem, torch.OutOfMemoryError) and self.most is None:
                        raise problem
                    self.usable = False
                    self.drop_graphs()
                    reason = str(problem or "the capture failed on another rank").partition("\n")[0]
                    print(f"looped: no CUDA graph, kernels are launched one by one ({reason})", file=sys.stderr)
                    return self.function(tensors, *arguments)
            captured = self.captured[key]
            for memory, tensor in zip(captured.inputs, tensors, strict=True):
                memory.copy_(tensor, non_blocking=True)
            captured.graph.replay()
            return tuple(tensor.clone() for tensor in captured.outputs)

    def drop_graphs(self) -> None:
        """Free all graphs. Graphs with collectives must be gone before their process group is."""
        self.captured.clear()

    def _warm_up(self, tensors: Tensors, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Call the function on the stream of the captures, because libraries and NCCL set themselves up per stream."""
        stream = _capture_stream(tensors)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.function(tensors, *arguments)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _try_capture(self, key: Hashable, tensors: Tensors, arguments: tuple[Any, ...]) -> RuntimeError | None:
        """Capture a graph and return None, or return why that failed."""
        make: Any = getattr(type(tensors), "_make", tuple)  # a named tuple stays one
        inputs: Tensors = make(tensor.clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        stream, before = _capture_stream(tensors), torch.cuda.current_stream()
        # thread_local: other threads may pin memory or, in NCCL's watchdog, query events meanwhile.
        capture = torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local")
        try:
            with _without_garbage_collection(), capture:
                outputs = self.function(inputs, *arguments)
        except RuntimeError as error:
            _clean_up(stream, before)
            return error
        self.captured[key] = _Captured(graph, inputs, outputs)
        return None


def _clean_up(stream: torch.cuda.Stream, before: torch.cuda.Stream) -> None:
    """Undo what PyTorch leaves behind where a capture cannot be ended.

    Its stream stays the current one. The generator of random numbers stays in the state of a capture, in which drawing
    from it and replaying other graphs raises an error, until another capture ends.
    """
    torch.cuda.set_stream(before)
    another = torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local")
    with suppress(RuntimeError), _without_garbage_collection(), another:
        torch.zeros(1, device=stream.device)
    torch.cuda.set_stream(before)


def _capture_stream(tensors: tuple[Tensor, ...]) -> torch.cuda.Stream:
    return stream_for("warm-up and capture", tensors[0].device)
