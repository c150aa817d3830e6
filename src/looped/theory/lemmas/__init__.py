"""The lemmas of the proofs as small networks: quantizer, contextual map, memorizers.

Every module lists the faults of the printed lemma by name in FAULTS. Its networks take `printed`, a set of such names,
and are then built with these faults.
"""

from collections.abc import Collection

from looped.utils.errors import require, require_one_of


def require_known(printed: Collection[str], known: Collection[str]) -> None:
    """Raise InputError for an unknown fault: with a typo the corrected network would pass for the printed one."""
    given = isinstance(printed, Collection) and not isinstance(printed, str)
    require(given, f"printed: expected a set of fault names, got {printed!r}")
    for name in printed:
        require_one_of("printed fault", name, known)
