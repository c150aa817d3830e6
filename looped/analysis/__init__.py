"""What a trained network does, measured from outside: how far its output moves when its input does."""

from looped.analysis.continuity import measure_continuity
from looped.analysis.network import Network, precise_twin

__all__ = ["Network", "measure_continuity", "precise_twin"]
