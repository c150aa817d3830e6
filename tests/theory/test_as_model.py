"""The proof's network as a float64 model: what it says where 53 binary digits do not suffice."""

import re
import warnings
from itertools import product

import numpy as np
import pytest
import torch

import looped
from looped import InputError, theory
from looped.theory.grid import Grid


def square(x):
    return x**2


def rough(x):
    return np.sin(9 * x + 4 * x.sum(axis=1, keepdims=True)) + np.cos(7 * x.sum()) * x


def error_of(model, net):
    """The largest error in the middle of all cells, by the exact engine."""
    cells = net.grid.cells
    points = [[[(2 * a + 1) / (2 * cells), (2 * b + 1) / (2 * cells)]] for a, b in product(range(cells), repeat=2)]
    exact = net(np.array(points)).astype(float)
    came = model(torch.tensor(points, dtype=torch.float64).transpose(1, 2)).detach().numpy().transpose(0, 2, 1)
    return float(np.abs(came - exact).max())


@pytest.mark.parametrize(("variant", "digits"), [("paper", 132), ("lean-stream", 132), ("lean-horner", 266)])
def test_the_warning_says_how_long_the_numbers_are_how_far_off_the_model_is_and_what_to_take(variant, digits):
    net = theory.approximate(square, 1, 2, 4, variant)
    with pytest.warns(UserWarning, match=f"numbers of up to {digits} binary digits do not fit float64's 53") as caught:
        model = looped.from_theory(net)
    said = str(caught[0].message)
    off = re.search(r"off by up to (\S+) in the middle of 16 cells tried", said)
    assert off is not None
    assert float(off[1]) == pytest.approx(error_of(model, net), rel=0.01)
    assert float(off[1]) > 0.5
    assert said.endswith("; at this size modulated, modulated-minimal, modulated-sqrt, modulated-sqrt-multiset fit")


def test_harmless_rounding_is_told_apart():
    net = theory.approximate(square, 1, 2, 3, "modulated-sqrt")  # the clock moves by 1/3
    with pytest.warns(UserWarning, match=r"^numbers like 1/3 do not fit float64: .* off by up to \S+ in") as caught:
        model = looped.from_theory(net)
    assert "at this size" not in str(caught[0].message)
    assert error_of(model, net) < 1e-12


@pytest.mark.parametrize(("cells", "message"), [(4, "answers are no numbers"), (5, "has 1,207 binary digits here")])
def test_a_model_that_could_not_answer_with_numbers_is_refused(cells, message):
    net = theory.approximate(square, 1, 2, cells, "lean-multiset")
    with pytest.raises(InputError, match=f"{message}.*at this size modulated, modulated-minimal, modulated-sqrt.* fit"):
        looped.from_theory(net)


@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_what_is_said_to_fit_survives(variant):
    fits = [
        (cells, bits)
        for cells, bits in product((2, 3, 4, 5, 7, 12), (1, 3, 8))
        if (plan := theory.CONSTRUCTIONS[variant](Grid(1, 2, cells), bits)).fits_float64 and plan.loops < 500
    ]
    assert fits
    for cells, bits in fits:
        net = theory.approximate(rough, 1, 2, cells, variant, bits=bits)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = looped.from_theory(net)
        assert error_of(model, net) < 1e-8, (cells, bits)


def test_labels_of_a_group_that_do_not_fit_break_the_square_root_too():
    assert not theory.CONSTRUCTIONS["modulated-sqrt"](Grid(1, 2, 16), 16).fits_float64
    net = theory.approximate(rough, 1, 2, 16, "modulated-sqrt", bits=16)
    with pytest.warns(UserWarning, match="; at this size modulated, modulated-minimal fit"):
        assert error_of(looped.from_theory(net), net) > 1


def test_from_theory_refuses_modulation_beyond_float64():
    """The ratio of two labels is a factor eta(t): 1e300 / 1e-300 is no float64, though both labels are."""
    net = theory.approximate(lambda x: np.where(x > 0.5, 1e300, 1e-300), 1, 2, 4, "modulated")
    with pytest.raises(InputError, match=r"the largest number of modulated has 1,99. binary digits here"):
        looped.from_theory(net)


def test_from_theory_names_modulation_that_is_rounded():
    net = theory.approximate(lambda x: 1 + x, 1, 1, 2, "modulated")  # the labels 1, 7/6, 4/3, 3/2 are multiplied up
    with pytest.warns(UserWarning, match=r"^numbers like 1/6 do not fit float64"):
        looped.from_theory(net)
