"""Single blocks that go beyond the paper: fewer rows, one head, and no hand-overs (Theorem "rate" made smaller).

All share one Step 1 (a single threshold c runs through k/n) and, except modulated-minimal, one Step 2 that numbers only
the other tokens, so that B^N ids suffice. The modulated ones schedule everything by eta(t); lean and lean-stream are
weight-tied: c is the clock, a row G opens Step 2, and leading zero bits keep Step 3 quiet until its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import log

from looped.theory.gadgets import hat, shift_left, step
from looped.theory.grid import Grid, Vector
from looped.theory.lemmas.horner import decode_horner, horner_start, read_by_horner
from looped.theory.lemmas.memorizer import DifferenceCode, binary
from looped.theory.lemmas.quantizer import trifling
from looped.theory.lemmas.streams import (
    QUARTER,
    Grouping,
    StreamCode,
    decode_stream,
    differences,
    load_and_sample,
    sample,
)
from looped.theory.network import HALF, FeedForward, Form, Head, LoopedNetwork, Number, row, total
from looped.utils.errors import require

SELECTION = ("id", "gone", "one", "best", "seq")  # z, u, 1, a, s


def start_rows(grid: Grid, *more: str, per_output: Sequence[str]) -> dict[str, Form]:
    """The inputs, the threshold c = 1/n, the selection rows and the memorizer's rows, all at their start."""
    coordinates = range(1, grid.dim + 1)
    encode = {f"x{i}": row(f"x{i}") for i in coordinates} | {"c": Form(const=Fraction(1, grid.cells))}
    encode |= {name: Form(const=int(name == "one")) for name in (*SELECTION, *more)}
    return encode | {f"{name}{i}": Form() for name in per_output for i in coordinates}


def _network(
    grid: Grid,
    encode: Mapping[str, Form],
    layer: FeedForward,
    decode: Sequence[Form],
    loops: int,
    sharpness: Number | None,
    more_heads: tuple[Head, ...] = (),
    modulation: Mapping[str, Sequence[Number]] | None = None,
) -> LoopedNetwork:
    key = (row("id") + row("gone")) * (1 if sharpness is None else sharpness)
    heads = (Head(row("id"), key, row("one"), "best"), *more_heads)
    inputs = tuple(f"x{i}" for i in range(1, grid.dim + 1))
    return LoopedNetwork(inputs, encode, layer, tuple(decode), loops, heads, modulation or {}, sharpness is not None)


def count_thresholds(layer: FeedForward, grid: Grid, epsilon: Number) -> Form:
    """z += sum of n^(d-i) T(x_i - c): every threshold that x_i has passed counts. Returns the last coordinate's."""
    passed = [step(layer, row(f"x{i}") - row("c"), epsilon) for i in range(1, grid.dim + 1)]
    layer.add("id", total([grid.cells ** (grid.dim - i) * one for i, one in enumerate(passed, 1)]))
    return passed[-1]


def _number_the_others(layer: FeedForward, grid: Grid, closed: Form | Number = 0) -> None:
    """One round of Step 2: s <- B s + (fetched id) unless the fetched token is the own one; four units."""
    base, bound = grid.base, grid.num_sequences + grid.base
    own = row("id") + row("gone") - row("best")  # 0 in the own round, at most -1 in every other
    layer.add("gone", -4 * base * layer.relu(own + HALF - (base + 1) * Form.of(closed)))
    longer = (base - 1) * row("seq") + row("best") - bound * Form.of(closed)
    layer.add("seq", layer.relu(longer) - layer.relu(longer + bound * own))
    layer.add("best", -layer.relu(row("best")))


def _open_in_step_two(layer: FeedForward, grid: Grid) -> Form:
    """Row G: 1, but 0 in the loops n-1..n+N-2; flipped by two hats of the clock. Returns the clock t + 1 = n c."""
    clock = grid.cells * row("c")
    layer.add("closed", hat(layer, clock - (grid.cells + grid.tokens - 1)) - hat(layer, clock - (grid.cells - 1)))
    layer.add("c", Fraction(1, grid.cells))
    return clock


def _others_id(grid: Grid) -> Form:
    return grid.base * row("seq") + row("id")


