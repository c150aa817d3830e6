"""Looped networks in exact arithmetic, as Section 2 defines them: L2 o TF^r o L1, TF = (id + eta(t) FF) o (id + Attn).

Weights are linear forms over named rows, so that a construction reads like its formula. All reported sizes are counted
from the matrices of these forms. `LoopedNetwork.states` is the definition; the engine computes the same numbers faster.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real

import numpy as np

from looped.utils.errors import InputError

Number = int | Fraction
HALF, QUARTER, THREE_QUARTERS = Fraction(1, 2), Fraction(1, 4), Fraction(3, 4)
LEAST_EXPONENT = -1000  # exp of it is 0; lower scores may be too large for a float


class Form:
    """An affine form: a constant plus a sparse sum of coefficients times named quantities (rows or hidden units)."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: Mapping[str, Number] | None = None, const: Number = 0):
        self.terms = {name: coefficient for name, coefficient in (terms or {}).items() if coefficient}
        self.const = const

    @staticmethod
    def of(value: Form | Number) -> Form:
        """Return a number as a constant form, a form as it is."""
        return value if isinstance(value, Form) else Form(const=value)

    def __add__(self, other: Form | Number) -> Form:
        other = Form.of(other)
        terms = dict(self.terms)
        for name, coefficient in other.terms.items():
            terms[name] = terms.get(name, 0) + coefficient
        return Form(terms, self.const + other.const)

    def __mul__(self, factor: Number) -> Form:
        return Form({name: coefficient * factor for name, coefficient in self.terms.items()}, self.const * factor)

    def __truediv__(self, divisor: Number) -> Form:
        return self * (Fraction(1) / divisor)

    def __neg__(self) -> Form:
        return self * -1

    def __sub__(self, other: Form | Number) -> Form:
        return self + Form.of(other) * -1

    def __rsub__(self, other: Number) -> Form:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def at(self, values: Mapping[str, Number]) -> Number:
        """Return the value of the form."""
        total: Number = self.const
        for name, coefficient in self.terms.items():
            total += coefficient * values[name]
        return total

    def after(self, inner: Mapping[str, Form]) -> Form:
        """Return this form with every quantity replaced by a form: the composition of two affine maps."""
        return total([inner[name] * coefficient for name, coefficient in self.terms.items()]) + self.const

    def vector(self, names: Sequence[str]) -> list[Number]:
        """Return the coefficients in the order of `names`."""
        return [self.terms.get(name, 0) for name in names]


def row(name: str) -> Form:
    """Return the form that reads one row."""
    return Form({name: 1})


def total(forms: Sequence[Form]) -> Form:
    """Return the sum of forms."""
    return sum(forms, Form())


class FeedForward:
    """W2 relu(W1 x + b1) + b2 over named rows, written unit by unit."""

    def __init__(self, rows: Sequence[str]):
        self.rows = tuple(rows)
        self.units: list[Form] = []
        self.updates: dict[str, Form] = {name: Form() for name in self.rows}

    def relu(self, argument: Form) -> Form:
        """Add one hidden unit and return the form that reads it."""
        unknown = set(argument.terms) - set(self.rows)
        assert not unknown, f"a hidden unit reads unknown rows: {unknown}"
        self.units.append(argument)
        return Form({f"h{len(self.units) - 1}": 1})

    def add(self, target: str, change: Form | Number) -> None:
        """Add `change`, a form over hidden units, to the update of the row `target`."""
        self.updates[target] = self.updates[target] + change

    def __call__(self, values: Mapping[str, Number]) -> dict[str, Number]:
        hidden = {f"h{j}": max(unit.at(values), 0) for j, unit in enumerate(self.units)}
        return {name: change.at(hidden) for name, change in self.updates.items()}


@dataclass(frozen=True)
class Head:
    """One head of size 1: scores are key_j * query_i, and the weighted value is added to the row `into`."""

    value: Form
    key: Form
    query: Form
    into: str


@dataclass(frozen=True)
class Size:
    """The size of a network, counted from its matrices."""

    dims: int
    heads: int
    width: int
    loops: int
    parameters: int
    max_bits: int


@dataclass(frozen=True)
class Weights:
    """Dense matrices of a network (object arrays of exact numbers), columns in the order of `LoopedNetwork.rows`."""

    encode: np.ndarray  # (dims, inputs)
    encode_bias: np.ndarray  # (dims,)
    value: np.ndarray  # (heads, dims); key, query and out alike
    key: np.ndarray
    query: np.ndarray
    out: np.ndarray
    first: np.ndarray  # (width, dims)
    first_bias: np.ndarray  # (width,)
    second: np.ndarray  # (dims, width)
    second_bias: np.ndarray  # (dims,)
    decode: np.ndarray  # (outputs, dims)
    decode_bias: np.ndarray  # (outputs,)


