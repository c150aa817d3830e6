"""Head and cross-entropy in one against the definition in float64, with every row step."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from looped.kernels import cross_entropy, reference
from looped.kernels.cross_entropy import linear_cross_entropy, plain_row_step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}

pytestmark = pytest.mark.filterwarnings("ignore:.*determinis.*:UserWarning")  # CUDA's, where poison asks for it


@pytest.fixture(autouse=True)
def _poisoned_memory():
    """What is not written must not be read: fresh memory is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["plain", "triton"])
def row_step(request, monkeypatch):
    if request.param == "plain":
        step = plain_row_step
    else:
        pytest.importorskip("triton")
        from looped.kernels.triton_cross_entropy import triton_row_step as step
    monkeypatch.setattr(cross_entropy, "choose_row_step", lambda scores: step)
    return step


@pytest.fixture
def rows_at_once(monkeypatch):
    def set_rows(rows):
        monkeypatch.setattr(cross_entropy, "ROWS_AT_ONCE", rows)
        monkeypatch.setattr(cross_entropy, "ROWS_AT_ONCE_ON_GPU", rows)

    return set_rows


def example(tokens, dim, vocab, dtype=torch.float32, seed=0):
    """Hidden states, weight, targets of which a third is right, and importances of which a third is 0."""
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, dim, generator=draw, dtype=torch.float64).to(DEVICE, dtype)
    weight = (2 * torch.randn(vocab, dim, generator=draw, dtype=torch.float64) / dim**0.5).to(DEVICE, dtype)
    targets = torch.randint(vocab, (tokens,), generator=draw).to(DEVICE)
    targets[::3] = (hidden.double() @ weight.double().T).argmax(dim=-1)[::3]
    importance = torch.rand(tokens, generator=draw).to(DEVICE) / tokens
    importance[1::3] = 0
    return hidden.requires_grad_(), weight.requires_grad_(), targets, importance


def definition(hidden, weight, targets, importance):
    """Loss, right and the gradients of the summed loss, in float64."""
    hidden, weight = (leaf.detach().double().requires_grad_() for leaf in (hidden, weight))
    losses, right = reference.linear_cross_entropy(hidden, weight, targets)
    total = (losses * importance.double()).sum()
    total.backward()
    return total, losses, right, hidden.grad, weight.grad


def assert_near(got, wanted, tolerance):
    error = (got.double() - wanted).square().mean().sqrt()
    assert error <= tolerance * wanted.square().mean().sqrt()  # false for NaN


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("tokens", "dim", "vocab", "rows"),
    [
        (12, 8, 64, 4),  # whole chunks
        (13, 5, 37, 4),  # a last chunk of one, a vocabulary that fits nothing
        (5, 1, 2, 8),
        (3, 16, 8192, 8),  # one whole block of the kernel
        (3, 16, 16421, 2),  # three blocks, the last one 37 wide
    ],
)
def test_loss_and_gradients_are_those_of_the_definition(row_step, rows_at_once, tokens, dim, vocab, rows, dtype):
    rows_at_once(rows)
    hidden, weight, *_ = inputs = example(tokens, dim, vocab, dtype)
    total, losses, right = linear_cross_entropy(*inputs)
    (-1.7 * total).backward()
    true_total, true_losses, true_right, d_hidden, d_weight = definition(*inputs)

    assert total.dtype == losses.dtype == torch.float32
    assert (hidden.grad.dtype, weight.grad.dtype) == (dtype, dtype)
    assert_near(total, true_total, TOLERANCE[dtype])
    assert_near(losses, true_losses, TOLERANCE[dtype])
    assert_near(hidden.grad, -1.7 * d_hidden, TOLERANCE[dtype])
    assert_near(weight.grad, -1.7 * d_weight, TOLERANCE[dtype])
    first, second = (hidden.double() @ weight.double().T).topk(2).values.unbind(dim=-1)
    clear = first - second > TOLERANCE[dtype] * first.abs()  # elsewhere rounding may decide
    assert clear.any()
    assert torch.equal(right[clear], true_right[clear])


