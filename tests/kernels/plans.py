"""Random passes over all loops: by the definition, loop after loop, and by the fused function."""

from dataclasses import dataclass

import torch

from looped.kernels import reference
from looped.kernels.reference import LayerWeights, Modulation, Rotation
from tests.kernels.cases import Draw, bound, error, leaf, rotation_of

KINDS = ("scale", "shift", "gate")


@dataclass(frozen=True)
class Case:
    """What is computed; the inputs follow from it."""

    batch: int = 2
    seq_len: int = 5
    dim: int = 48
    num_heads: int = 1
    ff_dim: int = 40
    num_loops: int = 3
    num_layers: int = 1
    read: tuple[int, ...] = (2,)
    causal: bool = False
    rotary: bool = True
    injection: bool = True
    attention: tuple[str, ...] = ("scale", "gate")
    feed_forward: tuple[str, ...] = ("scale", "gate")
    activation: str = "gelu"
    remat: int = 0
    growth_limit: float | None = None
    seed: int = 0


class Inputs:
    """Tensors of a case, and the directions in which its states are differentiated."""

    def __init__(self, case: Case) -> None:
        draw, self.case = Draw(case.seed), case
        shape = case.batch, case.seq_len, case.dim
        table = case.num_loops, case.num_layers, case.dim
        self.tensors = [draw(*shape), draw(*shape) if case.injection else None]
        for kinds in (case.attention, case.feed_forward):
            self.tensors += [draw(*table, mean=0.7, std=0.3) if kind in kinds else None for kind in KINDS]
        dim, ff_dim = case.dim, case.ff_dim
        for _ in range(case.num_layers):
            for *rows, columns in ((3 * dim, dim), (dim, dim), (ff_dim, dim), (ff_dim,), (dim, ff_dim), (dim,)):
                self.tensors.append(draw(*rows, columns, std=columns**-0.5 if rows else 0.5))
        self.rotation = rotation_of(case.seq_len, dim // case.num_heads // 2) if case.rotary else None
        self.directions = [draw(*shape) for _ in case.read]

    def names(self) -> list[str]:
        tables = [f"{sublayer}.{kind}" for sublayer in ("attention", "feed_forward") for kind in KINDS]
        weights = [f"{layer}.{name}" for layer in range(self.case.num_layers) for name in LayerWeights._fields]
        return ["x", "inject", *tables, *weights]


def taken_apart(tensors):
    x, inject, *rest = tensors
    layers = [LayerWeights(*rest[i : i + 6]) for i in range(6, len(rest), 6)]
    return x, inject, Modulation(*rest[:3]), Modulation(*rest[3:6]), layers


def outcome(states, inputs: Inputs, leaves) -> dict[str, torch.Tensor]:
    """States and gradients by name."""
    torch.autograd.backward(states, [each.to(states[0].dtype) for each in inputs.directions])
    found = {f"state {t}": state.detach() for t, state in zip(inputs.case.read, states, strict=True)}
    return found | {name: each.grad for name, each in zip(inputs.names(), leaves, strict=True) if each is not None}


def by_definition(inputs: Inputs, dtype: torch.dtype, products: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Loop after loop by the reference, the state in one precision and the products in another."""
    case, leaves = inputs.case, [leaf(each, dtype) for each in inputs.tensors]
    state, inject, attention, feed_forward, layers = taken_apart(leaves)
    cast = [LayerWeights(*(each.to(products or dtype) for each in one)) for one in layers]
    turn = None if inputs.rotation is None else Rotation(*(each.to(dtype) for each in inputs.rotation))
    states, all_states, last = [], [], []

    def limiter(grad):
        """The geometric mean as a product, not by logarithms."""
        norms = grad.double().flatten(1).square().sum(dim=1).sqrt()
        if not last:
            last.append(norms)
        most = case.growth_limit * (norms / last[0]).prod() ** (1 / case.batch) * last[0]
        return (grad.double() * (most / norms).clamp(max=1)[:, None, None]).to(grad.dtype)

    for t in range(case.num_loops):
        if t > 0 and inject is not None:
            state = state + inject
        for place, (w_qkv, w_out, *rest) in enumerate(cast):
            now, then = (
                Modulation(*(None if table is None else table[t, place] for table in tables))
                for tables in (attention, feed_forward)
            )
            heads = {"num_heads": case.num_heads, "causal": case.causal, "rotation": turn}
            state = reference.add_attention(state, now, w_qkv, w_out, **heads)
            state = reference.add_feed_forward(state, then, *rest, activation=case.activation)
        all_states.append(state)
        if t in case.read:
            states.append(state)
    if case.growth_limit is not None:
        for state in all_states:
            state.register_hook(limiter)
    return outcome(states, inputs, leaves)


def fused(inputs: Inputs, dtype: torch.dtype, *, float8: bool = False) -> dict[str, torch.Tensor]:
    from looped.kernels.triton_loops import LoopPlan, fused_loops  # Triton is not everywhere

    case, leaves = inputs.case, [leaf(each) for each in inputs.tensors]
    # As a model gives the angles.
    rotation = None if inputs.rotation is None else Rotation(*(each.to(dtype) for each in inputs.rotation))
    plan = LoopPlan(
        case.num_loops, case.read, case.num_heads, case.causal, case.activation, dtype, rotation, case.remat,
        case.growth_limit, float8,
    )  # fmt: skip
    return outcome(list(fused_loops(plan, *taken_apart(leaves))), inputs, leaves)


def check(case: Case, dtype: torch.dtype = torch.float32) -> None:
    inputs = Inputs(case)
    exact, got = by_definition(inputs, torch.float64), fused(inputs, dtype)
    plain = by_definition(inputs, torch.float32, dtype)
    assert got.keys() == exact.keys()
    for name, wanted in exact.items():
        assert got[name].dtype == torch.float32, name
        if wanted is None:  # what a single loop would be injected with
            assert not got[name].any()
        else:
            found = error(got[name], wanted)
            assert found <= bound(dtype, error(plain[name], wanted)), f"{name}: {found}"
