"""A time-modulated block for short floating-point formats: exact in bfloat16, float16 and float32."""

from collections.abc import Sequence
from fractions import Fraction
from math import comb
from typing import ClassVar, final

from looped.theory.constructions import steps
from looped.theory.constructions.base import Built, Construction
from looped.theory.grid import Grid, Labels, TokenIds, Vector, label, selection_rounds
from looped.theory.lemmas.streams import differences
from looped.theory.network import HALF, FeedForward, Form, Number, row, total

FLOAT32_BITS = 24  # of the sums in attention, for shorter formats too


@final
class ModulatedDigits(Construction):
    """3d+6N+5 rows, two heads, width 3d+6N+4, n+N+R+1 loops for R = B C(B+N-2, N-1) reachable ids; exact on every cell.

    An id stays split into 2N digits: the own token, the N fetched ones, and the number of tokens that were fetched
    before each round but the first. eta(t) steps through the digits of all reachable ids. The label of an id is added
    to the output if no digit differs. All numbers except the labels have few binary digits, and no sum of large numbers
    has to be small: rounding changes neither a zero nor the sign of anything else.
    """

    name: ClassVar[str] = "modulated-digits"
    counts_duplicates: ClassVar[bool] = True
    hand_over_loops: ClassVar[int] = 1  # a threshold is counted one loop after the comparison
    trifling_exponent: ClassVar[int] = 8  # then no bfloat16 number in [0, 1) is trifling
    starts_at_zero: ClassVar[bool] = True

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        self.num_ids, self.code_bits = grid.base * comb(grid.base + grid.tokens - 2, grid.tokens - 1), 0
        self.loops = grid.cells + grid.tokens + self.num_ids + 1
        self.softmax_gain = 4 * grid.base**2 * grid.tokens * (grid.tokens + 1)

    def rounds_only_labels(self, digits: int) -> bool:
        """Return True if all numbers but the labels fit into so many digits, and sums over tokens into float32's."""
        base, tokens, most = self.grid.base, self.grid.tokens, 2 ** (digits - 1)
        fits = base.bit_count() == 1 and max(base, tokens) <= most
        return fits and tokens * max(base, tokens) <= 2 ** max(digits, FLOAT32_BITS)

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid, entries = self.grid, _entries(self.grid, labels)
        xs, belows, outs = steps.per_coordinate(grid, "x", "below", "out")
        digits = _digit_names(grid)
        start = dict(zip(digits, entries[0][0], strict=True))
        encode = {x: row(x) for x in xs} | {"c": Form(const=Fraction(1, grid.cells))}
        encode |= {name: Form() for name in (*belows, "gone", "best", "count", *digits)} | {"one": Form(const=1)}
        encode |= {f"entry.{name}": Form(const=digit) for name, digit in start.items()}
        encode |= {name: Form() for name in (*(f"off.{name}" for name in digits), *outs)}
        layer = FeedForward(tuple(encode))
        _count_thresholds(layer, grid, epsilon)
        _record_round(layer, grid)
        _compare_digits(layer, digits, outs)
        decode, heads = [row(out) for out in outs], (steps.counting_head(grid),)
        modulation = self._modulation(digits, entries, outs)
        network = steps.assemble(grid, encode, layer, decode, self.loops, sharpness, heads, modulation)
        return Built(network, (), lambda sequence, z: label(labels, sequence, z))

    def _modulation(
        self, digits: Sequence[str], entries: Sequence[tuple[list[int], Vector]], outs: Sequence[str]
    ) -> dict[str, list[Number]]:
        cells, rounds, num_ids = self.grid.cells, self.grid.tokens, len(entries)
        lead = cells + rounds

        def scale(first: int, values: Sequence[Number]) -> list[Number]:
            """Return eta of one row: `values` from loop `first` on, 0 elsewhere."""
            return [*[0] * first, *values, *[0] * (self.loops - first - len(values))]

        modulation = {"c": scale(0, [Fraction(1, cells)] * (cells - 2)), "id": scale(1, [1] * (cells - 1))}
        modulation["gone"] = scale(cells, [1] * rounds)
        modulation |= {f"fetched{j}": scale(cells + j - 1, [1]) for j in range(1, rounds + 1)}
        modulation |= {f"before{j}": scale(cells + j - 1, [1]) for j in range(2, rounds + 1)}
        for name, values in zip(digits, zip(*(entry for entry, _ in entries), strict=True), strict=True):
            modulation[f"entry.{name}"] = scale(lead, differences(values))
            modulation[f"off.{name}"] = scale(lead, [1] * num_ids)
        for out, values in zip(outs, zip(*(values for _, values in entries), strict=True), strict=True):
            modulation[out] = scale(lead + 1, values)
        return modulation


def _digit_names(grid: Grid) -> list[str]:
    rounds = range(1, grid.tokens + 1)
    return ["id", *(f"fetched{j}" for j in rounds), *(f"before{j}" for j in rounds[1:])]


def digits_of(grid: Grid, sequence: TokenIds, token_id: int) -> list[int]:
    """Return the own token, the fetched tokens, and the tokens fetched before each round but the first (always 0)."""
    fetched, before = zip(*selection_rounds(sequence, grid.tokens), strict=True)
    return [token_id, *fetched, *before[1:]]


def _entries(grid: Grid, labels: Labels) -> list[tuple[list[int], Vector]]:
    """Return the digits and the label of every reachable id, in ascending order."""
    pairs = [(digits_of(grid, s, z), label(labels, s, z)) for s in labels for z in set(s)]
    return sorted(pairs, key=lambda pair: pair[0])


def _count_thresholds(layer: FeedForward, grid: Grid, epsilon: Number) -> None:
    """Let below_i be 0 if x_i has passed the threshold c, else at least 1. One loop later add n^(d-i) to id if it is 0.

    Thresholds only grow, and so does below_i: its old value, which is subtracted, never exceeds the new one.
    """
    for i in range(1, grid.dim + 1):
        below = row(f"below{i}")
        layer.add(f"below{i}", layer.relu((row("c") - row(f"x{i}")) / epsilon) - layer.relu(below))
        layer.add("id", grid.cells ** (grid.dim - i) * layer.relu(1 - below))
    layer.add("c", 1)


def _record_round(layer: FeedForward, grid: Grid) -> None:
    """Deselect the fetched token. eta(t) opens the rows that record its id and the number of tokens fetched before."""
    layer.add("gone", -4 * grid.base * layer.relu(row("id") + row("gone") - row("best") + HALF))
    fetched, before = layer.relu(row("best")), layer.relu(row("count"))
    layer.add("best", -fetched)
    layer.add("count", -before)
    for j in range(1, grid.tokens + 1):
        layer.add(f"fetched{j}", fetched)
        if j > 1:
            layer.add(f"before{j}", before)


def _compare_digits(layer: FeedForward, digits: Sequence[str], outs: Sequence[str]) -> None:
    """Let off be 0 if a digit is within 1/4 of the entry's, and more than 1 if it differs by 1 or more.

    One loop later add eta to the outputs if all are 0. Each digit has a row of its own, because the sum of all
    differences may be too long for the format, and clearing it would then leave nothing of a small new value.
    """
    for name in digits:
        difference = 2 * (row(name) - row(f"entry.{name}"))
        away = layer.relu(difference - HALF) + layer.relu(-difference - HALF)
        layer.add(f"off.{name}", away - layer.relu(row(f"off.{name}")))
        layer.add(f"entry.{name}", 1)
    found = layer.relu(1 - total([row(f"off.{name}") for name in digits]))
    for out in outs:
        layer.add(out, found)
