"""What the four scales are: for each problem of the paper, where a cell's config starts from.

smoke   tests of the machinery
laptop  two CPU cores, minutes
gpu     the paper's problems, at most ten minutes a cell on one H100 or H200
paper   the paper's problems, sizes and hyper-parameters
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from looped.config import RunConfig
from looped.experiments.spec import Measures, Scale
from looped.recipes import depth_of, recipe
from looped.tasks.language.stories import NAME as STORIES

Key = TypeVar("Key")


@dataclass(frozen=True)
class Problem:
    """One problem of the paper, in its own size and in small ones."""

    task: str
    full: dict[str, Any]
    """knobs of the task as in the paper: `gpu` and `paper` scale"""
    small: dict[str, Any]
    """knobs at `laptop` scale, where its recipe does not say"""
    smallest: dict[str, Any]
    """knobs at `smoke` scale, where the laptop's recipe does not say"""
    loops: tuple[int, ...]
    """that the paper trains with"""
    sizes: tuple[int, ...] = ()
    """to grow through, where the shares of the `fast` recipe would begin with strings too long to learn from"""


# What a table calls a model that loops -> its block.
BLOCKS = {"looped": "looped", "timestep": "modulated"}

_STRING_LOOPS, _PUZZLE_LOOPS = (5, 10, 50, 100), (4, 8, 16, 32)
PROBLEMS: dict[str, Problem] = {
    "Sudoku": Problem("sudoku", {"pool": 400_000}, {}, {}, _PUZZLE_LOOPS),
    "Countdown": Problem("countdown", {}, {}, {}, _PUZZLE_LOOPS),
    "LCS60": Problem("lcs", {"length": 60}, {"length": 8}, {"length": 4}, _STRING_LOOPS),
    "LCS100": Problem("lcs", {"length": 100}, {"length": 12}, {"length": 5}, _STRING_LOOPS, (15, 25, 40, 60, 80, 100)),
    "ED40": Problem("edit-distance", {"length": 40}, {"length": 6}, {"length": 4}, _STRING_LOOPS),
    "ED60": Problem(
        "edit-distance", {"length": 60}, {"length": 8}, {"length": 5}, _STRING_LOOPS, (10, 18, 28, 38, 48, 60)
    ),
    "trees": Problem("decision-tree", {}, {}, {"points": 5, "dims": 2, "depth": 1}, (12,)),
    "text": Problem("language", {}, {}, {"seq_len": 8}, (24,)),
}


@dataclass(frozen=True)
class Size:
    """What a scale sets for all experiments; None: as the problem, or the recipe, says."""

    recipe: str
    test_size: int
    layers: int | None = None
    loops: tuple[int, ...] | None = None
    """of Table 1"""
    single_loops: int | None = None
    """of the tables that train with one number of loops"""
    study_loops: int = 50
    """of what goes beyond the paper"""
    study_depth: int = 24


SIZES: dict[Scale, Size] = {
    "smoke": Size("laptop", 4, 2, (1, 2, 3, 4), 2, 4, 4),
    "laptop": Size("laptop", 2000, None, (1, 2, 4, 8), 4, 8, 8),
    "gpu": Size("fast", 10_000),
    "paper": Size("paper", 10_000),
}
TEXTS: dict[Scale, str] = {"smoke": STORIES, "laptop": STORIES, "gpu": "enwiki2015", "paper": "wikitext"}

_SMOKE_TRAIN: dict[str, Any] = {
    "num_steps": 2, "batch_size": 2, "eval_size": 2, "warmup_steps": 1, "curriculum_steps": None, "device": "cpu",
    "num_threads": 1,
}  # fmt: skip

# Measured on one H200 with `fast` (dev/LOG.md): a fixed time per step, more per loop of a layer, and FLOPs per second
# by width (the largest width that fits applies). Eight of a `gpu` cell's ten minutes are for training, the rest for
# compiling and testing. These numbers set the steps of a run, so changing them changes the runs.
GPU_SECONDS_PER_STEP, GPU_SECONDS_PER_LOOP = 1.3e-3, 3.5e-5
GPU_FLOPS_PER_SECOND = {512: 4.2e14, 0: 2.35e14}
GPU_TRAINING_SECONDS = 480
# Examples of a batch, where eight minutes are too short for the recipe's: a smaller batch, down to the paper's, teaches
# more than fewer steps.
SMALLER_BATCHES = (112, 96, 80, 64)
# One thread of a laptop's core beside another one: 600 examples a second of edit distance 6 at r = 8 (dev/LOG.md).
CPU_FLOPS_PER_SECOND = 2.4e10


