"""Random Sudoku puzzles in numba: grids, minimal puzzles with one solution, further clues, symmetries, content hashes.

The symmetries of a board are relabelling the digits, permuting bands, rows in a band, stacks and columns in a stack,
and transposing: 2 * 6**8 * 9! of them at side 9.
"""

import numpy as np
from numba import uint64

from looped.tasks import rng
from looped.tasks.jit import compiled
from looped.tasks.sudoku.solver import is_forced, load, search, solve_boards

MAX_TRIES = 100_000
NO_LIMIT = 2**31


@compiled(nogil=True)
def draw_puzzles(
    puzzles, solutions, seed, split, indices, first_bucket, end_bucket, clues, most_clues,
    fewest_guesses, most_guesses, geometry, work,
):  # fmt: skip
    """Fill in puzzles of a split, each from its own key; returns the guesses of each, -1 from where none was found.

    A puzzle is a minimal one of at most `most_clues` clues and of as many guesses as are asked for, with clues added
    until there are `clues`: these make it easier, and so the guesses are those of the minimal one, as in a pool.
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
            if np.count_nonzero(puzzle) > most_clues:
                continue
            _, _, tried = solve_boards(puzzles[row : row + 1], 2, geometry, work)
            if not fewest_guesses <= tried[0] <= most_guesses:
                continue
            state = _add_clues(puzzle, solution, order, clues, state)
            if by_grid or first_bucket <= puzzle_bucket(puzzle) < end_bucket:
                guesses[row] = tried[0]
                break
        if guesses[row] < 0:
            break
    return guesses


@compiled(nogil=True)
def draw_images(puzzles, solutions, seed, split, indices, clues, symmetric):
    """Replace each board by a random image of itself with clues added, in place, each from its own key."""
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
    """A random order of lines that keeps those of a band together."""
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
    """The first `count` entries become a random permutation of 0 .. count - 1."""
    for i in range(count):
        state, j = rng.below(state, i + 1)
        order[i] = order[j]
        order[j] = i
    return state


@compiled(nogil=True)
def _draw_grid(solution, state, geometry, work):
    """A random full grid: random guesses from an empty board."""
    solution[:] = 0
    count = load(solution, geometry, work)
    _, _, state = search(solution, 1, count, state, geometry, work)
    return state


@compiled(nogil=True)
def _dig(puzzle, solution, order, state, geometry, work):
    """Leave out clues in random order wherever the others force the digit: what is left is minimal.

    A clue that could not be left out early cannot be left out later, with fewer others there, so one pass is enough.
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
    """Fill in random open cells until there are that many clues."""
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
    """The bucket that decides the split of each board: of its grid, or of the puzzle itself at side 4.

    There are but two 4x4 grids up to symmetry, too few to split.
    """
    buckets = np.empty(len(puzzles), dtype=np.int64)
    for row in range(len(puzzles)):
        by_grid = puzzles.shape[1] > 16
        buckets[row] = grid_bucket(solutions[row]) if by_grid else puzzle_bucket(puzzles[row])
    return buckets


@compiled(nogil=True)
def grid_bucket(solution):
    """The bucket of a full grid: equal for all its images, whatever the symmetry.

    Two rows make a permutation of the digits, from one to the other. Its cycle lengths survive relabelling, permuting
    columns and exchanging the two; the multiset of them over all pairs of rows survives permuting rows; and the
    unordered pair of multisets, of rows and of columns, survives transposing.
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
    """A hash of a permutation's cycle lengths; the permutation is used up."""
    digest = uint64(0)
    for start in range(len(to)):
        at, length = start, 0
        while to[at] >= 0:
            to[at], at = -1, to[at]
            length += 1
        digest += rng.scramble(uint64(length))
    return digest


def _small_images():
    """Where each cell of a 4x4 board comes from, in each of its 128 images (digits apart)."""
    lines = [(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)]
    lines += [line[2:] + line[:2] for line in lines]
    boards = [[[4 * i + j for j in columns] for i in rows] for rows in lines for columns in lines]
    return np.array([np.ravel(image) for board in boards for image in (board, np.transpose(board))])


_SMALL_IMAGES = _small_images()


@compiled(nogil=True)
def puzzle_bucket(puzzle):
    """The bucket of a 4x4 puzzle: equal for all its images, as it is the hash of the least of them.

    Each image has its digits relabelled in the order in which they come.
    """
    least = ~uint64(0)
    names = np.empty(5, dtype=np.uint64)
    for image in _SMALL_IMAGES:
        names[:] = 0
        code, known = uint64(0), uint64(0)
        for cell in image:
            digit = puzzle[cell]
            if digit and names[digit] == 0:
                known += uint64(1)
                names[digit] = known
            code = code * uint64(5) + names[digit]
        least = min(least, code)
    return rng.bucket(rng.absorb(least, 0))
