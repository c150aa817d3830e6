"""The block for short floating-point formats returns f at the representative, rounded once, in those formats."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

import looped
from looped import theory
from looped.kernels.reference import attend_to_largest
from looped.models.from_theory import round_to
from looped.theory.grid import Grid, trifling
from tests.refusal import refused
from tests.theory.oracle import label, rough

FORMATS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}  # significant binary digits
SMALL = [(1, 2, 16), (1, 3, 4), (2, 2, 4)]
LARGE = [(1, 4, 4), (1, 3, 8), (1, 2, 64), (2, 2, 8)]
RANDOM_INPUTS = 10_000
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]


def nearest(value: float, digits: int) -> Fraction:
    """Return a number rounded to so many binary digits, halves to even, in exact arithmetic."""
    exact, place = Fraction(value), Fraction(1)
    while abs(exact) >= place * 2**digits:
        place *= 2
    while exact and abs(exact) < place * 2 ** (digits - 1):
        place /= 2
    return round(exact / place) * place


def expected(cells, shape, digits):
    dim, _, n = shape
    rounded = {}
    for cell in set(cells):
        for j, z in enumerate(cell):
            key = (tuple(sorted(cell)), z)
            if key not in rounded:
                rounded[key] = [float(nearest(float(v), digits)) for v in label(rough, cell, j, dim, n, 0.0)]
    return torch.tensor([[rounded[tuple(sorted(cell)), z] for z in cell] for cell in cells])


def cells_at(inputs, n):
    """Return the ids of the cells that hold the inputs, which are exact in float64."""
    numbers = torch.floor(inputs.double() * n).long()
    dim = inputs.shape[2]
    ids = sum(numbers[:, :, i] * n ** (dim - 1 - i) for i in range(dim))
    return [tuple(row) for row in ids.tolist()]


def answers(net, dtype, inputs, device):
    model = looped.from_theory(net, dtype).to(device)
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in inputs.to(device).split(2500)])
    assert outputs.dtype == dtype
    return outputs.float().cpu()


def wrong_cells(shape, dtype, inputs, device):
    net = theory.approximate(rough, *shape, "modulated-digits")
    labels = expected(cells_at(inputs, shape[2]), shape, FORMATS[dtype])
    return int((answers(net, dtype, inputs, device) != labels).sum())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_from_theory_digits_on_every_cell_equals_the_rounded_label(shape, dtype, device):
    """Take the first and the last bfloat16 number of every cell, which is also a number of the longer formats."""
    dim, tokens, n = shape
    first = torch.arange(n, dtype=torch.float64) / n
    below = torch.nextafter((first + 1 / n).bfloat16(), torch.zeros((), dtype=torch.bfloat16)).double()
    for numbers in (first, below):
        each = [[numbers[c].item() for c in token] for token in product(range(n), repeat=dim)]
        inputs = torch.tensor(list(product(each, repeat=tokens)), dtype=dtype)
        assert len(set(cells_at(inputs, n))) == n ** (dim * tokens)
        assert wrong_cells(shape, dtype, inputs, device) == 0


def random_inputs(shape, dtype):
    """Draw half of the inputs uniformly and half with random exponents, as numbers of the format below 1."""
    dim, tokens, n = shape
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(RANDOM_INPUTS, tokens, dim, generator=generator, dtype=torch.float64)
    drawn[::2] *= 2.0 ** -torch.randint(0, 30, drawn[::2].shape, generator=generator)
    below_one = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
    inputs = drawn.to(dtype).clamp(max=below_one.item())
    # of longer formats than bfloat16, leave out the trifling numbers: up to 2^-8/n below a border
    room = 1 / n - torch.remainder(inputs.double(), 1 / n)
    return torch.where(room < 2**-8 / n, torch.zeros((), dtype=dtype), inputs)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_from_theory_digits_at_random_inputs_equals_the_rounded_label(shape, dtype, device):
    assert wrong_cells(shape, dtype, random_inputs(shape, dtype), device) == 0


def test_bfloat16_numbers_below_one_are_never_trifling():
    inputs = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    inputs = inputs[(inputs >= 0) & (inputs < 1)].double()
    for n in (2, 16, 128):
        borders = torch.ceil(inputs * n) / n
        gaps = (borders - inputs)[borders > inputs]
        inner = gaps[borders[borders > inputs] < 1]
        assert inner.min() >= 2**-8 / n


@pytest.mark.parametrize(("digits", "shape"), [(8, (1, 2, 8)), (8, (1, 3, 4)), (11, (2, 2, 2))], ids=str)
def test_digits_network_rounded_after_every_addition_returns_the_rounded_labels(digits, shape):
    """The theorem allows sums in any order, with every partial sum rounded."""
    net = theory.approximate(rough, *shape, "modulated-digits")
    cells = list(product(range(shape[2] ** shape[0]), repeat=shape[1]))
    for seed in range(2):
        assert_rounded_labels(net.network, net.grid, net.labels, cells, digits, seed)


@pytest.mark.parametrize(("digits", "tokens", "n"), [(8, 2, 128), (8, 12, 128), (11, 3, 512)])
def test_digits_of_the_largest_base_survive_rounding(digits, tokens, n):
    """A few sequences suffice: their rows and sums are as large as with all labels."""
    grid = Grid(1, tokens, n)
    rng = np.random.default_rng(0)
    drawn = [rng.integers(n, size=tokens) for _ in range(4)] + [np.full(tokens, z) for z in (0, 1, n - 2, n - 1)]
    drawn += [np.append(first[:-1], first[-1] ^ 1) for first in drawn]  # neighbours, which differ in few digits
    sequences = {tuple(sorted(map(int, each), reverse=True)) for each in drawn}
    labels = {s: [[Fraction(float(rng.normal()))] for _ in s] for s in sequences}
    labels = {s: [columns[s.index(z)] for z in s] for s, columns in labels.items()}
    construction = theory.CONSTRUCTIONS["modulated-digits"](grid)
    assert construction.rounds_only_labels(digits)
    construction.loops = n + tokens + sum(len(set(s)) for s in sequences) + 1  # the other ids have no labels here
    network = construction.build(labels, trifling(n, 8)).network
    assert_rounded_labels(network, grid, labels, sorted(sequences), digits, seed=0)


def assert_rounded_labels(network, grid, labels, cells, digits, seed):
    inputs = np.array([[[(c + 0.5) / grid.cells for c in grid.coordinates(z)] for z in cell] for cell in cells])
    outputs = run_rounded(network, inputs, digits, np.random.default_rng(seed))
    for cell, output in zip(cells, outputs.tolist(), strict=True):
        ordered = tuple(sorted(cell, reverse=True))
        known = [labels[ordered][ordered.index(z)] for z in cell]
        assert output == [[float(nearest(float(v), digits)) for v in y] for y in known], cell


def run_rounded(network, inputs, digits, rng):
    """Run a network on (batch, tokens, dim) inputs and round every product and every partial sum to so many digits."""

    def short(values):
        mantissa, exponent = np.frexp(values)
        return np.ldexp(np.rint(np.ldexp(mantissa, digits)), exponent - digits)

    def value(form, quantities):
        terms = [short(short(float(c)) * quantities[name]) for name, c in form.terms.items()]
        terms += [short(float(form.const))] if form.const else []
        result = np.zeros(inputs.shape[:2])
        for place in rng.permutation(len(terms)):
            result = short(result + terms[place])
        return result

    state = {
        name: value(form, dict(zip(network.inputs, np.moveaxis(inputs, 2, 0), strict=True)))
        for name, form in network.encode.items()
    }
    for t in range(network.loops):
        means = []
        for head in network.heads:
            scores = value(head.key, state)[:, None, :] * value(head.query, state)[:, :, None]
            best = scores == scores.max(axis=2, keepdims=True)
            means.append(short((best * value(head.value, state)[:, None, :]).sum(axis=2) / best.sum(axis=2)))
        for head, mean in zip(network.heads, means, strict=True):
            state[head.into] = short(state[head.into] + mean)
        hidden = {f"h{j}": np.maximum(value(unit, state), 0) for j, unit in enumerate(network.feed_forward.units)}
        for name, form in network.feed_forward.updates.items():
            eta = network.modulation[name][t] if name in network.modulation else 1
            state[name] = short(state[name] + short(short(float(eta)) * value(form, hidden)))
    return np.stack([value(form, state) for form in network.decode], axis=2)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_round_to_rounds_once_to_the_nearest(dtype):
    digits = FORMATS[dtype]
    generator = np.random.default_rng(0)
    values = generator.uniform(1, 2, 2000) * 2.0 ** generator.integers(-12, 10, 2000)
    ties = np.array([1 + (2 * k + 1) * 2.0**-digits for k in range(16)])
    # just above a tie by less than float32 holds: rounding to float32 first would make it a tie
    near_ties = ties * (1 + 2.0**-40)
    given = np.concatenate([values, ties, near_ties, -near_ties, [0.0]])
    for value, result in zip(given, round_to(given, dtype), strict=True):
        assert Fraction(result.item()) == nearest(float(value), digits)


def test_round_to_keeps_the_smallest_numbers_of_float16():
    values = np.array([2.0**-24, 1.5 * 2.0**-24, 2.5 * 2.0**-24, 0.4 * 2.0**-24])
    assert (round_to(values, torch.float16).double() * 2**24).tolist() == [1, 2, 2, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_from_theory_other_variants_in_short_formats_warn_with_their_error(dtype):
    net = theory.approximate(rough, 1, 2, 4, "modulated-minimal", epsilon=Fraction(1, 64))
    with pytest.warns(UserWarning, match=r"not proved.*At this size modulated-digits fits\.$"):
        model = looped.from_theory(net, dtype)
    with torch.no_grad():
        outputs = model(torch.tensor([[[0.1], [0.9]]]))
    assert outputs.dtype == dtype


def test_from_theory_digits_beyond_the_theorem_warn():
    """A third has no finite binary expansion, and 256 cells need ids with more digits than bfloat16 has."""
    with pytest.warns(UserWarning, match="not proved"):
        looped.from_theory(theory.approximate(rough, 1, 2, 3, "modulated-digits"), torch.bfloat16)
    assert not theory.CONSTRUCTIONS["modulated-digits"](Grid(1, 1, 256)).rounds_only_labels(8)
    assert theory.CONSTRUCTIONS["modulated-digits"](Grid(1, 1, 256)).rounds_only_labels(11)


def test_from_theory_in_a_format_that_is_too_small_or_no_format_raises():
    with refused("net", "float16"):
        looped.from_theory(theory.approximate(rough, 1, 2, 4, "modulated-minimal"), torch.float16)
    for wrong in (torch.int32, "bfloat16", None):
        with refused("dtype", wrong):
            looped.from_theory(theory.approximate(rough, 1, 2, 2, "modulated-digits"), wrong)


def test_hardmax_in_bfloat16_mean_of_equal_values_is_that_value():
    """The sum 3 * 127 = 381 has nine binary digits. Rounded before the division it would give 126.5."""
    value = torch.full((1, 1, 3, 1), 127.0, dtype=torch.bfloat16)
    mixed = attend_to_largest(torch.ones_like(value), torch.ones_like(value), value, causal=False)
    assert (mixed == 127).all()
    assert (value.sum() / 3).item() == 126.5
