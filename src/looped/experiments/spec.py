"""What an experiment is: a table of cells, each a run's config beside the paper's number where there is one."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from looped.config import RunConfig
from looped.utils.errors import InputError, require, require_one_of, unknown

Scale = Literal["smoke", "laptop", "gpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
SCALE_TEXT: dict[Scale, str] = {
    "smoke": "hardly any training, for tests of the machinery: the numbers mean nothing",
    "laptop": "small problems and small models, minutes on two CPU cores: trends, not the paper's numbers",
    "gpu": "the paper's problems (text: another one) with our fast recipe, at most ten minutes a cell on one H100 or "
    "H200",
    "paper": "the paper's problems, sizes and hyper-parameters",
}


@dataclass(frozen=True)
class Measures:
    """What is measured of a trained cell, beside its test set and the task's further test sets."""

    size: int | None = 2000
    """examples of a test (None: as many as the task has by itself; of a text, all)"""
    sizes: tuple[float, ...] = ()
    """also examples of these sizes, as multiples of the trained size; the task must have room for them"""
    extrapolation: tuple[Literal["clamp", "rescale"], ...] = ()
    """also with these times for loops beyond the trained number"""
    texts: tuple[str, ...] = ()
    """also on the test splits of these texts"""
    continuity: bool = False
    """also how far the output moves with the input"""


@dataclass(frozen=True)
class Cell:
    row: str
    column: str
    config: RunConfig
    paper: float | None = None
    """the paper's number, in the same measure as what the cell shows"""
    shows: str = "test"
    """where in a record the cell's number is: `test` or `train` (the task's metric at the trained loops), another
    metric of these as `test.NAME`, `sets/NAME`, or `extra.NAME.FIELD`"""
    at_loops: int | None = None
    """after how many loops the number is read (default: the trained number)"""
    paper_column: str = ""
    """the loops or layers of the paper's number, as in `r=5`, where they are not those that are run"""

    @property
    def label(self) -> str:
        return f"{self.row}, {self.column}"

    @property
    def place_and_metric(self) -> tuple[str, str]:
        """What `shows` says: `test`, `train`, `sets/NAME` or `extra.NAME`, and the number's name there."""
        if self.shows.startswith("sets/") or "." not in self.shows:  # a set's name may have a dot
            return self.shows, self.config.task.metric
        place, _, metric = self.shows.rpartition(".")
        return place, metric

    @property
    def name(self) -> str:
        """What patterns of cells are matched with."""
        return f"{self.row}:{self.column}"


@dataclass(frozen=True)
class Experiment:
    id: str
    title: str
    about: str
    """one paragraph: what is compared, at which size, on how many samples"""
    scale: Scale
    cells: tuple[Cell, ...]
    measures: Measures = Measures()
    against: str | None = None
    """the row that the question holds all others against, column by column"""

    @property
    def label(self) -> str:
        return f"{self.title} ({self.scale} scale)"

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def configs(self, num_seeds: int = 1) -> list[RunConfig]:
        """The runs behind the cells, each once: two cells may show two numbers of one run."""
        return list(dict.fromkeys(replace(cell.config, seed=s) for s in range(num_seeds) for cell in self.cells))

    def select(self, patterns: tuple[str, ...] | list[str]) -> "Experiment":
        """The cells whose ROW:COLUMN fits one of the shell patterns (none given: all)."""
        if not patterns:
            return self
        chosen: set[str] = set()
        for pattern in patterns:
            found = {cell.name for cell in self.cells if fnmatchcase(cell.name.lower(), pattern.lower())}
            require(
                bool(found),
                f"no cell of {self.id} fits {pattern!r}: expected a pattern of ROW:COLUMN such as "
                f"{self.cells[0].name!r} or {self.cells[0].row + ':*'!r} (rows: {', '.join(self.rows)})",
            )
            chosen |= found
        return replace(self, cells=tuple(cell for cell in self.cells if cell.name in chosen))

    def to_json(self) -> dict[str, Any]:
        cells = [
            {
                "row": cell.row,
                "column": cell.column,
                "paper": cell.paper,
                "shows": cell.shows,
                "config": cell.config.to_json(),
            }
            for cell in self.cells
        ]
        return {"id": self.id, "title": self.title, "about": self.about, "scale": self.scale, "cells": cells}


def check_scale(name: str) -> Scale:
    """A scale by its name; `InputError` if there is none."""
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown("scale", name, SCALES)


def require_unique(experiment: Experiment) -> Experiment:
    """Two cells of one place would hide each other."""
    names = [cell.name for cell in experiment.cells]
    if len(set(names)) < len(names):
        raise InputError(f"{experiment.id} has two cells of one row and column")
    if experiment.against is not None:
        require_one_of("row", experiment.against, experiment.rows)
    return experiment
