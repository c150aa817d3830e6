"""The middle of a model: a stack of layers applied again and again (paper, Sections 2.2 and 4.2).

The paper's three blocks are one class. A standard Transformer is a stack applied once, a looped one a stack applied
`num_loops` times, and TMLT a looped one whose sublayers are scaled by functions of the loop index.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from looped import kernels
from looped.config import ModelConfig
from looped.errors import require
from looped.kernels import Modulation, Rotation
from looped.models.conditioning import (
    ATTENTION,
    FEED_FORWARD,
    PARTS,
    AdditiveSignal,
    FreeTable,
    build_conditioner,
    loop_times,
    sublayer_modulations,
)
from looped.models.init import linear_weight


class LayerWeights(NamedTuple):
    """A layer's matrices in the precision of the products."""

    w_qkv: Tensor
    w_out: Tensor
    w_in: Tensor
    b_in: Tensor
    w_back: Tensor
    b_back: Tensor


class Prepared(NamedTuple):
    """What one pass over all loops shares, computed once: it depends on the weights and the loops, not on the data."""

    weights: list[LayerWeights]
    modulation: list[list[tuple[Modulation, Modulation]]]
    """[loop][layer]: of attention and of the feed-forward layer"""
    signal: Tensor | None
    rotation: Rotation | None


class Layer(nn.Module):
    """The parameters of one Transformer layer; `LoopStack` applies them."""

    def __init__(self, config: ModelConfig, generator: Generator) -> None:
        super().__init__()
        dim, ff_dim = config.dim, config.resolved_ff_dim
        parts = PARTS[config.resolved_conditioning]
        # A gate starts the block at the identity. Without one, what each of the many additions contributes is made
        # small instead, so that the state does not grow with the number of loops.
        ungated = (2 * config.num_layers * config.num_loops) ** -0.5
        gates_start_at_zero = config.resolved_conditioning != "eta"
        scales = [
            1.0 if gates_start_at_zero and ("gate", sublayer) in parts else ungated
            for sublayer in (ATTENTION, FEED_FORWARD)
        ]
        self.w_qkv = nn.Parameter(linear_weight(3 * dim, dim, generator))
        self.w_out = nn.Parameter(linear_weight(dim, dim, generator, scales[ATTENTION]))
        self.w_in = nn.Parameter(linear_weight(ff_dim, dim, generator))
        self.b_in = nn.Parameter(torch.zeros(ff_dim))
        self.w_back = nn.Parameter(linear_weight(dim, ff_dim, generator, scales[FEED_FORWARD]))
        self.b_back = nn.Parameter(torch.zeros(dim))
        has_gain = config.norm == "rms" and not any(kind == "scale" for kind, _ in parts)
        self.gain_attention = nn.Parameter(torch.ones(dim)) if has_gain else None
        self.gain_feed_forward = nn.Parameter(torch.ones(dim)) if has_gain else None

    def weights(self, dtype: torch.dtype) -> LayerWeights:
        return LayerWeights(*(getattr(self, name).to(dtype) for name in LayerWeights._fields))

    @property
    def gains(self) -> tuple[Tensor | None, Tensor | None]:
        return self.gain_attention, self.gain_feed_forward