def test_a_float32_weight_keeps_its_gradient_in_float32(row_step, rows_at_once):
    """Summed over 64 chunks: in bfloat16 the sum would be wrong by more than half a percent."""
    rows_at_once(1)
    hidden, weight, targets, importance = example(64, 8, 11, torch.bfloat16)
    importance = torch.full_like(importance, 1 / 64)
    master = weight.detach().float().requires_grad_()
    linear_cross_entropy(hidden, master, targets, importance).total.backward()
    _, _, _, _, d_weight = definition(hidden, weight, targets, importance)
    assert master.grad.dtype == torch.float32
    assert_near(master.grad, d_weight, 4e-3)


def test_a_batch_of_sequences_is_read_like_its_tokens(row_step):
    hidden, weight, targets, importance = example(12, 5, 7)
    flat = linear_cross_entropy(hidden, weight, targets, importance)
    shaped = linear_cross_entropy(hidden.view(3, 4, 5), weight, targets.view(3, 4), importance.view(3, 4))
    assert torch.equal(shaped.total, flat.total)
    assert torch.equal(shaped.losses, flat.losses.view(3, 4))
    assert torch.equal(shaped.right, flat.right.view(3, 4))


def test_strides_do_not_matter(row_step):
    hidden, weight, targets, _ = example(12, 5, 7)
    importance = torch.tensor(1 / 12, device=DEVICE).expand(12)
    spread = torch.stack((hidden, hidden), dim=-1)[..., 0], torch.stack((targets, targets), dim=-1)[:, 0]
    strided = linear_cross_entropy(spread[0], weight.T.contiguous().T, spread[1], importance)
    plain = linear_cross_entropy(hidden, weight, targets, importance.clone())
    torch.testing.assert_close(strided, plain)


def rows_of(scores, targets, step, wants_gradient=True):
    importance, losses = torch.ones(2, len(scores), device=DEVICE)
    right = torch.empty(len(scores), dtype=torch.bool, device=DEVICE)
    step(scores, targets, importance, losses, right, wants_gradient)
    return losses, right


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_among_equal_scores_the_first_is_the_answer(row_step, dtype):
    draw = torch.Generator().manual_seed(1)
    scores = torch.randint(4, (200, 9), generator=draw).to(DEVICE, dtype)
    targets = torch.randint(9, (200,), generator=draw).to(DEVICE)
    wanted = scores.argmax(dim=-1) == targets
    _, right = rows_of(scores, targets, row_step)
    assert wanted.any()
    assert torch.equal(right, wanted)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, of which the interpreter is made
def test_a_diverged_row_is_not_called_right(row_step):
    scores = torch.full((2, 9), torch.nan, device=DEVICE)
    losses, right = rows_of(scores, torch.tensor([3, 8], device=DEVICE), row_step)
    assert losses.isnan().all()
    assert not right.any()


def test_huge_scores_stay_finite(row_step):
    scores = torch.tensor([[1e4, -1e4, 9999.0], [-1e4, -1e4, -1e4]], device=DEVICE)
    losses, _ = rows_of(scores, torch.tensor([2, 0], device=DEVICE), row_step)
    wanted = torch.tensor([1.3132617, 1.0986123], device=DEVICE)  # log(1 + e), log 3
    torch.testing.assert_close(losses, wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(scores.sum(dim=-1), torch.zeros(2, device=DEVICE), rtol=0, atol=1e-6)


@pytest.mark.parametrize("wants_gradient", [True, False])
def test_nothing_beyond_the_row_is_touched(row_step, wants_gradient):
    buffer = torch.full((4, 48), 7.0, device=DEVICE)
    buffer[1:3, :37] = torch.randn(2, 37, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    before = buffer.clone()
    rows_of(buffer[1:3, :37], torch.tensor([0, 36], device=DEVICE), row_step, wants_gradient)
    assert bool((buffer[1:3, :37] != before[1:3, :37]).any()) == wants_gradient
    buffer[1:3, :37] = before[1:3, :37]
    assert torch.equal(buffer, before)


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (False, False)])
def test_only_the_gradients_asked_for_are_made(wanted, monkeypatch):
    seen = []
    monkeypatch.setattr(
        cross_entropy, "choose_row_step", lambda _: lambda *inputs: (seen.append(inputs[-1]), plain_row_step(*inputs))
    )
    hidden, weight, targets, importance = inputs = example(5, 4, 6)
    leaves = [leaf.detach().requires_grad_(wish) for leaf, wish in zip((hidden, weight), wanted, strict=True)]
    total = linear_cross_entropy(*leaves, targets, importance).total
    assert seen == [any(wanted)]
    assert total.requires_grad == any(wanted)
    if any(wanted):
        total.backward()
    for leaf, wish, true in zip(leaves, wanted, definition(*inputs)[3:], strict=True):
        assert (leaf.grad is not None) == wish
        if wish:
            assert_near(leaf.grad, true, 1e-5)
    with torch.no_grad():
        linear_cross_entropy(*inputs)
    assert seen[-1] is False


