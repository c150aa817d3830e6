"""Random draws as a pure function of (seed, split, index), for numba code.

A generator is a 64-bit state (splitmix64). `state, value = below(state, n)` draws a value and advances the state.
An example depends only on its own key, not on its batch or on the worker that draws it.
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
    """Return an image of a 64-bit word under a bijection that mixes all input bits into every output bit."""
    bits = (bits ^ (bits >> uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> uint64(27))) * _MIX_2
    return bits ^ (bits >> uint64(31))


@compiled()
def start(seed, split, index):
    """Return the state from which example `index` of a split is drawn."""
    state = scramble(uint64(seed) + _GOLDEN)
    state = scramble(state + uint64(split) * _GOLDEN)
    return scramble(state + uint64(index) * _GOLDEN)


@compiled(inline="always")
def following(state):
    """Return the next state and 64 random bits."""
    state += _GOLDEN
    return state, scramble(state)


@compiled(inline="always")
def below(state, bound):
    """Return the next state and an integer in [0, bound), for a bound below 2**32. The bias is below 2**-32 * bound."""
    state, bits = following(state)
    return state, np.int64(((bits >> uint64(32)) * uint64(bound)) >> uint64(32))


@compiled(inline="always")
def unit(state):
    """Return the next state and a float in [0, 1) with 53 random bits."""
    state, bits = following(state)
    return state, np.float64(bits >> uint64(11)) * 2.0**-53


@compiled(inline="always")
def absorb(digest, value):
    """Return a running content hash with one more number folded in."""
    return scramble(digest ^ (uint64(value) + _GOLDEN))


@compiled(inline="always")
def bucket(digest):
    """Return the bucket of a content hash, which decides the split."""
    return np.int64(digest % uint64(NUM_BUCKETS))
