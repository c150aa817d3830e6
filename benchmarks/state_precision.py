"""What a state of fewer bits costs at r = 100: error of scores and gradients against float64, for both looped blocks.

The products are bfloat16 throughout; what differs is the precision in which the state is added up: float32 as in plain
PyTorch, the 24 bits of the fused kernels, bfloat16.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from looped.config import ModelConfig
from looped.models import LoopModel, build_model
from looped.tasks import EditDistance


def perturbed(config: ModelConfig, task: EditDistance, device: str) -> LoopModel:
    """A model whose gates are open, as after some training; the same weights for every precision."""
    model = build_model(config, task.spec)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model.to(device)


def in_24_bits(state: torch.Tensor) -> torch.Tensor:
    """Rounded to the first 24 bits of float32; the gradient passes by."""
    bits = (state.detach().view(torch.int32) + 128) & ~255
    return state + (bits.view(torch.float32) - state).detach()


def keeping_24_bits(sublayer: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def rounded(*tensors: Any, **options: Any) -> torch.Tensor:
        return in_24_bits(sublayer(*tensors, **options))

    return rounded


def in_bfloat16(sublayer: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of a state in bfloat16 the sublayer, which keeps its state's precision, makes another one."""

    def rounded(state: torch.Tensor, *tensors: Any, **options: Any) -> torch.Tensor:
        came = sublayer(state.bfloat16(), *tensors, **options)
        assert came.dtype == torch.bfloat16
        return came

    return rounded


KEEPING = {"24 bits": keeping_24_bits, "bfloat16": in_bfloat16}


def with_state(model: LoopModel, kind: str) -> LoopModel:
    """The model, its state kept in so many bits."""
    if kind in KEEPING:
        for name in ("add_attention", "add_feed_forward"):
            setattr(model.stack, name, KEEPING[kind](getattr(model.stack, name)))
    return model


def scores_and_gradient(model: LoopModel, inputs: torch.Tensor) -> list[torch.Tensor]:
    scores = model(inputs).double()
    scores.square().mean().backward()
    gradient = model.stack.get_parameter("layers.0.w_in").grad
    assert gradient is not None
    return [scores.detach(), gradient.double()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", type=int, default=100)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task = EditDistance(length=40)
    inputs = torch.from_numpy(task.sample(0, "train", range(options.batch)).inputs).to(device)
    for block in ("looped", "modulated"):
        config = ModelConfig(
            block=block, dim=options.dim, num_loops=options.loops, injection="add", positions="rotary",
            precision="bfloat16",
        )  # fmt: skip
        exact = scores_and_gradient(perturbed(replace(config, precision="float64"), task, device), inputs)
        for state in ("float32", "24 bits", "bfloat16"):
            came = scores_and_gradient(with_state(perturbed(config, task, device), state), inputs)
            errors = [float((a - b).norm() / b.norm()) for a, b in zip(came, exact, strict=True)]
            row = {"block": block, "state": state, "scores": errors[0], "gradient": errors[1], "device": device}
            print(json.dumps(row))


if __name__ == "__main__":
    main()
