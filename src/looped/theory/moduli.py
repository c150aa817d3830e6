"""The three moduli of continuity of Section 3 for a given function: lower estimates, and upper bounds if known.

A search finds the lower estimate, and the pair of points that it returns is the proof. Upper bounds come from Lipschitz
constants, analytic or given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from numbers import Integral
from typing import get_args

import numpy as np

from looped.theory.grid import Function, evaluate, refuse_if_not_equivariant
from looped.theory.targets import Lipschitz, ModulusName, Target, as_target, norm, require_norm
from looped.utils.errors import as_number, require, require_counts

STARTS, KEPT, ROUNDS = 160, 4, 40


@dataclass(frozen=True)
class Modulus:
    """lower <= omega(delta) <= upper, with |f(x) - f(y)| = lower for the witnesses x, y in one `column` (None: all)."""

    lower: float
    witness: tuple[np.ndarray, np.ndarray]
    column: int | None
    upper: float | None


@dataclass(frozen=True)
class Moduli:
    """omega_f, omega_cont and omega_tok at one delta and p."""

    delta: float
    p: float
    sequence: Modulus
    context: Modulus
    token: Modulus


def moduli(
    function: Function | Target,
    dim: int,
    tokens: int,
    delta: float,
    p: float = 2,
    lipschitz: float | Lipschitz | None = None,
    seed: int = 0,
) -> Moduli:
    """Estimate the moduli of a permutation equivariant function at `delta` in the p-norm.

    One number as `lipschitz` bounds all three.
    """
    require_counts(dim=dim, tokens=tokens)
    require(0 < as_number(delta) < inf, f"delta: expected a finite number > 0, got {delta}")
    require_norm(p)
    require(isinstance(seed, Integral) and seed >= 0, f"seed: expected an integer >= 0, got {seed!r}")
    target = as_target(function, lipschitz)
    refuse_if_not_equivariant(target.function, dim, tokens)
    rng = np.random.default_rng(seed)
    found = {which: _search(target, which, dim, tokens, delta, p, rng) for which in get_args(ModulusName)}
    return Moduli(delta, p, **found)


def _search(
    target: Target, which: ModulusName, dim: int, tokens: int, delta: float, p: float, rng: np.random.Generator
) -> Modulus:
    """Return the best of many random pairs, after the best few were improved by random steps of decreasing size."""
    free = np.ones((dim, tokens))
    column = None if which == "sequence" else 0  # f is permutation equivariant, so all columns are alike
    if which == "context":
        free[:, 0] = 0
    elif which == "token":
        free[:, 1:] = 0

    # each entry of x + move is rounded by at most 2^-53, so the move is made shorter by the sum of these errors
    reach = max(0.0, delta - (free.size + 4) * 2.0**-52)

    def partner(x: np.ndarray, move: np.ndarray) -> np.ndarray:
        length = np.linalg.norm(move * free)
        return np.clip(x + move * free * (reach / length if length else 0), 0, 1)

    def gain(x: np.ndarray, move: np.ndarray) -> float:
        difference = evaluate(target.function, x) - evaluate(target.function, partner(x, move))
        return norm(difference if column is None else difference[:, column], p)

    candidates = [(rng.random((dim, tokens)), rng.normal(size=(dim, tokens))) for _ in range(STARTS)]
    candidates += [(corner, sign * free) for corner in _corners(dim, tokens) for sign in (1, -1)]
    ranked = sorted(((gain(*pair), *pair) for pair in candidates), key=lambda entry: -entry[0])[:KEPT]
    best = max((_climb(gain, *start, rng) for start in ranked), key=lambda entry: entry[0])
    x, y = best[1], partner(best[1], best[2])
    return Modulus(best[0], (x, y), column, target.upper(which, delta, p, dim, tokens))


def _corners(dim: int, tokens: int) -> list[np.ndarray]:
    return [np.full((dim, tokens), level) for level in (0.0, 0.25, 0.5, 0.75, 1.0)]


def _climb(
    gain: Callable[[np.ndarray, np.ndarray], float],
    value: float,
    x: np.ndarray,
    move: np.ndarray,
    rng: np.random.Generator,
) -> tuple[float, np.ndarray, np.ndarray]:
    move = move / max(float(np.linalg.norm(move)), 1e-300)
    for step in np.geomspace(0.3, 0.003, ROUNDS):
        new_x = np.clip(x + step * rng.normal(size=x.shape), 0, 1)
        new_move = move + step * rng.normal(size=x.shape)
        for candidate in ((new_x, move), (x, new_move), (new_x, new_move)):
            reached = gain(*candidate)
            if reached > value:
                value, (x, move) = reached, candidate
    return value, x, move
