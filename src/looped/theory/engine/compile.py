"""Compilation for the engine: which rows no input reaches, the unit 1/D of every row, all weights in those units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from looped.theory.network import Form, LoopedNetwork, Number

LARGEST_UNIT = 2**4096  # eta(t) with wilder denominators stays rational instead of being cleared
FLOAT_DENOMINATOR = 2**20  # offsets with larger denominators are compared, never added, in float64
MOST_ROUNDS = 32
EXACT = float(2**53)
PLAIN = 2**20  # weights and starts below this are tried in float64, with a check in every loop

Terms = list[tuple[int, Number]]


class Affine:
    """Integer forms sum(weights * rows) + constant, all evaluated at once in float64; checked, and exact below 2^53."""

    def __init__(self, forms: Sequence[Form], columns: Sequence[str]):
        self.weights = np.array([[float(c) for c in form.vector(columns)] for form in forms]).reshape(
            len(forms), len(columns)
        )
        self.constant = np.array([float(form.const) for form in forms])
        self.sizes, self.size = abs(self.weights), abs(self.constant)

    def tried(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values, and which of them are not exact."""
        if not len(self.constant):
            return self.constant, np.zeros(0, dtype=bool)
        return self.weights @ values + self.constant, self.sizes @ abs(values) + self.size >= EXACT


class Statics:
    """The rows that no input reaches: plain ones as one float64 vector, long or rational ones as Python numbers.

    A plain row or unit that outgrows float64 becomes a Python number as well. In the vector it stands as 2^53: a sum
    with it is then seen to be inexact, and is made of the exact numbers instead.
    """

    def __init__(self, network: LoopedNetwork, names: Sequence[str], unit: dict[str, int], scale: Sequence[Fraction]):
        layer = network.feed_forward
        read = {f"h{j}" for j, form in enumerate(layer.units) if set(form.terms) <= set(names)}
        units = {f"h{j}": _scaled_unit(layer.units[j], scale[j], unit) for j in range(len(scale)) if f"h{j}" in read}
        updates = {name: _scaled_update(layer.updates[name], unit[name], scale) for name in names}
        start = {name: whole(network.encode[name].const * unit[name]) for name in names}
        self.modulation = {name: network.modulation[name] for name in names if name in network.modulation}

        long = {name for name in names if not _plain(updates[name]) or not _plain(Form(const=start[name]))}
        long |= {name for name, eta in self.modulation.items() if not set(eta) <= {0, 1}}
        while True:  # whoever reads a long number may become one
            long_units = {u for u, form in units.items() if not _plain(form) or set(form.terms) & long}
            more = {name for name in names if set(updates[name].terms) & long_units} - long
            if not more:
                break
            long |= more
        self.plain = [name for name in names if name not in long]
        self.plain_units = [u for u in units if u not in long_units]
        self.vector = np.array([float(start[name]) for name in self.plain])
        self.exact = {name: start[name] for name in names if name in long}
        self._row_place = {name: n for n, name in enumerate(self.plain)}
        self._unit_place = {u: n for n, u in enumerate(self.plain_units)}
        self._unit_forms, self._update_forms = units, updates
        self._units = Affine([units[u] for u in self.plain_units], self.plain)
        self._updates = Affine([updates[name] for name in self.plain], self.plain_units)
        self._outgrown = np.zeros(len(self.plain), dtype=bool)
        self._long_units = [u for u in units if u in long_units]
        self._long = list(self.exact)
        self.hidden = np.zeros(0)
        self.long_hidden: dict[str, Number] = {}

    def fire(self) -> None:
        """The hidden units that no input reaches, for this loop."""
        values, outgrown = self._units.tried(self.vector)
        self.hidden = np.where(outgrown, EXACT, np.maximum(values, 0.0))
        late = [self.plain_units[n] for n in np.flatnonzero(outgrown)]
        self.long_hidden = {u: max(self.rows_at(self._unit_forms[u]), 0) for u in (*self._long_units, *late)}

    def step(self, t: int) -> None:
        change, inexact = self._updates.tried(self.hidden)
        for n, name in enumerate(self.plain):
            if name in self.modulation:
                change[n] *= self.modulation[name][t]
        moved = self.vector + change
        self._outgrown |= inexact | (abs(moved) >= EXACT)
        for name in (*self._long, *(self.plain[n] for n in np.flatnonzero(self._outgrown))):
            eta = self.modulation[name][t] if name in self.modulation else 1
            added = self.units_at(self._update_forms[name]) if eta else 0
            self.exact[name] = whole(self.value(name) + (added if eta == 1 else added * eta))
        self.vector = np.where(self._outgrown, EXACT, moved)

    def value(self, name: str) -> Number:
        return self.exact[name] if name in self.exact else int(self.vector[self._row_place[name]])

    def rows_at(self, form: Form) -> Number:
        return _at(form, _View(self._row_place, self.vector, self.exact))

    def units_at(self, form: Form) -> Number:
        return _at(form, _View(self._unit_place, self.hidden, self.long_hidden))


