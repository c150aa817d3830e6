"""Target functions: built-in ones with their range and Lipschitz constants, and a user's own from a file.

All are permutation equivariant maps of (dim, tokens) arrays in [0, 1]. The constants are in the 2-norm; Appendix C of
theory-paper derives them. `Target.upper` turns them into upper bounds of the paper's three moduli of continuity.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from types import ModuleType
from typing import Literal, cast

import numpy as np

from looped.theory.grid import Function, described
from looped.utils.errors import InputError, as_number, require, require_counts, require_one_of

ModulusName = Literal["sequence", "context", "token"]
ModulusFunction = Callable[[ModulusName, float], float]  # (which, delta) -> omega(delta)
ATTENTION_TEMPERATURE = 4


@dataclass(frozen=True)
class Lipschitz:
    """Constants in the 2-norm: of f, and of one column of f if only the others (context) or only it (token) change."""

    sequence: float
    context: float
    token: float

    def __post_init__(self) -> None:
        for constant in (self.sequence, self.context, self.token):
            fits = 0 <= as_number(constant) < inf
            require(fits, f"lipschitz: expected a finite constant >= 0, got {constant}")


@dataclass(frozen=True)
class Target:
    """A function, with its Lipschitz constants and range if they are known."""

    name: str
    function: Function
    lipschitz: Lipschitz | None = None
    low: float = -inf
    high: float = inf

    def upper(self, which: ModulusName, delta: float, p: float, dim: int, tokens: int) -> float | None:
        """Return an upper bound of a modulus, or None. It uses |v|_p <= size^max(0, 1/p - 1/2) |v|_2 and the range."""
        if self.lipschitz is None:
            return None
        entries = dim * tokens if which == "sequence" else dim
        by_slope = getattr(self.lipschitz, which) * delta * entries ** max(0.0, 1 / p - 0.5)
        return min(by_slope, (self.high - self.low) * entries ** (1 / p))


def as_target(function: Function | Target, lipschitz: float | Lipschitz | None = None) -> Target:
    """Return a function as a Target, with a Lipschitz constant if one is given."""
    if not callable(function) and not isinstance(function, Target):
        hint = "`theory.load` returns a built-in one by its name."
        raise InputError(f"function: expected a function of an array (dim, tokens), got {function!r}. {hint}")
    target = function if isinstance(function, Target) else Target(getattr(function, "__name__", "f"), function)
    if lipschitz is None:
        return target
    constants = lipschitz if isinstance(lipschitz, Lipschitz) else Lipschitz(lipschitz, lipschitz, lipschitz)
    return Target(target.name, target.function, constants, target.low, target.high)


def require_norm(p: float) -> None:
    """Raise InputError unless p is a number >= 1."""
    require(as_number(p) >= 1, f"p: expected a number >= 1 (inf allowed), got {p}")


def norm(values: np.ndarray, p: float) -> float:
    """Return |values|_p over all entries, scaled by the largest so that p-th powers do not overflow."""
    largest = float(np.abs(values).max(initial=0.0))
    return largest * float(np.linalg.norm(np.ravel(values / largest), ord=p)) if largest else 0.0


def mean(x: np.ndarray) -> np.ndarray:
    """Return the mean of all tokens, for every token."""
    return np.repeat(x.mean(axis=1, keepdims=True), x.shape[1], axis=1)


def prod(x: np.ndarray) -> np.ndarray:
    """Return the coordinate-wise product of all tokens, for every token."""
    return np.repeat(x.prod(axis=1, keepdims=True), x.shape[1], axis=1)


def attn(x: np.ndarray) -> np.ndarray:
    """Return the softmax attention of every token over all tokens, with temperature 4."""
    scores = ATTENTION_TEMPERATURE * x.T @ x
    weights = np.exp(scores - scores.max(axis=0, keepdims=True))
    return x @ (weights / weights.sum(axis=0, keepdims=True))


def maximum(x: np.ndarray) -> np.ndarray:
    """Return the coordinate-wise maximum over all tokens, minus half the token."""
    return x.max(axis=1, keepdims=True) - x / 2


def wave(x: np.ndarray) -> np.ndarray:
    """Return sin(3 x + 2 (sum of all entries)), for which token and context moduli are large."""
    return np.sin(3 * x + 2 * x.sum())


def _mean(dim: int, tokens: int) -> Target:
    return Target("mean", mean, Lipschitz(1, sqrt(tokens - 1) / tokens, 1 / tokens), 0, 1)


def _prod(dim: int, tokens: int) -> Target:
    return Target("prod", prod, Lipschitz(tokens, sqrt(tokens - 1), 1), 0, 1)


def _attn(dim: int, tokens: int) -> Target:
    # query: t Cov_p(x), |Cov| <= d/4; own key: t p(1-p) d <= t d/4; own value: p <= 1; others: 1 + t sqrt(d) sqrt(d)/2
    token, context = 1 + ATTENTION_TEMPERATURE * dim / 2, 1 + ATTENTION_TEMPERATURE * dim / 2
    return Target("attn", attn, Lipschitz(token + sqrt(tokens) * context, context, token), 0, 1)


def _max(dim: int, tokens: int) -> Target:
    return Target("max", maximum, Lipschitz(sqrt(tokens) + 0.5, 1 if tokens > 1 else 0, 0.5), 0, 1)


def _wave(dim: int, tokens: int) -> Target:
    return Target("wave", wave, Lipschitz(3 + 2 * dim * tokens, 2 * dim * sqrt(tokens - 1), 3 + 2 * dim), -1, 1)


FUNCTIONS: dict[str, Callable[[int, int], Target]] = {
    "mean": _mean,
    "prod": _prod,
    "attn": _attn,
    "max": _max,
    "wave": _wave,
}


def load(name: str, dim: int, tokens: int) -> Target:
    """Return a built-in function by name, or a function of a user's file by `file.py:name`."""
    require_counts(dim=dim, tokens=tokens)
    if not isinstance(name, str) or ":" not in name:
        require_one_of("function", name, [*FUNCTIONS, "file.py:name"])
        return FUNCTIONS[name](dim, tokens)
    path, _, attribute = name.rpartition(":")
    if not Path(path).is_file():
        raise InputError(f"function: expected a Python file before ':' in {name!r}, but there is no file {path!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"function: expected a file that ends in .py before ':', got {path!r}")
    module = importlib.util.module_from_spec(spec)
    try:
        with _importable(module):
            spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"function: the file {path} raised {described(error)}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(f"function: expected a function {attribute!r} in {path}, got {type(function).__name__}")
    return Target(attribute, cast(Function, function))


@contextmanager
def _importable(module: ModuleType) -> Iterator[None]:
    """List the module in sys.modules while its file is read, because dataclasses look for their module there."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
