"""The proof's network as a `LoopModel`: the exact weights of `looped.theory` in PyTorch's float64.

Section 2's block is ours with no norm, ReLU, and heads of size 1; eta(t) is the conditioning `eta`. A construction has
one or two heads, the model one per row of the state, the rest of them zero.
"""

import warnings
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from looped.config import ModelConfig
from looped.models import LoopModel, build_model
from looped.tasks import Spec
from looped.theory import Approximation
from looped.theory.floating import run_in_float64


def from_theory(net: Approximation) -> LoopModel:
    """A model that takes (batch, tokens, dim) and returns the same shape; warns where float64 cannot be exact."""
    network, size, grid = net.network, net.size, net.grid
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
    weights = network.weights()
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
    _warn_if_rounded(net, (number for array in vars(weights).values() for number in array.flat))
    return model


def _fill(place: Tensor, values: np.ndarray) -> None:
    """Write exact numbers into the first rows and columns of a parameter."""
    floats = torch.from_numpy(values.astype(np.float64))
    place[tuple(slice(length) for length in floats.shape)] = floats


def _warn_if_rounded(net: Approximation, numbers: Iterable[int | Fraction]) -> None:
    bits = net.size.max_bits
    if any(Fraction(float(number)) != number for number in numbers):
        message = f"weights of up to {bits} bits do not fit float64's 53"
    elif net.network.softmax:
        return  # softmax is rounded by nature; the construction leaves room for that
    else:
        corners = [[Fraction(cell, net.grid.cells)] * net.grid.dim for cell in range(net.grid.tokens)]
        run = run_in_float64(net.network, np.array(corners, dtype=object).T)
        if run.exact:
            return
        message = f"float64 is exact through loop {run.exact_through} of {run.loops} only"
    warnings.warn(f"{message}: this model's answers may differ from the exact ones", stacklevel=3)
