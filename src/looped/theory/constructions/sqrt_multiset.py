"""The square-root block that also serves equal tokens: the right rate in L^p for every number of tokens."""

from typing import ClassVar, final

from looped.theory.constructions import steps
from looped.theory.constructions.base import Built, Construction
from looped.theory.grid import Grid, Labels, multiset_labels, others_multiset_id
from looped.theory.lemmas.streams import Grouping, StreamCode, decode_stream, differences, load_and_sample
from looped.theory.network import FeedForward, Form, Number


@final
class ModulatedSqrtMultiset(Construction):
    """3d+10 rows, two heads, width 7d+10, n+N-1+K1+q(K2-1) loops with K1 K2 >= N(N+1)^(N-1) B^N; error span 2^-q.

    It numbers tokens like `LeanMultiset` and reads labels like `ModulatedSqrt`.
    """

    name: ClassVar[str] = "modulated-sqrt-multiset"
    streams: ClassVar[bool] = True
    counts_duplicates: ClassVar[bool] = True

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        radix = grid.base * (grid.tokens + 1)
        self.num_ids = grid.tokens * radix ** (grid.tokens - 1) * grid.base
        self.grouping = Grouping.best(self.num_ids, num_bits)
        self.loops = grid.cells - 1 + grid.tokens + self.grouping.loops
        self.code_bits = num_bits * self.grouping.group
        self.softmax_gain = 2 * num_bits * self.num_ids * (radix**grid.tokens + 3 * radix)

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid, split = self.grid, self.grouping
        codes = [StreamCode.of(column, self.num_bits) for column in zip(*multiset_labels(grid, labels), strict=True)]
        encode = steps.start_rows(grid, "count", "own", "group", "gate", per_output=("beta", "out"))
        encode["gate"] = Form(const=1)
        encode |= {f"beta{i}": Form(const=split.streams(code)[0]) for i, code in enumerate(codes, 1)}
        layer = FeedForward(tuple(encode))
        steps.count_thresholds(layer, grid, epsilon)
        load_and_sample(layer, steps.number_multiset(layer, grid), split, grid.dim, exact=False)
        modulation, schedule = steps.step_schedule(grid, split.thresholds())
        modulation |= split.modulation(codes, lead=grid.cells - 1 + grid.tokens) | {"c": differences(schedule)}
        modulation["own"] = modulation["seq"]
        heads = (steps.counting_head(grid),)
        decode = decode_stream(codes)
        network = steps.assemble(grid, encode, layer, decode, self.loops, sharpness, heads, modulation)
        return Built(
            network,
            codes,
            lambda s, z: [code.value(others_multiset_id(grid, s, z), False, split.group) for code in codes],
        )
