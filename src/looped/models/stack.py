"""The core of a model: a stack of layers that is applied in a loop (paper, Sections 2.2 and 4.2).

The paper's three models are one class. `standard` applies the stack once and `looped` applies it `num_loops` times.
`modulated` (the paper's TMLT) is looped, and functions of the loop index scale its sublayers.
"""

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from looped import kernels
from looped.config import ModelConfig
from looped.kernels import LayerWeights, Modulation, Remember, Rotation
from looped.models.conditioning import (
    ATTENTION,
    FEED_FORWARD,
    PARTS,
    AdditiveSignal,
    build_conditioner,
    loop_times,
    modulation_tables,
)
from looped.models.extensions import LayerHook, apply_own_layer, attention_bias, own_layers
from looped.models.init import linear_weight
from looped.models.module import ShapedModule
from looped.utils.errors import InputError, require, require_counts, require_type
from looped.utils.text import plural

MOST_LOOPS = 100_000
"""upper limit on num_loops, to catch typos early"""

Advance = Callable[[Tensor, Tensor, int], Sequence[Tensor]]
"""(state, embeddings, t) -> states after loop t and after the loops that are computed with it"""


class AllLoops(Protocol):
    """An engine that computes several loops at once."""

    def __call__(
        self, embeddings: Tensor, num_loops: int, read: Sequence[int], first_with_grad: int
    ) -> Sequence[Tensor]:
        """Return the states after the loops in `read`. Loops before `first_with_grad` get no gradient."""
        ...

    def advancer(self, num_loops: int, embeddings: Tensor) -> Advance:
        """Return what `LoopStack.advancer` does."""
        ...


class Prepared(NamedTuple):
    """Values that all loops of one pass share. They depend on the padding, but not on the embeddings."""

    weights: list[LayerWeights]
    """weights of each layer in the precision of the matmuls"""
    modulation: list[list[tuple[Modulation, Modulation]]]
    """[loop][layer]: modulation of attention and of the feed-forward layer"""
    signal: Tensor | None
    """(loop, dim) additive timestep signal"""
    rotation: Rotation | None
    """angles of rotary positions"""
    attention_mask: Tensor | None
    """(batch, seq, 1): True at tokens, False at padding"""
    bias: Tensor | None
    """additive attention mask from the padding"""


