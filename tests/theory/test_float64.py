"""Plain float64: equal to the exact engine as far as its certificate goes, and wrong only beyond it."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from looped import theory
from looped.theory.engine import run_in_float64
from looped.theory.network import FeedForward, Form, Head, LoopedNetwork, row


@pytest.mark.parametrize(
    ("variant", "cells"), [("paper", 2), ("paper", 4), ("lean", 2), ("lean", 4), ("lean-horner", 2)]
)
def test_the_certificate_is_right(variant, cells):
    net = theory.approximate(theory.load("attn", 1, 2), 1, 2, cells, variant, bits=3)
    outcomes = set()
    for a in range(cells):
        for b in range(cells):
            x = np.array([[a / cells, b / cells]])
            run = run_in_float64(net.network, x)
            exact = net(x).astype(float)
            if run.exact:
                assert np.abs(run.values - exact).max() <= 1e-14
            outcomes.add((run.exact, bool(np.abs(run.values - exact).max() <= 1e-9)))
    assert outcomes <= {(True, True), (False, True), (False, False)}


def test_sixteen_ids_fit_into_float64_and_a_hundred_and_twenty_eight_do_not():
    target = theory.load("attn", 1, 2)
    small = theory.approximate(target, 1, 2, 2, "paper")
    assert run_in_float64(small.network, np.array([[0.0, 0.5]])).exact
    large = theory.approximate(target, 1, 2, 4, "paper")
    runs = {(a, b): run_in_float64(large.network, np.array([[a / 4, b / 4]])) for a in range(4) for b in range(4)}
    assert not any(run.exact for run in runs.values())
    wrong = [
        cell
        for cell, run in runs.items()
        if np.abs(run.values - np.array(large.code_value(cell), dtype=float).T).max() > 1e-6
    ]
    assert wrong


def test_certificate_covers_sums_over_tied_tokens():
    """Both tokens have equal weights. float64 holds their mean 2^52 + 1/2, but not their sum 2^53 + 1."""
    rows = {"x": row("x"), "m": Form()}
    head = Head(row("x"), Form(), Form(), "m")
    net = LoopedNetwork(("x",), rows, FeedForward(tuple(rows)), (row("m"),), 1, (head,))
    assert not run_in_float64(net, np.array([[2.0**53 - 1, 2.0]])).exact
    few = run_in_float64(net, np.array([[3.0, 2.0]]))
    assert few.exact
    assert few.values.tolist() == [[2.5, 2.5]]


def power_of_two_in(number):
    """Return the exponent of the largest power of two that divides a float, by halving and doubling."""
    exact, exponent = Fraction(number), 0
    while exact.denominator > 1:
        exact, exponent = exact * 2, exponent - 1
    while exact.numerator % 2 == 0:
        exact, exponent = exact / 2, exponent + 1
    return exponent


LONGEST = 2**53
PLACES = st.tuples(
    st.one_of(st.integers(1, LONGEST), st.integers(LONGEST - 3, LONGEST), st.integers(1, 4)), st.integers(-60, 60)
).map(lambda drawn: float(drawn[0]) * 2.0 ** drawn[1])


@settings(max_examples=300, deadline=None)
@given(PLACES, PLACES)
@example(2.0**53 - 2, 1.0)  # the largest sum that is certified
@example(2.0**53 - 1, 1.0)
@example(2.0**53, 1.0)  # rounded
@example(2.0**52, 1.0)
@example((2.0**53 - 2) * 2.0**-40, 2.0**-40)
@example(2.0**13, 2.0**-40)  # rounded
@example(2.0**93, 3 * 2.0**91)
def test_certificate_of_a_sum_needs_fewer_than_53_digits(a, b):
    """The sum is computed in a unit that reads two rows, and in a row that a unit is added to."""
    in_unit = FeedForward(("a", "b", "y"))
    in_unit.add("y", in_unit.relu(row("a") + row("b")))
    in_row = FeedForward(("a", "b", "y"))
    in_row.add("y", in_row.relu(row("a")))
    starts = {"a": row("a"), "b": row("b")}
    certified = a + b < LONGEST * Fraction(2) ** min(power_of_two_in(a), power_of_two_in(b))
    for layer, y in ((in_unit, Form()), (in_row, row("b"))):
        network = LoopedNetwork(("a", "b"), starts | {"y": y}, layer, (row("y"),), 1)
        run = run_in_float64(network, np.array([[a], [b]]))
        assert run.exact == certified
        if run.exact:
            assert Fraction(float(run.values[0, 0])) == Fraction(a) + Fraction(b)


def test_input_beyond_float64_has_no_certificate():
    net = LoopedNetwork(("x",), {"x": row("x")}, FeedForward(("x",)), (row("x"),), 1)
    assert run_in_float64(net, np.array([[Fraction(1, 4)]], dtype=object)).exact
    assert run_in_float64(net, np.array([[Fraction(1, 3)]], dtype=object)).exact_through == 0


def test_weight_beyond_float64_ends_the_certificate():
    net = theory.approximate(theory.load("attn", 1, 2), 1, 2, 3, "lean")  # the clock moves by 1/3
    run = run_in_float64(net.network, np.array([[0.0, 0.5]]))
    assert run.exact_through == 0
    assert Fraction(float(Fraction(1, 3))) != Fraction(1, 3)


@pytest.mark.parametrize("exponent", [400, 500, 530, 537, 538, 600])
def test_run_in_float64_product_that_underflows_has_no_certificate(exponent):
    """relu(2^-e a) at a = 2^-e is 2^-2e, which float64 holds up to e = 537 and rounds to 0 beyond."""
    tiny = Fraction(1, 2**exponent)
    layer = FeedForward(("a", "out"))
    layer.add("out", 2**exponent * layer.relu(tiny * row("a")))
    network = LoopedNetwork(("x",), {"a": row("x"), "out": Form()}, layer, (row("out"),), 1)
    run = run_in_float64(network, np.array([[tiny]], dtype=object))
    assert run.exact == (exponent <= 537)
    assert (Fraction(float(run.values[0, 0])) == tiny) == run.exact


@pytest.mark.parametrize(("last", "digits"), [(-1074, 53), (-1074, 54), (-1060, 53), (-1060, 54)])
def test_run_in_float64_sum_of_tiny_numbers_is_certified_up_to_53_digits(last, digits):
    first = Fraction(2) ** (last + digits - 1)
    layer = FeedForward(("a", "b", "y"))
    layer.add("y", layer.relu(row("a") + row("b")))
    network = LoopedNetwork(("a", "b"), {"a": row("a"), "b": row("b"), "y": Form()}, layer, (row("y"),), 1)
    run = run_in_float64(network, np.array([[first], [Fraction(2) ** last]], dtype=object))
    assert run.exact == (digits <= 53)
    assert (Fraction(float(run.values[0, 0])) == first + Fraction(2) ** last) == run.exact


def test_run_in_float64_modulation_that_underflows_has_no_certificate():
    tiny = Fraction(1, 2**600)
    layer = FeedForward(("a", "out"))
    layer.add("out", layer.relu(row("a")))
    rows = {"a": row("x"), "out": Form()}
    network = LoopedNetwork(("x",), rows, layer, (row("out"),), 1, modulation={"out": [tiny]})
    assert not run_in_float64(network, np.array([[tiny]], dtype=object)).exact
    assert run_in_float64(network, np.array([[1.0]])).exact
