"""One loop as the engine runs it: which hidden units are zero, linear or neither, and the matrices of what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from looped.theory.engine.compile import EXACT, Lattice, Mixture
from looped.theory.network import Form, Number

DEAD, LINEAR, FLOAT, MASKED, OBJECT = range(5)  # what a hidden unit is in one loop, for the whole batch
HUGE = 2**996  # stands for anything larger where only a bound is wanted


class Values:
    """A mixture evaluated: `floats` for bounds and plain entries, item access for the exact number."""

    def __init__(self, mixture: Mixture, vector: np.ndarray, exactly: Callable[[Form], Number]):
        self.floats, outgrown = mixture.plain.tried(vector)
        self.whole = np.ones(len(self.floats), dtype=bool)
        self.exact: dict[int, Number] = {}
        for i in np.flatnonzero(mixture.long | outgrown).tolist():
            value = self.exact[i] = exactly(mixture.forms[i])
            self.floats[i] = clip(value)
            self.whole[i] = value.denominator == 1 and abs(value) < EXACT

    def __getitem__(self, i: int) -> Number:
        return self.exact[i] if i in self.exact else int(self.floats[i])


class LoopPlan:
    """The matrices of one loop, restricted to what does anything; the same for all loops with the same pattern."""

    def __init__(
        self, lattice: Lattice, kinds: np.ndarray, scales: list[Number] | None, wide: set[int], plain: Sequence[str]
    ):
        rows = range(len(lattice.dynamic))
        linear = np.flatnonzero(kinds == LINEAR).tolist()
        self.floats = np.flatnonzero(kinds == FLOAT).tolist()
        self.masked = np.flatnonzero(kinds == MASKED).tolist()
        self.objects = np.flatnonzero(kinds == OBJECT).tolist()

        # linear units melt into one linear map of the rows and one form over static rows; impulses cancel in both
        combined: dict[tuple[int, int], Number] = {}
        forms = [Form() for _ in rows]
        for j in linear:
            for i, weight in lattice.out_terms[j]:
                forms[i] = forms[i] + lattice.offset_forms[j] * (weight * lattice.share[i])
                for source, coefficient in lattice.in_terms[j]:
                    combined[i, source] = combined.get((i, source), 0) + weight * coefficient
        self.linear_constants = Mixture(forms, plain)
        self.linear_terms: dict[int, list[tuple[int, Number]]] = {}
        for (i, source), weight in combined.items():
            if weight:
                self.linear_terms.setdefault(i, []).append((source, weight))

        still = {i for i in rows if scales is not None and scales[i] == 0}
        scaled = {i for i in rows if scales is not None and scales[i] not in (0, 1)}
        fed = {i for j in (*self.floats, *self.masked, *self.objects) for i, _ in lattice.out_terms[j]}
        fed |= set(self.linear_terms)
        constant = set(lattice.rows_with_constants) | {i for i in rows if forms[i].terms or forms[i].const}
        hard = wide | scaled | {i for i in rows if lattice.share[i] != 1}
        hard |= {i for j in (*self.masked, *self.objects) for i, _ in lattice.out_terms[j]}
        hard |= {i for j in self.floats for i, weight in lattice.out_terms[j] if abs(weight) >= EXACT}
        hard |= {i for i, terms in self.linear_terms.items() if any(s in wide or abs(w) >= EXACT for s, w in terms)}
        self.simple = np.array(sorted(fed - hard - still), dtype=np.intp)
        self.others = sorted(((fed | constant) & (hard & fed | wide | scaled)) - still)
        self.shifted = sorted(constant - fed - wide - scaled - still)

        self.first_rows = sorted({i for j in self.floats for i, _ in lattice.in_terms[j]})
        self.first = lattice.first[np.ix_(self.floats, self.first_rows)]
        self.linear_rows = sorted({source for i in self.simple.tolist() for source, _ in self.linear_terms.get(i, ())})
        self.second = np.zeros((len(self.simple), len(self.floats)))
        self.linear_map = np.zeros((len(self.simple), len(self.linear_rows)))
        for a, i in enumerate(self.simple.tolist()):
            weights = dict(lattice.update_terms[i])
            self.second[a] = [float(weights.get(j, 0)) for j in self.floats]
            for source, weight in self.linear_terms.get(i, ()):
                self.linear_map[a, self.linear_rows.index(source)] = float(weight)
        self.second_size, self.linear_size = abs(self.second), abs(self.linear_map)
        asked = {name for head in lattice.network.heads for form in (head.value, head.key) for name in form.terms}
        self.heard = [(a, i) for a, i in enumerate(self.simple.tolist()) if lattice.dynamic[i] in asked]


def clip(value: Number) -> float:
    return float(max(-HUGE, min(value, HUGE)))
