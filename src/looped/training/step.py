"""One optimizer step: gradients, clipping, spikes, optimizer, average. Nothing in it waits for the device."""

import torch
from torch import Tensor, nn

from looped.config import TrainConfig
from looped.kernels.cuda_graphs import Replayed
from looped.models import LoopModel
from looped.models.engines import Compiled, set_engine
from looped.training.loss import LARGE_VOCABULARY, TensorBatch, loss_and_answers, objective
from looped.training.optim import Average, Optimizer, SpikeGuard
from looped.utils.errors import require
from looped.utils.memory import memory_for


class Stepper:
    """Takes a model through its steps with the engine that the config asks for."""

    def __init__(self, model: LoopModel, config: TrainConfig, device: torch.device) -> None:
        self.model, self.config, self.device = model, config, device
        self.optimizer = Optimizer(model, config)
        self.average = None if config.ema_decay is None else Average(model, config.ema_decay)
        self.guard = None if config.spike_factor is None else SpikeGuard(config.spike_factor, device)
        self.engine = set_engine(model.stack, config.engine)
        model.stack.remat = config.remat
        model.stack.growth_limit = config.growth_limit
        captured = device.type == "cuda" and self.engine != "eager"
        self._step = Replayed(self._plain) if captured else self._plain
        # Where many loops are supervised, their read-outs take as long as half of the loops, unless they are compiled.
        # One read-out is not worth the seconds that every new size of the examples would be compiled for.
        worth_it = captured and config.supervision != "last" and model.spec.output_size < LARGE_VOCABULARY
        self._read = Compiled(loss_and_answers) if worth_it else loss_and_answers

    def __call__(self, step: int, batch: TensorBatch, num_loops: int, rate: float) -> Tensor:
        """Step number `step` at this share of the peak rates; returns loss, share right, the gradient's norm and
        whether the step was passed over."""
        self.optimizer.rate.fill_(rate)
        if self.average is not None:
            self.average.set_step(step)
        train = self.config
        with memory_for(
            f"a batch of {train.batch_size} with {num_loops} loops",
            f"a larger train.accumulation (now {train.accumulation}) or train.remat (now {train.remat}; 1 keeps one "
            "state per loop)",
        ):
            (seen,) = self._step(batch, num_loops)
        return seen

    def state(self) -> dict[str, Tensor]:
        """All tensors that a resumed run needs, by kind and name."""
        tensors = {f"model/{name}": value.detach() for name, value in self.model.named_parameters()}
        tensors |= {f"optimizer/{name}": value for name, value in self.optimizer.state().items()}
        if self.average is not None:
            tensors |= {f"average/{name}": value for name, value in self.average.values.items()}
        if self.guard is not None:
            tensors["guard/usual"] = self.guard.usual
        return tensors

    def load(self, state: dict[str, Tensor], origin: str) -> None:
        """Take up what `state` gave; `origin` is whose it is."""
        by_kind: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}, "guard": {}}
        for path, tensor in state.items():
            kind, name = path.split("/", 1)
            by_kind[kind][name] = tensor.to(self.device)
        load_weights(self.model, by_kind["model"], origin)
        self.optimizer.load(by_kind["optimizer"])
        if self.average is not None:
            for name, value in self.average.values.items():
                value.copy_(by_kind["average"][name])
        if self.guard is not None:
            self.guard.usual.copy_(by_kind["guard"]["usual"])

    def _plain(self, batch: TensorBatch, num_loops: int) -> tuple[Tensor]:
        seen = self.gradients(batch, num_loops)
        limit = float("inf") if self.config.clip_norm is None else self.config.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        passed_over = torch.zeros_like(norm)
        if self.guard is not None:
            taken = self.guard.is_usual(norm)
            self.optimizer.pass_over_unless(taken)
            passed_over = (~taken).to(norm.dtype)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return (torch.cat((seen, torch.stack((norm, passed_over)).double())),)

    def gradients(self, batch: TensorBatch, num_loops: int) -> Tensor:
        """Fill the parameters' gradients, a piece of the batch at a time; returns loss and share right."""
        self.optimizer.zero_grad()
        seen = torch.zeros(2, device=self.device, dtype=torch.float64)
        total_weight = batch.mask.sum()
        whole = len(batch.inputs)
        size = whole // self.config.accumulation
        for start in range(0, whole, size):
            piece = TensorBatch(*(tensor[start : start + size] for tensor in batch))
            outcome = objective(self.model, piece, num_loops, self.config, self._read)
            # A piece counts by its positions, so cutting a batch does not change its gradient (a growth limit may).
            share = piece.mask.sum() / total_weight
            (outcome.loss * share).backward()
            seen += torch.stack((outcome.loss.detach(), outcome.right)).double() * share
            del outcome  # before the next piece makes its own
        return seen


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Copy named tensors into a model; every name and shape must fit."""
    own = dict(model.named_parameters())
    missing, foreign = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    require(not missing, f"the weights of {origin} are of another model: no {', '.join(missing[:3])}")
    require(not foreign, f"the weights of {origin} are of another model: this one has no {', '.join(foreign[:3])}")
    with torch.no_grad():
        for name, parameter in own.items():
            came = tuple(weights[name].shape)
            require(came == tuple(parameter.shape), f"{name} of {origin} is {came}, expected {tuple(parameter.shape)}")
            parameter.copy_(weights[name])
