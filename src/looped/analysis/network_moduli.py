"""The paper's three moduli of continuity of a network, as lower bounds from a search for the largest change of output.

f maps X to f(X), both (seq, dim), one row per token (the paper writes columns). For X and X' at most delta apart,

    sequence   w_f(delta)    = sup |f(X) - f(X')|          no further condition
    context    w_cont(delta) = sup |f(X)_n - f(X')_n|      X_n = X'_n: all tokens but n may change
    token      w_tok(delta)  = sup |f(X)_n - f(X')_n|      X_q = X'_q for q != n: only token n may change

with p = 2 throughout. X runs over the examples, and n over random places of each. X' = X + delta v, where the unit
direction v is zero on the tokens that may not change. Two searches look for v:

    sampling    random directions
    ascent      v <- unit(J(X + delta v)^T (f(X + delta v) - f(X))), from the best direction so far

The ascent follows the gradient of |f(X + delta v) - f(X)|^2 on the sphere. As delta goes to 0, it becomes the power
iteration v <- unit(J^T J v). That converges to the largest singular value of the Jacobian, restricted to the rows and
columns of the definition: the local Lipschitz constant. Every result belongs to a pair (X, X'), so it is a lower bound
of the supremum.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import vjp

from looped.analysis.network import Network
from looped.analysis.samples import Sample

ModulusName = Literal["sequence", "context", "token"]
NARROW_FIRST: tuple[ModulusName, ...] = ("token", "context", "sequence")
FINITE_STEPS = 4  # few, because the ascent at a finite delta starts from the result at the delta before


class Cases(NamedTuple):
    """The cases of a search: an example, its tokens that may change, and its tokens whose output counts."""

    examples: Float[Tensor, "case seq dim"]
    """embeddings X"""
    free: Bool[Tensor, "case seq 1"]
    """True at tokens that may change"""
    seen: Bool[Tensor, "case seq 1"]
    """True at tokens whose output counts"""
    noise: Float[Tensor, "case direction seq dim"]
    """random directions, before tokens that may not change are set to zero"""


class LargestChanges(NamedTuple):
    """Largest changes of output per unit of input. Level 0 is the limit delta -> 0; the deltas follow in order."""

    ratio: Float[Tensor, "level case"]
    """largest ratio of both searches"""
    sampled: Float[Tensor, "level case"]
    """largest ratio of the random directions"""
    witness: Float[Tensor, "level case seq dim"]
    """directions of `ratio`"""


def measure_moduli(
    network: Network,
    batch: Sample,
    names: Sequence[ModulusName],
    deltas: Sequence[float],
    iterations: int,
    batch_size: int,
) -> dict[ModulusName, LargestChanges]:
    """Return the moduli around the examples of a batch. A pass has at most `batch_size` sequences."""
    moduli: dict[ModulusName, LargestChanges] = {}
    hints: list[Tensor] = []
    for name in sorted(names, key=NARROW_FIRST.index):
        cases = _cases(name, batch)
        parts = []
        for start in range(0, len(cases.examples), batch_size):
            part = slice(start, start + batch_size)
            starts = [hint[:, part] for hint in hints] if name == "sequence" else []
            parts.append(_search(network, Cases(*(each[part] for each in cases)), deltas, iterations, starts))
        moduli[name] = LargestChanges(*(torch.cat(each, dim=1) for each in zip(*parts, strict=True)))
        # A change of one token or of its context is also a change of the sequence, and all outputs together change at
        # least as much as one of them. The search for w_f tries these directions too, so its result is not smaller.
        hints += moduli[name].witness.unflatten(1, (len(batch.embeddings), -1)).unbind(dim=2)
    return moduli


def _cases(name: ModulusName, batch: Sample) -> Cases:
    """Return one case per example (sequence), or one per example and place, where places run fastest."""
    examples, noise, places = batch
    if name == "sequence":
        all_tokens = torch.ones_like(examples[..., :1], dtype=torch.bool)
        return Cases(examples, all_tokens, all_tokens, noise)
    num_places = places.shape[1]
    at_place = torch.arange(examples.shape[1], device=places.device)[:, None] == places.reshape(-1, 1, 1)
    examples, noise = (each.repeat_interleave(num_places, dim=0) for each in (examples, noise))
    return Cases(examples, at_place if name == "token" else ~at_place, at_place, noise)


def _search(
    network: Network, cases: Cases, deltas: Sequence[float], iterations: int, hints: Sequence[Tensor]
) -> LargestChanges:
    """Search for the largest change, in the limit and at every delta, from random directions and `hints`."""
    directions = [unit(direction * cases.free) for direction in cases.noise.unbind(dim=1)]
    levels, best = [], None
    for level, delta in enumerate((0.0, *deltas)):
        probe = _Probe(network, cases, delta)
        zeros = torch.zeros_like(cases.examples[:, 0, 0])
        sampled, best_sampled = _best_of(probe, directions, zeros, directions[0])
        # f is not odd, so a direction and its opposite give different changes at a finite delta.
        starts = [] if best is None else [best, -best]
        starts += [hint[level] for hint in hints]
        ratio, best = _best_of(probe, starts, sampled, best_sampled)
        ratio, best = _ascend(probe, ratio, best, FINITE_STEPS if delta else iterations)
        levels.append((ratio, sampled, best))
    return LargestChanges(*(torch.stack(tensors) for tensors in zip(*levels, strict=True)))


class _Probe:
    """The change of the seen outputs per unit of input at one delta, or the derivative at delta 0."""

    def __init__(self, network: Network, cases: Cases, delta: float) -> None:
        self.network, self.cases, self.delta = network, cases, delta
        if delta:
            self.before = network(cases.examples)
        else:
            outputs, pull = vjp(network, cases.examples)[:2]
            # u -> J^T u is linear, so its own pullback is J, for any u. That takes two backward passes over stored
            # values. Forward derivatives would run the network again in every step, and are slow.
            # No closure holds the probe, because a reference cycle would delay the release of its graphs.
            self.pull, self.push = pull, vjp(lambda change: pull(change)[0], torch.zeros_like(outputs))[1]

    def change(self, direction: Tensor) -> Tensor:
        """Return the change of the seen outputs in a direction."""
        if self.delta:
            return self._per_unit(self.network(self.cases.examples + self.delta * direction))
        return self.push(direction)[0] * self.cases.seen

    def climb(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return the change, and the unit direction in which its size grows fastest."""
        if self.delta:
            after, pull = vjp(self.network, self.cases.examples + self.delta * direction)[:2]
            change = self._per_unit(after)
        else:
            change, pull = self.change(direction), self.pull
        return change, unit(pull(change)[0] * self.cases.free)

    def _per_unit(self, after: Tensor) -> Tensor:
        return (after - self.before) / self.delta * self.cases.seen


