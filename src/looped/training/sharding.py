"""Split weights, gradients and optimizer state over the ranks with PyTorch's FSDP2, for models that do not fit on one.

The whole model is one unit. It is gathered once per step, however many loops run, and its gradient is scattered once.
Outside of the loss, every rank keeps its part of each tensor as a DTensor. FSDP2 takes long to import, so it is loaded
when a model is sharded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from looped.models import LoopModel
from looped.training.distributed import Group
from looped.training.loss import LossOutput, TensorBatch
from looped.utils.errors import InputError


class ShardedLoss(nn.Module):
    """Compute the loss of a model whose parameters are sharded. FSDP2 gathers them for the time of a call."""

    def __init__(self, model: LoopModel, loss: Callable[[TensorBatch, int, int], LossOutput], group: Group) -> None:
        if group.store is None:
            raise InputError("train.shard: expected several processes, got one. Start them with torchrun.")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        self.model, self.loss = model, loss
        device = next(model.parameters()).device
        sharded: Any = fully_shard(self, mesh=init_device_mesh(device.type, (group.size,)))
        # Losses are weighted by the whole batch, so gradients are added, not averaged.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)

    def forward(self, batch: TensorBatch, num_loops: int, free_loops: int) -> LossOutput:
        """Return the loss of a part of the batch."""
        return self.loss(batch, num_loops, free_loops)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Give the model its whole weights inside this context, on every rank."""
        sharded: Any = self  # `fully_shard` has added methods
        sharded.unshard()
        try:
            yield
        finally:
            sharded.reshard()


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded. Every rank must call this."""
    full_tensor = getattr(tensor, "full_tensor", None)  # a DTensor has it
    return tensor if full_tensor is None else full_tensor()


def part_like(value: Tensor, owned: Tensor) -> Tensor:
    """Return the part of a whole tensor that this rank keeps of `owned`, or the tensor itself if nothing is sharded."""
    value = value.to(owned.device)
    mesh, placements = (getattr(owned, name, None) for name in ("device_mesh", "placements"))
    if placements is None:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, mesh, placements, src_data_rank=None)  # without communication
