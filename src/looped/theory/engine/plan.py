"""One loop of the engine: the kind of every hidden unit, and the matrices of the units that are left."""

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np

from looped.theory.engine.compile import FLOAT_LIMIT, CompiledNetwork, MixedForms
from looped.theory.engine.state import HUGE, State, clip
from looped.theory.network import Form, Number

TINY = 2.0**-1000
MOST_MASKED = 62  # the set of active masked units is stored as bits of an int64


class UnitKind(IntEnum):
    """The way to compute a hidden unit in one loop, for the whole batch."""

    ZERO = 0  # its range is not positive
    LINEAR = 1  # its range is not negative, so that ReLU is the identity
    FLOAT = 2  # computed in float64
    MASKED = 3  # rows in float64 plus an offset that float64 cannot hold: the sign is one comparison
    BIGINT = 4  # computed with Python numbers


class FormValues:
    """The values of MixedForms: `floats` for bounds and small entries, item access for the exact number."""

    def __init__(self, mixed: MixedForms, vector: np.ndarray, exactly: Callable[[Form], Number]):
        self.floats, inexact = mixed.floats.evaluate(vector)
        self.is_float = np.ones(len(self.floats), dtype=bool)
        self.exact: dict[int, Number] = {}
        for i in np.flatnonzero(mixed.bigint | inexact).tolist():
            value = self.exact[i] = exactly(mixed.forms[i])
            self.floats[i] = clip(value)
            self.is_float[i] = value.denominator == 1 and abs(value) < FLOAT_LIMIT

    def __getitem__(self, i: int) -> Number:
        return self.exact[i] if i in self.exact else int(self.floats[i])


def classify(state: State, offsets: FormValues) -> np.ndarray:
    """Return the UnitKind of every hidden unit, from the ranges of the rows that it reads."""
    compiled, offset = state.compiled, offsets.floats
    with np.errstate(over="ignore", invalid="ignore"):
        upper = compiled.first_positive @ state.high + compiled.first_negative @ state.low + offset
        lower = compiled.first_positive @ state.low + compiled.first_negative @ state.high + offset
        from_rows = compiled.first_abs @ state.magnitudes
        size = from_rows + abs(offset)
        exact = (size < FLOAT_LIMIT) & offsets.is_float
        kinds = np.where(exact, UnitKind.FLOAT, UnitKind.MASKED).astype(np.uint8)
        kinds[~(from_rows < FLOAT_LIMIT)] = UnitKind.BIGINT
        if state.bigint_rows:
            kinds[(compiled.first[:, sorted(state.bigint_rows)] != 0).any(axis=1)] = UnitKind.BIGINT
        # the bounds themselves are rounded, and a number below TINY may have become 0
        slack = np.where(kinds == UnitKind.FLOAT, 0.0, size * 2.0**-40 + TINY)
        # numbers beyond HUGE count as HUGE, so a sum of such numbers bounds nothing; an offset still does
        bounded = from_rows < HUGE / 2
        kinds[bounded & (lower >= slack)] = UnitKind.LINEAR
        kinds[bounded & (upper <= -slack)] = UnitKind.ZERO
        kinds[np.flatnonzero(kinds == UnitKind.MASKED)[MOST_MASKED:]] = UnitKind.BIGINT
    return kinds


class StepPlan:
    """The matrices of one loop, restricted to units and rows that do anything. Loops with equal patterns share it."""

    def __init__(
        self,
        compiled: CompiledNetwork,
        kinds: np.ndarray,
        eta: list[Number] | None,
        bigint_rows: set[int],
        float_names: Sequence[str],
    ):
        rows = range(len(compiled.dynamic_rows))
        linear = np.flatnonzero(kinds == UnitKind.LINEAR).tolist()
        self.float_units = np.flatnonzero(kinds == UnitKind.FLOAT).tolist()
        self.masked_units = np.flatnonzero(kinds == UnitKind.MASKED).tolist()
        self.bigint_units = np.flatnonzero(kinds == UnitKind.BIGINT).tolist()
        other_units = (*self.masked_units, *self.bigint_units)

        # linear units add up to one linear map of the rows and one form over static rows; impulses cancel in both
        combined: dict[tuple[int, int], Number] = {}
        forms = [Form() for _ in rows]
        for j in linear:
            for i, weight in compiled.out_terms[j]:
                forms[i] = forms[i] + compiled.offset_forms[j] * (weight * compiled.row_factor[i])
                for source, coefficient in compiled.in_terms[j]:
                    combined[i, source] = combined.get((i, source), 0) + weight * coefficient
        self.linear_constants = MixedForms(forms, float_names)
        self.linear_terms: dict[int, list[tuple[int, Number]]] = {}
        for (i, source), weight in combined.items():
            if weight:
                self.linear_terms.setdefault(i, []).append((source, weight))

        frozen = {i for i in rows if eta is not None and eta[i] == 0}
        scaled = {i for i in rows if eta is not None and eta[i] not in (0, 1)}
        fed = {i for j in (*self.float_units, *other_units) for i, _ in compiled.out_terms[j]} | set(self.linear_terms)
        constant = set(compiled.rows_with_constants) | {i for i in rows if forms[i].terms or forms[i].const}
        exact = bigint_rows | scaled | {i for i in rows if compiled.row_factor[i] != 1}
        exact |= {i for j in other_units for i, _ in compiled.out_terms[j]}
        exact |= {i for j in self.float_units for i, weight in compiled.out_terms[j] if abs(weight) >= FLOAT_LIMIT}
        for i, terms in self.linear_terms.items():
            if any(source in bigint_rows or abs(weight) >= FLOAT_LIMIT for source, weight in terms):
                exact.add(i)
        self.float_targets = np.array(sorted(fed - exact - frozen), dtype=np.intp)
        self.exact_targets = sorted(((fed | constant) & (exact & fed | bigint_rows | scaled)) - frozen)
        self.shifted_targets = sorted(constant - fed - bigint_rows - scaled - frozen)

        targets = self.float_targets.tolist()
        self.first_rows = sorted({i for j in self.float_units for i, _ in compiled.in_terms[j]})
        self.first = compiled.first[np.ix_(self.float_units, self.first_rows)]
        self.linear_rows = sorted({source for i in targets for source, _ in self.linear_terms.get(i, ())})
        self.second = np.zeros((len(targets), len(self.float_units)))
        self.linear_map = np.zeros((len(targets), len(self.linear_rows)))
        for a, i in enumerate(targets):
            weights = dict(compiled.update_terms[i])
            self.second[a] = [float(weights.get(j, 0)) for j in self.float_units]
            for source, weight in self.linear_terms.get(i, ()):
                self.linear_map[a, self.linear_rows.index(source)] = float(weight)
        self.second_abs, self.linear_abs = abs(self.second), abs(self.linear_map)
        read = {name for head in compiled.network.heads for form in (head.value, head.key) for name in form.terms}
        self.read_by_heads = [(a, i) for a, i in enumerate(targets) if compiled.dynamic_rows[i] in read]
