"""A cell with what its runs measured, and how its number is written. Without a record there is no `Measured`."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from typing import TypeVar

from looped.experiments.records import (Record, Value, at_trained_loops, cell_evaluation, cell_value, converted, seedless_key)
from looped.experiments.spec import Cell, Experiment
from looped.utils.text import plural

Item = TypeVar("Item")
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Measure:
    """How a kind of number is named, written and judged."""

    label: str
    higher_is_better: bool = True
    is_share: bool = False

    def show(self, value: float, *, unit: bool = True) -> str:
        if self.is_share:
            return f"{percent(value)}{' %' if unit else ''}"
        if value and not 1e-3 <= abs(value) < 1e5:
            return short_power(value, digits=2)
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"

    def show_interval(self, low: float | None, high: float | None) -> str:
        """Without unit: it stands beside a number that has one."""
        if low is None or high is None:
            return "none"
        return f"{self.show(low, unit=False)} to {self.show(high, unit=False)}"

    def gap(self, ours: float, other: float) -> str:
        """How far two numbers lie apart, in words."""
        distance = abs(ours - other)
        return f"{percent(distance)} points" if self.is_share else self.show(distance)

    @property
    def axis(self) -> tuple[float, float] | None:
        """The range of a chart's axis; None: as the numbers are."""
        return (0.0, 1.02) if self.is_share else None


MEASURES = {
    "accuracy": Measure("accuracy", is_share=True),
    "exact_match": Measure("exact match", is_share=True),
    "cell_accuracy": Measure("cell accuracy", is_share=True),
    "squared_error": Measure("squared error", higher_is_better=False),
    "squared_error_over_dims": Measure("squared error over dimensions", higher_is_better=False),
    "perplexity": Measure("perplexity", higher_is_better=False),
    "loss": Measure("cross-entropy", higher_is_better=False),
    "coefficient": Measure("continuity coefficient", higher_is_better=False),
}


_PROBLEMS = {
    "sudoku": "{side}x{side}",
    "countdown": "{count} numbers",
    "decision-tree": "{points} points, {dims} dimensions, depth {depth}",
    "language": "text {text}, {seq_len} tokens",
}


def measure_named(name: str) -> Measure:
    return MEASURES.get(name) or Measure(name.replace("_", " "))


def measure_of(cell: Cell) -> Measure:
    """The kind of number that a cell shows."""
    return measure_named(cell.place_and_metric[1])


@dataclass(frozen=True)
class Measured:
    """A cell and the records of its runs, one per seed and at least one."""

    cell: Cell
    records: tuple[Record, ...]
    values: tuple[Value, ...]
    """what the cell shows of each record"""

    @cached_property
    def measure(self) -> Measure:
        return measure_of(self.cell)

    def constant(self, record: Record) -> float | None:
        """The best constant answer's number, in the measure that the cell shows; None where it is not known."""
        evaluation = cell_evaluation(self.cell, record)
        if evaluation is None:
            return None
        _, metric = self.cell.place_and_metric
        return converted(evaluation["baseline"], evaluation["metric"], metric, at_trained_loops(evaluation))

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return sum(each.value for each in self.values) / len(self.values)

    @property
    def low(self) -> float | None:
        """Of one seed its interval's lower end; of several the lowest, which never says too much."""
        ends = [each.low for each in self.values]
        return None if None in ends else min(end for end in ends if end is not None)

    @property
    def high(self) -> float | None:
        ends = [each.high for each in self.values]
        return None if None in ends else max(end for end in ends if end is not None)

    @property
    def loops(self) -> int:
        return self.cell.config.model.num_loops

    @property
    def block(self) -> str:
        return self.cell.config.model.block

    @property
    def group(self) -> str:
        """The column without its number of loops: the model that is run with more and more of them."""
        return split_column(self.cell.column)[0]

    @property
    def problem(self) -> str:
        """The size of what is really run, in the words of its task."""
        fields = asdict(self.cell.config.task)
        text = _PROBLEMS.get(self.cell.config.task.name)
        return text.format_map(fields) if text else f"n = {self.cell.config.task.size}"

    def shown(self) -> str:
        return self.measure.show(self.value)

    def papers(self) -> str:
        """The paper's number as it is printed there, with its loops or layers where those are not ours; nothing where
        it has none."""
        if self.cell.paper is None:
            return ""
        number = self.measure.show(self.cell.paper) if self.measure.is_share else f"{self.cell.paper:g}"
        return f"{number} ({self.cell.paper_column})" if self.cell.paper_column else number

    def with_interval(self) -> str:
        """`93.0 % (91.9 to 94.1)`, as sentences have it."""
        if self.low is None or self.high is None:
            return f"{self.shown()} (no interval)"
        return f"{self.shown()} ({self.measure.show_interval(self.low, self.high)})"


def split_column(column: str) -> tuple[str, str]:
    """`looped r=5` as (`looped`, `r=5`); a column without loops has an empty second part."""
    found = re.fullmatch(r"(.*?)[,:]?\s*\b(r ?= ?\d+)", column)
    return (found[1].strip(), found[2].replace(" ", "")) if found else (column, "")


def measured_cells(experiment: Experiment, records: Mapping[str, Record]) -> list[Measured]:
    """The cells that have records, in the experiment's order."""
    finished = by_run(record for record in records.values() if record.finished)
    found = []
    for cell in experiment.cells:
        runs = finished.get(seedless_key(cell.config), [])
        pairs = [(record, value) for record in runs if (value := cell_value(cell, record)) is not None]
        if pairs:
            found.append(Measured(cell, tuple(one for one, _ in pairs), tuple(value for _, value in pairs)))
    return found


def grouped(items: Iterable[Item], name: Callable[[Item], Name]) -> dict[Name, list[Item]]:
    """Items of one name together, in the order in which they come."""
    groups: dict[Name, list[Item]] = {}
    for item in items:
        groups.setdefault(name(item), []).append(item)
    return groups


def by_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by `seedless_key`, seeds in order."""
    in_order = sorted(records, key=lambda record: record.config.seed)
    return grouped(in_order, lambda record: seedless_key(record.config))


def by_row(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    return grouped(measured, lambda one: one.cell.row)


def by_column(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    return grouped(measured, lambda one: one.cell.column)


def by_group(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    return grouped(measured, lambda one: one.group)


def by_row_and_kind(measured: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """The cells of a row that show the same kind of number."""
    return grouped(measured, lambda one: (one.cell.row, one.cell.shows))


def distinct_runs(measured: Iterable[Measured]) -> list[Measured]:
    """One of the cells of each run: two cells may show two numbers of it."""
    return list({one.cell.config: one for one in reversed(list(measured))}.values())[::-1]


def distinct_records(measured: Iterable[Measured]) -> list[Record]:
    return list({record.key: record for one in measured for record in one.records}.values())


def seeds_in_words(measured: Sequence[Measured]) -> str:
    counts = sorted({len(one.records) for one in measured})
    if counts == [1]:
        return "one seed"
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def percent(share: float) -> str:
    """With one digit, halves rounded up as by hand: a share of examples is a decimal number, and a float seldom is."""
    return str(Decimal(f"{share:.12f}").scaleb(2).quantize(Decimal("0.1"), ROUND_HALF_UP))


def short_power(value: float, digits: int = 3) -> str:
    """`1.23e15`."""
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def duration(seconds: float) -> str:
    if seconds < 120:
        return plural(round(seconds), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def hardware_text(record: Record) -> str:
    """Older records count `1 threads`."""
    return record.hardware.replace(" 1 threads", " 1 thread")
