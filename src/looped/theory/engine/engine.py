"""The fast exact evaluator: the same numbers as `LoopedNetwork.states`, for batches, without a rounding error.

1. Rows that no input can reach (clock, label bits, constants) run once, as Python integers of any length.
2. Every other row is held in a unit 1/D that makes its values integers, as float64 while |w| |x| summed stays below
   2^53 (every partial sum of such integers is exact), else as Python integers. The bound is checked at every product.
3. The range of each row decides which hidden units are zero for the whole batch and which are linear; linear ones are
   added up symbolically, so that the impulses, which cancel outside their loop, cost nothing and overflow nothing.
A proof that 1-3 are exact is in docs/theory.md, "Exactness of the engine".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational

import numpy as np

from looped.theory.engine.compile import EXACT, Lattice, whole
from looped.theory.engine.plan import DEAD, FLOAT, HUGE, LINEAR, MASKED, OBJECT, LoopPlan, Values, clip
from looped.theory.engine.state import State, integers, objects
from looped.theory.network import Form, LoopedNetwork, Number, attention_weights, plain

TINY = 2.0**-1000
MOST_MASKED = 62  # which of them are on is one bit each of an int64


class Engine:
    """Evaluates one network; compiled once, run on as many batches as wanted."""

    def __init__(self, network: LoopedNetwork):
        self.network = network
        self._lattices: dict[int, Lattice] = {}

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """(batch, dim, tokens) exact numbers to (batch, outputs, tokens) Fractions."""
        state = deque(self.states(inputs), maxlen=1)[0]
        return np.stack([self._decode(form, state) for form in self.network.decode], axis=1)

    def _decode(self, form: Form, state: State) -> np.ndarray:
        names = list(form.terms)
        columns = [state.numbers(name).tolist() for name in names]
        known: dict[tuple, Fraction] = {}
        for key in set(zip(*columns, strict=True)):  # far fewer than tokens: the output is constant on cells
            values = {name: Fraction(v) / state.lattice.unit[name] for name, v in zip(names, key, strict=True)}
            known[key] = Fraction(form.at(values))
        default = Fraction(form.const)
        keys = zip(*columns, strict=True) if names else [()] * (state.batch * state.tokens)
        return objects([known.get(key, default) for key in keys]).reshape(state.batch, state.tokens)

    def states(self, inputs: np.ndarray) -> Iterator[State]:
        """The state before the first loop and after each loop. The same object is updated: read it before going on."""
        exact = [plain(x) if isinstance(x, Rational) else Fraction(x) for x in inputs.flat]
        scale = math.lcm(*{x.denominator for x in exact})
        if scale not in self._lattices:
            self._lattices = {scale: Lattice(self.network, scale)}  # the last one is enough
        counted = objects([x.numerator * (scale // x.denominator) for x in exact]).reshape(inputs.shape)
        return _Run(self.network, self._lattices[scale], counted, scale).states()


class _Run:
    def __init__(self, network: LoopedNetwork, lattice: Lattice, inputs: np.ndarray, scale: int):
        batch, _, tokens = inputs.shape
        self.network, self.lattice = network, lattice
        columns = np.moveaxis(inputs, 1, 0).reshape(inputs.shape[1], -1)
        rows = len(lattice.dynamic)
        self.state = State(lattice, batch, tokens, 0, lattice.statics(), np.zeros((rows, columns.shape[1])), {})
        self.low, self.high = np.zeros(rows), np.zeros(rows)
        self.version = [0] * rows
        self.heard: list[tuple[tuple, np.ndarray]] = [((), np.zeros(0))] * len(network.heads)
        self.plans: dict[tuple, LoopPlan] = {}
        given = dict(zip(network.inputs, columns, strict=True))
        for i, name in enumerate(lattice.dynamic):
            form = network.encode[name] * lattice.unit[name]
            start = objects([whole(form.const)] * columns.shape[1])
            for source, coefficient in form.terms.items():
                start = start + given[source] * whole(Fraction(coefficient) / scale)
            self._store(i, start)

    def states(self) -> Iterator[State]:
        yield self.state
        for t in range(self.network.loops):
            self.state.statics.fire()
            self._attend()
            self._feed_forward(t)
            self.state.statics.step(t)
            self.state.loop = t + 1
            yield self.state

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _store(self, i: int, values: np.ndarray) -> None:
        """Set row i, as float64 if every value is an integer small enough."""
        if _fits(values):
            self.state.wide.pop(i, None)
            self.state.small[i] = values.astype(np.float64)
            self.low[i], self.high[i] = self.state.small[i].min(), self.state.small[i].max()
        else:
            self.state.wide[i] = values
            self.low[i], self.high[i] = _below(values.min()), _above(values.max())
        self.version[i] += 1

    def _add(self, i: int, where: np.ndarray, change: np.ndarray) -> None:
        """Add exact numbers to some tokens of row i."""
        if not change.any():
            return
        if i not in self.state.wide:
            values = self.state.integers(i)
            values[where] += change
            self._store(i, values)
            return
        values = self.state.wide[i]
        values[where] += change
        if self.lattice.is_read[i]:  # the range of a row that no unit reads is never asked for
            self.low[i], self.high[i] = _below(values.min()), _above(values.max())
        self.version[i] += 1

    def _shift(self, i: int, constant: Number) -> None:
        """Add the same number to all tokens of row i."""
        if not constant:
            return
        if constant.denominator == 1 and abs(clip(constant)) + self._size(i) < EXACT:
            self.state.small[i] += float(constant)
            self.low[i] += float(constant)
            self.high[i] += float(constant)
            self.version[i] += 1
        else:
            everywhere = np.arange(self.state.small.shape[1])
            self._add(i, everywhere, objects([constant] * len(everywhere)))

    # ---- attention ------------------------------------------------------------------------------------------------

    def _attend(self) -> None:
        results = [self._hear(h) for h in range(len(self.network.heads))]
        for head, result in zip(self.network.heads, results, strict=True):
            i = self.lattice.index[head.into]
            if result.dtype == object or i in self.state.wide or self._size(i) + abs(result).max() >= EXACT:
                self._add(i, np.arange(len(result)), result if result.dtype == object else integers(result))
            elif result.any():
                self.state.small[i] += result
                self.low[i], self.high[i] = self.state.small[i].min(), self.state.small[i].max()
                self.version[i] += 1

    def _size(self, i: int) -> float:
        return max(-self.low[i], self.high[i])

    def _hear(self, h: int) -> np.ndarray:
        """What head h adds, in the unit of its target row; remembered as long as its rows stand still."""
        head = self.network.heads[h]
        names = (*head.value.terms, *head.key.terms, *head.query.terms)
        seen = tuple(
            self.version[self.lattice.index[name]] if name in self.lattice.index else self.state.statics.value(name)
            for name in names
        )
        if self.heard[h][0] != seen or not len(self.heard[h][1]):
            self.heard[h] = (seen, self._listen(h))
        return self.heard[h][1]

    def _listen(self, h: int) -> np.ndarray:
        head, state, lattice = self.network.heads[h], self.state, self.lattice
        assert not set(head.query.terms) & set(lattice.index), "the engine needs queries that no input reaches"
        query = head.query.const + sum(
            Fraction(state.statics.value(name)) / lattice.unit[name] * c for name, c in head.query.terms.items()
        )
        shape = (state.batch, state.tokens)
        values, value_unit = self._combine(head.value)
        keys, key_unit = self._combine(head.key)
        target = lattice.unit[head.into] / value_unit
        if self.network.softmax:
            return self._listen_softly(values.reshape(shape), keys.reshape(shape), Fraction(query) / key_unit) * target
        scores = (keys if query > 0 else -keys if query < 0 else 0 * keys).reshape(shape)
        winners = scores == scores.max(axis=1, keepdims=True)
        sums = np.where(winners, values.reshape(shape), 0).sum(axis=1)
        counts = winners.sum(axis=1)
        if sums.dtype == np.float64 and target.denominator == 1 and target < EXACT:
            means = np.round(sums / counts)
            if (means * counts == sums).all() and abs(means).max() * target < EXACT:
                return np.repeat(means * float(target), state.tokens)
        means = [
            Fraction(int(s) if isinstance(s, float) else s) * target / int(c) for s, c in zip(sums, counts, strict=True)
        ]
        return np.repeat(objects(means), state.tokens)

    def _listen_softly(self, values: np.ndarray, keys: np.ndarray, query: Fraction) -> np.ndarray:
        results = []
        for value, key in zip(values.tolist(), keys.tolist(), strict=True):
            weights = attention_weights([Fraction(k) * query for k in key], softmax=True)
            results.append(sum(weight * Fraction(v) for weight, v in zip(weights, value, strict=True)))
        return np.repeat(objects(results), values.shape[1])

    def _combine(self, form: Form) -> tuple[np.ndarray, Fraction]:
        """A form over rows as integers (float64 if exact) in a unit of its own; what no input reaches is added last."""
        lattice, state = self.lattice, self.state
        terms, unit, offset = lattice.combination(form, state.statics)
        plain = offset.denominator == 1 and all(abs(c) < EXACT and i not in state.wide for i, c in terms)
        # attention adds up the tokens of a sequence, so the bound counts them all
        if plain and state.tokens * (sum(abs(c) * self._size(i) for i, c in terms) + abs(clip(offset))) < EXACT:
            result = np.full(state.small.shape[1], float(offset))
            for i, c in terms:
                result += float(c) * state.small[i]
            return result, unit
        result = objects([offset] * state.small.shape[1])
        for i, c in terms:
            result = result + state.integers(i) * c
        return result, unit

    # ---- feed-forward ---------------------------------------------------------------------------------------------

    def _feed_forward(self, t: int) -> None:
        lattice, state = self.lattice, self.state
        offsets = Values(lattice.offsets, state.statics.vector, state.statics.rows_at)
        constants = Values(lattice.constants, state.statics.hidden, state.statics.units_at)
        scales = lattice.scales(t) if lattice.network.modulation else None
        kinds = self._classify(offsets)
        shape = None if scales is None else tuple(s if s in (0, 1) else 2 for s in scales)
        key = (kinds.tobytes(), frozenset(state.wide), shape)
        if key not in self.plans:
            self.plans[key] = LoopPlan(lattice, kinds, scales, set(state.wide), state.statics.plain)
        plan = self.plans[key]
        from_linear = Values(plan.linear_constants, state.statics.vector, state.statics.rows_at)
        hidden = self._hidden(plan, offsets)
        change = self._float_change(plan, hidden, constants, from_linear)
        slow = plan.others if change is not None else sorted([*plan.simple.tolist(), *plan.others])
        pending = [
            (
                i,
                *self._exact_change(
                    i, plan, hidden, offsets, constants[i] + from_linear[i], scales[i] if scales else 1
                ),
            )
            for i in slow
        ]
        # every row reads the old state, so nothing moves before all changes are known
        for i in plan.shifted:
            self._shift(i, constants[i] + from_linear[i])
        if change is not None:
            block = state.small[plan.simple]
            block += change
            state.small[plan.simple] = block
            self.low[plan.simple], self.high[plan.simple] = block.min(axis=1), block.max(axis=1)
            for position, i in plan.heard:
                self.version[i] += bool(change[position].any())
        for i, where, moved in pending:
            self._add(i, where, moved)

    def _classify(self, offsets: Values) -> np.ndarray:
        lattice = self.lattice
        offset = offsets.floats
        with np.errstate(over="ignore", invalid="ignore"):
            up = lattice.positive @ self.high + lattice.negative @ self.low + offset
            down = lattice.positive @ self.low + lattice.negative @ self.high + offset
            inner = lattice.magnitude @ np.maximum(-self.low, self.high)
            size = inner + abs(offset)
            exact = (size < EXACT) & offsets.whole
            kinds = np.where(exact, FLOAT, MASKED).astype(np.uint8)
            kinds[~(inner < EXACT)] = OBJECT
            if self.state.wide:
                kinds[(lattice.first[:, sorted(self.state.wide)] != 0).any(axis=1)] = OBJECT
            # rounding of the bounds themselves; a number below TINY may have become 0
            slack = np.where(kinds == FLOAT, 0.0, size * 2.0**-40 + TINY)
            # a number beyond HUGE counts as HUGE, so that a sum of such numbers bounds nothing; an offset still does
            sure = inner < HUGE / 2
            kinds[sure & (down >= slack)] = LINEAR
            kinds[sure & (up <= -slack)] = DEAD
            kinds[np.flatnonzero(kinds == MASKED)[MOST_MASKED:]] = OBJECT
        return kinds

    def _hidden(self, plan: LoopPlan, offsets: Values) -> _Hidden:
        lattice, state = self.lattice, self.state
        floats = np.zeros((0, state.small.shape[1]))
        if plan.floats:
            floats = plan.first @ state.small[plan.first_rows]
            floats += offsets.floats[plan.floats][:, None]
            np.maximum(floats, 0.0, out=floats)
        masks, inner = [], []
        for j in plan.masked:
            reads = [i for i, _ in lattice.in_terms[j]]
            value = lattice.first[j, reads] @ state.small[reads]
            masks.append(value >= float(math.floor(-offsets[j]) + 1))  # integer + offset > 0
            inner.append(value)
        exact = []
        for j in plan.objects:
            value = objects([offsets[j]] * state.small.shape[1])
            for i, weight in lattice.in_terms[j]:
                value = value + state.integers(i) * weight
            exact.append(np.maximum(value, 0))
        return _Hidden(floats, masks, inner, exact)

    def _float_change(
        self, plan: LoopPlan, hidden: _Hidden, constants: Values, from_linear: Values
    ) -> np.ndarray | None:
        """The change of the simple rows as one float64 product; None if it cannot be proved exact."""
        rows = plan.simple
        if not len(rows):
            return np.zeros((0, self.state.small.shape[1]))
        constant = constants.floats[rows] + from_linear.floats[rows]
        size = np.maximum(-self.low, self.high)
        bound = abs(constants.floats[rows]) + abs(from_linear.floats[rows]) + size[rows]
        if plan.floats:
            bound = bound + plan.second_size @ hidden.floats.max(axis=1)
        if plan.linear_rows:
            bound = bound + plan.linear_size @ size[plan.linear_rows]
        if not (bound < EXACT).all() or not (constants.whole[rows] & from_linear.whole[rows]).all():
            return None
        if plan.floats:
            change = plan.second @ hidden.floats
            change += constant[:, None]
        else:
            change = np.repeat(constant[:, None], self.state.small.shape[1], axis=1)
        if plan.linear_rows:
            change += plan.linear_map @ self.state.small[plan.linear_rows]
        return change

    def _exact_change(
        self, i: int, plan: LoopPlan, hidden: _Hidden, offsets: Values, constant: Number, scale: Number
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where row i changes and by how much, as an object array: exact for numbers of any size."""
        lattice, state = self.lattice, self.state
        weights = dict(lattice.update_terms[i])
        total = np.zeros(state.small.shape[1])
        masked = [(position, j) for position, j in enumerate(plan.masked) if j in weights]
        parts = [(weights[j], hidden.floats[position]) for position, j in enumerate(plan.floats) if j in weights]
        parts += [(weights[j], hidden.masks[position] * hidden.inner[position]) for position, j in masked]
        parts = [(w, part) for w, part in parts if part.any()]
        signature = np.zeros(len(total), dtype=np.int64)
        for bit, (position, _) in enumerate(masked):
            signature |= hidden.masks[position].astype(np.int64) << bit
        extras = {}  # what the huge offsets of masked units add, by the set of units that are on; mostly it cancels
        for code in np.unique(signature).tolist() if masked else ():
            extra = sum(weights[j] * offsets[j] for bit, (_, j) in enumerate(masked) if code >> bit & 1)
            if extra:
                extras[code] = extra

        with np.errstate(over="ignore"):  # then it is not below either
            small = sum(abs(clip(w)) * abs(part).max() for w, part in parts) < EXACT
        if small:
            for w, part in parts:
                total += float(w) * part
            touched = total != 0
            for code in extras:
                touched |= signature == code
            dense = bool(constant) or i in plan.linear_terms or any(j in weights for j in plan.objects)
            where = np.arange(len(total)) if dense else np.flatnonzero(touched)
            change = integers(total[where])
        else:  # the same products, one by one in Python integers
            where = np.arange(len(total))
            change = objects([0] * len(total))
            for w, part in parts:
                change = change + integers(part) * w
        for code, extra in extras.items():
            change[signature[where] == code] += extra
        for position, j in enumerate(plan.objects):
            if j in weights:
                change = change + hidden.objects[position] * weights[j]
        for source, weight in plan.linear_terms.get(i, ()):
            change = change + state.integers(source) * weight
        if lattice.share[i] != 1 or scale != 1:
            share = lattice.share[i]
            change = objects([whole((value * share + constant) * scale) for value in change.tolist()])
        elif constant:
            change = change + constant
        return where, change


@dataclass
class _Hidden:
    """Values of the hidden units that are neither zero nor linear."""

    floats: np.ndarray
    masks: list[np.ndarray]  # which tokens have (integer `inner` + huge offset) > 0
    inner: list[np.ndarray]
    objects: list[np.ndarray]


def _fits(values: np.ndarray) -> bool:
    integral = all(type(v) is int or v.denominator == 1 for v in values.tolist())
    return integral and values.min() > -EXACT and values.max() < EXACT


def _below(value: Number) -> float:
    return math.nextafter(clip(value), -math.inf)


def _above(value: Number) -> float:
    return math.nextafter(clip(value), math.inf)
