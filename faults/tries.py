"""Tries of faults: which of them are carried out, in which time, and what is kept of those that were."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from faults.table import Row


@dataclass(frozen=True)
class Result:
    """The end of one try."""

    problem: str | None
    """what was wrong; None for nothing"""
    notes: dict[str, int] = field(default_factory=dict)
    """how it ended, counted over the tries of a row"""


def result(problem: str | None, note: str) -> Result:
    """Return a result with one note."""
    return Result(problem, {note: 1})


class Tries(NamedTuple):
    """Tries that are carried out together, because they share a process. Most often it is one."""

    row: str
    """the row of the table in which they count"""
    cases: Sequence[str]
    """a name for each, unique in its family"""
    carry_out: Callable[[Sequence[str]], Iterable[Result]]
    """carries out some of the cases and returns a result for each"""


def one(row: str, case: str, carry_out: Callable[[], Result]) -> Tries:
    """Return a single try."""
    return Tries(row, [case], lambda _: [carry_out()])


@dataclass
class Journal:
    """The results of a family in a file, one line each, so that a stopped harness goes on where it was."""

    path: Path | None
    commit: str
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """the newest line of each case"""

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        text = self.path.read_text()
        if not text.endswith("\n"):  # the harness was killed while it wrote
            text = text[: text.rfind("\n") + 1]
            self.path.write_text(text)
        for line in text.splitlines():
            kept = json.loads(line)
            self.results[kept["case"]] = kept

    def add(self, row: str, case: str, found: Result) -> None:
        """Keep one result."""
        line = {"row": row, "case": case, "problem": found.problem, "notes": found.notes, "commit": self.commit}
        self.results[case] = line
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def carry_out(
    family: str,
    tries: Iterable[Tries],
    journal: Journal,
    *,
    seed: int,
    deadline: float | None = None,
    only: str | None = None,
    retry: bool = False,
    part: tuple[int, int] = (1, 1),
    told: Callable[[list[Row]], object] = lambda rows: None,
) -> list[Row]:
    """Carry out the tries in a seeded order until the deadline, and return the rows of their table.

    What the journal has is not tried again, unless it had failed and `retry` is given. Because the order is random, the
    tries that fit into the time are a fair sample of all. Of a part (2, 3), every third is tried, from the second on.
    """
    planned = list(tries)
    if only is not None:
        planned = [each._replace(cases=[only]) for each in planned if only in each.cases]
    rows = {each.row: Row(each.row, f"{family} --only {{}}") for each in planned}
    random.Random(seed).shuffle(planned)
    first, step = part
    for each in planned[first - 1 :: step]:
        row, left = rows[each.row], []
        for case in each.cases:
            kept = journal.results.get(case)
            if kept is None or only is not None or (retry and kept["problem"] is not None):
                left.append(case)
            else:
                row.add(case, kept["problem"], Counter(kept["notes"]), kept["commit"])
        if left and deadline is not None and time.monotonic() > deadline:
            row.left_out += len(left)
            left = []
        for case, found in zip(left, each.carry_out(left) if left else (), strict=True):
            journal.add(each.row, case, found)
            row.add(case, found.problem, Counter(found.notes), journal.commit)
        told(list(rows.values()))
    return list(rows.values())
