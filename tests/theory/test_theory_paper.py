"""The paper in theory-paper/ names functions and tests: every name exists."""

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = sorted((ROOT / "theory-paper" / "sections").glob("*.tex"))
TEXT = "".join(path.read_text() for path in SECTIONS)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\\fn\{([\w.]+)\}", TEXT))))
def test_paper_names_an_object_that_exists(name):
    assert pkgutil.resolve_name(f"looped.theory.{name}") is not None


def test_paper_names_tests_that_exist():
    named = set(re.findall(r"\\test\{(\w+)\}", TEXT))
    files = (ROOT / "tests").rglob("test_*.py")
    defined = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 40
    assert named <= defined


def test_paper_names_code_and_tests_for_every_theorem():
    """Between a theorem or corollary and the next one stands a line with its function and its tests."""
    begin = r"\\begin\{(?:theorem|corollary)\}"
    statements = [statement for path in SECTIONS for statement in re.split(begin, path.read_text())[1:]]
    assert len(statements) >= 10
    for statement in statements:
        assert "\\code{" in statement, statement[:60]


def test_table_of_the_proofs_names_functions_and_tests_that_exist():
    text = (ROOT / "proofs" / "README.md").read_text()
    functions = set(re.findall(r"`((?:bounds|constructions|grid|lemmas|moduli|network|targets)\.[\w.]+)`", text))
    assert len(functions) > 10
    for name in functions - {f"constructions.modulated.ModulatedMinimal.{cost}" for cost in ("num_ids", "loops")}:
        assert pkgutil.resolve_name(f"looped.theory.{name}") is not None, name
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for file, pattern in re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+\*?)`", text):
        named = re.escape(pattern).replace(r"\*", r"\w+")
        assert re.search(rf"def {named}\(", sources[file or "test_proofs.py"]), (file, pattern)
