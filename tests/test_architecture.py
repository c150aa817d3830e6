"""Rules about the code itself."""

import ast
import subprocess
import sys

import pytest

from tests.paths import ROOT

SOURCES = sorted((ROOT / "src" / "looped").rglob("*.py"))
MAX_LINES = 600


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_source_file_is_short_and_documents_its_public_names(path):
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    assert _undocumented(tree.body) == []


def _undocumented(body: list[ast.stmt], inherits: bool = False) -> list[str]:
    """Return public names without a docstring; a method may inherit its docstring from a base class."""
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            is_class = isinstance(node, ast.ClassDef)
            found += [node.name] if not ast.get_docstring(node) and (is_class or not inherits) else []
            found += _undocumented(node.body, inherits=bool(node.bases)) if is_class else []
    return found


@pytest.mark.parametrize("code", ["import looped", "from looped.cli.main import main; main(['--help'])"])
def test_import_or_help_does_not_load_torch(code):
    check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], stdout=subprocess.DEVNULL).returncode == 0


def test_tasks_config_and_recipes_do_not_load_torch():
    check = "import looped.tasks, looped.config, looped.recipes, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_public_names_all_load():
    import looped

    for name in looped.__all__:
        assert getattr(looped, name) is not None
    assert set(looped.__all__) <= set(dir(looped))
    with pytest.raises(AttributeError, match="nonsense"):
        looped.nonsense  # noqa: B018


def test_package_imports_and_writes_files_without_fcntl(tmp_path):
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import looped\n"
        "[getattr(looped, name) for name in looped.__all__]\n"
        "from pathlib import Path\n"
        "from looped.utils.files import locked, save_text\n"
        f"save_text(Path({str(tmp_path / 'a.txt')!r}), 'text')\n"
        f"with locked(Path({str(tmp_path / 'lock')!r}), wait=False) as free: assert free\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert (tmp_path / "a.txt").read_text() == "text"
