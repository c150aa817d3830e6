"""FLOPs of a training run, counted exactly from the loops and sizes of its steps and from what gets a gradient."""

from collections import Counter
from collections.abc import Iterable

from looped.config import RunConfig
from looped.models.flops import embed_flops, loop_flops, read_flops
from looped.training.schedules import backprop_loops, free_loops_at, loops_at, size_at, stages, supervised_loops

ESTIMATED_FROM = 1000  # steps
# One thread of a laptop's core beside another one: 600 examples/s of edit distance 6 at r = 8 (dev/LOG.md).
CPU_FLOPS_PER_SECOND = 2.4e10


def training_flops(config: RunConfig, num_steps: int | None = None) -> int:
    """Return the FLOPs of forward and backward passes over `num_steps` steps (default: all steps)."""
    num_steps = config.train.num_steps if num_steps is None else num_steps
    return _flops(config, ((steps.start, len(steps)) for steps in stages(config, num_steps)))


def estimated_flops(config: RunConfig) -> float:
    """Return the same quickly: a long random schedule is estimated from 1,000 of its steps."""
    train, curriculum = config.train, config.train.curriculum
    is_random = "random" in (curriculum.loop_schedule, curriculum.size_schedule) or bool(train.free_loops)
    if not is_random or train.num_steps <= ESTIMATED_FROM:
        return training_flops(config)
    # Spread over the run, because the other schedule may grow.
    spread = ((place * train.num_steps // ESTIMATED_FROM, 1) for place in range(ESTIMATED_FROM))
    return _flops(config, spread) * train.num_steps / ESTIMATED_FROM


def _flops(config: RunConfig, steps: Iterable[tuple[int, int]]) -> int:
    """Return the FLOPs of `(step, count)` pairs, where `count` steps cost the same as `step`."""
    kinds: Counter[tuple[int, int, int]] = Counter()
    for step, count in steps:
        kinds[loops_at(step, config), size_at(step, config), free_loops_at(step, config)] += count
    per_step = config.train.batch_size
    return sum(count * per_step * example_flops(config, *kind) for kind, count in kinds.items())


def example_flops(config: RunConfig, num_loops: int, size: int, free_loops: int = 0) -> int:
    """Return the FLOPs of one example's forward and backward pass.

    A matmul needs two more in the backward pass, one for each factor's gradient. The embedding of vectors needs one,
    because its input has no gradient. A loop without a gradient needs none.
    """
    train, spec = config.train, config.task.spec
    seq_len = config.task.seq_len_at(size)
    loops = (free_loops + num_loops + 2 * backprop_loops(train, num_loops)) * loop_flops(config.model, spec, seq_len)
    reads = 3 * supervised_loops(train, num_loops) * read_flops(config.model, spec, seq_len)
    return 2 * embed_flops(config.model, spec, seq_len) + loops + reads
