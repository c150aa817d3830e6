"""The registry of tasks. A task's module is imported on first use, because some tasks need numba or tiktoken.

To add a task, write a module in this package and add a line to `_CLASSES`. The contract tests then cover the task.
"""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from looped.serde import decode, encode
from looped.tasks.base import SPLITS, Batch, Spec, Split, Task
from looped.utils.errors import InputError, require_one_of

if TYPE_CHECKING:
    from looped.tasks.countdown import Countdown
    from looped.tasks.decision_tree import DecisionTree
    from looped.tasks.language import Language
    from looped.tasks.strings import EditDistance, LongestCommonSubsequence
    from looped.tasks.sudoku import Sudoku

_CLASSES = {  # name -> module and class
    "edit-distance": ("looped.tasks.strings", "EditDistance"),
    "lcs": ("looped.tasks.strings", "LongestCommonSubsequence"),
    "sudoku": ("looped.tasks.sudoku", "Sudoku"),
    "countdown": ("looped.tasks.countdown", "Countdown"),
    "decision-tree": ("looped.tasks.decision_tree", "DecisionTree"),
    "language": ("looped.tasks.language", "Language"),
}


class _Registry(MutableMapping[str, type[Task]]):
    """A dictionary of task classes that imports a built-in class on first use."""

    def __init__(self) -> None:
        self._classes: dict[str, type[Task] | None] = dict.fromkeys(_CLASSES)

    def __getitem__(self, name: str) -> type[Task]:
        cls = self._classes[name]
        if cls is None:
            module, attribute = _CLASSES[name]
            cls = self._classes[name] = getattr(import_module(module), attribute)
        return cls

    def __setitem__(self, name: str, task: type[Task]) -> None:
        self._classes[name] = task

    def __delitem__(self, name: str) -> None:
        del self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


TASKS = _Registry()
_MODULE_OF = {attribute: module for module, attribute in _CLASSES.values()}


def task_class(name: str) -> type[Task]:
    """Return the class of a task. Raise InputError, with the closest name, if the name is unknown."""
    require_one_of("task", name, TASKS)
    return TASKS[name]


def make_task(name: str, **settings: Any) -> Task:
    """Return a task with the given settings, for example `make_task("sudoku", side=4)`."""
    cls = task_class(name)
    try:
        return cls(**settings)
    except TypeError as error:
        raise InputError(f"{name}: {error}") from None


def encode_task(task: Task) -> dict[str, Any]:
    """Return a task's name and settings as JSON values."""
    return {"name": task.name, **encode(task)}


def decode_task(data: Any) -> Task:
    """Return the task that `encode_task` wrote. Raise InputError for an unknown task or setting."""
    if not isinstance(data, dict):
        raise InputError(f"task: expected an object, got {data!r}", field="task")
    settings = dict(data)
    return decode(task_class(settings.pop("name", None)), settings, "task")  # type: ignore[arg-type]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'looped.tasks' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


__all__ = [
    "SPLITS",
    "TASKS",
    "Batch",
    "Countdown",
    "DecisionTree",
    "EditDistance",
    "Language",
    "LongestCommonSubsequence",
    "Spec",
    "Split",
    "Sudoku",
    "Task",
    "decode_task",
    "encode_task",
    "make_task",
    "task_class",
]
