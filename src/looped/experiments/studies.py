"""Questions beyond the paper, in the same form as its tables.

Each study asks one question with few models, most of them about edit distance 40 (or its small version).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from looped.config import RunConfig
from looped.experiments.scales import (
    BLOCKS,
    PROBLEMS,
    SCALE_SPECS,
    base_config,
    dense_config,
    estimated_seconds,
    eval_plan,
    fit_budget,
    fit_budget_jointly,
    layers_of,
    loops_of,
    scale_steps,
    tune_config,
)
from looped.experiments.spec import FULL_SIZE, MANY_LOOPS, Cell, Experiment, Scale
from looped.models import build_model
from looped.recipes import depth_of
from looped.training.flops import estimated_flops

PROBLEM = "ED40"
CONDITIONINGS = ("none", "static", "additive", "table", "eta", "scale", "gate", "shift", "timestep")
FAITHFUL = "as in the paper"


def conditioning(scale: Scale) -> Experiment:
    """Compare the nine conditionings at equal FLOPs."""
    return _study(
        "conditioning",
        "What should depend on the loop? Equal FLOPs",
        "Nine ways to tell a looped block which loop it is in, from nothing to the paper's timestep encoding. All have "
        "the same width and so the same FLOPs per example; their parameter counts differ.",
        scale,
        _conditioning_cells(scale, {}),
        against="none",
    )


def conditioning_parameters(scale: Scale) -> Experiment:
    """Compare the nine conditionings at equal parameters."""
    return _study(
        "conditioning-parameters",
        "What should depend on the loop? Equal parameters",
        "The nine conditionings again. The feed-forward layer of each is widened until all have the same number of "
        "parameters, up to one hidden unit. The wider ones need more FLOPs per example.",
        scale,
        _conditioning_cells(scale, _equal_ff_dims(scale)),
        against="none",
    )


def conditioning_dense(scale: Scale) -> Experiment:
    """Compare the nine conditionings at equal FLOPs with dense answers, also beyond the trained loops."""
    return _study(
        "conditioning-dense",
        "What should depend on the loop? Dense answers, equal FLOPs",
        "The nine conditionings with the recipe dense: training has the answers for all prefixes as targets. Models "
        "are also run for 1.25, 1.5 and 2 times their trained loops, unless their conditioning has weights of its own "
        "for every loop.",
        scale,
        _dense_conditioning_cells(scale, {}),
        against="none",
    )


def conditioning_dense_parameters(scale: Scale) -> Experiment:
    """Compare the nine conditionings at equal parameters with dense answers."""
    return _study(
        "conditioning-dense-parameters",
        "What should depend on the loop? Dense answers, equal parameters",
        "The same with wider feed-forward layers, so that all have the same number of parameters, up to one hidden "
        "unit.",
        scale,
        _dense_conditioning_cells(scale, _equal_ff_dims(scale)),
        against="none",
    )


def _equal_ff_dims(scale: Scale) -> dict[str, int]:
    """Return the width of the feed-forward layer that gives each conditioning the parameters of the largest."""
    configs = {name: _conditioned(name, scale) for name in CONDITIONINGS}
    counts = {name: build_model(run.model, run.task.spec).num_parameters() for name, run in configs.items()}
    model = configs["none"].model
    # One more hidden unit adds a row, a column and a bias.
    unit = 2 * model.dim + 1
    more = {name: round((max(counts.values()) - count) / unit) for name, count in counts.items()}
    return {name: model.resolved_ff_dim + extra for name, extra in more.items()}


def _conditioning_cells(
    scale: Scale, ff_dims: dict[str, int], make_config: Callable[..., RunConfig] = base_config
) -> tuple[Cell, ...]:
    configs = {name: _conditioned(name, scale, make_config) for name in CONDITIONINGS}
    for name, config in configs.items():
        # The default width is not set explicitly, so that the run stays the same as in other tables.
        if ff_dims.get(name, config.model.resolved_ff_dim) != config.model.resolved_ff_dim:
            configs[name] = replace(config, model=replace(config.model, ff_dim=ff_dims[name]))
    column = f"r={SCALE_SPECS[scale].study_loops}"
    return tuple(Cell(name, column, config) for name, config in fit_budget_jointly(configs, scale).items())


def _dense_conditioning_cells(scale: Scale, ff_dims: dict[str, int]) -> tuple[Cell, ...]:
    """Return the cells at the trained loops and, where the conditioning can run for more, beyond them."""
    trained = _conditioning_cells(scale, ff_dims, dense_config)
    num_loops = SCALE_SPECS[scale].study_loops
    beyond = (math.ceil(1.25 * num_loops), math.ceil(1.5 * num_loops), 2 * num_loops)
    return tuple(
        replace(cell, recipe="dense", column=column, at_loops=at_loops)
        for cell in trained
        for column, at_loops in ((cell.column, None), *((f"{loops} loops", loops) for loops in beyond))
        if at_loops is None or cell.config.model.supports_loops(at_loops)
    )


def _conditioned(name: str, scale: Scale, make_config: Callable[..., RunConfig] = base_config) -> RunConfig:
    """Return the config of a conditioning; `none` and `timestep` are the same runs as in Table 1."""
    block = "looped" if name == "none" else "modulated"
    conditioning = {} if name in ("none", "timestep") else {"conditioning": name}
    return _base(block, scale, make_config, **conditioning)


def _base(block: str, scale: Scale, make_config: Callable[..., RunConfig] = base_config, **model: Any) -> RunConfig:
    return make_config(PROBLEM, scale, block, **{"num_loops": SCALE_SPECS[scale].study_loops, **model})


def _bases(scale: Scale) -> dict[str, RunConfig]:
    return {block: _base(block, scale) for block in BLOCKS}


def _study(
    name: str, title: str, about: str, scale: Scale, cells: tuple[Cell, ...], against: str | None = None, **plan: Any
) -> Experiment:
    recipe = SCALE_SPECS[scale].recipe
    named = tuple(replace(cell, recipe=cell.recipe or recipe) for cell in cells)
    return Experiment(name, title, about, scale, named, eval_plan(scale, **plan), against, is_study=True)


def length(scale: Scale) -> Experiment:
    """Test models on longer strings than they were trained on."""
    bases, num_loops = _bases(scale), SCALE_SPECS[scale].study_loops
    base = bases["looped"]
    # The model has classes for answers of twice the length, but trains on strings of the usual length.
    fractions = tuple(fraction / 2 for fraction in base.train.curriculum.size_choices or (1.0,))
    twice: dict[str, Any] = {"length": 2 * base.task.size}
    task = replace(base.task, **twice)
    schedules: dict[str, dict[str, Any]] = {
        "n": {"size_schedule": "growing", "size_choices": fractions},
        "n/2 to n": {"size_schedule": "random", "size_choices": (0.25, 0.375, 0.5)},
    }
    rows: dict[str, tuple[str, int | None]] = {
        "n": ("test", None),
        "1.5 n": ("sets/1.5 n", None),
        "1.5 n, 1.5 r": ("sets/1.5 n", math.ceil(1.5 * num_loops)),
        "2 n": ("sets/2 n", None),
        "2 n, 2 r": ("sets/2 n", 2 * num_loops),
    }
    columns: dict[str, RunConfig] = {}
    for lengths, schedule in schedules.items():
        for block, config in bases.items():
            config = replace(config, task=task, train=config.train.override(**schedule))
            columns[f"{block}, trained on {lengths}"] = config
    columns = fit_budget_jointly(columns, scale)
    return _study(
        "length",
        "Longer strings than in training",
        "Models trained on strings of one length n, or of lengths from n/2 to n, are tested on longer strings: with "
        "the r loops of training, and with proportionally more.",
        scale,
        tuple(
            Cell(row, column, config, shows=shows, at_loops=loops)
            for row, (shows, loops) in rows.items()
            for column, config in columns.items()
        ),
        against="n",
        sizes=(1.5, 2.0),
    )


def depth(scale: Scale) -> Experiment:
    """Compare many layers with many loops at equal depth."""
    total = SCALE_SPECS[scale].study_depth
    configs = {
        (f"{layers} x {total // layers}", block): _base(block, scale, num_layers=layers, num_loops=total // layers)
        for layers in (1, 2, 4)
        for block in BLOCKS
    }
    return _study(
        "depth",
        "Layers times loops at equal depth",
        "Stacks of 1, 2 and 4 layers, looped until all have applied the same number of layers (charts show layers x "
        "loops). The FLOPs per example are equal; more layers have more parameters.",
        scale,
        _cells(fit_budget_jointly(configs, scale)),
    )


def _cells(configs: dict[tuple[str, str], RunConfig]) -> tuple[Cell, ...]:
    return tuple(Cell(row, column, config) for (row, column), config in configs.items())


def countdown(scale: Scale) -> Experiment:
    """Compare standard and looped models on Countdown with more layers and with more examples."""
    problem = "Countdown"
    layers, total = layers_of(problem, scale), loops_of(problem, scale)[-1]
    models: dict[str, dict[str, Any]] = {
        f"standard L={layers}": {"block": "standard", "num_layers": layers},
        f"standard L={total}": {"block": "standard", "num_layers": total},
        f"looped 4 x {total // 4}": {"num_layers": 4, "num_loops": total // 4},
        f"looped 2 x {total // 2}": {"num_layers": 2, "num_loops": total // 2},
        f"looped 1 x {total}": {"num_loops": total},
        f"modulated 1 x {total}": {"block": "modulated", "num_loops": total},
    }
    cells = []
    for row, model in models.items():
        config = fit_budget(base_config(problem, scale, **model), scale)
        # Four times as long is more than ten minutes of a GPU.
        for factor in (1, 2) if scale in FULL_SIZE else (1, 2, 4):
            cells.append(Cell(row, f"{factor}x", scale_steps(config, factor)))
    return _study(
        "countdown",
        "Countdown: more layers or more examples?",
        "Standard and looped models of Table 1's row Countdown, and models between them, given as layers x loops. All "
        "but the first apply as many layers. Each is trained on the examples of Table 1, on twice as many and, on "
        "small problems, on four times as many.",
        scale,
        tuple(cells),
        against=f"looped 1 x {total}",
    )


def loops(scale: Scale) -> Experiment:
    """Test models with more loops than they were trained with."""
    num_loops = SCALE_SPECS[scale].study_loops
    growing = tuple(max(1, num_loops * part // 8) for part in (1, 2, 4, 8))
    random = tuple(max(1, num_loops * part // 4) for part in (1, 2, 3, 4))
    schedules: dict[str, dict[str, Any]] = {
        "fixed": {},
        "growing": {"loop_schedule": "growing", "loop_choices": growing},
        "random": {"loop_schedule": "random", "loop_choices": random},
    }
    once, twice = f"{num_loops} loops", f"{2 * num_loops} loops"
    columns: dict[str, tuple[str, str, int | None]] = {
        f"looped, {once}": ("looped", "test", None),
        f"looped, {twice}": ("looped", "test", 2 * num_loops),
        f"modulated, {once}": ("modulated", "test", None),
        f"modulated, {twice}, extend": ("modulated", "test", 2 * num_loops),
        f"modulated, {twice}, clamp": ("modulated", "sets/clamp", 2 * num_loops),
        f"modulated, {twice}, rescale": ("modulated", "sets/rescale", 2 * num_loops),
    }
    configs = {
        (row, block): replace(config, train=config.train.override(**schedule))
        for row, schedule in schedules.items()
        for block, config in _bases(scale).items()
    }
    configs = fit_budget_jointly(configs, scale)
    return _study(
        "loops",
        "More loops than in training",
        "Models trained with a fixed, a growing or a random number of loops are run for up to twice as many. The "
        "modulated model needs a time index for the extra loops: the next one (extend), the last trained one (clamp), "
        "or all indices scaled to the trained range (rescale).",
        scale,
        tuple(
            Cell(row, column, configs[row, block], shows=shows, at_loops=at_loops)
            for row in schedules
            for column, (block, shows, at_loops) in columns.items()
        ),
        extrapolation=("clamp", "rescale"),
    )


def loops_dense(scale: Scale) -> Experiment:
    """Test how models can be trained with dense answers to keep their answer for many more loops."""
    num_loops = SCALE_SPECS[scale].study_loops
    random = tuple(max(1, num_loops * part // 4) for part in (1, 2, 3, 4))
    free, multiples = (0, 0, 0, num_loops, 3 * num_loops, 9 * num_loops), (1, 2, 5, 10, 20)
    schedules: dict[str, dict[str, Any]] = {
        "fixed": {},
        "random": {"loop_schedule": "random", "loop_choices": random},
        "free loops": {"free_loops": free},
    }
    rows: dict[str, tuple[RunConfig, str]] = {}
    for name, schedule in schedules.items():
        for block in BLOCKS:
            config = _base(block, scale, dense_config)
            config = replace(config, train=config.train.override(**schedule))
            rows[f"{block}, {name}"] = config, f"sets/{MANY_LOOPS}"
            if block == "looped":
                continue
            if name == "free loops":  # the only training that goes beyond the trained times
                config = replace(config, model=replace(config.model, extrapolation="clamp"))
            rows[f"{block}, {name}, clamp"] = config, f"sets/{MANY_LOOPS}, clamp"
    configs = fit_budget_jointly({row: config for row, (config, _) in rows.items()}, scale)
    return _study(
        "loops-dense",
        "Ten times the trained loops, dense answers",
        "Models are trained with a fixed number of loops, a random one, or with free loops: in half of the batches, up "
        "to nine times as many loops without a gradient come before the trained ones. The test has up to twenty times "
        "the trained loops. Extra loops of a modulated model have the next time or, with clamp, the last trained one.",
        scale,
        tuple(
            Cell(row, f"{loops} loops", configs[row], shows=shows, recipe="dense", at_loops=loops)
            for row, (_, shows) in rows.items()
            for loops in (multiple * num_loops for multiple in multiples)
        ),
        many_loops=multiples,
        extrapolation=("clamp",),
    )


# At the rates of `tune` itself, batches with free loops destroyed the model (dev/LOG.md).
_GENTLE: dict[str, Any] = {
    "muon_learning_rate": 2e-4,
    "learning_rate": 2e-5,
    "num_steps": 200,
    "size_schedule": "fixed",
    "size_choices": (),
    "curriculum_steps": None,
}


def keep_answer(scale: Scale) -> Experiment:
    """Train shipped models further so that they keep their answer for ten times their loops."""
    multiples = (1, 2, 5, 10)
    cells = []
    for problem in ("LCS60", "Sudoku"):
        shipped_loops = depth_of("tune", PROBLEMS[problem].task)[1]
        num_loops = shipped_loops if scale in FULL_SIZE else SCALE_SPECS[scale].study_loops
        for block in BLOCKS:
            config = tune_config(problem, scale, block, num_loops=num_loops)
            further: dict[str, Any] = {"free_loops": (0, num_loops, 3 * num_loops, 9 * num_loops)}
            if scale in FULL_SIZE:
                further |= _GENTLE
            config = fit_budget(replace(config, train=config.train.override(**further)), scale)
            cells += [
                Cell(
                    f"{problem}, {block}", f"{multiple}x", config, shows=f"sets/{MANY_LOOPS}", recipe="tune",
                    at_loops=multiple * num_loops,
                )
                for multiple in multiples
            ]  # fmt: skip
    size = 1000 if scale in FULL_SIZE else SCALE_SPECS[scale].test_size
    return _study(
        "keep-answer",
        "Ten times the loops, from trained weights",
        "A shipped model is trained for 200 more steps at very low learning rates. In three quarters of the batches, "
        "up to nine times as many loops without a gradient come before the trained ones. The test has up to ten times "
        "the trained loops. Small problems have no shipped model; there, training starts from random weights.",
        scale,
        tuple(cells),
        size=size,
        many_loops=multiples,
    )


def fidelity(scale: Scale) -> Experiment:
    """Measure what each difference between the paper and its public code costs."""
    bases = _bases(scale)
    looped, modulated = bases.values()
    unit_borders: dict[str, Any] = {"borders": "unit"}
    variants = {(FAITHFUL, block): config for block, config in bases.items()}
    for block, config in bases.items():
        variants["labels with cheap borders", block] = replace(config, task=replace(config.task, **unit_borders))
    variants["values and feed-forward input not normalised", "looped"] = replace(
        looped, model=replace(looped.model, norm="query-key")
    )
    variants["zero initialisation overwritten", "modulated"] = replace(
        modulated, model=replace(modulated.model, modulation_init="random")
    )
    return _study(
        "fidelity",
        "Where the public code differs from the paper",
        "In the public code, leading insertions and deletions cost 1 instead of 2 in the labels; the looped baseline "
        "does not normalise attention values and feed-forward input; and a later initialisation overwrites the zero "
        "start of the modulation. Each difference is tested alone.",
        scale,
        _cells(fit_budget_jointly(variants, scale)),
        against=FAITHFUL,
    )


def recipes(scale: Scale) -> Experiment:
    """Compare the paper's recipe with ours at equal FLOPs."""
    num_loops = loops_of(PROBLEM, scale)[1]
    base = fit_budget(_base("modulated", scale, num_loops=num_loops), scale)
    own = SCALE_SPECS[scale].recipe
    other = "fast" if own == "paper" else "paper"
    by_other = base_config(PROBLEM, scale, "modulated", recipe_name=other, num_loops=SCALE_SPECS[scale].study_loops)
    positions = by_other.model.positions
    by_other = replace(base, model=replace(base.model, positions=positions), train=by_other.train)
    if scale != "smoke":
        by_other = scale_steps(by_other, estimated_flops(base) / estimated_flops(by_other))
    column = f"modulated r={num_loops}"
    return _study(
        "recipes",
        "The paper's recipe against ours",
        "A modulated model trained by our recipe and by the paper's with equal FLOPs in total. The paper's is AdamW "
        "at 1e-4 with batches of 64 from a million examples, learned positions, and full-length strings from the "
        "start.",
        scale,
        (Cell(own, column, base, recipe=own), Cell(other, column, by_other, recipe=other)),
        against=own,
    )


