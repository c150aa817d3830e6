"""Annotated shapes, checked at run time on a second copy of the modules."""

import sys
from importlib import import_module

import pytest
import torch
from jaxtyping import TypeCheckError, install_import_hook

import looped

from .cases import BLOCKS, SPECS, TOKENS, examples, label, small

CHECKED = ("looped.kernels", "looped.models")


def _is_checked(name):
    return name in CHECKED or name.startswith(tuple(f"{each}." for each in CHECKED))


@pytest.fixture(scope="module")
def checked():
    """Return `looped.models` with checked annotations. Other tests use the plain modules, which may be compiled."""
    plain = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_checked(name)}
    attributes = {name: vars(looped).pop(name) for name in ("kernels", "models") if name in vars(looped)}
    try:
        with install_import_hook(CHECKED, "beartype.beartype"):
            yield import_module("looped.models")
    finally:
        for name in [name for name in sys.modules if _is_checked(name)]:
            del sys.modules[name]
        sys.modules.update(plain)
        vars(looped).update(attributes)


def test_shape_check_is_active(checked):
    model = checked.build_model(small(), TOKENS)
    with pytest.raises(TypeCheckError):
        model.read_out(torch.zeros(2, 8, dtype=torch.float64))
    with pytest.raises(TypeCheckError):
        model.read_out(torch.zeros(2, 3, 8, dtype=torch.int64))
    assert looped.build_model is not checked.build_model


@pytest.mark.parametrize("knobs", BLOCKS, ids=label)
@pytest.mark.parametrize("kind", SPECS)
def test_shapes_equal_the_annotations(checked, knobs, kind):
    inputs = examples(SPECS[kind])
    for injection in ("none", "add", "concat"):
        model = checked.build_model(small(**knobs, injection=injection), SPECS[kind])
        model(inputs).sum().backward()
        assert model(inputs, read=(1, 1)).shape == (2, *inputs.shape[:2], SPECS[kind].output_size)


@pytest.mark.parametrize("attention_weights", ["softmax", "hardmax"])
def test_shapes_with_padding_equal_the_annotations(checked, attention_weights):
    stack = checked.LoopStack(small(attention_weights=attention_weights, num_loops=2), causal=True, quiet=True)
    embeddings, mask = torch.randn(2, 4, 8, dtype=torch.float64), torch.tensor([[True] * 4, [False] * 3 + [True]])
    assert stack(embeddings, attention_mask=mask).shape == (2, 4, 8)
    with pytest.raises(TypeCheckError):
        stack(embeddings, attention_mask=mask.long())


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rotary", "coordinates"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_shapes_with_other_positions_and_precisions_equal_the_annotations(checked, positions, precision):
    model = checked.build_model(small(positions=positions, precision=precision, num_loops=2), TOKENS)
    for state in model.iterate(examples(TOKENS, seq_len=4), backprop_loops=1):
        assert model.read_out(state).shape == (2, 4, 5)
