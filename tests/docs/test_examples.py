"""The example scripts run as they stand, each in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

SAYS = {
    "own_task": r"validation accuracy (1\.0|0\.[89]\d*)\n[01 ]{29} -> 1 expected 1\n[01 ]{29} -> 0 expected 0\n",
    "own_data": r"lcs: 500 test examples(.|\n)*\nrefused: data/bad\.csv, line 3: expected only letters a-c, got 'z'",
    "own_layer": r"own layer: .*\nown mask: .*\nlayers seen by the hook: \[\(0, 0\), \(1, 0\), \(2, 0\), \(3, 0\)\]\n",
    "own_loss": r"(step \d+: validation 0\.\d+, best 0\.\d+\n)+stopped after \d+ of 200 steps by \w+\n",
}


@pytest.mark.parametrize("name", SAYS)
def test_example_runs_and_prints_its_result(name, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout), done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("own_*.py")), ids=lambda path: path.stem)
def test_example_of_own_code_is_short_and_tested(path: Path):
    assert len(path.read_text().splitlines()) <= 60
    assert path.stem in SAYS
