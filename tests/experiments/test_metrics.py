"""Numbers as text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.experiments.metrics import METRICS, metric_named, percent, short_power


@pytest.mark.parametrize("total", [7, 40, 1000, 2000, 10_000])
def test_percent_of_a_share_of_examples_rounds_half_up(total):
    """Against integers: floor(1000 right / total + 1/2) tenths of a percent."""
    for right in range(total + 1):
        tenths = (2000 * right + total) // (2 * total)
        assert percent(right / total) == f"{tenths // 10}.{tenths % 10}"
        assert percent(np.float64(right) / total) == percent(sum([right / total] * 3) / 3)


@given(st.floats(1e-9, 1e25))
def test_short_power_can_be_read_back(value):
    assert float(short_power(value)) == pytest.approx(value, rel=0.006)


def test_metric_show_uses_the_unit_of_the_metric():
    accuracy, error = METRICS["accuracy"], METRICS["squared_error"]
    assert (accuracy.show(0.9535), accuracy.show_interval(0.94, 0.96)) == ("95.4 %", "94.0 to 96.0")
    assert [error.show(value) for value in (6.4e-4, 0.0211, 46.2787, 1801.3)] == ["6.4e-4", "0.0211", "46.28", "1,801"]
    assert error.show_interval(None, None) == ""
    assert [accuracy.show_difference(value) for value in (0.228, -0.036, 0.0)] == ["+22.8", "\N{MINUS SIGN}3.6", "0.0"]


def test_metric_named_for_an_unknown_name_makes_a_label():
    assert metric_named("lines_per_page").label == "lines per page"
