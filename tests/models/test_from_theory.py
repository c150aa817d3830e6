"""The networks of the proofs as PyTorch models, against the exact engine."""

import re
import warnings
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
import torch

import looped
from looped import theory
from looped.theory.grid import Grid
from tests.refusal import refused

SMALL = [
    ("paper", 1, 2, 2), ("lean", 1, 2, 3), ("lean-stream", 1, 2, 2), ("modulated", 1, 2, 3),
    ("modulated-minimal", 1, 2, 4), ("modulated-minimal", 2, 2, 2), ("modulated-sqrt", 1, 2, 3),
]  # fmt: skip


def average_with_the_others(x: np.ndarray) -> np.ndarray:
    """Return an equivariant function whose values at the corners of power-of-two cells are dyadic."""
    return (x + x.sum(axis=1, keepdims=True)) / 4


def square(x):
    return x**2


def test_function_in_place_of_a_network_is_refused():
    with refused("net", "function"):
        looped.from_theory(square)


def rough(x):
    return np.sin(9 * x + 4 * x.sum(axis=1, keepdims=True)) + np.cos(7 * x.sum()) * x


def model_of(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return looped.from_theory(net)


def error_of(model, net):
    """Return the largest error at the centres of all cells, by the exact engine."""
    cells = net.grid.cells
    points = [[[(2 * a + 1) / (2 * cells), (2 * b + 1) / (2 * cells)]] for a, b in product(range(cells), repeat=2)]
    exact = net(np.array(points)).astype(float)
    outputs = model(torch.tensor(points, dtype=torch.float64).transpose(1, 2)).detach().numpy().transpose(0, 2, 1)
    return float(np.abs(outputs - exact).max())


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize(("variant", "dim", "tokens", "cells"), SMALL)
def test_model_equals_the_exact_network(variant, dim, tokens, cells, softmax):
    net = theory.approximate(average_with_the_others, dim, tokens, cells, variant, bits=3, softmax=softmax)
    model = model_of(net)  # thirds are rounded in float64, so the outputs are only close
    cells_of = list(product(range(cells**dim), repeat=tokens))
    if not net.serves_duplicates:
        cells_of = list(permutations(range(cells**dim), tokens))
    points = [[[Fraction(2 * c + 1, 2 * cells) for c in net.grid.coordinates(z)] for z in ids] for ids in cells_of]
    exact = net(np.array(points, dtype=object).transpose(0, 2, 1))
    inputs = torch.tensor([[[float(x) for x in token] for token in point] for point in points], dtype=torch.float64)
    outputs = model(inputs).detach().numpy().transpose(0, 2, 1)
    np.testing.assert_allclose(outputs, exact.astype(np.float64), atol=1e-9)


def test_model_with_dyadic_numbers_is_exact_and_does_not_warn():
    net = theory.approximate(average_with_the_others, 1, 2, 4, "modulated-minimal")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = looped.from_theory(net)
    assert model.config.num_loops == net.size.loops
    for a, b in product(range(4), repeat=2):
        exact = net([[Fraction(a, 4), Fraction(b, 4)]])
        outputs = model(torch.tensor([[[a / 4], [b / 4]]], dtype=torch.float64))
        assert outputs[0, :, 0].tolist() == [float(value) for value in exact[0]]


def test_states_of_the_model_equal_the_exact_trace():
    net = theory.approximate(average_with_the_others, 1, 2, 2, "paper")
    trace = net.trace([[Fraction(0), Fraction(1, 2)]])
    states = list(model_of(net).iterate(torch.tensor([[[0.0], [0.5]]], dtype=torch.float64)))
    assert len(states) == len(trace.values) - 1
    for state, exact in zip(states, trace.values[1:], strict=True):
        np.testing.assert_allclose(state[0, :, : len(trace.rows)].detach().numpy().T, exact.astype(float), rtol=1e-12)


@pytest.mark.parametrize(
    ("variant", "cells", "digits"),
    [("paper", 4, 132), ("lean-stream", 4, 132), ("lean-horner", 4, 266)],
)
def test_long_numbers_warn_with_their_digits_the_error_and_alternatives(variant, cells, digits):
    net = theory.approximate(square, 1, 2, cells, variant)
    with pytest.warns(UserWarning, match=f"{digits} binary digits") as caught:
        model = looped.from_theory(net)
    message = str(caught[0].message)
    error = re.search(rf"up to (\S+) at the centres of {cells**2} cells", message)
    assert error is not None
    assert float(error[1]) == pytest.approx(error_of(model, net), rel=0.01)
    assert float(error[1]) > 0.5
    assert "modulated, modulated-minimal, modulated-sqrt" in message


def test_paper_with_three_cells_does_not_fit_float64():
    with pytest.warns(UserWarning, match="61 binary digits"):
        looped.from_theory(theory.approximate(average_with_the_others, 1, 2, 3, "paper"))


def test_rounded_thirds_warn_without_alternatives():
    net = theory.approximate(square, 1, 2, 3, "modulated-sqrt")  # the clock moves by 1/3
    with pytest.warns(UserWarning, match="numbers like 1/3") as caught:
        model = looped.from_theory(net)
    assert "modulated" not in str(caught[0].message)
    assert error_of(model, net) < 1e-12


@pytest.mark.parametrize(("cells", "number"), [(4, "772"), (5, "1,207")])
def test_model_without_finite_outputs_raises_with_alternatives(cells, number):
    net = theory.approximate(square, 1, 2, cells, "lean-multiset")
    with refused("net", number, "modulated, modulated-minimal, modulated-sqrt"):
        looped.from_theory(net)


@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_variants_that_fit_float64_are_accurate(variant):
    construction = theory.CONSTRUCTIONS[variant]
    sizes = [
        (cells, bits)
        for cells, bits in product((2, 3, 4, 5, 7, 12), (1, 3, 8))
        if (each := construction(Grid(1, 2, cells), bits)).fits_float64 and each.loops < 500
    ]
    assert sizes
    for cells, bits in sizes:
        net = theory.approximate(rough, 1, 2, cells, variant, bits=bits)
        assert error_of(model_of(net), net) < 1e-8, (cells, bits)


def test_modulated_sqrt_with_long_groups_does_not_fit_float64():
    assert not theory.CONSTRUCTIONS["modulated-sqrt"](Grid(1, 2, 16), 16).fits_float64
    net = theory.approximate(rough, 1, 2, 16, "modulated-sqrt", bits=16)
    with pytest.warns(UserWarning, match=r"modulated, modulated-minimal, modulated-digits fit"):
        assert error_of(looped.from_theory(net), net) > 1


def test_modulation_beyond_float64_raises():
    """The ratio of two labels is a factor eta(t), and 1e300 / 1e-300 overflows although both labels fit."""
    net = theory.approximate(lambda x: np.where(x > 0.5, 1e300, 1e-300), 1, 2, 4, "modulated")
    with refused("net", "1,99"):
        looped.from_theory(net)


def test_rounded_modulation_warns():
    net = theory.approximate(lambda x: 1 + x, 1, 1, 2, "modulated")  # the labels 1, 7/6, 4/3, 3/2 are multiplied up
    with pytest.warns(UserWarning, match="numbers like 1/6"):
        looped.from_theory(net)
