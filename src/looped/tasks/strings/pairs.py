"""Draw random pairs of strings, each from its own key, and lay them out as tokens.

There are three kinds of pairs. EDITED is Algorithm 1 of the paper's appendix. UNIFORM has two uniform strings over the
same letters (the paper's longest common subsequence). OWN_LETTERS has two uniform strings, each over its own letters.
"""

from typing import NamedTuple

import numpy as np
from numba import uint64

from looped.tasks import rng
from looped.tasks.jit import compiled

UNIFORM, OWN_LETTERS, EDITED = 0, 1, 2

# With near lengths, the second string of an EDITED pair may be this much shorter or longer than the first.
SHORTER, LONGER = 3, 2
RANDOM_FRACTION = 0.4  # EDITED pairs whose second string is random instead of an edited copy
POP, REPLACE, INSERT = 0, 1, 2
LENGTHENS = (-1, 0, 1)
MAX_TRIES = 100_000

_BITS_PER_LETTER = 5
_LETTERS_PER_WORD = 12


class PairSettings(NamedTuple):
    """The distribution of pairs."""

    kind: int
    """UNIFORM, OWN_LETTERS or EDITED"""
    shortest: int
    """least length of a first string"""
    longest: int
    """greatest length of a first string"""
    alphabet: int
    """number of letters to choose from"""
    min_letters: int
    """fewest distinct letters that a string is drawn from"""
    max_letters: int
    """most distinct letters that a string is drawn from"""
    uniform_edits: bool
    """True if the number of edits is uniform in 1..length, False if it is the length"""
    redraw_pair: bool
    """True if a copy of the wrong length rejects the whole pair, False if it rejects the copy only"""
    near_lengths: bool
    """True if the second string's length depends on the first's (EDITED only)"""


@compiled(nogil=True)
def draw_pairs(strings, lengths, seed, split, indices, first_bucket, end_bucket, settings):
    """Fill in one pair per index. Return False if a pair needs more than MAX_TRIES draws.

    Each pair is drawn again, from its own stream, until its content hash is in one of the split's buckets.
    """
    kind, shortest, longest = settings.kind, settings.shortest, settings.longest
    min_letters, max_letters = settings.min_letters, settings.max_letters
    letters = np.empty(settings.alphabet, dtype=np.int8)
    actions = np.empty(longest, dtype=np.int64)
    copy = np.empty(2 * longest, dtype=np.int8)
    for row in range(len(indices)):
        state = rng.start(seed, split, indices[row])
        bucket = np.int64(-1)
        tries = 0
        while bucket < first_bucket or bucket >= end_bucket:
            tries += 1
            if tries > MAX_TRIES:
                return False
            first, second = strings[row, 0], strings[row, 1]
            state, extra = rng.below(state, longest - shortest + 1)
            lengths[row, 0] = shortest + extra
            if kind == EDITED:
                length = shortest + extra
                low, high = shortest, longest
                if settings.near_lengths:
                    low, high = max(1, length - SHORTER), length + LONGER
                state, lengths[row, 1] = _draw_edited(
                    state, first, second, length, low, high, letters, actions, copy, settings
                )
            else:
                state, num_letters = _choose_letters(state, letters, min_letters, max_letters)
                state = _fill(state, first, shortest + extra, letters, num_letters)
                if kind == OWN_LETTERS:
                    state, num_letters = _choose_letters(state, letters, min_letters, max_letters)
                state, extra = rng.below(state, longest - shortest + 1)
                state = _fill(state, second, shortest + extra, letters, num_letters)
                lengths[row, 1] = shortest + extra
            bucket = _content_bucket(strings[row], lengths[row])
    return True


