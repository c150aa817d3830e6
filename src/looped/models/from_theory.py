"""The network of a proof as a `LoopModel`: the exact weights of `looped.theory` as parameters, by default in float64.

The block of Section 2 is a `LoopModel` with no norm, ReLU and heads of size 1; eta(t) is the conditioning `eta`. A
construction has one or two heads. The model has one head per row of the state, and the others are zero.

float64 holds 53 binary digits, bfloat16 only 8. Networks that pack their labels into longer numbers lose labels.
docs/theory.md, "In floating point", lists the variants that keep them.
"""

import warnings
from collections.abc import Iterable
from fractions import Fraction
from math import isfinite, log2

import numpy as np
import torch
from torch import Tensor

from looped.config import ModelConfig
from looped.models import LoopModel, build_model
from looped.tasks import Spec
from looped.theory import CONSTRUCTIONS, Approximation
from looped.theory.engine import run_in_float64
from looped.theory.network import bits_of
from looped.theory.report import served_cells
from looped.utils.errors import InputError, require

CELLS_TRIED = 256


def from_theory(net: Approximation, dtype: torch.dtype = torch.float64) -> LoopModel:
    """Return a model that maps inputs of shape (batch, tokens, dim) in [0, 1) to outputs of the same shape.

    Weights, states and outputs have the given dtype. Warns with the error on some cells unless the model is exact.
    Raises InputError if the outputs would not be finite.
    """
    is_network = isinstance(net, Approximation)
    require(is_network, f"net: expected a network of `theory.approximate`, got {type(net).__name__}")
    is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    require(is_float, f"dtype: expected a floating-point type such as torch.bfloat16, got {dtype!r}")
    network, size, grid = net.network, net.size, net.grid
    weights = network.weights()
    numbers = {number for array in vars(weights).values() for number in array.flat}
    numbers |= {scale for scales in network.modulation.values() for scale in scales}
    largest, limit = max(abs(number) for number in numbers), torch.finfo(dtype).max
    if largest > limit:
        most, digits = int(limit).bit_length(), int(largest).bit_length()
        name = net.construction.name
        raise InputError(
            f"net: expected numbers of at most {most:,} bits for {_name(dtype)}, got {digits:,} for {name}"
            f"{_others(net, dtype)}"
        )
    dim = size.dims + size.dims % 2  # the width of a model is even, so there may be one empty row
    config = ModelConfig(
        block="modulated" if network.modulation else "looped",
        conditioning="eta" if network.modulation else "auto",
        dim=dim,
        num_heads=dim,
        num_loops=size.loops,
        ff_dim=size.width,
        positions="none",
        activation="relu",
        attention="full",
        attention_weights="softmax" if network.softmax else "hardmax",
        norm="none",
        precision="float64" if dtype == torch.float64 else "float32",
    )
    model = build_model(config, Spec("vectors", grid.dim, grid.dim, grid.tokens)).to(dtype)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.zero_()
        _fill(parameters["embedding"], weights.encode)
        _fill(parameters["b_embedding"], weights.encode_bias)
        for place, rows in enumerate((weights.query, weights.key, weights.value)):
            _fill(parameters["stack.layers.0.w_qkv"][place * dim :], rows)
        _fill(parameters["stack.layers.0.w_out"], weights.out.T)
        _fill(parameters["stack.layers.0.w_in"], weights.first)
        _fill(parameters["stack.layers.0.b_in"], weights.first_bias)
        _fill(parameters["stack.layers.0.w_back"], weights.second)
        _fill(parameters["stack.layers.0.b_back"], weights.second_bias)
        _fill(parameters["head"], weights.decode)
        _fill(parameters["b_head"], weights.decode_bias)
        if network.modulation:
            eta = parameters["stack.conditioner.rows"].fill_(1.0)
            for name, scales in network.modulation.items():
                _fill(eta[:, 0, network.rows.index(name)], np.array(scales, dtype=object))
    _warn_if_rounded(net, model, dtype, numbers)
    return model


