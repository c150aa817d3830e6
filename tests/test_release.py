"""The package as people install it: a wheel, without the repository."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from looped.utils.version import __version__
from tests.paths import ROOT

NOT_SHIPPED = ("__pycache__",)


def test_version_is_the_one_of_the_changelog_and_of_the_citation():
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    released = next(line for line in headings if line != "## Unreleased")
    assert released.split()[1] == __version__
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text().splitlines()


def test_extras_that_pages_and_messages_name_exist():
    pages = [ROOT / "README.md", ROOT / ".ci" / "run", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named: set[str] = set()
    for page in pages:
        for extras in re.findall(r"(?:looped|\.)\[([a-z]+(?:,[a-z]+)*)\]", page.read_text()):
            named |= set(extras.split(","))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"ray", "track"} <= named
    assert named <= set(project["optional-dependencies"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build a wheel from a copy of the sources, so that nothing is left in them."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    copied = ("src", "pyproject.toml", "README.md", "LICENSE")
    subprocess.run(["cp", "-r", *(str(ROOT / name) for name in copied), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_every_file_of_the_package(wheel):
    package = ROOT / "src"
    files = {path.relative_to(package).as_posix() for path in (package / "looped").rglob("*") if path.is_file()}
    wanted = {path for path in files if not any(part in path for part in NOT_SHIPPED)}
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.slow
def test_wheel_in_an_empty_environment_trains_solves_and_writes_the_demo(wheel, tmp_path):
    """Unpack the wheel beside the dependencies of this environment, and work far from the repository."""
    installed, home = tmp_path / "installed", tmp_path / "home"
    home.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(pip, check=True)
    environment = {**os.environ, "PYTHONPATH": str(installed)}

    def said(*words: str) -> str:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=home, env=environment, check=True, capture_output=True, text=True).stdout

    assert said("-c", "import looped; print(looped.__file__)").startswith(str(installed))
    assert said("-m", "looped", "--version") == f"looped {__version__}\n"
    assert "right" in said("-m", "looped", "solve", "edit-distance", "--input", "kitten|sitting").splitlines()[-1]
    small = ["--recipe", "laptop", "--task.length", "4", "--model.dim", "16", "--train.num-steps", "3"]
    said("-m", "looped", "train", "edit-distance", *small, "--train.eval-size", "10", "--out", "runs/mine")
    said("-m", "looped", "models", "pack", "runs/mine", "--out", "model.safetensors", "--size", "10")
    assert "10 test examples" in said("-m", "looped", "eval", "model.safetensors", "--size", "10")
    said("-m", "looped", "demo", "--no-open")
    assert (home / "demo" / "index.html").stat().st_size > 1_000_000