class LoopStack(nn.Module):
    """Layers, looped: from embeddings (batch, seq, dim) to the state after every loop, of the same shape."""

    def __init__(self, config: ModelConfig, *, causal: bool = False, generator: Generator | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.config = config
        self.causal = causal if config.attention == "task" else config.attention == "causal"
        conditioning = config.resolved_conditioning
        self.layers = nn.ModuleList(Layer(config, generator) for _ in range(config.num_layers))
        self.conditioner = build_conditioner(conditioning, config.dim, config.num_layers, config.num_loops, generator)
        self.signal = AdditiveSignal(config.dim) if conditioning == "additive" else None
        # concat starts at [I I], which is `add`.
        both = torch.eye(config.dim).repeat(1, 2)
        self.w_inject = nn.Parameter(both) if config.injection == "concat" else None
        self.add_attention = kernels.add_attention
        self.add_feed_forward = kernels.add_feed_forward
        self.to(torch.float64 if config.precision == "float64" else torch.float32)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, the modulation table and the state."""
        return next(self.parameters()).dtype

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of the products."""
        return torch.bfloat16 if self.config.precision == "bfloat16" else self.dtype

    def iterate(
        self,
        embeddings: Float[Tensor, "batch seq dim"],
        num_loops: int | None = None,
        backprop_loops: int | None = None,
    ) -> Iterator[Float[Tensor, "batch seq dim"]]:
        """Yield the state after every loop. With `backprop_loops`, only that many last loops get a gradient."""
        num_loops = self.config.num_loops if num_loops is None else num_loops
        require(num_loops >= 1, f"num_loops must be at least 1, got {num_loops}")
        require(
            backprop_loops is None or backprop_loops >= 1, f"backprop_loops must be at least 1, got {backprop_loops}"
        )
        first_with_grad = 0 if backprop_loops is None else num_loops - backprop_loops
        prepared = self.prepare(num_loops, embeddings.shape[1], embeddings.device)
        state = embeddings if self.config.injection == "none" else torch.zeros_like(embeddings)
        for t in range(num_loops):
            # The mode is set around the computation alone: a generator must not leak it to its caller.
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= first_with_grad):
                state = self.loop(state, embeddings, prepared, t)
            yield state

    def prepare(self, num_loops: int, seq_len: int, device: torch.device) -> Prepared:
        """Cast the weights and make the modulation table, once for all loops."""
        times = loop_times(num_loops, self.config.num_loops, self.config.beyond, device=device, dtype=self.dtype)
        require(
            not isinstance(self.conditioner, FreeTable)
            or num_loops <= self.config.num_loops
            or self.config.beyond != "extend",
            f"a free table of {self.config.num_loops} loops has no row for {num_loops}: "
            "expected beyond 'clamp' or 'rescale', got 'extend'",
        )
        layers = [layer for layer in self.layers if isinstance(layer, Layer)]
        conditioning = self.config.resolved_conditioning
        if self.conditioner is None:
            table = [[sublayer_modulations(conditioning, None, layer.gains) for layer in layers]] * num_loops
        else:
            table = [
                [sublayer_modulations(conditioning, row, layer.gains) for layer, row in zip(layers, rows, strict=True)]
                for rows in self.conditioner(times)
            ]
        return Prepared(
            weights=[layer.weights(self.compute_dtype) for layer in layers],
            modulation=table,
            signal=None if self.signal is None else self.signal(times),
            rotation=self._rotation(seq_len, device) if self.config.positions == "rotary" else None,
        )

    def loop(self, state: Tensor, embeddings: Tensor, prepared: Prepared, t: int) -> Tensor:
        """TF(x, t): inject the input, then one pass through the layers."""
        if self.config.injection == "add":
            state = state + embeddings
        elif self.w_inject is not None:
            state = torch.cat((state, embeddings), dim=-1) @ self.w_inject.T
        if prepared.signal is not None:
            state = state + prepared.signal[t]
        for weights, (attention, feed_forward) in zip(prepared.weights, prepared.modulation[t], strict=True):
            state = self.add_attention(
                state,
                attention,
                weights.w_qkv,
                weights.w_out,
                num_heads=self.config.num_heads,
                causal=self.causal,
                rotation=prepared.rotation,
                selection=self.config.selection,
                norm=self.config.norm,
            )
            state = self.add_feed_forward(
                state,
                feed_forward,
                weights.w_in,
                weights.b_in,
                weights.w_back,
                weights.b_back,
                activation=self.config.activation,
                norm=self.config.norm,
            )
        return state

    def flops(self, seq_len: int, num_loops: int) -> int:
        """Of the products of one forward pass over one sequence, two per multiplication and addition."""
        dim = self.config.dim
        matrices = 2 * (4 * dim * dim + 2 * dim * self.config.resolved_ff_dim)
        scores = 4 * seq_len * dim // (2 if self.causal else 1)
        inject = 0 if self.w_inject is None else 4 * dim * dim
        return num_loops * seq_len * (self.config.num_layers * (matrices + scores) + inject)

    def _rotation(self, seq_len: int, device: torch.device) -> Rotation:
        half = self.config.dim // self.config.num_heads // 2
        frequencies = 10000.0 ** (-torch.arange(half, dtype=self.dtype, device=device) / half)
        angles = torch.arange(seq_len, dtype=self.dtype, device=device)[:, None] * frequencies
        return Rotation(angles.cos(), angles.sin())
