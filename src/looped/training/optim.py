"""AdamW for all, or Muon for the block's matrices beside AdamW for the rest; a guard against spikes, and an average."""

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
    """AdamW, and Muon where it is wanted, at rates that follow one schedule; their state as named tensors."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.named = dict(model.named_parameters())
        muon = [name for name in self.named if config.optimizer == "muon" and _leaf(name) in _MUON]
        rest = [name for name in self.named if name not in muon]
        vectors = [name for name in rest if _leaf(name).startswith(_VECTORS)]
        matrices = [name for name in rest if name not in vectors]
        device = next(model.parameters()).device
        # A tensor, so that a captured step can be replayed at another rate.
        self.rate = torch.ones((), device=device)
        self._peak = config.learning_rate
        self.adamw = torch.optim.AdamW(
            [
                {"params": [self.named[name] for name in matrices], "weight_decay": config.weight_decay},
                {"params": [self.named[name] for name in vectors], "weight_decay": 0.0},
            ],
            lr=torch.tensor(config.learning_rate, device=device),
            betas=(config.beta1, config.beta2),
            fused=True,
            capturable=device.type == "cuda",
        )
        self.muon = Muon({name: self.named[name] for name in muon}, config)

    def step(self) -> None:
        """One step at the share `rate` of the peak rates."""
        for group in self.adamw.param_groups:
            torch.mul(self.rate, self._peak, out=group["lr"])
        self.adamw.step()
        self.muon.step(self.rate)

    def pass_over_unless(self, taken: Tensor) -> None:
        """Make the next step one that moves no weight, where `taken` is false."""
        for parameter in self.named.values():
            if parameter.grad is not None:
                parameter.grad.masked_fill_(~taken, 0)  # also what is beyond numbers
        self.rate.mul_(taken)

    def zero_grad(self) -> None:
        for parameter in self.named.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Moments and counters by part, kind and parameter."""
        adamw = {
            f"adamw/{kind}/{name}": value
            for name, parameter in self.named.items()
            for kind, value in self.adamw.state.get(parameter, {}).items()
        }
        return adamw | {f"muon/momentum_buffer/{name}": value for name, value in self.muon.momentum.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        for path, value in state.items():
            part, kind, name = path.split("/", 2)
            if part == "muon":
                self.muon.momentum[name].copy_(value)
            else:
                self.adamw.state[self.named[name]][kind] = value.to(self.named[name].device)


class Muon:
    """Momentum whose direction is made orthogonal (Jordan et al., 2024): every singular value is moved alike.

    As torch.optim.Muon, but at a rate that is a tensor, and with matrices of one shape made orthogonal together.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], config: TrainConfig) -> None:
        self.parameters, self.config = parameters, config
        self.momentum = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        shapes = dict.fromkeys(parameter.shape for parameter in parameters.values())
        self._alike = [[name for name in parameters if parameters[name].shape == shape] for shape in shapes]

    @torch.no_grad()
    def step(self, rate: Tensor) -> None:
        config = self.config
        for names in self._alike:
            directions = []
            for name in names:
                gradient, momentum = self.parameters[name].grad, self.momentum[name]
                assert gradient is not None
                momentum.lerp_(gradient, 1 - config.muon_momentum)
                directions.append(gradient.lerp(momentum, config.muon_momentum))  # Nesterov's look ahead
            rows, columns = directions[0].shape
            # A tall matrix moves its outputs less per unit of the rate than a wide one.
            size = -config.muon_learning_rate * max(1.0, rows / columns) ** 0.5
            for name, direction in zip(names, orthogonalise(torch.stack(directions)), strict=True):
                parameter = self.parameters[name]
                parameter.mul_(1 - rate * (config.muon_learning_rate * config.muon_weight_decay))
                parameter.add_(direction.to(parameter.dtype) * (rate * size))


def orthogonalise(matrices: Tensor) -> Tensor:
    """Singular values to about 1, by five steps of a quintic that is applied to them through products alone."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class SpikeGuard:
    """Tells gradients that are many times as long as usual: steps along them can undo what was learned.

    Through many loops a gradient can explode for one batch alone. Neither optimizer minds its length: Muon makes every
    direction as long, and so it moves the weights by a full step along a direction that is of no use.
    """

    MEMORY = 0.02
    """what a new norm counts for in the usual one"""

    def __init__(self, factor: float, device: torch.device) -> None:
        self._factor = factor
        self.usual = torch.zeros((), device=device)

    @torch.no_grad()
    def is_usual(self, norm: Tensor) -> Tensor:
        """Whether this norm is usual; it then counts in full for the next ones, and otherwise as far as the limit."""
        first, limit = self.usual == 0, self._factor * self.usual
        taken = first | (norm <= limit)
        seen = torch.where(taken, norm, limit).to(self.usual.dtype)
        self.usual.copy_(torch.where(first, seen, self.usual.lerp(seen, self.MEMORY)))
        return taken


class Average:
    """An exponential moving average of the weights; young averages forget faster, so that the start does not linger."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.named = dict(model.named_parameters())
        self.values = {name: parameter.detach().clone() for name, parameter in self.named.items()}
        self._decay = decay
        self._share = torch.zeros((), device=next(model.parameters()).device, dtype=next(model.parameters()).dtype)

    def set_step(self, step: int) -> None:
        """Say which step the next update belongs to."""
        self._share.fill_(1 - min(self._decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        for name, value in self.values.items():
            value.lerp_(self.named[name], self._share)

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
