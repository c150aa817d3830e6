"""Batches as a pure function of the step, prepared ahead in background threads (the generators release the GIL)."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch

from looped.config import RunConfig
from looped.tasks import Batch
from looped.training.distributed import ALONE, Group
from looped.training.schedules import size_at, stages
from looped.utils.errors import require_field
from looped.utils.memory import memory_for

AHEAD = 4  # batches per worker that may be ready before they are needed


def indices_at(step: int, batch_size: int, num_examples: int | None, seed: int) -> np.ndarray:
    """Return the training examples of a step: the stream in order, or a new permutation of a fixed set per epoch."""
    places = np.arange(step * batch_size, (step + 1) * batch_size, dtype=np.int64)
    if num_examples is None:
        return places
    epochs, within = np.divmod(places, num_examples)
    return np.concatenate(
        [_permutation(seed, int(epoch), num_examples)[within[epochs == epoch]] for epoch in np.unique(epochs)]
    )


def trained_on(num_steps: int, config: RunConfig, count: int) -> tuple[np.ndarray, int]:
    """Return up to `count` examples that a run saw in its first steps, and their size, the largest so far.

    These are the most recent ones, because early ones may be forgotten. If every example of a fixed set was seen at
    this size, they are the first ones of the set.
    """
    require_field(num_steps >= 1, "num_steps", "a run that was trained for at least one step", num_steps)
    size = max(size_at(stage[0], config) for stage in stages(config, num_steps))
    batch_size, num_examples = config.train.batch_size, config.train.num_examples

    def seen() -> Iterator[np.ndarray]:
        """Yield the examples of this size, newest steps first."""
        for step in reversed(range(num_steps)):
            if size_at(step, config) == size:
                yield indices_at(step, batch_size, num_examples, config.seed)

    if num_examples is not None:
        # Counting steps is not enough: steps at other sizes leave gaps, different ones in every epoch.
        unseen = np.ones(num_examples, dtype=bool)
        for indices in seen():
            unseen[indices] = False
            if not unseen.any():
                return np.arange(min(count, num_examples)), size
    last: dict[int, None] = {}  # an ordered set, newest first
    for indices in seen():
        last |= dict.fromkeys(indices[::-1].tolist())
        if len(last) >= count:
            break
    return np.array(list(last)[:count][::-1]), size


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    with memory_for(f"the order of {num_examples} examples", "a smaller --train.num-examples"):
        return np.random.default_rng((seed, epoch)).permutation(num_examples)


def batch_at(step: int, config: RunConfig, group: Group = ALONE) -> Batch:
    """Return this rank's share of the batch of a step."""
    batch_size = config.train.batch_size
    with memory_for(f"a batch of {batch_size} examples", "a smaller --train.batch-size"):
        indices = indices_at(step, batch_size, config.train.num_examples, config.seed)[group.share(batch_size)]
        return config.task.training_batch(config.seed, indices, size_at(step, config))


def batches(first_step: int, config: RunConfig, group: Group = ALONE) -> Iterator[tuple[int, Batch]]:
    """Yield (step, batch) from `first_step` to the last step, in order for any number of workers."""
    steps = iter(range(first_step, config.train.num_steps))
    waiting: deque[tuple[int, Future[Batch]]] = deque()
    num_workers = config.train.runtime.num_workers or min(8, max(1, torch.get_num_threads() // 2))
    with ThreadPoolExecutor(num_workers, thread_name_prefix="batches") as pool:
        try:
            for step in steps:
                waiting.append((step, pool.submit(batch_at, step, config, group)))
                if len(waiting) > AHEAD * num_workers:
                    ready, future = waiting.popleft()
                    yield ready, future.result()
            for ready, future in waiting:
                yield ready, future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
