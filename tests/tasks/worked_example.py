"""The task of `examples/own_task.py`, imported from its file."""

from importlib.util import module_from_spec, spec_from_file_location

from tests.paths import ROOT

_spec = spec_from_file_location("tests.tasks.own_task", ROOT / "examples" / "own_task.py")
_module = module_from_spec(_spec)
_spec.loader.exec_module(_module)
Majority = _module.Majority
