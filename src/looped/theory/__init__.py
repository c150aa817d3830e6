"""The paper's proofs as networks that run, in exact arithmetic. docs/theory.md maps lemma -> function -> test.

| statement                                   | function                                              |
|---------------------------------------------|-------------------------------------------------------|
| rect, step, impulse                         | gadgets.rect, gadgets.step, gadgets.Pulse             |
| Lemma "quantize" (Step 1)                   | quantizer.quantizer                                   |
| Lemma "contextmap", its corollary (Step 2)  | contextual.contextual_map                             |
| Lemmas "bitextraction", "memorize" (Step 3) | memorizer.bit_extraction, memorizer.bits_memorizer    |
| Theorem of Appendix B                       | memorizer.modulated_memorizer                         |
| Theorem "rate": one block                   | approximate(variant="paper"), block.paper_block       |
| Theorem "universal": softmax, right side    | approximate(softmax=True), bounds.theorem_right_side  |
| beyond: smaller and faster blocks           | approximate(variant=...), lean, streams               |
"""

from looped.theory.bounds import (
    Bound,
    bits_needed,
    block_loops_needed,
    loops_for_error,
    loops_needed,
    real_labels_memorizable,
)
from looped.theory.constructions.approximate import BUILDERS, Approximation, Plan, Trace, approximate
from looped.theory.lemmas.memorize import MEMORIZERS, Memory, memorize
from looped.theory.moduli import Moduli, Modulus, moduli
from looped.theory.network import LoopedNetwork, Size
from looped.theory.targets import FUNCTIONS, Lipschitz, Target, load

VARIANTS = tuple(BUILDERS)

__all__ = [
    "FUNCTIONS",
    "MEMORIZERS",
    "VARIANTS",
    "Approximation",
    "Bound",
    "Lipschitz",
    "LoopedNetwork",
    "Memory",
    "Moduli",
    "Modulus",
    "Plan",
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
