"""Moduli, bounds, loops for an error and lower bounds, against functions whose moduli are known."""

from fractions import Fraction
from itertools import product
from math import inf, log2, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped import InputError, theory
from looped.theory.bounds import (
    cells_for_loops,
    duplicate_measure,
    loops_for_error,
    loops_needed,
    printed_delta,
    theorem_right_side,
)
from looped.theory.functions import FUNCTIONS
from looped.theory.ids import Grid


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
    """The proof of w_f <= N^(1/p)(w_tok + w_cont): column i moves first, then the others."""
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
    counts_multisets = variant == "lean-multiset"  # its ids are many, so that few bits must do
    for dim, tokens, cells in [(1, 2, 2), (1, 3, 2)] if counts_multisets else [(1, 2, 3), (1, 3, 2), (2, 2, 2)]:
        bits = 1 if counts_multisets else 5
        net = theory.approximate(theory.load(name, dim, tokens), dim, tokens, cells, variant, representative, bits=bits)
        for p in (1, 2, inf):
            bound = net.bound(p)
            assert bound.certified
            assert bound.holds, (dim, tokens, cells, p, bound)
            served = tokens <= 2 or variant in ("modulated-minimal", "lean-multiset")
            assert (bound.terms["duplicates"] == 0) == served


@pytest.mark.parametrize(("variant", "tokens"), [("paper", 2), ("paper", 3), ("lean", 3), ("modulated-minimal", 3)])
def test_the_largest_error_is_at_least_that_on_the_good_set(variant, tokens):
    """f(X) = X, stored at the corner: the error is largest at a cell's far corner, where the trifling part begins."""
    net = theory.approximate(lambda x: x, 1, tokens, 3, variant)
    bound = net.bound(inf)
    assert bound.measured_lp >= bound.measured_sup
    if variant == "modulated-minimal":
        assert bound.measured_lp == bound.measured_sup == pytest.approx(1 / 3 - float(net.epsilon), rel=1e-12)


def test_the_corrected_bound_is_below_the_printed_one():
    for name in FUNCTIONS:
        bound = theory.approximate(theory.load(name, 1, 2), 1, 2, 5, "paper").bound(2)
        assert bound.good <= sum(bound.printed.values())


def test_a_function_without_constants_gets_an_uncertified_bound_and_a_given_one_a_certified():
    net = theory.approximate(lambda x: x**2, 1, 2, 3, "lean")
    assert not net.bound().certified
    assert theory.approximate(lambda x: x**2, 1, 2, 3, "lean", lipschitz=2.0).bound().certified


def test_duplicate_measure_counts_cells():
    for dim, tokens, cells in [(1, 2, 4), (1, 3, 3), (2, 2, 2), (1, 3, 2)]:
        tuples = list(product(range(cells**dim), repeat=tokens))
        share = sum(len(set(z)) < tokens for z in tuples) / len(tuples)
        assert duplicate_measure(Grid(dim, tokens, cells)) == pytest.approx(share)


def test_loops_between_two_grids_do_not_reach_the_printed_delta():
    """N = 2, d = 1: for r in 35..58 only n = 2 fits, although delta(r) promises less than 1/2."""
    for loops in range(35, 59):
        assert cells_for_loops("paper", loops, 1, 2) == 2
        assert printed_delta(loops, 1, 2) < 0.5
    assert cells_for_loops("paper", 59, 1, 2) == 3
    omega = {"sequence": 1.0, "context": 0.5, "token": 0.25}

    def linear(which, delta):
        return omega[which] * delta

    terms = theorem_right_side(59, 2, 1, 2, linear)
    assert terms["token"] == pytest.approx(sqrt(2) * 0.25 / 3)
    with pytest.raises(InputError, match="20 are the least"):
        theorem_right_side(19, 2, 1, 2, linear)


@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_loops_for_an_error_are_enough_and_not_wasteful(variant):
    target = theory.load("mean", 1, 2)

    def omega(which, delta):
        return target.upper(which, delta, 2, 1, 2)

    plan = loops_for_error(0.2, variant, 1, 2, omega)
    net = theory.approximate(target, 1, 2, plan.grid.cells, variant, "centre", bits=plan.num_bits)
    assert net.size.loops == plan.loops
    assert net.bound(2).good <= 0.2
    assert loops_for_error(0.1, variant, 1, 2, omega).loops > plan.loops


def test_lower_bounds_are_below_the_constructions():
    rng = np.random.default_rng(0)
    for count, q in [(4, 2), (16, 4), (64, 3)]:
        labels = [Fraction(int(k), 2**q) for k in rng.integers(0, 2**q, count)]
        for variant, free in (("stream", False), ("sqrt", True)):
            size = theory.memorize(labels, variant, q).size
            rows = size.dims if free else 0
            assert loops_needed(count, q, size.width, size.parameters, rows) <= size.loops
        stream = theory.memorize(labels, "stream", q)
        assert theory.bits_needed(count, q, 1) <= stream.size.parameters * stream.size.max_bits
        minimal = theory.memorize(labels, "modulated-minimal")
        assert theory.real_labels_memorizable(count, 1, minimal.size.parameters)
    assert not theory.real_labels_memorizable(1000, 1, 90)


def test_weights_beyond_what_can_be_told_apart_give_no_lower_bound():
    """One loop of two units for each of 9 steps stores any 10 labels; rows of zeros around it change nothing."""
    assert loops_needed(10, 8, 18, 18 * 3 + 9 * 4) <= 1
    for parameters in (10**3, 10**5, 10**9):
        assert loops_needed(10, 8, 18, parameters) <= 1
        assert loops_needed(10, 8, 1024, parameters) <= 1


def test_the_lower_bound_on_loops_is_the_least_solution():
    count, q, width, weights = 100_000, 8, 20, 90
    least = loops_needed(count, q, width, weights)

    def room(r):
        e = np.e
        per_loop = 1 + weights * log2(4 * e * count * width * (r + 1) / weights)
        return r * per_loop + 1 + weights * log2(4 * e * count * 2**q * (r + 1) / weights)

    assert room(least) >= q * count > room(least - 1)
