"""Step 1, Lemma "quantize": maps coordinates in [0, 1) to cell numbers 0..n-1 (5d rows, width 7d, n-1 loops).

Each coordinate has the rows (k x, k^2, k, x, sum of h_i(x) for i < k). One loop adds h_k(x) = k rect_k(x).
"""

from collections.abc import Collection
from fractions import Fraction

from looped.theory.grid import trifling
from looped.theory.lemmas import require_known
from looped.theory.network import FeedForward, Form, LoopedNetwork, Number, row

COORDINATE_ROWS = ("kx", "kk", "k", "x", "cell")
FAULTS = {
    "rectangle": "h_k ends at k delta + 1 instead of k delta + delta: the rectangles overlap",
    "start": "starts at xi_0, so that n-1 loops omit h_{n-1}",
}


def coordinate_rows(i: int) -> tuple[str, ...]:
    """Return the row names of coordinate i."""
    return tuple(f"{name}{i}" for name in COORDINATE_ROWS)


def encode_coordinate(i: int, printed: Collection[str] = ()) -> dict[str, Form]:
    """Return the start xi_1 = (x, 1, 1, x, 0) of coordinate i, which already contains h_0 = 0."""
    x = row(f"x{i}")
    start = [Form(), Form(), Form(), x, Form()] if "start" in printed else [x, Form(const=1), Form(const=1), x, Form()]
    return dict(zip(coordinate_rows(i), start, strict=True))


def quantize_coordinate(layer: FeedForward, i: int, cells: int, epsilon: Number, printed: Collection[str] = ()) -> None:
    """Add one loop of coordinate i to the layer; seven units."""
    kx, kk, k, x, cell = coordinate_rows(i)
    delta = Fraction(1, cells)
    length = Fraction(1) if "rectangle" in printed else delta
    from_left = (row(kx) - delta * row(kk)) / epsilon
    to_right = row(k) * (length / epsilon) - from_left
    layer.add(kx, layer.relu(row(x)))
    layer.add(kk, layer.relu(2 * row(k)) + 1)
    layer.add(k, 1)
    rising = layer.relu(from_left + row(k)) - layer.relu(from_left)
    falling = layer.relu(to_right) - layer.relu(to_right - row(k))
    layer.add(cell, rising + falling - layer.relu(row(k)))


def quantizer(cells: int, dim: int = 1, epsilon: Number | None = None, printed: Collection[str] = ()) -> LoopedNetwork:
    """Return the network of the lemma: it maps each coordinate in [k/n, (k+1)/n - epsilon] to k."""
    require_known(printed, FAULTS)
    epsilon = trifling(cells) if epsilon is None else epsilon
    encode: dict[str, Form] = {}
    for i in range(1, dim + 1):
        encode |= encode_coordinate(i, printed)
    layer = FeedForward(tuple(encode))
    for i in range(1, dim + 1):
        quantize_coordinate(layer, i, cells, epsilon, printed)
    return LoopedNetwork(
        inputs=tuple(f"x{i}" for i in range(1, dim + 1)),
        encode=encode,
        feed_forward=layer,
        decode=tuple(row(f"cell{i}") for i in range(1, dim + 1)),
        loops=cells - 1,
    )
