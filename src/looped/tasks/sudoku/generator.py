"""Random Sudoku puzzles in numba: grids, minimal puzzles with one solution, more clues, symmetries, content hashes.

The symmetries of a board relabel the digits, permute bands, rows in a band, stacks and columns in a stack, or
transpose the board. A 9x9 board has 2 * 6**8 * 9! of them.
"""

from typing import NamedTuple

import numpy as np
from numba import uint64

from looped.tasks import rng
from looped.tasks.jit import compiled
from looped.tasks.sudoku.solver import is_forced, load, search, solve_boards

MAX_TRIES = 100_000
NO_LIMIT = 2**31


class PuzzleLimits(NamedTuple):
    """Clues and guesses of the puzzles to draw."""

    clues: int = 0
    """number of clues up to which random clues are added to a minimal puzzle"""
    most_clues: int = NO_LIMIT
    """most clues of the minimal puzzle"""
    fewest_guesses: int = 0
    """fewest guesses of the minimal puzzle"""
    most_guesses: int = NO_LIMIT
    """most guesses of the minimal puzzle"""


@compiled(nogil=True)
def draw_puzzles(puzzles, solutions, seed, split, indices, first_bucket, end_bucket, limits, geometry, work):
    """Fill in one puzzle of a split per index, each from its own key, and return the guesses of each.

    After MAX_TRIES draws without success, the guesses of this and of all later puzzles are -1. The limits on guesses
    apply to the minimal puzzle, before clues are added, as in a pool.
    """
    num_cells = puzzles.shape[1]
    by_grid = num_cells > 16  # see content_buckets
    order = np.empty(num_cells, dtype=np.int64)
    guesses = np.full(len(indices), -1, dtype=np.int64)
    for row in range(len(indices)):
        puzzle, solution = puzzles[row], solutions[row]
        state = rng.start(seed, split, indices[row])
        for _ in range(MAX_TRIES):
            state = _draw_grid(solution, state, geometry, work)
            if by_grid and not first_bucket <= grid_bucket(solution) < end_bucket:
                continue
            state = _dig(puzzle, solution, order, state, geometry, work)
            if np.count_nonzero(puzzle) > limits.most_clues:
                continue
            _, _, num_guesses = solve_boards(puzzles[row : row + 1], 2, geometry, work)
            if not limits.fewest_guesses <= num_guesses[0] <= limits.most_guesses:
                continue
            state = _add_clues(puzzle, solution, order, limits.clues, state)
            if by_grid or first_bucket <= puzzle_bucket(puzzle) < end_bucket:
                guesses[row] = num_guesses[0]
                break
        if guesses[row] < 0:
            break
    return guesses


@compiled(nogil=True)
def draw_images(puzzles, solutions, seed, split, indices, clues, symmetric):
    """Replace each board by a random symmetric image with added clues, in place, each from its own key."""
    num_cells = puzzles.shape[1]
    side = int(np.sqrt(num_cells))
    order = np.empty(num_cells, dtype=np.int64)
    before = np.empty((2, num_cells), dtype=puzzles.dtype)
    rows, columns = np.empty(side, dtype=np.int64), np.empty(side, dtype=np.int64)
    bands, digits = np.empty(side, dtype=np.int64), np.empty(side, dtype=np.int64)
    for row in range(len(indices)):
        puzzle, solution = puzzles[row], solutions[row]
        state = rng.start(seed, split, indices[row])
        if symmetric:
            before[0], before[1] = puzzle, solution
            state = _draw_lines(rows, bands, state)
            state = _draw_lines(columns, bands, state)
            state = _shuffle(digits, side, state)
            state, transposed = rng.below(state, 2)
            for i in range(side):
                for j in range(side):
                    old = columns[j] * side + rows[i] if transposed else rows[i] * side + columns[j]
                    new = digits[before[1, old] - 1] + 1
                    solution[i * side + j] = new
                    puzzle[i * side + j] = new if before[0, old] else 0
        state = _add_clues(puzzle, solution, order, clues, state)


@compiled(nogil=True)
def _draw_lines(lines, bands, state):
    """Fill `lines` with a random order that keeps the lines of a band together."""
    side = len(lines)
    box = int(np.sqrt(side))
    state = _shuffle(bands, box, state)
    for band in range(box):
        within = lines[band * box : (band + 1) * box]
        state = _shuffle(within, box, state)
        within += bands[band] * box
    return state


