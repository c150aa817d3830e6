"""An independent implementation of ids, labels and codes from their definitions, and a test function."""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np


def coordinates(token_id, dim, cells):
    digits = []
    for _ in range(dim):
        digits.insert(0, token_id % cells)
        token_id //= cells
    return digits


def all_cells(dim, tokens, cells, duplicates):
    base = cells**dim
    return [z for z in product(range(base), repeat=tokens) if duplicates or len(set(z)) == tokens]


def points(cell_tuples, dim, cells, offset):
    """Return (batch, dim, tokens) nested lists of points at `offset`, a fraction of a cell, inside their cells."""
    result = []
    for z in cell_tuples:
        columns = [[(c + offset) / Fraction(cells) for c in coordinates(a, dim, cells)] for a in z]
        result.append([[column[i] for column in columns] for i in range(dim)])
    return result


def label(function, z, position, dim, cells, shift):
    """Return f at the representatives of the sorted sequence, as exact Fractions of its floats."""
    ordered = sorted(z, reverse=True)
    at = np.array([[(c + shift) / cells for c in coordinates(a, dim, cells)] for a in ordered]).T
    column = np.asarray(function(at))[:, ordered.index(z[position])]
    return [Fraction(float(v)) for v in column]


def interpolate(known, k):
    """Return the value at k of the piecewise linear function through `known`, constant outside."""
    if k in known:
        return known[k]
    below = [i for i in known if i < k]
    above = [i for i in known if i > k]
    if not below:
        return known[min(above)]
    if not above:
        return known[max(below)]
    a, b = max(below), min(above)
    return [(u * (b - k) + v * (k - a)) / (b - a) for u, v in zip(known[a], known[b], strict=True)]


def rounded(table, k, i):
    """Return label k in coordinate i, rounded to the nearest multiple of the largest jump (halves up)."""
    values = [row[i] for row in table]
    jump = max(abs(b - a) for a, b in pairwise(values))
    if jump == 0:
        return values[k]
    quotient = values[k] / jump
    return jump * ((2 * quotient.numerator + quotient.denominator) // (2 * quotient.denominator))


def sequence_number(z, base):
    return sum(a * base**power for power, a in enumerate(sorted(z)))


def paper_number(z, position, dim, cells):
    base, tokens = cells**dim, len(z)
    valid = 2 * sequence_number(z, base) - min(z) % cells
    return 2 * z[position] * base**tokens + valid


def others_number(z, position, base):
    others = [a for j, a in enumerate(z) if j != position]
    return sequence_number(others, base) * base + z[position]


def rough(x):
    """Return a permutation equivariant function that is far from constant."""
    return np.sin(9 * x + 4 * x.sum(axis=1, keepdims=True)) + np.cos(7 * x.sum()) * x
