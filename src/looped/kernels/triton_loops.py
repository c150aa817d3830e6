"""All loops of a block as one differentiable function: matmuls, and one pass over memory between two of them.

The modulation depends on the loop only, so it is folded into the matrices of each loop. What runs is a plain pre-norm
block whose matrices change from loop to loop. The forward pass keeps the inputs of the matrices, and results that the
backward pass would otherwise have to compute again. Each loop of the backward pass leaves the operands of its weight
gradients, which are multiplied for several loops at once (`triton_weight_grads.py`).
"""

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from looped.kernels.cuda_graphs import side_by_side
from looped.kernels.float8 import E4M3, Scaled, ScaledMatrices, fixed_scale, float8_product, normed_scale
from looped.kernels.library import product
from looped.kernels.reference import Activation, LayerWeights, Modulation, Rotation
from looped.kernels.triton_attention import Attended, attend, attend_backward, paired
from looped.kernels.triton_common import Angles, gluon_kernels
from looped.kernels.triton_pointwise import (
    Normed,
    Rounded,
    activation_backward,
    activation_forward,
    activation_in_float8,
    add_norm,
    example_norms,
    limit_growth,
    matrices_in_float8,
    norm_backward,
    round_off,
    rows_in_float8,
    scaled_matrices,
)
from looped.kernels.triton_weight_grads import Gradients, Operands


class LoopPlan(NamedTuple):
    """The settings of a pass over the loops."""

    num_loops: int
    read: tuple[int, ...]
    """loops whose states are returned, from 0 and in order; the last loop is among them"""
    num_heads: int
    causal: bool
    activation: Activation
    compute_dtype: torch.dtype
    rotation: Rotation | None
    remat: int = 0
    """number of loops between two states that are kept; 0 keeps everything that the backward pass reads"""
    growth_limit: float | None = None
    """limit on the growth of each example's gradient, as in `reference.limit_growth`"""
    float8: bool = False
    """multiply with 8-bit factors where the matrices are large (`float8.py`)"""


def fused_loops(
    plan: LoopPlan,
    x: Tensor,
    inject: Tensor | None,
    attention: Modulation,
    feed_forward: Modulation,
    layers: Sequence[Sequence[Tensor]],
) -> tuple[Tensor, ...]:
    """Return the states (batch, seq, dim) after the loops `plan.read`.

    The first loop starts from x, and every later one from the last state plus `inject`. Modulations hold tables (loop,
    layer, dim), and `layers` the `LayerWeights` of each layer.
    """
    tensors = [x, inject, *attention, *feed_forward, *(tensor for weights in layers for tensor in weights)]
    if not torch.is_grad_enabled():  # needs_input_grad ignores no_grad
        tensors = [None if tensor is None else tensor.detach() for tensor in tensors]
    return _FusedLoops.apply(plan, *tensors)


class _InFloat8(NamedTuple):
    """The large matrices of a layer in 8 bits."""

    w_qkv: ScaledMatrices
    w_in: ScaledMatrices
    w_back: ScaledMatrices


class _Folded:
    """A layer's matrices with the modulation folded in, (loop, ...), in the precision of the matmuls."""

    def __init__(
        self, weights: LayerWeights, attention: Modulation, feed: Modulation, dtype: torch.dtype, *, float8: bool
    ) -> None:
        self.w_qkv = scaled_matrices(weights.w_qkv, attention.scale, dtype, by_column=True)
        self.w_out = scaled_matrices(weights.w_out, attention.gate, dtype, by_column=False)
        self.w_in = scaled_matrices(weights.w_in, feed.scale, dtype, by_column=True)
        self.w_back = scaled_matrices(weights.w_back, feed.gate, dtype, by_column=False)
        self.b_qkv = None if attention.shift is None else (attention.shift @ weights.w_qkv.T).to(dtype)
        b_in = weights.b_in[None] if feed.shift is None else weights.b_in + feed.shift @ weights.w_in.T
        self.b_in = b_in.to(dtype)
        self.b_back = (weights.b_back[None] if feed.gate is None else weights.b_back * feed.gate).to(dtype)
        self.in_float8: _InFloat8 | None = None
        if float8:
            self.in_float8 = _InFloat8(
                matrices_in_float8(weights.w_qkv, attention.scale, by_column=True),
                matrices_in_float8(weights.w_in, feed.scale, by_column=True),
                matrices_in_float8(weights.w_back, feed.gate, by_column=False),
            )

    def of_loop(self, t: int) -> LayerWeights:
        return LayerWeights(*(_row(getattr(self, name), t) for name in LayerWeights._fields))

    @property
    def tables(self) -> LayerWeights:
        """Return the weights of all loops, (loop, ...), or (1, ...) if all loops share them."""
        return LayerWeights(*(getattr(self, name) for name in LayerWeights._fields))

    def qkv_bias(self, t: int) -> Tensor | None:
        """Return the shift behind the matrix that equals the modulation's shift in front of it."""
        return None if self.b_qkv is None else _row(self.b_qkv, t)


