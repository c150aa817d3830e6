"""Steps 1 and 2 of the blocks that go beyond the paper: fewer rows, one head, and no hand-overs.

All share one Step 1: a single threshold c runs through k/n. Most share one Step 2 that numbers only the other tokens,
so that B^N ids suffice. In weight-tied blocks c is also the clock and the row `closed` opens Step 2. In time-modulated
blocks eta(t) schedules all steps.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from looped.theory.gadgets import hat, step
from looped.theory.grid import Grid, Vector
from looped.theory.lemmas.streams import differences
from looped.theory.network import HALF, QUARTER, FeedForward, Form, Head, LoopedNetwork, Number, row, total

SELECTION = ("id", "gone", "one", "best", "seq")  # z, u, 1, a, s


def start_rows(grid: Grid, *more: str, per_output: Sequence[str]) -> dict[str, Form]:
    """Return the inputs, the threshold c = 1/n, the selection rows and the memorizer's rows at their start."""
    coordinates = range(1, grid.dim + 1)
    encode = {f"x{i}": row(f"x{i}") for i in coordinates} | {"c": Form(const=Fraction(1, grid.cells))}
    encode |= {name: Form(const=int(name in ("one", "closed"))) for name in (*SELECTION, *more)}
    return encode | {f"{name}{i}": Form() for name in per_output for i in coordinates}


def per_coordinate(grid: Grid, *names: str) -> list[list[str]]:
    """Return the names of the rows that exist once per coordinate."""
    return [[f"{name}{i}" for i in range(1, grid.dim + 1)] for name in names]


def assemble(
    grid: Grid,
    encode: Mapping[str, Form],
    layer: FeedForward,
    decode: Sequence[Form],
    loops: int,
    sharpness: Number | None,
    more_heads: tuple[Head, ...] = (),
    modulation: Mapping[str, Sequence[Number]] | None = None,
) -> LoopedNetwork:
    """Return the network with the head that fetches the largest waiting id, and with `more_heads`."""
    key = (row("id") + row("gone")) * (1 if sharpness is None else sharpness)
    heads = (Head(row("id"), key, row("one"), "best"), *more_heads)
    (inputs,) = per_coordinate(grid, "x")
    decode, modulation = tuple(decode), modulation or {}
    return LoopedNetwork(tuple(inputs), encode, layer, decode, loops, heads, modulation, sharpness is not None)


def count_thresholds(layer: FeedForward, grid: Grid, epsilon: Number) -> Form:
    """Add n^(d-i) to the token id for every threshold that x_i has passed. Return the step of the last coordinate."""
    passed = [step(layer, row(f"x{i}") - row("c"), epsilon) for i in range(1, grid.dim + 1)]
    layer.add("id", total([grid.cells ** (grid.dim - i) * one for i, one in enumerate(passed, 1)]))
    return passed[-1]


def number_other_tokens(layer: FeedForward, grid: Grid, closed: Form | Number = 0) -> None:
    """Let s <- B s + (fetched id) unless the token fetched itself; four units, one round of Step 2."""
    base, bound = grid.base, grid.num_sequences + grid.base
    own = row("id") + row("gone") - row("best")  # 0 in the token's own round, at most -1 in every other
    layer.add("gone", -4 * base * layer.relu(own + HALF - (base + 1) * Form.of(closed)))
    longer = (base - 1) * row("seq") + row("best") - bound * Form.of(closed)
    layer.add("seq", layer.relu(longer) - layer.relu(longer + bound * own))
    layer.add("best", -layer.relu(row("best")))


def number_multiset(layer: FeedForward, grid: Grid, closed: Form | Number = 0) -> Form:
    """Append (fetched id, tokens fetched before) to s in base S = B(N+1); six units, one round of Step 2.

    The token's own round is left out of s, and its count goes to the row `own`. Return the form that reads the id
    ((s N + own) B + z) of `grid.others_multiset_id`.
    """
    base, tokens, radix = grid.base, grid.tokens, grid.base * (grid.tokens + 1)
    shut, bound = Form.of(closed), radix**tokens + radix
    away = row("id") + row("gone") - row("best")  # 0 in the token's own round, at most -1 in every other
    layer.add("gone", -4 * base * layer.relu(away + HALF - (base + 1) * shut))
    longer = (radix - 1) * row("seq") + row("best") + base * row("count") - bound * shut
    layer.add("seq", layer.relu(longer) - layer.relu(longer + bound * away))
    layer.add("own", layer.relu(row("count") + tokens * away - 2 * tokens * shut))
    layer.add("best", -layer.relu(row("best")))
    layer.add("count", -layer.relu(row("count")))
    return (tokens * row("seq") + row("own")) * base + row("id")


def open_in_step_two(layer: FeedForward, grid: Grid) -> Form:
    """Let the row `closed` be 0 in the loops n-1..n+N-2 and 1 otherwise. Return the clock t + 1 = n c."""
    clock = grid.cells * row("c")
    layer.add("closed", hat(layer, clock - (grid.cells + grid.tokens - 1)) - hat(layer, clock - (grid.cells - 1)))
    layer.add("c", Fraction(1, grid.cells))
    return clock


def other_tokens_id(grid: Grid) -> Form:
    """Return the form that reads k = s B + z."""
    return grid.base * row("seq") + row("id")


def counting_head(grid: Grid) -> Head:
    """Return a head with zero keys and queries: it counts the tokens that were fetched, as a mean over all tokens."""
    return Head(Fraction(-grid.tokens, 2 * grid.base) * row("gone"), Form(), Form(), "count")


def read_digits_and_labels(layer: FeedForward, grid: Grid, radix: int) -> None:
    """Append (fetched token, count) to the sequence id as one digit, and add eta to outputs whose id is reached."""
    fetched, count = layer.relu(row("best")), layer.relu(row("count"))
    layer.add("seq", (radix - 1) * layer.relu(row("seq")) + fetched + grid.base * count)
    layer.add("best", -fetched)
    layer.add("count", -count)
    reached = step(layer, radix**grid.tokens * row("id") + row("seq") - row("c"), HALF)
    for i in range(1, grid.dim + 1):
        layer.add(f"out{i}", reached)
    layer.add("c", 1)


def label_schedule(
    grid: Grid, ids: Sequence[int], known: Mapping[int, Vector]
) -> tuple[dict[str, list[Number]], list[Number]]:
    """Return the eta(t) that adds the label differences of all reachable ids in turn, and the thresholds."""
    modulation, schedule = step_schedule(grid, [k - QUARTER for k in ids[1:]])
    lead = grid.cells - 1 + grid.tokens
    for i, labels in enumerate(zip(*(known[k] for k in ids), strict=True), 1):
        modulation[f"out{i}"] = [*[0] * lead, *[b - a for a, b in pairwise(labels)]]
    modulation["c"] = differences(schedule)
    return modulation, schedule


def step_schedule(grid: Grid, memory: Sequence[Number]) -> tuple[dict[str, list[Number]], list[Number]]:
    """Return the eta(t) that runs Step 1, then Step 2, and the values of c: k/n, idle, the memorizer's thresholds."""
    first, second, third = grid.cells - 1, grid.tokens, len(memory)
    in_step_two: list[Number] = [*[0] * first, *[1] * second, *[0] * third]
    modulation: dict[str, list[Number]] = {
        "id": [*[1] * first, *[0] * (second + third)],
        "gone": in_step_two,
        "seq": in_step_two,
    }
    thresholds: list[Number] = [Fraction(k, grid.cells) for k in range(1, grid.cells)]
    return modulation, [*thresholds, *[0] * second, *memory]
