"""Step 3, Lemmas "bitextraction" and "memorize" and the theorem of Appendix B: maps an id k to its label y_k.

bits: a +-1 code of the label differences, 12d rows, width 18d, K-1 loops, error at most half the largest jump.
modulated: eta(t) carries the labels, 4d rows, width 6d, K-1 loops, exact. `minimal` needs d+1 rows and width 2.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import ClassVar, Self

from looped.theory.gadgets import Pulse, step
from looped.theory.grid import LabelSequence, vectors
from looped.theory.lemmas import require_known
from looped.theory.network import HALF, FeedForward, Form, LoopedNetwork, Number, row

EXTRACT_ROWS = ("left", "beta", "next", "bit", "inside", "sum")
EXTRACTION_FAULTS = {
    "stray step": "W2 has -1 at (4, 6): T(k-l) is subtracted from the bit",
    "signs": "W2 row 5 has the signs of h7 and h8 exchanged",
    "lag": "starts at xi_0, so that r loops omit theta_r",
}
FAULTS = EXTRACTION_FAULTS | {
    "first id": "takes T(k-1) = 1 also for k = 0",
    "floor": "labels rounded down instead of to the nearest multiple: twice the error",
}
MODULATED_FAULTS = {
    "label bias": "b1 has -1 at the unit sigma(-y)",
    "label start": "L1 = (k, k, y_0, 0) returns the label of k+1",
    "bound": "M > max y instead of max |y|",
}


def binary(bits: Sequence[int]) -> Fraction:
    """Return 0.b1 b2 b3 ... in base 2."""
    return Fraction(int("0" + "".join(map(str, bits)), 2), 2 ** len(bits))


@dataclass(frozen=True)
class DifferenceCode:
    """One coordinate's labels as scale * a_k with |a_k - a_{k-1}| <= 1, scale = the largest jump."""

    scale: Fraction
    steps: tuple[int, ...]  # a_k
    resolution: ClassVar[Fraction] = Fraction(0)  # the error depends on the largest jump alone

    @classmethod
    def of(cls, labels: Sequence[Fraction], printed: Collection[str] = ()) -> Self:
        """Return the code of K labels, rounded to multiples of the largest jump."""
        scale = max((abs(b - a) for a, b in pairwise(labels)), default=Fraction(0))
        if scale == 0:
            return cls(labels[0], (1,) * len(labels))  # avoids the division by a zero jump
        offset = 0 if "floor" in printed else HALF
        return cls(scale, tuple(floor(y / scale + offset) for y in labels))

    @property
    def changes(self) -> list[int]:
        """The differences a_k - a_{k-1}."""
        return [b - a for a, b in pairwise(self.steps)]

    def bits(self, sign: int) -> list[int]:
        """Return the binary sequence c (sign 1) or d (sign -1) with a_k - a_{k-1} = c_k - d_k."""
        return [int(change == sign) for change in self.changes]

    @property
    def largest_jump(self) -> Fraction:
        """The largest |y_k - y_{k-1}|."""
        return self.scale if any(self.changes) else Fraction(0)

    def value(self, k: int) -> Fraction:
        """Return the stored label of id k."""
        return self.scale * self.steps[k]


# ---- Lemma "bitextraction" ----------------------------------------------------------------------------------------


def extract_rows(prefix: str) -> tuple[str, ...]:
    """Return the row names of one bit extractor."""
    return tuple(f"{prefix}.{name}" for name in EXTRACT_ROWS)


