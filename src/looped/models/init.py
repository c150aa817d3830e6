"""Initial weights. All are drawn from one generator, so that a seed gives the same model on every device."""

import math

import torch
from torch import Generator, Tensor

# GPT-2 draws all weights with standard deviation 0.02. Here embeddings do, too. The standard deviation of a matrix is
# 0.02 at a fan-in of 768, GPT-2's width, and proportional to 1 / sqrt(fan-in).
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
