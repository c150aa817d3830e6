"""The paper's three moduli of continuity of a network: the largest change of output that could be found.

f maps X to f(X), both (seq, dim), one row per token (the paper writes columns). Of X and X' at most delta apart,

    sequence   w_f(delta)    = sup |f(X) - f(X')|          no further condition
    context    w_cont(delta) = sup |f(X)_n - f(X')_n|      X_n = X'_n: all tokens but n may move
    token      w_tok(delta)  = sup |f(X)_n - f(X')_n|      X_q = X'_q for q != n: token n alone may move

with p = 2 throughout. X runs over the given examples and n over places drawn for each of them; X' = X + delta v, where
the unit direction v (zero on the tokens that may not move) is looked for in two ways:

    sampling    directions drawn at random
    ascent      v <- unit(J(X + delta v)^T (f(X + delta v) - f(X))), from the best direction known

The ascent follows the gradient of |f(X + delta v) - f(X)|^2 to where it points on the sphere. As delta goes to 0 it
becomes the power iteration v <- unit(J^T J v), and what it finds the largest singular value of the Jacobian (of those
rows and columns that the definition leaves): the local Lipschitz constant. Whatever was found is a pair (X, X'), so
every number here is a lower bound of the supremum.
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
# At a finite delta the ascent starts where the one before ended, so a few steps do.
FINITE_STEPS = 4


class Cases(NamedTuple):
    """Where a modulus is looked for: examples, the tokens that may move and the tokens whose output is looked at."""

    examples: Float[Tensor, "case seq dim"]
    free: Bool[Tensor, "case seq 1"]
    seen: Bool[Tensor, "case seq 1"]
    noise: Float[Tensor, "case direction seq dim"]
    """directions to try, before those that are not free are taken away"""


class Found(NamedTuple):
    """Changes of output per unit of input; level 0 is the limit delta -> 0, the others are the deltas in order."""

    ratio: Float[Tensor, "level case"]
    """the largest found"""
    sampled: Float[Tensor, "level case"]
    """the largest of the random directions alone"""
    witness: Float[Tensor, "level case seq dim"]
    """the directions that gave `ratio`"""


def measure_moduli(
    network: Network,
    batch: Sample,
    names: Sequence[ModulusName],
    deltas: Sequence[float],
    iterations: int,
    batch_size: int,
) -> dict[ModulusName, Found]:
    """The moduli around the examples of a batch; passes hold at most `batch_size` sequences."""
    found: dict[ModulusName, Found] = {}
    hints: list[Tensor] = []
    for name in sorted(names, key=NARROW_FIRST.index):
        cases = _cases(name, batch)
        parts = []
        for start in range(0, len(cases.examples), batch_size):
            part = slice(start, start + batch_size)
            starts = [hint[:, part] for hint in hints] if name == "sequence" else []
            parts.append(_search(network, Cases(*(each[part] for each in cases)), deltas, iterations, starts))
        found[name] = Found(*(torch.cat(each, dim=1) for each in zip(*parts, strict=True)))
        # What one token or its context allows, the sequence allows too, and all of its outputs move at least as far as
        # one of them. So w_f is looked for from these directions as well, and comes out no smaller.
        hints += found[name].witness.unflatten(1, (len(batch.embeddings), -1)).unbind(dim=2)
    return found


def _cases(name: ModulusName, batch: Sample) -> Cases:
    """One per example (sequence), or one per example and place, places running fastest."""
    examples, noise, places = batch
    if name == "sequence":
        everything = torch.ones_like(examples[..., :1], dtype=torch.bool)
        return Cases(examples, everything, everything, noise)
    number = places.shape[1]
    own = torch.arange(examples.shape[1], device=places.device)[:, None] == places.reshape(-1, 1, 1)
    examples, noise = (each.repeat_interleave(number, dim=0) for each in (examples, noise))
    return Cases(examples, own if name == "token" else ~own, own, noise)


def _search(
    network: Network, cases: Cases, deltas: Sequence[float], iterations: int, hints: Sequence[Tensor]
) -> Found:  # fmt: skip
    """Look for the largest change, at the limit and at every delta, from random directions and `hints`."""
    drawn = [unit(direction * cases.free) for direction in cases.noise.unbind(dim=1)]
    levels, best = [], None
    for level, delta in enumerate((0.0, *deltas)):
        probe = _Probe(network, cases, delta)
        sampled, tried = _best_of(probe, drawn, torch.zeros_like(cases.examples[:, 0, 0]), drawn[0])
        # f is not odd: a direction and its opposite differ as soon as delta is finite.
        others = [] if best is None else [best, -best]
        others += [hint[level] for hint in hints]
        ratio, best = _best_of(probe, others, sampled, tried)
        ratio, best = _ascend(probe, ratio, best, FINITE_STEPS if delta else iterations)
        levels.append((ratio, sampled, best))
    return Found(*(torch.stack(tensors) for tensors in zip(*levels, strict=True)))


class _Probe:
    """The change of the seen outputs per unit of input at one delta; at 0, the derivative."""

    def __init__(self, network: Network, cases: Cases, delta: float) -> None:
        self.network, self.cases, self.delta = network, cases, delta
        if delta:
            self.before = network(cases.examples)
        else:
            outputs, pull = vjp(network, cases.examples)[:2]
            # u -> J^T u is linear, so pulling back along it is J, whatever u: two passes backward over what is already
            # computed, where forward derivatives would run the network again, and slowly, at every step.
            # (Nothing here holds the probe itself: in a ring, its graphs would wait for the garbage collector.)
            self.pull, self.push = pull, vjp(lambda change: pull(change)[0], torch.zeros_like(outputs))[1]

    def change(self, direction: Tensor) -> Tensor:
        if self.delta:
            return self._per_unit(self.network(self.cases.examples + self.delta * direction))
        return self.push(direction)[0] * self.cases.seen

    def climb(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        """The change, and the direction of the sphere in which its size grows fastest."""
        if self.delta:
            after, pull = vjp(self.network, self.cases.examples + self.delta * direction)[:2]
            change = self._per_unit(after)
        else:
            change, pull = self.change(direction), self.pull
        return change, unit(pull(change)[0] * self.cases.free)

    def _per_unit(self, after: Tensor) -> Tensor:
        return (after - self.before) / self.delta * self.cases.seen


def _best_of(probe: _Probe, directions: Sequence[Tensor], ratio: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Case by case, the direction that moves the output most, and by how much, if it is more than `ratio`."""
    for direction in directions:
        ratio, best = _better(ratio, best, size(probe.change(direction)), direction)
    return ratio, best


def _ascend(probe: _Probe, ratio: Tensor, best: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    _, direction = probe.climb(best)
    for _ in range(steps):
        change, following = probe.climb(direction)
        # At a finite delta a step may lead down: what is kept is the best seen.
        ratio, best = _better(ratio, best, size(change), direction)
        direction = following
    return ratio, best


def _better(ratio: Tensor, best: Tensor, reached: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    wins = reached > ratio
    return torch.where(wins, reached, ratio), torch.where(wins[:, None, None], direction, best)


def size(changes: Float[Tensor, "case seq dim"]) -> Float[Tensor, " case"]:
    return torch.linalg.vector_norm(changes, dim=(-2, -1))


def unit(directions: Float[Tensor, "case seq dim"]) -> Float[Tensor, "case seq dim"]:
    """Of length 1, or 0 where nothing may move (the context of a token that is alone)."""
    return directions / size(directions).clamp(min=torch.finfo(directions.dtype).tiny)[:, None, None]
