"""rect, step, impulse, hat and the binary shift, against their piecewise definitions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.theory.gadgets import Pulse, hat, rect, shift_left, step
from looped.theory.network import FeedForward, Form, row

NUMBERS = st.fractions(min_value=-4, max_value=4, max_denominator=64)


def value(build, **rows):
    """Return the value of a gadget and its number of hidden units, evaluated directly."""
    layer = FeedForward(tuple(rows))
    form = build(layer)
    hidden = [max(unit.const + sum(c * rows[name] for name, c in unit.terms.items()), 0) for unit in layer.units]
    return form.const + sum(c * hidden[int(name[1:])] for name, c in form.terms.items()), len(hidden)


@given(NUMBERS)
def test_step_is_a_step_outside_its_trifling_region(x):
    output, units = value(lambda layer: step(layer, row("x"), Fraction(1, 4)), x=x)
    assert units == 2
    if x >= 0 or x <= -Fraction(1, 4):
        assert output == (1 if x >= 0 else 0)
    else:
        assert output == 1 + 4 * x


@given(NUMBERS)
def test_rect_is_one_inside_and_zero_outside(x):
    output, units = value(lambda layer: rect(layer, row("x"), 1, 2, Fraction(1, 4)), x=x)
    assert units == 4
    if 1 <= x <= Fraction(7, 4):
        assert output == 1
    elif x <= Fraction(3, 4) or x >= 2:
        assert output == 0
    else:
        assert 0 < output < 1


@given(st.fractions(min_value=-5, max_value=5, max_denominator=16), st.integers(-3, 9), st.integers(-2, 6))
def test_impulse_passes_x_at_theta_only(x, t, theta):
    output, units = value(lambda layer: Pulse(layer, row("t"), theta, 5)(row("x")), x=x, t=t)
    assert units == 4
    assert output == (x if t == theta else 0)


@given(st.fractions(-2, 2, max_denominator=16), st.integers(-4, 4), st.fractions(-1, 1, max_denominator=64))
def test_impulse_with_twice_the_bound_tolerates_a_quarter(x, t, error):
    output, _ = value(lambda layer: Pulse(layer, row("t"), 0, 4)(row("x")), x=x, t=t + error / 4)
    assert output == (x if t == 0 else 0)


def test_impulse_leaks_beyond_its_bound_only_before_theta_for_positive_x():
    leaks = {t: value(lambda layer: Pulse(layer, row("t"), 0, 1)(row("x")), x=9, t=t)[0] for t in range(-5, 6)}
    assert leaks[-1] != 0
    assert all(leaks[t] == 0 for t in range(1, 6))


@given(st.integers(-6, 6))
def test_hat(x):
    output, units = value(lambda layer: hat(layer, row("x")), x=x)
    assert (output, units) == (int(x == 0), 3)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=12))
def test_shift_left_removes_the_first_binary_digit(bits):
    layer = FeedForward(("beta", "closed"))
    digit = shift_left(layer, "beta", len(bits), closed=row("closed"))
    beta = sum(Fraction(bit, 2 ** (i + 1)) for i, bit in enumerate(bits))
    change = layer({"beta": beta, "closed": 0})["beta"]
    rest = sum(Fraction(bit, 2 ** (i + 1)) for i, bit in enumerate(bits[1:]))
    assert beta + change == rest
    hidden = {f"h{j}": max(unit.at({"beta": beta, "closed": 0}), 0) for j, unit in enumerate(layer.units)}
    assert digit.at(hidden) == bits[0]
    assert layer({"beta": beta, "closed": 1})["beta"] == 0


def test_unit_with_an_unknown_row_raises():
    with pytest.raises(AssertionError, match="'y'"):
        FeedForward(("x",)).relu(Form({"y": 1}))
