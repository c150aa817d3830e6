"""One optimizer step: gradients, clipping, optimizer, average. Nothing in it waits for the device."""

import torch
from torch import Tensor

from looped.config import TrainConfig
from looped.kernels.graphs import Replayed
from looped.models import LoopModel
from looped.training.engine import set_engine
from looped.training.memory import memory_for
from looped.training.objective import LARGE_VOCABULARY, TensorBatch, loss_and_answers, objective
from looped.training.optim import Average, Optimizer


class Stepper:
    """Takes a model through its steps with the engine that the config asks for."""

    def __init__(self, model: LoopModel, config: TrainConfig, device: torch.device) -> None:
        self.model, self.config, self.device = model, config, device
        self.optimizer = Optimizer(model, config)
        self.average = None if config.ema_decay is None else Average(model, config.ema_decay)
        self.engine = set_engine(model, config.engine, device)
        model.stack.remat = config.remat
        captured = device.type == "cuda" and self.engine != "eager"
        self._step = Replayed(self._plain) if captured else self._plain
        # Where many loops are supervised, their read-outs take as long as half of the loops, unless they are compiled.
        compiled = captured and model.spec.output_size < LARGE_VOCABULARY
        self._read = torch.compile(loss_and_answers, dynamic=False) if compiled else loss_and_answers

    def __call__(self, step: int, batch: TensorBatch, num_loops: int, rate: float) -> Tensor:
        """Step number `step` at this share of the peak rates; returns loss, share right and the gradient's norm."""
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
        return tensors

    def _plain(self, batch: TensorBatch, num_loops: int) -> tuple[Tensor]:
        seen = self.gradients(batch, num_loops)
        limit = float("inf") if self.config.clip_norm is None else self.config.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return (torch.cat((seen, norm.double()[None])),)

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
            # A piece counts by its positions, so that cutting a batch does not change its gradient.
            share = piece.mask.sum() / total_weight
            (outcome.loss * share).backward()
            seen += torch.stack((outcome.loss.detach(), outcome.right)).double() * share
            del outcome  # before the next piece makes its own
        return seen