class _View:
    """Reads plain entries of a float64 vector and long ones of a dict by name, as Python numbers."""

    def __init__(self, place: Mapping[str, int], vector: np.ndarray, exact: dict[str, Number]):
        self.place, self.vector, self.exact = place, vector, exact

    def __getitem__(self, name: str) -> Number:
        return self.exact[name] if name in self.exact else int(self.vector[self.place[name]])


class Mixture:
    """Forms over static rows (or static units): plain ones at once in float64, the others one by one."""

    def __init__(self, forms: Sequence[Form], plain: Sequence[str]):
        known = set(plain)
        self.forms = list(forms)
        self.long = np.array([not _plain(form) or not set(form.terms) <= known for form in forms], dtype=bool)
        self.plain = Affine([Form() if long else form for form, long in zip(forms, self.long, strict=True)], plain)


class Lattice:
    """The network in integers. Row i holds D_i times its value, hidden unit j holds E_j times its pre-activation."""

    def __init__(self, network: LoopedNetwork, input_scale: int):
        self.network = network
        layer = network.feed_forward
        self.static_rows = _unreached(network)
        static = set(self.static_rows)
        self.dynamic = [name for name in network.rows if name not in static]
        self.index = {name: i for i, name in enumerate(self.dynamic)}
        self.unit = _row_units(network, static)
        for name in self.dynamic:
            if network.encode[name].terms:
                self.unit[name] *= input_scale
        self.scale = [_unit_scale(form, self.unit, static) for form in layer.units]
        statics = self.statics()

        # hidden units that inputs reach: integer weights on dynamic rows, and an offset from static rows
        reached = [j for j, form in enumerate(layer.units) if not set(form.terms) <= static]
        position = {f"h{j}": n for n, j in enumerate(reached)}
        units = [_scaled_unit(layer.units[j], self.scale[j], self.unit) for j in reached]
        self.in_terms: list[Terms] = [
            [(self.index[r], c) for r, c in u.terms.items() if r not in static] for u in units
        ]
        self.offset_forms = [Form({r: c for r, c in u.terms.items() if r in static}, u.const) for u in units]
        self.offsets = Mixture(self.offset_forms, statics.plain)
        self.first = np.zeros((len(reached), len(self.dynamic)))
        for n, terms in enumerate(self.in_terms):
            for i, c in terms:
                self.first[n, i] = _float(c)
        self.positive, self.negative = np.maximum(self.first, 0), np.minimum(self.first, 0)
        self.magnitude = abs(self.first)
        self.is_read = (self.first != 0).any(axis=0)

        # row updates: integer weights on those units times one rational `share` per row, and what static units add
        self.update_terms: list[Terms] = []
        self.share: list[Number] = []
        constants = []
        for name in self.dynamic:
            update = _scaled_update(layer.updates[name], self.unit[name], self.scale)
            weights = {u: Fraction(c) for u, c in update.terms.items() if u in position}
            small = all(c.denominator == 1 and abs(c) < EXACT for c in weights.values())
            share = Fraction(1) if small else 1 / _clearing(list(weights.values()))
            self.share.append(whole(share))
            self.update_terms.append([(position[u], whole(c / share)) for u, c in weights.items()])
            constants.append(Form({u: c for u, c in update.terms.items() if u not in position}, update.const))
        self.constants = Mixture(constants, statics.plain_units)
        self.rows_with_constants = [i for i, form in enumerate(constants) if form.terms or form.const]
        self.out_terms: list[Terms] = [[] for _ in reached]
        for i, terms in enumerate(self.update_terms):
            for j, c in terms:
                self.out_terms[j].append((i, c))

    def statics(self) -> Statics:
        """A fresh copy of the static rows at their start."""
        return Statics(self.network, self.static_rows, self.unit, self.scale)

    def scales(self, t: int) -> list[Number]:
        """eta(t) of the dynamic rows."""
        modulation = self.network.modulation
        return [modulation[name][t] if name in modulation else 1 for name in self.dynamic]

    def combination(self, form: Form, statics: Statics) -> tuple[Terms, Fraction, Number]:
        """A form over rows as integer weights on dynamic rows, their unit, and the offset from static rows."""
        weights = {name: Fraction(c) / self.unit[name] for name, c in form.terms.items()}
        unit = Fraction(math.lcm(*(c.denominator for c in weights.values())))
        fixed = Form({name: c * unit for name, c in weights.items() if name not in self.index}, form.const * unit)
        terms = [(self.index[name], whole(c * unit)) for name, c in weights.items() if name in self.index]
        return terms, unit, whole(statics.rows_at(fixed))


