"""The middle of a model: a stack of layers applied again and again (paper, Sections 2.2 and 4.2).

The paper's three blocks are one class. A standard Transformer is a stack applied once, a looped one a stack applied
`num_loops` times, and TMLT a looped one whose sublayers are scaled by functions of the loop index.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from looped import kernels
from looped.config import ModelConfig
from looped.kernels import LayerWeights, Modulation, Rotation
from looped.models.conditioning import (
    ATTENTION,
    FEED_FORWARD,
    PARTS,
    AdditiveSignal,
    build_conditioner,
    loop_times,
    modulation_tables,
)
from looped.models.init import linear_weight
from looped.utils.errors import require, require_counts

MOST_LOOPS = 100_000
"""more is a slip of the finger, and would be noticed late"""

AllLoops = Callable[[Tensor, int, Sequence[int], int], Sequence[Tensor]]
"""(embeddings, number of loops, loops to read, first loop with a gradient) to the states after the loops to read"""


class Prepared(NamedTuple):
    """What one pass over all loops shares, computed once: of the data it depends on the padding alone."""

    weights: list[LayerWeights]
    modulation: list[list[tuple[Modulation, Modulation]]]
    """[loop][layer]: of attention and of the feed-forward layer"""
    signal: Tensor | None
    rotation: Rotation | None
    keep: Tensor | None
    """(batch, seq, 1): what is no padding, where there is some"""
    bias: Tensor | None


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
        constant = not any(kind == "scale" for kind, _ in parts)
        self.gain_attention = nn.Parameter(torch.ones(dim)) if constant and config.norm != "none" else None
        self.gain_feed_forward = nn.Parameter(torch.ones(dim)) if constant and config.norm == "rms" else None

    def weights(self, dtype: torch.dtype) -> LayerWeights:
        return LayerWeights(*(getattr(self, name).to(dtype) for name in LayerWeights._fields))

    @property
    def gains(self) -> tuple[Tensor | None, Tensor | None]:
        return self.gain_attention, self.gain_feed_forward


class LoopStack(nn.Module):
    """Layers, looped: from embeddings (batch, seq, dim) to the state after every loop, of the same shape.

    Of sequences of several lengths, `keep` (batch, seq) says where their tokens are. The states there are those of each
    sequence by itself; no token sees padding, on whichever side it is, and its states are zero.

    Of the config's positions it knows the rotary ones; others are for whoever makes the embeddings. Without a generator
    the weights are drawn by PyTorch's own, as in any module.
    """

    def __init__(self, config: ModelConfig, *, causal: bool = False, generator: Generator | None = None) -> None:
        super().__init__()
        require(isinstance(config, ModelConfig), f"expected a ModelConfig, got {type(config).__name__}")
        generator = _generator_by_seed() if generator is None else generator
        self.config = config
        self.causal = config.is_causal(causal)
        conditioning = config.resolved_conditioning
        self.layers = nn.ModuleList(Layer(config, generator) for _ in range(config.num_layers))
        self.conditioner = build_conditioner(
            conditioning, config.dim, config.num_layers, config.num_loops, generator, config.modulation_init
        )
        self.signal = AdditiveSignal(config.dim) if conditioning == "additive" else None
        # concat starts at [I I], which is `add`.
        both = torch.eye(config.dim).repeat(1, 2)
        self.w_inject = nn.Parameter(both) if config.injection == "concat" else None
        # How the loops are computed, which an engine may change: the sublayers, all loops at once, loops between states
        # that are kept for the backward pass (0: all are).
        self.add_attention = kernels.add_attention
        self.add_feed_forward = kernels.add_feed_forward
        self.all_loops: AllLoops | None = None
        self.remat = 0
        # What a backward pass does not let an example's gradient exceed (`kernels.limit_growth`).
        self.growth_limit: float | None = None
        self.to(torch.float64 if config.precision == "float64" else torch.float32)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, the modulation table and the state."""
        return self._layers()[0].w_qkv.dtype  # not by `parameters`: replicas on several devices have none

    @property
    def device(self) -> torch.device:
        return self._layers()[0].w_qkv.device

    @property
    def count_dtype(self) -> torch.dtype:
        """Of times and positions: bfloat16 has no 257."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of the products."""
        return torch.bfloat16 if self.config.precision == "bfloat16" else self.dtype

    def forward(
        self,
        embeddings: Float[Tensor, "batch seq dim"],
        num_loops: int | None = None,
        *,
        keep: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq dim"]:
        """The state after the last loop; `iterate` has those after all."""
        num_loops = self.checked_loops(num_loops)
        ((_, state),) = self.states_at(embeddings, num_loops, [num_loops - 1], keep=keep)
        return state

    def iterate(
        self,
        embeddings: Float[Tensor, "batch seq dim"],
        num_loops: int | None = None,
        backprop_loops: int | None = None,
        *,
        keep: Bool[Tensor, "batch seq"] | None = None,
    ) -> Iterator[Float[Tensor, "batch seq dim"]]:
        """The state after every loop. With `backprop_loops`, only that many last loops get a gradient."""
        embeddings = self._checked(embeddings, keep)
        return self._iterate(embeddings, self.checked_loops(num_loops), backprop_loops, keep)

    def _iterate(
        self, embeddings: Tensor, num_loops: int, backprop_loops: int | None, keep: Tensor | None
    ) -> Iterator[Tensor]:
        first_with_grad = _first_with_grad(num_loops, backprop_loops)
        prepared = self.prepare(num_loops, embeddings.shape[1], embeddings.device, keep)
        state = self.start(embeddings)
        limited = self._limited_growth()
        for t in range(num_loops):
            # The mode is set around the computation alone: a generator must not leak it to its caller.
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= first_with_grad):
                state = limited(self.loop(state, embeddings, prepared, t))
            yield state

    def states_at(
        self,
        embeddings: Float[Tensor, "batch seq dim"],
        num_loops: int,
        read: Sequence[int],
        backprop_loops: int | None = None,
        *,
        keep: Bool[Tensor, "batch seq"] | None = None,
    ) -> Iterator[tuple[int, Float[Tensor, "batch seq dim"]]]:
        """(t, the state after loop t) for the loops `read`, from 0 and in order: what `iterate` yields there, by
        whatever engine is set; with padding, which no engine for all loops at once knows, loop by loop."""
        embeddings = self._checked(embeddings, keep)
        num_loops, first_with_grad = self.checked_loops(num_loops), _first_with_grad(num_loops, backprop_loops)
        if self.all_loops is not None and keep is None:
            yield from zip(read, self.all_loops(embeddings, num_loops, read, first_with_grad), strict=True)
        elif self.remat and torch.is_grad_enabled():
            yield from self._rematerialised(embeddings, num_loops, read, first_with_grad, keep)
        else:
            for t, state in enumerate(self._iterate(embeddings, num_loops, backprop_loops, keep)):
                if t in read:
                    yield t, state

    def checked_loops(self, num_loops: int | None) -> int:
        """So many, or as many as in training; `InputError` where they cannot be run."""
        num_loops = self.config.num_loops if num_loops is None else num_loops
        require_counts(num_loops=num_loops)
        require(num_loops <= MOST_LOOPS, f"num_loops must be at most {MOST_LOOPS:,}, got {num_loops}")
        require(
            self.config.block != "standard" or num_loops == 1,
            f"a standard model applies its layers once: expected num_loops 1, got {num_loops}",
        )
        return num_loops

    def _checked(self, embeddings: Tensor, keep: Tensor | None) -> Tensor:
        """The embeddings as the state has them, in its precision even where they were made under autocast; and with
        nothing where nothing is kept, so that whatever padding holds is not seen."""
        dim, shape = self.config.dim, _shape(embeddings, "embeddings")
        require(len(shape) == 3 and shape[2] == dim, f"expected embeddings (batch, seq, {dim}), got {shape}")
        embeddings = embeddings.to(self.dtype)
        if keep is None:
            return embeddings
        came = _shape(keep, "keep")
        require(
            keep.dtype == torch.bool and came == shape[:2],
            f"expected keep to be bools of shape {shape[:2]}, got {keep.dtype} of shape {came}",
        )
        return embeddings.where(keep[..., None], 0.0)

    def _rematerialised(
        self, embeddings: Tensor, num_loops: int, read: Sequence[int], first_with_grad: int, keep: Tensor | None
    ) -> Iterator[tuple[int, Tensor]]:
        """Pieces of `remat` loops: between their ends, the backward pass computes everything again."""
        prepared = self.prepare(num_loops, embeddings.shape[1], embeddings.device, keep)
        state = self.start(embeddings)
        limited = self._limited_growth()

        def piece(state: Tensor, embeddings: Tensor, loops: range) -> list[Tensor]:
            states = []
            for t in loops:
                state = limited(self.loop(state, embeddings, prepared, t))
                if t in read or t == loops[-1]:
                    states.append(state)
            return states

        for t in range(first_with_grad):
            with torch.no_grad():
                state = self.loop(state, embeddings, prepared, t)
            if t in read:
                yield t, state
        for start in range(first_with_grad, num_loops, self.remat):
            loops = range(start, min(start + self.remat, num_loops))
            states = checkpoint(piece, state, embeddings, loops, use_reentrant=False, preserve_rng_state=False)
            yield from zip((t for t in loops if t in read), states, strict=False)
            state = states[-1]

    def _limited_growth(self) -> Callable[[Tensor], Tensor]:
        """To be called with the states of one pass, in order: has the backward pass limit their gradients' growth."""
        limit, last_norms = self.growth_limit, []

        def limited(grad: Tensor) -> Tensor:
            assert limit is not None
            if not last_norms:  # a backward pass begins at the last loop
                last_norms.append(kernels.example_norms(grad))
                return grad
            return kernels.limit_growth(grad, last_norms[0], limit)

        def watched(state: Tensor) -> Tensor:
            if limit is not None and state.requires_grad:
                state.register_hook(limited)
            return state

        return watched

    def start(self, embeddings: Tensor) -> Tensor:
        """x0: the embeddings, or nothing where every loop adds them."""
        return embeddings if self.config.injection == "none" else torch.zeros_like(embeddings)

    def prepare(
        self, num_loops: int, seq_len: int, device: torch.device, keep: Bool[Tensor, "batch seq"] | None = None
    ) -> Prepared:
        """Cast the weights, make the modulation table and see who sees whom, once for all loops."""
        layers = self._layers()
        return Prepared(
            weights=[layer.weights(self.compute_dtype) for layer in layers],
            modulation=_by_loop(self.modulation(num_loops, device), num_loops, len(layers)),
            signal=None if self.signal is None else self.signal(self._times(num_loops, device)),
            rotation=self.rotation(seq_len, device),
            keep=None if keep is None else keep[..., None],
            bias=None if keep is None else kernels.padding_bias(keep, causal=self.causal, dtype=self.compute_dtype),
        )

    def modulation(self, num_loops: int, device: torch.device) -> tuple[Modulation, Modulation]:
        """Tables (loop, layer, dim) of what attention and the feed-forward layer are scaled by."""
        require(
            self.config.supports_loops(num_loops),
            f"a free table of {self.config.num_loops} loops has no row for {num_loops}: "
            "expected beyond 'clamp' or 'rescale', got 'extend'",
        )
        table = None if self.conditioner is None else self.conditioner(self._times(num_loops, device))
        gains = zip(*(layer.gains for layer in self._layers()), strict=True)
        attention, feed_forward = (None if each[0] is None else torch.stack(each) for each in gains)
        return modulation_tables(self.config.resolved_conditioning, table, (attention, feed_forward), num_loops)

    def loop(self, state: Tensor, embeddings: Tensor, prepared: Prepared, t: int) -> Tensor:
        """TF(x, t): inject the input, then one pass through the layers."""
        if self.config.injection == "add":
            state = state + embeddings
        elif self.w_inject is not None:
            state = (torch.cat((state, embeddings), dim=-1) @ self.w_inject.T).to(state.dtype)
        if prepared.signal is not None:
            state = state + prepared.signal[t]
        for weights, (attention, feed_forward) in zip(prepared.weights, prepared.modulation[t], strict=True):
            state = self.add_attention(
                state,
                attention,
                weights.w_qkv,
                weights.w_out,
                num_heads=self.config.num_heads,
                causal=self.causal and prepared.bias is None,
                bias=prepared.bias,
                rotation=prepared.rotation,
                attention_weights=self.config.attention_weights,
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
        return state if prepared.keep is None else state.where(prepared.keep, 0.0)

    def rotation(self, seq_len: int, device: torch.device) -> Rotation | None:
        """The angles of rotary positions, where those are used."""
        if self.config.positions != "rotary":
            return None
        half = self.config.dim // self.config.num_heads // 2
        frequencies = 10000.0 ** (-torch.arange(half, dtype=self.count_dtype, device=device) / half)
        angles = torch.arange(seq_len, dtype=self.count_dtype, device=device)[:, None] * frequencies
        return Rotation(angles.cos(), angles.sin())

    def _times(self, num_loops: int, device: torch.device) -> Tensor:
        return loop_times(
            num_loops, self.config.num_loops, self.config.extrapolation, device=device, dtype=self.count_dtype
        )

    def _replicate_for_data_parallel(self) -> "LoopStack":
        """As every module; but an engine for all loops at once knows the weights of its own stack, on their device."""
        replica = super()._replicate_for_data_parallel()
        replica.all_loops = None
        return replica

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]


