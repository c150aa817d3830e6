"""What an experiment is: a table of cells, each a run's config beside the paper's number where there is one."""

from dataclasses import dataclass
from typing import Any

from looped.config import RunConfig


@dataclass(frozen=True)
class Cell:
    row: str
    column: str
    config: RunConfig
    paper: float | None = None
    """the paper's number, in the task's metric"""

    @property
    def label(self) -> str:
        return f"{self.row}, {self.column}"


@dataclass(frozen=True)
class Experiment:
    id: str
    title: str
    about: str
    """one paragraph: what is compared, at which size, on how many samples"""
    cells: tuple[Cell, ...]
    test_size: int = 2000

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def to_json(self) -> dict[str, Any]:
        cells = [
            {"row": cell.row, "column": cell.column, "paper": cell.paper, "config": cell.config.to_json()}
            for cell in self.cells
        ]
        return {"id": self.id, "title": self.title, "cells": cells}
