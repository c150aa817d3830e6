"""On a GPU: products by the library's fastest algorithm equal those in float64, also in a captured graph."""

import pytest
import torch

from looped.kernels import library
from looped.kernels.cuda_graphs import PLAIN_CALLS, Replayed
from tests.kernels.cases import Draw, assert_near

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BFLOAT16 = torch.bfloat16


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_product_matches_float64(transposed, biased):
    draw = Draw()
    left, right = draw(8200, 768, dtype=BFLOAT16), draw(768, 512, dtype=BFLOAT16, std=768**-0.5)
    bias = draw(512, dtype=BFLOAT16) if biased else None
    wanted = left.double() @ right.double() + (0 if bias is None else bias.double())
    given = right.T.contiguous() if transposed else right
    out = torch.full((8200, 512), torch.nan, dtype=BFLOAT16, device="cuda")
    assert library.product(left, given, bias, transposed=transposed, out=out) is out
    assert_near(out, wanted, 1e-2)
    assert_near(library.product(left, given, bias, transposed=transposed), wanted, 1e-2)
    assert any(shape.biased == biased and shape.rows == 8200 for shape in library._matmuls)


def test_product_without_timing_leaves_no_algorithm_behind():
    draw = Draw()
    left, right = draw(8211, 768, dtype=BFLOAT16), draw(768, 512, dtype=BFLOAT16)
    with library.without_timing():
        found = library.product(left, right, transposed=False)
    assert_near(found, left.double() @ right.double(), 1e-2)
    assert not any(shape.rows == 8211 for shape in library._matmuls)


@pytest.mark.parametrize("batch", [1, 3])
def test_products_over_tokens_match_float64(batch):
    draw = Draw()
    left, right = draw(batch, 8200, 768, dtype=BFLOAT16), draw(batch, 8200, 512, dtype=BFLOAT16)
    found = library.products_over_tokens(left, right)
    assert found.dtype == torch.float32
    assert_near(found, left.double().transpose(1, 2) @ right.double(), 1e-4)
    assert any(shape.batch == batch and shape.left_transposed for shape in library._matmuls)


@pytest.mark.parametrize("place", range(library.ALGORITHMS))
def test_every_algorithm_matches_float64(place):
    draw = Draw(place)
    left, right = draw(2, 4096, 512, dtype=BFLOAT16), draw(2, 4096, 768, dtype=BFLOAT16)
    shape = library._Shape(2, 512, 4096, 768, True, False, False, torch.float32, left.device)
    matmul = library._Matmul(shape)
    algorithms = matmul.algorithms()
    if place >= len(algorithms):
        pytest.skip("the library lists fewer algorithms")
    matmul.algorithm, out = algorithms[place], torch.full((2, 512, 768), torch.nan, device="cuda")
    matmul(left, right, None, out)
    assert_near(out, left.double().transpose(1, 2) @ right.double(), 1e-4)


def test_product_in_a_graph_follows_its_factors():
    draw = Draw()
    left, right = draw(8192, 512, dtype=BFLOAT16), draw(512, 512, dtype=BFLOAT16)
    replayed = Replayed(lambda given: (library.product(*given, transposed=True),))
    for _ in range(PLAIN_CALLS + 2):
        left = left.flip(0)
        (found,) = replayed((left, right))
        assert_near(found, left.double() @ right.double().T, 1e-2)
    assert replayed.captured