def _in_loop(folded: _Folded, name: str, t: int) -> Scaled | None:
    """Return a matrix of loop t in 8 bits, if the layer has one."""
    return None if folded.in_float8 is None else getattr(folded.in_float8, name).of_loop(t)


def _row(table: Tensor, t: int) -> Tensor:
    return table[t if len(table) > 1 else 0]


class _Norms:
    """The normed inputs of one layer's sublayers in several loops."""

    def __init__(self, loops: range, x: Tensor, dtype: torch.dtype) -> None:
        self.first = loops.start
        self.values = torch.empty(2, len(loops), *x.shape, dtype=dtype, device=x.device)
        self.inverses = torch.empty(2, len(loops), len(x), dtype=torch.float32, device=x.device)

    def of(self, sublayer: int, t: int) -> Normed:
        return Normed(self.values[sublayer, t - self.first], self.inverses[sublayer, t - self.first])

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        return self.values[0], self.values[1]


class _Made(NamedTuple):
    """The tensors that one layer in one loop keeps for its backward pass, except for its normed inputs."""

    qkv: Tensor
    attended: Attended | None
    z: Tensor | None
    """pre-activation, or None if it is cheaper to compute it again"""
    rotated: bool = False
    """True if queries and keys are kept after their rotation"""


class _Trace(NamedTuple):
    """The tensors that several loops keep for their backward pass."""

    loops: range
    norms: list[_Norms]
    """of each layer"""
    made: list[list[_Made]]
    """[loop][layer]"""


ATTENTION, FEED_FORWARD = 0, 1
NARROW = 256
"""Up to this width, a matmul of the feed-forward layer takes no longer than writing and reading its result, so the
backward pass computes the pre-activation again."""
BUSY_FOR_ANSWERS, BUSY_FOR_TRAINING = 0.45, 0.6
"""share of the GPU (`gluon_loops.share_busy`) above which one launch for all loops is faster than one per operation; on
an H200, 60 and 80 sequences of 128 tokens"""
FEWEST_TOKENS = 2**12
"""tokens of a batch above which the activation's backward pass is one launch (`gluon_activation.py`)"""
HALVED_TOKENS = 2**16
"""tokens of a batch above which inference runs in two halves"""


