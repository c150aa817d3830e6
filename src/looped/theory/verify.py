"""`verify()`: every lemma and theorem on exhaustive small cases, as printed beside as corrected.

Each check runs real networks in exact arithmetic. A printed fault is switched on alone and shown with an input on which
it gives a wrong answer and the corrected network the right one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise, permutations, product
from math import exp, inf, log

import numpy as np

from looped.theory.constructions import CONSTRUCTIONS, paper
from looped.theory.constructions.approximate import approximate
from looped.theory.gadgets import Pulse, rect, step
from looped.theory.grid import (
    Grid,
    fill,
    labels_by_id,
    largest_jump,
    number,
    paper_id,
    printed_fill,
    tabulate,
    trifling,
    valid_id,
)
from looped.theory.lemmas import memorizer
from looped.theory.lemmas.contextual import contextual_map
from looped.theory.lemmas.memorize import memorize
from looped.theory.lemmas.quantizer import quantizer
from looped.theory.moduli import moduli
from looped.theory.network import FeedForward, LoopedNetwork, Number, row
from looped.theory.targets import FUNCTIONS, load

MOST_LOOPS = 1000  # of a block that is run on all cells


@dataclass(frozen=True)
class Row:
    """One line of the table. `printed`: PASS, a counter-example, or empty where the paper has no such statement."""

    statement: str
    corrected: str
    printed: str
    cases: int
    ok: bool


def verify() -> list[Row]:
    """All checks, in the order of the appendix."""
    return [line for check in CHECKS for line in check()]


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    header = ("statement", "corrected", "as printed")
    lines = [header, *((r.statement, f"{r.corrected} ({r.cases} case{'s' * (r.cases != 1)})", r.printed) for r in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(2)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in lines)


def _passed(statement: str, wrong: Sequence[object], cases: int, printed: str = "PASS") -> Row:
    corrected = "PASS" if not wrong else f"FAIL at {wrong[0]}"
    return Row(statement, corrected, printed, cases, not wrong)


def _fault(
    statement: str,
    build: Callable[[tuple[str, ...]], LoopedNetwork],
    fault: str,
    columns: Sequence[Sequence[Number]],
    expected: Sequence[Number],
    where: str,
) -> Row:
    """One printed fault alone, on its counter-example; the corrected network on the same input."""

    def answer(printed: tuple[str, ...]) -> list[Number]:
        return [value for token in build(printed)(columns) for value in token]

    right, wrong = answer(()), answer((fault,))
    shown = f"fails as printed: {where} gives {_show(wrong)}, not {_show(expected)}"
    same = list(right) == list(expected)
    found = list(wrong) != list(expected)
    corrected = "PASS" if same else f"FAIL: {_show(right)}"
    return Row(f"{statement}: {fault}", corrected, shown if found else "PASS", 1, same and found)


def _show(values: Sequence[Number]) -> str:
    return ", ".join(str(value) for value in values)


# ---- gadgets and Step 1 -------------------------------------------------------------------------------------------


def _gadgets() -> Iterator[Row]:
    layer = FeedForward(("x", "t"))
    x, t = row("x"), row("t")
    eighth = Fraction(1, 8)
    gadgets = {
        "rect": rect(layer, x, 1, 2, eighth),
        "step": step(layer, x, eighth),
        "impulse": Pulse(layer, t, 3, 5)(x),
    }
    wrong, cases = [], 0
    for i, k in product(range(-40, 41), range(-2, 9)):
        values = {"x": Fraction(i, 8), "t": k}
        hidden = {f"h{j}": max(unit.at(values), 0) for j, unit in enumerate(layer.units)}
        v = values["x"]
        expected = {"rect": int(1 <= v <= 2 - eighth), "step": int(v >= 0), "impulse": v if k == 3 else 0}
        wrong += [(name, v, k) for name, form in gadgets.items() if form.at(hidden) != expected[name]]
        cases += 3
    yield _passed("Propositions rect, step, impulse", wrong, cases)


def _quantizer() -> Iterator[Row]:
    wrong, cases = [], 0
    for cells in range(2, 9):
        inside = 1 - trifling(cells) * cells
        for k, offset in product(range(cells), (Fraction(0), Fraction(1, 3), inside)):
            cases += 1
            if quantizer(cells)([[(k + offset) / cells]]) != [[k]]:
                wrong.append((cells, k, offset))
    yield _passed('Lemma "quantize"', wrong, cases, "")
    lemma = 'Lemma "quantize"'
    x = Fraction(749, 1000)
    yield _fault(lemma, lambda p: quantizer(4, printed=p), "rectangle", [[x]], [2], "n=4, x=0.749")
    yield _fault(lemma, lambda p: quantizer(2, printed=p), "start", [[Fraction(1, 2)]], [1], "n=2, x=1/2")


# ---- Step 2 -------------------------------------------------------------------------------------------------------


def _contextual() -> Iterator[Row]:
    for with_digit, statement in ((False, 'Lemma "contextmap"'), (True, 'Corollary "contextmap"')):
        wrong, cases = [], 0
        for base, tokens in ((2, 2), (3, 2), (3, 3), (4, 3), (5, 2)):
            network = contextual_map(base, tokens, with_digit)
            for z in permutations(range(base), tokens):
                digits = sorted(z, reverse=True)
                expected = number(digits, base) * (2 if with_digit else 1) - (digits[-1] % 2 if with_digit else 0)
                cases += 1
                columns = [[a, a % 2] if with_digit else [a] for a in z]
                if network(columns) != [[expected]] * tokens:
                    wrong.append((base, z))
        yield _passed(statement, wrong, cases, "")
    yield _fault(
        'Lemma "contextmap"', lambda p: contextual_map(2, 2, printed=p), "bias", [[1], [0]], [2, 2], "B=2, z=(1,0)"
    )
    for fault in ("second key", "stray digit", "own digit"):
        yield _fault(
            'Corollary "contextmap"',
            lambda p: contextual_map(2, 2, True, printed=p),
            fault,
            [[1, 1], [0, 0]],
            [4, 4],
            "n=2, d=1, z=(1,0)",
        )


def _softmax() -> Iterator[Row]:
    """The largest error of the sequence id at the paper's lambda, with the paper's M and with M = 2B/epsilon."""
    grid = Grid(1, 2, 4)
    lam = Fraction(log(grid.tokens**2 * grid.num_sequences))

    def worst(printed: tuple[str, ...]) -> float:
        network = contextual_map(grid.base, 2, True, lam, printed)
        errors = []
        for z in permutations(range(grid.base), 2):
            expected = valid_id(grid, tuple(sorted(z, reverse=True)))
            errors += [abs(float(v[0] - expected)) for v in network([[a, a] for a in z])]
        return max(errors)

    kept, lost = worst(()), worst(("deselection",))
    digits = (grid.num_sequences - 1) // (grid.base - 1)
    proved = (grid.tokens - 1) * exp(-float(lam)) * (2 * digits + grid.cells - 1)
    ok = kept <= min(proved, 0.25) and lost > 1
    shown = f"fails as printed: M just above (B-1)/epsilon, n=4: the id is off by {lost:.2f}"
    corrected = f"PASS, off by {kept:.3f} <= {proved:.3f}" if ok else f"FAIL: {kept}"
    yield Row("Softmax: M", corrected, shown, 12, ok)


# ---- ids and labels -----------------------------------------------------------------------------------------------


def _ids() -> Iterator[Row]:
    grid = Grid(1, 2, 3)
    overlap = valid_id(grid, (1, 1)) + 5 == valid_id(grid, (2, 0))
    wrong = []
    for cells, dim, tokens in ((2, 1, 2), (3, 1, 2), (4, 1, 3), (2, 2, 2)):
        grid = Grid(dim, tokens, cells)
        valid = {2 * s - s % cells for s in range(grid.num_sequences)}
        dummy = {2 * cells * (s // cells) + b for s in range(grid.num_sequences) for b in range(cells, 2 * cells)}
        if valid & dummy or valid | dummy != set(range(2 * grid.num_sequences)):
            wrong.append((cells, dim, tokens))
    shown = "fails as printed: n=3, d=1, N=2: the dummy s_valid(1,1)+5 is s_valid(2,0)" if overlap else "PASS"
    yield _passed("Ids: valid and dummy ids tile 0..2B^N-1", wrong, 4, shown)

    grid = Grid(1, 2, 2)
    known = labels_by_id(grid, tabulate(lambda x: x, grid, False), paper_id)
    overshoot, linear = largest_jump(printed_fill(known, 16, 2), 2), largest_jump(fill(known, 16), 2)
    shown = f"fails as printed: f(X)=X, n=2: jump {overshoot} > omega_tok + omega_cont = 0.5"
    yield Row("Labels: fill between ids", f"PASS, jump {linear}", shown, 1, overshoot > 0.5 >= linear)


def _jump_bound() -> Iterator[Row]:
    """The largest jump against the sharpened right side, for linear f, whose moduli are known exactly."""
    rng = np.random.default_rng(0)
    wrong, cases = [], 0
    for (cells, dim, tokens), p in product(((2, 1, 2), (3, 1, 2), (4, 1, 2), (3, 1, 3), (2, 2, 2)), (1, 2, inf)):
        for _ in range(14):
            own, others = rng.normal(size=2)
            grid = Grid(dim, tokens, cells)
            labels = tabulate(lambda x, a=own, b=others: a * x + b * x.sum(axis=1, keepdims=True), grid, tokens <= 2)
            jump = largest_jump(fill(labels_by_id(grid, labels, paper_id), 2 * grid.base ** (tokens + 1)), p)
            stretch = dim ** max(0.0, 1 / p - 0.5) / cells
            context = abs(others) * stretch * ((tokens - 1) * dim) ** 0.5 * (tokens - 1) ** 0.5
            token = abs(own + others) * stretch * dim**0.5
            near = abs(others) * stretch * (tokens - 1) ** 0.5
            carry = (cells - 1) / (cells + 1)
            cases += 1
            if jump > max(near, carry * (token + context)) + 1e-12:
                wrong.append((cells, dim, tokens, p, own, others))
    yield _passed("Labels: jump <= max{w_cont, (n-1)/(n+1)(w_tok+w_cont)}", wrong, cases, "")


# ---- Step 3 -------------------------------------------------------------------------------------------------------


def _bits() -> Iterator[Row]:
    wrong, cases = [], 0
    for r in range(1, 7):
        for bits in product((0, 1), repeat=r):
            network = memorizer.bit_extraction(bits)
            for k in range(1, r + 1):
                cases += 1
                if network([[k]]) != [[sum(bits[:k])]]:
                    wrong.append((bits, k))
    yield _passed('Lemma "bitextraction"', wrong, cases, "")
    for fault in ("stray step", "signs"):
        yield _fault(
            'Lemma "bitextraction"',
            lambda p: memorizer.bit_extraction((0, 1), p),
            fault,
            [[2]],
            [1],
            "theta=(0,1), k=2",
        )
    yield _fault(
        'Lemma "bitextraction"', lambda p: memorizer.bit_extraction((1,), p), "lag", [[1]], [1], "r=1, theta=(1), k=1"
    )


def _memorizers() -> Iterator[Row]:
    generator = random.Random(0)
    variants: dict[str, tuple[list, int]] = {name: ([], 0) for name in ("bits", "modulated", "stream", "sqrt")}
    for trial in range(24):
        labels = [[Fraction(generator.randrange(16), 16) for _ in range(1 + trial % 2)] for _ in range(2 + trial % 7)]
        for name, (wrong, _) in variants.items():
            memory = memorize(labels, name, bits=4)
            for k, (came, label) in enumerate(zip(memory.table(), labels, strict=True)):
                jumps = [max(abs(b[i] - a[i]) for a, b in pairwise(labels)) for i in range(len(label))]
                allowed = [jump / 2 if name == "bits" else 0 for jump in jumps]
                if any(abs(a - b) > room for a, b, room in zip(came, label, allowed, strict=True)):
                    wrong.append((labels, k))
            variants[name] = (wrong, variants[name][1] + len(labels))
    names = {
        "bits": 'Lemma "memorize" (error <= jump/2)',
        "modulated": "Theorem of Appendix B (exact)",
        "stream": "beyond: stream memorizer (q-bit labels exact)",
        "sqrt": "beyond: square-root memorizer (q-bit labels exact)",
    }
    for name, (wrong, cases) in variants.items():
        yield _passed(names[name], wrong, cases, "")
    yield _fault(
        'Lemma "memorize"', lambda p: memorizer.bits_memorizer([0, 1, 1], p), "first id", [[0]], [0], "y=(0,1,1), k=0"
    )
    for labels, fault, k in (
        ([2, -3, 5, -1, 4], "label bias", 3),
        ([2, -3, 5, -1, 4], "label start", 1),
        ([-5, 1, 2], "bound", 1),
    ):
        build = partial(memorizer.modulated_memorizer, labels)
        yield _fault("Appendix B", build, fault, [[k]], [labels[k]], f"y={tuple(labels)}, k={k}")


# ---- the composed blocks ------------------------------------------------------------------------------------------


def _blocks() -> Iterator[Row]:
    for variant, construction in CONSTRUCTIONS.items():
        large = (1, 3, 3) if construction(Grid(1, 3, 3), 3).loops < MOST_LOOPS else (1, 3, 2)
        for softmax in (False, True):
            wrong, cases = [], 0
            for dim, tokens, cells in ((1, 2, 2), (1, 2, 3), (1, 2, 4), large, (2, 2, 2)):
                net = approximate(load("wave", dim, tokens), dim, tokens, cells, variant, softmax=softmax, bits=3)
                every = net.serves_duplicates
                chosen = [z for z in product(range(cells**dim), repeat=tokens) if every or len(set(z)) == tokens]
                points = [
                    [[Fraction(3 * c + 1, 3 * cells) for c in net.grid.coordinates(a)] for a in z] for z in chosen
                ]
                came = net(np.array(points, dtype=object).transpose(0, 2, 1))
                for z, values in zip(chosen, came, strict=True):
                    cases += 1
                    if [list(column) for column in values.T] != net.code_value(z):
                        wrong.append((dim, tokens, cells, z))
            how = "softmax" if softmax else "hardmax"
            yield _passed(f"Block {variant}, {how}: = code value on all cells", wrong, cases, "")


def _drift() -> Iterator[Row]:
    build = partial(approximate, FUNCTIONS["wave"](1, 2), 1, 2, 3)
    points = np.array([[[Fraction(a, 3) for a in z]] for z in product(range(3), repeat=2)], dtype=object)
    expected = build()(points)
    for fault in ("first drift", "second drift"):
        bad = int((build(printed=(fault,))(points) != expected).any(axis=(1, 2)).sum())
        shown = f"fails as printed: n=3, d=1, N=2: {bad} of 9 cells wrong"
        yield Row(f"Block: {fault}", "PASS" if bad else "FAIL", shown if bad else "PASS", 9, bad > 0)


def _index_shift() -> Iterator[Row]:
    """Softmax moves the id to both sides of an integer. With the shift by 1/4 the index step tolerates that."""
    build = partial(approximate, FUNCTIONS["wave"](1, 2), 1, 2, 4)
    points = np.array([[[Fraction(a, 4) for a in z]] for z in permutations(range(4), 2)], dtype=object)
    expected = build()(points)
    bad = {}
    for fault in ((), ("no index shift",)):
        bad[fault] = int((build(softmax=True, printed=fault)(points) != expected).any(axis=(1, 2)).sum())
    shown = f"fails as printed: n=4, d=1, N=2: {bad['no index shift',]} of 12 cells wrong"
    ok = bad[()] == 0 < bad["no index shift",]
    yield Row("Block with softmax: no index shift", "PASS" if ok else "FAIL", shown, 12, ok)


def _bounds() -> Iterator[Row]:
    """Measured error against the bound, sup on the good set and L^p over everything."""
    for variant in CONSTRUCTIONS:
        wrong, cases, tightest = [], 0, 0.0
        for name, (dim, tokens, cells), p in product(FUNCTIONS, ((1, 2, 2), (1, 2, 4), (1, 3, 2)), (2.0, inf)):
            bound = approximate(load(name, dim, tokens), dim, tokens, cells, variant, "centre", bits=3).bound(p)
            cases += 1
            tightest = max(tightest, bound.measured_lp / bound.total)
            if not bound.holds:
                wrong.append((name, dim, tokens, cells, p))
        line = _passed(f"Bound {variant}: measured error <= bound", wrong, cases, "")
        yield replace(line, corrected=f"{line.corrected}, at most {tightest:.2f} of it")


def _sharpness() -> Iterator[Row]:
    """Softmax at the proved lambda is exact (see _blocks); at a tenth of it the output is visibly wrong."""
    target = load("wave", 1, 2)
    for variant in CONSTRUCTIONS:
        exact = approximate(target, 1, 2, 4, variant, bits=4)
        proved = approximate(target, 1, 2, 4, variant, bits=4, softmax=True)
        used = proved.network.heads[0].key.terms
        lam = Fraction(used.get("key", used.get("id", 1)))
        blunt = approximate(target, 1, 2, 4, variant, bits=4, sharpness=lam / 10)
        points = np.array([[[Fraction(a, 4) for a in z]] for z in permutations(range(4), 2)], dtype=object)
        kept, lost = (int((net(points) != exact(points)).any(axis=(1, 2)).sum()) for net in (proved, blunt))
        corrected = f"PASS at lambda = {float(lam):.2f}, {lost} of 12 wrong at a tenth"
        ok = kept == 0 < lost
        yield Row(f"Softmax: {variant}", corrected if ok else "FAIL", "", 12, ok)


def _continuity() -> Iterator[Row]:
    """max(w_tok, w_cont) <= w_f <= N^(1/p) (w_tok + w_cont), on linear functions whose three moduli are known."""
    wrong, cases = [], 0
    for own, others, tokens, p in product((-1.0, 0.5, 2.0), (-0.7, 0.3), (2, 3, 4), (1.0, 2.0)):
        found = moduli(lambda x, a=own, b=others: a * x + b * x.sum(axis=1, keepdims=True), 1, tokens, 0.1, p)
        token = abs(own + others) * 0.1
        context = abs(others) * 0.1 * (tokens - 1) ** 0.5
        cases += 1
        if found.token.lower > token + 1e-12 or found.context.lower > context + 1e-12:
            wrong.append(("lower estimate above the modulus", own, others, tokens, p))
        if found.sequence.lower > tokens ** (1 / p) * (token + context) + 1e-12:
            wrong.append((own, others, tokens, p))
        if max(token, context) > found.sequence.lower * 1.05:  # the search may miss a little
            wrong.append(("sequence modulus missed", own, others, tokens, p))
    shown = 'fails as printed: "omega_f alone is insufficient": the extra moduli change a constant, not the rate'
    yield _passed("Moduli: w_tok, w_cont <= w_f <= N^(1/p)(w_tok+w_cont)", wrong, cases, shown)


CHECKS: tuple[Callable[[], Iterator[Row]], ...] = (
    _gadgets,
    _quantizer,
    _contextual,
    _softmax,
    _ids,
    _jump_bound,
    _bits,
    _memorizers,
    _blocks,
    _drift,
    _index_shift,
    _sharpness,
    _bounds,
    _continuity,
)
FAULTS = paper.FAULTS | memorizer.MODULATED_FAULTS
