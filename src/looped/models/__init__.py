"""The paper's models: `LoopModel` with embedding and output layer, and `LoopStack` for use in your own modules."""

from looped.models.model import LoopModel, build_model
from looped.models.stack import LoopStack

__all__ = ["LoopModel", "LoopStack", "build_model"]
