"""Random draws as a pure function of (seed, split, index), for numba code.

A generator is a 64-bit state (splitmix64). `state, value = below(state, n)` draws and moves on, so an example depends
on its own key alone: not on the batch it is in, nor on the worker that makes it.
"""

import numpy as np
from numba import uint64

from looped.tasks.base import NUM_BUCKETS
from looped.tasks.jit import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@compiled(inline="always")
def scramble(bits):
    """A bijection of 64-bit words whose every output bit depends on every input bit."""
    bits = (bits ^ (bits >> uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> uint64(27))) * _MIX_2
    return bits ^ (bits >> uint64(31))


@compiled()
def start(seed, split, index):
    """The state from which example `index` of a split is drawn."""
    state = scramble(uint64(seed) + _GOLDEN)
    state = scramble(state + uint64(split) * _GOLDEN)
    return scramble(state + uint64(index) * _GOLDEN)


@compiled(inline="always")
def following(state):
    state += _GOLDEN
    return state, scramble(state)


@compiled(inline="always")
def below(state, bound):
    """A whole number in [0, bound), bound < 2**32 (the bias is under 2**-32 * bound)."""
    state, bits = following(state)
    return state, np.int64(((bits >> uint64(32)) * uint64(bound)) >> uint64(32))


@compiled(inline="always")
def unit(state):
    """A float in [0, 1) with 53 random bits."""
    state, bits = following(state)
    return state, np.float64(bits >> uint64(11)) * 2.0**-53


@compiled(inline="always")
def absorb(digest, value):
    """Fold one small number into a running content hash."""
    return scramble(digest ^ (uint64(value) + _GOLDEN))


@compiled(inline="always")
def bucket(digest):
    """Of a content hash: where the content lies among the buckets that the splits share out."""
    return np.int64(digest % uint64(NUM_BUCKETS))
