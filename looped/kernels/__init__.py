"""The operations that models are made of, and the only place where a back end for them is chosen."""

from looped.kernels.cross_entropy import linear_cross_entropy
from looped.kernels.reference import (
    LayerWeights,
    Modulation,
    Rotation,
    add_attention,
    add_feed_forward,
    rms_normalise,
)

__all__ = [
    "LayerWeights",
    "Modulation",
    "Rotation",
    "add_attention",
    "add_feed_forward",
    "linear_cross_entropy",
    "rms_normalise",
]
