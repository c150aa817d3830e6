"""The passes between the products, each against float64: residual and norm, activation, folded matrices, rotation."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from looped.kernels import reference
from tests.kernels.cases import (
    DEVICE,
    DTYPES,
    GUARD,
    TOLERANCE,
    Draw,
    assert_near,
    guarded,
    in_float64,
    laboratory,
    neighbours,
    rotation_of,
)

pytest.importorskip("triton")

from looped.kernels import triton_pointwise as rows

pytestmark = pytest.mark.filterwarnings("ignore:.*determinis.*:UserWarning")  # CUDA's, where poison asks for it

# Less than a tile, a width that is no power of two, more tokens than a tile, a row that is wider than a tile.
SIZES = [(1, 8), (5, 48), (130, 96), (3, 4100)]
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


@pytest.fixture(autouse=True)
def _laboratory():
    with laboratory():
        yield


def untouched(*guards):
    return all(bool((guard == GUARD).all()) for guard in guards)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "dim"), SIZES)
def test_add_norm_writes_state_total_and_norm(tokens, dim, dtype):
    draw = Draw()
    x = draw(tokens, dim, std=3)
    update, inject, bias = draw(tokens, dim, dtype=dtype), draw(tokens, dim, dtype=dtype), draw(dim, dtype=dtype)
    (state, total, value), guards = zip(
        *(guarded(tokens, dim, kind) for kind in (x.dtype, x.dtype, dtype)), strict=True
    )
    inverse, guard = guarded(tokens, 1, torch.float32)
    normed = rows.Normed(value, inverse[:, 0])
    rows.add_norm(x, update, bias, state=state, inject=inject, total=total, normed=normed)
    wanted = x.double() + update.double() + bias.double()
    assert_near(state, wanted, 1e-6)
    wanted = wanted + inject.double()
    assert_near(total, wanted, 1e-6)
    assert_near(value, reference.rms_normalise(wanted), TOLERANCE[dtype])
    assert_near(inverse[:, 0], wanted.square().mean(dim=-1).rsqrt(), 1e-5)
    assert untouched(*guards, guard)


@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=6)))
def test_add_norm_leaves_out_what_is_not_asked_for(given):
    """All 64 ways to call it: what is not there is not added, and what is not asked for does not change the rest."""
    draw = Draw()
    names = ("update", "bias", "state", "inject", "total", "normed")
    x, update, inject = (draw(5, 48) for _ in range(3))
    bias = draw(48)
    kept = x.clone()
    memory = {name: torch.empty(5, 48, device=DEVICE) for name in ("state", "total")}
    normed = rows.Normed(torch.empty(5, 48, device=DEVICE), torch.empty(5, device=DEVICE))
    everything = {"update": update, "bias": bias, "inject": inject, "normed": normed, **memory}
    wished = {name: everything[name] if wish else None for name, wish in zip(names, given, strict=True)}
    rows.add_norm(x, **wished)
    wanted = x.double() + (update.double() if given[0] else 0) + (bias.double() if given[1] else 0)
    if given[2]:
        assert_near(memory["state"], wanted, 1e-6)
    wanted = wanted + (inject.double() if given[3] else 0)
    if given[4]:
        assert_near(memory["total"], wanted, 1e-6)
    if given[5]:
        assert_near(normed.value, reference.rms_normalise(wanted), 1e-5)
    assert torch.equal(x, kept)
    for name, wish in zip(("state", "total"), (given[2], given[4]), strict=True):
        assert wish or memory[name].isnan().all()


def rest_of(x, dtype):
    """Memory for the rest of the digits, where some are rounded off."""
    return torch.empty_like(x, dtype=torch.int8) if dtype == torch.bfloat16 else None


def places(tokens, dim, dtype):
    value, inverse = torch.empty(tokens, dim, dtype=dtype, device=DEVICE), torch.empty(tokens, device=DEVICE)
    return rows.Normed(value, inverse, rest_of(value, dtype))


def joined(rounded):
    """Values and rests as one number each, by the definition."""
    if rounded.rest is None:
        return rounded.value.double()
    bits = (rounded.value.view(torch.int16).int() << 8) + rounded.rest.int()
    return (bits << 8).view(torch.float32).double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "dim"), SIZES)
def test_a_state_is_known_by_its_norm(tokens, dim, dtype):
    """To 2^-16 of each number in bfloat16 and its rest; added to, and read again."""
    draw = Draw()
    x, update = draw(tokens, dim, std=3), draw(tokens, dim, dtype=dtype)
    before, after = (places(tokens, dim, dtype) for _ in range(2))
    state, again = torch.empty_like(x), torch.empty_like(x)
    rows.add_norm(x, normed=before)
    rows.add_norm(before, state=state)
    assert ((state.double() - x.double()).abs() <= (2**-16 + 1e-6) * x.double().abs()).all()
    rows.add_norm(before, update, normed=after)
    wanted = x.double() + update.double()
    assert_near(after.value, reference.rms_normalise(wanted), TOLERANCE[dtype])
    assert_near(after.inverse, wanted.square().mean(dim=-1).rsqrt(), 1e-5)
    rows.add_norm(after, state=again)
    assert_near(again, wanted, 2**-15)


@pytest.mark.parametrize("power", range(-60, 61, 7))
def test_a_norm_and_its_rest_are_the_nearest_of_24_bits(power):
    """Of numbers that the rounding carries into the next power of two, too: against the definition, in float64."""
    top = torch.tensor([1.0, 1.5, 2 - 2**-8, 2 - 2**-9, 2 - 2**-16, 2 - 2**-17, 2 - 2**-20], dtype=torch.float64)
    x = torch.cat([sign * top * 2.0 ** (power - shift) for sign in (1, -1) for shift in range(4)])
    x = x.to(DEVICE, torch.float32)[None]
    normed = places(*x.shape, torch.bfloat16)
    rows.add_norm(x, normed=normed)
    exact = x.double() * normed.inverse.double()[:, None]
    exponent = torch.floor(torch.log2(exact.abs()))
    assert ((normed.value.double() - exact).abs() <= (0.5 + 1e-4) * 2.0 ** (exponent - 7)).all()
    assert ((joined(normed) - exact).abs() <= (0.5 + 1e-2) * 2.0 ** (exponent - 15)).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("bits", [0x7F800000, -0x800000, 0x7FC00000, 0x7FFFFFFF, -1])
def test_what_is_beyond_numbers_stays_there(bits):
    """Infinities and every kind of NaN, those of a card among them: for the products and for the next state."""
    x, state = Draw()(3, 48), torch.zeros(3, 48, device=DEVICE)
    x.view(torch.int32)[1, 5] = bits
    normed = places(3, 48, torch.bfloat16)
    rows.add_norm(x, normed=normed)
    rows.add_norm(normed, state=state)
    for found in (normed.value, state):
        assert found.isfinite().all(dim=1).tolist() == [True, False, True]


def test_the_norm_of_nothing_is_nothing():
    x = torch.zeros(3, 48, device=DEVICE)
    normed = rows.Normed(torch.empty_like(x), torch.empty(3, device=DEVICE))
    rows.add_norm(x, normed=normed)
    assert torch.equal(normed.value, x)
    assert normed.inverse.isfinite().all()


@pytest.mark.parametrize("with_further", [False, True])
@pytest.mark.parametrize("with_summed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "dim"), SIZES)
def test_norm_backward_is_the_norms_gradient(tokens, dim, dtype, with_summed, with_further):
    draw = Draw()
    x = draw(tokens, dim, mean=0.5, std=2).double().requires_grad_()
    normed = reference.rms_normalise(x)
    kept = rows.Normed(normed.detach().to(dtype), x.detach().square().mean(dim=-1).rsqrt().float())
    # Partly along the state: the share that the norm takes out.
    grad_normed = (draw(tokens, dim).double() + 2 * normed.detach()).to(dtype)
    grad, further, summed = draw(tokens, dim), draw(tokens, dim), draw(tokens, dim)
    (through,) = torch.autograd.grad(normed, x, grad_normed.double())
    wanted = grad.double() + through
    wanted_sum = summed.double() + wanted
    if with_further:
        wanted = wanted + further.double()
    (value, whole), guards = zip(*(guarded(tokens, dim, kind) for kind in (dtype, torch.float32)), strict=True)
    rest = rest_of(grad, dtype)
    given, out, before = rows.Rounded(torch.empty_like(value), rest), rows.Rounded(value, rest), further.clone()
    rows.round_off(grad, given)
    rows.norm_backward(
        kept, grad_normed, given, out=out, further=further if with_further else None,
        summed=summed if with_summed else None, whole=whole,
    )  # fmt: skip
    assert_near(whole, wanted, TOLERANCE[dtype])
    assert_near(value, wanted, TOLERANCE[dtype])
    assert_near(joined(out), whole, 2**-16)
    assert torch.equal(further, before)
    if with_summed:
        assert_near(summed, wanted_sum, TOLERANCE[dtype])
    assert untouched(*guards)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "seq_len", "dim"), [(1, 3, 8), (3, 5, 48), (5, 130, 96)])
def test_growth_is_limited_as_by_the_definition(batch, seq_len, dim, dtype):
    """The last example has grown more than all others; the first has no gradient at all."""
    draw = Draw()
    grown = torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0])[5 - batch :].to(DEVICE)
    x = draw(batch, seq_len, dim) * grown[:, None, None]
    last = draw(batch).abs() + 1e-2
    value, guard = guarded(batch * seq_len, dim, dtype)
    grad = rows.Rounded(value, rest_of(x.view(-1, dim), dtype))
    rows.round_off(x.view(-1, dim), grad)
    exact = joined(grad).view(x.shape)
    norms = rows.example_norms(grad, batch)
    assert_near(norms, exact.flatten(1).norm(dim=1).clamp(min=reference.SMALLEST_NORM), 1e-6)
    wanted = reference.limit_growth(exact, last.double(), 2.0)
    rows.limit_growth(grad, last, 2.0)
    assert_near(joined(grad).view(x.shape), wanted, 2**-15)
    assert torch.equal(wanted[-1], exact[-1]) == (batch == 1)
    assert untouched(guard)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_off_keeps_24_bits(dtype):
    x = Draw()(130, 96, std=3)
    value, guard = guarded(130, 96, dtype)
    out = rows.Rounded(value, rest_of(x, dtype))
    rows.round_off(x, out)
    assert ((joined(out) - x.double()).abs() <= (2**-16 if dtype == torch.bfloat16 else 0) * x.double().abs()).all()
    assert ((value.double() - x.double()).abs() <= (2**-8 if dtype == torch.bfloat16 else 0) * x.double().abs()).all()
    assert untouched(guard)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (5, 48), (130, 200)])
def test_activations_and_their_slopes(tokens, width, activation, dtype):
    """130 tokens and a width of 200 are two tiles each way, the last ones not full."""
    draw = Draw()
    z, grad = draw(tokens, width, std=2, dtype=dtype), draw(tokens, width, dtype=dtype)
    exact = z.double().requires_grad_()
    wanted = ACTIVATIONS[activation](exact)
    (wanted_grad,) = torch.autograd.grad(wanted, exact, grad.double())
    assert_near(rows.activation_forward(z, activation), wanted, TOLERANCE[dtype])

    (changed, behind), (active, behind_active) = (guarded(tokens, width, dtype) for _ in range(2))
    changed.copy_(grad)
    sums, behind_sums = guarded(rows.num_sums(tokens), width, torch.float32)
    rows.activation_backward(z, changed, active, sums, activation)
    assert_near(active, wanted, TOLERANCE[dtype])
    assert_near(changed, wanted_grad, TOLERANCE[dtype])
    tiles = wanted_grad.split(rows.SUM_ROWS)
    assert_near(sums, torch.stack([tile.sum(dim=0) for tile in tiles]), 1e-5)  # before anything is rounded
    assert untouched(behind, behind_active, behind_sums)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # NumPy's, of which the interpreter is made
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_exact_at_every_size(activation):
    """Each value by itself, from where nothing passes to where everything does."""
    z = torch.cat((torch.linspace(-12, 12, 4001), torch.tensor([-40.0, -1e4, 40.0, 0.0]))).to(DEVICE)
    exact = z.double().requires_grad_()
    wanted = ACTIVATIONS[activation](exact)
    (slope,) = torch.autograd.grad(wanted.sum(), exact)
    wanted = wanted.detach()
    got, found = rows.activation_forward(z, activation), torch.ones(len(z), 1, device=DEVICE)
    sums = torch.empty(rows.num_sums(len(z)), 1, device=DEVICE)
    rows.activation_backward(z[:, None], found, torch.empty_like(found), sums, activation)
    assert ((got.double() - wanted).abs() / wanted.abs().clamp(min=1)).max() <= 1e-6
    assert (found[:, 0].double() - slope).abs().max() <= 1e-6


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("matrix_rows", "columns"), [(1, 8), (48, 96), (130, 48)])
def test_matrices_are_scaled_loop_by_loop(matrix_rows, columns, dtype, by_column):
    draw = Draw()
    matrix = draw(matrix_rows, columns)
    # As the model has it: some columns of a wider table, of one layer of several.
    table = draw(3, 2, 2 * (columns if by_column else matrix_rows)).chunk(2, dim=-1)[1][:, 1]
    got = rows.scaled_matrices(matrix, table, dtype, by_column=by_column)
    factors = table.double()[:, None, :] if by_column else table.double()[:, :, None]
    assert got.dtype == dtype
    assert_near(got, matrix.double() * factors, TOLERANCE[dtype])


@pytest.mark.parametrize("by_column", [True, False])
def test_what_is_the_same_in_all_loops_is_scaled_once(by_column):
    draw = Draw()
    matrix, gain = draw(48, 48), draw(48)
    got = rows.scaled_matrices(matrix, gain.expand(5, -1), torch.float32, by_column=by_column)
    assert_near(got, (matrix.double() * (gain.double() if by_column else gain.double()[:, None]))[None], 1e-6)
    plain = rows.scaled_matrices(matrix, None, torch.bfloat16, by_column=by_column)
    assert torch.equal(plain, matrix.bfloat16()[None])


HEADS = [(3, 1, 2, 2), (2, 5, 1, 48), (2, 17, 3, 24), (2, 130, 2, 16)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "seq_len", "num_heads", "size"), HEADS)
def test_queries_and_keys_are_turned_and_values_are_not(batch, seq_len, num_heads, size, dtype):
    qkv = Draw()(batch * seq_len, 3 * num_heads * size, dtype=dtype)
    rotation = rotation_of(seq_len, size // 2)
    heads = qkv.double().view(batch, seq_len, 3, num_heads, size).permute(2, 0, 3, 1, 4)
    wanted = torch.stack([reference.rotate(heads[i], in_float64(rotation)) for i in (0, 1)] + [heads[2]])
    order = neighbours(num_heads, size)
    turned = qkv[:, order].contiguous()
    rows.rotate_heads(turned, rotation, num_heads=num_heads, seq_len=seq_len)
    assert_near(turned, wanted.permute(1, 3, 0, 2, 4).reshape(qkv.shape)[:, order], TOLERANCE[dtype])


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "seq_len", "num_heads", "size"), HEADS)
def test_gradients_of_heads_are_gathered_and_turned_back(batch, seq_len, num_heads, size, dtype, rotary):
    """They come in whatever order of axes an attention leaves them in, those that were turned together side by side."""
    draw = Draw()
    rotation = rotation_of(seq_len, size // 2) if rotary else None
    parts = [
        draw(batch, num_heads, seq_len, size, dtype=dtype),
        draw(batch, seq_len, num_heads, size, dtype=dtype).transpose(1, 2),
        draw(num_heads, batch, seq_len, 2 * size, dtype=dtype).transpose(0, 1)[..., :size],
    ]
    wanted = []
    for place, part in enumerate(parts):
        before = torch.zeros(part.shape, dtype=torch.float64, device=DEVICE, requires_grad=True)
        after = before * 1 if rotation is None or place == 2 else reference.rotate(before, in_float64(rotation))
        (found,) = torch.autograd.grad(after, before, part.double())
        wanted.append(found.transpose(1, 2).flatten(2).flatten(0, 1))
    out, guard = guarded(batch * seq_len, 3 * num_heads * size, dtype)
    order = neighbours(1, size)[:size]
    side_by_side = [part[..., order] if place < 2 else part for place, part in enumerate(parts)]
    rows.gather_heads(side_by_side if rotary else parts, rotation, num_heads=num_heads, seq_len=seq_len, out=out)
    wanted = torch.cat(wanted, dim=1)
    assert_near(out, wanted[:, neighbours(num_heads, size)] if rotary else wanted, TOLERANCE[dtype])
    assert untouched(guard)
