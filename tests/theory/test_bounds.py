"""Moduli, bounds and loops for an error, against functions whose moduli are known."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped import theory
from looped.theory.bounds import (
    cells_for_loops,
    duplicate_measure,
    loops_for_error,
    loops_needed,
    printed_delta,
    printed_terms,
    theorem_right_side,
)
from looped.theory.grid import Grid
from looped.theory.targets import FUNCTIONS
from tests.refusal import refused
from tests.theory.oracle import paper_number


def shift_and_mix(own, others):
    return lambda x: own * x + others * x.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("own", "others", "tokens"), [(1.0, 0.5, 2), (-1.0, 0.7, 3), (0.2, -2.0, 2)])
def test_moduli_of_linear_functions_are_found(own, others, tokens):
    delta = 0.125
    found = theory.moduli(shift_and_mix(own, others), 1, tokens, delta)
    token, context = abs(own + others) * delta, abs(others) * sqrt(tokens - 1) * delta
    matrix = own * np.eye(tokens) + others * np.ones((tokens, tokens))
    sequence = np.linalg.norm(matrix, 2) * delta
    for modulus, truth in ((found.token, token), (found.context, context), (found.sequence, sequence)):
        assert truth * 0.97 <= modulus.lower <= truth * (1 + 1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("p", [1, 2, inf])
def test_witnesses_prove_the_lower_estimate_and_upper_bounds_hold(name, p):
    dim, tokens, delta = 2, 3, 0.2
    target = theory.load(name, dim, tokens)
    found = theory.moduli(target, dim, tokens, delta, p)
    for which in ("sequence", "context", "token"):
        modulus = getattr(found, which)
        x, y = modulus.witness
        apart = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x.flat, y.flat, strict=True))
        assert apart <= Fraction(delta) ** 2
        assert ((x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)).all()
        difference = target.function(x) - target.function(y)
        if which != "sequence":
            difference = difference[:, modulus.column]
            moved = {j for j in range(tokens) if (x[:, j] != y[:, j]).any()}
            assert moved <= ({modulus.column} if which == "token" else set(range(tokens)) - {modulus.column})
        assert np.linalg.norm(difference.ravel(), ord=p) == pytest.approx(modulus.lower, rel=1e-12)
        assert modulus.lower <= modulus.upper + 1e-12


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(FUNCTIONS)), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_analytic_constants_are_upper_bounds(name, dim, tokens, seed):
    rng = np.random.default_rng(seed)
    target = theory.load(name, dim, tokens)
    x = rng.random((dim, tokens))
    y = np.clip(x + rng.normal(size=x.shape) * rng.choice([0.01, 0.3]), 0, 1)
    only_own, only_others = x.copy(), y.copy()
    only_own[:, 0] = y[:, 0]
    only_others[:, 0] = x[:, 0]
    for p in (1, 2, 3.5, inf):
        for which, z in (("sequence", y), ("token", only_own), ("context", only_others)):
            difference = target.function(x) - target.function(z)
            difference = difference if which == "sequence" else difference[:, 0]
            bound = target.upper(which, float(np.linalg.norm(x - z)), p, dim, tokens)
            assert np.linalg.norm(difference.ravel(), ord=p) <= bound + 1e-12
    assert target.low <= target.function(x).min()
    assert target.function(x).max() <= target.high


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), st.integers(1, 4), st.sampled_from([1, 2, inf]), st.integers(0, 2**32 - 1))
def test_every_pair_splits_into_a_token_move_and_a_context_move(dim, tokens, p, seed):
    """In the proof of w_f <= N^(1/p)(w_tok + w_cont), column i moves first, then the others."""
    rng = np.random.default_rng(seed)
    x, y = rng.random((2, dim, tokens))
    f = theory.load("attn", dim, tokens).function
    whole = np.linalg.norm((f(x) - f(y)).ravel(), ord=p)
    legs = []
    for i in range(tokens):
        middle = x.copy()
        middle[:, i] = y[:, i]
        assert np.linalg.norm(middle - y) <= np.linalg.norm(x - y) + 1e-12
        first = np.linalg.norm((f(x) - f(middle))[:, i], ord=p)
        second = np.linalg.norm((f(middle) - f(y))[:, i], ord=p)
        legs.append(first + second)
    assert whole <= np.linalg.norm(legs, ord=p) + 1e-12


@pytest.mark.parametrize("variant", theory.VARIANTS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("representative", ["corner", "centre"])
def test_measured_error_is_below_the_bound(variant, name, representative):
    counts_multisets = variant == "lean-multiset"  # it has many ids, so few bits must suffice
    for dim, tokens, cells in [(1, 2, 2), (1, 3, 2)] if counts_multisets else [(1, 2, 3), (1, 3, 2), (2, 2, 2)]:
        bits = 1 if counts_multisets else 5
        net = theory.approximate(theory.load(name, dim, tokens), dim, tokens, cells, variant, representative, bits=bits)
        for p in (1, 2, inf):
            bound = net.bound(p)
            assert bound.certified
            assert bound.holds, (dim, tokens, cells, p, bound)
            served = tokens <= 2 or variant.endswith(("-minimal", "-multiset", "-digits"))
            assert (bound.terms["duplicates"] == 0) == served


@pytest.mark.parametrize(("variant", "tokens"), [("paper", 2), ("paper", 3), ("lean", 3), ("modulated-minimal", 3)])
def test_measured_lp_in_the_sup_norm_is_at_least_measured_sup(variant, tokens):
    """For f(X) = X, stored at the corner, the error is largest at the far corner, where the trifling part begins."""
    net = theory.approximate(lambda x: x, 1, tokens, 3, variant)
    bound = net.bound(inf)
    assert bound.measured_lp >= bound.measured_sup
    if variant == "modulated-minimal":
        assert bound.measured_lp == bound.measured_sup == pytest.approx(1 / 3 - float(net.epsilon), rel=1e-12)


@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_measured_error_includes_the_far_corner(variant):
    """If the claimed trifling interval is too short, a far corner lies in it, and the measurement must show that."""

    def stairs(x):
        return np.floor(4 * x)

    net = theory.approximate(stairs, 1, 2, 4, variant, bits=3)
    claimed = replace(net, epsilon=net.epsilon / 8)
    far = [Fraction(k, 4) - net.epsilon / 8 for k in range(1, 5)]
    corners = np.array([[[a, b]] for a, b in product(far, far)], dtype=object)
    wrong = abs(net(corners).astype(float) - stairs(corners.astype(float))).max()
    assert claimed.bound(inf).measured_sup >= wrong > net.bound(inf).measured_sup


def test_corrected_bound_is_below_the_printed_bound():
    for name in FUNCTIONS:
        bound = theory.approximate(theory.load(name, 1, 2), 1, 2, 5, "paper").bound(2)
        assert bound.good <= sum(bound.printed.values())


def test_bound_is_certified_only_with_a_lipschitz_constant():
    net = theory.approximate(lambda x: x**2, 1, 2, 3, "lean")
    assert not net.bound().certified
    assert theory.approximate(lambda x: x**2, 1, 2, 3, "lean", lipschitz=2.0).bound().certified


def known_moduli(**values):
    """Return omega as a table. It raises KeyError at any other delta."""
    table = {(name.rstrip("_"), round(delta, 9)): value for name, pairs in values.items() for delta, value in pairs}
    return lambda which, delta: table[which, round(delta, 9)]


@pytest.mark.parametrize(
    ("near", "far", "token", "jump"),
    [
        (1.0, 1.0, 1.0, 1.0),  # w_cont(delta)
        (0.1, 2.0, 0.0, 3 / 5 * 2.0),  # (n-1)/(n+1) w_cont(delta sqrt((N-1)d))
        (0.001, 0.002, 1000.0, 3 / 1026 * 1000.002),  # (n-1)/(2(N-1)B^(N-1)+2) (w_tok + w_cont), B = 16
    ],
)
def test_jump_bound_of_paper_equals_the_formula(near, far, token, jump):
    """Check the jump bound of theory-paper, Theorem 2, for d = 2, N = 3, n = 4."""
    omega = known_moduli(context=[(1 / 4, near), (2 / 4, far)], token=[(sqrt(2) / 4, token)])
    construction = theory.CONSTRUCTIONS["paper"](Grid(2, 3, 4), 8)
    assert construction.jump_bound(omega) == pytest.approx(jump)


def test_jump_bound_of_paper_with_one_token_equals_the_formula():
    """Without a context only the token moves, by n-1 cells over a gap of at least n+1 ids."""
    construction = theory.CONSTRUCTIONS["paper"](Grid(2, 1, 5), 8)
    omega = known_moduli(token=[(sqrt(2) / 5, 0.7)])
    assert construction.jump_bound(omega) == pytest.approx(0.7 * 4 / 6)


@pytest.mark.parametrize(("token", "sequence", "jump"), [(1.0, 1.0, 1.0), (0.5, 1.0, 3 / 5)])
def test_jump_bound_of_lean_equals_the_formula(token, sequence, jump):
    construction = theory.CONSTRUCTIONS["lean"](Grid(2, 3, 4), 8)
    omega = known_moduli(token=[(1 / 4, token)], sequence=[(sqrt(6) / 4, sequence)])
    assert construction.jump_bound(omega) == pytest.approx(jump)


@pytest.mark.parametrize("variant", ["paper", "lean"])
@pytest.mark.parametrize(("p", "entries"), [(2, sqrt(2)), (inf, 1)])
def test_code_term_is_half_a_jump_per_entry(variant, p, entries):
    """For f(X) = X, d = 1, N = 2, n = 4 all moduli are delta, and the largest jump is that of one cell."""
    bound = theory.approximate(lambda x: x, 1, 2, 4, variant, lipschitz=1.0).bound(p)
    assert bound.terms["code"] == pytest.approx(entries / 4 / 2)


@pytest.mark.parametrize("variant", sorted(set(theory.VARIANTS) - {"paper", "lean"}))
def test_other_constructions_have_no_jump_bound(variant):
    assert theory.CONSTRUCTIONS[variant](Grid(2, 3, 4)).jump_bound(known_moduli()) is None


@pytest.mark.parametrize("shape", [(1, 2, 2), (1, 2, 5), (1, 3, 4), (2, 2, 2), (2, 2, 3), (1, 1, 6)], ids=str)
def test_the_gaps_that_the_jump_bound_counts_on(shape):
    """Check the gaps between all ids: if the token changes, and if only a higher digit changes."""
    dim, tokens, cells = shape
    base = cells**dim
    owner = {
        paper_number(z, j, dim, cells): z[j]
        for z in product(range(base), repeat=tokens)
        for j in range(tokens)
        if tokens <= 2 or len(set(z)) == tokens
    }
    gaps = {True: [], False: []}
    for a, b in pairwise(sorted(owner)):
        if a // (2 * cells) != b // (2 * cells):
            gaps[owner[a] != owner[b]].append(b - a)
    assert min(gaps[True]) >= (2 * (tokens - 1) * base ** (tokens - 1) + 2 if tokens > 1 else cells + 1)
    assert min(gaps[False], default=inf) >= cells + 1


def test_printed_terms_equal_the_formulas():
    """Check the formulas for d = 2, N = 3, n = 4, M = 10^6, p = 3."""
    omega = known_moduli(token=[(sqrt(2) / 4, 0.3)], context=[(sqrt(6) / 4, 0.5)], sequence=[(sqrt(6) / 4, 0.7)])
    output = printed_terms(Grid(2, 3, 4), omega, 3, 1e6)
    root = 6 ** (1 / 3)
    assert list(output) == ["token", "context", "sequence", "O(N^(2/p) delta^(d/p))", "O((dN/(M delta))^(1/p))"]
    assert list(output.values()) == pytest.approx(
        [root * 0.3, root * 0.5, 0.7, 3 ** (2 / 3) / 4 ** (2 / 3), (6 * 4 / 1e6) ** (1 / 3)]
    )
    alone = known_moduli(token=[(1 / 4, 0.3)], sequence=[(1 / 4, 0.7)])
    assert list(printed_terms(Grid(1, 1, 4), alone, 1).values()) == pytest.approx([0.3, 0, 0.7, 1 / 4, 0])
    net = theory.approximate(theory.load("mean", 1, 2), 1, 2, 4, "lean")
    assert net.bound(2).printed["O((dN/(M delta))^(1/p))"] == pytest.approx(sqrt(2 * 4 * float(net.epsilon)))


def test_duplicate_measure_counts_cells():
    for dim, tokens, cells in [(1, 2, 4), (1, 3, 3), (2, 2, 2), (1, 3, 2)]:
        tuples = list(product(range(cells**dim), repeat=tokens))
        share = sum(len(set(z)) < tokens for z in tuples) / len(tuples)
        assert duplicate_measure(Grid(dim, tokens, cells)) == pytest.approx(share)


def test_loops_between_two_grids_do_not_reach_the_printed_delta():
    """For N = 2, d = 1 and r in 35..58 only n = 2 fits, although delta(r) is below 1/2."""
    for loops in range(35, 59):
        assert cells_for_loops("paper", loops, 1, 2) == 2
        assert printed_delta(loops, 1, 2) < 0.5
    assert cells_for_loops("paper", 59, 1, 2) == 3
    omega = {"sequence": 1.0, "context": 0.5, "token": 0.25}

    def linear(which, delta):
        return omega[which] * delta

    terms = theorem_right_side(59, 2, 1, 2, linear, largest_weight=600)
    assert list(terms.values()) == pytest.approx(
        [sqrt(2) * 0.25 / 3, sqrt(2) * 0.5 * sqrt(2) / 3, sqrt(2) / 3, 2 / sqrt(3), sqrt(2 * 3 / 600)]
    )
    assert theorem_right_side(58, 2, 1, 2, linear, 600)["O((dN/(M delta))^(1/p))"] == pytest.approx(sqrt(2 * 2 / 600))
    assert theorem_right_side(59, inf, 1, 2, linear)["O((dN/(M delta))^(1/p))"] == 0  # weights without a bound
    with refused("loops", 20):
        theorem_right_side(19, 2, 1, 2, linear)


@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_loops_for_an_error_are_enough_and_not_wasteful(variant):
    target = theory.load("mean", 1, 2)

    def omega(which, delta):
        return target.upper(which, delta, 2, 1, 2)

    best = loops_for_error(0.2, variant, 1, 2, omega)
    net = theory.approximate(target, 1, 2, best.grid.cells, variant, "centre", bits=best.num_bits)
    assert net.size.loops == best.loops
    assert net.bound(2).good <= 0.2
    assert loops_for_error(0.1, variant, 1, 2, omega).loops > best.loops


@pytest.mark.parametrize("variant", theory.VARIANTS)
@pytest.mark.parametrize("error", [0.4, 0.13, 0.0601])
def test_loops_for_an_error_are_the_fewest(variant, error):
    """Compare with all grids and bits, for a function with |f(X) - f(Y)| <= |X - Y|, d = 1, N = 2, p = 2."""

    def omega(which, delta):
        return delta

    fewest = inf
    for cells in range(2, 80):
        slope = sqrt(2) / (2 * cells)  # distance of the centre of a cell from its corners
        for q in range(1, 30):
            if theory.CONSTRUCTIONS[variant].streams:
                code = sqrt(2) / 2**q
            elif variant == "paper":
                code = sqrt(2) / 2 * max(1 / cells, (cells - 1) / (2 * cells + 2) * 2 / cells)
            elif variant == "lean":
                code = sqrt(2) / 2 * max(1 / cells, (cells - 1) / (cells + 1) * sqrt(2) / cells)
            else:
                code = 0
            if slope + code <= error:
                fewest = min(fewest, theory.CONSTRUCTIONS[variant](Grid(1, 2, cells), q).loops)
    assert loops_for_error(error, variant, 1, 2, omega).loops == fewest


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: loops_for_error("x", "lean", 1, 2, lambda _, t: t), "error"),
        (lambda: loops_for_error(0.1, "lean", 1, 2, lambda _, t: t, p=0), "p"),
        (lambda: loops_for_error(0.1, "lean", 0, 2, lambda _, t: t), "dim"),
        (lambda: loops_for_error(0.1, "lean", 1.0, 2, lambda _, t: t), "dim"),
        (lambda: loops_for_error(0.1, "lean-stream", 1, 2, lambda _, t: t, span=-1), "span"),
        (lambda: loops_for_error(0.1, "leaner", 1, 2, lambda _, t: t), "variant"),
        (lambda: theory.block_loops_needed(0, 1, 1, 1, 1), "num_sequences"),
        (lambda: theory.block_loops_needed(5.5, 1, 1, 1, 1), "num_sequences"),
        (lambda: loops_needed(4, 2, 3, 0), "parameters"),
    ],
)
def test_bounds_with_invalid_arguments_raise(call, field):
    with refused(field):
        call()


def test_a_finer_grid_with_fewer_bits_may_need_fewer_loops():
    """n = 2 leaves little error for the code: 24 bits of 4 labels. n = 3 leaves sqrt(2)/12: 4 bits of 9."""
    error = sqrt(2) / 4 + sqrt(2) / 2**24
    best = loops_for_error(error, "lean-stream", 1, 2, lambda which, delta: delta)
    assert (best.grid.cells, best.num_bits, best.loops) == (3, 4, 3 + 2 + 4 * 8)
    assert theory.CONSTRUCTIONS["lean-stream"](Grid(1, 2, 2), 24).loops == 2 + 2 + 24 * 3


def test_approximate_trifling_term_goes_to_zero_with_epsilon():
    """The measure of the trifling set is d N n epsilon, so its part of an L^2 bound falls like sqrt(epsilon)."""
    for cells in (4, 64):
        widths = [Fraction(1, cells * 4**k) for k in (5, 10, 20, 100)]
        nets = [theory.approximate(lambda x: x, 1, 1, cells, "modulated-minimal", epsilon=width) for width in widths]
        terms = [net.bound(2).terms for net in nets]
        for finer, factor in zip(terms[1:], (2**5, 2**15, 2**95), strict=True):
            assert finer["trifling"] * factor == pytest.approx(terms[0]["trifling"], rel=1e-9)
            assert finer["cell"] == terms[0]["cell"]


@pytest.mark.parametrize("variant", theory.VARIANTS)
@pytest.mark.parametrize("epsilon", [Fraction(1, 3), Fraction(1, 12), 2.0**-7, Fraction(1, 10**60)])
def test_approximate_is_right_up_to_epsilon_below_the_border(variant, epsilon):
    net = theory.approximate(theory.load("wave", 1, 2), 1, 2, 3, variant, bits=3, epsilon=epsilon)
    assert net.epsilon == Fraction(epsilon)
    for cell in product(range(3), repeat=2):
        for offset in (Fraction(0), Fraction(1, 3) - Fraction(epsilon)):
            x = np.array([[Fraction(z, 3) + offset for z in cell]], dtype=object)
            assert [[value] for value in net(x)[0]] == net.code_value(cell)


@pytest.mark.parametrize("wrong", [0, -0.1, 0.34, Fraction(1, 2), float("nan"), "small", Fraction(1, 2**1001)])
def test_approximate_refuses_an_epsilon_that_is_no_part_of_a_cell(wrong):
    with refused("epsilon"):
        theory.approximate(lambda x: x, 1, 2, 3, epsilon=wrong)


@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_bound_holds_with_fewer_cells_than_tokens(variant):
    """No input has all its tokens in different cells, and a constant function leaves no room for an error."""
    bound = theory.approximate(lambda x: np.full(x.shape, 5.0), 1, 3, 2, variant, bits=2, lipschitz=0.0).bound(2)
    assert bound.certified
    assert bound.holds
    assert bound.measured_lp == 0
