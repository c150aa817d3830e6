"""Compilation: static and dynamic rows, the denominator of every row, and all weights as integers."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from looped.theory.network import Form, LoopedNetwork, Number

FLOAT_LIMIT = float(2**53)  # integers below this limit, and sums of them that stay below it, are exact in float64
FLOAT_WEIGHT_LIMIT = 2**20  # forms with numbers below this are tried in float64 first
LARGEST_DENOMINATOR = 2**4096  # rows whose eta(t) has larger denominators hold Fractions instead
FLOAT_DENOMINATOR = 2**20  # offsets with larger denominators are compared, never added, in float64
MOST_ROUNDS = 32

Terms = list[tuple[int, Number]]


class FloatForms:
    """Forms with small integer weights, evaluated together in float64."""

    def __init__(self, forms: Sequence[Form], columns: Sequence[str]):
        weights = [[float(c) for c in form.vector(columns)] for form in forms]
        self.weights = np.array(weights).reshape(len(forms), len(columns))
        self.constant = np.array([float(form.const) for form in forms])
        self.abs_weights, self.abs_constant = abs(self.weights), abs(self.constant)

    def evaluate(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of all forms, and a mask of those that may be inexact."""
        if not len(self.constant):
            return self.constant, np.zeros(0, dtype=bool)
        bound = self.abs_weights @ abs(values) + self.abs_constant
        return self.weights @ values + self.constant, bound >= FLOAT_LIMIT


class MixedForms:
    """Forms over static rows or units: most are evaluated together in float64, the others one by one."""

    def __init__(self, forms: Sequence[Form], float_names: Sequence[str]):
        known = set(float_names)
        self.forms = list(forms)
        self.bigint = np.array([not _fits_float(form) or not set(form.terms) <= known for form in forms], dtype=bool)
        in_float = [Form() if bigint else form for form, bigint in zip(forms, self.bigint, strict=True)]
        self.floats = FloatForms(in_float, float_names)


class StaticRows:
    """The rows that no input reaches: most in one float64 vector, the others as Python integers or Fractions.

    A row or unit that outgrows float64 becomes a Python number as well. Its entry in the vector is then 2^53, so that
    every sum with it counts as inexact and is computed from the exact numbers instead.
    """

    def __init__(
        self, network: LoopedNetwork, names: Sequence[str], denominator: Mapping[str, int], scale: Sequence[Fraction]
    ):
        layer = network.feed_forward
        static_units = [(j, form) for j, form in enumerate(layer.units) if set(form.terms) <= set(names)]
        units = {f"h{j}": _scaled_unit(form, scale[j], denominator) for j, form in static_units}
        updates = {name: _scaled_update(layer.updates[name], denominator[name], scale) for name in names}
        start = {name: whole(network.encode[name].const * denominator[name]) for name in names}
        self.modulation = {name: network.modulation[name] for name in names if name in network.modulation}

        bigint = {name for name in names if not _fits_float(updates[name]) or not _fits_float(Form(const=start[name]))}
        bigint |= {name for name, eta in self.modulation.items() if not set(eta) <= {0, 1}}
        while True:  # whatever reads a Python number may become one
            bigint_units = {u for u, form in units.items() if not _fits_float(form) or set(form.terms) & bigint}
            more = {name for name in names if set(updates[name].terms) & bigint_units} - bigint
            if not more:
                break
            bigint |= more
        self.float_names = [name for name in names if name not in bigint]
        self.float_units = [u for u in units if u not in bigint_units]
        self.vector = np.array([float(start[name]) for name in self.float_names])
        self.bigint_values = {name: start[name] for name in names if name in bigint}
        self._row_index = {name: n for n, name in enumerate(self.float_names)}
        self._unit_index = {u: n for n, u in enumerate(self.float_units)}
        self._unit_forms, self._update_forms = units, updates
        self._units = FloatForms([units[u] for u in self.float_units], self.float_names)
        self._updates = FloatForms([updates[name] for name in self.float_names], self.float_units)
        self._outgrown = np.zeros(len(self.float_names), dtype=bool)
        self._bigint_units = [u for u in units if u in bigint_units]
        self._bigint_names = list(self.bigint_values)
        self.hidden = np.zeros(0)
        self.bigint_hidden: dict[str, Number] = {}

    def compute_hidden(self) -> None:
        """Compute the hidden units that no input reaches, for this loop."""
        values, inexact = self._units.evaluate(self.vector)
        self.hidden = np.where(inexact, FLOAT_LIMIT, np.maximum(values, 0.0))
        outgrown = [self.float_units[n] for n in np.flatnonzero(inexact)]
        exact = (*self._bigint_units, *outgrown)
        self.bigint_hidden = {u: max(self.rows_at(self._unit_forms[u]), 0) for u in exact}

    def update(self, t: int) -> None:
        """Apply the feed-forward update of loop t to all static rows."""
        change, inexact = self._updates.evaluate(self.hidden)
        for n, name in enumerate(self.float_names):
            if name in self.modulation:
                change[n] *= self.modulation[name][t]
        updated = self.vector + change
        self._outgrown |= inexact | (abs(updated) >= FLOAT_LIMIT)
        for name in (*self._bigint_names, *(self.float_names[n] for n in np.flatnonzero(self._outgrown))):
            eta = self.modulation[name][t] if name in self.modulation else 1
            added = self.units_at(self._update_forms[name]) if eta else 0
            self.bigint_values[name] = whole(self.value(name) + (added if eta == 1 else added * eta))
        self.vector = np.where(self._outgrown, FLOAT_LIMIT, updated)

    def value(self, name: str) -> Number:
        """Return one row, times its denominator."""
        return _lookup(name, self._row_index, self.vector, self.bigint_values)

    def rows_at(self, form: Form) -> Number:
        """Return a form over static rows, exactly."""
        return _value_at(form, self._row_index, self.vector, self.bigint_values)

    def units_at(self, form: Form) -> Number:
        """Return a form over static hidden units, exactly."""
        return _value_at(form, self._unit_index, self.hidden, self.bigint_hidden)


