"""Node, Chromium and a built demo, for the tests of the page. Where a program is missing, its tests are skipped."""

import shutil
import subprocess
from pathlib import Path

import pytest

from looped.demo.build import WEB, build_demo
from looped.demo.wasm import assemble

HERE = Path(__file__).parent
OLDEST_NODE = 18


@pytest.fixture(scope="session")
def node():
    """Return a function that runs a script of this folder in Node and returns its output."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("the engine's tests need Node")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").split(".")[0]) < OLDEST_NODE:
        pytest.skip(f"the engine's tests need Node {OLDEST_NODE} or newer, found {version.strip()}")

    def run(script: str, *arguments: object, timeout: float = 600) -> str:
        command = [path, str(HERE / script), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"{script} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def chromium():
    """Return the path of Chromium or Chrome."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("the page's test needs Chromium")
    return found


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    """Return the path of the assembled matmul kernel."""
    path = tmp_path_factory.mktemp("kernel") / "matmul.wasm"
    path.write_bytes(assemble((WEB / "matmul.wat").read_text("utf-8")))
    return path


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """Return a built demo."""
    return build_demo(tmp_path_factory.mktemp("demo"))
