"""The smaller weight-tied block with the paper's code of label differences."""

from math import sqrt
from typing import final

from looped.theory.constructions import steps
from looped.theory.constructions.base import Built, Construction
from looped.theory.gadgets import shift_left, step
from looped.theory.grid import Grid, Labels, TokenIds, Vector, fill, lean_id, lean_labels
from looped.theory.lemmas.memorizer import DifferenceCode, binary
from looped.theory.network import HALF, QUARTER, FeedForward, Form, Number, row
from looped.theory.targets import ModulusFunction


@final
class Lean(Construction):
    """Weight-tied, 6d+9 rows, one head, width 12d+13, n-1+N+2 n^(Nd) loops; error half a label jump."""

    name = "lean"

    def __init__(self, grid: Grid, num_bits: int = 8):
        super().__init__(grid, num_bits)
        self.num_ids = self.code_bits = 2 * grid.num_sequences
        self.loops = grid.cells - 1 + grid.tokens + self.num_ids
        self.softmax_gain = 2 * grid.num_sequences * (grid.num_sequences + grid.base + 2)

    def jump_bound(self, omega: ModulusFunction) -> float:
        grid, n = self.grid, self.grid.cells
        delta, carry = 1 / n, (n - 1) / (n + 1)
        return max(omega("token", delta), carry * omega("sequence", delta * sqrt(grid.dim * grid.tokens)))

    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        grid = self.grid
        known = {2 * k - k % grid.cells: y for k, y in enumerate(lean_labels(grid, labels))}
        codes = [DifferenceCode.of(column) for column in zip(*fill(known, self.num_ids), strict=True)]
        encode = steps.start_rows(grid, "digit", "closed", "inside", per_output=("up", "down", "bit+", "bit-", "sum"))
        layer = FeedForward(tuple(encode))
        layer.add("digit", steps.count_thresholds(layer, grid, epsilon))
        clock = steps.open_in_step_two(layer, grid)
        steps.number_other_tokens(layer, grid, closed=row("closed"))

        # bit l is read in loop n+N-2+l and counted one loop later if l <= k
        quiet = grid.cells + grid.tokens - 1
        k = 2 * steps.other_tokens_id(grid) - row("digit")
        layer.add("inside", step(layer, k - clock + quiet + QUARTER, HALF) - layer.relu(row("inside")))
        for i, code in enumerate(codes, 1):
            for sign, beta, bit in ((1, f"up{i}", f"bit+{i}"), (-1, f"down{i}", f"bit-{i}")):
                bits = [0] * quiet + code.bits(sign)
                encode[beta] = Form(const=binary(bits))
                layer.add(bit, shift_left(layer, beta, len(bits)) - layer.relu(row(bit)))
                layer.add(f"sum{i}", sign * layer.relu(row(bit) + row("inside") - 1))
        decode = [code.scale * (row(f"sum{i}") + code.steps[0]) for i, code in enumerate(codes, 1)]

        def value_of(sequence: TokenIds, z: int) -> Vector:
            return [code.value(2 * lean_id(grid, sequence, z) - z % grid.cells) for code in codes]

        return Built(steps.assemble(grid, encode, layer, decode, self.loops, sharpness), codes, value_of)
