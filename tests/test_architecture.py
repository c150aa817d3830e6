"""Rules about the code itself."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

SOURCES = sorted((ROOT / "src" / "looped").rglob("*.py"))
MAX_LINES = 600


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_a_file_fits_in_a_head_and_says_what_it_is(path):
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES
    assert text.startswith('"""')


@pytest.mark.parametrize("code", ["import looped", "from looped.cli.main import main; main(['--help'])"])
def test_light_things_do_not_import_torch(code):
    check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], stdout=subprocess.DEVNULL).returncode == 0


def test_tasks_need_no_torch():
    check = "import looped.tasks, looped.config, looped.recipes, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_every_public_name_loads():
    import looped

    for name in looped.__all__:
        assert getattr(looped, name) is not None
    assert set(looped.__all__) <= set(dir(looped))
    with pytest.raises(AttributeError, match="nonsense"):
        looped.nonsense  # noqa: B018
