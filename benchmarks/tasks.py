"""Whole examples per second of every task, beside a plain-Python generator of the same examples in the same run.

    python benchmarks/tasks.py [--only sudoku] [--seconds 0.3] [--out benchmarks/results/tasks.json]

One core, after warm-up, batches of 512 as in training, label and encoding included; the best of some short rounds,
since other work on a machine only ever makes a round slower. The plain generators are what one would write first.
"""

import argparse
import os
import platform
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

os.environ.update(OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")  # before numpy and numba look

import numba
import numpy as np

from looped.tasks import TASKS, Countdown, DecisionTree, EditDistance, LongestCommonSubsequence, Sudoku, Task
from looped.tasks.language.tokenizer import GPT2, PIECES, ranks_of
from looped.utils.files import save_json

BATCH = 512
ROUNDS = 8


class Case(NamedTuple):
    """A claim: `made(k)` does the k-th piece of fast work and returns how many examples that was."""

    name: str
    made: Callable[[int], float]
    plain: Callable[[], object] | None
    wanted: float
    """per second"""
    unit: float = 1.0
    """examples (or megabytes) that one call of `plain` makes"""


def rate(work: Callable[[int], float], seconds: float) -> float:
    """The best rate of some rounds, each of at least `seconds` and one piece of work."""
    best = 0.0
    for _ in range(ROUNDS):
        done, k, start = 0.0, 0, time.perf_counter()
        while k == 0 or time.perf_counter() - start < seconds:
            done += work(k)
            k += 1
        best = max(best, done / (time.perf_counter() - start))
    return best


def again(make: Callable[[], object]) -> Callable[[int], float]:
    def made(_: int) -> float:
        make()
        return 1.0

    return made


def samples(task: Task) -> Callable[[int], float]:
    """Training batches as a trainer takes them: indices in random order, and a few batches waiting at a time."""
    order = np.random.default_rng(0).permutation(200 * BATCH)
    waiting = deque(maxlen=4)

    def made(k: int) -> float:
        start = k % 200 * BATCH
        waiting.append(task.sample(0, "train", order[start : start + BATCH]))
        return BATCH

    return made


# ------------------------------------------------------------------ plain Python

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def plain_tokens(first: list[str], second: list[str], seq_len: int) -> list[int]:
    tokens = [LETTERS.index(a) + 1 for a in first] + [27] + [LETTERS.index(a) + 1 for a in second]
    return tokens + [0] * (seq_len - 1 - len(tokens)) + [28]


def plain_edit_distance(length: int = 60) -> tuple[list[int], int]:
    letters = random.sample(LETTERS, random.randint(3, 10))
    first = random.choices(letters, k=length)
    if random.random() < 0.4:
        second = random.choices(letters, k=random.randint(length - 3, length + 2))
    else:
        second = []
        while not length - 3 <= len(second) <= length + 2:
            second = list(first)
            for _ in range(length):
                place, letter, action = random.randrange(len(second) or 1), random.choice(letters), random.randrange(3)
                if action == 0 and second:
                    second.pop(place)
                elif action == 1 and second:
                    second[place] = letter
                else:
                    second.insert(place, letter)
    row = [2 * j for j in range(len(second) + 1)]
    for i, a in enumerate(first, 1):
        above, row = row, [2 * i]
        for j, b in enumerate(second, 1):
            row.append(min(row[-1] + 2, above[j] + 2, above[j - 1] + 3 * (a != b)))
    return plain_tokens(first, second, 2 * length + 4), row[-1]


def plain_lcs(length: int = 100) -> tuple[list[int], int]:
    first, second = random.choices(LETTERS, k=length), random.choices(LETTERS, k=length)
    row = [0] * (length + 1)
    for a in first:
        above, row = row, [0]
        for j, b in enumerate(second, 1):
            row.append(above[j - 1] + 1 if a == b else max(row[-1], above[j]))
    return plain_tokens(first, second, 2 * length + 2), row[-1]


ROW_COLUMN_BOX = [(c // 9, 9 + c % 9, 18 + c // 27 * 3 + c % 9 // 3) for c in range(81)]
PEERS = [[d for d in range(81) if d != c and set(ROW_COLUMN_BOX[c]) & set(ROW_COLUMN_BOX[d])] for c in range(81)]


def plain_solutions(board: list[int], limit: int) -> int:
    """Backtracking at the cell with the fewest digits left; the last solution found stays on the board."""
    best: list[int] | None = None
    where = -1
    for cell in range(81):
        if board[cell] == 0:
            taken = {board[peer] for peer in PEERS[cell]}
            left = [digit for digit in range(1, 10) if digit not in taken]
            if best is None or len(left) < len(best):
                best, where = left, cell
    if best is None:
        return 1
    found = 0
    random.shuffle(best)
    for digit in best:
        board[where] = digit
        found += plain_solutions(board, limit - found)
        if found >= limit:
            return found
    board[where] = 0
    return found


def plain_minimal_sudoku() -> tuple[list[int], list[int]]:
    solution = [0] * 81
    plain_solutions(solution, 1)
    puzzle = list(solution)
    for cell in random.sample(range(81), 81):
        puzzle[cell] = 0
        if plain_solutions(list(puzzle), 2) > 1:
            puzzle[cell] = solution[cell]
    return puzzle, solution


def plain_sudoku_image(puzzle: list[int], solution: list[int], clues: int = 0) -> tuple[list[int], list[int]]:
    names = [0, *random.sample(range(1, 10), 9)]
    rows, columns = (
        [3 * band + line for band in random.sample(range(3), 3) for line in random.sample(range(3), 3)]
        for _ in range(2)
    )
    cells = [9 * row + column for row in rows for column in columns]
    if random.random() < 0.5:
        cells = [cells[9 * (k % 9) + k // 9] for k in range(81)]
    puzzle, solution = [names[puzzle[cell]] for cell in cells], [names[solution[cell]] for cell in cells]
    open_cells = [cell for cell in range(81) if puzzle[cell] == 0]
    for cell in random.sample(open_cells, max(0, clues - 81 + len(open_cells))):
        puzzle[cell] = solution[cell]
    return puzzle, solution


def plain_countdown_steps(numbers: list[int], target: int) -> list[tuple[int, str, int, int]] | None:
    if len(numbers) == 1:
        return [] if numbers[0] == target else None
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            rest = [number for k, number in enumerate(numbers) if k not in (i, j)]
            high, low = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
            steps = [(high, "+", low, high + low), (high, "*", low, high * low), (high, "-", low, high - low)]
            if low and high % low == 0:
                steps.append((high, "/", low, high // low))
            for step in steps:
                more = plain_countdown_steps([*rest, step[3]], target)
                if more is not None:
                    return [step, *more]
    return None


def plain_countdown() -> list[int | str]:
    while True:
        numbers, target = [random.randint(1, 99) for _ in range(4)], random.randint(10, 100)
        steps = plain_countdown_steps(numbers, target)
        if steps is not None:
            return [*numbers, target, *(token for a, sign, b, c in steps for token in (a, sign, b, "=", c))]


def plain_decision_tree(points: int = 101, dims: int = 20) -> list[list[float]]:
    coordinates, leaves = [random.randrange(dims) for _ in range(15)], [random.gauss(0, 1) for _ in range(16)]
    prompt = []
    for _ in range(points):
        x, node = [random.gauss(0, 1) for _ in range(dims)], 0
        while node < 15:
            node = 2 * node + 1 + (x[coordinates[node]] > 0)
        prompt += [x, [leaves[node - 15], *[0.0] * (dims - 1)]]
    return prompt[:-1]


def english() -> str:
    """A text that is wherever Python is."""
    from pydoc_data.topics import topics

    return "\n".join(topics.values())


def plain_bpe(text: str) -> list[int]:
    """Merge the pair of lowest rank, again and again, in every word."""
    import regex

    ranks, tokens = ranks_of(GPT2), []
    for word in regex.findall(PIECES, text):
        parts = [bytes([byte]) for byte in word.encode()]
        while len(parts) > 1:
            rank, k = min((ranks.get(parts[k] + parts[k + 1], 1 << 30), k) for k in range(len(parts) - 1))
            if rank == 1 << 30:
                break
            parts[k : k + 2] = [parts[k] + parts[k + 1]]
        tokens += [ranks[part] for part in parts]
    return tokens


# ------------------------------------------------------------------ the table


def cases() -> list[Case]:
    pool = Sudoku(pool=10_000)
    base = pool.sample(0, "train", [0])
    board = base.inputs[0].tolist(), base.targets[0].tolist()
    text = english()
    megabytes, part = len(text.encode()) / 1e6, text[:20_000]
    known = [
        Case("edit-distance, n = 60", samples(EditDistance(length=60)), plain_edit_distance, 100_000),
        Case("lcs, n = 100", samples(LongestCommonSubsequence(length=100)), plain_lcs, 300_000),
        Case("sudoku, new minimal", samples(Sudoku(pool=0)), plain_minimal_sudoku, 800),
        Case("sudoku, augmented", samples(pool), lambda: plain_sudoku_image(*board), 50_000),
        Case("sudoku, 30 clues", samples(replace(pool, clues=30)), lambda: plain_sudoku_image(*board, 30), 50_000),
        Case("countdown", samples(Countdown()), plain_countdown, 20_000),
        Case("decision-tree, 101 points", samples(DecisionTree()), plain_decision_tree, 5_000),
        Case("language, MB of BPE", lambda _: len(GPT2.encode(text)) and megabytes, lambda: plain_bpe(part), 8,
             len(part.encode()) / 1e6),
    ]  # fmt: skip
    measured = {case.name.partition(",")[0] for case in known}
    return known + [Case(name, samples(TASKS[name]()), None, 0) for name in TASKS if name not in measured]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a round")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    random.seed(0)
    figures = []
    print(f"{'':28}{'per second':>14}{'plain Python':>14}{'ratio':>10}{'wanted':>12}")
    for case in cases():
        if options.only in case.name:
            case.made(0)  # compile, load, build
            fast, plain = rate(case.made, options.seconds), float("nan")
            if case.plain is not None:
                plain = case.unit * rate(again(case.plain), options.seconds)
            beside = None if case.plain is None else plain  # JSON has no NaN
            figures.append({"case": case.name, "per_second": fast, "plain": beside, "wanted": case.wanted})
            verdict = "" if fast >= case.wanted else "  too slow"
            print(f"{case.name:28}{fast:14,.0f}{plain:14,.1f}{fast / plain:10,.0f}{case.wanted:12,.0f}{verdict}")
    if options.out:
        about = {"date": str(date.today()), "cpu": platform.processor() or platform.machine(),
                 "python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__}  # fmt: skip
        save_json(options.out, {"about": about, "figures": figures})


if __name__ == "__main__":
    main()