def lean_block(
    grid: Grid, table: Sequence[Vector], epsilon: Number | None = None, sharpness: Number | None = None
) -> LoopedNetwork:
    """Weight-tied, 6d+9 rows, width 12d+13, n-1+N+2 n^(Nd) loops; `table` holds the labels of all 2 B^N ids."""
    codes = [DifferenceCode.of(column) for column in zip(*table, strict=True)]
    encode = start_rows(grid, "digit", "closed", "inside", per_output=("up", "down", "bit+", "bit-", "sum"))
    encode["closed"] = Form(const=1)
    layer = FeedForward(tuple(encode))
    layer.add("digit", count_thresholds(layer, grid, trifling(grid.cells) if epsilon is None else epsilon))
    clock = _open_in_step_two(layer, grid)
    _number_the_others(layer, grid, closed=row("closed"))

    # bit l is read in loop n+N-2+l and counted one loop later if l <= k
    quiet = grid.cells + grid.tokens - 1
    k = 2 * _others_id(grid) - row("digit")
    layer.add("inside", step(layer, k - clock + quiet + QUARTER, HALF) - layer.relu(row("inside")))
    for i, code in enumerate(codes, 1):
        for sign, beta, bit in ((1, f"up{i}", f"bit+{i}"), (-1, f"down{i}", f"bit-{i}")):
            bits = [0] * quiet + code.bits(sign)
            encode[beta] = Form(const=binary(bits))
            layer.add(bit, shift_left(layer, beta, len(bits)) - layer.relu(row(bit)))
            layer.add(f"sum{i}", sign * layer.relu(row(bit) + row("inside") - 1))
    decode = [code.scale * (row(f"sum{i}") + code.steps[0]) for i, code in enumerate(codes, 1)]
    return _network(grid, encode, layer, decode, grid.cells - 1 + grid.tokens + len(table), sharpness)


def lean_stream_block(
    grid: Grid,
    table: Sequence[Vector],
    num_bits: int,
    exact: bool = False,
    epsilon: Number | None = None,
    sharpness: Number | None = None,
) -> LoopedNetwork:
    """Weight-tied, 3d+7 rows, width 7d+12 (9d+14 if `exact`), n+N+q(n^(Nd)-1) loops; error span 2^-q per coordinate."""
    codes = [StreamCode.of(column, num_bits) for column in zip(*table, strict=True)]
    encode = start_rows(grid, "closed", per_output=("beta", "out"))
    encode["closed"] = Form(const=1)
    layer = FeedForward(tuple(encode))
    count_thresholds(layer, grid, trifling(grid.cells) if epsilon is None else epsilon)
    clock = _open_in_step_two(layer, grid)
    _number_the_others(layer, grid, closed=row("closed"))

    quiet = grid.cells + grid.tokens - 1  # the stream's first digit arrives in this loop
    betas, outs = [[f"{name}{i}" for i in range(1, grid.dim + 1)] for name in ("beta", "out")]
    sample(layer, betas, outs, num_bits * _others_id(grid) - (clock - 1 - quiet), num_bits, exact)
    for beta, code in zip(betas, codes, strict=True):
        encode[beta] = Form(const=code.stream() / 2**quiet)
        shift_left(layer, beta, num_bits * len(table) + quiet)
    loops = quiet + num_bits * (len(table) - 1) + 1
    return _network(grid, encode, layer, decode_stream(codes), loops, sharpness)


def lean_horner_block(
    grid: Grid,
    table: Sequence[Vector],
    num_bits: int,
    epsilon: Number | None = None,
    sharpness: Number | None = None,
) -> LoopedNetwork:
    """Weight-tied with small weights, 4d+8 rows, width 8d+15, n+N+q n^(Nd) loops; every q-bit label exactly."""
    codes = [StreamCode.of(column, num_bits) for column in zip(*table, strict=True)]
    encode = start_rows(grid, "closed", "window", per_output=("beta", "bit", "out"))
    encode["closed"] = Form(const=1)
    layer = FeedForward(tuple(encode))
    count_thresholds(layer, grid, trifling(grid.cells) if epsilon is None else epsilon)
    clock = _open_in_step_two(layer, grid)
    _number_the_others(layer, grid, closed=row("closed"))
    quiet = grid.cells + grid.tokens - 1
    read_by_horner(layer, num_bits * _others_id(grid) - (clock - 1 - quiet), grid.dim, num_bits)
    encode |= {f"beta{i}": Form(const=horner_start(code, quiet)) for i, code in enumerate(codes, 1)}
    loops = quiet + num_bits * len(table) + 1
    return _network(grid, encode, layer, decode_horner(codes), loops, sharpness)


