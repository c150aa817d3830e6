"""Analysis of trained models: continuity of the output in the input, and state and modulation loop by loop."""

from looped.analysis.continuity import measure_continuity
from looped.analysis.inside import attention_maps, inspect_model, modulation
from looped.analysis.network import Network, precise_twin

__all__ = ["Network", "attention_maps", "inspect_model", "measure_continuity", "modulation", "precise_twin"]