@compiled(nogil=True)
def _shuffle(order, count, state):
    """Fill the first `count` entries with a random permutation of 0 .. count - 1."""
    for i in range(count):
        state, j = rng.below(state, i + 1)
        order[i] = order[j]
        order[j] = i
    return state


@compiled(nogil=True)
def _draw_grid(solution, state, geometry, work):
    """Fill `solution` with a random full grid, by random guesses from an empty board."""
    solution[:] = 0
    queued = load(solution, geometry, work)
    _, _, state = search(solution, 1, queued, state, geometry, work)
    return state


@compiled(nogil=True)
def _dig(puzzle, solution, order, state, geometry, work):
    """Remove clues in random order if the other clues force the digit, so that the puzzle becomes minimal.

    One pass is enough: a clue that is needed early is still needed later, when fewer other clues are left.
    """
    puzzle[:] = solution
    state = _shuffle(order, len(order), state)
    for cell in order:
        puzzle[cell] = 0
        forced, state = is_forced(puzzle, cell, solution[cell], state, geometry, work)
        if not forced:
            puzzle[cell] = solution[cell]
    return state


@compiled(nogil=True)
def _add_clues(puzzle, solution, order, clues, state):
    """Fill in random open cells until the puzzle has `clues` clues."""
    missing = clues - np.count_nonzero(puzzle)
    if missing > 0:
        state = _shuffle(order, len(order), state)
        for cell in order:
            if missing > 0 and puzzle[cell] == 0:
                puzzle[cell] = solution[cell]
                missing -= 1
    return state


@compiled(nogil=True)
def content_buckets(puzzles, solutions):
    """Return the bucket that decides the split of each board: that of its grid, or of the puzzle at side 4.

    There are only two 4x4 grids up to symmetry, which are too few to split.
    """
    buckets = np.empty(len(puzzles), dtype=np.int64)
    for row in range(len(puzzles)):
        by_grid = puzzles.shape[1] > 16
        buckets[row] = grid_bucket(solutions[row]) if by_grid else puzzle_bucket(puzzles[row])
    return buckets


@compiled(nogil=True)
def grid_bucket(solution):
    """Return the bucket of a full grid, which is equal for all its symmetric images.

    Two rows define a permutation of the digits. Its cycle lengths do not change if digits are relabelled, columns are
    permuted or the two rows are exchanged. The multiset of the cycle lengths over all pairs of rows does not change if
    rows are permuted. The unordered pair of multisets, of rows and of columns, does not change under transposition.
    """
    side = int(np.sqrt(len(solution)))
    box = int(np.sqrt(side))
    to = np.empty(side, dtype=np.int64)
    total = uint64(0)
    for across, along in ((side, 1), (1, side)):
        multiset = uint64(0)
        for first in range(side):
            for second in range(first + 1, side):
                for k in range(side):
                    to[solution[first * across + k * along] - 1] = solution[second * across + k * along] - 1
                multiset += rng.absorb(_cycles(to), first // box == second // box)
        total += rng.scramble(multiset)
    return rng.bucket(rng.scramble(total))


@compiled(nogil=True)
def _cycles(to):
    """Return a hash of a permutation's cycle lengths, and overwrite the permutation."""
    digest = uint64(0)
    for start in range(len(to)):
        at, length = start, 0
        while to[at] >= 0:
            to[at], at = -1, to[at]
            length += 1
        digest += rng.scramble(uint64(length))
    return digest


def _small_images():
    """Return the source cell of each cell of a 4x4 board, for each of the 128 symmetries without relabelling."""
    lines = [(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)]
    lines += [line[2:] + line[:2] for line in lines]
    boards = [[[4 * i + j for j in columns] for i in rows] for rows in lines for columns in lines]
    return np.array([np.ravel(image) for board in boards for image in (board, np.transpose(board))])


_SMALL_IMAGES = _small_images()


@compiled(nogil=True)
def puzzle_bucket(puzzle):
    """Return the bucket of a 4x4 puzzle, which is equal for all its images: the hash of the least image.

    The digits of each image are relabelled in order of appearance.
    """
    least = ~uint64(0)
    names = np.empty(5, dtype=np.uint64)
    for image in _SMALL_IMAGES:
        names[:] = 0
        code, num_names = uint64(0), uint64(0)
        for cell in image:
            digit = puzzle[cell]
            if digit and names[digit] == 0:
                num_names += uint64(1)
                names[digit] = num_names
            code = code * uint64(5) + names[digit]
        least = min(least, code)
    return rng.bucket(rng.absorb(least, 0))
