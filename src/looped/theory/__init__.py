"""The proofs of the paper as networks that run in exact arithmetic. theory-paper has the proofs.

| statement                                   | function                                                          |
|---------------------------------------------|-------------------------------------------------------------------|
| rect, step, impulse                         | gadgets.rect, gadgets.step, gadgets.Pulse                         |
| Lemma "quantize" (Step 1)                   | lemmas.quantizer.quantizer                                        |
| Lemma "contextmap", its corollary (Step 2)  | lemmas.contextual.contextual_map                                  |
| Lemmas "bitextraction", "memorize" (Step 3) | lemmas.memorizer.bit_extraction, lemmas.memorizer.bits_memorizer  |
| Theorem of Appendix B                       | lemmas.memorizer.modulated_memorizer                              |
| Theorem "rate": one block                   | approximate(variant="paper"), constructions.paper.Paper           |
| Theorem "universal": softmax, right side    | approximate(softmax=True), bounds.theorem_right_side              |
| beyond: smaller and faster blocks           | approximate(variant=...), constructions.CONSTRUCTIONS             |
"""

from looped.theory.bounds import (
    Bound,
    bits_needed,
    block_loops_needed,
    loops_for_error,
    loops_needed,
    real_labels_memorizable,
)
from looped.theory.constructions import CONSTRUCTIONS, Construction
from looped.theory.constructions.approximate import Approximation, Trace, approximate
from looped.theory.lemmas.memorizers_by_name import MEMORIZERS, Memory, memorize
from looped.theory.moduli import Moduli, Modulus, moduli
from looped.theory.network import LoopedNetwork, Size
from looped.theory.targets import FUNCTIONS, Lipschitz, Target, load

VARIANTS = tuple(CONSTRUCTIONS)

__all__ = [
    "CONSTRUCTIONS",
    "FUNCTIONS",
    "MEMORIZERS",
    "VARIANTS",
    "Approximation",
    "Bound",
    "Construction",
    "Lipschitz",
    "LoopedNetwork",
    "Memory",
    "Moduli",
    "Modulus",
    "Size",
    "Target",
    "Trace",
    "approximate",
    "bits_needed",
    "block_loops_needed",
    "load",
    "loops_for_error",
    "loops_needed",
    "memorize",
    "moduli",
    "real_labels_memorizable",
]