class _Pass:
    """One forward and backward pass over the loops, on flat (tokens, dim) states."""

    def __init__(
        self, plan: LoopPlan, x: Tensor, inject: Tensor | None, rest: Sequence[Tensor | None], *, differentiated: bool
    ) -> None:
        self.plan = plan
        self.with_z = differentiated and (x.shape[2] > NARROW or plan.float8)
        """True if the pre-activation is kept"""
        self.inject = None if inject is None else _flat(inject).to(plan.compute_dtype)
        self.tables = Modulation(*rest[:3]), Modulation(*rest[3:6])
        flat = [tensor for tensor in rest[6:] if tensor is not None]
        layers = [LayerWeights(*flat[i : i + 6]) for i in range(0, len(flat), 6)]
        self.order = None if plan.rotation is None else paired(flat[0].shape[1], plan.num_heads, flat[0].device)
        self.angles = None if plan.rotation is None else Angles.of(plan.rotation)
        self.weights = [self.in_order(weights) for weights in layers]
        self.folded = [
            _Folded(
                weights, _of_layer(self.tables[0], place), _of_layer(self.tables[1], place), plan.compute_dtype,
                float8=plan.float8,
            )
            for place, weights in enumerate(self.weights)
        ]  # fmt: skip
        self.back_in_float8: dict[int, tuple[ScaledMatrices, ScaledMatrices]] = {}
        """W_in and W_back of each layer in 8 bits, as the backward pass reads them"""
        self.interleaved: dict[int, Any] = {}
        """matrices of each layer in the order of `gluon_activation.interleaved`"""
        self.heads: dict[str, Any] = {"num_heads": plan.num_heads, "seq_len": x.shape[1], "causal": plan.causal}

    def in_order(self, weights: LayerWeights) -> LayerWeights:
        """Return the weights with the rows of queries and keys in the order of the attention kernels."""
        return weights if self.order is None else weights._replace(w_qkv=weights.w_qkv.index_select(0, self.order))

    def in_first_order(self, weights: LayerWeights) -> LayerWeights:
        if self.order is None:
            return weights
        return weights._replace(w_qkv=torch.empty_like(weights.w_qkv).index_copy_(0, self.order, weights.w_qkv))

    def forward(
        self, x: Tensor, loops: range, trace: _Trace | None = None, *, states: Mapping[int, Tensor] = {},
        starts: Container[int] = (),
    ) -> Iterator[Tensor | None]:  # fmt: skip
        """Run the loops, and write the states after the loops in `states`.

        Yield, after each loop, what the next one starts from if it is among `starts`, and None otherwise. A backward
        pass needs the trace.
        """
        plan, last_layer = self.plan, len(self.folded) - 1
        reused = _Norms(range(1 if trace is None else 0), x, plan.compute_dtype)
        # One of each is enough, whatever is kept: only the next sublayer reads them.
        rest = _rest_of(x, plan.compute_dtype)
        eighth = torch.empty_like(x, dtype=E4M3) if plan.float8 else None

        def place_for(sublayer: int, t: int, layer: int) -> Normed:
            place = reused.of(sublayer, 0) if trace is None else trace.norms[layer].of(sublayer, t)
            return place._replace(rest=rest, eighth=eighth)

        add_norm(x, normed=place_for(ATTENTION, loops.start, 0))
        for t in loops:
            start, made = None, []
            for layer, folded in enumerate(self.folded):
                weights, last = folded.of_loop(t), layer == last_layer
                before, between = place_for(ATTENTION, t, layer), place_for(FEED_FORWARD, t, layer)
                qkv = self.of_normed(before, weights.w_qkv, folded.qkv_bias(t), _in_loop(folded, "w_qkv", t))
                attended = attend(qkv, plan.rotation, keep=trace is not None, **self.heads)
                add_norm(before, product(attended.mixed, weights.w_out, transposed=True), normed=between)
                z = None
                if self.with_z or plan.float8:
                    z = self.of_normed(between, weights.w_in, weights.b_in, _in_loop(folded, "w_in", t))
                if trace is not None:
                    # Of a short sequence, the backward pass makes it again.
                    made.append(_Made(qkv, None if attended.whole is None else attended, z))
                after = (t + 1, 0) if last else (t, layer + 1)
                follows = place_for(ATTENTION, *after) if after[0] in loops else None
                state = states.get(t) if last else None
                start = torch.empty_like(x) if last and t + 1 in starts else None
                if follows is None and state is None and start is None:
                    continue  # the last of some loops that are computed again
                inject = self.inject if last and t + 1 < plan.num_loops else None
                w_back = _in_loop(folded, "w_back", t)
                if z is None:
                    active = _active_product(between.value, weights.w_in, weights.b_in, plan.activation)
                    update = product(active, weights.w_back, transposed=True)
                elif w_back is None:
                    update = product(activation_forward(z, plan.activation), weights.w_back, transposed=True)
                else:
                    update = float8_product(activation_in_float8(z, plan.activation), w_back)
                add_norm(between, update, weights.b_back, state=state, inject=inject, total=start, normed=follows)
            if trace is not None:
                trace.made.append(made)
            yield start

    def of_normed(self, normed: Normed, matrix: Tensor, bias: Tensor | None, in_float8: Scaled | None) -> Tensor:
        """Return the product of a normed state with a matrix, in 8 bits if both are given in 8 bits."""
        if in_float8 is None or normed.eighth is None:
            return product(normed.value, matrix, bias, transposed=True)
        scale = fixed_scale(normed_scale(matrix.shape[1]), matrix.device)
        return float8_product(Scaled(normed.eighth, scale), in_float8, bias)

    def answers(self, x: Tensor, states: Mapping[int, Tensor]) -> None:
        """Write the states and keep nothing.

        Large batches run as two halves side by side, so that one half can multiply while the other waits for memory.
        """
        if self.in_one_launch(x, states):
            return
        loops, seq_len = range(self.plan.num_loops), self.heads["seq_len"]
        if not x.is_cuda or len(x) < max(HALVED_TOKENS, 2 * seq_len):
            _exhaust(self.forward(x, loops, states=states))
            return
        middle = len(x) // seq_len // 2 * seq_len
        halves = [
            self.part(rows).forward(x[rows], loops, states={t: state[rows] for t, state in states.items()})
            for rows in (slice(middle), slice(middle, None))
        ]
        side_by_side([partial(_exhaust, half) for half in halves], x.device)

    def in_one_launch(self, x: Tensor, states: Mapping[int, Tensor], trace: _Trace | None = None) -> bool:
        """Run all loops by the kernel for that. Return False, having done nothing, if it is slower or does not support
        the block."""
        gluon, plan, seq_len = gluon_kernels("loops"), self.plan, self.heads["seq_len"]
        if gluon is None or plan.float8 or len(self.folded) > 1 or self.folded[0].b_qkv is not None:
            return False
        weights = self.folded[0].tables
        least = BUSY_FOR_ANSWERS if trace is None else BUSY_FOR_TRAINING
        if gluon.share_busy(len(x), seq_len, x.device) < least or not gluon.covers(
            weights, num_heads=plan.num_heads, seq_len=seq_len, tokens=len(x)
        ):
            return False
        kept = None
        if trace is not None:
            qkv = torch.empty(plan.num_loops, len(x), 3 * x.shape[1], dtype=plan.compute_dtype, device=x.device)
            kept = gluon.Kept(trace.norms[0].values, trace.norms[0].inverses, qkv)
        launch = partial(
            gluon.run_loops, weights, x, self.inject, states, seq_len=seq_len, causal=plan.causal,
            activation=plan.activation, angles=self.angles, kept=kept,
        )  # fmt: skip
        done = gluon.attempt("answers in one launch" if kept is None else "the forward pass in one launch", launch)
        if done and trace is not None and kept is not None:
            trace.made.extend([_Made(each, None, None, rotated=True)] for each in kept.qkv)
        return done

    def part(self, rows: slice) -> "_Pass":
        """Return the same pass for some of the tokens."""
        part = copy(self)
        part.inject = None if self.inject is None else self.inject[rows]
        return part

    def trace(self, x: Tensor, loops: range) -> _Trace:
        return _Trace(loops, [_Norms(loops, x, self.plan.compute_dtype) for _ in self.folded], [])

    def operands(self, gradients: Gradients, t: int, layer: int) -> Operands:
        piece = t // self.plan.remat * self.plan.remat if self.plan.remat else 0
        return gradients.operands(t, layer, piece)

    def backward(
        self, t: int, trace: _Trace, gradients: Gradients, rest: Tensor | None, further: Tensor | None,
        grad_inject: Tensor | None, whole: Tensor,
    ) -> None:  # fmt: skip
        """Compute the gradient of loop t's input, given that of its state, and add `further`.

        Each layer reads and writes gradients among the operands, with their cut-off bits in `rest`. The gradient of the
        first loop's input goes to `whole`.
        """
        made = trace.made.pop()  # its memory can be used again
        for layer in reversed(range(len(self.folded))):
            weights, norms, (qkv, attended, z, rotated) = self.folded[layer].of_loop(t), trace.norms[layer], made[layer]
            places = self.operands(gradients, t, layer)
            between = norms.of(FEED_FORWARD, t)
            if self.slopes_in_one_launch(t, layer, between.value, places):
                grad_normed = product(places.slope, weights.w_in, transposed=False)
            else:
                if z is None:
                    z = product(between.value, weights.w_in, weights.b_in, transposed=True)
                grad_normed = self.feed_forward_backward(t, layer, z, places)
            norm_backward(
                between, grad_normed, Rounded(places.grad_feed, rest), out=Rounded(places.grad_attention, rest)
            )
            attend_backward(
                qkv, attended, product(places.grad_attention, weights.w_out, transposed=False), self.plan.rotation,
                rotated=rotated, angles=self.angles, out=places.grad_qkv, mixed=places.mixed, **self.heads,
            )  # fmt: skip
            first = layer == 0
            before = (t - 1, len(self.folded) - 1) if first else (t, layer - 1)
            end = before[0] < 0
            value = torch.empty_like(places.mixed) if end else self.operands(gradients, *before).grad_feed
            norm_backward(
                norms.of(ATTENTION, t), product(places.grad_qkv, weights.w_qkv, transposed=False),
                Rounded(places.grad_attention, rest), out=Rounded(value, rest), further=further if first else None,
                summed=grad_inject if first and t > 0 else None, whole=whole if end else None,
            )  # fmt: skip
            gradients.done(t, layer, norms.both, trace.loops.start)

    def feed_forward_backward(self, t: int, layer: int, z: Tensor, places: Operands) -> Tensor:
        """Fill the layer's `places` and return the gradient of its normed input."""
        folded, activation = self.folded[layer], self.plan.activation
        if folded.in_float8 is None:
            weights = folded.of_loop(t)
            product(places.grad_feed, weights.w_back, transposed=False, out=places.slope)
            activation_backward(z, places.slope, places.active, places.slope_sums, activation)
            return product(places.slope, weights.w_in, transposed=False)
        if layer not in self.back_in_float8:
            self.back_in_float8[layer] = folded.in_float8.w_in.transposed(), folded.in_float8.w_back.transposed()
        w_in, w_back = self.back_in_float8[layer]
        grad = rows_in_float8(places.grad_feed)
        float8_product(grad, w_back.of_loop(t), out=places.slope)
        slope = activation_backward(z, places.slope, places.active, places.slope_sums, activation, grad.scale)
        assert slope is not None
        return float8_product(slope, w_in.of_loop(t))

    def activation_kernel(self, tokens: int) -> Any:
        """Return the module that computes the activation's backward pass with both its matmuls, or None."""
        gluon, weights = gluon_kernels("activation"), self.folded[0].tables
        if gluon is None or self.plan.float8 or tokens < FEWEST_TOKENS:
            return None
        return gluon if gluon.covers(weights, tokens, weights.w_in.device) else None

    def num_slope_sums(self, tokens: int) -> int:
        """Return how many rows of sums the kernel of `slopes_in_one_launch` writes; 0 if it does not run."""
        gluon, w_in = self.activation_kernel(tokens), self.folded[0].tables.w_in
        return 0 if gluon is None else gluon.num_sums(tokens, w_in.shape[1], w_in.device)

    def slopes_in_one_launch(self, t: int, layer: int, normed: Tensor, places: Operands) -> bool:
        """Fill the activation's `places`; return False if no kernel runs."""
        gluon = self.activation_kernel(len(normed))
        if gluon is None:
            return False
        if layer not in self.interleaved:
            self.interleaved[layer] = gluon.interleaved(self.folded[layer].tables)
        launch = partial(
            gluon.activation_products, normed, places.grad_feed, self.interleaved[layer], places.active, places.slope,
            places.slope_sums, loop=t, activation=self.plan.activation,
        )  # fmt: skip
        return gluon.attempt("the activation's backward pass", launch)