def equal_time(scale: Scale) -> Experiment:
    """Compare few loops and many steps with many loops and few steps."""
    most = SCALE_SPECS[scale].study_loops
    configs = {
        (f"r={num_loops}", block): _trained_as_long_as_most(block, num_loops, scale)
        for block in BLOCKS
        for num_loops in loops_of(PROBLEM, scale)
        if num_loops <= most
    }
    return _study(
        "equal-time",
        "Few loops and many steps, or many loops and few steps",
        "Models with few loops are trained for as long as those with many: their steps are cheaper, so they take "
        "more of them and see more examples.",
        scale,
        _cells(configs),
        against=f"r={most}",
    )


def _trained_as_long_as_most(block: str, num_loops: int, scale: Scale) -> RunConfig:
    """Return a model with few loops whose training takes as long as that of the study's largest loop count."""
    most = fit_budget(_base(block, scale), scale)
    config = replace(most, model=replace(most.model, num_loops=num_loops))
    if scale == "smoke":
        return config
    return scale_steps(config, estimated_seconds(most, scale) / estimated_seconds(config, scale))


def rates(scale: Scale) -> Experiment:
    """Compare learning rates for long training runs with few loops."""
    num_loops = max(count for count in loops_of(PROBLEM, scale) if count < SCALE_SPECS[scale].study_loops)
    cells = []
    for block in BLOCKS:
        config = _trained_as_long_as_most(block, num_loops, scale)
        seconds = estimated_seconds(config, scale)
        # A longer phase of short strings would favour rates that are too high for long strings (dev/LOG.md).
        train = config.train.override(curriculum_steps=_base(block, scale).train.curriculum.curriculum_steps)
        longer = estimated_seconds(replace(config, train=train), scale) / seconds
        train = train.override(num_steps=int(train.num_steps / longer))
        for row, factor in (("full rate", 1.0), ("half rate", 0.5), ("quarter rate", 0.25)):
            lower = train.override(
                learning_rate=factor * train.optimizer.learning_rate,
                muon_learning_rate=factor * train.optimizer.muon_learning_rate,
            )
            cells.append(Cell(row, f"{block} r={num_loops}", replace(config, train=lower)))
    return _study(
        "rates",
        "Learning rates for long training",
        "Models with few loops, trained for as long as those with many, at the learning rate of the recipe, at half of "
        "it and at a quarter of it. The phase of short strings is as long as in the recipe.",
        scale,
        tuple(cells),
        against="full rate",
    )


