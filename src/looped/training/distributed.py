"""One run on several processes: `torchrun --nproc-per-node 8 -m looped train ...`.

Every process (rank) holds all weights and computes the gradients of its share of each batch. The gradients are added
once per step, between the backward pass and clipping; everything after that is computed on every rank alike. Rank 0
alone writes files, prints and evaluates. Stopping is decided by all ranks together.

A tied block's gradient is complete only at the end of the backward pass, so there is nothing that communication could
overlap with, and one collective per step is enough.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from looped.config import TrainConfig
from looped.utils.errors import InputError
from looped.utils.launch import CONNECT_SECONDS, claims_report, connect_store, end_silently, launched_rank, wait_for
from looped.utils.types import Device

Value = TypeVar("Value")

TIMEOUT = timedelta(minutes=30)
"""how long a rank waits for the others: an evaluation on rank 0 takes minutes"""
SETTLE_SECONDS = 0.5
"""time for gloo's threads to drop the tensors of a failed collective: at the interpreter's end that would abort it"""

# PyTorch 2.13 renamed it.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def tree_sum(terms: Iterable[list[Tensor]]) -> list[Tensor]:
    """Add lists of tensors pairwise, in a binary tree. The number of terms must be a power of two.

    Rounding depends on the order of a sum, and this order depends on the number of terms only. So ranks can add a part
    of the terms each, and then add their sums, with the result of a single process. At most log2(terms) sums exist.
    """
    waiting: dict[int, list[Tensor]] = {}  # by height in the tree
    for total in terms:
        height = 0
        while (other := waiting.pop(height, None)) is not None:
            total = [first + second for first, second in zip(other, total, strict=True)]
            height += 1
        waiting[height] = total
    (total,) = waiting.values()
    return total


@dataclass(frozen=True)
class Group:
    """The ranks that train one run together. The default is a single process without communication."""

    rank: int = 0
    size: int = 1
    store: Store | None = None
    """what the ranks share before and beside collectives, or None for a single process"""
    _cleanups: list[Callable[[], object]] = field(default_factory=list, repr=False)

    @property
    def is_main(self) -> bool:
        """Return whether this rank writes files, prints and evaluates."""
        return self.rank == 0

    def require_fit(self, train: TrainConfig) -> None:
        """Raise InputError unless the batch, or its pieces, can be shared equally."""
        name, count = ("batch_size", train.batch_size) if train.pieces is None else ("pieces", train.pieces)
        if count % self.size:
            raise InputError(
                f"train.{name}: expected a multiple of the {self.size} processes, got {count}. "
                "Start a number of processes that divides it.",
            )

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError unless rank 0 has the same settings: on several machines the command is typed several times.

        Other settings may need other collectives, which would abort the processes or add what does not belong together.
        """
        for name, wanted in self.from_main(lambda: settings).items():
            if (found := settings.get(name)) != wanted:
                raise InputError(
                    f"{name}: expected {wanted!r} as on rank 0, got {found!r} on rank {self.rank}. "
                    "Start the same command on every machine.",
                )

    def share(self, num_items: int) -> slice:
        """Return which of the items this rank works on: consecutive ones, as many as every other rank."""
        each = num_items // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, stacked in the order of ranks."""
        if self.store is None:
            return tensor[None]
        gathered = tensor.new_empty(self.size * tensor.numel())
        _all_gather(gathered, tensor.flatten())
        return gathered.view(self.size, *tensor.shape)

    def sum(self, tensors: list[Tensor], *, in_tree: bool) -> list[Tensor]:
        """Add tensors of one dtype over all ranks, in one collective: in a fixed tree, or in the backend's order."""
        if self.store is None:
            return tensors
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        if in_tree:
            (flat,) = tree_sum([row] for row in self.all_gather(flat))
        else:
            dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        # Copies, because kernels may add in another order where memory is aligned differently.
        return [part.view_as(tensor).clone() for part, tensor in zip(parts, tensors, strict=True)]

    def largest(self, value: int) -> int:
        """Return the largest value of all ranks, so that they decide alike."""
        return value if self.store is None else int(self.all_gather(torch.tensor(value)).max())

    def all_true(self, value: bool) -> bool:
        """Return whether the value is true on every rank."""
        return not self.largest(not value)

    def from_main(self, function: Callable[[], Value]) -> Value:
        """Call a function on rank 0 and return its result on every rank."""
        if self.store is None:
            return function()
        box = [function() if self.is_main else None]
        dist.broadcast_object_list(box)
        return box[0]  # pyright: ignore[reportReturnType]

    def tensors_from_main(self, parts: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Return the named tensors of rank 0 on every rank, on the CPU. They are sent one by one to save memory."""
        if self.store is None:
            return parts
        layout = self.from_main(
            lambda: {part: {name: (value.shape, value.dtype) for name, value in tensors.items()}
                     for part, tensors in parts.items()}
        )  # fmt: skip
        received: dict[str, dict[str, Tensor]] = {}
        for part, tensors in layout.items():
            received[part] = {}
            for name, (shape, dtype) in tensors.items():
                value = parts[part][name].detach().cpu() if self.is_main else torch.empty(shape, dtype=dtype)
                dist.broadcast(value.contiguous(), src=0)
                received[part][name] = value
        return received

    def before_leaving(self, cleanup: Callable[[], object]) -> None:
        """Call a function before the ranks disconnect, such as one that drops CUDA graphs with collectives in them."""
        if self.store is not None:
            self._cleanups.append(cleanup)

    def leave(self) -> None:
        """Run the cleanups and disconnect."""
        while self._cleanups:
            self._cleanups.pop()()
        if dist.is_initialized():
            dist.destroy_process_group()


ALONE = Group()


@contextmanager
def joined(device: Device = "auto") -> Iterator[Group]:
    """Connect to the other processes that torchrun started. Without torchrun, yield a group of one.

    If ranks fail, one of them raises its InputError, and the others end silently with exit code 2. A process group that
    the caller has initialised is used and left open.
    """
    if dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store())
        return
    if launched_rank() is None:
        yield ALONE
        return
    store = connect_store(CONNECT_SECONDS)
    store.set_timeout(TIMEOUT)
    group = Group(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), store)
    try:
        _start_collectives(group, store, device)
        yield group
        dist.barrier()  # a rank that disconnects while another still waits for it would abort that one
    except Exception as error:
        is_first, lost = claims_report(store), _is_lost_connection(error)
        if not is_first and (lost or isinstance(error, (InputError, OSError))):
            end_silently()
        if lost:
            time.sleep(SETTLE_SECONDS)
            raise InputError(
                f"rank {group.rank} lost the connection to another rank, which was killed or failed. "
                "The same command resumes the run; with --max-restarts, torchrun does so by itself."
            ) from error
        raise
    finally:
        with suppress(RuntimeError):  # a broken connection cannot be closed in order
            group.leave()


def _start_collectives(group: Group, store: Store, device: Device) -> None:
    """Start gloo and, on GPUs, NCCL. Raise InputError on every rank if one of them lacks its GPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", group.rank))
    num_gpus = 0 if device == "cpu" else torch.cuda.device_count()
    needs_gpu = device == "cuda" or num_gpus > 0
    # Through the store, because a rank without a GPU cannot take part in NCCL's collectives.
    keys = [f"device of {rank}" for rank in range(group.size)]
    store.set(keys[group.rank], "none" if needs_gpu and local_rank >= num_gpus else str(needs_gpu))
    wait_for(keys, store)
    found = [store.get(key).decode() for key in keys]
    if len({*found}) > 1 or "none" in found:
        without = [str(rank) for rank in range(group.size) if found[rank] != str(True)]
        ranks = "rank" if len(without) == 1 else "ranks"
        raise InputError(
            f"train.device: expected a GPU for every process, found none for {ranks} {', '.join(without)}. Start "
            "fewer processes per machine, or use --train.device cpu.",
        )
    if needs_gpu:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if needs_gpu else "gloo",
        store=store, rank=group.rank, world_size=group.size, timeout=TIMEOUT,
    )  # fmt: skip


def _is_lost_connection(error: Exception) -> bool:
    """Return whether a collective failed because another rank is gone. gloo raises plain RuntimeErrors."""
    words = ("gloo", "connection closed", "connection reset", "broken pipe", "recv", "failed to wait")
    return isinstance(error, dist.DistError) or (
        type(error) is RuntimeError and any(word in str(error).lower() for word in words)
    )
