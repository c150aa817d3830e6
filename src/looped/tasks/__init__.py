"""The tasks by name. To add one: a file here, a line below, and the contract tests cover it."""

from looped.tasks.base import SPLITS, Batch, Spec, Split, Task
from looped.tasks.countdown.task import Countdown
from looped.tasks.decision_tree import DecisionTree
from looped.tasks.language.task import Language
from looped.tasks.strings.task import EditDistance, LongestCommonSubsequence
from looped.tasks.sudoku.task import Sudoku
from looped.utils.errors import require_one_of

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