def words(scale: Scale) -> Experiment:
    """Train models that answer for words of any length."""
    length, num_loops, alphabet = {"smoke": (4, 4, 3), "laptop": (6, 8, 3)}.get(scale, (20, 20, 26))
    # People compare words of any length and with any letters, which are much alike or not at all.
    of_all: dict[str, Any] = {
        "length": length, "min_length": 1, "min_letters": 1, "max_letters": alphabet, "lengths": "any",
        "edits": "uniform",
    }  # fmt: skip
    of_lcs: dict[str, Any] = {"pairs": "edited"}
    cells = []
    for row, problem, of_task in (("edit distance", "ED40", {}), ("LCS", "LCS60", of_lcs)):
        for block in BLOCKS:
            config = dense_config(problem, scale, block, num_loops=num_loops)
            config = replace(config, task=replace(config.task, **of_all, **of_task))
            # Each pair of lengths appears in few batches, so training takes half as many steps again.
            cells.append(Cell(row, f"{block} r={num_loops}", scale_steps(config, 1.5), recipe="dense"))
    return _study(
        "words",
        "Words of any length",
        "Pairs of words of any length up to a limit, for models that answer what people type. Training has the answers "
        "for all prefixes as targets.",
        scale,
        tuple(cells),
    )


def text_loops(scale: Scale) -> Experiment:
    """Compare small language models of equal size on equal tokens, with fixed and with random loops in training."""
    num_loops = SCALE_SPECS[scale].text_loops
    random = tuple(max(1, num_loops * part // 4) for part in (1, 2, 3, 4))
    schedules: dict[str, dict[str, Any]] = {"fixed": {}, "random": {"loop_schedule": "random", "loop_choices": random}}
    vocabulary: dict[str, Any] = {"vocabulary": "wiki2k"}
    full = scale in FULL_SIZE
    if full:
        vocabulary["seq_len"] = 256
    cells = []
    for block in ("standard", *BLOCKS):
        loops: dict[str, Any] = {"num_loops": num_loops} if block in BLOCKS else {}
        config = base_config("text", scale, block, **loops)
        config = replace(config, task=replace(config.task, **vocabulary))
        if full:
            train = config.train.override(num_steps=2000, batch_size=256, ema_decay=0.999)
            config = replace(config, model=replace(config.model, **_EQUAL_TEXT_MODELS[block]), train=train)
        if block == "standard":
            cells.append(Cell("fixed", block, config))
            continue
        for row, schedule in schedules.items():
            trained = replace(config, train=config.train.override(**schedule))
            for at_loops in (max(1, num_loops // 2), num_loops, 2 * num_loops):
                cells.append(Cell(row, f"{block}, {at_loops} loops", trained, at_loops=at_loops))
    return _study(
        "text-loops",
        "Small language models with fixed and random loops",
        "A standard, a looped and a modulated model with equally many parameters are trained on equal tokens of a "
        "vocabulary of 2,048, with a fixed number of loops or a random one in every batch. Perplexity per token below, "
        "at and beyond the largest trained number of loops.",
        scale,
        tuple(cells),
        **({"size": None} if full else {}),
    )


# 1.84 million parameters each.
_EQUAL_TEXT_MODELS: dict[str, dict[str, Any]] = {
    "standard": {"dim": 160, "num_heads": 5, "num_layers": 5, "ff_dim": 624},
    "looped": {"dim": 256, "num_heads": 4, "ff_dim": 2048},
    "modulated": {"dim": 256, "num_heads": 4, "ff_dim": 1280},
}


STUDIES: dict[str, Callable[[Scale], Experiment]] = {
    "conditioning": conditioning,
    "conditioning-parameters": conditioning_parameters,
    "conditioning-dense": conditioning_dense,
    "conditioning-dense-parameters": conditioning_dense_parameters,
    "length": length,
    "depth": depth,
    "countdown": countdown,
    "loops": loops,
    "loops-dense": loops_dense,
    "keep-answer": keep_answer,
    "fidelity": fidelity,
    "recipes": recipes,
    "equal-time": equal_time,
    "rates": rates,
    "words": words,
    "text-loops": text_loops,
}
