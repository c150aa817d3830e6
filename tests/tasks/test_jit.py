"""Where compiled code is kept: in the cache folder, or nowhere, but never at the price of an import."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import looped

DRAW = """
from looped.tasks import TASKS, rng
[task() for task in TASKS.values()]
print(rng.below(rng.start(0, 0, 0), 10)[1])
"""

# As good as one: no file can grow.
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"


@pytest.fixture
def elsewhere(tmp_path):
    """A copy of the package in which nothing can be written: where numba wants a folder there is a file.

    (Permissions would not do, as an administrator has all of them.)
    """
    package = tmp_path / "site" / "looped"
    shutil.copytree(Path(looped.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    (package / "tasks" / "__pycache__").write_text("no folder")
    (tmp_path / "no-home").write_text("no folder")
    return package.parent


def drawn(elsewhere: Path, before: str = "", **variables: str) -> str:
    dropped = ("NUMBA_CACHE_DIR", "LOOPED_CACHE", "XDG_CACHE_HOME")
    usual = {name: value for name, value in os.environ.items() if name not in dropped}
    home = {"HOME": str(elsewhere.parent / "no-home"), "PYTHONPATH": str(elsewhere), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", before + DRAW],
        env={**usual, **home, **variables},
        cwd=elsewhere,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_tasks_work_where_nothing_can_be_written(elsewhere, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    answer = drawn(elsewhere)
    assert answer == drawn(elsewhere, LOOPED_CACHE=str(tmp_path / "no-home" / "cache"))
    assert sorted(tmp_path.rglob("*")) == before


def test_machine_code_is_kept_in_the_cache_folder_unless_numba_is_told_otherwise(elsewhere, tmp_path):
    cache, own = tmp_path / "cache", tmp_path / "own"
    drawn(elsewhere, LOOPED_CACHE=str(cache))
    kept = {path.name.split("-")[0] for path in (cache / "numba").rglob("*.nbi")}
    assert {"rng.below", "rng.start"} <= kept
    drawn(elsewhere, LOOPED_CACHE=str(tmp_path / "other"), NUMBA_CACHE_DIR=str(own))
    assert not (tmp_path / "other").exists()
    assert any(own.rglob("*.nbi"))


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_a_damaged_file_of_machine_code_is_made_again(ending, elsewhere, tmp_path):
    cache = str(tmp_path / "cache")
    answer = drawn(elsewhere, LOOPED_CACHE=cache)
    files = list((tmp_path / "cache").rglob(f"*{ending}"))
    sizes = [path.stat().st_size for path in files]
    for path, size in zip(files, sizes, strict=True):
        os.truncate(path, size // 2)
    assert drawn(elsewhere, LOOPED_CACHE=cache) == answer
    assert [path.stat().st_size for path in files] == sizes


def test_what_cannot_be_kept_is_compiled_again(elsewhere, tmp_path):
    """On a full disk, and where a damaged file cannot be replaced."""
    cache = str(tmp_path / "cache")
    answer = drawn(elsewhere, FULL_DISK, LOOPED_CACHE=cache)
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))
    assert drawn(elsewhere, LOOPED_CACHE=cache) == answer
    for path in (tmp_path / "cache").rglob("*.nbi"):
        path.unlink()
        path.mkdir()
    assert drawn(elsewhere, LOOPED_CACHE=cache) == answer
