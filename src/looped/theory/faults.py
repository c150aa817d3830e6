"""The paper's printed faults by name: every module lists its own, and its networks can be built with some of them."""

from __future__ import annotations

from collections.abc import Collection

from looped.utils.errors import require, require_one_of


def require_known(printed: Collection[str], known: Collection[str]) -> None:
    """Refuse a fault that the network does not have: with a typo the corrected network would pass for the printed."""
    require(not isinstance(printed, str), f"expected a set of printed faults, got the text {printed!r}")
    require(isinstance(printed, Collection), f"expected a set of printed faults, got {printed!r}")
    for name in printed:
        require_one_of("printed fault", name, known)
