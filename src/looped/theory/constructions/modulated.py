"""Time-modulated blocks: the factors eta(t) of every loop carry the labels."""

from math import ceil, comb
from typing import final

from looped.theory.constructions import steps
from looped.theory.constructions.base import Built, Construction
from looped.theory.constructions.paper import Composition, filled_labels
from looped.theory.grid import Grid, Labels, label, labels_by_id, lean_id, lean_labels, multiset_id, plain_id
from looped.theory.lemmas import contextual, memorizer
from looped.theory.lemmas.streams import Grouping, StreamCode, decode_stream, differences, load_and_sample
from looped.theory.network import HALF, FeedForward, Form, Number, row


@final
class Modulated(Construction):
    """Appendix B composed like the paper's block: 9d+6 rows, one head, width 21d+17, n+N+n^((N+1)d) loops; exact.

    Ids k = z B^N + s need neither dummies nor a second head.
    """

    name = "modulated"
    hand_over_loops = 1

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        self.num_ids, self.code_bits = grid.base * grid.num_sequences, 0
        self.loops = grid.cells + grid.tokens + self.num_ids
        self.softmax_gain = grid.repunit

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid = self.grid
        table = filled_labels(self, labels, plain_id)
        codes = [memorizer.RatioCode.of(column) for column in zip(*table, strict=True)]
        start: dict[str, Form] = {}
        for i, code in enumerate(codes, 1):
            start |= memorizer.encode_ratio(i, code)
            start[f"left{i}"] = start[f"left{i}"] + 1  # the memorizer's own -1 acts in the hand-over loop too
        composed = Composition(grid, tuple(start), False, epsilon)
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
        network = composed.network(heads, decode, self.loops, sharpness is not None, modulation=modulation)
        return Built(network, (), lambda sequence, z: label(labels, sequence, z))


@final
class ModulatedMinimal(Construction):
    """2d+7 rows, two heads, width 2d+6, n-1+N+R-1 loops for R = B C(B+N-2, N-1) reachable ids; exact on every cell.

    The second head counts the tokens fetched so far, which distinguishes equal tokens from different ones.
    """

    name = "modulated-minimal"
    counts_duplicates = True

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        self.radix = radix = grid.base * (grid.tokens + 1)
        self.num_ids, self.code_bits = grid.base * comb(grid.base + grid.tokens - 2, grid.tokens - 1), 0
        self.loops = grid.cells - 1 + grid.tokens + self.num_ids - 1
        self.softmax_gain = 2 * (1 + 2 * grid.base * grid.tokens) * radix**grid.tokens // (radix - 1) + 1

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid = self.grid
        known = labels_by_id(grid, labels, multiset_id)
        ids = sorted(known)
        encode = steps.start_rows(grid, "count", per_output=("out",))
        encode |= {f"out{i}": Form(const=y) for i, y in enumerate(known[ids[0]], 1)}
        layer = FeedForward(tuple(encode))
        steps.count_thresholds(layer, grid, epsilon)
        layer.add("gone", -4 * grid.base * layer.relu(row("id") + row("gone") - row("best") + HALF))
        steps.read_digits_and_labels(layer, grid, self.radix)
        modulation, schedule = steps.label_schedule(grid, ids, known)
        decode = [row(f"out{i}") for i in range(1, grid.dim + 1)]
        heads = (steps.counting_head(grid),)
        network = steps.assemble(grid, encode, layer, decode, len(schedule), sharpness, heads, modulation)
        return Built(network, (), lambda sequence, z: label(labels, sequence, z))


@final
class ModulatedSqrt(Construction):
    """3d+8 rows, one head, width 7d+8, n+N-1+K1+q(K2-1) loops with K1 K2 >= n^(Nd); error span 2^-q per coordinate."""

    name = "modulated-sqrt"
    streams = True

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        self.num_ids = grid.num_sequences
        self.grouping = Grouping.best(self.num_ids, num_bits)
        self.loops = grid.cells - 1 + grid.tokens + self.grouping.loops
        self.code_bits = num_bits * self.grouping.group
        self.softmax_gain = num_bits * grid.num_sequences * (grid.num_sequences + grid.base + 2)

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid, split = self.grid, self.grouping
        codes = [StreamCode.of(column, self.num_bits) for column in zip(*lean_labels(grid, labels), strict=True)]
        encode = steps.start_rows(grid, "group", "gate", per_output=("beta", "out"))
        encode["gate"] = Form(const=1)
        encode |= {f"beta{i}": Form(const=split.streams(code)[0]) for i, code in enumerate(codes, 1)}
        layer = FeedForward(tuple(encode))
        steps.count_thresholds(layer, grid, epsilon)
        steps.number_other_tokens(layer, grid)
        load_and_sample(layer, steps.other_tokens_id(grid), split, grid.dim, exact=False)
        modulation, schedule = steps.step_schedule(grid, split.thresholds())
        modulation |= split.modulation(codes, lead=grid.cells - 1 + grid.tokens) | {"c": differences(schedule)}
        network = steps.assemble(
            grid, encode, layer, decode_stream(codes), self.loops, sharpness, modulation=modulation
        )
        return Built(
            network, codes, lambda s, z: [code.value(lean_id(grid, s, z), False, split.group) for code in codes]
        )
