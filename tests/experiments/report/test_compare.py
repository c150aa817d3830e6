"""The rules by which the report compares, on numbers made by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from looped.config import ModelConfig, RunConfig
from looped.utils.errors import InputError
from looped.experiments.report.charts import correlation, show_correlation
from looped.experiments.report.compare import (MORE_LOOPED, OVER_STANDARD, TIMESTEP, above, claims, difference, orders, place_in_order, same_order)
from looped.experiments.report.cells import (MEASURES, Measured, duration, hardware_text, percent, short_power, split_column)
from looped.experiments.tables import experiment
from looped.experiments.records import Value
from looped.experiments.spec import Cell, Experiment, require_unique
from looped.experiments.studies import STUDIES
from looped.experiments.report.words import verdicts
from looped.tasks import TASKS
from looped.training.trainer import hardware
from looped.utils.text import listed
from tests.experiments.fake_records import fake_record

ACCURACY = RunConfig(TASKS["edit-distance"](length=4))
ERROR = RunConfig(TASKS["decision-tree"]())


def measured(value, low, high, paper=None, config=ACCURACY, column="looped r=1", row="ED", shows="test") -> Measured:
    cell = Cell(row, column, config, paper, shows)
    return Measured(cell, (fake_record(config),), (Value(value, low, high),))


@pytest.mark.parametrize("total", [7, 40, 1000, 2000, 10_000])
def test_a_share_of_examples_is_rounded_half_up(total):
    """Against whole numbers: floor(1000 right / total + 1/2) tenths of a percent."""
    for right in range(total + 1):
        tenths = (2000 * right + total) // (2 * total)
        assert percent(right / total) == f"{tenths // 10}.{tenths % 10}"
        assert percent(np.float64(right) / total) == percent(sum([right / total] * 3) / 3)


def test_shares_and_their_gaps_are_rounded_alike():
    accuracy = MEASURES["accuracy"]
    assert accuracy.show(0.9535) == "95.4 %"
    assert accuracy.gap(0.9535, 0.0) == accuracy.gap(0.9555, 0.002) == "95.4 points"


@pytest.mark.parametrize(
    ("paper", "config", "sign", "tone"),
    [
        (0.50, ACCURACY, "=", "same"),
        (0.48, ACCURACY, "=", "same"),  # the interval's end belongs to it
        (0.47, ACCURACY, "▲", "better"),
        (0.40, ACCURACY, "▲", "far-better"),
        (0.53, ACCURACY, "▼", "worse"),
        (0.60, ACCURACY, "▼", "far-worse"),
        (0.53, ERROR, "▲", "better"),  # of an error less is better
        (0.60, ERROR, "▲", "far-better"),
        (0.40, ERROR, "▼", "far-worse"),
    ],
)
def test_a_number_against_the_papers(paper, config, sign, tone):
    found = difference(measured(0.5, 0.48, 0.52, paper, config))
    assert found is not None
    assert (found.sign, found.tone) == (sign, tone)


@pytest.mark.parametrize(
    ("interval", "paper", "config", "sign"),
    [
        ((0.0002, 0.0010), 0.0, ACCURACY, "="),  # printed as 0.0 %: less than 0.05 %
        ((0.0006, 0.0014), 0.0, ACCURACY, "▲"),
        ((0.7004, 0.7040), 0.700, ACCURACY, "="),  # 70.0 %, though the number has no more digits than 70 %
        ((0.7006, 0.7040), 0.700, ACCURACY, "▲"),
        ((0.00174, 0.0018), 1.7e-3, ERROR, "="),  # up to 1.75e-3
        ((0.00176, 0.0018), 1.7e-3, ERROR, "▼"),
        ((15.96, 16.2), 15.9, ERROR, "▼"),
        ((15.94, 16.2), 15.9, ERROR, "="),
    ],
)
def test_the_papers_numbers_are_known_as_far_as_they_are_printed(interval, paper, config, sign):
    low, high = interval
    found = difference(measured((low + high) / 2, low, high, paper, config))
    assert found is not None
    assert found.sign == sign


def test_without_an_interval_nothing_is_the_papers():
    assert difference(measured(0.5, 0.48, 0.52)) is None
    found = difference(measured(0.5, None, None, 0.5))
    assert found is not None
    assert found.sign != "="


def test_the_largest_difference_is_one_that_is_told_apart():
    table = experiment("table2", "gpu")  # on the paper's own problem
    papers = [cell.paper for cell in table.cells]
    assert papers == [0.0086, 0.014, 0.0017]
    values = (Value(0.0046, 0.004, 0.005), Value(0.024, 0.013, 0.035), Value(0.0037, 0.003, 0.004))
    cells = [
        Measured(cell, (fake_record(cell.config),), (value,)) for cell, value in zip(table.cells, values, strict=True)
    ]
    text = verdicts(table, cells)[0]
    assert "inside our interval for 1 of 3; ours is better for 1 and worse for 1." in text
    assert text.endswith("Test, TF L=12, 0.0046 (0.004 to 0.005), 0.004 below the paper.")
    assert verdicts(table, cells[2:])[0].endswith("0.0037 (0.003 to 0.004), 0.002 above the paper.")
    assert "largest" not in verdicts(table, cells[1:2])[0]


def test_order_needs_intervals_that_do_not_touch():
    low, high = measured(0.5, 0.48, 0.52), measured(0.6, 0.58, 0.62)
    assert above(high, low) == "yes"
    assert above(low, high) == "no"
    assert above(low, measured(0.54, 0.52, 0.56)) == "open"
    assert above(high, measured(0.1, None, None)) == "open"


def test_order_against_the_papers():
    low, high = measured(0.5, 0.48, 0.52, paper=0.3), measured(0.6, 0.58, 0.62, paper=0.4)
    assert same_order(low, high) == same_order(high, low) == "as in the paper"
    assert same_order(measured(0.5, 0.48, 0.52, paper=0.9), high) == "the other way"
    assert same_order(measured(0.59, 0.57, 0.61, paper=0.9), high) == "open"
    assert same_order(measured(0.5, 0.48, 0.52, paper=0.4), high) is None  # the paper has the same number twice
    assert same_order(measured(0.5, 0.48, 0.52), high) is None
    assert same_order(measured(0.5, 0.48, 0.52, paper=0.3, shows="train"), high) is None


def test_pairs_are_counted_within_rows_alone():
    row = [measured(value / 10, value / 10 - 0.01, value / 10 + 0.01, paper=paper, column=f"looped r={value}")
           for value, paper in ((1, 0.1), (2, 0.3), (3, 0.2))]  # fmt: skip
    elsewhere = measured(0.9, 0.89, 0.91, paper=0.05, row="LCS")
    assert orders([*row, elsewhere]) == {"as in the paper": 2, "the other way": 1}
    signs = [found.sign for one in row if (found := place_in_order(one, row))]
    assert signs == ["✓", "✗1", "✗1"]
    assert place_in_order(elsewhere, [elsewhere]) is None


def blocks(config: RunConfig, numbers: dict[tuple[str, int], tuple[float, float]]) -> list[Measured]:
    """Cells from (block, loops) -> (ours, the paper's), each with an interval of 0.02 on both sides."""
    cells = []
    for (block, loops), (ours, paper) in numbers.items():
        one = replace(config, model=ModelConfig(block=block, num_loops=loops))
        name = {"standard": "TF", "looped": f"looped r={loops}", "modulated": f"timestep r={loops}"}[block]
        cells.append(measured(ours, ours - 0.02, ours + 0.02, paper, one, name))
    return cells


def test_claims_about_accuracies_and_errors():
    numbers = {
        ("standard", 1): (0.5, 0.5),
        ("looped", 2): (0.3, 0.3),
        ("looped", 8): (0.6, 0.6),
        ("modulated", 2): (0.3, 0.3),
        ("modulated", 8): (0.61, 0.9),
    }
    found = {claim.name: claim for claim in claims(blocks(ACCURACY, numbers))}
    assert len(found) == 5
    assert MORE_LOOPED.startswith("The most loops are better than the fewest")
    assert (found[MORE_LOOPED].better.loops, found[MORE_LOOPED].worse.loops) == (8, 2)
    assert found[MORE_LOOPED].verdict == "as in the paper"
    assert found[OVER_STANDARD].verdict == "as in the paper"
    assert (found[TIMESTEP].ours, found[TIMESTEP].papers, found[TIMESTEP].verdict) == ("open", "yes", "open")
    # The same numbers as errors: now more loops are worse, for us and for the paper.
    found = {claim.name: claim for claim in claims(blocks(ERROR, numbers))}
    assert (found[MORE_LOOPED].ours, found[MORE_LOOPED].papers) == ("no", "no")
    assert found[MORE_LOOPED].verdict == "as in the paper"
    numbers["looped", 8] = (0.1, 0.6)
    found = {claim.name: claim for claim in claims(blocks(ERROR, numbers))}
    assert (found[MORE_LOOPED].ours, found[MORE_LOOPED].verdict) == ("yes", "the other way")


def test_a_paper_with_one_number_twice_calls_them_equal_and_not_open():
    rows = [
        replace(one, cell=replace(one.cell, row=row))
        for row, paper in (("Train", 0.5), ("Test", 0.6))
        for one in blocks(ACCURACY, {("standard", 1): (0.5, 0.5), ("looped", 8): (0.6, paper)})
    ]
    table = Experiment("table", "A table", "", "laptop", tuple(one.cell for one in rows))
    for brief in (False, True):
        told = verdicts(table, rows, brief=brief)
        assert f"{OVER_STANDARD}: yes in 2 of 2 rows (paper: yes in 1 and equal in 1 of 2 rows)." in told
        (alone,) = [text for text in verdicts(table, rows[:2], brief=brief) if text.startswith(OVER_STANDARD)]
        assert "(paper: equal)" in alone
    assert [claim.verdict for claim in claims(rows)] == ["open", "as in the paper"]


def test_models_that_differ_in_more_than_loops_make_no_claim():
    cells = blocks(ACCURACY, {("looped", 2): (0.3, 0.3), ("looped", 8): (0.6, 0.6)})
    other = replace(cells[1].cell.config, task=TASKS["edit-distance"](length=5))
    cells[1] = replace(cells[1], cell=replace(cells[1].cell, config=other))
    assert claims(cells) == []


shares = st.floats(0, 1)


@given(st.lists(shares, min_size=3, max_size=3), st.lists(shares, min_size=3, max_size=3))
def test_an_order_read_backwards_is_its_opposite(one, other):
    (a, b, c), (d, e, f) = sorted(one), sorted(other)
    left, right = measured(b, a, c), measured(e, d, f)
    assert above(left, right) == {"yes": "no", "no": "yes", "open": "open"}[above(right, left)]
    if above(left, right) == "yes":
        assert b > e


@given(st.lists(st.tuples(shares, shares), min_size=5, max_size=20))
def test_correlation_is_numpys(pairs):
    found = correlation(pairs)
    if found is not None and min(np.std([x for x, _ in pairs]), np.std([y for _, y in pairs])) > 1e-3:
        assert found == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1], abs=1e-9)
    assert correlation([(0.0, 0.0), (0.1, 0.2), (0.2, 0.1), (0.3, 0.3)]) is None  # too few