def _scaled_unit(form: Form, scale: Fraction, unit: dict[str, int]) -> Form:
    return Form({name: whole(c * scale / unit[name]) for name, c in form.terms.items()}, whole(form.const * scale))


def _scaled_update(form: Form, unit: int, scale: Sequence[Fraction]) -> Form:
    terms = {u: whole(Fraction(c) / scale[int(u[1:])] * unit) for u, c in form.terms.items()}
    return Form(terms, whole(form.const * unit))


def _plain(form: Form) -> bool:
    return all(c.denominator == 1 and abs(c) < PLAIN for c in (form.const, *form.terms.values()))


def _at(form: Form, values: _View) -> Number:
    total: Number = form.const
    for name, c in form.terms.items():
        value = values[name]
        if value:
            total += value if c == 1 else -value if c == -1 else c * value
    return total


def _unreached(network: LoopedNetwork) -> list[str]:
    """The rows that have the same value in every token of every input."""
    layer = network.feed_forward
    targets = {head.into for head in network.heads}
    static = {name for name in network.rows if not network.encode[name].terms and name not in targets}
    while True:
        reads = {f"h{j}" for j, unit in enumerate(layer.units) if set(unit.terms) <= static}
        kept = {name for name in static if set(layer.updates[name].terms) <= reads}
        if kept == static:
            return [name for name in network.rows if name in static]
        static = kept


def _row_units(network: LoopedNetwork, static: set[str]) -> dict[str, int]:
    """Denominators D that clear all weights, grown until they agree; what is left over stays rational."""
    layer = network.feed_forward
    unit: dict[str, int] = {}
    for name in network.rows:
        form = network.encode[name]
        numbers = [form.const, *form.terms.values(), layer.updates[name].const]
        unit[name] = math.lcm(*(Fraction(number).denominator for number in numbers))
    for attempt in range(MOST_ROUNDS):
        scale = [_unit_scale(form, unit, static) for form in layer.units]
        grown = dict(unit)
        for name, update in layer.updates.items():
            weights = [Fraction(c) / scale[int(u[1:])] for u, c in update.terms.items()] + [Fraction(update.const)]
            wanted = math.lcm(unit[name], *(w.denominator for w in weights))
            # once only: a row that eta(t) scales by fractions again and again has no finite denominator
            for eta in set(network.modulation.get(name, ())) if attempt == 0 else ():
                wanted = math.lcm(wanted, *((w * eta).denominator for w in weights))
                if wanted > LARGEST_UNIT:
                    wanted = unit[name]
                    break
            grown[name] = wanted
        if grown == unit:
            break
        unit = grown
    return unit


def _unit_scale(form: Form, unit: dict[str, int], static: set[str]) -> Fraction:
    """E: the factor that makes a unit's weights coprime integers. If inputs reach it, fine static rows stay out."""
    weights = {name: Fraction(c) / unit[name] for name, c in form.terms.items()}
    fixed = [w for name, w in weights.items() if name in static] + [Fraction(form.const)]
    reached = [w for name, w in weights.items() if name not in static]
    weights = reached + [w for w in fixed if w and (not reached or w.denominator <= FLOAT_DENOMINATOR)]
    return _clearing(weights) if weights else Fraction(1)


def _clearing(weights: Sequence[Fraction]) -> Fraction:
    """The factor that makes rational numbers coprime integers."""
    common = math.lcm(*(w.denominator for w in weights))
    return Fraction(common, math.gcd(*(int(w * common) for w in weights)))


def whole(value: Number) -> Number:
    return value.numerator if value.denominator == 1 else value


def _float(value: Number) -> float:
    return float(value) if abs(value) < 2**1000 else math.inf if value > 0 else -math.inf
