"""Compare measured cells with the paper: the data behind every table and chart of the report.

A number is compared with the paper's only if both belong to the same problem. Two numbers differ if their 95 %
intervals do not overlap.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Literal

from looped.experiments.metrics import Metric, metric_of
from looped.experiments.records import Record, Value, cell_value, seedless_key
from looped.experiments.spec import Cell, Experiment

Verdict = Literal["agrees", "differs", "inconclusive", "not comparable"]
Answer = Literal["yes", "no", "equal", "inconclusive"]


@dataclass(frozen=True)
class CellResult:
    """A cell with the records of its runs, one per seed and at least one."""

    cell: Cell
    records: tuple[Record, ...]
    values: tuple[Value, ...]
    """the number that the cell shows, for each record"""

    @cached_property
    def metric(self) -> Metric:
        return metric_of(self.cell)

    @property
    def value(self) -> float:
        """Return the mean over seeds."""
        return sum(each.value for each in self.values) / len(self.values)

    @property
    def low(self) -> float | None:
        """Return the lowest end of the intervals of all seeds, or None if one has no interval."""
        ends = [each.low for each in self.values]
        return None if None in ends else min(end for end in ends if end is not None)

    @property
    def high(self) -> float | None:
        """Return the highest end of the intervals of all seeds, or None if one has no interval."""
        ends = [each.high for each in self.values]
        return None if None in ends else max(end for end in ends if end is not None)

    @property
    def block(self) -> str:
        return self.cell.config.model.block

    @property
    def loops(self) -> int:
        return self.cell.config.model.num_loops

    @property
    def difference(self) -> float | None:
        """Return our number minus the paper's, or None if they cannot be compared."""
        return self.value - self.cell.paper if self.cell.paper is not None and self.cell.comparable else None

    @property
    def is_better(self) -> bool | None:
        """Return True if our number is better than the paper's, or None if they cannot be compared."""
        if self.difference is None:
            return None
        return self.difference > 0 if self.metric.higher_is_better else self.difference < 0

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
        rounding = _rounding_of(paper, self.metric.is_share)
        return "agrees" if self.low - rounding <= paper <= self.high + rounding else "differs"


def _rounding_of(paper: float, is_share: bool) -> float:
    """Return half of the last printed digit of a number of the paper; shares are printed to 0.1 %."""
    exponent = -3 if is_share else Decimal(repr(paper)).as_tuple().exponent
    assert isinstance(exponent, int), "the paper's numbers are finite"
    return 0.5 * 10.0**exponent


def cell_results(experiment: Experiment, records: Mapping[str, Record]) -> list[CellResult]:
    """Return the cells that have finished runs, in the order of the experiment."""
    runs = runs_by_config(record for record in records.values() if record.finished)
    results = []
    for cell in experiment.cells:
        measured = [(one, cell_value(cell, one)) for one in runs.get(seedless_key(cell.config), [])]
        pairs = [(record, value) for record, value in measured if value is not None]
        if pairs:
            results.append(CellResult(cell, tuple(one for one, _ in pairs), tuple(value for _, value in pairs)))
    return results


def distinct_results(group: Sequence[Experiment], records: Mapping[str, Record]) -> dict[Experiment, list[CellResult]]:
    """Return the results of several experiments; a cell that two scales share counts for the first of them."""
    seen: set[tuple[str, ...]] = set()
    found: dict[Experiment, list[CellResult]] = {}
    for one in group:
        keyed = {
            (result.cell.name, *(record.key for record in result.records)): result
            for result in cell_results(one, records)
        }
        found[one] = [result for key, result in keyed.items() if key not in seen]
        seen |= keyed.keys()
    return found


def filled_cells(group: Sequence[Experiment], records: Mapping[str, Record]) -> set[str]:
    """Return the names of the cells that have a number in at least one of the experiments."""
    return {one.cell.name for each in group for one in cell_results(each, records)}


def runs_by_config(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records that differ only in their seed, in the order of their seeds."""
    groups: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.config.seed):
        groups.setdefault(seedless_key(record.config), []).append(record)
    return groups


def distinct_records(results: Iterable[CellResult]) -> list[Record]:
    """Return the records behind the results, each once: two cells may show two numbers of one run."""
    return list({record.key: record for one in results for record in one.records}.values())


@dataclass(frozen=True)
class Comparison:
    """A question about two models of one row and recipe: is the first better than the second?"""

    question: str
    first: CellResult
    second: CellResult

    @property
    def ours(self) -> Answer:
        one, other = self.first, self.second
        if one.low is None or one.high is None or other.low is None or other.high is None:
            return "inconclusive"
        if one.low > other.high or one.high < other.low:
            return "yes" if (one.low > other.high) == one.metric.higher_is_better else "no"
        return "inconclusive"

    @property
    def papers(self) -> Answer | None:
        """Return the paper's answer, or None if it has no numbers."""
        one, other = self.first.cell.paper, self.second.cell.paper
        if one is None or other is None:
            return None
        if one == other:
            return "equal"
        return "yes" if (one > other) == self.first.metric.higher_is_better else "no"

    @property
    def verdict(self) -> Verdict:
        if self.papers is None or not (self.first.cell.comparable and self.second.cell.comparable):
            return "not comparable"
        if "inconclusive" in (self.ours, self.papers) or self.papers == "equal":
            return "inconclusive"
        return "agrees" if self.ours == self.papers else "differs"


def comparisons(results: Sequence[CellResult]) -> dict[tuple[str, str], list[Comparison]]:
    """Return the paper's questions for every row and recipe that has the models they are about.

    More loops: the most against the fewest. Everything else: at the largest number of loops that both models have.
    """
    found: dict[tuple[str, str], list[Comparison]] = {}
    for row, recipe in dict.fromkeys((one.cell.row, one.cell.recipe) for one in results):
        models: dict[str, dict[int, CellResult]] = {}
        for one in sorted(results, key=lambda one: one.loops):
            if (one.cell.row, one.cell.recipe) == (row, recipe):
                models.setdefault(one.block, {})[one.loops] = one
        looped, modulated = models.get("looped", {}), models.get("modulated", {})
        standard = next(iter(models.get("standard", {}).values()), None)
        of_row = []
        for name, ladder in (("looped", looped), ("modulated", modulated)):
            if len(ladder) > 1:
                of_row.append(Comparison(f"Do more loops help? ({name})", ladder[max(ladder)], ladder[min(ladder)]))
        if common := looped.keys() & modulated.keys():
            most = max(common)
            of_row.append(Comparison("Is modulated better than looped?", modulated[most], looped[most]))
        for name, ladder in (("looped", looped), ("modulated", modulated)):
            if ladder and standard is not None:
                of_row.append(Comparison(f"Is {name} better than standard?", ladder[max(ladder)], standard))
        if of_row:
            found[row, recipe] = of_row
    return found