class _FusedLoops(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: LoopPlan, x: Tensor, inject: Tensor | None, *rest: Tensor | None) -> tuple[Tensor, ...]:
        needed = any(ctx.needs_input_grad)
        run = _Pass(plan, x, inject, rest, differentiated=needed)
        first, loops = _flat(x), range(plan.num_loops)
        states = {t: torch.empty_like(first) for t in plan.read}
        found = tuple(state.view(x.shape) for state in states.values())
        if not needed:
            run.answers(first, states)
            return found
        ctx.trace = None if plan.remat else run.trace(first, loops)
        starts = loops[:: plan.remat] if plan.remat else ()
        ctx.starts = dict.fromkeys(starts[:1], first)
        ctx.run, ctx.shape = run, x.shape
        if ctx.trace is not None and run.in_one_launch(first, states, ctx.trace):
            return found
        for t, start in enumerate(run.forward(first, loops, ctx.trace, states=states, starts=starts)):
            if start is not None:
                ctx.starts[t + 1] = start
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        run: _Pass = ctx.run
        plan = run.plan
        given = dict(zip(plan.read, map(_flat, grads), strict=True))
        last = given[plan.read[-1]]
        grad_inject = None if run.inject is None else torch.zeros_like(last)
        # The gradient of what is injected is the sum of the states' gradients, unless those were changed.
        unchanged = len(plan.read) == 1 and plan.growth_limit is None
        gradients = Gradients(
            run.tables, run.weights, len(last), plan.compute_dtype, run.num_slope_sums(len(last)),
            grad_inject if unchanged else None,
        )  # fmt: skip
        grad, rest = torch.empty_like(last), _rest_of(last, plan.compute_dtype)

        def of_state(t: int) -> Rounded:
            return Rounded(run.operands(gradients, t, len(run.folded) - 1).grad_feed, rest)

        round_off(last, of_state(plan.read[-1]))
        limited = None
        if plan.growth_limit is not None:
            norms = example_norms(of_state(plan.read[-1]), ctx.shape[0])
            limited = partial(limit_growth, last_norms=norms, limit=plan.growth_limit)
        for trace in _traces(ctx):
            try:
                for t in reversed(trace.loops):
                    run.backward(t, trace, gradients, rest, given.get(t - 1), None if unchanged else grad_inject, grad)
                    if limited is not None and t > 0:
                        limited(of_state(t - 1))
            finally:  # whatever happened, the memory of all this will be used again
                gradients.wait()
        inject = None if grad_inject is None else grad_inject.view(ctx.shape)
        tables, weights = gradients.finish()
        of_weights = (tensor for one in weights for tensor in run.in_first_order(one))
        return (None, grad.view(ctx.shape), inject, *tables, *of_weights)


