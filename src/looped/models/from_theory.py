"""The network of a proof as a `LoopModel`: the exact weights of `looped.theory` as float64 parameters.

The block of Section 2 is a `LoopModel` with no norm, ReLU and heads of size 1; eta(t) is the conditioning `eta`. A
construction has one or two heads. The model has one head per row of the state, and the others are zero.

float64 holds 53 binary digits. Networks that pack their labels into longer numbers lose labels. docs/theory.md, "In
float64", lists the variants that keep them.
"""

import sys
import warnings
from collections.abc import Iterable
from fractions import Fraction
from math import isfinite

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
from looped.utils.errors import InputError

CELLS_TRIED = 256


def from_theory(net: Approximation) -> LoopModel:
    """Return a model that maps inputs of shape (batch, tokens, dim) in [0, 1) to outputs of the same shape.

    Warns with the error on some cells if float64 is not exact. Raises InputError if the outputs would not be finite.
    """
    network, size, grid = net.network, net.size, net.grid
    weights = network.weights()
    numbers = {number for array in vars(weights).values() for number in array.flat}
    numbers |= {scale for scales in network.modulation.values() for scale in scales}
    largest = max(abs(number) for number in numbers)
    if largest > sys.float_info.max:
        digits = int(largest).bit_length()
        name = net.construction.name
        raise InputError(f"net: expected numbers of at most 1,024 bits, got {digits:,} for {name}{_others(net)}")
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
        precision="float64",
    )
    model = build_model(config, Spec("vectors", grid.dim, grid.dim, grid.tokens))
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
    _warn_if_rounded(net, model, numbers)
    return model


def _fill(place: Tensor, values: np.ndarray) -> None:
    """Write exact numbers into the first rows and columns of a parameter."""
    floats = torch.from_numpy(values.astype(np.float64))
    place[tuple(slice(length) for length in floats.shape)] = floats


def _warn_if_rounded(net: Approximation, model: LoopModel, numbers: Iterable[int | Fraction]) -> None:
    rounded = sorted((number for number in numbers if Fraction(float(number)) != number), key=bits_of)
    dyadic = [number for number in rounded if number.denominator.bit_count() == 1]
    if dyadic:
        message = f"numbers of up to {bits_of(dyadic[-1])} binary digits do not fit into the 53 of float64"
    elif rounded:
        message = f"numbers like {abs(rounded[0])} do not fit into float64"
    elif net.network.softmax:
        return  # softmax is always rounded, and the construction tolerates that
    else:
        corners = [[Fraction(cell, net.grid.cells)] * net.grid.dim for cell in range(net.grid.tokens)]
        run = run_in_float64(net.network, np.array(corners, dtype=object).T)
        if run.exact:
            return
        message = f"float64 is proved exact only through loop {run.exact_through} of {run.loops}"
    error, tried = _error(net, model)
    if not isfinite(error):
        raise InputError(f"net: expected finite outputs, but {message}{_others(net)}")
    message = f"{message}: the error of the model is up to {error:.3g} at the centres of {tried} cells"
    warnings.warn(message + _others(net), stacklevel=3)


def _error(net: Approximation, model: LoopModel) -> tuple[float, int]:
    """Return the largest error of the model at the centres of some cells, and the number of these cells."""
    cells = served_cells(net, CELLS_TRIED)
    if not cells:
        return 0.0, 0
    middle = [[[(k + 0.5) / net.grid.cells for k in net.grid.coordinates(z)] for z in cell] for cell in cells]
    exact = [[[float(entry) for entry in column] for column in net.code_value(cell)] for cell in cells]
    with torch.no_grad():
        outputs = model(torch.tensor(middle, dtype=torch.float64))
    return float((outputs - torch.tensor(exact, dtype=torch.float64)).abs().max()), len(cells)


def _others(net: Approximation) -> str:
    """Return a hint at the variants that fit into float64, or nothing if this one does."""
    own = net.construction
    fits = [name for name, kind in CONSTRUCTIONS.items() if kind(own.grid, own.num_bits).fits_float64]
    return "" if own.name in fits else f". At this size {', '.join(fits)} fit."
