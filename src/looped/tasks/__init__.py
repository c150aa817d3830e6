"""The registry of tasks. A task's module is imported on first use, because some tasks need numba or tiktoken.

To add a task to the package, write a module here and add a line to `_CLASSES`. The contract tests then cover the task.
A task outside the package is a class in a plugin (`utils/plugins.py`), or an installed entry point in the group
`looped.tasks`.
"""

import re
from collections.abc import Iterator, MutableMapping
from dataclasses import fields
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract, isclass
from typing import TYPE_CHECKING, Any

from looped.serde import decode, encode
from looped.tasks.base import SPLITS, Batch, Spec, Split, Task, masked_accuracy
from looped.utils import plugins
from looped.utils.errors import InputError, closest, require, unknown

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


ENTRY_POINTS = "looped.tasks"


class _Registry(MutableMapping[str, type[Task]]):
    """A dictionary of task classes: the built-in ones, imported on first use, and those of plugins."""

    def __init__(self) -> None:
        self._classes: dict[str, type[Task] | None] = dict.fromkeys(_CLASSES)

    def __getitem__(self, name: str) -> type[Any]:  # each task has its own settings
        if name not in self._classes:
            return _plugged_in()[name]
        cls = self._classes[name]
        if cls is None:
            module, attribute = _CLASSES[name]
            cls = self._classes[name] = getattr(import_module(module), attribute)
        return cls

    def __setitem__(self, name: str, task: type[Task]) -> None:
        self._classes[name] = task

    def __delitem__(self, name: str) -> None:
        del self._classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._classes or name in _plugged_in()

    def __iter__(self) -> Iterator[str]:
        return iter({**self._classes, **_plugged_in()})

    def __len__(self) -> int:
        return len({**self._classes, **_plugged_in()})


TASKS = _Registry()
_MODULE_OF = {attribute: module for module, attribute in _CLASSES.values()}


def _plugged_in() -> dict[str, type[Task]]:
    """Return the tasks of all plugins by name. Raise InputError if two tasks have one name."""
    found: dict[str, type[Task]] = {}
    for _, item in plugins.outside_items():
        if isclass(item) and issubclass(item, Task) and not isabstract(item):
            name = checked_name(item)
            free = name not in _CLASSES and found.get(name, item) is item
            require(free, f"{item.__qualname__}.name: expected a name of its own, got {name!r}, which is taken")
            found[name] = item
    return found


def checked_name(cls: type[Task]) -> str:
    """Return a task's name. Raise InputError unless it can be a folder's name and a word of a command."""
    name = getattr(cls, "name", None)
    valid = isinstance(name, str) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) is not None
    require(valid, f"{cls.__qualname__}.name: expected lower-case words such as 'my-task', got {name!r}")
    return str(name)


def installed_tasks() -> dict[str, EntryPoint]:
    """Return the entry points of installed packages by the name of their task, without importing any."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def task_class(name: str) -> type[Task]:
    """Return the class of a task, from an installed entry point if need be.

    Raise InputError, with the closest name, if the name is unknown.
    """
    if isinstance(name, str) and name not in TASKS and (entry := installed_tasks().get(name)) is not None:
        cls = entry.load()
        if not (isclass(cls) and issubclass(cls, Task) and checked_name(cls) == name):
            raise InputError(f"entry point {name}: expected a Task of this name, got {entry.value}")
        TASKS[name] = cls
    return _known_class(name)


def _known_class(name: object) -> type[Task]:
    """Return the class of a task that is known already, and import nothing that nobody has named."""
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]
    entry = installed_tasks().get(name) if isinstance(name, str) else None
    hint = plugins.HINT if entry is None else f". It is installed: name its module with --plugin {entry.module}"
    raise unknown("task", name, TASKS, hint)


def make_task(name: str, **settings: Any) -> Task:
    """Return a task with the given settings, for example `make_task("sudoku", side=4)`."""
    cls = task_class(name)
    try:
        return cls(**settings)
    except TypeError as error:
        known = [each.name for each in fields(cls)]
        for setting in settings.keys() - {*known}:
            raise InputError(f"{setting}: unknown setting of {name}{closest(setting, known)}") from None
        raise InputError(f"{name}: {error}") from None


def encode_task(task: Task) -> dict[str, Any]:
    """Return a task's name and settings as JSON values."""
    return {"name": task.name, **encode(task)}


def decode_task(data: Any) -> Task:
    """Return the task that `encode_task` wrote. Raise InputError for an unknown task or setting.

    Stored data cannot make this import a plugin or an entry point.
    """
    if not isinstance(data, dict):
        raise InputError(f"task: expected an object, got {data!r}")
    settings = dict(data)
    return decode(_known_class(settings.pop("name", None)), settings, "task")


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
    "installed_tasks",
    "make_task",
    "masked_accuracy",
    "task_class",
]
