"""AdamW for all, or Muon for the block's matrices beside AdamW for the rest; and the moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from looped.config import TrainConfig

# Decay pulls a weight to 0. A matrix may go there; a gain, a row of a modulation table or a bias must not: the place
# that they are at rest is not 0. (Some of those are stored as matrices, one row per layer, so the name decides.)
_VECTORS = ("b_", "b3", "b4", "b5", "gain", "vectors", "rows", "amplitude")
_MUON = ("w_qkv", "w_out", "w_in", "w_back")


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[-1]


class Optimizer:
    """One or two torch optimizers whose rates follow one schedule, with their state as named tensors."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.named = dict(model.named_parameters())
        muon = [name for name in self.named if config.optimizer == "muon" and _leaf(name) in _MUON]
        rest = [name for name in self.named if name not in muon]
        vectors = [name for name in rest if _leaf(name).startswith(_VECTORS)]
        matrices = [name for name in rest if name not in vectors]
        adamw = torch.optim.AdamW(
            [
                {"params": [self.named[name] for name in matrices], "weight_decay": config.weight_decay},
                {"params": [self.named[name] for name in vectors], "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            fused=True,
        )
        self.parts: dict[str, torch.optim.Optimizer] = {"adamw": adamw}
        if muon:
            self.parts["muon"] = torch.optim.Muon(
                [self.named[name] for name in muon],
                lr=config.muon_learning_rate,
                momentum=config.muon_momentum,
                weight_decay=config.muon_weight_decay,
            )
        self._peaks = [(group, group["lr"]) for part in self.parts.values() for group in part.param_groups]

    def step(self, rate: float) -> None:
        """One step at this share of the peak rates."""
        for group, peak in self._peaks:
            group["lr"] = peak * rate
        for part in self.parts.values():
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts.values():
            part.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Moments and counters by part, kind and parameter."""
        return {
            f"{part}/{kind}/{name}": value
            for part, optimizer in self.parts.items()
            for name, parameter in self.named.items()
            for kind, value in optimizer.state.get(parameter, {}).items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        for path, value in state.items():
            part, kind, name = path.split("/", 2)
            self.parts[part].state[self.named[name]][kind] = value.to(self.named[name].device)


class Average:
    """An exponential moving average of the weights; young averages forget faster, so that the start does not linger."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.named = dict(model.named_parameters())
        self.values = {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in self.values.items():
                value.lerp_(self.named[name], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the averaged weights."""
        kept = {name: parameter.detach().clone() for name, parameter in self.named.items()}
        _assign(self.named, self.values)
        try:
            yield
        finally:
            _assign(self.named, kept)


def _assign(parameters: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
