"""The paper's models: `LoopModel` with its ends, `LoopStack` to put into work of your own."""

from looped.models.model import LoopModel, build_model
from looped.models.stack import LoopStack

__all__ = ["LoopModel", "LoopStack", "build_model"]
