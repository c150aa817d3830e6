"""The composed single block of Theorem "rate" (17d+9 rows, two heads, width 49d+25, n+N+K loops, K = 2 n^((N+1)d)).

Step 1, 2 and 3 live in rows of their own; a clock and impulses hand the result of one step to the next. `modulated` is
the same composition with the memorizer of Appendix B (9d+6 rows, one head, width 21d+17, n+N+n^((N+1)d) loops).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from math import ceil

from looped.theory.faults import require_known
from looped.theory.gadgets import Pulse
from looped.theory.grid import Grid, Vector
from looped.theory.lemmas import contextual, memorizer, quantizer
from looped.theory.network import HALF, FeedForward, Form, Head, LoopedNetwork, Number, row, total

INDEX_SHIFT = Fraction(1, 4)  # centres the id between two steps: an id off by up to 1/4 then changes nothing
FAULTS = {
    **quantizer.FAULTS,
    **contextual.FAULTS,
    **memorizer.FAULTS,
    "first drift": "the key row has fallen by M epsilon when Step 2 starts and is not lifted back",
    "second drift": "the index row has fallen by 1 in every loop when Step 3 starts and is not lifted back",
    "no index shift": "the id is handed over without the shift by 1/4",
}


def token_id(grid: Grid) -> Form:
    """z = sum of n^(d-i) * cell_i, read off the quantizer's rows."""
    return total([grid.cells ** (grid.dim - i) * row(f"cell{i}") for i in range(1, grid.dim + 1)])


class _Composition:
    """The clock, Step 1 and Step 2 with the hand-over between them; what both blocks share."""

    def __init__(
        self, grid: Grid, memory_rows: Sequence[str], with_digit: bool, epsilon: Number, printed: Collection[str]
    ):
        self.grid = grid
        self.context_rows = contextual.COROLLARY_ROWS if with_digit else contextual.LEMMA_ROWS
        self.encode: dict[str, Form] = {"clock": Form()}
        for i in range(1, grid.dim + 1):
            self.encode |= quantizer.encode_coordinate(i, printed)
        self.encode |= {name: Form() for name in (*self.context_rows, *memory_rows)}
        self.layer = layer = FeedForward(tuple(self.encode))
        layer.add("clock", 1)
        for i in range(1, grid.dim + 1):
            quantizer.quantize_coordinate(layer, i, grid.cells, epsilon, printed)
        contextual.select_largest(layer, grid.base, with_digit, printed)

        start = contextual.encode_context(with_digit)
        quantized = {"z": token_id(grid), "digit_in": row(f"cell{grid.dim}")}
        pulse = Pulse(layer, row("clock"), grid.cells - 1, 4 * grid.base + 4)
        # in loop 0 the empty key row ties with the empty fetch and is deselected once: by M * (1/2)
        lift = 0 if "first drift" in printed else contextual.deselection(grid.base, printed) * HALF
        for name in self.context_rows:
            layer.add(name, pulse(start[name].after(quantized) + (lift if name == "key" else 0)))

    def hand_over(
        self, start: Mapping[str, Form], contextual_id: Form, num_ids: int, idle: Mapping[str, str | None]
    ) -> None:
        """At loop n+N add the memorizer's start to its rows.

        An `idle` row needs no units of its own: it starts at 0, is never read, or starts like the row that is named for
        it. Its units clear Step 2, which would otherwise go on multiplying the finished sequence id by B in every loop.
        """
        grid, layer = self.grid, self.layer
        theta = grid.cells + grid.tokens
        # an impulse hands over what is below its bound: ids, times, and a memorizer's first label, however large
        constants = max(abs(form.const) for form in start.values())
        pulse = Pulse(layer, row("clock"), theta, max(2 * num_ids + 2 * (theta + 2), 2 * constants))
        spare = [("id", row("id")), ("seq", grid.base * row("seq") + row("best"))]
        started: dict[str, Form] = {}
        for name, form in start.items():
            if name in idle and spare:
                finished, content = spare.pop(0)
                layer.add(finished, -pulse(content))
                twin = idle[name]
                if twin is not None:
                    layer.add(name, started[twin])
            else:
                started[name] = pulse(form.after({"k": contextual_id}))
                layer.add(name, started[name])

    def network(
        self, heads: tuple[Head, ...], decode: Sequence[Form], memory_loops: int, softmax: bool, **more: Mapping
    ) -> LoopedNetwork:
        inputs = tuple(f"x{i}" for i in range(1, self.grid.dim + 1))
        loops = (self.grid.cells - 1) + 1 + self.grid.tokens + 1 + memory_loops
        return LoopedNetwork(inputs, self.encode, self.layer, tuple(decode), loops, heads, softmax=softmax, **more)


