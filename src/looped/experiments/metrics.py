"""Name, format and compare the numbers that experiments measure."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from looped.experiments.spec import Cell


@dataclass(frozen=True)
class Metric:
    """A measured number: its label, its direction and its format."""

    label: str
    higher_is_better: bool = True
    is_share: bool = False
    """True for a fraction of examples, which is shown in percent"""

    def show(self, value: float, *, unit: bool = True) -> str:
        """Return the number as text, such as `93.4 %` or `6.4e-4`."""
        if self.is_share:
            return f"{percent(value)}{' %' if unit else ''}"
        if value and not 1e-3 <= abs(value) < 1e5:
            return short_power(value, digits=2)
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"

    def show_interval(self, low: float | None, high: float | None) -> str:
        """Return `91.9 to 94.1`, without a unit; an empty text if an end is missing."""
        if low is None or high is None:
            return ""
        return f"{self.show(low, unit=False)} to {self.show(high, unit=False)}"

    def show_difference(self, difference: float) -> str:
        """Return a signed difference; for shares, in percentage points."""
        sign = "+" if difference > 0 else "\N{MINUS SIGN}" if difference < 0 else ""
        return f"{sign}{self.show(abs(difference), unit=False)}"

    @property
    def axis_range(self) -> tuple[float, float] | None:
        """Return the fixed range of a chart's axis; None if the axis should follow the data."""
        return (0.0, 1.03) if self.is_share else None


METRICS = {
    "accuracy": Metric("accuracy", is_share=True),
    "exact_match": Metric("exact match", is_share=True),
    "cell_accuracy": Metric("cell accuracy", is_share=True),
    "squared_error": Metric("squared error", higher_is_better=False),
    "squared_error_over_dims": Metric("squared error per dimension", higher_is_better=False),
    "perplexity": Metric("perplexity", higher_is_better=False),
    "loss": Metric("cross-entropy", higher_is_better=False),
    "coefficient": Metric("continuity coefficient", higher_is_better=False),
}


def metric_named(name: str) -> Metric:
    """Return the metric of this name; an unknown name gets a label of its own and counts as higher is better."""
    return METRICS.get(name) or Metric(name.replace("_", " "))


def metric_of(cell: Cell) -> Metric:
    """Return the metric that a cell shows."""
    return metric_named(cell.place_and_metric[1])


def percent(share: float) -> str:
    """Return a share in percent with one digit, rounding halves up.

    The share of a number of examples is a decimal number, so the text is rounded instead of the binary float.
    """
    return str(Decimal(f"{share:.12f}").scaleb(2).quantize(Decimal("0.1"), ROUND_HALF_UP))


def short_power(value: float, digits: int = 3) -> str:
    """Return a number in scientific notation without leading zeros in the exponent: `1.23e15`."""
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
