"""The proof's network in PyTorch against the exact engine."""

import warnings
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
import torch

import looped
from looped import theory

SMALL = [
    ("paper", 1, 2, 2), ("lean", 1, 2, 3), ("lean-stream", 1, 2, 2), ("modulated", 1, 2, 3),
    ("modulated-minimal", 1, 2, 4), ("modulated-minimal", 2, 2, 2), ("modulated-sqrt", 1, 2, 3),
]  # fmt: skip


def average_with_the_others(x: np.ndarray) -> np.ndarray:
    """Permutation equivariant; its values at the corners of power-of-two cells are dyadic."""
    return (x + x.sum(axis=1, keepdims=True)) / 4


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize(("variant", "dim", "tokens", "cells"), SMALL)
def test_the_model_computes_what_the_exact_network_does(variant, dim, tokens, cells, softmax):
    net = theory.approximate(average_with_the_others, dim, tokens, cells, variant, bits=3, softmax=softmax)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # thirds are not float64 numbers: close is what can be had
        model = looped.from_theory(net)
    cells_of = list(product(range(cells**dim), repeat=tokens))
    if not net.serves_duplicates:
        cells_of = list(permutations(range(cells**dim), tokens))
    points = [[[Fraction(2 * c + 1, 2 * cells) for c in net.grid.coordinates(z)] for z in ids] for ids in cells_of]
    exact = net(np.array(points, dtype=object).transpose(0, 2, 1))
    inputs = torch.tensor([[[float(x) for x in token] for token in point] for point in points], dtype=torch.float64)
    came = model(inputs).detach().numpy().transpose(0, 2, 1)
    np.testing.assert_allclose(came, exact.astype(np.float64), atol=1e-9)


def test_where_float64_suffices_it_is_equal_and_silent():
    net = theory.approximate(average_with_the_others, 1, 2, 4, "modulated-minimal")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = looped.from_theory(net)
    assert model.config.num_loops == net.size.loops
    for a, b in product(range(4), repeat=2):
        exact = net([[Fraction(a, 4), Fraction(b, 4)]])
        came = model(torch.tensor([[[a / 4], [b / 4]]], dtype=torch.float64))
        assert came[0, :, 0].tolist() == [float(value) for value in exact[0]]


def test_it_says_when_float64_does_not_suffice():
    for cells in (3, 4):  # codes of 53 and 127 digits
        net = theory.approximate(average_with_the_others, 1, 2, cells, "paper")
        with pytest.warns(UserWarning, match="do not fit float64"):
            looped.from_theory(net)


def test_every_loop_is_the_exact_state():
    net = theory.approximate(average_with_the_others, 1, 2, 2, "paper")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = looped.from_theory(net)
    trace = net.trace([[Fraction(0), Fraction(1, 2)]])
    states = list(model.iterate(torch.tensor([[[0.0], [0.5]]], dtype=torch.float64)))
    assert len(states) == len(trace.values) - 1
    for state, exact in zip(states, trace.values[1:], strict=True):
        np.testing.assert_allclose(state[0, :, : len(trace.rows)].detach().numpy().T, exact.astype(float), rtol=1e-12)
