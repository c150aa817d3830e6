"""Dynamic programming over many pairs of strings: edit distance and longest common subsequence.

Strings are (pair, 2, letters) int8 arrays of letter numbers below 26, with (pair, 2) lengths. Answers are
(pair, letters + 1) arrays. Entry j belongs to the first j letters of the second string and is 0 beyond its end.
"""

import numpy as np
from numba import uint64

from looped.tasks.jit import compiled

LANES = 32
NUM_LETTERS = 26
WORD = 64


@compiled(nogil=True)
def edit_distances(strings, lengths, insert, delete, replace, border_insert, border_delete):
    """Return the edit distances from the first strings to all prefixes of the second strings.

    The inner loop fills LANES tables at a time, so that the compiler can vectorise it. The border costs apply to
    leading insertions and deletions. For the true distance they equal `insert` and `delete`.
    """
    num_pairs = len(strings)
    width = strings.shape[2]
    answers = np.zeros((num_pairs, width + 1), dtype=np.int64)
    first = np.empty((width, LANES), dtype=np.int16)
    second = np.empty((width, LANES), dtype=np.int16)
    table = np.empty((width + 1, LANES), dtype=np.int16)
    diagonal = np.empty(LANES, dtype=np.int16)
    insert, delete, replace = np.int16(insert), np.int16(delete), np.int16(replace)
    for start in range(0, num_pairs, LANES):
        count = min(LANES, num_pairs - start)
        rows = columns = 0
        for lane in range(count):
            rows = max(rows, lengths[start + lane, 0])
            columns = max(columns, lengths[start + lane, 1])
            for i in range(width):
                first[i, lane] = strings[start + lane, 0, i]
                second[i, lane] = strings[start + lane, 1, i]
        for j in range(columns + 1):
            table[j, :] = j * border_insert
        for i in range(rows + 1):
            if i > 0:
                diagonal[:] = table[0]
                table[0, :] = i * border_delete
                letter = first[i - 1]
                for j in range(1, columns + 1):
                    left, here, other = table[j - 1], table[j], second[j - 1]
                    for lane in range(LANES):
                        above = here[lane]
                        changed = diagonal[lane] + (replace if letter[lane] != other[lane] else np.int16(0))
                        best = min(np.int16(left[lane] + insert), np.int16(above + delete))
                        here[lane] = min(best, np.int16(changed))
                        diagonal[lane] = above
            for lane in range(count):
                if lengths[start + lane, 0] == i:
                    for j in range(lengths[start + lane, 1] + 1):
                        answers[start + lane, j] = table[j, lane]
    return answers


@compiled(nogil=True)
def common_subsequences(strings, lengths):
    """Return the lengths of the longest common subsequences of the first strings and all prefixes of the second.

    Neighbours in a column of the table differ by 0 or 1, so a word holds 64 rows of a column. Bit i is 0 where row
    i + 1 is one more than row i. One addition gives the next column, and its carry is saved for the next 64 rows.
    """
    answers = np.zeros((len(strings), strings.shape[2] + 1), dtype=np.int64)
    places = np.empty(NUM_LETTERS, dtype=np.uint64)
    carries = np.empty(strings.shape[2], dtype=np.uint64)
    for pair in range(len(strings)):
        first, second = strings[pair, 0], strings[pair, 1]
        carries[:] = 0
        for start in range(0, lengths[pair, 0], WORD):
            places[:] = 0
            for i in range(start, min(start + WORD, lengths[pair, 0])):
                places[first[i]] |= uint64(1) << uint64(i - start)
            column = ~uint64(0)
            for j in range(lengths[pair, 1]):
                matches = column & places[second[j]]
                total = column + matches
                carried = total + carries[j]
                carries[j] = (total < matches) | (carried < total)
                column = carried | (column ^ matches)
                answers[pair, j + 1] += _num_ones(~column)
    return answers


@compiled(nogil=True)
def _num_ones(word):
    """Return the number of 1 bits of a word: sums over pairs, fours and bytes, then a product that adds the bytes."""
    word -= (word >> uint64(1)) & uint64(0x5555555555555555)
    word = (word & uint64(0x3333333333333333)) + ((word >> uint64(2)) & uint64(0x3333333333333333))
    word = (word + (word >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * uint64(0x0101010101010101)) >> uint64(56))
