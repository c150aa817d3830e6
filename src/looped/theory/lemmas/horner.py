"""Streams without giant weights: bits as base-4 digits 1 and 3, and label values by Horner's rule.

The feed-forward weights stay below max(4, 2^q) for any number of labels. Only L1 has long numbers, and they are below
1. Lemma: 3d+2 rows, width 6d+5, qK+1 loops. Block: 4d+8 rows, width 8d+15, n+N+q n^(Nd) loops.
"""

from collections.abc import Sequence
from fractions import Fraction

from looped.theory.gadgets import step
from looped.theory.grid import LabelSequence, vectors
from looped.theory.lemmas.streams import StreamCode
from looped.theory.network import HALF, QUARTER, THREE_QUARTERS, FeedForward, Form, LoopedNetwork, row


def horner_start(code: StreamCode, quiet: int = 0) -> Fraction:
    """Return the number of `quiet` zeros and then all label bits, with each bit b as the digit 2b + 1 in base 4."""
    bits = [0] * quiet + [code_ >> i & 1 for code_ in code.codes for i in reversed(range(code.num_bits))]
    number = 0
    for bit in bits:
        number = 4 * number + 2 * bit + 1
    return Fraction(number, 4 ** len(bits))


def read_by_horner(layer: FeedForward, time: Form, dims: int, num_bits: int) -> None:
    """Let out <- 2 out + bit while -q < time <= 0. The bit and the window are computed one loop ahead."""
    open_ = step(layer, time + num_bits - THREE_QUARTERS, HALF) - step(layer, time - THREE_QUARTERS, HALF)
    layer.add("window", open_ - layer.relu(row("window")))
    for i in range(1, dims + 1):
        beta, bit, out = f"beta{i}", f"bit{i}", f"out{i}"
        first = step(layer, row(beta) - THREE_QUARTERS, QUARTER)
        layer.add(beta, 3 * layer.relu(row(beta)) - 2 * first - 1)
        layer.add(bit, first - layer.relu(row(bit)))
        doubled = layer.relu(row(out) - 2**num_bits * (1 - row("window")))
        layer.add(out, doubled + layer.relu(row(bit) + row("window") - 1))


def decode_horner(codes: Sequence[StreamCode]) -> tuple[Form, ...]:
    """Return L2: the labels as forms over the outputs."""
    return tuple(code.span / 2**code.num_bits * row(f"out{i}") + code.low for i, code in enumerate(codes, 1))


def horner_memorizer(labels: LabelSequence, num_bits: int = 8) -> LoopedNetwork:
    """Return a weight-tied network with small weights that returns every q-bit label exactly."""
    codes = [StreamCode.of(column, num_bits) for column in zip(*vectors(labels), strict=True)]
    encode = {"left": num_bits * row("k"), "window": Form()}
    for i, code in enumerate(codes, 1):
        encode |= {f"beta{i}": Form(const=horner_start(code)), f"bit{i}": Form(), f"out{i}": Form()}
    layer = FeedForward(tuple(encode))
    read_by_horner(layer, row("left"), len(codes), num_bits)
    layer.add("left", -1)
    return LoopedNetwork(("k",), encode, layer, decode_horner(codes), num_bits * len(labels) + 1)
