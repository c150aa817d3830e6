"""The work of a training, counted exactly: over the loops and sizes of its steps and over what gets a gradient."""

from collections import Counter
from collections.abc import Iterable

from looped.config import RunConfig
from looped.models.flops import embed_flops, loop_flops, read_flops
from looped.training.schedules import backprop_loops, loops_at, size_at, stages, supervised_loops

ESTIMATED_FROM = 1000  # steps


def training_flops(config: RunConfig, num_steps: int | None = None) -> int:
    """Of forward and backward passes over `num_steps` steps (default: all of them)."""
    num_steps = config.train.num_steps if num_steps is None else num_steps
    return _flops(config, ((steps.start, len(steps)) for steps in stages(config, num_steps)))


def estimated_flops(config: RunConfig) -> float:
    """The same at once: a long random schedule is estimated from a few steps."""
    train = config.train
    if "random" not in (train.loop_schedule, train.size_schedule) or train.num_steps <= ESTIMATED_FROM:
        return training_flops(config)
    # Spread over the run, since what is not random may grow.
    spread = ((place * train.num_steps // ESTIMATED_FROM, 1) for place in range(ESTIMATED_FROM))
    return _flops(config, spread) * train.num_steps / ESTIMATED_FROM


def _flops(config: RunConfig, steps: Iterable[tuple[int, int]]) -> int:
    """Of steps, each with how many there are like it."""
    kinds: Counter[tuple[int, int]] = Counter()
    for step, count in steps:
        kinds[loops_at(step, config), size_at(step, config)] += count
    per_step = config.train.batch_size
    return sum(count * per_step * example_flops(config, loops, size) for (loops, size), count in kinds.items())


def example_flops(config: RunConfig, num_loops: int, size: int) -> int:
    """Of one example's forward and backward pass.

    A product needs two further ones on the way back, for the gradients of its two sides; the embedding of vectors only
    one, since its input needs none, and a loop that truncated backpropagation leaves out none.
    """
    train, spec = config.train, config.task.spec
    seq_len = config.task.seq_len_at(size)
    loops = (num_loops + 2 * backprop_loops(train, num_loops)) * loop_flops(config.model, spec, seq_len)
    reads = 3 * supervised_loops(train, num_loops) * read_flops(config.model, spec, seq_len)
    return 2 * embed_flops(config.model, spec, seq_len) + loops + reads
