"""AdamW, optionally with Muon for the block's matrices; a spike guard; a moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from looped.config import OptimizerConfig
from looped.training.sharding import part_like, whole

# Weight decay pulls a weight to 0. That is right for a matrix but not for a gain, a bias or a row of a modulation
# table, whose neutral value is not 0. Some of those are stored as matrices, one row per layer, so the name decides.
_NO_DECAY = ("b_", "b3", "b4", "b5", "gain", "vectors", "rows", "amplitude")
_MUON = ("w_qkv", "w_out", "w_in", "w_back")


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[-1]


class Optimizer:
    """AdamW, with Muon where the config asks for it. Both follow one learning-rate schedule."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.named = dict(model.named_parameters())
        muon = [name for name in self.named if config.kind == "muon" and _leaf(name) in _MUON]
        rest = [name for name in self.named if name not in muon]
        no_decay = [name for name in rest if _leaf(name).startswith(_NO_DECAY)]
        decay = [name for name in rest if name not in no_decay]
        device = next(model.parameters()).device
        # A tensor, so that a captured CUDA graph can be replayed at another learning rate.
        self.lr_fraction = torch.ones((), device=device)
        self._peak = config.learning_rate
        self.adamw = torch.optim.AdamW(
            [
                {"params": [self.named[name] for name in decay], "weight_decay": config.weight_decay},
                {"params": [self.named[name] for name in no_decay], "weight_decay": 0.0},
            ],
            lr=torch.tensor(config.learning_rate, device=device),
            betas=(config.beta1, config.beta2),
            fused=True,
            capturable=device.type == "cuda",
        )
        self.muon = Muon({name: self.named[name] for name in muon}, config)

    def step(self) -> None:
        """Update the weights at the current fraction of the peak learning rates."""
        for group in self.adamw.param_groups:
            torch.mul(self.lr_fraction, self._peak, out=group["lr"])
        self.adamw.step()
        self.muon.step(self.lr_fraction)

    def skip_unless(self, accepted: Tensor) -> None:
        """Make the next step move no weight if `accepted` is false."""
        for parameter in self.named.values():
            if parameter.grad is not None:
                parameter.grad.masked_fill_(~accepted, 0)  # also clears NaN and infinity
        self.lr_fraction.mul_(accepted)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.named.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return moments and counters under names such as `adamw.exp_avg.NAME` and `muon.momentum.NAME`."""
        adamw = {
            f"adamw.{kind}.{name}": value
            for name, parameter in self.named.items()
            for kind, value in self.adamw.state.get(parameter, {}).items()
        }
        return adamw | {f"muon.momentum.{name}": value for name, value in self.muon.momentum.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for path, value in state.items():
            part, kind, name = path.split(".", 2)
            if part == "muon":
                self.muon.momentum[name].copy_(part_like(value, self.muon.momentum[name]))
            else:
                parameter = self.named[name]
                is_moment = value.shape == parameter.shape  # the others are counters
                self.adamw.state[parameter][kind] = (
                    part_like(value, parameter) if is_moment else value.to(parameter.device)
                )


class Muon:
    """Momentum with an orthogonalised direction (Jordan et al., 2024), so that every singular value moves equally.

    Differs from torch.optim.Muon in two ways: the learning rate is a tensor, and matrices of equal shape are
    orthogonalised together.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], config: OptimizerConfig) -> None:
        self.parameters, self.config = parameters, config
        self.momentum = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        shapes = dict.fromkeys(parameter.shape for parameter in parameters.values())
        self._same_shape = [[name for name in parameters if parameters[name].shape == shape] for shape in shapes]

    @torch.no_grad()
    def step(self, lr_fraction: Tensor) -> None:
        """Update the matrices at this fraction of the peak learning rate."""
        config = self.config
        for names in self._same_shape:
            directions = []
            for name in names:
                gradient, momentum = self.parameters[name].grad, self.momentum[name]
                assert gradient is not None
                momentum.lerp_(gradient, 1 - config.muon_momentum)
                directions.append(whole(gradient.lerp(momentum, config.muon_momentum)))  # Nesterov momentum
            rows, columns = directions[0].shape
            # A tall matrix moves its outputs less per unit of learning rate than a wide one.
            scale = -config.muon_learning_rate * max(1.0, rows / columns) ** 0.5
            for name, direction in zip(names, orthogonalise(torch.stack(directions)), strict=True):
                parameter = self.parameters[name]
                parameter.mul_(1 - lr_fraction * (config.muon_learning_rate * config.muon_weight_decay))
                parameter.add_(part_like(direction.to(parameter.dtype) * (lr_fraction * scale), parameter))


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices whose singular values are all about 1, by five Newton-Schulz steps of a quintic polynomial."""
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
    """Detect gradients that are many times longer than usual, because one step along them can undo what was learned.

    Through many loops the gradient of a single batch can explode. Clipping does not help: AdamW and Muon normalise the
    gradient anyway, so they take a full step in a useless direction.
    """

    MEMORY = 0.02
    """weight of a new norm in the running average"""

    def __init__(self, factor: float, device: torch.device) -> None:
        self._factor = factor
        self.usual = torch.zeros((), device=device)

    @torch.no_grad()
    def accepts(self, norm: Tensor) -> Tensor:
        """Return whether this gradient norm is finite and at most `factor` times the usual one, and update the latter.

        An accepted norm enters the running average in full, a rejected one only up to the limit.
        """
        first, limit = self.usual == 0, self._factor * self.usual
        accepted = torch.where(first, norm.isfinite(), norm <= limit)
        seen = torch.where(accepted, norm, limit).to(self.usual.dtype)
        self.usual.copy_(torch.where(first, seen, self.usual.lerp(seen, self.MEMORY)))
        return accepted


class Average:
    """An exponential moving average of the weights. It forgets faster at first, so that the start does not linger."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.named = dict(model.named_parameters())
        self.values = {name: parameter.detach().clone() for name, parameter in self.named.items()}
        self._decay = decay
        first = next(model.parameters())
        self._update_weight = torch.zeros((), device=first.device, dtype=first.dtype)

    def set_step(self, step: int) -> None:
        """Set the step number that the next update belongs to."""
        self._update_weight.fill_(1 - min(self._decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
        for name, value in self.values.items():
            value.lerp_(self.named[name], self._update_weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside this context."""
        trained = {name: parameter.detach().clone() for name, parameter in self.named.items()}
        _assign(self.named, self.values)
        try:
            yield
        finally:
            _assign(self.named, trained)


def _assign(parameters: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
