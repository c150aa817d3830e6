"""Define the four scales: the base config of every problem of the paper at each of them.

smoke   tests of the code
laptop  two CPU cores, minutes
gpu     the paper's problems, at most ten minutes per run on one H100 or H200
paper   the paper's problems, sizes and hyperparameters
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from looped.config import RunConfig
from looped.experiments.spec import EvalPlan, Scale
from looped.recipes import depth_of, recipe, recipes_for
from looped.tasks.language.stories import NAME as STORIES
from looped.training.flops import CPU_FLOPS_PER_SECOND, estimated_flops

Key = TypeVar("Key")


@dataclass(frozen=True)
class ProblemSpec:
    """One problem of the paper at its own size and at small sizes."""

    task: str
    paper: dict[str, Any]
    """options of the task at `gpu` and `paper` scale, as in the paper"""
    laptop: dict[str, Any]
    """options of the task at `laptop` scale, beside those of the recipe"""
    smoke: dict[str, Any]
    """options of the task at `smoke` scale, beside those of the laptop recipe"""
    loops: tuple[int, ...]
    """loop counts that the paper trains with"""
    sizes: tuple[int, ...] = ()
    """sizes of the curriculum, if those of the `fast` recipe would start with strings that are too long"""


BLOCKS = ("looped", "modulated")
"""the models that loop; the paper calls them Looped and "with timestep encoding" """

_STRING_LOOPS, _PUZZLE_LOOPS = (5, 10, 50, 100), (4, 8, 16, 32)
PROBLEMS: dict[str, ProblemSpec] = {
    "Sudoku": ProblemSpec("sudoku", {"pool": 400_000}, {}, {}, _PUZZLE_LOOPS),
    "Countdown": ProblemSpec("countdown", {}, {}, {}, _PUZZLE_LOOPS),
    "LCS60": ProblemSpec("lcs", {"length": 60}, {"length": 8}, {"length": 4}, _STRING_LOOPS),
    "LCS100": ProblemSpec(
        "lcs", {"length": 100}, {"length": 12}, {"length": 5}, _STRING_LOOPS, (15, 25, 40, 60, 80, 100)
    ),
    "ED40": ProblemSpec("edit-distance", {"length": 40}, {"length": 6}, {"length": 4}, _STRING_LOOPS),
    "ED60": ProblemSpec(
        "edit-distance", {"length": 60}, {"length": 8}, {"length": 5}, _STRING_LOOPS, (10, 18, 28, 38, 48, 60)
    ),
    "trees": ProblemSpec("decision-tree", {}, {}, {"points": 5, "dims": 2, "depth": 1}, (12,)),
    "text": ProblemSpec("language", {}, {}, {"seq_len": 8}, (24,)),
}


@dataclass(frozen=True)
class ScaleSpec:
    """Settings of a scale for all experiments; None stands for the value of the problem or the recipe."""

    recipe: str
    test_size: int
    layers: int | None = None
    loops: tuple[int, ...] | None = None
    """loop counts of Table 1"""
    single_loops: int | None = None
    """loop count of the tables that train with only one"""
    study_loops: int = 50
    """loop count of the studies"""
    study_depth: int = 24
    text_loops: int = 12
    """loop count of the study of small language models"""


SCALE_SPECS: dict[Scale, ScaleSpec] = {
    "smoke": ScaleSpec("laptop", 4, 2, (1, 2, 3, 4), 2, 4, 4, 4),
    "laptop": ScaleSpec("laptop", 2000, None, (1, 2, 4, 8), 4, 8, 8, 8),
    "gpu": ScaleSpec("fast", 10_000),
    "paper": ScaleSpec("paper", 10_000),
}
TEXTS: dict[Scale, str] = {"smoke": STORIES, "laptop": STORIES, "gpu": "enwiki2015", "paper": "wikitext"}

_SMOKE_TRAIN: dict[str, Any] = {
    "num_steps": 2, "batch_size": 2, "eval_size": 2, "warmup_steps": 1, "curriculum_steps": None, "device": "cpu",
    "num_threads": 1,
}  # fmt: skip

# Speed of one H200 with the `fast` recipe, measured once (dev/LOG.md). A step has a fixed cost, a cost per loop and
# layer, and the cost of its FLOPs (`training_flops`) at a rate that depends on the width of the model. Training gets
# eight of the ten minutes of a `gpu` run; compiling and testing get the rest. These numbers determine the number of
# steps, so changing them changes the runs.
GPU_SECONDS_PER_STEP, GPU_SECONDS_PER_LOOP = 1.3e-3, 3.5e-5
GPU_FLOPS_PER_SECOND = {512: 4.2e14, 0: 2.35e14}
GPU_TRAINING_SECONDS = 480
# Batch sizes to try if the recipe's batch does not fit into eight minutes. Smaller batches (down to the paper's 64)
# teach more than fewer steps.
SMALLER_BATCHES = (112, 96, 80, 64)


def base_config(
    problem: str, scale: Scale, block: str = "looped", recipe_name: str | None = None, **model: Any
) -> RunConfig:
    """Return the config of a problem and a block at a scale.

    The recipe is that of the scale, unless another is named. `model` overrides fields of the model config.
    """
    spec = PROBLEMS[problem]
    config = recipe(recipe_name or SCALE_SPECS[scale].recipe, spec.task, block)
    if scale == "smoke":
        config = replace(
            config,
            task=replace(config.task, **spec.smoke),
            model=replace(config.model, dim=8, num_heads=2),
            train=config.train.override(**_SMOKE_TRAIN),
        )
    elif scale == "laptop":
        config = replace(config, task=replace(config.task, **spec.laptop))
    else:
        config = replace(config, task=replace(config.task, **spec.paper))
        # Trained weights can start with longer strings.
        if spec.sizes and config.train.curriculum.size_schedule == "growing" and config.train.init_from is None:
            shares = tuple(size / spec.sizes[-1] for size in spec.sizes)
            config = replace(config, train=config.train.override(size_choices=shares))
    if spec.task == "language":
        text: dict[str, Any] = {"text": TEXTS[scale]}
        config = replace(config, task=replace(config.task, **text))
    return replace(config, model=replace(config.model, **model))


def dense_config(problem: str, scale: Scale, block: str, **model: Any) -> RunConfig:
    """Return the config of a string problem whose training has the answers for all prefixes as targets."""
    small = SCALE_SPECS[scale].recipe == "laptop"
    return base_config(problem, scale, block, "laptop-dense" if small else "dense", **model)


def long_config(problem: str, scale: Scale, block: str, **model: Any) -> RunConfig:
    """Return `dense_config` with four times the steps, except at the small scales."""
    if SCALE_SPECS[scale].recipe == "laptop":
        return dense_config(problem, scale, block, **model)
    return base_config(problem, scale, block, "long", **model)


def warm_config(problem: str, scale: Scale, block: str, **model: Any) -> RunConfig:
    """Return `dense_config` from the weights of a shipped model, if there is one for the block and the scale."""
    if block == "standard" or SCALE_SPECS[scale].recipe == "laptop":
        return dense_config(problem, scale, block, **model)
    return base_config(problem, scale, block, "warm", **model)


def tune_config(problem: str, scale: Scale, block: str, **model: Any) -> RunConfig:
    """Return a short training from the weights of a shipped model, if there is one for the block and the scale."""
    if block == "standard" or SCALE_SPECS[scale].recipe == "laptop":
        has_prefixes = "dense" in recipes_for(PROBLEMS[problem].task)
        return (dense_config if has_prefixes else base_config)(problem, scale, block, **model)
    return base_config(problem, scale, block, "tune", **model)


def fit_budget(config: RunConfig, scale: Scale) -> RunConfig:
    """Make a run fit into eight minutes at `gpu` scale, by smaller batches or, if these do not suffice, fewer steps."""
    if scale != "gpu" or estimated_seconds(config, scale) <= GPU_TRAINING_SECONDS:
        return config
    for batch_size in SMALLER_BATCHES:
        if batch_size < config.train.batch_size:
            config = replace(config, train=config.train.override(batch_size=batch_size))
            if estimated_seconds(config, scale) <= GPU_TRAINING_SECONDS:
                return config
    return scale_steps(config, GPU_TRAINING_SECONDS / estimated_seconds(config, scale))


def scale_steps(config: RunConfig, factor: float) -> RunConfig:
    """Multiply the number of training steps and of curriculum steps by `factor`."""
    train = config.train
    curriculum = train.curriculum.curriculum_steps
    curriculum = None if curriculum is None else max(1, int(factor * curriculum))
    steps = max(1, int(factor * train.num_steps))
    return replace(config, train=train.override(num_steps=steps, curriculum_steps=curriculum))


def fit_budget_jointly(configs: dict[Key, RunConfig], scale: Scale) -> dict[Key, RunConfig]:
    """Fit runs that are compared with each other: all get the steps and the batch size of the slowest."""
    fitted = [fit_budget(config, scale).train for config in configs.values()]
    slowest = min(fitted, key=lambda train: (train.num_steps, train.batch_size))
    alike = {
        "num_steps": slowest.num_steps,
        "curriculum_steps": slowest.curriculum.curriculum_steps,
        "batch_size": slowest.batch_size,
    }
    return {key: replace(config, train=config.train.override(**alike)) for key, config in configs.items()}


def eval_plan(scale: Scale, **options: Any) -> EvalPlan:
    """Return the evaluations of a scale; `options` override fields of `EvalPlan`."""
    settings: dict[str, Any] = {"size": SCALE_SPECS[scale].test_size, **options}
    return EvalPlan(**settings)


def layers_of(problem: str, scale: Scale) -> int:
    """Return the number of layers of the standard model."""
    spec = SCALE_SPECS[scale]
    return spec.layers or depth_of(spec.recipe, PROBLEMS[problem].task)[0]


def loops_of(problem: str, scale: Scale) -> tuple[int, ...]:
    """Return the loop counts that a problem is trained with."""
    loops, spec = PROBLEMS[problem].loops, SCALE_SPECS[scale]
    if len(loops) == 1:
        return (spec.single_loops,) if spec.single_loops else loops
    return spec.loops or loops


def estimated_seconds(config: RunConfig, scale: Scale) -> float:
    """Estimate the seconds of training on one CPU core or one H200, from the FLOPs and the speeds above."""
    flops = estimated_flops(config)
    if scale in ("smoke", "laptop"):
        return flops / CPU_FLOPS_PER_SECOND
    model = config.model
    speed = next(speed for width, speed in GPU_FLOPS_PER_SECOND.items() if model.dim >= width)
    per_step = GPU_SECONDS_PER_STEP + model.num_loops * model.num_layers * GPU_SECONDS_PER_LOOP
    return config.train.num_steps * per_step + flops / speed