class CompiledNetwork:
    """The network in integers. Row i holds D_i times its value, hidden unit j holds E_j times its pre-activation."""

    def __init__(self, network: LoopedNetwork, input_scale: int):
        self.network = network
        layer = network.feed_forward
        self.static_rows = _static_rows(network)
        static = set(self.static_rows)
        self.dynamic_rows = [name for name in network.rows if name not in static]
        self.index = {name: i for i, name in enumerate(self.dynamic_rows)}
        self.denominator = _denominators(network, static)
        for name in self.dynamic_rows:
            if network.encode[name].terms:
                self.denominator[name] *= input_scale
        self.scale = [_unit_scale(form, self.denominator, static) for form in layer.units]
        start = self.start_static_rows()

        # hidden units that inputs reach: integer weights on dynamic rows, and an offset from static rows
        reached = [j for j, form in enumerate(layer.units) if not set(form.terms) <= static]
        position = {f"h{j}": n for n, j in enumerate(reached)}
        units = [_scaled_unit(layer.units[j], self.scale[j], self.denominator) for j in reached]
        self.in_terms: list[Terms] = [
            [(self.index[r], c) for r, c in u.terms.items() if r not in static] for u in units
        ]
        self.offset_forms = [Form({r: c for r, c in u.terms.items() if r in static}, u.const) for u in units]
        self.offsets = MixedForms(self.offset_forms, start.float_names)
        self.first = np.zeros((len(reached), len(self.dynamic_rows)))
        for n, terms in enumerate(self.in_terms):
            for i, c in terms:
                self.first[n, i] = _clipped_float(c)
        self.first_positive, self.first_negative = np.maximum(self.first, 0), np.minimum(self.first, 0)
        self.first_abs = abs(self.first)
        self.is_read = (self.first != 0).any(axis=0)

        # row updates: integer weights on those units times one rational factor per row, plus a form over static units
        self.update_terms: list[Terms] = []
        self.row_factor: list[Number] = []
        constants = []
        for name in self.dynamic_rows:
            update = _scaled_update(layer.updates[name], self.denominator[name], self.scale)
            weights = {u: Fraction(c) for u, c in update.terms.items() if u in position}
            integral = all(c.denominator == 1 and abs(c) < FLOAT_LIMIT for c in weights.values())
            factor = Fraction(1) if integral else 1 / _clearing(list(weights.values()))
            self.row_factor.append(whole(factor))
            self.update_terms.append([(position[u], whole(c / factor)) for u, c in weights.items()])
            constants.append(Form({u: c for u, c in update.terms.items() if u not in position}, update.const))
        self.constants = MixedForms(constants, start.float_units)
        self.rows_with_constants = [i for i, form in enumerate(constants) if form.terms or form.const]
        self.out_terms: list[Terms] = [[] for _ in reached]
        for i, terms in enumerate(self.update_terms):
            for j, c in terms:
                self.out_terms[j].append((i, c))

    def start_static_rows(self) -> StaticRows:
        """Return the static rows at their start."""
        return StaticRows(self.network, self.static_rows, self.denominator, self.scale)

    def eta(self, t: int) -> list[Number]:
        """Return eta(t) of the dynamic rows."""
        modulation = self.network.modulation
        return [modulation[name][t] if name in modulation else 1 for name in self.dynamic_rows]

    def combination(self, form: Form, static_rows: StaticRows) -> tuple[Terms, Fraction, Number]:
        """Return a form over rows as integer weights on dynamic rows, their denominator, and the static offset."""
        weights = {name: Fraction(c) / self.denominator[name] for name, c in form.terms.items()}
        common = Fraction(math.lcm(*(c.denominator for c in weights.values())))
        fixed = Form({name: c * common for name, c in weights.items() if name not in self.index}, form.const * common)
        terms = [(self.index[name], whole(c * common)) for name, c in weights.items() if name in self.index]
        return terms, common, whole(static_rows.rows_at(fixed))


