"""Random pairs of strings, drawn one by one from their own keys, and their layout as tokens.

Three kinds of pairs: Algorithm 1 of the paper's appendix (EDITED), two uniform strings over the same letters
(UNIFORM, the paper's longest common subsequence), and two uniform strings, each over its own letters (OWN_LETTERS).
"""

import numpy as np
from numba import uint64

from looped.tasks import rng
from looped.tasks.jit import compiled

UNIFORM, OWN_LETTERS, EDITED = 0, 1, 2

# The second string of an EDITED pair of near lengths may be this much shorter or longer than the first.
SHORTER, LONGER = 3, 2
RANDOM_SHARE = 0.4
POP, REPLACE, INSERT = 0, 1, 2
LENGTHENS = (-1, 0, 1)
MAX_TRIES = 100_000

_BITS_PER_LETTER = 5
_LETTERS_PER_WORD = 12


@compiled(nogil=True)
def draw_pairs(
    strings, lengths, seed, split, indices, first_bucket, end_bucket, kind, shortest, longest,
    alphabet, min_letters, max_letters, uniform_edits, redraw_pair, near_lengths,
):  # fmt: skip
    """Draw each pair again, from its own stream, until its content falls into the split's buckets."""
    letters = np.empty(alphabet, dtype=np.int8)
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
                low, high = (max(1, length - SHORTER), length + LONGER) if near_lengths else (shortest, longest)
                state, lengths[row, 1] = _draw_edited(
                    state, first, second, length, low, high, letters, actions, copy, min_letters, max_letters,
                    uniform_edits, redraw_pair,
                )  # fmt: skip
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
def _draw_edited(
    state, first, second, length, low, high, letters, actions, copy, min_letters, max_letters, uniform_edits,
    redraw_pair,
):  # fmt: skip
    """Algorithm 1: a random second string of `low` to `high` letters, or a copy of the first one after random edits."""
    while True:
        state, num_letters = _choose_letters(state, letters, min_letters, max_letters)
        state = _fill(state, first, length, letters, num_letters)
        state, coin = rng.unit(state)
        if coin < RANDOM_SHARE:
            state, extra = rng.below(state, high - low + 1)
            state = _fill(state, second, low + extra, letters, num_letters)
            return state, low + extra
        while True:
            num_edits = length
            if uniform_edits:
                state, extra = rng.below(state, length)
                num_edits = 1 + extra
            state, edited = _draw_actions(state, actions, num_edits, length)
            if low <= edited <= high:
                copy[:length] = first[:length]
                state = _edit(state, copy, length, actions, num_edits, letters, num_letters)
                second[:edited] = copy[:edited]
                return state, edited
            if redraw_pair:
                break


@compiled(nogil=True)
def _choose_letters(state, letters, fewest, most):
    """The first entries become a uniform choice of `fewest` to `most` letters without repetition."""
    state, extra = rng.below(state, most - fewest + 1)
    count = fewest + extra
    for i in range(len(letters)):
        letters[i] = i
    if count < len(letters):  # else the order is of no consequence
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
    """Choose what to do, and foretell the length that comes of it: most copies are rejected for that alone."""
    for k in range(num_edits):
        state, actions[k] = rng.below(state, 3)
        if length == 0:
            actions[k] = INSERT  # nothing else can be done to an empty string
        length += LENGTHENS[actions[k]]
    return state, length


@compiled(nogil=True)
def _edit(state, string, length, actions, num_edits, letters, num_letters):
    """Pop, replace and insert at random places, in place."""
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
    """Letters are hashed many to a word: hashing them singly would take longer than drawing them."""
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
    """Tokens `first | second pad ... =`: 0 pads, then one token per letter, then the bar and the equals sign."""
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