def lean_multiset_block(
    grid: Grid,
    table: Sequence[Vector],
    num_bits: int,
    epsilon: Number | None = None,
    sharpness: Number | None = None,
) -> LoopedNetwork:
    """Weight-tied and exact for equal tokens too: a counting head, 3d+9 rows, width 9d+16, two heads.

    A round's digit is (fetched id, tokens gone before); the own round's count goes to the row `own`. `table` holds the
    labels of ids ((s N + own) B + z), s in base B(N+1): see `ids.others_multiset_id`.
    """
    base, tokens, radix = grid.base, grid.tokens, grid.base * (grid.tokens + 1)
    codes = [StreamCode.of(column, num_bits) for column in zip(*table, strict=True)]
    encode = start_rows(grid, "closed", "count", "own", per_output=("beta", "out"))
    encode["closed"] = Form(const=1)
    layer = FeedForward(tuple(encode))
    count_thresholds(layer, grid, trifling(grid.cells) if epsilon is None else epsilon)
    clock = _open_in_step_two(layer, grid)
    shut, bound = row("closed"), radix**tokens + radix
    away = row("id") + row("gone") - row("best")  # 0 in the own round, at most -1 in every other
    layer.add("gone", -4 * base * layer.relu(away + HALF - (base + 1) * shut))
    longer = (radix - 1) * row("seq") + row("best") + base * row("count") - bound * shut
    layer.add("seq", layer.relu(longer) - layer.relu(longer + bound * away))
    layer.add("own", layer.relu(row("count") + tokens * away - 2 * tokens * shut))
    layer.add("best", -layer.relu(row("best")))
    layer.add("count", -layer.relu(row("count")))

    quiet = grid.cells + tokens - 1
    index = (tokens * row("seq") + row("own")) * base + row("id")
    betas, outs = [[f"{name}{i}" for i in range(1, grid.dim + 1)] for name in ("beta", "out")]
    sample(layer, betas, outs, num_bits * index - (clock - 1 - quiet), num_bits, exact=True)
    for beta, code in zip(betas, codes, strict=True):
        encode[beta] = Form(const=code.stream() / 2**quiet)
        shift_left(layer, beta, num_bits * len(table) + quiet)
    loops = quiet + num_bits * (len(table) - 1) + 1
    return _network(grid, encode, layer, decode_stream(codes), loops, sharpness, (_counting_head(grid),))


def modulated_sqrt_block(
    grid: Grid,
    table: Sequence[Vector],
    num_bits: int,
    exact: bool = False,
    epsilon: Number | None = None,
    sharpness: Number | None = None,
) -> LoopedNetwork:
    """Time-modulated, 3d+8 rows, width 7d+8 (9d+10 if `exact`), n+N-1+K1+q(K2-1) loops with K1 K2 >= n^(Nd)."""
    codes = [StreamCode.of(column, num_bits) for column in zip(*table, strict=True)]
    split = Grouping.best(len(table), num_bits)
    encode = start_rows(grid, "group", "gate", per_output=("beta", "out"))
    encode["gate"] = Form(const=1)
    encode |= {f"beta{i}": Form(const=split.streams(code)[0]) for i, code in enumerate(codes, 1)}
    layer = FeedForward(tuple(encode))
    count_thresholds(layer, grid, trifling(grid.cells) if epsilon is None else epsilon)
    _number_the_others(layer, grid)
    load_and_sample(layer, _others_id(grid), split, grid.dim, exact)

    modulation, schedule = step_schedule(grid, split.thresholds())
    modulation |= split.modulation(codes, lead=grid.cells - 1 + grid.tokens) | {"c": differences(schedule)}
    return _network(grid, encode, layer, decode_stream(codes), len(schedule), sharpness, modulation=modulation)


