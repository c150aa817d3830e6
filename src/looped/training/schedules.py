"""Learning rate, loops and example size as pure functions of the step: no state to save or restore."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np

from looped.config import RunConfig, TrainConfig

Choice = TypeVar("Choice", int, float)

_LOOPS, _SIZES, _FREE_LOOPS = 1, 2, 3  # separate random streams of a run


def lr_fraction(step: int, config: TrainConfig) -> float:
    """Return the fraction of the peak learning rates that step number `step` (from 0) uses."""
    schedule = config.schedule
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    # 0 at the end of warm-up, 1 one step after the last step.
    progress = (step - schedule.warmup_steps) / max(1, config.num_steps - schedule.warmup_steps)
    if schedule.kind == "cosine":
        shape = (1 + math.cos(math.pi * progress)) / 2
    elif schedule.kind == "linear":
        shape = 1 - progress
    else:
        shape = min(1.0, (1 - progress) / schedule.decay_fraction) if schedule.decay_fraction > 0 else 1.0
    return schedule.final_fraction + (1 - schedule.final_fraction) * shape


def loops_at(step: int, config: RunConfig) -> int:
    """Return the number of loops of a step."""
    curriculum = config.train.curriculum
    return _choice_at(step, config, curriculum.loop_schedule, curriculum.loop_choices, config.model.num_loops, _LOOPS)


def free_loops_at(step: int, config: RunConfig) -> int:
    """Return the number of loops without a gradient that come before the trained loops of a step."""
    choices = config.train.free_loops
    return _choice_at(step, config, "random", choices, 0, _FREE_LOOPS) if choices else 0


def supervised_loops(config: TrainConfig, num_loops: int) -> int:
    """Return how many of the last loops enter the loss."""
    return 1 if config.supervision == "last" else min(config.supervised_loops or num_loops, num_loops)


def backprop_loops(config: TrainConfig, num_loops: int) -> int:
    """Return how many of the last loops get a gradient."""
    return num_loops if config.backprop_loops is None else min(config.backprop_loops, num_loops)


def size_at(step: int, config: RunConfig) -> int:
    """Return the size of the examples of a step."""
    curriculum = config.train.curriculum
    return _size(_choice_at(step, config, curriculum.size_schedule, curriculum.size_choices, 1.0, _SIZES), config)


def sizes(config: RunConfig) -> list[int]:
    """Return all example sizes that a run is trained on, in increasing order."""
    return sorted({_size(fraction, config) for fraction in config.train.curriculum.size_choices or (1.0,)})


def trained_size(config: RunConfig) -> int:
    """Return the largest example size that a run is trained on. Larger examples of the task are for testing."""
    return sizes(config)[-1]


def _size(fraction: float, config: RunConfig) -> int:
    return max(1, round(fraction * config.task.size))


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
    return choices[min(step * len(choices) // _curriculum_steps(config), len(choices) - 1)]


def _curriculum_steps(config: RunConfig) -> int:
    return config.train.curriculum.curriculum_steps or max(1, config.train.num_steps // 2)


def unreached(config: RunConfig) -> str | None:
    """Return a warning if training ends before the growing schedules reach their last choice, or None."""
    train, curriculum = config.train, config.train.curriculum
    needed = _curriculum_steps(config)
    missed = []
    for what, value_at, schedule in (
        ("size", size_at, curriculum.size_schedule),
        ("loops", loops_at, curriculum.loop_schedule),
    ):
        reached, final = value_at(train.num_steps - 1, config), value_at(needed, config)
        if schedule == "growing" and reached != final:
            missed.append(f"{what} {reached} of {final}")
    if not missed:
        return None
    return (
        f"{train.num_steps} steps end before the growing schedules do, at {' and '.join(missed)}: lower "
        f"--train.curriculum-steps (now {needed}) or raise --train.num-steps"
    )


def stages(config: RunConfig, num_steps: int) -> list[range]:
    """Return steps 0 to `num_steps` as ranges of constant loops and size (single steps if a schedule is random)."""
    curriculum = config.train.curriculum
    if "random" in (curriculum.loop_schedule, curriculum.size_schedule) or config.train.free_loops:
        return [range(step, step + 1) for step in range(num_steps)]
    total, starts = _curriculum_steps(config), {0}
    for choices in (curriculum.loop_choices, curriculum.size_choices):
        starts |= {-(-index * total // len(choices)) for index in range(len(choices))}
    cuts = [*sorted(start for start in starts if start < num_steps), num_steps]
    return [range(first, end) for first, end in pairwise(cuts)]