def _best_of(probe: _Probe, directions: Sequence[Tensor], ratio: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest ratio and its direction for each case, starting from `ratio` and `best`."""
    for direction in directions:
        ratio, best = _better(ratio, best, size(probe.change(direction)), direction)
    return ratio, best


def _ascend(probe: _Probe, ratio: Tensor, best: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    _, direction = probe.climb(best)
    for _ in range(steps):
        change, next_direction = probe.climb(direction)
        # At a finite delta a step may lower the ratio, so the best direction is kept.
        ratio, best = _better(ratio, best, size(change), direction)
        direction = next_direction
    return ratio, best


def _better(ratio: Tensor, best: Tensor, new_ratio: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    is_better = new_ratio > ratio
    return torch.where(is_better, new_ratio, ratio), torch.where(is_better[:, None, None], direction, best)


def size(changes: Float[Tensor, "case seq dim"]) -> Float[Tensor, " case"]:
    """Return the Euclidean norm of every case."""
    return torch.linalg.vector_norm(changes, dim=(-2, -1))


def unit(directions: Float[Tensor, "case seq dim"]) -> Float[Tensor, "case seq dim"]:
    """Return directions of norm 1, or 0 where no token may change (the context of a single token)."""
    return directions / size(directions).clamp(min=torch.finfo(directions.dtype).tiny)[:, None, None]
