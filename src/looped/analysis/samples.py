"""Random draws for each example of a measurement: directions of change, and places.

The draws are a pure function of the seed and of the example's content. The order of the examples and the batch size do
not change a result.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


class Sample(NamedTuple):
    """A batch of examples with their draws, on the network's device."""

    embeddings: Float[Tensor, "example seq dim"]
    """embeddings of the examples"""
    noise: Float[Tensor, "example direction seq dim"]
    """independent normal numbers, from which every definition computes its unit directions"""
    places: Int[Tensor, "example place"]
    """distinct positions of each example"""


@dataclass(frozen=True)
class Samples:
    """All examples of a measurement."""

    inputs: Shaped[Tensor, "example seq *size"]
    embeddings: Float[Tensor, "example seq dim"]
    seed: int
    directions: int
    places: int
    device: torch.device

    def batches(self, size: int) -> Iterator[Sample]:
        """Yield the examples with their draws in batches of `size`."""
        for start in range(0, len(self.inputs), size):
            part = slice(start, start + size)
            draws = [self._draw(example) for example in self.inputs[part].numpy()]
            noise, places = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*draws, strict=True))
            embeddings = self.embeddings[part]
            yield Sample(*(each.to(self.device) for each in (embeddings, noise.to(embeddings.dtype), places)))

    def _draw(self, example: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        content = hashlib.sha256(example.tobytes()).digest()
        generator = np.random.default_rng((self.seed, int.from_bytes(content[:16], "little")))
        seq_len, dim = self.embeddings.shape[1:]
        places = generator.permutation(seq_len)[: self.places]
        return generator.standard_normal((self.directions, seq_len, dim)), places
