"""The composed single block of Theorem "rate": 17d+9 rows, two heads, width 49d+25, n+N+K loops, K = 2 n^((N+1)d).

Each of Steps 1, 2 and 3 has its own rows. A clock and impulses hand the result of one step to the next.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import sqrt
from typing import final

from looped.theory.constructions.base import Built, Construction
from looped.theory.gadgets import Pulse
from looped.theory.grid import Grid, Labels, TokenIds, Vector, fill, labels_by_id, paper_id
from looped.theory.lemmas import contextual, memorizer, quantizer
from looped.theory.lemmas.memorizer import DifferenceCode
from looped.theory.network import HALF, QUARTER, FeedForward, Form, Head, LoopedNetwork, Number, row, total
from looped.theory.targets import ModulusFunction

FAULTS = {
    **quantizer.FAULTS,
    **contextual.FAULTS,
    **memorizer.FAULTS,
    "first drift": "the key row has fallen by M epsilon when Step 2 starts and is not lifted back",
    "second drift": "the index row has fallen by 1 in every loop when Step 3 starts and is not lifted back",
    "no index shift": "the id is handed over without the shift by 1/4",
}


@final
class Paper(Construction):
    """The theorem's own block, weight-tied. `printed` names the faults of the paper to build in."""

    name = "paper"
    hand_over_loops = 1

    def __init__(self, grid: Grid, num_bits: int = 8, printed: Collection[str] = ()):
        super().__init__(grid, num_bits)
        self.printed = printed
        self.num_ids = self.code_bits = 2 * grid.base * grid.num_sequences
        self.loops = grid.cells + grid.tokens + self.num_ids
        self.softmax_gain = 2 * grid.repunit + grid.cells - 1

    def jump_bound(self, omega: ModulusFunction) -> float:
        grid, n = self.grid, self.grid.cells
        delta, carry = 1 / n, (n - 1) / (n + 1)
        token = omega("token", delta * sqrt(grid.dim))
        if grid.tokens == 1:
            return carry * token
        context = omega("context", delta * sqrt((grid.tokens - 1) * grid.dim))
        changed = (n - 1) / (2 * (grid.tokens - 1) * grid.base ** (grid.tokens - 1) + 2)
        return max(omega("context", delta), carry * context, changed * (token + context))

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid, printed = self.grid, self.printed
        columns = list(zip(*filled_labels(self, labels, paper_id), strict=True))
        correct = [DifferenceCode.of(column) for column in columns]
        codes = [DifferenceCode.of(column, printed) for column in columns]
        # the shift centres the id between two steps, so that an id off by up to 1/4 changes nothing
        shift = 0 if "no index shift" in printed else QUARTER
        start: dict[str, Form] = {}
        for i, code in enumerate(codes, 1):
            start |= memorizer.encode_code(i, code, shift, printed)
        composed = Composition(grid, tuple(start), True, epsilon, printed)
        for i in range(1, grid.dim + 1):
            memorizer.memorize_code(composed.layer, i, self.num_ids - 1, printed)
        if "second drift" not in printed:
            for name in start:
                if name.endswith(".left"):  # this row has lost 1 in each of the loops 0..n+N
                    start[name] = start[name] + (grid.cells + grid.tokens + 1)
        contextual_id = 2 * grid.num_sequences * row("id") + contextual.sequence_id(True, printed)
        idle = {name: None for name in start if name.endswith(".sum")}
        composed.hand_over(start, contextual_id, self.num_ids, idle)
        heads = contextual.selection_heads(True, 1 if sharpness is None else sharpness, printed)
        decode = [memorizer.decode_code(i, code) for i, code in enumerate(codes, 1)]
        network = composed.network(heads, decode, self.loops, sharpness is not None)
        return Built(network, correct, lambda sequence, z: [c.value(paper_id(grid, sequence, z)) for c in correct])


def filled_labels(
    construction: Construction, labels: Labels, numbering: Callable[[Grid, TokenIds, int], int]
) -> list[Vector]:
    """Return the labels of all contextual ids, with a linear fill between the ids that inputs reach."""
    known = labels_by_id(construction.grid, construction.served(labels), numbering)
    # with fewer cells than tokens no input reaches an id; the output must still lie in the range of f
    any_label = next(iter(labels.values()))[0]
    return fill(known or {0: list(any_label)}, construction.num_ids)


class Composition:
    """The clock, Step 1, Step 2 and the hand-over between them, as the paper composes them."""

    def __init__(
        self, grid: Grid, memory_rows: Sequence[str], with_digit: bool, epsilon: Number, printed: Collection[str] = ()
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
        token_id = total([grid.cells ** (grid.dim - i) * row(f"cell{i}") for i in range(1, grid.dim + 1)])
        quantized = {"z": token_id, "digit_in": row(f"cell{grid.dim}")}
        pulse = Pulse(layer, row("clock"), grid.cells - 1, 4 * grid.base + 4)
        # in loop 0 the empty key row ties with the empty fetch and is deselected once, by M * (1/2)
        lift = 0 if "first drift" in printed else contextual.deselection(grid.base, printed) * HALF
        for name in self.context_rows:
            layer.add(name, pulse(start[name].after(quantized) + (lift if name == "key" else 0)))

    def hand_over(
        self, start: Mapping[str, Form], contextual_id: Form, num_ids: int, idle: Mapping[str, str | None]
    ) -> None:
        """Add the memorizer's start to its rows in loop n+N.

        An `idle` row needs no hidden units for its start: it starts at 0, is never read, or starts like the row named
        for it. The units saved clear the rows of Step 2, which would otherwise multiply the sequence id by B in every
        loop.
        """
        grid, layer = self.grid, self.layer
        theta = grid.cells + grid.tokens
        # the bound of the impulse must exceed every handed value: ids, times, and first labels of any size
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
        self, heads: tuple[Head, ...], decode: Sequence[Form], loops: int, softmax: bool, **more: Mapping
    ) -> LoopedNetwork:
        """Return the composed network."""
        inputs = tuple(f"x{i}" for i in range(1, self.grid.dim + 1))
        return LoopedNetwork(inputs, self.encode, self.layer, tuple(decode), loops, heads, softmax=softmax, **more)
