"""Trained models in use: load one, ask it, and watch its answer after every loop."""

from looped.inference.run import Frame, Run, load_run, solve
from looped.inference.shipping import load

__all__ = ["Frame", "Run", "load", "load_run", "solve"]