def paper_block(
    grid: Grid,
    table: Sequence[Vector],
    epsilon: Number | None = None,
    sharpness: Number | None = None,
    printed: Collection[str] = (),
) -> LoopedNetwork:
    """The theorem's block for the labels `table[k]` of all K contextual ids; softmax if a sharpness is given."""
    require_known(printed, FAULTS)
    epsilon = quantizer.trifling(grid.cells) if epsilon is None else epsilon
    codes = [memorizer.DifferenceCode.of(column, printed) for column in zip(*table, strict=True)]
    shift = 0 if "no index shift" in printed else INDEX_SHIFT
    start: dict[str, Form] = {}
    for i, code in enumerate(codes, 1):
        start |= memorizer.encode_code(i, code, shift, printed)
    composed = _Composition(grid, tuple(start), True, epsilon, printed)
    for i in range(1, grid.dim + 1):
        memorizer.memorize_code(composed.layer, i, len(table) - 1, printed)
    if "second drift" not in printed:
        for name in start:
            if name.endswith(".left"):  # it has lost 1 in each of the loops 0..n+N
                start[name] = start[name] + (grid.cells + grid.tokens + 1)
    contextual_id = 2 * grid.num_sequences * row("id") + contextual.sequence_id(True, printed)
    composed.hand_over(start, contextual_id, len(table), idle={name: None for name in start if name.endswith(".sum")})
    heads = contextual.selection_heads(True, 1 if sharpness is None else sharpness, printed)
    decode = [memorizer.decode_code(i, code) for i, code in enumerate(codes, 1)]
    return composed.network(heads, decode, len(table) - 1, sharpness is not None)


def modulated_block(
    grid: Grid, table: Sequence[Vector], epsilon: Number | None = None, sharpness: Number | None = None
) -> LoopedNetwork:
    """Appendix B composed: ids k = z B^N + s need no dummies and no second head, and every label comes out exactly."""
    epsilon = quantizer.trifling(grid.cells) if epsilon is None else epsilon
    codes = [memorizer.RatioCode.of(column) for column in zip(*table, strict=True)]
    start: dict[str, Form] = {}
    for i, code in enumerate(codes, 1):
        start |= memorizer.encode_ratio(i, code)
        start[f"left{i}"] = start[f"left{i}"] + 1  # its own -1 acts in the hand-over loop too
    composed = _Composition(grid, tuple(start), False, epsilon, ())
    lead = grid.cells + grid.tokens
    modulation: dict[str, list[Number]] = {}
    for i, code in enumerate(codes, 1):
        memorizer.memorize_ratio(composed.layer, i, 2 ** ceil(2 * code.bound).bit_length())  # room for a softmax id
        ratios, outs = code.modulation()
        # nothing moves before the hand-over; in its loop the memorizer's own update of empty rows is zero
        modulation[f"left{i}"] = [*[0] * lead, *[1] * len(table)]
        modulation[f"y{i}"] = [*[0] * lead, 1, *ratios]
        modulation[f"out{i}"] = [*[0] * lead, 1, *outs]
    idle = {"k1'": None, "out1": "y1"}  # Appendix B never reads its row k, and out starts where y does
    composed.hand_over(start, grid.num_sequences * row("id") + row("seq"), len(table), idle)
    heads = contextual.selection_heads(False, 1 if sharpness is None else sharpness)
    decode = [row(f"out{i}") - code.shift for i, code in enumerate(codes, 1)]
    return composed.network(heads, decode, len(table) - 1, sharpness is not None, modulation=modulation)