@pytest.mark.parametrize(
    ("coefficient", "shown"),
    [(1.0, "1.000"), (0.99956, "above 0.999"), (0.99949, "0.999"), (0.94810, "0.948"), (-0.3, "-0.300")],
)
def test_what_is_nearly_a_perfect_correlation_is_not_called_one(coefficient, shown):
    assert show_correlation(coefficient) == shown


@given(st.floats(1e-9, 1e25))
def test_short_powers_can_be_read_back(value):
    assert float(short_power(value)) == pytest.approx(value, rel=0.006)


def test_small_words():
    assert split_column("looped r=5") == ("looped", "r=5")
    assert split_column("timestep, trained on n, r=50") == ("timestep, trained on n", "r=50")
    assert split_column("r=8") == ("", "r=8")
    assert split_column("TF L=12") == ("TF L=12", "")
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert [duration(seconds) for seconds in (59, 600, 7100, 7300, 9000)] == [
        "59 seconds", "10 minutes", "118 minutes", "2.0 hours", "2.5 hours",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.2, 1.2, 1.9)] == ["0 seconds", "1 second", "2 seconds"]
    record = fake_record(ACCURACY)
    for text, wanted in (("CPU, 1 threads, x", "CPU, 1 thread, x"), ("CPU, 11 threads, x", "CPU, 11 threads, x")):
        assert hardware_text(replace(record, hardware=text)) == wanted


