"""A Sudoku solver in numba that counts solutions and guesses.

A cell's candidates are the bits of a number, bit d - 1 for digit d. Digits with one place left and cells with one
candidate left are followed until nothing moves; then the search guesses at a cell with the fewest candidates.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from looped.tasks import rng
from looped.tasks.jit import compiled

_POPCOUNT = np.array([bits.bit_count() for bits in range(512)])
_DIGIT = np.array([bits.bit_length() for bits in range(512)])


class Geometry(NamedTuple):
    """Which cells of a board see which."""

    units: np.ndarray
    """(3 * side, side) cells of each row, column and box"""
    unit_of: np.ndarray
    """(cells, 3) the row, column and box of a cell, as numbers of units"""
    peers: np.ndarray
    """(cells, peers) the other cells that may not hold the same digit"""


class Workspace(NamedTuple):
    """Memory of a search, made once and used for many boards."""

    levels: np.ndarray
    """(cells + 1, cells) candidates at each depth of the search"""
    guessed: np.ndarray
    """(cells + 1,) the cell guessed at, at each depth"""
    queue: np.ndarray
    """(cells,) cells whose digit has just become known"""
    used: np.ndarray
    """(3 * side,) digits seen in each unit"""


@cache
def geometry(side: int) -> Geometry:
    box = round(side**0.5)
    cells = np.arange(side * side)
    row, column = np.divmod(cells, side)
    unit_of = np.stack([row, side + column, 2 * side + row // box * box + column // box], axis=1)
    units = np.stack([np.flatnonzero((unit_of == unit).any(axis=1)) for unit in range(3 * side)])
    shared = (unit_of[:, None, :] == unit_of[None, :, :]).any(axis=2) & (cells[:, None] != cells)
    peers = np.stack([np.flatnonzero(seen) for seen in shared])
    return Geometry(units, unit_of, peers)


def workspace(side: int) -> Workspace:
    cells = side * side
    return Workspace(
        levels=np.zeros((cells + 1, cells), dtype=np.int64),
        guessed=np.zeros(cells + 1, dtype=np.int64),
        queue=np.zeros(cells, dtype=np.int64),
        used=np.zeros(3 * side, dtype=np.int64),
    )


@compiled(nogil=True)
def solve_boards(puzzles, limit, geometry, work):
    """Of each puzzle: the first solution found, the number of solutions up to `limit`, and the number of guesses.

    With limit 2 the guesses of a puzzle with one solution measure its difficulty: the whole search has to be
    exhausted, so their number hardly depends on their order (which goes on from puzzle to puzzle). Singles alone solve
    a puzzle with none.
    """
    solutions = np.zeros_like(puzzles)
    found = np.zeros(len(puzzles), dtype=np.int64)
    guesses = np.zeros(len(puzzles), dtype=np.int64)
    state = rng.start(0, 0, 0)
    for row in range(len(puzzles)):
        count = load(puzzles[row], geometry, work)
        if count >= 0:
            found[row], guesses[row], state = search(solutions[row], limit, count, state, geometry, work)
    return solutions, found, guesses


@compiled(nogil=True)
def is_forced(puzzle, cell, digit, state, geometry, work):
    """Whether an open cell can hold no other digit than the one given; and the state of the draws."""
    count = load(puzzle, geometry, work)
    here = work.levels[0]
    bit = 1 << (digit - 1)
    if here[cell] == bit:
        return True, state
    here[cell] &= ~bit
    if here[cell] & (here[cell] - 1) == 0:
        work.queue[count] = cell
        count += 1
    found, _, state = search(puzzle, 0, count, state, geometry, work)
    return found == 0, state


@compiled(nogil=True)
def load(puzzle, geometry, work):
    """Candidates of every cell into level 0, known open cells into the queue: their number, -1 for a contradiction."""
    units, unit_of, _ = geometry
    here, queue, used = work.levels[0], work.queue, work.used
    used[:] = 0
    for cell in range(len(puzzle)):
        if puzzle[cell]:
            bit = 1 << (np.int64(puzzle[cell]) - 1)
            row, column, box = unit_of[cell]
            if (used[row] | used[column] | used[box]) & bit:
                return -1
            used[row] |= bit
            used[column] |= bit
            used[box] |= bit
            here[cell] = bit
    every = (1 << units.shape[1]) - 1
    count = 0
    for cell in range(len(puzzle)):
        if not puzzle[cell]:
            row, column, box = unit_of[cell]
            bits = every & ~(used[row] | used[column] | used[box])
            if bits == 0:
                return -1
            here[cell] = bits
            if bits & (bits - 1) == 0:
                queue[count] = cell
                count += 1
    return count


@compiled(nogil=True)
def search(solution, limit, count, state, geometry, work):
    """Search from the candidates in level 0, with `count` cells in the queue, until `limit` solutions are found.

    Returns the solutions found, the guesses made, and the state of the draws that choose the guesses. The first
    solution is written out; limit 0 stops at the first solution and writes none. A guess that fails is struck out
    one level up.
    """
    levels, guessed, queue = work.levels, work.guessed, work.queue
    depth = found = guesses = 0
    while True:
        here = levels[depth]
        if _follow(here, queue, count, geometry):
            cell = _fewest(here)
            if cell >= 0:
                rest = here[cell]
                state, skip = rng.below(state, _POPCOUNT[rest])
                for _ in range(skip):
                    rest &= rest - 1
                guess = rest & -rest
                levels[depth + 1] = here
                levels[depth + 1, cell] = guess
                here[cell] ^= guess
                guessed[depth] = cell
                queue[0], count = cell, 1
                depth += 1
                guesses += 1
                continue
            if found == 0 and limit > 0:
                for k in range(len(solution)):
                    solution[k] = _DIGIT[here[k]]
            found += 1
            if found >= limit:
                return found, guesses, state
        depth -= 1
        if depth < 0:
            return found, guesses, state
        cell = guessed[depth]
        queue[0], count = cell, np.int64(_POPCOUNT[levels[depth, cell]] == 1)


@compiled(nogil=True)
def _follow(candidates, queue, count, geometry):
    """Strike known digits from the cells that see them, and set digits that have one place left in a unit.

    The queue holds `count` known cells whose digit is still to be struck elsewhere. False if a cell is left without
    a digit or a digit without a place.
    """
    units, _, peers = geometry
    num_units, side = units.shape
    every = (1 << side) - 1
    unit = quiet = 0
    while True:
        while count > 0:
            count -= 1
            bit = candidates[queue[count]]
            for peer in peers[queue[count]]:
                bits = candidates[peer]
                if bits & bit:
                    bits ^= bit
                    if bits == 0:
                        return False
                    candidates[peer] = bits
                    if bits & (bits - 1) == 0:
                        queue[count] = peer
                        count += 1
        if quiet == num_units:
            return True
        once = twice = known = 0
        for cell in units[unit]:
            bits = candidates[cell]
            twice |= once & bits
            once |= bits
            if bits & (bits - 1) == 0:
                known |= bits
        if once != every:
            return False
        hidden = once & ~twice & ~known
        if hidden:
            for cell in units[unit]:
                bits = candidates[cell] & hidden
                if bits:
                    if bits & (bits - 1):
                        return False
                    candidates[cell] = bits
                    queue[count] = cell
                    count += 1
        quiet = 0 if hidden else quiet + 1
        unit = unit + 1 if unit + 1 < num_units else 0


@compiled(nogil=True)
def _fewest(candidates):
    """An open cell with the fewest candidates, or -1 if every digit is known."""
    best, fewest = -1, len(candidates)
    for cell in range(len(candidates)):
        count = _POPCOUNT[candidates[cell]]
        if 1 < count < fewest:
            best, fewest = cell, count
            if count == 2:
                break
    return best
