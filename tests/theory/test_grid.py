"""Ids and labels: which ids inputs reach, and how the others are filled."""

from math import inf

import numpy as np
import pytest

from looped.theory.grid import Grid, fill, labels_by_id, largest_jump, paper_id, printed_fill, tabulate
from tests.theory.oracle import rough


def test_printed_dummies_overlap_valid_ids():
    def valid(a, b):
        return 2 * (3 * a + b) - b

    assert valid(1, 1) + 5 == valid(2, 0)  # b = 5 is allowed for n = 3
    ids = {2 * s - s % 3 for s in range(9)}
    dummies = {6 * (s // 3) + b for s in range(9) for b in (3, 4, 5)}
    assert ids | dummies == set(range(18))
    assert not ids & dummies


def test_printed_fill_overshoots_and_linear_fill_does_not():
    grid = Grid(1, 2, 2)
    known = labels_by_id(grid, tabulate(lambda x: x, grid, False), paper_id)
    assert sorted(known) == [4, 12]
    assert largest_jump(printed_fill(known, 16, 2), 2) == 1.25
    assert largest_jump(fill(known, 16), 2) == 0.5 / 8


@pytest.mark.parametrize(("cells", "realizable"), [(2, 2), (3, 6), (4, 12), (6, 30)])
def test_few_ids_are_realizable(cells, realizable):
    grid = Grid(1, 2, cells)
    assert len(labels_by_id(grid, tabulate(rough, grid, False), paper_id)) == realizable


@pytest.mark.parametrize("p", [1, 2, inf])
def test_the_jump_bound_over_random_functions(p):
    """Compare the largest jump with its bound, for 75 functions per p whose moduli are known."""
    rng = np.random.default_rng(int(min(p, 9)))
    for shape in [(1, 2, 2), (1, 2, 3), (1, 2, 4), (2, 2, 2), (1, 3, 3)] * 15:
        dim, tokens, cells = shape
        own, others = rng.normal(size=2)

        def linear(x, a=own, b=others):
            return a * x + b * x.sum(axis=1, keepdims=True)

        grid = Grid(dim, tokens, cells)
        served = tabulate(linear, grid, tokens <= 2)
        table = fill(labels_by_id(grid, served, paper_id), 2 * grid.base ** (tokens + 1))
        steps = np.diff(np.array(table, dtype=float), axis=0)
        jump = np.linalg.norm(steps, ord=p, axis=1).max()
        stretch = dim ** max(0.0, 1 / p - 0.5)
        token = abs(own + others) * stretch * dim**0.5 / cells
        context = abs(others) * stretch * (tokens - 1) ** 0.5
        far, near = context * ((tokens - 1) * dim) ** 0.5 / cells, context / cells
        assert jump <= max(near, (cells - 1) / (cells + 1) * (token + far)) + 1e-12
        if tokens > 1:  # the sharper form: a change of the token itself is spread over a whole block of ids
            spread = (cells - 1) / (2 * (tokens - 1) * grid.base ** (tokens - 1) + 2)
            assert jump <= max(near, (cells - 1) / (cells + 1) * far, spread * (token + far)) + 1e-12
