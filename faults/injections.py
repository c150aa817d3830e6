"""NaN and infinity, put into a running training from outside by PyTorch's own hooks.

Only what PyTorch offers to everybody is touched, so that the program under test may be arranged in any way.
"""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook


def inject(what: str, step: int, value: str) -> None:
    """Arrange for `value` to appear in the gradient, weights, optimizer state, outputs or data of a step."""
    {
        "gradient": _into_gradient, "weight": _into_weight, "optimizer": _into_optimizer, "loss": _into_loss,
        "data": _into_data,
    }[what](step, float(value))  # fmt: skip


def _spoil(tensor: torch.Tensor, value: float) -> None:
    with torch.no_grad():
        tensor.view(-1)[0] = value


def _at(number: int, action: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that acts at one of its calls alone."""
    calls = 0

    def count(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return action(*given, **named) if calls == number + 1 else None

    return count


def _into_gradient(step: int, value: float) -> None:
    def spoil() -> None:
        found = [each for each in gc.get_objects() if isinstance(each, nn.Parameter) and each.grad is not None]
        _spoil(next(each.grad for each in found if each.grad is not None), value)

    backward, act = torch.Tensor.backward, _at(step, spoil)

    def spoiled(self: torch.Tensor, *given: Any, **named: Any) -> None:
        backward(self, *given, **named)
        act()

    torch.Tensor.backward = spoiled  # pyright: ignore[reportAttributeAccessIssue]


def _into_loss(step: int, value: float) -> None:
    backward, act = torch.Tensor.backward, _at(step, lambda: True)

    def spoiled(self: torch.Tensor, *given: Any, **named: Any) -> None:
        backward(self * value if act() else self, *given, **named)

    torch.Tensor.backward = spoiled  # pyright: ignore[reportAttributeAccessIssue]


def _into_weight(step: int, value: float) -> None:
    def spoil(optimizer: Any, *_: Any) -> None:
        _spoil(optimizer.param_groups[0]["params"][0], value)

    register_optimizer_step_post_hook(_at(step, spoil))


def _into_optimizer(step: int, value: float) -> None:
    def spoil(optimizer: Any, *_: Any) -> None:
        state = optimizer.state[optimizer.param_groups[0]["params"][0]]
        _spoil(state["exp_avg"], value)

    register_optimizer_step_post_hook(_at(step, spoil))


def _into_data(step: int, value: float) -> None:
    from_numpy = torch.from_numpy
    act = _at(step, lambda: True)

    def spoiled(array: Any) -> torch.Tensor:
        tensor = from_numpy(array)
        if tensor.is_floating_point() and act():
            tensor = tensor.clone()
            _spoil(tensor, value)
        return tensor

    torch.from_numpy = spoiled
