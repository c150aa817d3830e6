"""The Gluon kernels go through the compiler for a Hopper GPU, layouts and all, where no GPU is."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton.experimental.gluon")

SHARED_MEMORY = 227 * 1024
"""bytes that all programs on a Hopper multiprocessor can have together"""


@pytest.mark.parametrize(
    "programs",
    [{"answers": 1, "activation": 1, "attention": 3}, pytest.param({"causal training": 1}, marks=pytest.mark.slow)],
    ids=["", "training"],
)
def test_kernels_compile_and_fit_a_multiprocessor(programs, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.gluon_compiler", *programs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert rows.keys() == programs.keys()
    for name, row in rows.items():
        assert row["cubin"] > 0
        assert row["products"] > 0  # on the tensor cores, by Hopper's instruction
        assert programs[name] * row["shared"] <= SHARED_MEMORY
