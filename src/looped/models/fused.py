"""All loops of a stack on the fused kernels, where these cover what it does; without gradients, in one launch."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from looped.kernels import LayerWeights, Modulation, Rotation
from looped.kernels.cuda_graphs import Replayed
from looped.kernels.library import without_timing
from looped.models.stack import Advance, LoopStack

OLDEST_CARD, OLDEST_FOR_FLOAT8 = (8, 0), (9, 0)
MOST_GRAPHS, MOST_BYTES = 8, 2**30
"""of graphs that one model's answers are replayed from, and of the states that one of them holds"""
BLOCK = 4
"""loops that are computed at once where examples may leave after any of them; a larger block folds the modulation into
the matrices less often, but goes further past an exit"""

RunLoops = Callable[[Tensor, Tensor | None, int, Sequence[int]], tuple[Tensor, ...]]
"""(input of the first loop, what later ones inject, first loop, loops to read) -> states"""


def why_not_fused(stack: LoopStack) -> str | None:
    """Return why the fused kernels do not support a stack on its device, or None if they do."""
    config, device = stack.config, stack.device
    if find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "they need a GPU"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST_CARD:
        return f"they need compute capability {OLDEST_CARD[0]}.{OLDEST_CARD[1]}, and the card is older"
    missing = {
        f"weights in {str(stack.dtype).removeprefix('torch.')}": stack.dtype != torch.float32,
        "hardmax attention": config.attention_weights != "softmax",
        f"norm {config.norm!r}": config.norm != "rms",
        "injection 'concat'": config.injection == "concat",
        "conditioning 'additive'": config.resolved_conditioning == "additive",
        "heads of odd size": config.dim // config.num_heads % 2 == 1,
        **dict.fromkeys(config.extensions, True),
    }
    found = [what for what, here in missing.items() if here]
    return f"they do not cover {found[0]}" if found else None


def why_not_float8(stack: LoopStack) -> str | None:
    """Return why a stack's matmuls cannot have 8-bit factors on its device, or None if they can."""
    if stack.device.type != "cuda":
        return None if os.environ.get("TRITON_INTERPRET") == "1" else "it needs a GPU"
    if torch.cuda.get_device_capability(stack.device) < OLDEST_FOR_FLOAT8:
        return f"it needs compute capability {OLDEST_FOR_FLOAT8[0]}.{OLDEST_FOR_FLOAT8[1]}, and the card is older"
    return None


class FusedLoops:
    """`LoopStack.all_loops` on the fused kernels."""

    def __init__(self, stack: LoopStack) -> None:
        self.stack = stack
        self._replayed: Replayed[tuple[Tensor]] | None = None

    def __call__(
        self, embeddings: Tensor, num_loops: int, read: Sequence[int], first_with_grad: int
    ) -> tuple[Tensor, ...]:
        with _on_device_of(embeddings):
            if not self._can_replay(embeddings, len(read)):
                return self._launched((embeddings,), num_loops, tuple(read), first_with_grad)
            if self._replayed is None:
                self._replayed = Replayed(self._launched, most=MOST_GRAPHS)
            # A graph knows the weights by where they are.
            places = tuple(parameter.data_ptr() for parameter in self.stack.parameters())
            return self._replayed((embeddings,), num_loops, tuple(read), 0, also=places)

    def advancer(self, num_loops: int, embeddings: Tensor) -> Advance:
        """Return what `LoopStack.advancer` does. It computes up to `BLOCK` loops in one call."""
        injects = self.stack.config.injection == "add"
        with _on_device_of(embeddings):
            run = self._runner(num_loops, embeddings)

        def advance(state: Tensor, embeddings: Tensor, t: int) -> tuple[Tensor, ...]:
            x, inject = (state + embeddings, embeddings) if injects else (state, None)
            # Graphs and timed matmuls would not pay: they serve one batch size, which seldom comes back.
            with _on_device_of(embeddings), without_timing():
                return run(x, inject, t, range(t, min(t + BLOCK, num_loops)))

        return advance

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without CUDA graphs, which belong to the memory that they were captured with."""
        return {"stack": self.stack, "_replayed": None}

    def _can_replay(self, embeddings: Tensor, num_states: int) -> bool:
        if torch.is_grad_enabled() or not embeddings.is_cuda or torch.cuda.is_current_stream_capturing():
            return False
        return num_states * embeddings.nbytes <= MOST_BYTES

    def _launched(
        self,
        given: tuple[Tensor],
        num_loops: int,
        read: tuple[int, ...],
        first_with_grad: int,
    ) -> tuple[Tensor, ...]:
        (embeddings,) = given
        inject = embeddings if self.stack.config.injection == "add" else None
        run = self._runner(num_loops, embeddings)
        if first_with_grad == 0:
            return run(embeddings, inject, 0, read)
        with torch.no_grad():
            early = [t for t in read if t < first_with_grad]
            *states, state = run(embeddings, inject, 0, sorted({*early, first_with_grad - 1}))
            states = (*states, state) if first_with_grad - 1 in early else tuple(states)
        late = [t for t in read if t >= first_with_grad]
        # What is injected into the first loop with a gradient has one too.
        state = state if inject is None else state + inject
        return states + run(state, inject, first_with_grad, late) if late else states

    def _runner(self, num_loops: int, embeddings: Tensor) -> RunLoops:
        """Return a function that runs some of the loops, with tables that are made once for all of them."""
        from looped.kernels.triton_loops import LoopPlan, fused_loops

        stack, config = self.stack, self.stack.config
        tables = stack.modulation(num_loops, embeddings.device)
        layers = [LayerWeights(*(getattr(layer, name) for name in LayerWeights._fields)) for layer in stack.layers]
        angles = stack.rotation(embeddings.shape[1], embeddings.device)
        rotation = None if angles is None else Rotation(*(each.to(stack.compute_dtype) for each in angles))

        def run(x: Tensor, inject: Tensor | None, first: int, wanted: Sequence[int]) -> tuple[Tensor, ...]:
            last = wanted[-1] + 1
            plan = LoopPlan(
                num_loops=last - first,
                read=tuple(t - first for t in wanted),
                num_heads=config.num_heads,
                causal=stack.causal,
                activation=config.activation,
                compute_dtype=stack.compute_dtype,
                rotation=rotation,
                remat=stack.remat,
                growth_limit=stack.growth_limit,
                float8=config.precision == "float8" and why_not_float8(stack) is None,
            )
            attention, feed_forward = (
                Modulation(*(None if table is None else table[first:last] for table in each)) for each in tables
            )
            return fused_loops(plan, x, inject, attention, feed_forward, layers)

        return run


@contextmanager
def _on_device_of(tensor: Tensor) -> Iterator[None]:
    """Compute on a tensor's device, in the precision of the config.

    Autocast would reach the tables alone, and a graph would keep the precision that it was captured with.
    """
    with torch.cuda.device_of(tensor), torch.autocast(tensor.device.type, enabled=False):
        yield
