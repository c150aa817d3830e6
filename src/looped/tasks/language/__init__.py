"""Language modelling: predict the next token of a text."""

from looped.tasks.language.task import Language

__all__ = ["Language"]
