"""A Sudoku solver in numba that counts solutions and guesses.

A cell's candidates are the bits of a number, bit d - 1 for digit d. The solver first places all singles: cells with one
candidate and digits with one place in a unit. Then it guesses in a cell with the fewest candidates.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from looped.tasks import rng
from looped.tasks.jit import compiled

_POPCOUNT = np.array([bits.bit_count() for bits in range(512)])
_DIGIT = np.array([bits.bit_length() for bits in range(512)])


class Geometry(NamedTuple):
    """The rows, columns and boxes of a board."""

    units: np.ndarray
    """(3 * side, side) cells of each row, column and box"""
    unit_of: np.ndarray
    """(cells, 3) indices into `units`: the row, column and box of each cell"""
    peers: np.ndarray
    """(cells, peers) other cells in the same row, column or box"""


class Workspace(NamedTuple):
    """Buffers of a search, allocated once for many boards."""

    levels: np.ndarray
    """(cells + 1, cells) candidates at each depth of the search"""
    guessed: np.ndarray
    """(cells + 1,) cell of the guess at each depth"""
    queue: np.ndarray
    """(cells,) cells with a new digit, which their peers still have as a candidate"""
    used: np.ndarray
    """(3 * side,) digits of each unit"""


@cache
def geometry(side: int) -> Geometry:
    """Return the geometry of a board."""
    box = round(side**0.5)
    cells = np.arange(side * side)
    row, column = np.divmod(cells, side)
    unit_of = np.stack([row, side + column, 2 * side + row // box * box + column // box], axis=1)
    units = np.stack([np.flatnonzero((unit_of == unit).any(axis=1)) for unit in range(3 * side)])
    shared = (unit_of[:, None, :] == unit_of[None, :, :]).any(axis=2) & (cells[:, None] != cells)
    peers = np.stack([np.flatnonzero(row) for row in shared])
    return Geometry(units, unit_of, peers)


def workspace(side: int) -> Workspace:
    """Return new buffers for boards of this side."""
    cells = side * side
    return Workspace(
        levels=np.zeros((cells + 1, cells), dtype=np.int64),
        guessed=np.zeros(cells + 1, dtype=np.int64),
        queue=np.zeros(cells, dtype=np.int64),
        used=np.zeros(3 * side, dtype=np.int64),
    )


@compiled(nogil=True)
def solve_boards(puzzles, limit, geometry, work):
    """Return for each puzzle a solution, the number of solutions up to `limit`, and the number of guesses.

    With limit 2, the guesses measure the difficulty of a puzzle with one solution. The search is then exhaustive, so
    their number hardly depends on the random order. A puzzle without guesses needs singles only.
    """
    solutions = np.zeros_like(puzzles)
    counts = np.zeros(len(puzzles), dtype=np.int64)
    guesses = np.zeros(len(puzzles), dtype=np.int64)
    state = rng.start(0, 0, 0)
    for row in range(len(puzzles)):
        queued = load(puzzles[row], geometry, work)
        if queued >= 0:
            counts[row], guesses[row], state = search(solutions[row], limit, queued, state, geometry, work)
    return solutions, counts, guesses


@compiled(nogil=True)
def is_forced(puzzle, cell, digit, state, geometry, work):
    """Return True if an open cell can hold no digit but this one, and the next state."""
    queued = load(puzzle, geometry, work)
    candidates = work.levels[0]
    bit = 1 << (digit - 1)
    if candidates[cell] == bit:
        return True, state
    candidates[cell] &= ~bit
    if candidates[cell] & (candidates[cell] - 1) == 0:
        work.queue[queued] = cell
        queued += 1
    num_solutions, _, state = search(puzzle, 0, queued, state, geometry, work)
    return num_solutions == 0, state


@compiled(nogil=True)
def load(puzzle, geometry, work):
    """Write the candidates of all cells to level 0 and queue the open cells with one candidate.

    Return the number of queued cells, or -1 for a contradiction.
    """
    units, unit_of, _ = geometry
    candidates, queue, used = work.levels[0], work.queue, work.used
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
            candidates[cell] = bit
    every = (1 << units.shape[1]) - 1
    queued = 0
    for cell in range(len(puzzle)):
        if not puzzle[cell]:
            row, column, box = unit_of[cell]
            bits = every & ~(used[row] | used[column] | used[box])
            if bits == 0:
                return -1
            candidates[cell] = bits
            if bits & (bits - 1) == 0:
                queue[queued] = cell
                queued += 1
    return queued


@compiled(nogil=True)
def search(solution, limit, queued, state, geometry, work):
    """Search from the candidates in level 0, with `queued` cells in the queue, until there are `limit` solutions.

    Return the number of solutions, the number of guesses, and the next state of the draws that choose the guesses. The
    first solution is written to `solution`. Limit 0 stops at the first solution and writes nothing. A guess that fails
    is removed from the candidates one level up.
    """
    levels, guessed, queue = work.levels, work.guessed, work.queue
    depth = num_solutions = guesses = 0
    while True:
        candidates = levels[depth]
        if _propagate(candidates, queue, queued, geometry):
            cell = _fewest(candidates)
            if cell >= 0:
                rest = candidates[cell]
                state, skip = rng.below(state, _POPCOUNT[rest])
                for _ in range(skip):
                    rest &= rest - 1
                guess = rest & -rest
                levels[depth + 1] = candidates
                levels[depth + 1, cell] = guess
                candidates[cell] ^= guess
                guessed[depth] = cell
                queue[0], queued = cell, 1
                depth += 1
                guesses += 1
                continue
            if num_solutions == 0 and limit > 0:
                for k in range(len(solution)):
                    solution[k] = _DIGIT[candidates[k]]
            num_solutions += 1
            if num_solutions >= limit:
                return num_solutions, guesses, state
        depth -= 1
        if depth < 0:
            return num_solutions, guesses, state
        cell = guessed[depth]
        queue[0], queued = cell, np.int64(_POPCOUNT[levels[depth, cell]] == 1)


@compiled(nogil=True)
def _propagate(candidates, queue, queued, geometry):
    """Remove each queued cell's digit from its peers, and set digits that have one place left in a unit.

    Repeat until nothing changes. Return False if a cell has no candidate left or a digit has no place left.
    """
    units, _, peers = geometry
    num_units, side = units.shape
    every = (1 << side) - 1
    unit = unchanged_units = 0
    while True:
        while queued > 0:
            queued -= 1
            bit = candidates[queue[queued]]
            for peer in peers[queue[queued]]:
                bits = candidates[peer]
                if bits & bit:
                    bits ^= bit
                    if bits == 0:
                        return False
                    candidates[peer] = bits
                    if bits & (bits - 1) == 0:
                        queue[queued] = peer
                        queued += 1
        if unchanged_units == num_units:
            return True
        once = twice = placed = 0
        for cell in units[unit]:
            bits = candidates[cell]
            twice |= once & bits
            once |= bits
            if bits & (bits - 1) == 0:
                placed |= bits
        if once != every:
            return False
        hidden_singles = once & ~twice & ~placed
        if hidden_singles:
            for cell in units[unit]:
                bits = candidates[cell] & hidden_singles
                if bits:
                    if bits & (bits - 1):
                        return False
                    candidates[cell] = bits
                    queue[queued] = cell
                    queued += 1
        unchanged_units = 0 if hidden_singles else unchanged_units + 1
        unit = unit + 1 if unit + 1 < num_units else 0


@compiled(nogil=True)
def _fewest(candidates):
    """Return an open cell with the fewest candidates, or -1 if every cell has one."""
    best, fewest = -1, len(candidates)
    for cell in range(len(candidates)):
        count = _POPCOUNT[candidates[cell]]
        if 1 < count < fewest:
            best, fewest = cell, count
            if count == 2:
                break
    return best
