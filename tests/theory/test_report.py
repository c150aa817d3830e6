"""What the report on a network says."""

import json
from dataclasses import replace

import pytest

from looped import theory
from looped.theory.report import check_cells, report


def test_the_report_says_when_there_is_nothing_to_check_and_when_a_constant_is_refuted():
    empty = report("mean", 1, 3, 2)
    assert (empty.cells_checked, empty.refuted) == (0, False)
    assert "nothing to check" in empty.text()
    assert "cells checked" not in empty.text()
    steep = report("attn", 1, 2, 3, lipschitz=0.01)
    assert steep.refuted
    assert "VIOLATED: f is steeper than its Lipschitz constant 0.01" in steep.text()
    assert not report("attn", 1, 2, 3).refuted


def test_the_report_says_when_the_network_does_not_return_what_it_stores(monkeypatch):
    """A network with a printed fault: the cells are compared, and what the report says is what came out."""
    faulty = theory.approximate(theory.load("wave", 1, 2), 1, 2, 3, printed={"stray digit"})
    assert check_cells(faulty) == (9, False, False)
    assert check_cells(theory.approximate(theory.load("wave", 1, 2), 1, 2, 3)) == (9, True, False)
    assert check_cells(theory.approximate(theory.load("wave", 1, 2), 1, 2, 3, "modulated")) == (9, True, True)
    monkeypatch.setattr("looped.theory.report.approximate", lambda *given, **more: faulty)
    said = report("wave", 1, 2, 3)
    assert (said.equals_code, said.exact, said.refuted) == (False, False, True)
    assert "NO: not the stored label on all of 9 cells checked" in said.text()
    assert replace(said, equals_code=True, holds=True).refuted is False


@pytest.mark.parametrize(("variant", "exact"), [("paper", False), ("modulated", True), ("lean-stream", False)])
def test_the_report_says_what_was_built_and_whether_it_is_exact(variant, exact):
    said = report("wave", 1, 2, 3, variant)
    assert (said.exact, said.equals_code, said.holds, said.cells_checked) == (exact, True, True, 9)
    assert json.loads(json.dumps(said.as_dict()))["size"]["loops"] == said.size.loops
    assert f"{said.size.loops} loops" in said.text()
    assert f", {said.size.heads} head{'s' if variant == 'paper' else ''}, width " in said.text()
    assert ("f(representative)" in said.text()) == exact
