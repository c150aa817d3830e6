"""The operations that models are made of, and the only place where a back end for them is chosen."""

from looped.kernels.reference import Modulation, Rotation, add_attention, add_feed_forward, rms_normalise

__all__ = ["Modulation", "Rotation", "add_attention", "add_feed_forward", "rms_normalise"]
