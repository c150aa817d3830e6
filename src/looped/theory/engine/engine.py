"""The loops of the engine: attention and feed-forward layer for a whole batch, in exact arithmetic."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational

import numpy as np

from looped.theory.engine.compile import FLOAT_LIMIT, CompiledNetwork, whole
from looped.theory.engine.plan import FormValues, StepPlan, classify
from looped.theory.engine.state import State, clip, integers, objects
from looped.theory.network import Form, LoopedNetwork, Number, attention_weights, plain


class Engine:
    """Evaluates one network exactly. It is compiled once for all batches with the same common denominator."""

    def __init__(self, network: LoopedNetwork):
        self.network = network
        self._compiled: dict[int, CompiledNetwork] = {}

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs as Fractions, (batch, outputs, tokens), for exact inputs of shape (batch, dim, tokens)."""
        state = deque(self.states(inputs), maxlen=1)[0]
        return np.stack([self._decode(form, state) for form in self.network.decode], axis=1)

    def _decode(self, form: Form, state: State) -> np.ndarray:
        names = list(form.terms)
        columns = [state.scaled_row(name).tolist() for name in names]
        known: dict[tuple, Fraction] = {}
        for key in set(zip(*columns, strict=True)):  # far fewer than tokens: the output is constant on cells
            values = {name: Fraction(v) / state.compiled.denominator[name] for name, v in zip(names, key, strict=True)}
            known[key] = Fraction(form.at(values))
        default = Fraction(form.const)
        keys = zip(*columns, strict=True) if names else [()] * (state.batch * state.tokens)
        return objects([known.get(key, default) for key in keys]).reshape(state.batch, state.tokens)

    def states(self, inputs: np.ndarray) -> Iterator[State]:
        """Yield the state before the first loop and after each loop. It is one object that changes in place."""
        exact = [plain(x) if isinstance(x, Rational) else Fraction(x) for x in inputs.flat]
        scale = math.lcm(*{x.denominator for x in exact})
        if scale not in self._compiled:
            self._compiled = {scale: CompiledNetwork(self.network, scale)}  # keeps the latest only
        scaled = objects([x.numerator * (scale // x.denominator) for x in exact]).reshape(inputs.shape)
        return _Run(self._compiled[scale], scaled, scale).states()


@dataclass
class _Hidden:
    """The values of the hidden units that are neither zero nor linear."""

    floats: np.ndarray
    masks: list[np.ndarray]  # the tokens with (integer in `from_rows`) + (huge offset) > 0
    from_rows: list[np.ndarray]
    bigints: list[np.ndarray]


class _Run:
    """One batch on its way through the loops."""

    def __init__(self, compiled: CompiledNetwork, inputs: np.ndarray, scale: int):
        batch, _, tokens = inputs.shape
        self.compiled, self.network = compiled, compiled.network
        self.state = State(compiled, batch, tokens)
        self.head_outputs: list[tuple[tuple, np.ndarray]] = [((), np.zeros(0))] * len(self.network.heads)
        self.plans: dict[tuple, StepPlan] = {}
        columns = np.moveaxis(inputs, 1, 0).reshape(inputs.shape[1], -1)
        given = dict(zip(self.network.inputs, columns, strict=True))
        for i, name in enumerate(compiled.dynamic_rows):
            form = self.network.encode[name] * compiled.denominator[name]
            start = objects([whole(form.const)] * columns.shape[1])
            for source, coefficient in form.terms.items():
                start = start + given[source] * whole(Fraction(coefficient) / scale)
            self.state.store(i, start)

    def states(self) -> Iterator[State]:
        yield self.state
        for t in range(self.network.loops):
            self.state.static_rows.compute_hidden()
            self._attend()
            self._feed_forward(t)
            self.state.static_rows.update(t)
            self.state.loop = t + 1
            yield self.state

    # ---- attention ------------------------------------------------------------------------------------------------

    def _attend(self) -> None:
        outputs = [self._cached_head_output(h) for h in range(len(self.network.heads))]
        for head, output in zip(self.network.heads, outputs, strict=True):
            i = self.compiled.index[head.into]
            if output.dtype == object:
                self.state.add(i, slice(None), output)
            else:
                self.state.add_floats(i, output)

    def _cached_head_output(self, h: int) -> np.ndarray:
        """Return the output of head h in the scale of its target row, computed again only if its rows have changed."""
        head, index = self.network.heads[h], self.compiled.index
        names = (*head.value.terms, *head.key.terms, *head.query.terms)
        static = self.state.static_rows
        key = tuple(self.state.version[index[name]] if name in index else static.value(name) for name in names)
        if self.head_outputs[h][0] != key or not len(self.head_outputs[h][1]):
            self.head_outputs[h] = (key, self._head_output(h))
        return self.head_outputs[h][1]

    def _head_output(self, h: int) -> np.ndarray:
        head, state, compiled = self.network.heads[h], self.state, self.compiled
        assert not set(head.query.terms) & set(compiled.index), "the engine needs queries that no input reaches"
        query = head.query.const + sum(
            Fraction(state.static_rows.value(name)) / compiled.denominator[name] * c
            for name, c in head.query.terms.items()
        )
        shape = (state.batch, state.tokens)
        values, value_denominator = self._combine(head.value)
        keys, key_denominator = self._combine(head.key)
        target = compiled.denominator[head.into] / value_denominator
        if self.network.softmax:
            query = Fraction(query) / key_denominator
            return self._softmax_head_output(values.reshape(shape), keys.reshape(shape), query) * target
        scores = (keys if query > 0 else -keys if query < 0 else 0 * keys).reshape(shape)
        winners = scores == scores.max(axis=1, keepdims=True)
        sums = np.where(winners, values.reshape(shape), 0).sum(axis=1)
        counts = winners.sum(axis=1)
        if sums.dtype == np.float64 and target.denominator == 1 and target < FLOAT_LIMIT:
            means = np.round(sums / counts)
            if (means * counts == sums).all() and abs(means).max() * target < FLOAT_LIMIT:
                return np.repeat(means * float(target), state.tokens)
        means = [
            Fraction(int(s) if isinstance(s, float) else s) * target / int(c) for s, c in zip(sums, counts, strict=True)
        ]
        return np.repeat(objects(means), state.tokens)

    def _softmax_head_output(self, values: np.ndarray, keys: np.ndarray, query: Fraction) -> np.ndarray:
        results = []
        for value, key in zip(values.tolist(), keys.tolist(), strict=True):
            weights = attention_weights([Fraction(k) * query for k in key], softmax=True)
            results.append(sum(weight * Fraction(v) for weight, v in zip(weights, value, strict=True)))
        return np.repeat(objects(results), values.shape[1])

    def _combine(self, form: Form) -> tuple[np.ndarray, Fraction]:
        """Return a form over rows as integers, in float64 if that is exact, and their common denominator."""
        state = self.state
        terms, denominator, offset = self.compiled.combination(form, state.static_rows)
        in_float = offset.denominator == 1 and all(
            abs(c) < FLOAT_LIMIT and i not in state.bigint_rows for i, c in terms
        )
        if in_float:
            # attention sums the tokens of a sequence, so the bound counts them all
            bound = state.tokens * (sum(abs(c) * state.magnitude(i) for i, c in terms) + abs(clip(offset)))
            if bound < FLOAT_LIMIT:
                result = np.full(state.float_rows.shape[1], float(offset))
                for i, c in terms:
                    result += float(c) * state.float_rows[i]
                return result, denominator
        result = objects([offset] * state.float_rows.shape[1])
        for i, c in terms:
            result = result + state.integers(i) * c
        return result, denominator

    # ---- feed-forward ---------------------------------------------------------------------------------------------

    def _feed_forward(self, t: int) -> None:
        compiled, state, static = self.compiled, self.state, self.state.static_rows
        offsets = FormValues(compiled.offsets, static.vector, static.rows_at)
        constants = FormValues(compiled.constants, static.hidden, static.units_at)
        eta = compiled.eta(t) if self.network.modulation else None
        plan = self._plan(classify(state, offsets), eta)
        from_linear = FormValues(plan.linear_constants, static.vector, static.rows_at)
        hidden = self._hidden(plan, offsets)
        # every row reads the old state, so no row may change before all changes are known
        block = self._float_change(plan, hidden, constants, from_linear)
        exact_targets = [*plan.exact_targets, *(plan.float_targets.tolist() if block is None else ())]
        changes = {}
        for i in exact_targets:
            constant = constants[i] + from_linear[i]
            changes[i] = self._exact_change(i, plan, hidden, offsets, constant, eta[i] if eta else 1)
        for i in plan.shifted_targets:
            state.shift(i, constants[i] + from_linear[i])
        if block is not None:
            state.add_block(plan.float_targets, block)
            for position, i in plan.read_by_heads:
                state.version[i] += bool(block[position].any())
        for i, (where, change) in changes.items():
            state.add(i, where, change)

    def _plan(self, kinds: np.ndarray, eta: list[Number] | None) -> StepPlan:
        """Return the plan for this pattern of unit kinds, big-integer rows and eta(t) in {0, 1, other}."""
        bigint_rows = self.state.bigint_rows
        pattern = None if eta is None else tuple(scale if scale in (0, 1) else 2 for scale in eta)
        key = (kinds.tobytes(), frozenset(bigint_rows), pattern)
        if key not in self.plans:
            float_names = self.state.static_rows.float_names
            self.plans[key] = StepPlan(self.compiled, kinds, eta, set(bigint_rows), float_names)
        return self.plans[key]

    def _hidden(self, plan: StepPlan, offsets: FormValues) -> _Hidden:
        compiled, state = self.compiled, self.state
        floats = np.zeros((0, state.float_rows.shape[1]))
        if plan.float_units:
            floats = plan.first @ state.float_rows[plan.first_rows]
            floats += offsets.floats[plan.float_units][:, None]
            np.maximum(floats, 0.0, out=floats)
        masks, from_rows = [], []
        for j in plan.masked_units:
            reads = [i for i, _ in compiled.in_terms[j]]
            value = compiled.first[j, reads] @ state.float_rows[reads]
            masks.append(value >= float(math.floor(-offsets[j]) + 1))  # integer + offset > 0
            from_rows.append(value)
        bigints = []
        for j in plan.bigint_units:
            value = objects([offsets[j]] * state.float_rows.shape[1])
            for i, weight in compiled.in_terms[j]:
                value = value + state.integers(i) * weight
            bigints.append(np.maximum(value, 0))
        return _Hidden(floats, masks, from_rows, bigints)

    def _float_change(
        self, plan: StepPlan, hidden: _Hidden, constants: FormValues, from_linear: FormValues
    ) -> np.ndarray | None:
        """Return the change of the float targets as one float64 product, or None if it may be inexact."""
        rows, state = plan.float_targets, self.state
        if not len(rows):
            return np.zeros((0, state.float_rows.shape[1]))
        constant = constants.floats[rows] + from_linear.floats[rows]
        magnitudes = state.magnitudes
        bound = abs(constants.floats[rows]) + abs(from_linear.floats[rows]) + magnitudes[rows]
        if plan.float_units:
            bound = bound + plan.second_abs @ hidden.floats.max(axis=1)
        if plan.linear_rows:
            bound = bound + plan.linear_abs @ magnitudes[plan.linear_rows]
        if not (bound < FLOAT_LIMIT).all() or not (constants.is_float[rows] & from_linear.is_float[rows]).all():
            return None
        if plan.float_units:
            change = plan.second @ hidden.floats
            change += constant[:, None]
        else:
            change = np.repeat(constant[:, None], state.float_rows.shape[1], axis=1)
        if plan.linear_rows:
            change += plan.linear_map @ state.float_rows[plan.linear_rows]
        return change

    def _exact_change(
        self, i: int, plan: StepPlan, hidden: _Hidden, offsets: FormValues, constant: Number, eta: Number
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens at which row i changes and the changes, exact for numbers of any size."""
        compiled, state = self.compiled, self.state
        weights = dict(compiled.update_terms[i])
        total = np.zeros(state.float_rows.shape[1])
        masked = [(position, j) for position, j in enumerate(plan.masked_units) if j in weights]
        parts = [(weights[j], hidden.floats[position]) for position, j in enumerate(plan.float_units) if j in weights]
        parts += [(weights[j], hidden.masks[position] * hidden.from_rows[position]) for position, j in masked]
        parts = [(w, part) for w, part in parts if part.any()]
        active = np.zeros(len(total), dtype=np.int64)  # one bit per masked unit
        for bit, (position, _) in enumerate(masked):
            active |= hidden.masks[position].astype(np.int64) << bit
        extras = {}  # the sum of the huge offsets for each set of active units; in most cases it cancels
        for code in np.unique(active).tolist() if masked else ():
            extra = sum(weights[j] * offsets[j] for bit, (_, j) in enumerate(masked) if code >> bit & 1)
            if extra:
                extras[code] = extra

        with np.errstate(over="ignore"):  # an overflow is not below the limit either
            in_float = sum(abs(clip(w)) * abs(part).max() for w, part in parts) < FLOAT_LIMIT
        if in_float:
            for w, part in parts:
                total += float(w) * part
            touched = total != 0
            for code in extras:
                touched |= active == code
            dense = bool(constant) or i in plan.linear_terms or any(j in weights for j in plan.bigint_units)
            where = np.arange(len(total)) if dense else np.flatnonzero(touched)
            change = integers(total[where])
        else:  # the same products, one by one in Python integers
            where = np.arange(len(total))
            change = objects([0] * len(total))
            for w, part in parts:
                change = change + integers(part) * w
        for code, extra in extras.items():
            change[active[where] == code] += extra
        for position, j in enumerate(plan.bigint_units):
            if j in weights:
                change = change + hidden.bigints[position] * weights[j]
        for source, weight in plan.linear_terms.get(i, ()):
            change = change + state.integers(source) * weight
        factor = compiled.row_factor[i]
        if factor != 1 or eta != 1:
            change = objects([whole((value * factor + constant) * eta) for value in change.tolist()])
        elif constant:
            change = change + constant
        return where, change
