"""No file that looped reads can bring code with it."""

import ast

import pytest

from looped.cli.main import main
from tests.paths import ROOT

SOURCES = sorted((ROOT / "src" / "looped").rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "code", "codeop"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
LOADERS = {"torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter"}
# A user's own file, which the command line names: --function file.py:name, and --plugin file.py.
RUNS_A_FILE = ("theory/targets.py", "utils/plugins.py")


def code_from_data(source: str) -> list[str]:
    """Return the places of a source that could run code that comes with data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            found += [name for name in names if name.split(".")[0] in MODULES]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            allowed = {each.arg: ast.unparse(each.value) for each in node.keywords}
            risky = name in BUILTINS | LOADERS or name.endswith(".exec_module")
            if risky or allowed.get("allow_pickle", "False") != "False" or allowed.get("trust_remote_code") == "True":
                found.append(f"{name}, line {node.lineno}")
    return found


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "torch.load(path)", "eval(text)", "np.load(path, allow_pickle=True)"],
)
def test_code_from_data_is_found(source):
    assert code_from_data(source)


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_source_runs_no_code_from_data(path):
    found = code_from_data(path.read_text())
    expected = 1 if path.as_posix().endswith(RUNS_A_FILE) else 0
    assert len(found) == expected, found


def test_help_says_that_a_function_s_file_is_run(capsys):
    with pytest.raises(SystemExit):
        main(["theory", "approximate", "--help"])
    assert "runs that file" in " ".join(capsys.readouterr().out.split())
