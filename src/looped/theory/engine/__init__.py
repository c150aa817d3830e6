"""The exact engine: the same numbers as `LoopedNetwork.states`, for a batch, without rounding errors.

`LoopedNetwork.states` defines the network: Fractions, one token at a time. The engine returns equal numbers and is fast
because nearly all of its work is float64 matrix products that are proved to be exact.

compile.py  Splits the rows into static ones, which have the same value in every token of every input (clock, label
            bits, constants), and dynamic ones. Gives every row a denominator D and every hidden unit a scale E, so
            that the scaled network has integer weights. ReLU commutes with positive scaling.
state.py    Holds the dynamic rows of a batch: as float64 while all values are integers below 2^53 in absolute value,
            else as Python integers or Fractions. Tracks the range of every row. All writes go through `State`.
plan.py     Classifies the hidden units of one loop by the ranges of the rows they read (`UnitKind`): zero or linear
            for the whole batch, computable in float64, or not. Collects the matrices of such a pattern.
engine.py   Runs the loops: static rows once per batch, then attention, then the feed-forward layer.
float64.py  Runs the same network in plain float64 and proves through which loop its states are exact.

A sum of integers is exact in float64 if the absolute values of its terms add up to less than 2^53, because then every
partial sum is an integer below 2^53. The engine checks this bound before each product, with the ranges of this loop.
Linear units are added up symbolically, so impulses, which cancel outside their loop, cost nothing and cannot overflow.
docs/theory.md, "Exactness of the engine", has the proof.
"""

from looped.theory.engine.engine import Engine
from looped.theory.engine.float64 import FloatRun, run_in_float64

__all__ = ["Engine", "FloatRun", "run_in_float64"]
