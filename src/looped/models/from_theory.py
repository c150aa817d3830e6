"""The proof's network as a `LoopModel`: the exact weights of `looped.theory` in PyTorch's float64.

Section 2's block is ours with no norm, ReLU, and heads of size 1; eta(t) is the conditioning `eta`. A construction has
one or two heads, the model one per row of the state, the rest of them zero.

float64 holds 53 binary digits. A network that packs its labels into longer numbers loses them: see docs/theory.md, "In
float64", for which variants survive.
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
    """A model that takes (batch, tokens, dim) in [0, 1) and returns the same shape.

    Where float64 cannot be exact it warns, with the model's error on some cells; where the model would answer with no
    numbers at all it refuses.
    """
    network, size, grid = net.network, net.size, net.grid
    weights = network.weights()
    numbers = {number for array in vars(weights).values() for number in array.flat}
    numbers |= {scale for scales in network.modulation.values() for scale in scales}
    largest = max(abs(number) for number in numbers)
    if largest > sys.float_info.max:
        came = f"the largest number of {net.construction.name} has {int(largest).bit_length():,} binary digits here"
        raise InputError(f"{came}, float64 ends at 1,024{_others(net)}")
    dim = size.dims + size.dims % 2  # a model's width is even: one empty row more
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
        selection="softmax" if network.softmax else "hardmax",
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
        message = f"numbers of up to {bits_of(dyadic[-1])} binary digits do not fit float64's 53"
    elif rounded:
        message = f"numbers like {abs(rounded[0])} do not fit float64"
    elif net.network.softmax:
        return  # softmax is rounded by nature; the construction leaves room for that
    else:
        corners = [[Fraction(cell, net.grid.cells)] * net.grid.dim for cell in range(net.grid.tokens)]
        run = run_in_float64(net.network, np.array(corners, dtype=object).T)
        if run.exact:
            return
        message = f"float64 is proved exact through loop {run.exact_through} of {run.loops} only"
    error, tried = _error(net, model)
    if not isfinite(error):
        raise InputError(f"{message}: the model's answers are no numbers{_others(net)}")
    message = f"{message}: the model is off by up to {error:.3g} in the middle of {tried} cells tried"
    warnings.warn(message + _others(net), stacklevel=3)


def _error(net: Approximation, model: LoopModel) -> tuple[float, int]:
    """The model's largest error in the middle of some cells, against what the exact network returns, and how many."""
    cells = served_cells(net, CELLS_TRIED)
    if not cells:
        return 0.0, 0
    middle = [[[(k + 0.5) / net.grid.cells for k in net.grid.coordinates(z)] for z in cell] for cell in cells]
    exact = [[[float(entry) for entry in column] for column in net.code_value(cell)] for cell in cells]
    with torch.no_grad():
        came = model(torch.tensor(middle, dtype=torch.float64))
    return float((came - torch.tensor(exact, dtype=torch.float64)).abs().max()), len(cells)


def _others(net: Approximation) -> str:
    """The variants to take instead, if this one does not survive float64."""
    own = net.construction
    fits = [name for name, kind in CONSTRUCTIONS.items() if kind(own.grid, own.num_bits).fits_float64]
    return "" if own.name in fits else f"; at this size {', '.join(fits)} fit"
