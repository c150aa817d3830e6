"""Weight-tied blocks that store labels with q bits each, one after another in one number."""

from typing import final

from looped.theory.constructions import steps
from looped.theory.constructions.base import Built, Construction
from looped.theory.gadgets import shift_left
from looped.theory.grid import Grid, Labels, lean_id, lean_labels, multiset_labels, others_multiset_id
from looped.theory.lemmas.horner import decode_horner, horner_start, read_by_horner
from looped.theory.lemmas.streams import StreamCode, decode_stream, sample
from looped.theory.network import FeedForward, Form, Number, row


class _Streams(Construction):
    """The cost of a block that numbers the other tokens and shifts one bit per loop out of its stream."""

    streams = True

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        self.quiet_loops = grid.cells + grid.tokens - 1  # zero bits in front: the first digit arrives in this loop
        self.num_ids = grid.num_sequences
        self.loops = self.quiet_loops + num_bits * (self.num_ids - 1) + 1
        self.code_bits = num_bits * self.num_ids
        self.softmax_gain = self.code_bits * (grid.num_sequences + grid.base + 2)


@final
class LeanStream(_Streams):
    """Weight-tied, 3d+7 rows, one head, width 7d+12, n+N+q(n^(Nd)-1) loops; error span 2^-q per coordinate."""

    name = "lean-stream"

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid, q = self.grid, self.num_bits
        codes = [StreamCode.of(column, q) for column in zip(*lean_labels(grid, labels), strict=True)]
        encode = steps.start_rows(grid, "closed", per_output=("beta", "out"))
        layer = FeedForward(tuple(encode))
        steps.count_thresholds(layer, grid, epsilon)
        clock = steps.open_in_step_two(layer, grid)
        steps.number_other_tokens(layer, grid, closed=row("closed"))

        betas, outs = steps.per_coordinate(grid, "beta", "out")
        sample(layer, betas, outs, q * steps.other_tokens_id(grid) - (clock - 1 - self.quiet_loops), q, exact=False)
        for beta, code in zip(betas, codes, strict=True):
            encode[beta] = Form(const=code.stream() / 2**self.quiet_loops)
            shift_left(layer, beta, self.code_bits + self.quiet_loops)
        network = steps.assemble(grid, encode, layer, decode_stream(codes), self.loops, sharpness)
        return Built(network, codes, lambda s, z: [code.value(lean_id(grid, s, z), exact=False) for code in codes])


@final
class LeanHorner(_Streams):
    """Weight-tied with small weights, 4d+8 rows, width 8d+15, n+N+q n^(Nd) loops; returns q-bit labels exactly."""

    name = "lean-horner"

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        self.loops = self.quiet_loops + num_bits * self.num_ids + 1
        self.code_bits = 2 * num_bits * self.num_ids

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid, q = self.grid, self.num_bits
        codes = [StreamCode.of(column, q) for column in zip(*lean_labels(grid, labels), strict=True)]
        encode = steps.start_rows(grid, "closed", "window", per_output=("beta", "bit", "out"))
        layer = FeedForward(tuple(encode))
        steps.count_thresholds(layer, grid, epsilon)
        clock = steps.open_in_step_two(layer, grid)
        steps.number_other_tokens(layer, grid, closed=row("closed"))
        read_by_horner(layer, q * steps.other_tokens_id(grid) - (clock - 1 - self.quiet_loops), grid.dim, q)
        encode |= {f"beta{i}": Form(const=horner_start(code, self.quiet_loops)) for i, code in enumerate(codes, 1)}
        network = steps.assemble(grid, encode, layer, decode_horner(codes), self.loops, sharpness)
        return Built(network, codes, lambda s, z: [code.value(lean_id(grid, s, z), exact=True) for code in codes])


@final
class LeanMultiset(_Streams):
    """Weight-tied, 3d+9 rows, two heads, width 9d+16; returns q-bit labels exactly, for equal tokens too.

    The digit of a round is (fetched id, number of tokens fetched before). The count of a token's own round goes to the
    row `own`. Ids are ((s N + own) B + z) with s in base B(N+1), as `grid.others_multiset_id` computes them.
    """

    name = "lean-multiset"
    counts_duplicates = True

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        radix = grid.base * (grid.tokens + 1)
        self.num_ids = grid.tokens * radix ** (grid.tokens - 1) * grid.base
        self.loops = self.quiet_loops + num_bits * (self.num_ids - 1) + 1
        self.code_bits = num_bits * self.num_ids
        self.softmax_gain = 2 * self.code_bits * (radix**grid.tokens + 3 * radix)

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid, q = self.grid, self.num_bits
        codes = [StreamCode.of(column, q) for column in zip(*multiset_labels(grid, labels), strict=True)]
        encode = steps.start_rows(grid, "closed", "count", "own", per_output=("beta", "out"))
        layer = FeedForward(tuple(encode))
        steps.count_thresholds(layer, grid, epsilon)
        clock = steps.open_in_step_two(layer, grid)
        index = steps.number_multiset(layer, grid, closed=row("closed"))

        betas, outs = steps.per_coordinate(grid, "beta", "out")
        sample(layer, betas, outs, q * index - (clock - 1 - self.quiet_loops), q, exact=True)
        for beta, code in zip(betas, codes, strict=True):
            encode[beta] = Form(const=code.stream() / 2**self.quiet_loops)
            shift_left(layer, beta, self.code_bits + self.quiet_loops)
        network = steps.assemble(
            grid, encode, layer, decode_stream(codes), self.loops, sharpness, (steps.counting_head(grid),)
        )
        return Built(network, codes, lambda s, z: [code.value(others_multiset_id(grid, s, z), True) for code in codes])