def round_to(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Return float64 numbers in a dtype, each rounded once to the nearest.

    PyTorch's own conversion may round twice, because it passes through float32.
    """
    smallest = round(log2(torch.finfo(dtype).smallest_normal)) + 1  # numbers below this exponent have equal spacing
    last_place = np.maximum(np.frexp(values)[1], smallest) - _digits(dtype)
    return torch.from_numpy(np.ldexp(np.rint(np.ldexp(values, -last_place)), last_place)).to(dtype)


def _fill(place: Tensor, values: np.ndarray) -> None:
    """Write exact numbers into the first rows and columns of a parameter."""
    floats = round_to(values.astype(np.float64), place.dtype)
    place[tuple(slice(length) for length in floats.shape)] = floats


def _digits(dtype: torch.dtype) -> int:
    """Return the significant binary digits of a dtype."""
    return 1 - round(log2(torch.finfo(dtype).eps))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _warn_if_rounded(
    net: Approximation, model: LoopModel, dtype: torch.dtype, numbers: Iterable[int | Fraction]
) -> None:
    softmax = net.network.softmax
    if net.construction.rounds_only_labels(_digits(dtype)) and not softmax:
        return
    if dtype == torch.float64:
        message = _why_not_exact(net, numbers)
        if not message:
            return
    else:
        message = f"the digits of {_name(dtype)} are not proved to be enough"
    error, tried = _error(net, model, dtype)
    if not isfinite(error):
        raise InputError(f"net: expected finite outputs, but {message}{_others(net, dtype)}")
    # Other batch sizes add in another order and may round otherwise.
    message = f"{message}: the error of the model is up to {error:.3g} at the centres of {tried} cells, in one batch"
    warnings.warn(message + _others(net, dtype), stacklevel=3)


def _why_not_exact(net: Approximation, numbers: Iterable[int | Fraction]) -> str:
    """Return why the outputs of a float64 model may be rounded, or nothing if they are exact."""
    rounded = sorted((number for number in numbers if Fraction(float(number)) != number), key=bits_of)
    dyadic = [number for number in rounded if number.denominator.bit_count() == 1]
    if dyadic:
        return f"numbers of up to {bits_of(dyadic[-1])} binary digits do not fit into the 53 of float64"
    if rounded:
        return f"numbers like {abs(rounded[0])} do not fit into float64"
    if net.network.softmax:
        return ""  # softmax is always rounded, and the construction tolerates that
    corners = [[Fraction(cell, net.grid.cells)] * net.grid.dim for cell in range(net.grid.tokens)]
    run = run_in_float64(net.network, np.array(corners, dtype=object).T)
    return "" if run.exact else f"float64 is proved exact only through loop {run.exact_through} of {run.loops}"


def _error(net: Approximation, model: LoopModel, dtype: torch.dtype) -> tuple[float, int]:
    """Return the largest error of the model in a batch of the centres of some cells, and the number of these cells."""
    cells = served_cells(net, CELLS_TRIED)
    if not cells:
        return 0.0, 0
    middle = [[[(k + 0.5) / net.grid.cells for k in net.grid.coordinates(z)] for z in cell] for cell in cells]
    exact = [[[float(entry) for entry in column] for column in net.code_value(cell)] for cell in cells]
    with torch.no_grad():
        outputs = model(torch.tensor(middle, dtype=torch.float64))
    return float((outputs.double() - torch.tensor(exact, dtype=torch.float64)).abs().max()), len(cells)


def _others(net: Approximation, dtype: torch.dtype) -> str:
    """Return a hint at the variants that fit into the dtype, or nothing if this one does."""
    own, digits = net.construction, _digits(dtype)
    made = {name: kind(own.grid, own.num_bits) for name, kind in CONSTRUCTIONS.items()}
    if dtype == torch.float64:
        fits = [name for name, each in made.items() if each.fits_float64]
    else:
        fits = [name for name, each in made.items() if each.rounds_only_labels(digits)]
    return "" if own.name in fits or not fits else f". At this size {', '.join(fits)} fit{'s' * (len(fits) == 1)}."
