"""The growth of gradients back through the loops: limited example by example, as the definition says."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from looped.config import ModelConfig
from looped.kernels import example_norms, limit_growth
from looped.models.stack import LoopStack

POSITIVE = st.floats(1e-6, 1e6)


@given(arrays(np.float64, 5, elements=POSITIVE), arrays(np.float64, 5, elements=POSITIVE), st.floats(1.01, 20))
def test_growth_limit_shortens_only_what_grew_too_much(lengths, last, limit):
    direction = torch.randn(5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    direction = direction / example_norms(direction)[:, None, None]
    grad = torch.from_numpy(lengths)[:, None, None] * direction
    found = limit_growth(grad, torch.from_numpy(last), limit)
    growth = lengths / last
    most = limit * np.prod(growth) ** (1 / 5)
    for number, each in enumerate(growth):
        if each < 0.999 * most:
            assert torch.equal(found[number], grad[number])
        else:
            wanted = min(each, most) * last[number] * direction[number]
            assert torch.allclose(found[number], wanted, rtol=1e-6, atol=0)


def test_growth_limit_of_a_zero_gradient_changes_nothing():
    grad = torch.zeros(3, 2, 4)
    assert torch.equal(limit_growth(grad, example_norms(grad), 2.0), grad)


def stack_and_input() -> tuple[LoopStack, torch.Tensor]:
    config = ModelConfig(
        block="modulated", dim=16, num_heads=2, num_loops=6, injection="add", precision="float64",
        modulation_init="random",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    stack = LoopStack(config, generator=generator, quiet=True)
    with torch.no_grad():  # examples whose gradients grow unlike
        for parameter in stack.parameters():
            parameter.mul_(2)
    return stack, torch.randn(4, 5, 16, dtype=torch.float64, generator=generator)


def gradients_of(stack: LoopStack, x: torch.Tensor, limit: float | None) -> dict[str, torch.Tensor]:
    stack.growth_limit = limit
    stack.zero_grad()
    stack(x).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in stack.named_parameters() if parameter.grad is not None}


def test_growth_limit_gradients_equal_those_of_a_manual_pass():
    """Loop after loop by hand: from the gradient of a state to those of the one before it and of the weights."""
    stack, x = stack_and_input()
    limit, num_loops = 1.2, stack.config.num_loops
    found = gradients_of(stack, x, limit)
    parameters = dict(stack.named_parameters())
    stack.growth_limit = None
    with torch.no_grad():
        states = [torch.zeros_like(x), *stack.iterate(x)]
    grad = 2 * states[-1]
    last = grad.flatten(1).norm(dim=1)
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    shortened = 0
    for t in reversed(range(num_loops)):
        start = states[t].clone().requires_grad_()
        end = stack.loop(start, x, stack.prepare(num_loops, x.shape[1], x.device), t)
        grad, *of_weights = torch.autograd.grad(end, [start, *parameters.values()], grad, materialize_grads=True)
        for name, each in zip(parameters, of_weights, strict=True):
            total[name] += each
        growth = grad.flatten(1).norm(dim=1) / last
        most = limit * growth.prod() ** (1 / len(x))
        shortened += int((growth > most).sum())
        grad = grad * (most / growth).clamp(max=1)[:, None, None]
    assert shortened > 2
    for name, wanted in total.items():
        assert torch.allclose(found[name], wanted, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("remat", [0, 2])
def test_growth_limit_that_is_not_reached_changes_nothing(remat):
    stack, x = stack_and_input()
    stack.remat = remat
    plain, high, low = (gradients_of(stack, x, limit) for limit in (None, 1e9, 1.2))
    for name, wanted in plain.items():
        assert torch.equal(high[name], wanted)
    assert any(not torch.allclose(low[name], wanted) for name, wanted in plain.items())
