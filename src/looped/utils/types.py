"""Choices that the command line offers and the library takes, named once. Nothing is imported here, so that `--help`
does not wait for the rest."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Engine = Literal["eager", "compiled", "fused"]
"""how the loops are computed: `models/engines.py` says what each does"""
WantedEngine = Literal["auto", Engine]
Split = Literal["train", "validation", "test"]
