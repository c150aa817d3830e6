"""Whole blocks that approximate a function: the paper's construction and smaller ones, by name in CONSTRUCTIONS."""

from looped.theory.constructions.base import Construction
from looped.theory.constructions.digits import ModulatedDigits
from looped.theory.constructions.lean import Lean
from looped.theory.constructions.modulated import Modulated, ModulatedMinimal, ModulatedSqrt
from looped.theory.constructions.paper import Paper
from looped.theory.constructions.sqrt_multiset import ModulatedSqrtMultiset
from looped.theory.constructions.stream import LeanHorner, LeanMultiset, LeanStream

CONSTRUCTIONS: dict[str, type[Construction]] = {
    construction.name: construction
    for construction in (
        Paper,
        Lean,
        LeanStream,
        LeanHorner,
        LeanMultiset,
        Modulated,
        ModulatedMinimal,
        ModulatedSqrt,
        ModulatedSqrtMultiset,
        ModulatedDigits,
    )
}
