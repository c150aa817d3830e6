"""Counts and lists in words, the same wherever they are read."""

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    """`1 loop`, `2,000 loops`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
