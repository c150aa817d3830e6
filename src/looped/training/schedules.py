"""Learning rate, loops and example size as pure functions of the step: nothing to save, nothing to restore."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np

from looped.config import RunConfig, TrainConfig

Choice = TypeVar("Choice", int, float)

_LOOPS, _SIZES = 1, 2  # so that the two random schedules of a run do not draw alike


def rate_at(step: int, config: TrainConfig) -> float:
    """The share of the peak rate that step number `step` (from 0) uses."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    # From 0 at the end of warm-up to 1 one step after the last.
    progress = (step - config.warmup_steps) / max(1, config.num_steps - config.warmup_steps)
    if config.schedule == "cosine":
        shape = (1 + math.cos(math.pi * progress)) / 2
    elif config.schedule == "linear":
        shape = 1 - progress
    else:
        shape = min(1.0, (1 - progress) / config.decay_share) if config.decay_share > 0 else 1.0
    return config.final_rate + (1 - config.final_rate) * shape


def loops_at(step: int, config: RunConfig) -> int:
    train = config.train
    return _choice_at(step, config, train.loop_schedule, train.loop_choices, config.model.num_loops, _LOOPS)


def supervised_loops(config: TrainConfig, num_loops: int) -> int:
    """How many of the last loops the loss is taken of."""
    return 1 if config.supervision == "last" else min(config.supervised_loops or num_loops, num_loops)


def backprop_loops(config: TrainConfig, num_loops: int) -> int:
    """How many of the last loops get a gradient."""
    return num_loops if config.backprop_loops is None else min(config.backprop_loops, num_loops)


def size_at(step: int, config: RunConfig) -> int:
    train = config.train
    return _size(_choice_at(step, config, train.size_schedule, train.size_choices, 1.0, _SIZES), config)


def sizes(config: RunConfig) -> list[int]:
    """All sizes of the examples that a run is trained on, from small to large."""
    return sorted({_size(share, config) for share in config.train.size_choices or (1.0,)})


def trained_size(config: RunConfig) -> int:
    """The largest examples that a run is trained on: where a task has room for larger ones, they are for testing."""
    return sizes(config)[-1]


def _size(share: float, config: RunConfig) -> int:
    return max(1, round(share * config.task.size))


def _choice_at(
    step: int,
    config: RunConfig,
    schedule: Literal["fixed", "growing", "random"],
    choices: Sequence[Choice],
    fixed: Choice,
    stream: int,
) -> Choice:
    if schedule == "fixed":
        return fixed
    if schedule == "random":
        return choices[int(np.random.default_rng((config.seed, stream, step)).integers(len(choices)))]
    over = _curriculum_steps(config)
    return choices[min(step * len(choices) // over, len(choices) - 1)]


def _curriculum_steps(config: RunConfig) -> int:
    return config.train.curriculum_steps or max(1, config.train.num_steps // 2)


def unreached(config: RunConfig) -> str | None:
    """What growing schedules do not reach before the run ends, in one line with the flag that would change it."""
    train = config.train
    over = _curriculum_steps(config)
    lacking = []
    for what, at, schedule in (("size", size_at, train.size_schedule), ("loops", loops_at, train.loop_schedule)):
        reached, wanted = at(train.num_steps - 1, config), at(over, config)
        if schedule == "growing" and reached != wanted:
            lacking.append(f"{what} {reached} of {wanted}")
    if not lacking:
        return None
    return (
        f"{train.num_steps} steps end before the growing schedules do, at {' and '.join(lacking)}: set "
        f"--train.curriculum-steps (now {over}) lower or --train.num-steps higher"
    )


def stages(config: RunConfig, num_steps: int) -> list[range]:
    """Steps 0 to `num_steps` cut where loops or size may change: single steps, where one of them is random."""
    train = config.train
    if "random" in (train.loop_schedule, train.size_schedule):
        return [range(step, step + 1) for step in range(num_steps)]
    over, starts = _curriculum_steps(config), {0}
    for choices in (train.loop_choices, train.size_choices):
        starts |= {-(-place * over // len(choices)) for place in range(len(choices))}
    cuts = [*sorted(start for start in starts if start < num_steps), num_steps]
    return [range(first, end) for first, end in pairwise(cuts)]
