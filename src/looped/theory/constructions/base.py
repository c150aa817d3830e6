"""The base class of all constructions: their cost, which is known in advance, and the call that builds a network."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log
from typing import ClassVar

from looped.theory.grid import Grid, Labels, TokenIds, Vector
from looped.theory.lemmas.memorizer import DifferenceCode
from looped.theory.lemmas.streams import StreamCode
from looped.theory.network import LoopedNetwork, Number
from looped.theory.targets import ModulusFunction
from looped.utils.errors import require

FLOAT64_BITS = 53


@dataclass(frozen=True)
class Built:
    """A network, its label codes, and the value that the network must return for a token of a sequence."""

    network: LoopedNetwork
    codes: Sequence[DifferenceCode] | Sequence[StreamCode]  # one per coordinate; none if labels are stored exactly
    value_of: Callable[[TokenIds, int], Vector]


class Construction(ABC):
    """One way to approximate a function on a grid by a looped block.

    To add a construction, write one subclass: its cost in `__init__`, its network in `build`. Then list the subclass
    in `CONSTRUCTIONS`.
    """

    name: ClassVar[str]
    streams: ClassVar[bool] = False  # labels are stored with `num_bits` bits each
    counts_duplicates: ClassVar[bool] = False  # equal tokens get ids of their own for every number of tokens
    hand_over_loops: ClassVar[int] = 0  # extra loops between Step 1 and Step 2
    trifling_exponent: ClassVar[int] = 20  # epsilon is 2^-exponent / n by default
    starts_at_zero: ClassVar[bool] = False  # the output may be anywhere between 0 and a label off the good set

    num_ids: int  # labels that the network stores
    loops: int
    code_bits: int  # bits of the longest number that labels are packed into, approximately
    softmax_gain: int  # largest factor from the error of one attention step to the error of the contextual id

    def __init__(self, grid: Grid, num_bits: int = 8):
        self.grid, self.num_bits = grid, num_bits

    @abstractmethod
    def build(self, labels: Labels, epsilon: Number, sharpness: Number | None = None) -> Built:
        """Build the network for the labels of all sequences, with softmax if a sharpness is given."""

    def jump_bound(self, omega: ModulusFunction) -> float | None:
        """Return a bound on the largest jump between neighbouring labels, or None if the error ignores jumps."""
        return None

    @property
    def serves_duplicates(self) -> bool:
        """True if the network is also right for two tokens in one cell, which every construction is up to N = 2."""
        return self.counts_duplicates or self.grid.tokens <= 2

    @property
    def fits_float64(self) -> bool:
        """True if float64 keeps the label code. The slope that decodes it is as long as the code, hence twice."""
        return 2 * self.code_bits <= FLOAT64_BITS

    def rounds_only_labels(self, digits: int) -> bool:
        """Return True if arithmetic with so many binary digits is proved to return the labels, each rounded once."""
        return False

    def sharpness(self) -> Fraction:
        """Return a lambda at which softmax changes no output: the contextual id is off by at most 1/4.

        An attention step is off by at most (N-1) exp(-lambda). Section 9 of theory-paper derives the gains.
        """
        tokens, gain = self.grid.tokens, self.softmax_gain
        # Attention weights are computed in double precision, and the gain multiplies their rounding errors too.
        require(
            gain * tokens <= 2**50,
            f"softmax: expected a gain of at most {2**50 // tokens:.2g} (double precision), got {float(gain):.2g} "
            f"for {self.name} with tokens={tokens}, cells={self.grid.cells}. Take fewer tokens or cells.",
        )
        exact = max(log(4 * max(tokens - 1, 1) * gain), 1.0)
        return Fraction(int(exact * 64) + 1, 64)

    def served(self, labels: Labels) -> Labels:
        """Return the labels of the sequences that get ids of their own."""
        everything = self.serves_duplicates
        return {s: columns for s, columns in labels.items() if everything or len(set(s)) == self.grid.tokens}