def dense(problem: str, scale: Scale, block: str, **model: Any) -> RunConfig:
    """Return the config of a string problem with answers for all prefixes: by the recipe `dense`, or small by the
    scale's own recipe."""
    if SIZES[scale].recipe != "laptop":
        return start(problem, scale, block, "dense", **model)
    config = start(problem, scale, block, **model)
    prefixes: dict[str, Any] = {"answers": "prefixes"}
    return replace(config, task=replace(config.task, **prefixes))


def start(problem: str, scale: Scale, block: str = "looped", recipe_name: str | None = None, **model: Any) -> RunConfig:
    """The config of a problem and a block at a scale, by its own recipe or another; `model` are knobs of the model."""
    known = PROBLEMS[problem]
    config = recipe(recipe_name or SIZES[scale].recipe, known.task, block)
    if scale == "smoke":
        config = replace(
            config,
            task=replace(config.task, **known.smallest),
            model=replace(config.model, dim=8, num_heads=2),
            train=config.train.override(**_SMOKE_TRAIN),
        )
    elif scale == "laptop":
        config = replace(config, task=replace(config.task, **known.small))
    else:
        config = replace(config, task=replace(config.task, **known.full))
        if known.sizes and config.train.curriculum.size_schedule == "growing":
            shares = tuple(size / known.sizes[-1] for size in known.sizes)
            config = replace(config, train=config.train.override(size_choices=shares))
    if known.task == "language":
        text: dict[str, Any] = {"text": TEXTS[scale]}
        config = replace(config, task=replace(config.task, **text))
    return replace(config, model=replace(config.model, **model))


def fitting(config: RunConfig, scale: Scale) -> RunConfig:
    """At `gpu` scale, what eight minutes have room for: the recipe's batches, smaller ones, or fewer steps of these."""
    if scale != "gpu" or estimated_seconds(config, scale) <= GPU_TRAINING_SECONDS:
        return config
    for batch_size in SMALLER_BATCHES:
        if batch_size < config.train.batch_size:
            config = replace(config, train=config.train.override(batch_size=batch_size))
            if estimated_seconds(config, scale) <= GPU_TRAINING_SECONDS:
                return config
    return with_share(config, GPU_TRAINING_SECONDS / estimated_seconds(config, scale))


def with_share(config: RunConfig, share: float) -> RunConfig:
    """So much of a training's steps, its curriculum in proportion."""
    train = config.train
    curriculum = train.curriculum.curriculum_steps
    curriculum = None if curriculum is None else max(1, int(share * curriculum))
    steps = max(1, int(share * train.num_steps))
    return replace(config, train=train.override(num_steps=steps, curriculum_steps=curriculum))


def fitting_alike(configs: dict[Key, RunConfig], scale: Scale) -> dict[Key, RunConfig]:
    """The same for runs that are to be compared after as many steps and examples: those of the slowest."""
    fitted = [fitting(config, scale).train for config in configs.values()]
    slowest = min(fitted, key=lambda train: (train.num_steps, train.batch_size))
    alike: dict[str, Any] = {
        "num_steps": slowest.num_steps,
        "batch_size": slowest.batch_size,
        "curriculum_steps": slowest.curriculum.curriculum_steps,
    }
    return {key: replace(config, train=config.train.override(**alike)) for key, config in configs.items()}


def measures(scale: Scale, **more: Any) -> Measures:
    settings: dict[str, Any] = {"size": SIZES[scale].test_size, **more}
    return Measures(**settings)


def layers_of(problem: str, scale: Scale) -> int:
    size = SIZES[scale]
    return size.layers or depth_of(size.recipe, PROBLEMS[problem].task)[0]


def loops_of(problem: str, scale: Scale) -> tuple[int, ...]:
    """The loop counts of a problem's row or table."""
    known, size = PROBLEMS[problem].loops, SIZES[scale]
    if len(known) == 1:
        return (size.single_loops,) if size.single_loops else known
    return size.loops or known


def estimated_seconds(config: RunConfig, scale: Scale) -> float:
    """Of training, from its operations and the speeds above: on one core, or one H200."""
    from looped.training.flops import estimated_flops

    flops = estimated_flops(config)
    if scale in ("smoke", "laptop"):
        return flops / CPU_FLOPS_PER_SECOND
    model = config.model
    speed = next(speed for width, speed in GPU_FLOPS_PER_SECOND.items() if model.dim >= width)
    per_step = GPU_SECONDS_PER_STEP + model.num_loops * model.num_layers * GPU_SECONDS_PER_LOOP
    return config.train.num_steps * per_step + flops / speed
