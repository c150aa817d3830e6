"""The operations that models are made of: their definition (`reference.py`), and what computes the same faster."""

from looped.kernels.cross_entropy import linear_cross_entropy
from looped.kernels.reference import (
    LayerWeights,
    Modulation,
    Remember,
    Rotation,
    add_attention,
    add_feed_forward,
    attention_map,
    example_norms,
    limit_growth,
    padding_bias,
    rms_normalise,
)

__all__ = [
    "LayerWeights",
    "Modulation",
    "Remember",
    "Rotation",
    "add_attention",
    "add_feed_forward",
    "attention_map",
    "example_norms",
    "limit_growth",
    "linear_cross_entropy",
    "padding_bias",
    "rms_normalise",
]
