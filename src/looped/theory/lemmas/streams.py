"""Step 3 without the +-1 code: all q-bit labels in one binary number, which is shifted out and sampled.

stream: weight-tied, 2d+1 rows, width 7d+4, q(K-1)+1 loops, exact for q-bit labels (error span 2^-q without the second
sample). sqrt: eta(t) first loads the group of labels that contains k, 2d+4 rows, about 2 sqrt(qK) loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import ClassVar, Self

from looped.theory.gadgets import Pulse, shift_left, step
from looped.theory.grid import LabelSequence, vectors
from looped.theory.network import HALF, QUARTER, FeedForward, Form, LoopedNetwork, Number, row

SAMPLE_BOUND = 2  # twice the largest sampled value, so that an index off by up to 1/4 is harmless


@dataclass(frozen=True)
class StreamCode:
    """One coordinate's labels as low + span * c_k / 2^q with integers 0 <= c_k < 2^q."""

    low: Fraction
    span: Fraction
    num_bits: int  # q
    codes: tuple[int, ...]
    largest_jump: ClassVar[Fraction] = Fraction(0)  # the error of a stream does not depend on jumps

    @classmethod
    def of(cls, labels: Sequence[Fraction], num_bits: int) -> Self:
        """Return the code of K labels: themselves if all are q-bit numbers in [0, 1), else rounded down."""
        levels = 2**num_bits
        if all(0 <= y < 1 and (y * levels).denominator == 1 for y in labels):
            return cls(Fraction(0), Fraction(1), num_bits, tuple(int(y * levels) for y in labels))
        low, span = min(labels), max(labels) - min(labels)
        codes = [min(floor((y - low) / span * levels), levels - 1) if span else 0 for y in labels]
        return cls(low, span, num_bits, tuple(codes))

    @property
    def resolution(self) -> Fraction:
        """Largest error of a label."""
        return self.span / 2**self.num_bits

    def stream(self, first: int = 0, last: int | None = None) -> Fraction:
        """Return the codes first..last-1 as one binary number in [0, 1)."""
        codes = self.codes[first:last]
        number = 0
        for code in codes:
            number = (number << self.num_bits) | code
        return Fraction(number, 1 << self.num_bits * len(codes)) if codes else Fraction(0)

    def value(self, k: int, exact: bool, group: int | None = None) -> Fraction:
        """Return the output for id k: the code of its label, followed by the later labels unless `exact`."""
        end = k + 1 if exact else len(self.codes) if group is None else (k // group + 1) * group
        return self.low + self.span * self.stream(k, end)


def sample(
    layer: FeedForward,
    betas: Sequence[str],
    outs: Sequence[str],
    time: Form,
    num_bits: int,
    exact: bool,
    loops_per_label: int | None = None,
) -> None:
    """Add beta to out when time = 0. If `exact`, subtract the tail 2^-q beta when the next label is in front."""
    now = Pulse(layer, time, 0, SAMPLE_BOUND)
    later = Pulse(layer, time, -(loops_per_label or num_bits), SAMPLE_BOUND) if exact else None
    for beta, out in zip(betas, outs, strict=True):
        layer.add(out, now(row(beta)))
        if later is not None:
            layer.add(out, -later(row(beta) / 2**num_bits))


def decode_stream(codes: Sequence[StreamCode]) -> tuple[Form, ...]:
    """Return L2: the labels as forms over the outputs."""
    return tuple(code.span * row(f"out{i}") + code.low for i, code in enumerate(codes, 1))


def stream_memorizer(
    labels: LabelSequence, num_bits: int = 8, exact: bool = True, bits_per_loop: int = 1
) -> LoopedNetwork:
    """Return a weight-tied network that shifts one bit per loop and samples when q k - l = 0.

    With m `bits_per_loop`, where m divides q, it has (q/m)(K-1)+1 loops and width (2^(m+1)+3)d+4.
    """
    assert num_bits % bits_per_loop == 0, "bits_per_loop must divide num_bits"
    per_label = num_bits // bits_per_loop
    codes = [StreamCode.of(column, num_bits) for column in zip(*vectors(labels), strict=True)]
    betas, outs = [[f"{name}{i}" for i in range(1, len(codes) + 1)] for name in ("beta", "out")]
    encode = {"left": per_label * row("k")}
    encode |= {beta: Form(const=code.stream()) for beta, code in zip(betas, codes, strict=True)}
    encode |= {out: Form() for out in outs}
    layer = FeedForward(tuple(encode))
    sample(layer, betas, outs, row("left"), num_bits, exact, per_label)
    for beta in betas:
        shift_left(layer, beta, num_bits * len(labels), digit_bits=bits_per_loop)
    layer.add("left", -1)
    return LoopedNetwork(("k",), encode, layer, decode_stream(codes), per_label * (len(labels) - 1) + 1)


def parallel_stream_memorizer(labels: LabelSequence, num_bits: int = 8, streams: int = 2) -> LoopedNetwork:
    """Return P streams side by side, each for its share of the ids: (P+1)d+1 rows, width P(7d+4), q(K/P-1)+1 loops.

    Stream p starts at label pK/P and contains all later labels. So the tail of a share's last label is the next share,
    and the second sample of the next stream, which is due in the first loop, subtracts that tail.
    """
    codes = [StreamCode.of(column, num_bits) for column in zip(*vectors(labels), strict=True)]
    share, count = -(-len(labels) // streams), len(codes)
    outs = [f"out{i}" for i in range(1, count + 1)]
    names = {p: [f"beta{p}.{i}" for i in range(1, count + 1)] for p in range(streams)}
    encode = {"left": num_bits * row("k")} | {out: Form() for out in outs}
    for p, betas in names.items():
        encode |= {beta: Form(const=code.stream(p * share)) for beta, code in zip(betas, codes, strict=True)}
    layer = FeedForward(tuple(encode))
    for p, betas in names.items():
        sample(layer, betas, outs, row("left") - num_bits * share * p, num_bits, exact=True)
        for beta in betas:
            shift_left(layer, beta, num_bits * max(len(labels) - p * share, 1))
    layer.add("left", -1)
    return LoopedNetwork(("k",), encode, layer, decode_stream(codes), num_bits * (share - 1) + 1)


# ---- square root --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grouping:
    """K labels in `groups` groups of `group` labels. Phase 1 loads the stream of a group, phase 2 shifts it out."""

    groups: int  # K1
    group: int  # K2
    num_bits: int

    @classmethod
    def best(cls, num_labels: int, num_bits: int) -> Self:
        """Return the split with the fewest loops K1 + q(K2-1).

        K/g + qg has its minimum at g = sqrt(K/q) and exceeds it by about (q/g)(change of g)^2. Rounding K/g up costs
        less than 1. So the best split is not much further away than sqrt(g/q).
        """
        centre = max(1.0, (num_labels / num_bits) ** 0.5)
        reach = 2 * (centre / num_bits) ** 0.5 + 3
        sizes = range(max(1, floor(centre - reach)), min(num_labels, ceil(centre + reach)) + 1)
        candidates = [cls(-(-num_labels // group), group, num_bits) for group in sizes]
        return min(candidates, key=lambda split: (split.loops, split.group))

    @property
    def loops(self) -> int:
        """Number of loops of both phases."""
        return self.groups + self.num_bits * (self.group - 1)

    def thresholds(self) -> list[Fraction]:
        """Return the values of the row c: group borders, less 1/4 for tolerance, then the clock of the stream."""
        loading = [Fraction(group * self.group) - QUARTER for group in range(1, self.groups)]
        return loading + [Fraction(tick) for tick in range(self.num_bits * (self.group - 1) + 1)]

    def streams(self, code: StreamCode) -> list[Fraction]:
        """Return the stream of every group."""
        # every group has the same number of digits, also a last one with fewer labels
        padded = StreamCode(code.low, code.span, code.num_bits, (*code.codes, *[0] * (self.groups * self.group)))
        return [padded.stream(g * self.group, (g + 1) * self.group) for g in range(self.groups)]

    def modulation(self, codes: Sequence[StreamCode], lead: int) -> dict[str, list[Number]]:
        """Return eta(t) of the rows of this memorizer, which start to change after `lead` loops."""
        loading, shifting = self.groups - 1, self.num_bits * (self.group - 1) + 1
        waiting: list[Number] = [0] * lead
        scales: dict[str, list[Number]] = {"group": waiting + [1] * loading + [0] * shifting}
        # the gate opens in the last loop before the shifting starts
        scales["gate"] = [int(t == lead + loading - 1) for t in range(lead + loading + shifting)]
        for i, code in enumerate(codes, 1):
            streams = self.streams(code)
            loads: list[Number] = [b - a for a, b in pairwise(streams)]
            scales[f"beta{i}"] = waiting + loads + [1] * shifting
            scales[f"out{i}"] = waiting + [0] * loading + [1] * shifting
        return scales


def load_and_sample(layer: FeedForward, index: Form, split: Grouping, dims: int, exact: bool) -> None:
    """Add one loop of both phases to the layer. The row `gate` (1, then 0) disables one phase inside the units."""
    betas, outs = [[f"{name}{i}" for i in range(1, dims + 1)] for name in ("beta", "out")]
    closed = 4 * split.groups * split.group + 4
    reached = step(layer, index - row("c"), HALF, closed_by=closed * (1 - row("gate")))
    layer.add("group", reached)
    time = split.num_bits * (index - split.group * row("group")) - row("c")
    sample(layer, betas, outs, time, split.num_bits, exact)
    for beta in betas:
        layer.add(beta, reached)
        shift_left(layer, beta, split.num_bits * split.group, closed=row("gate"))
    layer.add("gate", -1)
    layer.add("c", 1)


def differences(values: Sequence[Number]) -> list[Number]:
    """Return eta of a row with update 1, so that it takes the scheduled values one after another."""
    return [b - a for a, b in pairwise(values)] + [0]


def sqrt_memorizer(
    labels: LabelSequence, num_bits: int = 8, exact: bool = True, group: int | None = None
) -> LoopedNetwork:
    """Build a time-modulated memorizer: K1 + q(K2-1) loops with K1 K2 >= K, weights of about q K2 bits.

    The group size K2 is the fastest one, about sqrt(K/q), or the given one. A smaller group trades loops for bits.
    """
    codes = [StreamCode.of(column, num_bits) for column in zip(*vectors(labels), strict=True)]
    fastest = Grouping.best(len(labels), num_bits)
    split = fastest if group is None else Grouping(-(-len(labels) // group), group, num_bits)
    schedule = split.thresholds()
    first = [split.streams(code)[0] for code in codes]
    gate = int(split.groups > 1)
    encode = {"index": row("k"), "c": Form(const=schedule[0]), "group": Form(), "gate": Form(const=gate)}
    encode |= {f"beta{i}": Form(const=stream) for i, stream in enumerate(first, 1)}
    encode |= {f"out{i}": Form() for i in range(1, len(codes) + 1)}
    layer = FeedForward(tuple(encode))
    load_and_sample(layer, row("index"), split, len(codes), exact)
    modulation = split.modulation(codes, lead=0) | {"c": differences(schedule)}
    return LoopedNetwork(("k",), encode, layer, decode_stream(codes), split.loops, modulation=modulation)
