"""Train your own model around `LoopStack` on several processes, with DDP or with FSDP2.

torchrun --nproc-per-node 2 examples/parallel.py            # DDP: every process has all weights
torchrun --nproc-per-node 2 examples/parallel.py --shard    # FSDP2: every process has a part of them
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from looped import LoopStack, ModelConfig

BATCH, SEQ, VOCABULARY, STEPS = 32, 12, 10, 20


class CountsZeros(torch.nn.Module):
    """Say how many zeros a sequence has."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, dim)
        self.stack = LoopStack(ModelConfig(block="modulated", dim=dim, num_heads=4, num_loops=4, positions="rotary"))
        self.head = torch.nn.Linear(dim, SEQ + 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.stack(self.embedding(tokens)).sum(dim=1))


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)  # before anything else uses a GPU
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights everywhere
    model: torch.nn.Module = CountsZeros().to(device)
    if "--shard" in sys.argv:
        # The whole model as one unit: it is gathered once per step, not once per loop.
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(1)  # the same batches everywhere, of which each process takes its share
    for step in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, SEQ), generator=data)[rank::size].to(device)
        loss = torch.nn.functional.cross_entropy(model(tokens), (tokens == 0).sum(dim=1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step + 1}: loss {mean.item() / size:.5f}", flush=True)
    dist.barrier()  # otherwise a process that ends early can abort the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
