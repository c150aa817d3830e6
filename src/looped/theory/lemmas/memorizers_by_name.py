"""Build one of the memorizers of Step 3 by itself: `memorize(labels, variant)` returns a function of an id."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

import numpy as np

from looped.theory.engine import Engine
from looped.theory.lemmas.horner import horner_memorizer
from looped.theory.lemmas.memorizer import bits_memorizer, minimal_modulated_memorizer, modulated_memorizer
from looped.theory.lemmas.streams import sqrt_memorizer, stream_memorizer
from looped.theory.network import LoopedNetwork, Size, exactly
from looped.utils.errors import InputError, require, require_counts, require_one_of

STREAMS = {"stream": stream_memorizer, "horner": horner_memorizer, "sqrt": sqrt_memorizer}  # these take `bits`
MEMORIZERS: dict[str, Callable[..., LoopedNetwork]] = {
    "bits": bits_memorizer,
    "modulated": modulated_memorizer,
    "modulated-minimal": minimal_modulated_memorizer,
    **STREAMS,
}


@dataclass(frozen=True)
class Memory:
    """A looped feed-forward network that stores labels. `memory(k)` returns the d exact values for id k."""

    network: LoopedNetwork
    num_labels: int
    engine: Engine

    @property
    def size(self) -> Size:
        """The size of the network, counted from its matrices."""
        return self.network.size

    def __call__(self, k: int) -> list[Fraction]:
        return self.table([k])[0]

    def table(self, ids: Sequence[int] | None = None) -> list[list[Fraction]]:
        """Return the values of many ids, by default of all, in one batch."""
        ids = range(self.num_labels) if ids is None else ids
        wrong = [k for k in ids if not (isinstance(k, Integral) and 0 <= k < self.num_labels)]
        if wrong:
            raise InputError(f"id: expected an integer in 0..{self.num_labels - 1}, got {wrong[0]!r}")
        values = self.engine(np.array([int(k) for k in ids], dtype=object).reshape(-1, 1, 1))
        return [list(value[:, 0]) for value in values]


def memorize(labels: Sequence, variant: str = "bits", bits: int = 8) -> Memory:
    """Build a memorizer of K numbers or vectors. Streams store `bits` bits per label: multiples of 2^-bits exactly."""
    require_one_of("memorizer", variant, MEMORIZERS)
    listed = isinstance(labels, Sequence) or (isinstance(labels, np.ndarray) and labels.ndim > 0)
    require(listed, f"labels: expected a list, got {labels!r}")
    require_counts(bits=bits)
    table = [
        [exactly(v, "labels", "finite numbers") for v in (y if isinstance(y, Sequence | np.ndarray) else [y])]
        for y in labels
    ]
    lengths = [len(y) for y in table]
    if len(table) < 2 or len(set(lengths)) != 1 or not lengths[0]:
        raise InputError(f"labels: expected at least two, all of one length >= 1, got lengths {lengths[:8]}")
    options = (int(bits),) if variant in STREAMS else ()  # NumPy integers would overflow
    network = MEMORIZERS[variant](table, *options)
    return Memory(network, len(table), Engine(network))