def extract_bits(layer: FeedForward, prefix: str, num_bits: int, printed: Collection[str] = ()) -> None:
    """Add one loop xi_l -> xi_{l+1} to the layer; nine units. The unit sigma(beta_l) is printed but not needed."""
    left, beta, next_, bit, inside, sum_ = extract_rows(prefix)
    old_beta, old_bit = layer.relu(row(beta)), layer.relu(row(bit))
    shifted = layer.relu(row(next_))
    digit = step(layer, row(next_) - HALF, Fraction(1, 2**num_bits))
    old_inside = layer.relu(row(inside))
    # the index rows have their own epsilon, so that the input never meets the 2^r of the beta rows
    within = step(layer, row(left) - 1, HALF)
    both = layer.relu(row(bit) + row(inside) - 1)
    layer.add(left, -1)
    layer.add(beta, old_beta - old_bit)
    layer.add(next_, shifted - digit)
    layer.add(bit, digit - old_bit - (old_inside if "stray step" in printed else 0))
    layer.add(inside, (-within if "signs" in printed else within) - old_inside)
    layer.add(sum_, both)


def encode_bits(prefix: str, bits: Sequence[int], shift: Number, printed: Collection[str] = ()) -> dict[str, Form]:
    """Return the start xi_1 as forms over k >= 1. It already contains the first bit and T(k-1) = 1."""
    k = row("k") + shift
    if "lag" in printed:
        start = [k, Form(), Form(const=binary(bits)), Form(), Form(), Form()]
    else:
        rest = binary(bits[1:])
        start = [k - 1, Form(const=binary(bits)), Form(const=rest), Form(const=bits[0]), Form(const=1), Form()]
    return dict(zip(extract_rows(prefix), start, strict=True))


def bit_extraction(bits: Sequence[int], printed: Collection[str] = ()) -> LoopedNetwork:
    """Return the network that maps k = 1..r to the sum of the first k bits (6 rows, width 9, r loops)."""
    require_known(printed, EXTRACTION_FAULTS)
    encode = encode_bits("up", bits, 0, printed)
    layer = FeedForward(tuple(encode))
    extract_bits(layer, "up", len(bits), printed)
    return LoopedNetwork(("k",), encode, layer, (row("up.sum"),), len(bits))


# ---- Lemma "memorize" ---------------------------------------------------------------------------------------------


def encode_code(i: int, code: DifferenceCode, shift: Number = 0, printed: Collection[str] = ()) -> dict[str, Form]:
    """Return the start of both bit extractors of coordinate i.

    T(k-1) is not affine at k = 0. So the extractor with the first step adds sigma(k) and the other adds sigma(k-1).
    Their difference is 1 exactly for k >= 1.
    """
    ends = {f"up{i}": code.bits(1), f"down{i}": code.bits(-1)}
    encode: dict[str, Form] = {}
    for prefix, bits in ends.items():
        encode |= encode_bits(prefix, bits, shift, printed)
        if not {"lag", "first id"} & set(printed):
            encode[f"{prefix}.inside"] = row("k") if code.changes[0] else Form()
    return encode


def memorize_code(layer: FeedForward, i: int, num_bits: int, printed: Collection[str] = ()) -> None:
    """Add one loop of both bit extractors of coordinate i to the layer."""
    for prefix in (f"up{i}", f"down{i}"):
        extract_bits(layer, prefix, num_bits, printed)


def decode_code(i: int, code: DifferenceCode) -> Form:
    """Return coordinate i of the label as a form over the sums."""
    return code.scale * (row(f"up{i}.sum") - row(f"down{i}.sum") + code.steps[0])


def bits_memorizer(labels: LabelSequence, printed: Collection[str] = ()) -> LoopedNetwork:
    """Return the network of Lemma "memorize", which is within half the largest jump of every label."""
    require_known(printed, FAULTS)
    table = vectors(labels)
    codes = [DifferenceCode.of(column, printed) for column in zip(*table, strict=True)]
    encode: dict[str, Form] = {}
    for i, code in enumerate(codes, 1):
        encode |= encode_code(i, code, 0, printed)
    layer = FeedForward(tuple(encode))
    for i in range(1, len(codes) + 1):
        memorize_code(layer, i, len(table) - 1, printed)
    decode = tuple(decode_code(i, code) for i, code in enumerate(codes, 1))
    return LoopedNetwork(("k",), encode, layer, decode, len(table) - 1)


