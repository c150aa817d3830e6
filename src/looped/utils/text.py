"""Counts, lists and durations in words."""

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 loop`, `2,000 loops`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(items: Sequence[str]) -> str:
    """Return items as a list in words: `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def duration(seconds: float) -> str:
    """Return a time in its largest sensible unit: `40 s`, `12 min`, `3 h`, `5 days`."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