@pytest.mark.parametrize(("count", "words"), [(1, "CPU, 1 thread, "), (2, "CPU, 2 threads, ")])
def test_threads_are_counted_in_english(count, words, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert hardware(torch.device("cpu")).startswith(words)


def against(numbers: dict[tuple[str, str], tuple[float, float, float]], config=ACCURACY) -> list[str]:
    cells = [measured(*found, config=config, row=row, column=column) for (row, column), found in numbers.items()]
    study = Experiment("study", "A study", "", "laptop", tuple(one.cell for one in cells), against="as here")
    return verdicts(study, cells)


def test_rows_are_held_against_the_one_that_the_study_names():
    numbers = {
        ("as here", "a"): (0.5, 0.48, 0.52),
        ("much", "a"): (0.6, 0.58, 0.62),
        ("little", "a"): (0.51, 0.49, 0.53),
        ("as here", "b"): (0.7, 0.68, 0.72),
        ("little", "b"): (0.6, 0.58, 0.62),
        ("alone", "c"): (0.9, 0.88, 0.92),
    }
    assert against(numbers) == [
        "Against as here, a, 50.0 % (48.0 to 52.0): much is at 60.0 % (58.0 to 62.0), 10.0 points better; "
        "little is at 51.0 % (49.0 to 53.0), not told apart.",
        "Against as here, b, 70.0 % (68.0 to 72.0): little is at 60.0 % (58.0 to 62.0), 10.0 points worse.",
    ]
    column = {place: found for place, found in numbers.items() if place[1] == "a"}
    first, second = against(column)  # of one column, also the best
    assert first.startswith("Against as here, a,")
    assert second.startswith("Best: much, a,")
    assert "much is at 0.6 (0.58 to 0.62), 0.1 worse" in against(column, ERROR)[0]  # of an error less is better
    assert not any("Against" in text for text in against({("alone", "c"): (0.9, 0.88, 0.92)}))


def test_the_best_of_two_rows_is_told_once():
    (only,) = against({("as here", "a"): (0.5, 0.48, 0.52), ("much", "a"): (0.6, 0.58, 0.62)})
    assert only.startswith("Against as here, a,")


def test_the_best_is_sought_among_all_numbers_of_the_same_examples():
    numbers = {
        "timestep, 8 loops": ("test", 0.8),
        "timestep, 16 loops": ("test", 0.7),
        "timestep, 16 loops, clamp": ("sets/clamp", 0.9),
        "timestep, 16 loops, rescale": ("sets/rescale", 0.6),
        "other examples": ("sets/2 n", 0.99),
        "trained on": ("train", 0.98),
    }
    cells = [
        measured(value, value - 0.02, value + 0.02, column=column, row="fixed", shows=shows)
        for column, (shows, value) in numbers.items()
    ]
    study = Experiment("study", "A study", "", "laptop", tuple(one.cell for one in cells))
    (text,) = verdicts(study, cells)
    assert text == (
        "Best: fixed, timestep, 16 loops, clamp, 90.0 % (88.0 to 92.0); next: fixed, timestep, 8 loops, 80.0 % "
        "(78.0 to 82.0); their intervals do not overlap."
    )


def test_our_own_studies_name_the_row_of_their_question():
    rows = {
        "conditioning": "none", "conditioning-parameters": "none", "length": "n", "fidelity": "as here",
        "recipes": "laptop", "equal-time": "r=4", "rates": "all",
    }  # fmt: skip
    assert {name: made.against for name in STUDIES if (made := experiment(name, "smoke")).against} == rows
    with pytest.raises(InputError, match="nowhere"):
        require_unique(replace(experiment("fidelity", "smoke"), against="nowhere"))