@compiled(nogil=True)
def _draw_edited(state, first, second, length, low, high, letters, actions, copy, settings):
    """Draw a pair by Algorithm 1 and return the length of the second string, which is in `low`..`high`.

    The second string is random, or a copy of the first string after random edits.
    """
    while True:
        state, num_letters = _choose_letters(state, letters, settings.min_letters, settings.max_letters)
        state = _fill(state, first, length, letters, num_letters)
        state, coin = rng.unit(state)
        if coin < RANDOM_FRACTION:
            state, extra = rng.below(state, high - low + 1)
            state = _fill(state, second, low + extra, letters, num_letters)
            return state, low + extra
        while True:
            num_edits = length
            if settings.uniform_edits:
                state, extra = rng.below(state, length)
                num_edits = 1 + extra
            state, edited = _draw_actions(state, actions, num_edits, length)
            if low <= edited <= high:
                copy[:length] = first[:length]
                state = _edit(state, copy, length, actions, num_edits, letters, num_letters)
                second[:edited] = copy[:edited]
                return state, edited
            if settings.redraw_pair:
                break


@compiled(nogil=True)
def _choose_letters(state, letters, fewest, most):
    """Put `fewest` to `most` distinct letters, chosen uniformly, into the first entries and return their number."""
    state, extra = rng.below(state, most - fewest + 1)
    count = fewest + extra
    for i in range(len(letters)):
        letters[i] = i
    if count < len(letters):  # otherwise the order does not matter
        for i in range(count):
            state, offset = rng.below(state, len(letters) - i)
            letters[i], letters[i + offset] = letters[i + offset], letters[i]
    return state, count


@compiled(nogil=True)
def _fill(state, string, length, letters, num_letters):
    for i in range(length):
        state, which = rng.below(state, num_letters)
        string[i] = letters[which]
    return state


@compiled(nogil=True)
def _draw_actions(state, actions, num_edits, length):
    """Draw the edits and return the length after them, because most copies are rejected for their length alone."""
    for k in range(num_edits):
        state, actions[k] = rng.below(state, 3)
        if length == 0:
            actions[k] = INSERT  # the only possible edit of an empty string
        length += LENGTHENS[actions[k]]
    return state, length


@compiled(nogil=True)
def _edit(state, string, length, actions, num_edits, letters, num_letters):
    """Pop, replace and insert letters at random places of a string."""
    for k in range(num_edits):
        state, place = rng.below(state, max(length, 1))
        state, which = rng.below(state, num_letters)
        if actions[k] == INSERT:
            for i in range(length, place, -1):
                string[i] = string[i - 1]
            string[place] = letters[which]
        elif actions[k] == REPLACE:
            string[place] = letters[which]
        else:
            for i in range(place, length - 1):
                string[i] = string[i + 1]
        length += LENGTHENS[actions[k]]
    return state


@compiled(nogil=True)
def _content_bucket(strings, lengths):
    """Return the bucket of a pair. Letters are hashed 12 at a time, or hashing would cost more than drawing."""
    digest = rng.absorb(uint64(lengths[0]), lengths[1])
    for part in range(2):
        for start in range(0, lengths[part], _LETTERS_PER_WORD):
            word = uint64(0)
            for i in range(start, min(start + _LETTERS_PER_WORD, lengths[part])):
                word = (word << uint64(_BITS_PER_LETTER)) | uint64(strings[part, i])
            digest = rng.absorb(digest, word)
    return rng.bucket(digest)


@compiled(nogil=True)
def lay_out(strings, lengths, seq_len, alphabet):
    """Return the tokens `first | second pad ... =`.

    Token 0 is padding. Then follow one token per letter, the bar and the equals sign.
    """
    inputs = np.zeros((len(strings), seq_len), dtype=np.int64)
    for row in range(len(strings)):
        place = 0
        for part in range(2):
            for i in range(lengths[row, part]):
                inputs[row, place] = strings[row, part, i] + 1
                place += 1
            if part == 0:
                inputs[row, place] = alphabet + 1
                place += 1
        inputs[row, seq_len - 1] = alphabet + 2
    return inputs
