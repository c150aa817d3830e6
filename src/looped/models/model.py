"""A whole model: the two ends that a task's `Spec` asks for, around a `LoopStack`."""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Generator, Tensor, nn

from looped.config import ModelConfig
from looped.kernels import rms_normalise
from looped.models.conditioning import sinusoid
from looped.models.flops import forward_flops
from looped.models.init import EMBEDDING_STD, embedding_weight, linear_weight
from looped.models.stack import LoopStack
from looped.tasks import Spec
from looped.utils.errors import require


class LoopModel(nn.Module):
    """Embedding, looped stack, read-out. `iterate` is the one loop that training, lens and pictures share."""

    def __init__(self, config: ModelConfig, spec: Spec, generator: Generator) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        vectors = spec.kind == "vectors"
        if vectors:
            self.embedding = nn.Parameter(linear_weight(config.dim, spec.input_size, generator))
        else:
            self.embedding = nn.Parameter(embedding_weight(spec.input_size, config.dim, generator))
        # The paper's ends are affine. For tokens a bias at the front says nothing new, and classes need none.
        self.b_embedding = nn.Parameter(torch.zeros(config.dim)) if vectors else None
        self.positions = nn.ParameterList(
            embedding_weight(size, config.dim, generator) for size in _position_tables(config, spec)
        )
        self.coordinates: Tensor
        self.register_buffer("coordinates", torch.tensor(spec.coordinates, dtype=torch.long), persistent=False)
        self.stack = LoopStack(config, causal=spec.causal, generator=generator)
        self.gain = nn.Parameter(torch.ones(config.dim)) if config.norm != "none" else None
        shared = _shares_ends(config, spec)
        self.head = None if shared else nn.Parameter(linear_weight(spec.output_size, config.dim, generator))
        self.b_head = nn.Parameter(torch.zeros(spec.output_size)) if vectors else None
        self.to(self.stack.dtype)

    def embed(self, inputs: Shaped[Tensor, "batch seq *size"]) -> Float[Tensor, "batch seq dim"]:
        """Tokens or vectors, and their positions, as the state's start."""
        self.check_inputs(inputs)
        seq_len = inputs.shape[1]
        require(
            self.config.positions not in ("learned", "coordinates") or seq_len <= self.spec.seq_len,
            f"{self.config.positions} positions reach {self.spec.seq_len} tokens, got a sequence of {seq_len}",
        )
        if self.spec.kind == "tokens":
            state = F.embedding(inputs, self.embedding)
        else:
            state = F.linear(inputs.to(self.embedding.dtype), self.embedding, self.b_embedding)
        if self.config.positions == "learned":
            state = state + self.positions[0][:seq_len]
        elif self.config.positions == "sinusoidal":
            places = torch.arange(seq_len, dtype=self.stack.count_dtype, device=state.device)
            # A sine's root mean square is 1 / sqrt(2): scaled so that a position weighs as much as a token.
            state = state + math.sqrt(2) * EMBEDDING_STD * sinusoid(places, self.config.dim).to(state.dtype)
        elif self.config.positions == "coordinates":
            for table, ids in zip(self.positions, self.coordinates, strict=True):
                state = state + F.embedding(ids[:seq_len], table)
        return state

    def iterate(
        self,
        inputs: Shaped[Tensor, "batch seq *size"],
        num_loops: int | None = None,
        backprop_loops: int | None = None,
    ) -> Iterator[Float[Tensor, "batch seq dim"]]:
        """The state after every loop."""
        return self.stack.iterate(self.embed(inputs), num_loops, backprop_loops)

    def states_at(
        self,
        inputs: Shaped[Tensor, "batch seq *size"],
        num_loops: int,
        read: Sequence[int],
        backprop_loops: int | None = None,
    ) -> Iterator[tuple[int, Float[Tensor, "batch seq dim"]]]:
        """(t, the state after loop t) for the loops `read`, from 0 and in order, by the engine that is set."""
        return self.stack.states_at(self.embed(inputs), num_loops, read, backprop_loops)

    def read_out(self, state: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq out"]:
        """What the model would answer from this state: class scores, or values."""
        hidden = self.hidden_for_head(state)
        scores = F.linear(hidden, self.head_weight.to(hidden.dtype)).to(state.dtype)
        return scores if self.b_head is None else scores + self.b_head

    def hidden_for_head(self, state: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        """What the head multiplies: the normalised state in the precision of the products."""
        if self.gain is not None:
            state = rms_normalise(state) * self.gain
        return state.to(self.stack.compute_dtype)

    @property
    def head_weight(self) -> Float[Tensor, "out dim"]:
        return self.embedding if self.head is None else self.head

    def forward(
        self,
        inputs: Shaped[Tensor, "batch seq *size"],
        num_loops: int | None = None,
        read: Sequence[int] | None = None,
    ) -> Float[Tensor, "*read batch seq out"]:
        """The answer after `num_loops` loops; with `read`, the answers after each of those loops, stacked in front."""
        num_loops = self.stack.checked_loops(num_loops)
        wanted = {num_loops} if read is None else set(read)
        require(
            bool(wanted) and all(loop in range(1, num_loops + 1) for loop in wanted),
            f"read must name loops in 1..{num_loops}, got {tuple(read or ())}",
        )
        states = self.states_at(inputs, num_loops, [loop - 1 for loop in sorted(wanted)])
        answers = {t + 1: self.read_out(state) for t, state in states}
        return answers[num_loops] if read is None else torch.stack([answers[loop] for loop in read])

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def flops(self, num_loops: int | None = None, seq_len: int | None = None, num_reads: int = 1) -> int:
        """Of one forward pass over one sequence, read out `num_reads` times."""
        num_loops = self.stack.checked_loops(num_loops)
        seq_len = self.spec.seq_len if seq_len is None else seq_len
        return forward_flops(self.config, self.spec, num_loops, seq_len, num_reads)

    def check_inputs(self, inputs: Tensor) -> None:
        """Raise InputError unless `inputs` has the shape, type and values that the task asks for."""
        require(
            isinstance(inputs, Tensor), f"expected a tensor (torch.as_tensor makes one), got {type(inputs).__name__}"
        )
        size, shape = self.spec.input_size, tuple(inputs.shape)
        require(inputs.numel() > 0, f"expected at least one example of at least one token, got the shape {shape}")
        if self.spec.kind == "vectors":
            require(len(shape) == 3 and shape[2] == size, f"expected inputs (batch, seq, {size}), got {shape}")
            return
        require(len(shape) == 2, f"expected token ids (batch, seq), got the shape {shape}")
        require(not inputs.is_floating_point(), f"expected whole numbers as token ids, got {inputs.dtype}")
        if inputs.device.type == "cpu":  # elsewhere a look at the values would wait for the device
            low, high = int(inputs.min()), int(inputs.max())
            require(low >= 0 and high < size, f"expected token ids in 0..{size - 1}, got {low if low < 0 else high}")


def _shares_ends(config: ModelConfig, spec: Spec) -> bool:
    """Whether one table of tokens serves both ends."""
    shared = spec.shared_vocabulary if config.tie_embeddings == "task" else config.tie_embeddings == "yes"
    require(
        not shared or spec.can_share_vocabulary,
        f"tie_embeddings: expected a task whose answers are tokens of its inputs, such as countdown, got "
        f"{spec.input_size} inputs and {spec.output_size} answers",
    )
    return shared


def _position_tables(config: ModelConfig, spec: Spec) -> list[int]:
    """The sizes of the learned position tables."""
    if config.positions == "learned":
        return [spec.seq_len]
    if config.positions == "coordinates":
        require(bool(spec.coordinates), "positions 'coordinates' need a task with coordinates, such as sudoku")
        return [max(ids) + 1 for ids in spec.coordinates]
    return []


def build_model(config: ModelConfig, spec: Spec, seed: int = 0) -> LoopModel:
    """A freshly initialised model: the same weights for the same config, spec and seed, on every device."""
    return LoopModel(config, spec, torch.Generator().manual_seed(seed))


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Copy named tensors into a model. Raise InputError, which names `origin`, unless all names and shapes match."""
    own = dict(model.named_parameters())
    missing, foreign = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    require(not missing, f"the weights of {origin} belong to another model: they lack {', '.join(missing[:3])}")
    require(not foreign, f"the weights of {origin} belong to another model: this one lacks {', '.join(foreign[:3])}")
    with torch.no_grad():
        for name, parameter in own.items():
            shape = tuple(weights[name].shape)
            require(
                shape == tuple(parameter.shape),
                f"{name} of {origin}: expected shape {tuple(parameter.shape)}, got {shape}",
            )
            parameter.copy_(weights[name])
