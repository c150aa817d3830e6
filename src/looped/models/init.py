"""How weights start. Everything is drawn from one generator, so that a seed gives one model on every device."""

import math

import torch
from torch import Generator, Tensor

# GPT-2's 0.02 for embeddings; for matrices its 0.02 at width 768, carried to other widths by the fan-in.
EMBEDDING_STD = 0.02
MATRIX_GAIN = 0.02 * math.sqrt(768)


def linear_weight(rows: int, columns: int, generator: Generator, scale: float = 1.0) -> Tensor:
    """A (rows, columns) matrix with standard deviation MATRIX_GAIN * scale / sqrt(columns)."""
    return _drawn(rows, columns, generator) * (MATRIX_GAIN * scale / math.sqrt(columns))


def embedding_weight(rows: int, columns: int, generator: Generator) -> Tensor:
    return _drawn(rows, columns, generator) * EMBEDDING_STD


def _drawn(rows: int, columns: int, generator: Generator) -> Tensor:
    """Drawn where the generator is, and brought to where new tensors are made (`with torch.device(...)`)."""
    drawn = torch.randn(rows, columns, generator=generator, device=generator.device)
    return drawn.to(torch.get_default_device())
