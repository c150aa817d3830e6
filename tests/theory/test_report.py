"""The report of a network."""

import json
from dataclasses import replace

import pytest

from looped import theory
from looped.theory.report import check_cells, report


def test_report_without_cells_is_empty_and_with_a_wrong_constant_refuted():
    empty = report("mean", 1, 3, 2)
    assert (empty.cells_checked, empty.refuted) == (0, False)
    assert "nothing to check" in empty.text()
    steep = report("attn", 1, 2, 3, lipschitz=0.01)
    assert steep.refuted
    assert "VIOLATED" in steep.text()
    assert "0.01" in steep.text()
    assert not report("attn", 1, 2, 3).refuted


def test_report_of_a_faulty_network_is_refuted(monkeypatch):
    """A printed fault makes the network return other values than it stores."""
    faulty = theory.approximate(theory.load("wave", 1, 2), 1, 2, 3, printed={"stray digit"})
    assert check_cells(faulty) == (9, False, False)
    assert check_cells(theory.approximate(theory.load("wave", 1, 2), 1, 2, 3)) == (9, True, False)
    assert check_cells(theory.approximate(theory.load("wave", 1, 2), 1, 2, 3, "modulated")) == (9, True, True)
    monkeypatch.setattr("looped.theory.report.approximate", lambda *given, **more: faulty)
    result = report("wave", 1, 2, 3)
    assert (result.equals_code, result.exact, result.refuted) == (False, False, True)
    assert "NO" in result.text()
    assert replace(result, equals_code=True, holds=True).refuted is False


@pytest.mark.parametrize(("variant", "exact"), [("paper", False), ("modulated", True), ("lean-stream", False)])
def test_report_has_the_size_and_exactness_of_the_network(variant, exact):
    result = report("wave", 1, 2, 3, variant)
    assert (result.exact, result.equals_code, result.holds, result.cells_checked) == (exact, True, True, 9)
    assert json.loads(json.dumps(result.as_dict()))["size"]["loops"] == result.size.loops
    assert f"{result.size.loops} loops" in result.text()
    assert f", {result.size.heads} head{'s' if variant == 'paper' else ''}, width " in result.text()
    assert ("f(representative)" in result.text()) == exact


def test_report_shows_the_steps_and_an_example_of_the_network():
    result = report("mean", 1, 2, 4, "modulated-minimal", representative="centre")
    assert result.steps == {"cell numbers": (1, 3), "ids": (4, 5), "labels": (6, 20)}
    assert result.example.inputs == [[pytest.approx(1 / 12), pytest.approx(7 / 12)]]  # in the cells 0 and 2
    assert result.example.network == [[0.375, 0.375]]  # the mean of the centres 1/8 and 5/8
    assert result.example.f == [[pytest.approx(1 / 3)] * 2]
    assert "X = (0.08333, 0.5833): network (0.375, 0.375), f (0.3333, 0.3333)" in result.text()
    assert "faults" not in result.text()


def test_report_explains_each_term_and_counts_the_faults_of_the_paper():
    text = report("mean", 1, 2, 2).text()
    for words in ("within a cell", "stored rounded", "two tokens in one cell", "just below the border", "label: f at"):
        assert words in text
    assert "15 of the printed block are corrected" in text
