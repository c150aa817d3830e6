"""Initial weights. All are drawn from one generator, so that a seed gives the same model on every device."""

import math

import torch
from torch import Generator, Tensor

# Embeddings have GPT-2's standard deviation 0.02. Matrices have it at width 768, and scale with the fan-in elsewhere.
EMBEDDING_STD = 0.02
MATRIX_GAIN = 0.02 * math.sqrt(768)


def linear_weight(rows: int, columns: int, generator: Generator, scale: float = 1.0) -> Tensor:
    """Return a random (rows, columns) matrix with standard deviation MATRIX_GAIN * scale / sqrt(columns)."""
    return _normal(rows, columns, generator) * (MATRIX_GAIN * scale / math.sqrt(columns))


def embedding_weight(rows: int, columns: int, generator: Generator) -> Tensor:
    """Return a random (rows, columns) matrix with standard deviation EMBEDDING_STD."""
    return _normal(rows, columns, generator) * EMBEDDING_STD


def _normal(rows: int, columns: int, generator: Generator) -> Tensor:
    """Return standard normal numbers, drawn on the generator's device and moved to the default device."""
    numbers = torch.randn(rows, columns, generator=generator, device=generator.device)
    return numbers.to(torch.get_default_device())