def test_backward_can_be_repeated():
    hidden, weight, targets, importance = example(5, 4, 6)
    total = linear_cross_entropy(hidden, weight, targets, importance).total
    (first,) = torch.autograd.grad(total, hidden, 2 * torch.ones_like(total), retain_graph=True)
    (again,) = torch.autograd.grad(total, hidden, 2 * torch.ones_like(total))
    assert torch.equal(first, again)


def test_float64_is_exact():
    hidden, weight, targets, importance = example(7, 4, 6, torch.float64)
    inputs = hidden, weight, targets, importance.double()
    assert torch.autograd.gradcheck(lambda *leaves: linear_cross_entropy(*leaves, *inputs[2:]).total, inputs[:2])


def test_no_tokens_give_no_loss():
    hidden, weight, targets, importance = example(0, 4, 6)
    total, losses, right = linear_cross_entropy(hidden, weight, targets, importance)
    total.backward()
    assert (total, len(losses), len(right)) == (0, 0, 0)
    assert not weight.grad.any()


class LargestTensor(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.untyped_storage().nbytes() // result.element_size())
        return result


def test_the_scores_of_all_tokens_never_exist(rows_at_once):
    rows_at_once(8)
    inputs = example(256, 4, 50)
    with LargestTensor() as seen:
        linear_cross_entropy(*inputs).total.backward()
    assert seen.elements == 256 * 4  # the hidden states; 8 rows of scores take 512, all of them 16384


def test_triton_is_not_needed():
    check = "import sys; sys.modules['triton'] = None; import looped.kernels, looped.kernels.cross_entropy"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_without_triton_a_gpu_takes_the_plain_step(monkeypatch):
    monkeypatch.setitem(sys.modules, "looped.kernels.triton_cross_entropy", None)
    on_gpu = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16)
    assert cross_entropy.choose_row_step(on_gpu) is plain_row_step


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
def test_the_language_models_head_in_a_cuda_graph():
    """The real vocabulary and width, several chunks with a rest, replayed on other values than were captured."""
    torch.use_deterministic_algorithms(False)  # filling memory is not what is captured in training
    hidden, weight, *_ = inputs = example(10_000, 768, 50304, torch.bfloat16)
    other = example(10_000, 768, 50304, torch.bfloat16, seed=1)

    def gradients():
        answer = linear_cross_entropy(*inputs)
        return *answer, *torch.autograd.grad(answer.total, (hidden, weight))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total, losses, _, d_hidden, d_weight = gradients()
    with torch.no_grad():
        for memory, values in zip(inputs, other, strict=True):
            memory.copy_(values)
    graph.replay()
    true_total, true_losses, _, true_d_hidden, true_d_weight = definition(*other)
    for got, wanted in (
        (total, true_total), (losses, true_losses), (d_hidden, true_d_hidden), (d_weight, true_d_weight)
    ):  # fmt: skip
        assert_near(got, wanted, 1e-2)
