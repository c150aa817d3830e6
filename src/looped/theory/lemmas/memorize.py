"""`memorize(labels, variant)`: the memorizers of Step 3 on their own, as objects that are called with an id."""

from __future__ import annotations

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

MEMORIZERS: dict[str, Callable[..., LoopedNetwork]] = {
    "bits": bits_memorizer,
    "modulated": modulated_memorizer,
    "modulated-minimal": minimal_modulated_memorizer,
    "stream": stream_memorizer,
    "horner": horner_memorizer,
    "sqrt": sqrt_memorizer,
}


@dataclass(frozen=True)
class Memory:
    """`memory(k)` is the d exact values that the looped feed-forward network returns for id k."""

    network: LoopedNetwork
    num_labels: int
    engine: Engine

    @property
    def size(self) -> Size:
        return self.network.size

    def __call__(self, k: int) -> list[Fraction]:
        return self.table([k])[0]

    def table(self, ids: Sequence[int] | None = None) -> list[list[Fraction]]:
        """The values of many ids (all, if none are named) in one batch."""
        ids = range(self.num_labels) if ids is None else ids
        wrong = [k for k in ids if not (isinstance(k, Integral) and 0 <= k < self.num_labels)]
        if wrong:
            raise InputError(f"expected an id in 0..{self.num_labels - 1}, got {wrong[0]!r}")
        values = self.engine(np.array([int(k) for k in ids], dtype=object).reshape(-1, 1, 1))
        return [list(value[:, 0]) for value in values]


def memorize(labels: Sequence, variant: str = "bits", bits: int = 8) -> Memory:
    """K numbers or K vectors to a memorizer. `bits` is q of stream and sqrt: exact for multiples of 2^-q in [0, 1)."""
    require_one_of("memorizer", variant, MEMORIZERS)
    listed = isinstance(labels, Sequence) or (isinstance(labels, np.ndarray) and labels.ndim > 0)
    require(listed, f"expected a list of labels, got {labels!r}")
    require_counts(bits=bits)
    table = [
        [exactly(v, "a finite number as label") for v in (y if isinstance(y, Sequence | np.ndarray) else [y])]
        for y in labels
    ]
    if len(table) < 2 or len({len(y) for y in table}) != 1 or not table[0]:
        raise InputError(
            f"expected at least two labels, all of one length >= 1, got lengths {[len(y) for y in table][:8]}"
        )
    if variant in ("stream", "horner", "sqrt"):
        network = MEMORIZERS[variant](table, int(bits))  # numpy's would overflow
    else:
        network = MEMORIZERS[variant](table)
    return Memory(network, len(table), Engine(network))
