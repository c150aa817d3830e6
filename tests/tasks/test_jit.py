"""The cache of compiled code: in the cache folder, or nowhere, but importing a task never fails."""

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

# Acts like a full disk: no file can grow.
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"


@pytest.fixture
def elsewhere(tmp_path):
    """Return a copy of the package where numba cannot write, because files stand in place of its folders.

    Permissions would not stop a test that runs as root.
    """
    package = tmp_path / "site" / "looped"
    shutil.copytree(Path(looped.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    for folder in {path.parent for path in package.rglob("*.py")}:
        (folder / "__pycache__").write_text("no folder")
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


def test_compiled_without_a_writable_folder_still_works(elsewhere, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    answer = drawn(elsewhere)
    assert answer == drawn(elsewhere, LOOPED_CACHE=str(tmp_path / "no-home" / "cache"))
    assert sorted(tmp_path.rglob("*")) == before


def test_compiled_caches_in_the_cache_folder_unless_numba_has_one(elsewhere, tmp_path):
    cache, own = tmp_path / "cache", tmp_path / "own"
    drawn(elsewhere, LOOPED_CACHE=str(cache))
    kept = {path.name.split("-")[0] for path in (cache / "numba").rglob("*.nbi")}
    assert {"rng.below", "rng.start"} <= kept
    drawn(elsewhere, LOOPED_CACHE=str(tmp_path / "other"), NUMBA_CACHE_DIR=str(own))
    assert not (tmp_path / "other").exists()
    assert any(own.rglob("*.nbi"))


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_compiled_replaces_a_damaged_cache_file(ending, elsewhere, tmp_path):
    cache = str(tmp_path / "cache")
    answer = drawn(elsewhere, LOOPED_CACHE=cache)
    files = list((tmp_path / "cache").rglob(f"*{ending}"))
    sizes = [path.stat().st_size for path in files]
    for path, size in zip(files, sizes, strict=True):
        os.truncate(path, size // 2)
    assert drawn(elsewhere, LOOPED_CACHE=cache) == answer
    assert [path.stat().st_size for path in files] == sizes


def test_compiled_on_a_full_disk_compiles_again(elsewhere, tmp_path):
    """Try a full disk, and a damaged file that cannot be replaced."""
    cache = str(tmp_path / "cache")
    answer = drawn(elsewhere, FULL_DISK, LOOPED_CACHE=cache)
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))
    assert drawn(elsewhere, LOOPED_CACHE=cache) == answer
    for path in (tmp_path / "cache").rglob("*.nbi"):
        path.unlink()
        path.mkdir()
    assert drawn(elsewhere, LOOPED_CACHE=cache) == answer
