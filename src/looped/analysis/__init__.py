"""What a trained network does: how far its output moves when its input does, and what happens inside, loop by loop."""

from looped.analysis.continuity import measure_continuity
from looped.analysis.inside import look_inside, modulation
from looped.analysis.network import Network, precise_twin

__all__ = ["Network", "look_inside", "measure_continuity", "modulation", "precise_twin"]