def whole(value: Number) -> Number:
    """Return an integral Fraction as an int, any other number as it is."""
    return value.numerator if value.denominator == 1 else value


def _scaled_unit(form: Form, scale: Fraction, denominator: Mapping[str, int]) -> Form:
    terms = {name: whole(c * scale / denominator[name]) for name, c in form.terms.items()}
    return Form(terms, whole(form.const * scale))


def _scaled_update(form: Form, denominator: int, scale: Sequence[Fraction]) -> Form:
    terms = {u: whole(Fraction(c) / scale[int(u[1:])] * denominator) for u, c in form.terms.items()}
    return Form(terms, whole(form.const * denominator))


def _fits_float(form: Form) -> bool:
    return all(c.denominator == 1 and abs(c) < FLOAT_WEIGHT_LIMIT for c in (form.const, *form.terms.values()))


def _lookup(name: str, index: Mapping[str, int], vector: np.ndarray, bigint: Mapping[str, Number]) -> Number:
    return bigint[name] if name in bigint else int(vector[index[name]])


def _value_at(form: Form, index: Mapping[str, int], vector: np.ndarray, bigint: Mapping[str, Number]) -> Number:
    total: Number = form.const
    for name, c in form.terms.items():
        value = _lookup(name, index, vector, bigint)
        if value:
            total += value if c == 1 else -value if c == -1 else c * value
    return total


def _static_rows(network: LoopedNetwork) -> list[str]:
    """Return the rows that have the same value in every token of every input."""
    layer = network.feed_forward
    targets = {head.into for head in network.heads}
    static = {name for name in network.rows if not network.encode[name].terms and name not in targets}
    while True:
        static_units = {f"h{j}" for j, unit in enumerate(layer.units) if set(unit.terms) <= static}
        kept = {name for name in static if set(layer.updates[name].terms) <= static_units}
        if kept == static:
            return [name for name in network.rows if name in static]
        static = kept


def _denominators(network: LoopedNetwork, static: set[str]) -> dict[str, int]:
    """Return denominators D that clear all weights, grown until they agree. Values may still stay rational."""
    layer = network.feed_forward
    denominator: dict[str, int] = {}
    for name in network.rows:
        form = network.encode[name]
        numbers = [form.const, *form.terms.values(), layer.updates[name].const]
        denominator[name] = math.lcm(*(Fraction(number).denominator for number in numbers))
    for attempt in range(MOST_ROUNDS):
        scale = [_unit_scale(form, denominator, static) for form in layer.units]
        grown = dict(denominator)
        for name, update in layer.updates.items():
            weights = [Fraction(c) / scale[int(u[1:])] for u, c in update.terms.items()] + [Fraction(update.const)]
            needed = math.lcm(denominator[name], *(w.denominator for w in weights))
            # only once: a row that eta(t) scales by fractions again and again has no finite denominator
            for eta in set(network.modulation.get(name, ())) if attempt == 0 else ():
                needed = math.lcm(needed, *((w * eta).denominator for w in weights))
                if needed > LARGEST_DENOMINATOR:
                    needed = denominator[name]
                    break
            grown[name] = needed
        if grown == denominator:
            break
        denominator = grown
    return denominator


def _unit_scale(form: Form, denominator: Mapping[str, int], static: set[str]) -> Fraction:
    """Return the E that makes the weights of a unit coprime integers, without fine static ones if inputs reach it."""
    weights = {name: Fraction(c) / denominator[name] for name, c in form.terms.items()}
    fixed = [w for name, w in weights.items() if name in static] + [Fraction(form.const)]
    reached = [w for name, w in weights.items() if name not in static]
    used = reached + [w for w in fixed if w and (not reached or w.denominator <= FLOAT_DENOMINATOR)]
    return _clearing(used) if used else Fraction(1)


def _clearing(weights: Sequence[Fraction]) -> Fraction:
    """Return the factor that makes rational numbers coprime integers."""
    common = math.lcm(*(w.denominator for w in weights))
    return Fraction(common, math.gcd(*(int(w * common) for w in weights)))


def _clipped_float(value: Number) -> float:
    return float(value) if abs(value) < 2**1000 else math.inf if value > 0 else -math.inf
