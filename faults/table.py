"""The common result of every family of faults: tries, failures, the first failing example, and how to see it again."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Row:
    """One family of faults over one workload."""

    name: str
    again: str
    """arguments of `python -m faults` that repeat one try; {} stands for the try's name"""
    tries: int = 0
    left_out: int = 0
    """tries that did not fit into the time"""
    failures: dict[str, str] = field(default_factory=dict)
    """what was wrong, by the name of the try"""
    notes: Counter[str] = field(default_factory=Counter)
    """how the tries ended, counted"""
    commits: Counter[str] = field(default_factory=Counter)
    """the commits that were tried"""

    def add(self, case: str, problem: str | None, notes: Counter[str], commit: str) -> None:
        """Count one try, whose name repeats it, and what was wrong with it."""
        self.tries += 1
        if problem is not None:
            self.failures[case] = problem
        self.notes += notes
        self.commits[commit] += 1

    @property
    def family(self) -> str:
        """Return the name of the family that the row belongs to."""
        return self.again.split()[0]

    @property
    def kinds(self) -> Counter[str]:
        """Count the failures by kind."""
        return Counter(kind(problem) for problem in self.failures.values())


def merged(rows: Iterable[Row]) -> list[Row]:
    """Return one row per name, with the counts of all rows of that name."""
    found: dict[str, Row] = {}
    for row in rows:
        whole = found.setdefault(row.name, Row(row.name, row.again))
        whole.tries += row.tries
        whole.left_out += row.left_out
        whole.failures |= row.failures
        whole.notes += row.notes
        whole.commits += row.commits
    return list(found.values())


def kind(problem: str) -> str:
    """Return the words in front of a problem's details; of a traceback, with its exception."""
    words = problem.split(":")
    return ":".join(words[: 2 if words[0] == "traceback" else 1]).partition(" (")[0]


def summary(families: Iterable[tuple[str, Sequence[Row]]]) -> str:
    """Return a table with one line for each family that was tried, from what it is and its rows."""
    lines = ["| faults | tries | left out | failures |", "|---|---:|---:|---:|"]
    for what, rows in families:
        if rows:
            tries, left_out = sum(row.tries for row in rows), sum(row.left_out for row in rows)
            failures = sum(len(row.failures) for row in rows)
            lines.append(f"| {what} | {tries:,} | {left_out:,} | {failures:,} |")
    return "\n".join(lines) + "\n"


def markdown(rows: Iterable[Row]) -> str:
    """Return the rows as one table, and every kind of failure below it with its first example."""
    rows = list(rows)
    lines = ["| faults | tries | left out | failures | how the tries ended |", "|---|---:|---:|---:|---|"]
    for row in rows:
        notes = ", ".join(f"{count:,} {note}" for note, count in row.notes.most_common(6))
        lines.append(f"| {row.name} | {row.tries:,} | {row.left_out:,} | {len(row.failures):,} | {notes} |")
    for row in rows:
        if not row.failures:
            continue
        lines += ["", f"### {row.name}: {len(row.failures):,} of {row.tries:,} failed", ""]
        for name, count in row.kinds.most_common():
            case, problem = next(item for item in row.failures.items() if kind(item[1]) == name)
            lines.append(f"- {count:,} x {_safe(problem)}")
            lines.append(f"  Again: `python -m faults {row.again.format(shlex.quote(case))}`")
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """Return one line without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)[:400]
