"""`python -m faults`: break the program under test and print the table of what it did not survive."""

import argparse
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import NamedTuple

from faults import bitflips, command_lines, hostile, io_errors, kills, mutations, numbers, power, together
from faults.table import Row, markdown, merged, summary
from faults.target import Target
from faults.tries import Journal, Tries, carry_out
from faults.workloads import training_arguments


class Family(NamedTuple):
    """One family of faults."""

    what: str
    tries: Callable[..., Iterable[Tries]]
    share: float
    """of the minutes, beside the shares of the others"""


FAMILIES = {
    "kill": Family("killed before, in and after every file operation", kills.kill_at_operations, 3),
    "disk": Family("disk full, failing or writing short at every file operation", io_errors.fail_at_operations, 3),
    "power": Family("power cut after every file operation, simulated", power.cut_power, 2),
    "bits": Family("single bits flipped in the files of a run", bitflips.flip_bits, 2),
    "random-kill": Family("killed at random times, up to six times in a row", kills.kill_at_random, 2),
    "mutations": Family("mutated configs, records, checkpoints, data, texts and weights", mutations.mutate, 2),
    "hostile": Family("hostile files in a run folder", hostile.hostile_runs, 2),
    "hostile-data": Family("hostile data files", hostile.hostile_data, 1),
    "commands": Family("odd command lines", command_lines.fuzz, 3),
    "nan": Family("NaN and infinity in data, gradients, weights and optimizer state", numbers.non_finite, 1),
    "loops": Family("1,000 loops, forward and backward, float32 and bfloat16", numbers.thousand_loops, 2),
    "together": Family("two trainers, two runners, killed runners", together.concurrency, 1),
    "leaks": Family("memory, files and threads after many calls", together.leaks, 1),
}

_WRITE_SECONDS = 10.0
_WARM_UP = (
    "solve warm-up --json", "eval warm-up --size 2", "inspect warm-up", "check warm-up", "theory bounds",
    "paper status table1 --scale smoke", "data sample language --size 1",
    *(f"data sample {task} --size 1" for task in ("lcs", "sudoku", "countdown", "decision-tree")),
    "data build edit-distance --task.length 6 --size 2 --out warm-up.jsonl", "data check warm-up.jsonl",
)  # fmt: skip
"""commands after which a warm process has imported and compiled what most tries need"""


def main() -> int:
    """Run the chosen families of faults; the exit code is 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"which faults, of {', '.join(FAMILIES)} (all)")
    parser.add_argument("--full", action="store_true", help="every fault instead of a seeded sample; takes hours")
    parser.add_argument("--minutes", type=float, help="time for all; the table says how many tries were left out")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample and of the order")
    parser.add_argument("--jobs", type=int, default=1, help="processes; with --full, all of them share each family")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth try, from the Kth on, to share the work out")
    parser.add_argument("--only", help="one try, as a table names it")
    parser.add_argument("--journal", type=Path, help="folder that keeps every result; a later call goes on from there")
    parser.add_argument("--retry", action="store_true", help="try again what failed according to the journal")
    parser.add_argument("--source", type=Path, default=Path(), help="source tree of the program under test")
    parser.add_argument("--commit", help="what to call the source tree, where git does not know")
    parser.add_argument("--out", type=Path, help="file that also gets the table")
    options = parser.parse_args()
    chosen = options.families or list(FAMILIES)
    if not re.fullmatch(r"[1-9]\d*/[1-9]\d*", options.part):
        parser.error(f"--part: expected K/N, got {options.part!r}")
    for name in chosen:
        if name not in FAMILIES:
            parser.error(f"unknown family {name!r}: expected one of {', '.join(FAMILIES)}")
    harness = _Harness(options, chosen)
    with ThreadPoolExecutor(options.jobs) as pool:  # the work is done by the targets' own processes
        for job in [pool.submit(harness.work) for _ in range(options.jobs)]:
            job.result()
    if options.only is not None and not harness.rows:
        parser.error(f"no try {options.only!r} in {', '.join(chosen)}: it may need --full or another --seed")
    print(harness.table(), end="")
    if options.out is not None:
        options.out.write_text(harness.table())
    return int(any(row.failures for row in harness.rows))


class _Part(NamedTuple):
    """A share of a family's tries: every `step`th, from number `first` on."""

    family: str
    first: int
    step: int