@dataclass(frozen=True)
class LoopedNetwork:
    """`loops` applications of one block between two affine maps; `modulation` holds eta(t) where it is not 1."""

    inputs: tuple[str, ...]
    encode: Mapping[str, Form]  # row -> form over the inputs; its order is the order of the rows
    feed_forward: FeedForward
    decode: tuple[Form, ...]
    loops: int
    heads: tuple[Head, ...] = ()
    modulation: Mapping[str, Sequence[Number]] = field(default_factory=dict)
    softmax: bool = False  # False: hardmax, uniform on ties, which is the limit of softmax

    def __post_init__(self) -> None:
        assert tuple(self.encode) == self.feed_forward.rows, "encode and feed-forward must list the same rows"
        assert all(len(scale) == self.loops for scale in self.modulation.values()), "eta needs one entry per loop"

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows of the state."""
        return self.feed_forward.rows

    def weights(self) -> Weights:
        """Return all weights as dense matrices."""
        rows, layer = self.rows, self.feed_forward
        units = [f"h{j}" for j in range(len(layer.units))]

        def dense(vectors: Sequence[Sequence[Number]], columns: int) -> np.ndarray:
            return np.array(vectors, dtype=object).reshape(len(vectors), columns)

        def column(values: Sequence[Number]) -> np.ndarray:
            return np.array(values, dtype=object)

        return Weights(
            encode=dense([self.encode[name].vector(self.inputs) for name in rows], len(self.inputs)),
            encode_bias=column([self.encode[name].const for name in rows]),
            value=dense([head.value.vector(rows) for head in self.heads], len(rows)),
            key=dense([head.key.vector(rows) for head in self.heads], len(rows)),
            query=dense([head.query.vector(rows) for head in self.heads], len(rows)),
            out=dense([row(head.into).vector(rows) for head in self.heads], len(rows)),
            first=dense([unit.vector(rows) for unit in layer.units], len(rows)),
            first_bias=column([unit.const for unit in layer.units]),
            second=dense([layer.updates[name].vector(units) for name in rows], len(units)),
            second_bias=column([layer.updates[name].const for name in rows]),
            decode=dense([form.vector(rows) for form in self.decode], len(rows)),
            decode_bias=column([form.const for form in self.decode]),
        )

    @property
    def size(self) -> Size:
        """The size of the network, with eta(t) among the parameters."""
        weights = self.weights()
        arrays = [array for array in vars(weights).values() if array.size]
        scales = [np.array(scale, dtype=object) for scale in self.modulation.values()]
        numbers = {number for array in [*arrays, *scales] for number in array.flat}
        return Size(
            dims=weights.first.shape[1],
            heads=weights.value.shape[0],
            width=weights.first.shape[0],
            loops=self.loops,
            parameters=sum(array.size for array in [*arrays, *scales]),
            max_bits=max(bits_of(number) for number in numbers),
        )

    def states(self, columns: Sequence[Sequence[Number]]) -> Iterator[list[dict[str, Number]]]:
        """Yield the state of every token before the first loop and after each loop. `columns[j]` is token j."""
        tokens = [dict(zip(self.inputs, column, strict=True)) for column in columns]
        state = [{name: form.at(token) for name, form in self.encode.items()} for token in tokens]
        yield [dict(token) for token in state]
        for t in range(self.loops):
            outputs = [self._attend(head, state) for head in self.heads]
            for head, results in zip(self.heads, outputs, strict=True):
                for token, result in zip(state, results, strict=True):
                    token[head.into] += result
            for token in state:
                for name, change in self.feed_forward(token).items():
                    token[name] += change * self.modulation[name][t] if name in self.modulation else change
            yield [dict(token) for token in state]

    def _attend(self, head: Head, state: Sequence[Mapping[str, Number]]) -> list[Number]:
        values = [head.value.at(token) for token in state]
        keys = [head.key.at(token) for token in state]
        results = []
        for token in state:
            query = head.query.at(token)
            weights = attention_weights([key * query for key in keys], self.softmax)
            results.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        return results

    def read(self, state: Sequence[Mapping[str, Number]]) -> list[list[Number]]:
        """Return the decoded output of every token."""
        return [[form.at(token) for form in self.decode] for token in state]

    def __call__(self, columns: Sequence[Sequence[Number]]) -> list[list[Number]]:
        return self.read(deque(self.states(columns), maxlen=1)[0])


def attention_weights(scores: Sequence[Number], softmax: bool) -> list[Number]:
    """Return hardmax weights, uniform on ties, or softmax weights with exponentials in double precision."""
    best = max(scores)
    if softmax:
        exponentials = [math.exp(max(score - best, LEAST_EXPONENT)) for score in scores]
        return [Fraction(exponential / math.fsum(exponentials)) for exponential in exponentials]
    winners = [score == best for score in scores]
    return [Fraction(int(winner), sum(winners)) for winner in winners]


def exactly(value: object, field: str, expected: str) -> Fraction:
    """Return a number that a user gave, as a Fraction. Raise InputError if it is not a finite number."""
    if isinstance(value, Rational):
        return plain(value)
    if isinstance(value, Real | Decimal) and math.isfinite(value):
        return Fraction(value) if isinstance(value, Decimal) else Fraction(float(value))
    raise InputError(f"{field}: expected {expected}, got {value!r}")


def entries(inputs: np.ndarray) -> np.ndarray:
    """Return the entries of X as a new array of Fractions. Raise InputError if one is outside [0, 1]."""
    given = inputs.ravel()
    if np.can_cast(given.dtype, np.float64):  # the same check for all entries at once
        outside = given[~((given >= 0) & (given <= 1))].tolist()
        numbers = [] if outside else [Fraction(x) for x in given.tolist()]
    else:
        numbers = [exactly(x, "inputs", "entries in [0, 1]") for x in given.tolist()]
        outside = [x for x, number in zip(given, numbers, strict=True) if not 0 <= number <= 1]
    if outside:
        raise InputError(f"inputs: expected entries in [0, 1], got {outside[0]}")
    exact = np.empty(len(numbers), dtype=object)
    exact[:] = numbers
    return exact.reshape(inputs.shape)


def plain(number: Rational) -> Fraction:
    """Return the same number with Python integers, because NumPy integers overflow."""
    return Fraction(int(number.numerator), int(number.denominator))


def bits_of(number: Number) -> int:
    """Return the binary digits of |number|: before plus after the point if dyadic, else numerator plus denominator."""
    numerator, denominator = abs(number.numerator), number.denominator
    if denominator & (denominator - 1):
        return numerator.bit_length() + denominator.bit_length()
    return max(numerator.bit_length(), denominator.bit_length() - 1)
