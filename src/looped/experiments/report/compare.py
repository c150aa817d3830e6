"""Compare measured cells with the paper: the data behind every table and chart of the report.

A number is compared with the paper's only if both belong to the same problem. Two numbers differ if their 95 %
intervals do not overlap.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Literal, TypeVar

from looped.experiments.metrics import Metric, metric_named, metric_of
from looped.experiments.records import Record, Value, cell_value, seedless_key
from looped.experiments.spec import Cell, Experiment

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Verdict = Literal["agrees", "better", "worse", "inconclusive", "not comparable"]


@dataclass(frozen=True)
class CellResult:
    """A cell with the records of its runs, one per seed and at least one."""

    cell: Cell
    records: tuple[Record, ...]
    values: tuple[Value, ...]
    """the number that the cell shows, for each record"""

    @cached_property
    def metric(self) -> Metric:
        """Return the metric that the cell shows."""
        return metric_of(self.cell)

    @property
    def value(self) -> float:
        """Return the mean over seeds."""
        return sum(each.value for each in self.values) / len(self.values)

    @property
    def low(self) -> float | None:
        """Return the lowest end of the intervals of all seeds, or None if there are none."""
        return min((each.low for each in self.values if each.low is not None), default=None)

    @property
    def high(self) -> float | None:
        """Return the highest end of the intervals of all seeds, or None if there are none."""
        return max((each.high for each in self.values if each.high is not None), default=None)

    @property
    def block(self) -> str:
        """Return the kind of model: standard, looped or modulated."""
        return self.cell.config.model.block

    @property
    def loops(self) -> int:
        """Return the number of loops in training."""
        return self.cell.config.model.num_loops

    @property
    def validation(self) -> float:
        """Return the last validation in the task's metric, the mean over seeds, negated where lower is better.

        It is minus infinity if a run has none.
        """
        last = [[point["validation"] for point in run.curve if "validation" in point][-1:] for run in self.records]
        if not all(last):
            return -math.inf
        sign = 1 if metric_named(self.cell.config.task.metric).higher_is_better else -1
        return sign * sum(value for (value,) in last) / len(last)

    @property
    def difference(self) -> float | None:
        """Return our number minus the paper's, or None if they cannot be compared."""
        return self.value - self.cell.paper if self.cell.paper is not None and self.cell.comparable else None

    @property
    def verdict(self) -> Verdict | None:
        """Return how our number relates to the paper's, or None if the paper has no number.

        It agrees if the paper's number, as far as it is printed, lies in our interval.
        """
        paper = self.cell.paper
        if paper is None:
            return None
        if not self.cell.comparable:
            return "not comparable"
        if self.low is None or self.high is None:
            return "inconclusive"
        # Shares are printed to 0.1 %, other numbers to their last digit.
        exponent = -3 if self.metric.is_share else int(Decimal(repr(paper)).as_tuple().exponent)
        rounding = 0.5 * 10.0**exponent
        if self.low - rounding <= paper <= self.high + rounding:
            return "agrees"
        return "better" if (self.value > paper) == self.metric.higher_is_better else "worse"

    @property
    def reaches_paper(self) -> bool:
        """Return whether our interval contains or exceeds the paper's number."""
        return self.verdict in ("agrees", "better")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key, in the order of their first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def cell_results(experiment: Experiment, records: Mapping[str, Record]) -> list[CellResult]:
    """Return the cells that have finished runs, in the order of the experiment."""
    finished = sorted((one for one in records.values() if one.finished), key=lambda record: record.config.seed)
    runs = grouped(finished, lambda record: seedless_key(record.config))
    results = []
    for cell in experiment.cells:
        of_cell = [(one, cell_value(cell, one)) for one in runs.get(seedless_key(cell.config), [])]
        if measured := [(one, value) for one, value in of_cell if value is not None]:
            results.append(CellResult(cell, *zip(*measured, strict=True)))
    return results


def distinct_results(group: Sequence[Experiment], records: Mapping[str, Record]) -> dict[Experiment, list[CellResult]]:
    """Return the results of several experiments; a cell that two scales share counts for the first of them."""
    seen: set[tuple[str, ...]] = set()
    found: dict[Experiment, list[CellResult]] = {}
    for one in group:
        keyed = {(each.cell.name, *(run.key for run in each.records)): each for each in cell_results(one, records)}
        found[one] = [result for key, result in keyed.items() if key not in seen]
        seen |= keyed.keys()
    return found


def best_results(group: Sequence[Experiment], records: Mapping[str, Record]) -> dict[str, CellResult]:
    """Return each cell that has a number, by its name, from the recipe with the best validation.

    The test is not used to choose. Of equal validations the first recipe's counts.
    """
    found = grouped((one for each in group for one in cell_results(each, records)), lambda one: one.cell.name)
    return {name: max(results, key=lambda one: one.validation) for name, results in found.items()}


def distinct_records(results: Iterable[CellResult]) -> list[Record]:
    """Return the records behind the results, each once: two cells may show two numbers of one run."""
    return list({record.key: record for one in results for record in one.records}.values())
