"""A complete model for a task's `Spec`: embedding, `LoopStack` and read-out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Generator, Tensor, nn

from looped.config import ModelConfig
from looped.kernels import rms_normalise
from looped.kernels.embedding import embed_tokens
from looped.models.conditioning import sinusoid
from looped.models.flops import forward_flops
from looped.models.init import EMBEDDING_STD, embedding_weight, linear_weight
from looped.models.module import ShapedModule
from looped.models.stack import LoopStack
from looped.tasks import Spec
from looped.utils.errors import InputError, require, require_type
from looped.utils.text import plural


class LoopModel(ShapedModule):
    """Embedding, looped stack and read-out. `iterate` yields the state after every loop."""

    def __init__(self, config: ModelConfig, spec: Spec, generator: Generator) -> None:
        require_type("config", config, ModelConfig)
        require_type("spec", spec, Spec)
        super().__init__()
        self.config, self.spec = config, spec
        takes_vectors = spec.kind == "vectors"
        if takes_vectors:
            self.embedding = nn.Parameter(linear_weight(config.dim, spec.input_size, generator))
        else:
            self.embedding = nn.Parameter(embedding_weight(spec.input_size, config.dim, generator))
        # The paper's embedding and read-out are affine. A token embedding needs no bias, and class scores need none.
        self.b_embedding = nn.Parameter(torch.zeros(config.dim)) if takes_vectors else None
        self.positions = nn.ParameterList(
            embedding_weight(size, config.dim, generator) for size in _position_tables(config, spec)
        )
        self.coordinates: Tensor
        self.register_buffer("coordinates", torch.tensor(spec.coordinates, dtype=torch.long), persistent=False)
        self.stack = LoopStack(config, causal=spec.causal, generator=generator, quiet=True)
        self.gain = nn.Parameter(torch.ones(config.dim)) if config.norm != "none" else None
        is_tied = _ties_embeddings(config, spec)
        self.head = None if is_tied else nn.Parameter(linear_weight(spec.output_size, config.dim, generator))
        self.b_head = nn.Parameter(torch.zeros(spec.output_size)) if takes_vectors else None
        self.w_halt = nn.Parameter(torch.zeros(1, config.dim)) if config.halting_gate else None
        # At first the gate stops with probability 1 / num_loops, so that every loop has its share of the loss.
        odds = torch.full((1,), 1 / max(1, config.num_loops - 1))
        self.b_halt = nn.Parameter(odds.log()) if config.halting_gate else None
        self.prelude = _outer_stack(config, config.prelude_layers, spec, generator)
        self.coda = _outer_stack(config, config.coda_layers, spec, generator)
        self.to(self.stack.dtype)

    def extra_repr(self) -> str:
        """Return the inputs, the answers and the number of parameters, for `print(model)`."""
        spec = self.spec
        if spec.kind == "tokens":
            ends = f"tokens from a vocabulary of {spec.input_size:,}, {spec.output_size:,} classes"
        else:
            ends = f"vectors of size {spec.input_size:,}, answers of size {spec.output_size:,}"
        total = plural(self.num_parameters(), "parameter")
        return f"{spec.seq_len:,} {ends}, {total}\n{super().extra_repr()}"

    def embed(
        self, inputs: Shaped[Tensor, "batch seq *size"], places: Int[Tensor, "batch seq"] | None = None
    ) -> Float[Tensor, "batch seq dim"]:
        """Return the embeddings of tokens or vectors, with positions.

        `places` are the positions of the inputs in their sequences (default: from 0).
        """
        self.check_inputs(inputs)
        seq_len = inputs.shape[1]
        positions = self.config.positions
        require(
            positions not in ("learned", "coordinates") or seq_len <= self.spec.seq_len,
            f"inputs: expected at most {self.spec.seq_len} tokens with {positions} positions, got {seq_len}",
        )
        if self.spec.kind == "tokens":
            state = embed_tokens(inputs, self.embedding)
        else:
            state = F.linear(inputs.to(self.embedding.dtype), self.embedding, self.b_embedding)
        places = torch.arange(seq_len, device=state.device) if places is None else places
        if positions == "learned":
            state = state + F.embedding(places, self.positions[0])
        elif positions == "sinusoidal":
            angles = sinusoid(places.flatten().to(self.stack.count_dtype), self.config.dim)
            # The root mean square of a sine is 1 / sqrt(2). The factor makes positions as large as token embeddings.
            state = state + math.sqrt(2) * EMBEDDING_STD * angles.view(*places.shape, -1).to(state.dtype)
        elif positions == "coordinates":
            for table, ids in zip(self.positions, self.coordinates, strict=True):
                state = state + F.embedding(ids[:seq_len], table)
        return state if self.prelude is None else self.prelude(state)

    def iterate(
        self,
        inputs: Shaped[Tensor, "batch seq *size"],
        num_loops: int | None = None,
        backprop_loops: int | None = None,
    ) -> Iterator[Float[Tensor, "batch seq dim"]]:
        """Return an iterator over the state after every loop."""
        return self.stack.iterate(self.embed(inputs), num_loops, backprop_loops)

    def states_at(
        self,
        inputs: Shaped[Tensor, "batch seq *size"],
        num_loops: int,
        read: Sequence[int],
        backprop_loops: int | None = None,
    ) -> Iterator[tuple[int, Float[Tensor, "batch seq dim"]]]:
        """Yield (t, state after loop t) for the loops in `read`, which count from 0 and increase."""
        return self.stack.states_at(self.embed(inputs), num_loops, read, backprop_loops)

    def read_out(self, state: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq out"]:
        """Return the answer from a state: class scores or values."""
        hidden = self.hidden_for_head(state)
        scores = F.linear(hidden, self.head_weight.to(hidden.dtype)).to(state.dtype)
        return scores if self.b_head is None else scores + self.b_head

    def hidden_for_head(self, state: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        """Return the input of the head: the normalised state, after the coda, in the precision of the matmuls."""
        if self.coda is not None:
            state = self.coda(state)
        if self.gain is not None:
            state = rms_normalise(state) * self.gain
        return state.to(self.stack.compute_dtype)

    def halting_logits(self, state: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
        """Return the log-odds of the halting gate: whether each position stops after the loop that led to the state."""
        assert self.w_halt is not None
        return F.linear(rms_normalise(state), self.w_halt, self.b_halt)[..., 0]

    @property
    def head_weight(self) -> Float[Tensor, "out dim"]:
        """Return the matrix of the head, which is the embedding's if the two are tied."""
        return self.embedding if self.head is None else self.head

    def forward(
        self,
        inputs: Shaped[Tensor, "batch seq *size"],
        num_loops: int | None = None,
        read: Sequence[int] | None = None,
    ) -> Float[Tensor, "*read batch seq out"]:
        """Return the answer after `num_loops` loops. With `read`, return the stacked answers after those loops."""
        num_loops = self.stack.checked_loops(num_loops)
        loops = {num_loops} if read is None else set(read)
        if not loops or any(loop not in range(1, num_loops + 1) for loop in loops):
            raise InputError(f"read: expected loops in 1..{num_loops}, got {tuple(read or ())}")
        states = self.states_at(inputs, num_loops, [loop - 1 for loop in sorted(loops)])
        answers = {t + 1: self.read_out(state) for t, state in states}
        return answers[num_loops] if read is None else torch.stack([answers[loop] for loop in read])

    def num_parameters(self) -> int:
        """Return the number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def flops(self, num_loops: int | None = None, seq_len: int | None = None, num_reads: int = 1) -> int:
        """Return the FLOPs of one forward pass over one sequence with `num_reads` read-outs."""
        num_loops = self.stack.checked_loops(num_loops)
        seq_len = self.spec.seq_len if seq_len is None else seq_len
        return forward_flops(self.config, self.spec, num_loops, seq_len, num_reads)

    def check_inputs(self, inputs: Tensor) -> None:
        """Raise InputError unless `inputs` has the shape, type and values of the task."""
        is_tensor = isinstance(inputs, Tensor)
        require(is_tensor, f"inputs: expected a tensor, got {type(inputs).__name__}. Use torch.as_tensor.")
        size, shape = self.spec.input_size, tuple(inputs.shape)
        require(inputs.numel() > 0, f"inputs: expected at least one example of at least one token, got shape {shape}")
        if self.spec.kind == "vectors":
            require(len(shape) == 3 and shape[2] == size, f"inputs: expected shape (batch, seq, {size}), got {shape}")
            return
        require(len(shape) == 2, f"inputs: expected token ids of shape (batch, seq), got {shape}")
        require(not inputs.is_floating_point(), f"inputs: expected integer token ids, got {inputs.dtype}")
        # On a GPU this check would synchronise, and a compiled graph cannot depend on values.
        if inputs.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = int(inputs.min()), int(inputs.max())
            is_token = low >= 0 and high < size
            require(is_token, f"inputs: expected token ids in 0..{size - 1}, got {low if low < 0 else high}")


def _outer_stack(config: ModelConfig, num_layers: int, spec: Spec, generator: Generator) -> LoopStack | None:
    """Return untied layers for before or after the loop, or None if there are none."""
    if not num_layers:
        return None
    plain = {"block": "standard", "num_loops": 1, "conditioning": "auto", "modulation_init": "exact"}
    outer = {"injection": "none", "layer": "transformer", "start": "input", "prelude_layers": 0, "coda_layers": 0}
    own = replace(config, num_layers=num_layers, **plain, **outer)
    return LoopStack(own, causal=spec.causal, generator=generator, quiet=True)


def _ties_embeddings(config: ModelConfig, spec: Spec) -> bool:
    """Return True if embedding and read-out share their matrix. Raise InputError if the task does not allow it."""
    is_tied = spec.shared_vocabulary if config.tie_embeddings == "task" else config.tie_embeddings == "yes"
    if is_tied and not spec.can_share_vocabulary:
        raise InputError(
            f"model.tie_embeddings: expected a task with the same input and answer tokens, such as countdown, got "
            f"{spec.input_size} inputs and {spec.output_size} answers",
        )
    return is_tied


def _position_tables(config: ModelConfig, spec: Spec) -> list[int]:
    """Return the sizes of the learned position tables."""
    if config.positions == "learned":
        return [spec.seq_len]
    if config.positions == "coordinates":
        if not spec.coordinates:
            expected = "another value for a task without coordinates"
            raise InputError(f"model.positions: expected {expected}, got 'coordinates'")
        return [max(ids) + 1 for ids in spec.coordinates]
    return []


def build_model(config: ModelConfig, spec: Spec, seed: int = 0) -> LoopModel:
    """Return a freshly initialised model. Config, spec and seed determine the weights on every device."""
    return LoopModel(config, spec, torch.Generator().manual_seed(seed))


def with_new_classes(model: LoopModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with a head of as many classes as the model's. The new classes get the model's own rows."""
    own, head = model.head, weights.get("head")
    if own is None or head is None or head.shape[1:] != own.shape[1:] or len(head) >= len(own):
        return weights
    return {**weights, "head": torch.cat([head.to(own), own.detach()[len(head) :]])}


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Copy named tensors into a model. Raise InputError, which names `origin`, unless all names and shapes match."""
    parameters = dict(model.named_parameters())
    missing, extra = sorted(parameters.keys() - weights.keys()), sorted(weights.keys() - parameters.keys())
    require(not missing, f"the weights of {origin} belong to another model: they lack {', '.join(missing[:3])}")
    require(not extra, f"the weights of {origin} belong to another model: this one lacks {', '.join(extra[:3])}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            shape = tuple(weights[name].shape)
            require(
                shape == tuple(parameter.shape),
                f"{name} of {origin}: expected shape {tuple(parameter.shape)}, got {shape}",
            )
            parameter.copy_(weights[name])
