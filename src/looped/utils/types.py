"""Choices that the command line and the library share. Imports nothing heavy, so that `--help` is fast."""

from collections.abc import Callable
from typing import Literal

Device = Literal["auto", "cpu", "cuda", "mps"]
Engine = Literal["eager", "compiled", "fused"]
"""implementation of the loops; `models/engines.py` describes each"""
EngineChoice = Literal["auto", Engine]
Precision = Literal["float32", "bfloat16", "float8", "float64"]
"""precision of matmuls"""
Split = Literal["train", "validation", "test"]
Progress = Callable[[int, int], None]
"""function called with the number of examples done and their total"""
