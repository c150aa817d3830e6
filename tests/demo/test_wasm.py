"""The kernel's assembler and the kernel itself."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from looped.demo.build import WEB
from looped.demo.wasm import assemble


def test_assembler_gives_the_bytes_of_the_reference_assembler(tmp_path):
    if shutil.which("wat2wasm") is None:
        pytest.skip("comparing with the reference assembler needs wat2wasm, of the package wabt")
    source, out = tmp_path / "matmul.wat", tmp_path / "matmul.wasm"
    source.write_text((WEB / "matmul.wat").read_text("utf-8"))
    subprocess.run(["wat2wasm", source, "-o", out], check=True)
    assert assemble(source.read_text()) == out.read_bytes()


def test_assembler_encodes_numbers_and_names_as_the_standard_says():
    # By hand, from the binary format of the WebAssembly specification: the constant 300 is AC 02 in LEB128.
    source = '(module (import "a" "b" (memory 1)) (func (export "f") (param $x i32) (local.set $x (i32.const 300))))'
    expected = (
        "00 61 73 6d 01 00 00 00"
        "01 05 01 60 01 7f 00"
        "02 08 01 01 61 01 62 02 00 01"
        "03 02 01 00"
        "07 05 01 01 66 00 00"
        "0a 09 01 07 00 41 ac 02 21 00 0b"
    )
    assert assemble(source) == bytes.fromhex(expected)


@pytest.mark.parametrize("use_kernel", [True, False], ids=["simd", "plain"])
def test_matmul_of_strided_matrices_equals_numpy(node, kernel, tmp_path, use_kernel):
    rng = np.random.default_rng(0)
    cases, expected = [], []
    for m, k, n in [(1, 1, 1), (4, 8, 8), (5, 7, 9), (81, 64, 88), (3, 20, 15)]:
        x, w = rng.standard_normal((m, k + 3), dtype=np.float32), rng.standard_normal((k, n + 2), dtype=np.float32)
        cases.append({"x": x.tolist(), "w": w.tolist(), "k": k, "n": n})
        expected.append(x[:, :k].astype(np.float64) @ w[:, :n].astype(np.float64))
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    products = json.loads(node("matmul_check.mjs", path, kernel if use_kernel else "none"))
    for product, wanted in zip(products, expected, strict=True):
        np.testing.assert_allclose(product, wanted, rtol=1e-4, atol=1e-4)