def _traces(ctx: Any) -> Iterator[_Trace]:
    """Pieces of the loops, the last first: all as the forward pass kept them, or computed again from their starts."""
    run: _Pass = ctx.run
    if ctx.trace is None and not ctx.starts:
        raise RuntimeError("what the backward pass needs is gone after the first one")
    trace, ctx.trace = ctx.trace, None  # a loss that somebody still looks at must not keep it
    if trace is not None:
        yield trace
    for start in sorted(ctx.starts, reverse=True):
        loops = range(start, min(start + run.plan.remat, run.plan.num_loops))
        trace = run.trace(ctx.starts[start], loops)
        _exhaust(run.forward(ctx.starts[start], loops, trace))
        yield trace


def _exhaust(steps: Iterator[object]) -> None:
    deque(steps, maxlen=0)


def _flat(states: Tensor) -> Tensor:
    """(tokens, dim), laid out as kernels read it."""
    return states.reshape(-1, states.shape[-1]).contiguous()


def _rest_of(x: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Memory for the digits that x loses in another precision, if it loses any."""
    return torch.empty_like(x, dtype=torch.int8) if dtype == torch.bfloat16 else None


def _of_layer(tables: Modulation, layer: int) -> Modulation:
    """Tables (loop, dim) of one layer."""
    return Modulation(*(None if table is None else table[:, layer] for table in tables))


def _active_product(x: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    """The activation of a product, where possible in the product's own pass over memory.

    The library's GELU is the one with a tanh, whose distance from the exact one is a ninth of what bfloat16 rounds off
    (root mean square, of normal numbers; at most 5e-4).
    """
    if x.is_cuda and x.dtype == torch.bfloat16 and activation != "silu":
        return torch.ops.aten._addmm_activation(bias, x, weight.T, use_gelu=activation == "gelu")
    return activation_forward(product(x, weight, bias, transposed=True), activation)