def _generator_by_seed() -> Generator:
    """Of the CPU whatever the default device, with a seed that PyTorch's own seed gives."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))


def _shape(given: Tensor, name: str) -> tuple[int, ...]:
    require(isinstance(given, Tensor), f"expected {name} to be a tensor, got {type(given).__name__}")
    return tuple(given.shape)


def _first_with_grad(num_loops: int, backprop_loops: int | None) -> int:
    if backprop_loops is not None:
        require_counts(backprop_loops=backprop_loops)
    return 0 if backprop_loops is None else max(0, num_loops - backprop_loops)


def _by_loop(
    tables: tuple[Modulation, Modulation], num_loops: int, num_layers: int
) -> list[list[tuple[Modulation, Modulation]]]:
    """[loop][layer] from tables (loop, layer, dim). Taken apart at once: one row at a time, the backward pass would
    make a whole table for each."""
    attention, feed_forward = ([None if table is None else table.unbind() for table in each] for each in tables)

    def of(rows: list[tuple[Tensor, ...] | None], t: int, layer: int) -> Modulation:
        return Modulation(*(None if row is None else row[t][layer] for row in rows))

    return [
        [(of(attention, t, layer), of(feed_forward, t, layer)) for layer in range(num_layers)] for t in range(num_loops)
    ]
