"""Define an experiment: a table of cells, each the config of a run, beside the paper's number if there is one."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from looped.config import RunConfig
from looped.utils.errors import InputError, as_number, require_counts, require_field, require_one_of, unknown

Scale = Literal["smoke", "laptop", "gpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
FULL_SIZE: tuple[Scale, ...] = ("gpu", "paper")
"""the scales that use the paper's problem sizes"""
SCALE_TEXT: dict[Scale, str] = {
    "smoke": "Almost no training, to test the code. The numbers mean nothing.",
    "laptop": "Small problems and small models, trained for minutes on two CPU cores. They show trends only.",
    "gpu": "The paper's problem sizes (but another text), at most ten minutes per run on one H100 or H200.",
    "paper": "The paper's problems, sizes and hyperparameters.",
}


Extrapolation = Literal["clamp", "rescale"]
MANY_LOOPS = "many loops"
"""the test set of `EvalPlan.many_loops`"""


@dataclass(frozen=True)
class EvalPlan:
    """Evaluations of a trained run, beside its test set and the further test sets of its task."""

    size: int | None = 2000
    """examples per test set (None: the default of the task; for text, all of it)"""
    sizes: tuple[float, ...] = ()
    """also test on examples of these sizes, as multiples of the trained size (the task must allow them)"""
    extrapolation: tuple[Extrapolation, ...] = ()
    """also test with these time indices for loops beyond the trained number"""
    many_loops: tuple[int, ...] = ()
    """also test with these multiples of the trained loops, and with each `extrapolation` for them"""
    texts: tuple[str, ...] = ()
    """also test on the test splits of these texts"""
    continuity: bool = False
    """also measure how far the output moves with the input"""

    def __post_init__(self) -> None:
        if self.size is not None:
            require_counts(size=self.size)
        for multiple in self.many_loops:
            require_counts(many_loops=multiple)
        for multiple in self.sizes:
            require_field(as_number(multiple) > 0, "sizes", "multiples above 0 of the trained size", repr(multiple))


@dataclass(frozen=True)
class Cell:
    """One number of a table: the run that yields it, and its place in the record."""

    row: str
    column: str
    config: RunConfig
    paper: float | None = None
    """the paper's number, in the metric of this cell"""
    shows: str = "test"
    """the place of the number in a record: `test` or `train` (the task's metric at the trained loops), another metric
    of these as `test.NAME`, or `sets/NAME`, or `extra.NAME.FIELD`"""
    at_loops: int | None = None
    """number of loops at which the number is read (default: the trained number)"""
    recipe: str = ""
    """name of the training recipe; results of different recipes are shown in columns of their own"""
    comparable: bool = True
    """False if the paper's number belongs to another problem, such as a larger one"""

    @property
    def label(self) -> str:
        """Return `ROW, COLUMN`, as tables and charts show it."""
        return f"{self.row}, {self.column}"

    @property
    def place_and_metric(self) -> tuple[str, str]:
        """Split `shows` into a place (`test`, `train`, `sets/NAME` or `extra.NAME`) and the name of the metric."""
        if self.shows.startswith("sets/") or "." not in self.shows:  # the name of a set may contain a dot
            return self.shows, self.config.task.metric
        place, _, metric = self.shows.rpartition(".")
        return place, metric

    @property
    def name(self) -> str:
        """Return ROW:COLUMN, which the patterns of `--cells` are matched with."""
        return f"{self.row}:{self.column}"


@dataclass(frozen=True)
class Experiment:
    """A table of cells with its title and the evaluations that its runs need."""

    id: str
    title: str
    about: str
    """one paragraph: what is compared, and how"""
    scale: Scale | None
    """None for a set of runs that belongs to no scale"""
    cells: tuple[Cell, ...]
    eval_plan: EvalPlan = EvalPlan()
    against: str | None = None
    """the row that all other rows are compared with, column by column"""
    is_study: bool = False
    """True if the question is ours and not the paper's"""

    def __post_init__(self) -> None:
        are_cells = isinstance(self.cells, tuple) and all(isinstance(cell, Cell) for cell in self.cells)
        require_field(are_cells and bool(self.cells), "cells", "a tuple of cells", self.cells)

    @property
    def label(self) -> str:
        """Return the title with the scale."""
        return f"{self.title} ({self.scale} scale)" if self.scale else self.title

    @property
    def is_full_size(self) -> bool:
        """Return whether the problems have the paper's sizes."""
        return self.scale in FULL_SIZE

    @property
    def rows(self) -> list[str]:
        """Return the names of the rows, in order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def configs(self, num_seeds: int = 1) -> list[RunConfig]:
        """Return the configs of all runs, each once: two cells may show two numbers of one run."""
        return list(dict.fromkeys(replace(cell.config, seed=s) for s in range(num_seeds) for cell in self.cells))

    def select(self, patterns: tuple[str, ...] | list[str]) -> "Experiment":
        """Keep the cells whose ROW:COLUMN or ROW:COLUMN:RECIPE matches a shell pattern (no pattern: all cells)."""
        if not patterns:
            return self
        chosen: set[Cell] = set()
        for pattern in patterns:
            found = {cell for cell in self.cells if _matches(cell, pattern)}
            example, row = self.cells[0].name, f"{self.cells[0].row}:*"
            expected = f"a pattern that matches a ROW:COLUMN of {self.id} such as {example!r} or {row!r}"
            require_field(bool(found), "cells", expected, f"{pattern!r}. Rows: {', '.join(self.rows)}.")
            chosen |= found
        return replace(self, cells=tuple(cell for cell in self.cells if cell in chosen))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for `looped paper list --json`."""
        cells = [
            {
                "row": cell.row,
                "column": cell.column,
                "recipe": cell.recipe,
                "paper": cell.paper,
                "shows": cell.shows,
                "config": cell.config.to_json(),
            }
            for cell in self.cells
        ]
        return {"id": self.id, "title": self.title, "about": self.about, "scale": self.scale, "cells": cells}


def _matches(cell: Cell, pattern: str) -> bool:
    names = (cell.name.lower(), f"{cell.name}:{cell.recipe}".lower())
    return any(fnmatchcase(name, pattern.lower()) for name in names)


def check_scale(name: str) -> Scale:
    """Return a scale by its name; raise InputError if it does not exist."""
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown("scale", name, SCALES)


def require_unique(experiment: Experiment) -> Experiment:
    """Raise InputError if two cells share row, column and recipe, or if the row to compare with does not exist."""
    names = [(cell.name, cell.recipe) for cell in experiment.cells]
    if len(set(names)) < len(names):
        raise InputError(f"{experiment.id}: expected one cell per row, column and recipe, got two")
    if experiment.against is not None:
        require_one_of("row", experiment.against, experiment.rows)
    return experiment