def modulated_minimal_block(
    grid: Grid, known: Mapping[int, Vector], epsilon: Number | None = None, sharpness: Number | None = None
) -> LoopedNetwork:
    """Time-modulated, 2d+7 rows, width 2d+6, two heads, n-1+N+R-1 loops for the R realizable ids in `known`.

    The second head counts the tokens fetched so far, so that equal tokens are told apart from different ones: exact on
    every cell.
    """
    base, radix = grid.base, grid.base * (grid.tokens + 1)
    ids = sorted(known)
    encode = start_rows(grid, "count", per_output=("out",))
    encode |= {f"out{i}": Form(const=y) for i, y in enumerate(known[ids[0]], 1)}
    layer = FeedForward(tuple(encode))
    count_thresholds(layer, grid, trifling(grid.cells) if epsilon is None else epsilon)
    layer.add("gone", -4 * base * layer.relu(row("id") + row("gone") - row("best") + HALF))
    read_digits_and_labels(layer, grid, radix)
    modulation, schedule = label_schedule(grid, ids, known)
    decode = [row(f"out{i}") for i in range(1, grid.dim + 1)]
    return _network(grid, encode, layer, decode, len(schedule), sharpness, (_counting_head(grid),), modulation)


def read_digits_and_labels(layer: FeedForward, grid: Grid, radix: int) -> None:
    """Append (fetched token, count) to the sequence id as one digit; add eta to every output once its id is reached."""
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
    """eta(t) that walks through the realizable ids and adds the difference of their labels, and the thresholds."""
    modulation, schedule = step_schedule(grid, [k - QUARTER for k in ids[1:]])
    lead = grid.cells - 1 + grid.tokens
    for i, labels in enumerate(zip(*(known[k] for k in ids), strict=True), 1):
        modulation[f"out{i}"] = [*[0] * lead, *[b - a for a, b in pairwise(labels)]]
    modulation["c"] = differences(schedule)
    return modulation, schedule


def _counting_head(grid: Grid) -> Head:
    """Keys and queries are zero: the mean over all tokens of N where a token is gone and 0 where it is not."""
    return Head(Fraction(-grid.tokens, 2 * grid.base) * row("gone"), Form(), Form(), "count")


def step_schedule(grid: Grid, memory: Sequence[Number]) -> tuple[dict[str, list[Number]], list[Number]]:
    """eta(t) that runs Step 1, then Step 2, and the row c loop by loop: k/n, idle, then the memorizer's thresholds."""
    first, second, third = grid.cells - 1, grid.tokens, len(memory)
    in_step_two: list[Number] = [*[0] * first, *[1] * second, *[0] * third]
    modulation: dict[str, list[Number]] = {
        "id": [*[1] * first, *[0] * (second + third)],
        "gone": in_step_two,
        "seq": in_step_two,
    }
    thresholds: list[Number] = [Fraction(k, grid.cells) for k in range(1, grid.cells)]
    return modulation, [*thresholds, *[0] * second, *memory]


# ---- the sharpness lambda at which softmax leaves every output unchanged ------------------------------------------


def sharpness(variant: str, grid: Grid, num_bits: int) -> Fraction:
    """A lambda for which the contextual id (or the stream's clock) is off by at most 1/4; see docs/theory.md.

    A fetch is off by at most err = (N-1) exp(-lambda); the logarithm's argument is 4 times what err is multiplied by.
    """
    base, tokens, sequences = grid.base, grid.tokens, grid.num_sequences
    digits = (sequences - 1) // max(base - 1, 1)  # 1 + B + ... + B^(N-1)
    radix = base * (tokens + 1)
    amplification = {
        "paper": 2 * digits + grid.cells - 1,
        "modulated": digits,
        "lean": 2 * sequences * (sequences + base + 2),
        "lean-stream": num_bits * sequences * (sequences + base + 2),
        "lean-horner": num_bits * sequences * (sequences + base + 2),
        "lean-multiset": 2 * num_bits * base * tokens * radix ** (tokens - 1) * (radix**tokens + 3 * radix),
        "modulated-sqrt": num_bits * sequences * (sequences + base + 2),
        "modulated-minimal": 2 * (1 + 2 * base * tokens) * radix**tokens // (radix - 1) + 1,
    }[variant]
    # The weights are computed in double precision, and what that loses is multiplied like the rest.
    require(
        amplification * tokens <= 2**50,
        f"softmax of {variant} with {tokens} tokens and {grid.cells} cells multiplies an error of its weights by "
        f"{float(amplification):.2g}: expected at most {2**50 // tokens:.2g}, which double precision can bear",
    )
    exact = max(log(4 * max(tokens - 1, 1) * amplification), 1.0)
    return Fraction(int(exact * 64) + 1, 64)