class Layer(ShapedModule):
    """The parameters of one Transformer layer, which `LoopStack` applies."""

    def __init__(self, config: ModelConfig, generator: Generator) -> None:
        super().__init__()
        dim, ff_dim = config.dim, config.resolved_ff_dim
        parts = PARTS[config.resolved_conditioning]
        # A gate makes the block start at the identity. A sublayer without a gate starts with smaller output weights
        # instead, so that the state does not grow with the number of loops.
        ungated_scale = (2 * config.num_layers * config.num_loops) ** -0.5
        gates_start_at_zero = config.resolved_conditioning != "eta"
        scales = [
            1.0 if gates_start_at_zero and ("gate", sublayer) in parts else ungated_scale
            for sublayer in (ATTENTION, FEED_FORWARD)
        ]
        self.w_qkv = nn.Parameter(linear_weight(3 * dim, dim, generator))
        self.w_out = nn.Parameter(linear_weight(dim, dim, generator, scales[ATTENTION]))
        self.w_in = nn.Parameter(linear_weight(ff_dim, dim, generator))
        self.b_in = nn.Parameter(torch.zeros(ff_dim))
        self.w_back = nn.Parameter(linear_weight(dim, ff_dim, generator, scales[FEED_FORWARD]))
        self.b_back = nn.Parameter(torch.zeros(dim))
        has_gain = not any(kind == "scale" for kind, _ in parts)
        self.gain_attention = nn.Parameter(torch.ones(dim)) if has_gain and config.norm != "none" else None
        self.gain_feed_forward = nn.Parameter(torch.ones(dim)) if has_gain and config.norm == "rms" else None

    def weights(self, dtype: torch.dtype) -> LayerWeights:
        """Return the matrices and biases in a precision."""
        return LayerWeights(*(getattr(self, name).to(dtype) for name in LayerWeights._fields))

    @property
    def gains(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the learned gains of the two norms, or None where the modulation sets the scale."""
        return self.gain_attention, self.gain_feed_forward


class LoopStack(ShapedModule):
    """Looped layers: map embeddings (batch, seq, dim) to the state after every loop, of the same shape.

    For padded batches, pass `attention_mask` (batch, seq), which is True at tokens. No token attends to padding, so
    each sequence has the states that it has alone. The states of padding are zero.

    Only rotary positions are applied here; add learned or sinusoidal ones to the embeddings yourself. The stack warns
    about other positions in its config, and about a looped block with one loop, unless it is `quiet`. Without a
    generator, the weights are drawn from PyTorch's global RNG, as in any module.
    """

    def __init__(
        self, config: ModelConfig, *, causal: bool = False, generator: Generator | None = None, quiet: bool = False
    ) -> None:
        require_type("config", config, ModelConfig)
        super().__init__()
        for warning in () if quiet else _warnings(config):
            warnings.warn(warning, stacklevel=2)
        generator = _global_generator() if generator is None else generator
        self.config = config
        self.causal = config.is_causal(causal)
        conditioning = config.resolved_conditioning
        if config.layer == "transformer":
            self.layers = nn.ModuleList(Layer(config, generator) for _ in range(config.num_layers))
        else:
            self.layers = own_layers(config, generator)
        self.conditioner = build_conditioner(
            conditioning, config.dim, config.num_layers, config.num_loops, generator, config.modulation_init
        )
        self.signal = AdditiveSignal(config.dim) if conditioning == "additive" else None
        # concat starts at [I I], which equals `add`.
        identities = torch.eye(config.dim).repeat(1, 2)
        self.w_inject = nn.Parameter(identities) if config.injection == "concat" else None
        # An engine may replace the sublayers or the whole loop. With remat = n, only every n-th state is stored for the
        # backward pass (0: all states).
        self.add_attention = kernels.add_attention
        self.add_feed_forward = kernels.add_feed_forward
        self.all_loops: AllLoops | None = None
        self.remat = 0
        self.start_seed = 0  # of a random start state outside training
        self._layer_hooks: OrderedDict[int, LayerHook] = OrderedDict()
        self.growth_limit: float | None = None  # limit on the growth of an example's gradient, see kernels.limit_growth
        self.to(torch.float64 if config.precision == "float64" else torch.float32)

    def extra_repr(self) -> str:
        """Return the block, how often it is applied, and its main settings."""
        config, layers = self.config, plural(self.config.num_layers, "layer")
        applied = "applied once" if config.num_loops == 1 else f"applied {config.num_loops:,} times"
        shown = [
            f"{config.block}: {layers} {applied}",
            f"dim={config.dim}",
            f"num_heads={config.num_heads}",
            f"positions={config.positions}",
            f"injection={config.injection}",
            *(["causal"] if self.causal else []),
            plural(sum(parameter.numel() for parameter in self.parameters()), "parameter"),
            super().extra_repr(),
        ]
        return ", ".join(filter(None, shown))

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights, the modulation table and the state."""
        return self._first_weight.dtype

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self._first_weight.device

    @property
    def _first_weight(self) -> Tensor:
        # Not from `parameters()` if possible: it is empty in replicas of DataParallel.
        layers = self._layers()
        return layers[0].w_qkv if layers else next(self.parameters())

    @property
    def count_dtype(self) -> torch.dtype:
        """Return the dtype of loop and position indices (bfloat16 cannot represent integers above 256)."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the dtype of the matmuls."""
        return torch.bfloat16 if self.config.precision in ("bfloat16", "float8") else self.dtype

    def forward(
        self,
        embeddings: Float[Tensor, "batch seq dim"],
        num_loops: int | None = None,
        *,
        attention_mask: Bool[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq dim"]:
        """Return the state after the last loop. Use `iterate` for the state after every loop."""
        num_loops = self.checked_loops(num_loops)
        ((_, state),) = self.states_at(embeddings, num_loops, [num_loops - 1], attention_mask=attention_mask)
        return state

    def iterate(
        self,
        embeddings: Float[Tensor, "batch seq dim"],
        num_loops: int | None = None,
        backprop_loops: int | None = None,
        *,
        attention_mask: Bool[Tensor, "batch seq"] | None = None,
    ) -> Iterator[Float[Tensor, "batch seq dim"]]:
        """Return an iterator over the state after every loop. Only the last `backprop_loops` loops get a gradient."""
        embeddings = self._mask_embeddings(embeddings, attention_mask)
        return self._iterate(embeddings, self.checked_loops(num_loops), backprop_loops, attention_mask)

    def _iterate(
        self, embeddings: Tensor, num_loops: int, backprop_loops: int | None, attention_mask: Tensor | None
    ) -> Iterator[Tensor]:
        first_with_grad = _first_with_grad(num_loops, backprop_loops)
        prepared = self.prepare(num_loops, embeddings.shape[1], embeddings.device, attention_mask)
        state = self.start(embeddings)
        limit_gradient = self._gradient_limiter()
        for t in range(num_loops):
            # Set the mode around the computation only, so that the generator does not leak it to its caller.
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= first_with_grad):
                state = limit_gradient(self.loop(state, embeddings, prepared, t))
            yield state

    def states_at(
        self,
        embeddings: Float[Tensor, "batch seq dim"],
        num_loops: int,
        read: Sequence[int],
        backprop_loops: int | None = None,
        *,
        attention_mask: Bool[Tensor, "batch seq"] | None = None,
    ) -> Iterator[tuple[int, Float[Tensor, "batch seq dim"]]]:
        """Yield (t, state after loop t) for the loops in `read`, which count from 0 and increase.

        The current engine computes the states. With padding the loops run one by one, because no engine for all loops
        supports padding.
        """
        embeddings = self._mask_embeddings(embeddings, attention_mask)
        num_loops, first_with_grad = self.checked_loops(num_loops), _first_with_grad(num_loops, backprop_loops)
        if self.all_loops is not None and attention_mask is None and not self._layer_hooks:
            yield from zip(read, self.all_loops(embeddings, num_loops, read, first_with_grad), strict=True)
        elif self.remat and torch.is_grad_enabled():
            yield from self._rematerialise(embeddings, num_loops, read, first_with_grad, attention_mask)
        else:
            for t, state in enumerate(self._iterate(embeddings, num_loops, backprop_loops, attention_mask)):
                if t in read:
                    yield t, state

    def advancer(self, num_loops: int, embeddings: Float[Tensor, "batch seq dim"]) -> Advance:
        """Return a function that computes the next of `num_loops` loops from a state, by the current engine.

        The batch may shrink between two calls: only the length of the embeddings is fixed. An engine for all loops
        computes several of them in one call.
        """
        if self.all_loops is not None and not self._layer_hooks:
            return self.all_loops.advancer(num_loops, embeddings)
        prepared = self.prepare(num_loops, embeddings.shape[1], embeddings.device)
        return lambda state, embeddings, t: [self.loop(state, embeddings, prepared, t)]

    def checked_loops(self, num_loops: int | None) -> int:
        """Return `num_loops`, or the config's if it is None. Raise InputError if the model cannot run so many."""
        num_loops = self.config.num_loops if num_loops is None else num_loops
        require_counts(num_loops=num_loops)
        most = 1 if self.config.block == "standard" else MOST_LOOPS
        if num_loops > most:
            expected = f"at most {most} for a {self.config.block} model"
            raise InputError(f"num_loops: expected {expected}, got {num_loops}")
        return num_loops

    def _mask_embeddings(self, embeddings: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the embeddings in the state's precision, with zeros at padding. Raise InputError for wrong shapes."""
        dim, shape = self.config.dim, _shape(embeddings, "embeddings")
        is_shape = len(shape) == 3 and shape[2] == dim
        require(is_shape, f"embeddings: expected shape (batch, seq, {dim}), got {shape}")
        embeddings = embeddings.to(self.dtype)
        if attention_mask is None:
            return embeddings
        mask_shape = _shape(attention_mask, "attention_mask")
        require(
            attention_mask.dtype == torch.bool and mask_shape == shape[:2],
            f"attention_mask: expected bools of shape {shape[:2]}, got {attention_mask.dtype} of shape {mask_shape}",
        )
        return embeddings.where(attention_mask[..., None], 0.0)

    def _rematerialise(
        self,
        embeddings: Tensor,
        num_loops: int,
        read: Sequence[int],
        first_with_grad: int,
        attention_mask: Tensor | None,
    ) -> Iterator[tuple[int, Tensor]]:
        """Run the loops in pieces of `remat` loops. The backward pass recomputes each piece from its first state."""
        prepared = self.prepare(num_loops, embeddings.shape[1], embeddings.device, attention_mask)
        state = self.start(embeddings)
        limit_gradient = self._gradient_limiter()

        def piece(state: Tensor, embeddings: Tensor, loops: range) -> list[Tensor]:
            states = []
            for t in loops:
                state = limit_gradient(self.loop(state, embeddings, prepared, t))
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
            keep_rng = self.config.dropout > 0 or self.config.layer != "transformer"  # your own layer may have dropout
            states = checkpoint(piece, state, embeddings, loops, use_reentrant=False, preserve_rng_state=keep_rng)
            yield from zip((t for t in loops if t in read), states, strict=False)
            state = states[-1]

    def _gradient_limiter(self) -> Callable[[Tensor], Tensor]:
        """Return a function that registers a gradient-clipping hook on each loop's state. Call it in loop order."""
        limit, last_norms = self.growth_limit, []

        def clip(grad: Tensor) -> Tensor:
            assert limit is not None
            if not last_norms:  # the backward pass starts at the last loop
                last_norms.append(kernels.example_norms(grad))
                return grad
            return kernels.limit_growth(grad, last_norms[0], limit)

        def register(state: Tensor) -> Tensor:
            if limit is not None and state.requires_grad:
                state.register_hook(clip)
            return state

        return register

    def start(self, embeddings: Tensor) -> Tensor:
        """Return the state before the first loop: the embeddings, or zeros if every loop injects them.

        A random start is drawn anew for every example in training. Otherwise `start_seed` decides it, equally for all
        examples, so that an answer does not depend on the rest of its batch.
        """
        if self.config.start == "input":
            return embeddings if self.config.injection == "none" else torch.zeros_like(embeddings)
        if self.training:
            return torch.randn_like(embeddings)
        generator = torch.Generator().manual_seed(self.start_seed)
        return torch.randn(embeddings.shape[1:], generator=generator).to(embeddings).expand_as(embeddings)

    def register_layer_hook(self, hook: LayerHook) -> RemovableHandle:
        """Call `hook(loop, layer, before, after)` after every layer of every loop, both counted from 0.

        A state that it returns replaces `after`. While there is a hook, the loops run one by one.
        """
        if self.all_loops is not None:
            print("looped: not the fused kernels while a layer hook is registered", file=sys.stderr)
        handle = RemovableHandle(self._layer_hooks)
        self._layer_hooks[handle.id] = hook
        return handle

    def prepare(
        self,
        num_loops: int,
        seq_len: int,
        device: torch.device,
        attention_mask: Bool[Tensor, "batch seq"] | None = None,
    ) -> Prepared:
        """Return the values that all loops share: cast weights, modulation tables, positions and masks."""
        return self.prepare_times(self.times(num_loops, device), seq_len, attention_mask)

    def prepare_times(
        self,
        times: Float[Tensor, " time"],
        seq_len: int,
        attention_mask: Bool[Tensor, "batch seq"] | None = None,
    ) -> Prepared:
        """Return what `prepare` returns for loops at these times, which may be any (see `times`)."""
        layers = self._layers()
        bias = None
        if attention_mask is not None:
            bias = kernels.padding_bias(attention_mask, causal=self.causal, dtype=self.compute_dtype)
        if self.config.attention_bias != "none":
            own = attention_bias(
                self.config, seq_len, causal=self.causal, dtype=self.compute_dtype, device=times.device
            )
            bias = own if bias is None else own + bias
        return Prepared(
            weights=[layer.weights(self.compute_dtype) for layer in layers],
            modulation=_by_loop(self._modulation_at(times), len(times), len(layers)),
            signal=None if self.signal is None else self.signal(times),
            rotation=self.rotation(seq_len, times.device),
            attention_mask=None if attention_mask is None else attention_mask[..., None],
            bias=bias,
        )

    def modulation(self, num_loops: int, device: torch.device) -> tuple[Modulation, Modulation]:
        """Return the modulation of attention and of the feed-forward layer, as tables (loop, layer, dim)."""
        return self._modulation_at(self.times(num_loops, device))

    def _modulation_at(self, times: Float[Tensor, " time"]) -> tuple[Modulation, Modulation]:
        table = None if self.conditioner is None else self.conditioner(times)
        gains = [layer.gains for layer in self._layers()] or [(None, None)]
        attention, feed_forward = (
            None if each[0] is None else torch.stack(each) for each in zip(*gains, strict=True)
        )  # fmt: skip
        return modulation_tables(self.config.resolved_conditioning, table, (attention, feed_forward), len(times))

    def loop(
        self,
        state: Tensor,
        embeddings: Tensor,
        prepared: Prepared,
        t: int,
        remember: Sequence[Remember | None] | None = None,
    ) -> Tensor:
        """Return TF(x, t): inject the embeddings into the state, then apply the layers once.

        `remember` has the cache of each layer in this loop (`looped.inference.cache`).
        """
        if self.config.injection == "add":
            state = state + embeddings
        elif self.w_inject is not None:
            state = (torch.cat((state, embeddings), dim=-1) @ self.w_inject.T).to(state.dtype)
        if prepared.signal is not None:
            state = state + prepared.signal[t]
        caches = remember or [None] * len(self.layers)
        for place, layer in enumerate(self.layers):
            before = state
            if isinstance(layer, Layer):
                state = self._apply_layer(state, prepared, t, place, caches[place])
            else:
                state = self._dropped(state, apply_own_layer(layer, state))
            for hook in self._layer_hooks.values():
                replaced = hook(t, place, before, state)
                state = state if replaced is None else replaced
        return state if prepared.attention_mask is None else state.where(prepared.attention_mask, 0.0)

    def _apply_layer(self, state: Tensor, prepared: Prepared, t: int, place: int, cache: Remember | None) -> Tensor:
        """Return the state after one Transformer layer: attention, then the feed-forward layer."""
        weights, (attention, feed_forward) = prepared.weights[place], prepared.modulation[t][place]
        attended = self.add_attention(
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
            remember=cache,
        )
        state = self._dropped(state, attended)
        updated = self.add_feed_forward(
            state,
            feed_forward,
            weights.w_in,
            weights.b_in,
            weights.w_back,
            weights.b_back,
            activation=self.config.activation,
            norm=self.config.norm,
        )
        return self._dropped(state, updated)

    def _dropped(self, before: Tensor, after: Tensor) -> Tensor:
        """Return `after`, in training with a part of its difference to `before` dropped."""
        if not (self.training and self.config.dropout > 0):
            return after
        return before + F.dropout(after - before, self.config.dropout)

    def rotation(self, seq_len: int, device: torch.device) -> Rotation | None:
        """Return the angles of rotary positions, or None if the config has other positions."""
        return self.rotation_at(torch.arange(seq_len, device=device))

    def rotation_at(self, places: Int[Tensor, "*batch seq"]) -> Rotation | None:
        """Return the angles of rotary positions at these places, or None if the config has other positions."""
        if self.config.positions != "rotary":
            return None
        half = self.config.dim // self.config.num_heads // 2
        frequencies = 10000.0 ** (-torch.arange(half, dtype=self.count_dtype, device=places.device) / half)
        angles = places.to(self.count_dtype)[..., None] * frequencies
        return Rotation(angles.cos(), angles.sin())

    def times(self, num_loops: int, device: torch.device) -> Float[Tensor, " num_loops"]:
        """Return the time of each loop. Raise InputError if a free table lacks the row of a loop."""
        if not self.config.supports_loops(num_loops):
            rows = f"a table of {self.config.num_loops} loops has no row for loop {num_loops}"
            raise InputError(
                f"model.extrapolation: expected 'clamp' or 'rescale', because {rows}, got 'extend'",
            )
        return loop_times(
            num_loops, self.config.num_loops, self.config.extrapolation, device=device, dtype=self.count_dtype
        )

    def _replicate_for_data_parallel(self) -> "LoopStack":
        """Return a replica without the engine for all loops, which is bound to this stack's weights and device."""
        replica = super()._replicate_for_data_parallel()
        replica.all_loops = None
        return replica

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]


def _warnings(config: ModelConfig) -> Iterator[str]:
    """Yield what a config asks for and a stack on its own does not do."""
    if config.positions not in ("none", "rotary"):
        yield (
            f"LoopStack ignores positions={config.positions!r}. Set positions='rotary', or add positions to the "
            "embeddings and set positions='none'."
        )
    if config.block != "standard" and config.num_loops == 1:
        yield f"LoopStack applies its {config.block} layers once, because num_loops is 1. Set num_loops."


def _global_generator() -> Generator:
    """Return a CPU generator seeded from PyTorch's global RNG, whatever the default device is."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))


def _shape(tensor: Tensor, name: str) -> tuple[int, ...]:
    require(isinstance(tensor, Tensor), f"{name}: expected a tensor, got {type(tensor).__name__}")
    return tuple(tensor.shape)


def _first_with_grad(num_loops: int, backprop_loops: int | None) -> int:
    if backprop_loops is not None:
        require_counts(backprop_loops=backprop_loops)
    return 0 if backprop_loops is None else max(0, num_loops - backprop_loops)


def _by_loop(
    tables: tuple[Modulation, Modulation], num_loops: int, num_layers: int
) -> list[list[tuple[Modulation, Modulation]]]:
    """Return the tables (loop, layer, dim) as [loop][layer].

    `unbind` splits a table at once. If rows were indexed, the backward pass would allocate a whole table for each.
    """
    attention, feed_forward = ([None if table is None else table.unbind() for table in each] for each in tables)

    def row(loops: list[tuple[Tensor, ...] | None], t: int, layer: int) -> Modulation:
        return Modulation(*(None if each is None else each[t][layer] for each in loops))

    return [
        [(row(attention, t, layer), row(feed_forward, t, layer)) for layer in range(num_layers)]
        for t in range(num_loops)
    ]
