"""The tasks by name. To add one: a file here, a line below, and the contract tests cover it."""

from looped.errors import require_one_of
from looped.tasks.base import SPLITS, Batch, Spec, Split, Task
from looped.tasks.countdown import Countdown
from looped.tasks.decision_tree import DecisionTree
from looped.tasks.language import Language
from looped.tasks.strings import EditDistance, LongestCommonSubsequence
from looped.tasks.sudoku import Sudoku

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (EditDistance, LongestCommonSubsequence, Sudoku, Countdown, DecisionTree, Language)
}


def task_class(name: str) -> type[Task]:
    """The task of that name, or an error that suggests the nearest one."""
    require_one_of("task", name, TASKS)
    return TASKS[name]


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
    "task_class",
]
