"""looped: the laboratory for looped Transformers.

Public names are loaded when they are first used, so that `import looped` and `looped --help` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from looped.utils.version import __version__

_HOMES = {
    "looped.config": ("ModelConfig", "RunConfig", "TrainConfig"),
    "looped.inference": ("Frame", "Run", "load", "load_run", "solve"),
    "looped.models": ("LoopModel", "LoopStack", "build_model"),
    "looped.models.from_theory": ("from_theory",),
    "looped.recipes": ("configure", "recipe"),
    "looped.tasks": ("TASKS", "Batch", "Spec", "Task", "make_task"),
    "looped.training": ("Callback", "Evaluation", "LoopScore", "Trainer", "evaluate", "train"),
    "looped.utils.errors": ("InputError",),
    "looped.utils.plugins": ("register",),
}
_MODULES = ("analysis", "inference", "models", "tasks", "theory", "training")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from looped import analysis, inference, models, tasks, theory, training
    from looped.config import ModelConfig, RunConfig, TrainConfig
    from looped.inference import Frame, Run, load, load_run, solve
    from looped.models import LoopModel, LoopStack, build_model
    from looped.models.from_theory import from_theory
    from looped.recipes import configure, recipe
    from looped.tasks import TASKS, Batch, Spec, Task, make_task
    from looped.training import Callback, Evaluation, LoopScore, Trainer, evaluate, train
    from looped.utils.errors import InputError
    from looped.utils.plugins import register


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"looped.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'looped' has no attribute {name!r}", name=name, obj=import_module(__name__))
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