class _Harness:
    """The chosen families, the time that is left for them, and their rows so far."""

    def __init__(self, options: argparse.Namespace, chosen: list[str]) -> None:
        first, step = map(int, options.part.split("/"))
        shares = options.jobs if options.full else 1
        parts = [_Part(name, first + step * turn, step * shares) for turn in range(shares) for name in chosen]
        self.options, self.waiting = options, parts
        self.found: dict[_Part, list[Row]] = {part: [] for part in parts}
        self.end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
        self._turn, self._written = threading.Lock(), 0.0
        with Target(options.source) as target:
            self.commit = options.commit or target.commit
        self.journals = {
            name: Journal(options.journal and options.journal / f"{name}.jsonl", self.commit) for name in chosen
        }

    @property
    def rows(self) -> list[Row]:
        """Return all rows so far, family by family."""
        names = list(FAMILIES)
        parts = sorted(self.found, key=lambda part: names.index(part.family))
        return merged(row for part in parts for row in self.found[part])

    def work(self) -> None:
        """Carry out one part after the other, with one warm process, until none is waiting.

        An error of the harness itself is printed at once, because `main` sees it only when the other jobs have ended.
        """
        with Target(self.options.source) as target:
            train = [*training_arguments(target), "--out", "warm-up"]
            target.warm([train, *(command.split() for command in _WARM_UP)])
            try:
                while (part := self._next()) is not None:
                    self._carry_out(target, *part)
            except Exception:
                traceback.print_exc()
                raise

    def _next(self) -> tuple[_Part, float] | None:
        """Return the next part and its share of the time that is left; None at the end."""
        with self._turn:
            if not self.waiting:
                return None
            total = sum(FAMILIES[each.family].share for each in self.waiting)
            part = self.waiting.pop(0)
        return part, min(1.0, FAMILIES[part.family].share * self.options.jobs / total)

    def _carry_out(self, target: Target, part: _Part, share: float) -> None:
        options, name = self.options, part.family
        tries = list(FAMILIES[name].tries(target, full=options.full, seed=options.seed))
        started = time.monotonic()  # after the undisturbed runs that the tries are compared with
        deadline = None if self.end is None else started + (self.end - started) * share
        limits = {"seed": options.seed, "deadline": deadline, "only": options.only, "retry": options.retry}
        limits["part"] = part.first, part.step
        for row in carry_out(name, tries, self.journals[name], told=lambda rows: self._keep(part, rows), **limits):
            counts = f"{row.tries} tries, {row.left_out} left out, {len(row.failures)} failures"
            print(f"[{time.monotonic() - started:5.0f} s] {row.name}: {counts}", file=sys.stderr)

    def _keep(self, part: _Part, rows: list[Row]) -> None:
        with self._turn:
            self.found[part] = rows
            if self.options.out is not None and time.monotonic() > self._written + _WRITE_SECONDS:
                self._written = time.monotonic()
                self.options.out.write_text(self.table())

    def table(self) -> str:
        """Return the table so far."""
        options = self.options
        rows = self.rows
        commits = sorted({commit for row in rows for commit in row.commits}) or [self.commit]
        what = "all faults" if options.full else f"a sample with seed {options.seed}"
        families = [(family.what, [row for row in rows if row.family == name]) for name, family in FAMILIES.items()]
        title = f"# Faults: commit {', '.join(commits)}, {date.today()}, {what}"
        return f"{title}\n\n{summary(families)}\n{markdown(rows)}"


if __name__ == "__main__":
    sys.exit(main())