# ---- Appendix B: time-modulated -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RatioCode:
    """One coordinate's labels, shifted so that none is zero. eta(t) turns y_{t-1} into y_t."""

    labels: tuple[Fraction, ...]
    shift: Fraction
    bound: Fraction

    @classmethod
    def of(cls, labels: Sequence[Fraction], printed: Collection[str] = ()) -> Self:
        """Return the code of K labels."""
        shift = Fraction(0) if all(labels) else 1 + max(map(abs, labels))
        shifted = tuple(y + shift for y in labels)
        return cls(shifted, shift, max(shifted) + 1 if "bound" in printed else max(map(abs, shifted)))

    def modulation(self, printed: Collection[str] = ()) -> tuple[list[Fraction], list[Fraction]]:
        """Return eta of the rows y and out, for l = 1..K-1."""
        pairs = list(pairwise(self.labels))
        base = 0 if "label start" in printed else self.labels[0]
        return [new / old - 1 for old, new in pairs], [(new - base) / old for old, new in pairs]


def ratio_rows(i: int) -> tuple[str, ...]:
    """Return the row names of coordinate i."""
    return (f"k{i}'", f"left{i}", f"y{i}", f"out{i}")


def encode_ratio(i: int, code: RatioCode, printed: Collection[str] = ()) -> dict[str, Form]:
    """Return the start (k, k-1, y_0, y_0): out has the label of id 0 and changes once, in loop k."""
    k, first = row("k"), Form(const=code.labels[0])
    start = [k, k, first, Form()] if "label start" in printed else [k, k - 1, first, first]
    return dict(zip(ratio_rows(i), start, strict=True))


def memorize_ratio(layer: FeedForward, i: int, bound: Number, printed: Collection[str] = ()) -> None:
    """Add one loop of coordinate i to the layer; six units."""
    _, left, y, out = ratio_rows(i)
    layer.add(y, layer.relu(row(y)) - layer.relu(-row(y) - (1 if "label bias" in printed else 0)))
    layer.add(out, Pulse(layer, row(left), 0, bound)(row(y)))
    layer.add(left, -1)


def modulated_memorizer(labels: LabelSequence, printed: Collection[str] = ()) -> LoopedNetwork:
    """Return the network of Appendix B, which returns every label exactly, also for k = 0."""
    require_known(printed, MODULATED_FAULTS)
    codes = [RatioCode.of(column, printed) for column in zip(*vectors(labels), strict=True)]
    encode: dict[str, Form] = {}
    for i, code in enumerate(codes, 1):
        encode |= encode_ratio(i, code, printed)
    layer = FeedForward(tuple(encode))
    modulation: dict[str, list[Fraction]] = {}
    for i, code in enumerate(codes, 1):
        memorize_ratio(layer, i, code.bound, printed)
        modulation[f"y{i}"], modulation[f"out{i}"] = code.modulation(printed)
    decode = tuple(row(f"out{i}") - code.shift for i, code in enumerate(codes, 1))
    return LoopedNetwork(("k",), encode, layer, decode, len(labels) - 1, modulation=modulation)


def minimal_modulated_memorizer(labels: LabelSequence) -> LoopedNetwork:
    """Return an exact network with d+1 rows and width 2: out += (y_l - y_{l-1}) T(k - l). It needs no division."""
    table = vectors(labels)
    outs = [f"out{i}" for i in range(1, len(table[0]) + 1)]
    encode = {"left": row("k") - 1} | {out: Form(const=y) for out, y in zip(outs, table[0], strict=True)}
    layer = FeedForward(tuple(encode))
    reached = step(layer, row("left"), 1)
    layer.add("left", -1)
    for out in outs:
        layer.add(out, reached)
    columns = list(zip(*table, strict=True))
    modulation = {out: [b - a for a, b in pairwise(y)] for out, y in zip(outs, columns, strict=True)}
    decode = tuple(row(out) for out in outs)
    return LoopedNetwork(("k",), encode, layer, decode, len(table) - 1, modulation=modulation)
