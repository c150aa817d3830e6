"""Feed a causal model piece by piece: keys and values are stored for every (loop, layer) and never computed again.

In loop t, a token attends to the keys and values that earlier tokens had in loop t. So there is one slot for each pair
(loop, layer), and the scores equal those of a pass over the whole text, for any number of loops.
"""

from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.inference.early_exit import ExitRule
from looped.kernels import Remember, padding_bias
from looped.kernels.cuda_graphs import Replayed
from looped.models import LoopModel, LoopStack
from looped.utils.errors import InputError, require, require_counts
from looped.utils.memory import memory_for
from looped.utils.text import plural


class KeyValueCache:
    """Memory for the keys and values of `capacity` tokens in every (loop, layer)."""

    def __init__(self, stack: LoopStack, num_loops: int, batch: int, capacity: int) -> None:
        config = stack.config
        shape = (num_loops, config.num_layers, 2, batch, config.num_heads, capacity, config.dim // config.num_heads)
        with memory_for(f"{plural(capacity, 'token')} in {plural(num_loops, 'loop')}", "fewer tokens or loops"):
            # Zeros, because a masked place must not hold NaN: 0 * NaN is NaN.
            self.memory = torch.zeros(shape, dtype=stack.compute_dtype, device=stack.device)

    def slots(self, loop: int, places: Int[Tensor, " seq"], end: int) -> list[Remember]:
        """Return the cache of each layer in a loop: it writes at `places` and returns everything before `end`."""
        return [partial(_write_and_read, slot, places, end) for slot in self.memory[loop]]

    def stop(self, row: int, place: int, num_loops: int) -> None:
        """Fill the skipped loops of a token with the keys and values of its last loop."""
        self.memory[num_loops:, :, :, row, :, place] = self.memory[num_loops - 1, :, :, row, :, place]


def _write_and_read(slot: Tensor, places: Tensor, end: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    for memory, new in zip(slot, (key, value), strict=True):
        memory.index_copy_(2, places, new)
    return slot[0, :, :, :end], slot[1, :, :, :end]


class Decoder:
    """A causal model that reads a batch of texts piece by piece and remembers what it has read.

    `padding` is the number of padding tokens before each text. No token attends to them, and positions count from the
    first token of the text. On a GPU, single tokens are read by one CUDA graph.
    """

    @torch.no_grad()
    def __init__(
        self, model: LoopModel, capacity: int, padding: Int[Tensor, " batch"], num_loops: int | None = None
    ) -> None:
        stack = model.stack
        require(stack.causal and model.spec.kind == "tokens", "model: expected a causal model of tokens")
        plain = not stack.config.extensions and model.prelude is None and model.coda is None
        require(plain, "model: expected Transformer layers in the loop alone, because a cache covers nothing else")
        require_counts(capacity=capacity)
        limited = model.config.positions == "learned" and capacity > model.spec.seq_len
        if limited:
            expected = f"at most {model.spec.seq_len} tokens with the prompt, because positions are learned"
            raise InputError(f"max_tokens: expected {expected}, got {capacity}")
        self.model, self.num_loops, self.capacity = model, stack.checked_loops(num_loops), capacity
        self.padding, self.is_padded = padding.to(stack.device), bool(padding.any())
        self.mask = torch.arange(capacity, device=stack.device) >= self.padding[:, None]
        self.cache = KeyValueCache(stack, self.num_loops, len(padding), capacity)
        self.length = 0
        """number of places read so far, with padding"""
        self._prepared = stack.prepare(self.num_loops, 1, stack.device)
        self._replayed = Replayed(self._read_at, most=1) if stack.device.type == "cuda" else None

    @torch.no_grad()
    def read(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocabulary"]:
        """Return the scores of the next token at every place of a piece, and remember the piece."""
        places = self._next_places(tokens)
        if self._replayed is not None and tokens.shape[1] == 1:
            return self._replayed((tokens, places))[0]
        *_, (_, state) = self._states(tokens, places, self.length)
        return self.model.read_out(state)

    @torch.no_grad()
    def read_until(
        self, tokens: Int[Tensor, "batch 1"], rule: ExitRule
    ) -> tuple[Float[Tensor, "batch 1 vocabulary"], list[int]]:
        """Read one token per text until an exit rule stops it; return the scores and the number of loops of each.

        The loops end when the tokens of all texts have stopped. In the loops that a token skipped, later tokens attend
        to the keys and values of its last loop.
        """
        places, watch = self._next_places(tokens), rule.watcher()
        owners = torch.arange(len(tokens), device=tokens.device)
        loops = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
        shape = len(tokens), 1, self.model.spec.output_size
        scores = torch.empty(shape, dtype=self.model.stack.dtype, device=tokens.device)
        for loop, state in self._states(tokens, places, self.length):
            done, read = watch.look(self.model, state, state[:, 0], owners)
            leaving = (done | (loop == self.num_loops)) & (loops == 0)
            if not leaving.any():
                continue
            scores[leaving, 0] = read(leaving)
            loops[leaving] = loop
            if (loops > 0).all():
                break
        for row, num_loops in enumerate(loops.tolist()):
            self.cache.stop(row, self.length - 1, num_loops)
        return scores, loops.tolist()

    def _next_places(self, tokens: Tensor) -> Tensor:
        first, self.length = self.length, self.length + tokens.shape[1]
        require(self.length <= self.capacity, f"tokens: expected at most {self.capacity} in all, got {self.length}")
        return torch.arange(first, self.length, device=tokens.device)

    def _read_at(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor]:
        """Read tokens at places that are known on the device only, so that one CUDA graph serves all."""
        *_, (_, state) = self._states(*given, self.capacity)
        return (self.model.read_out(state),)

    def _states(self, tokens: Tensor, places: Tensor, end: int) -> Iterator[tuple[int, Tensor]]:
        """Yield (number of loops done, state) while keys and values go into the cache."""
        stack = self.model.stack
        positions = (places - self.padding[:, None]).clamp(min=0)
        embeddings = self.model.embed(tokens, positions)
        bias = None  # causal attention within the piece
        if self.is_padded or tokens.shape[1] < end:
            bias = padding_bias(self.mask[:, :end], causal=True, dtype=stack.compute_dtype, queries=places)
        prepared = self._prepared._replace(rotation=stack.rotation_at(positions[:, None]), bias=bias)
        state = stack.start(embeddings)
        for t in range(self.num_loops):
            state = stack.loop(state, embeddings, prepared, t, self.cache.slots(t, places, end))
            yield t + 1, state
