"""One optimizer step: gradients, clipping, spike guard, optimizer, average. Nothing here waits for the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from looped.config import TrainConfig
from looped.kernels.cuda_graphs import Replayed
from looped.models import LoopModel
from looped.models.engines import Compiled, set_engine
from looped.models.model import load_weights
from looped.training.distributed import ALONE, Group, tree_sum
from looped.training.loss import LARGE_VOCABULARY, LossOutput, TensorBatch, loss_and_answers, objective, own_read
from looped.training.optim import Average, Optimizer, SpikeGuard
from looped.training.sharding import ShardedLoss, part_like, whole
from looped.utils import plugins
from looped.utils.errors import require
from looped.utils.memory import memory_for
from looped.utils.types import Engine


class Stepper:
    """Take a model through optimizer steps with the engine that the config asks for.

    With a group of several ranks, each call gets this rank's share of the batch, and every rank takes the same step.
    """

    def __init__(
        self, model: LoopModel, config: TrainConfig, device: torch.device, group: Group = ALONE, seed: int = 0
    ) -> None:
        group.require_fit(config)
        optimizer, runtime = config.optimizer, config.runtime
        self.model, self.config, self.device, self.group = model, config, device, group
        self._seed, self._step_number = seed, 0
        self.sharded = ShardedLoss(model, self._loss, group) if runtime.shard else None
        self.optimizer = Optimizer(model, optimizer)
        self.average = None if optimizer.ema_decay is None else Average(model, optimizer.ema_decay)
        self.guard = None if optimizer.spike_factor is None else SpikeGuard(optimizer.spike_factor, device)
        self.engine: Engine = set_engine(model.stack, runtime.engine)
        model.stack.remat = runtime.remat
        model.stack.growth_limit = optimizer.growth_limit
        # A graph would replay the random numbers that it was captured with. Loops of your own layer that are computed
        # again need the state of the random numbers, which cannot be read during a capture.
        recomputes_own = runtime.remat > 0 and model.config.layer != "transformer"
        may_replay = not runtime.shard and not model.config.is_random and not recomputes_own
        self._uses_graph = device.type == "cuda" and self.engine != "eager" and may_replay
        self._step = self._run_step
        if self._uses_graph:
            self._step = Replayed(self._run_step, agree=group.all_true)
            group.before_leaving(self._step.drop_graphs)
        # With a loss on many loops, the read-outs take half as long as the loops unless they are compiled. A single
        # read-out is not worth the seconds of compilation that every new example size costs.
        compile_read_out = (
            self._uses_graph and config.supervision != "last" and model.spec.output_size < LARGE_VOCABULARY
        )
        read = loss_and_answers if config.loss == "default" else own_read(plugins.find("train.loss", config.loss))
        self._read = Compiled(read) if compile_read_out else read

    def __call__(
        self, step: int, batch: TensorBatch, num_loops: int, lr_fraction: float, free_loops: int = 0
    ) -> Tensor:
        """Run step number `step` at this fraction of the peak learning rates, after loops without a gradient.

        Return loss, accuracy, gradient norm, and 1 if the step was skipped or 0 if not.
        """
        self._step_number = step
        self.optimizer.lr_fraction.fill_(lr_fraction)
        if self.average is not None:
            self.average.set_step(step)
        train = self.config
        with memory_for(
            f"a batch of {train.batch_size} with {num_loops} loops",
            f"a larger --train.accumulation (now {train.accumulation}) or --train.remat (now {train.runtime.remat}; 1 "
            "keeps one state per loop)",
        ):
            (outcome,) = self._step(batch, num_loops, free_loops)
        return outcome

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return all tensors that a resumed run needs, by part and name, as a `Checkpoint` stores them.

        If they are sharded, every rank must call this. The whole tensors are then on the CPU of rank 0 alone.
        """
        parts = {
            "model": {name: value.detach() for name, value in self.model.named_parameters()},
            "optimizer": self.optimizer.state(),
        }
        if self.average is not None:
            parts["ema"] = dict(self.average.values)
        if self.guard is not None:
            parts["optimizer"]["guard.usual"] = self.guard.usual
        return parts if self.sharded is None else {part: self._gather(tensors) for part, tensors in parts.items()}

    def _gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors, one after the other, so that the GPU holds only one of them."""
        gathered = ((name, whole(tensor)) for name, tensor in tensors.items())
        return {name: tensor.cpu() for name, tensor in gathered if self.group.is_main}

    def load(self, parts: dict[str, dict[str, Tensor]], origin: str) -> None:
        """Restore what `state` returned on rank 0. `origin` names its source in error messages."""
        optimizer = {name: tensor.to(self.device) for name, tensor in parts.get("optimizer", {}).items()}
        average = parts.get("ema", {})
        for wanted, part, name in ((self.average, average, "ema.safetensors"), (self.guard, optimizer, "guard.usual")):
            require(wanted is None or bool(part), f"{origin} has no {name}: it was trained with other settings")
        named = dict(self.model.named_parameters())
        weights = {
            name: part_like(value, named[name]) if name in named else value for name, value in parts["model"].items()
        }
        load_weights(self.model, weights, origin)
        if self.guard is not None:
            self.guard.usual.copy_(optimizer.pop("guard.usual"))
        self.optimizer.load(optimizer)
        if self.average is not None:
            for name, value in self.average.values.items():
                value.copy_(part_like(average[name], value))

    def _run_step(self, batch: TensorBatch, num_loops: int, free_loops: int = 0) -> tuple[Tensor]:
        outcome = self.gradients(batch, num_loops, free_loops)
        clip_norm = self.config.optimizer.clip_norm
        grad_norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), float("inf") if clip_norm is None else clip_norm
        )
        grad_norm = whole(grad_norm)
        skipped = torch.zeros_like(grad_norm)
        if self.guard is not None:
            accepted = self.guard.accepts(grad_norm)
            self.optimizer.skip_unless(accepted)
            skipped = (~accepted).to(grad_norm.dtype)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return (torch.cat((outcome, torch.stack((grad_norm, skipped)).to(outcome.dtype))),)

    def gradients(self, batch: TensorBatch, num_loops: int, free_loops: int = 0) -> Tensor:
        """Compute the gradients of the whole batch, of which this rank has its share, and return loss and accuracy."""
        train = self.config
        num_pieces = 1 if train.pieces is None else train.pieces // self.group.size
        pieces = _split(batch, len(batch.inputs) // num_pieces)
        # Weighted by counted positions, so that splitting a batch leaves its gradient unchanged (a growth limit
        # compares the examples of one part, so it may differ).
        total_weight = self.group.all_gather(torch.stack([piece.mask.sum() for piece in pieces])).sum()
        part_size = max(1, len(batch.inputs) * self.group.size // train.accumulation)
        loops = num_loops, free_loops
        numbered = enumerate(pieces, start=self.group.rank * num_pieces)
        sums = tree_sum(self._backward(number, piece, part_size, total_weight, *loops) for number, piece in numbered)
        in_tree = train.pieces is not None
        gradients = sums[:-1] if self.sharded is not None else self.group.sum(sums[:-1], in_tree=in_tree)
        (totals,) = self.group.sum(sums[-1:], in_tree=in_tree)
        for parameter, gradient in zip(self._with_gradients(), gradients, strict=True):
            parameter.grad = gradient
        return totals

    @contextmanager
    def _random_numbers_of(self, piece: int) -> Iterator[None]:
        """Make dropout and random starts a function of seed, step and piece, so that a resumed run draws them alike.

        Your own layer or loss may draw numbers too. A CUDA graph cannot be seeded, so a random model has none.
        """
        if self._uses_graph:
            yield
            return
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            key = np.random.SeedSequence((self._seed, self._step_number, piece))
            torch.manual_seed(int(key.generate_state(1, np.uint64)[0]) >> 1)
            yield

    def _backward(
        self, number: int, piece: TensorBatch, part_size: int, total_weight: Tensor, num_loops: int, free_loops: int
    ) -> list[Tensor]:
        """Return what piece `number` adds to the gradients and, last in the list, to loss and accuracy."""
        self.optimizer.zero_grad()
        exact = torch.float32 if self.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        totals = torch.zeros(2, device=self.device, dtype=exact)
        with self._random_numbers_of(number):
            for part in _split(piece, part_size):
                output = (self.sharded or self._loss)(part, num_loops, free_loops)
                weight = part.mask.sum() / total_weight
                (output.loss * weight).backward()
                totals += torch.stack((output.loss.detach(), output.accuracy)).to(exact) * weight
                del output  # free its graph before the next part builds its own
        return [*(parameter.grad for parameter in self._with_gradients()), totals]  # pyright: ignore[reportReturnType]

    def _loss(self, batch: TensorBatch, num_loops: int, free_loops: int) -> LossOutput:
        return objective(self.model, batch, num_loops, self.config, self._read, free_loops)

    def _with_gradients(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.grad is not None]


def _split(batch: TensorBatch, size: int) -> list[TensorBatch]:
    """Split a batch into parts of at most this many examples."""
    return [
        TensorBatch(*(tensor[start : start + size] for tensor in batch)) for start in range(0, len(batch.inputs), size)
    ]
