"""What goes beyond the paper, in the same form as its tables: each a question about edit distance 40 (or its small
version), asked with few models."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from looped.config import RunConfig
from looped.experiments.scales import (
    BLOCKS,
    SIZES,
    dense,
    estimated_seconds,
    fitting,
    fitting_alike,
    loops_of,
    measures,
    start,
    with_share,
)
from looped.experiments.spec import SCALE_TEXT, Cell, Experiment, Scale

PROBLEM = "ED40"
CONDITIONINGS = ("none", "static", "additive", "table", "eta", "scale", "gate", "shift", "timestep")


def conditioning(scale: Scale) -> Experiment:
    return Experiment(
        id="conditioning",
        title="What the timestep should set, at equal FLOPs",
        about=(
            "Nine ways of telling a looped block which loop it is in, from nothing to the paper's timestep encoding, "
            "at the same width and so with the same work per example; their parameters differ, and the first may have "
            f"rates of its own in a recipe. {_on(scale)}"
        ),
        scale=scale,
        cells=_conditioning_cells(scale, {}),
        measures=measures(scale),
        against="none",
    )


def conditioning_parameters(scale: Scale) -> Experiment:
    from looped.models import build_model

    configs = {name: _conditioned(name, scale) for name in CONDITIONINGS}
    counts = {name: build_model(run.model, run.task.spec).num_parameters() for name, run in configs.items()}
    model = configs["none"].model
    # One more hidden unit has a row, a column and a bias.
    unit = 2 * model.dim + 1
    more = {name: round((max(counts.values()) - count) / unit) for name, count in counts.items()}
    return Experiment(
        id="conditioning-parameters",
        title="What the timestep should set, at equal parameters",
        about=(
            "The nine conditionings again, the feed-forward layer of each widened until all have as many parameters as "
            f"the largest, up to one hidden unit; the wider ones do more work per example. {_on(scale)}"
        ),
        scale=scale,
        cells=_conditioning_cells(scale, {name: model.resolved_ff_dim + extra for name, extra in more.items()}),
        measures=measures(scale),
        against="none",
    )


def _conditioning_cells(scale: Scale, ff_dims: dict[str, int]) -> tuple[Cell, ...]:
    configs = {name: _conditioned(name, scale) for name in CONDITIONINGS}
    for name, config in configs.items():
        # A width that changes nothing is left unsaid, so that the run is the one of other tables.
        if ff_dims.get(name, config.model.resolved_ff_dim) != config.model.resolved_ff_dim:
            configs[name] = replace(config, model=replace(config.model, ff_dim=ff_dims[name]))
    column = f"r={SIZES[scale].study_loops}"
    return tuple(Cell(name, column, config) for name, config in fitting_alike(configs, scale).items())


def _conditioned(name: str, scale: Scale) -> RunConfig:
    """The looped and the timestep model are written as in Table 1, so that they are the same runs."""
    block = "looped" if name == "none" else "modulated"
    conditioning = {} if name in ("none", "timestep") else {"conditioning": name}
    return _start(block, scale, **conditioning)


def _start(block: str, scale: Scale, **more: Any) -> RunConfig:
    return start(PROBLEM, scale, block, **{"num_loops": SIZES[scale].study_loops, **more})


def _starts(scale: Scale) -> dict[str, RunConfig]:
    return {name: _start(block, scale) for name, block in BLOCKS.items()}


def length(scale: Scale) -> Experiment:
    starts, num_loops = _starts(scale), SIZES[scale].study_loops
    base = starts["looped"]
    # The model gets classes for answers of twice the length; it is trained on strings of the usual one.
    shares = tuple(share / 2 for share in base.train.curriculum.size_choices or (1.0,))
    twice: dict[str, Any] = {"length": 2 * base.task.size}
    task = replace(base.task, **twice)
    kinds: dict[str, dict[str, Any]] = {
        "n": {"size_schedule": "growing", "size_choices": shares},
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
    for kind, schedule in kinds.items():
        for name, config in starts.items():
            config = replace(config, task=task, train=config.train.override(**schedule))
            columns[f"{name}, trained on {kind}, r={num_loops}"] = config
    columns = fitting_alike(columns, scale)
    return Experiment(
        id="length",
        title="Longer strings than trained on, with more loops",
        about=(
            "Models trained on strings of one length n, or of lengths from n/2 to n, tested on longer ones: with the r "
            "loops they were trained with, and with more in proportion. "
            f"{_on(scale)}"
        ),
        scale=scale,
        cells=tuple(
            Cell(row, column, config, shows=shows, at_loops=loops)
            for row, (shows, loops) in rows.items()
            for column, config in columns.items()
        ),
        measures=measures(scale, sizes=(1.5, 2.0)),
        against="n",
    )


def depth(scale: Scale) -> Experiment:
    total = SIZES[scale].study_depth
    configs = {
        (f"{layers} x {total // layers}", name): _start(block, scale, num_layers=layers, num_loops=total // layers)
        for layers in (1, 2, 4)
        for name, block in BLOCKS.items()
    }
    cells = [Cell(row, column, config) for (row, column), config in fitting_alike(configs, scale).items()]
    return Experiment(
        id="depth",
        title="Layers times loops at equal depth",
        about=(
            f"A stack of 1, 2 or 4 layers, looped until {total} layers were applied: equal work per example, more "
            f"parameters with more layers. {_on(scale)}"
        ),
        scale=scale,
        cells=tuple(cells),
        measures=measures(scale),
    )


def loops(scale: Scale) -> Experiment:
    num_loops = SIZES[scale].study_loops
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
        f"timestep, {once}": ("timestep", "test", None),
        f"timestep, {twice}, extend": ("timestep", "test", 2 * num_loops),
        f"timestep, {twice}, clamp": ("timestep", "sets/clamp", 2 * num_loops),
        f"timestep, {twice}, rescale": ("timestep", "sets/rescale", 2 * num_loops),
    }
    configs = {
        (row, name): replace(config, train=config.train.override(**schedule))
        for row, schedule in schedules.items()
        for name, config in _starts(scale).items()
    }
    configs = fitting_alike(configs, scale)
    cells = [
        Cell(row, column, configs[row, name], shows=shows, at_loops=at_loops)
        for row in schedules
        for column, (name, shows, at_loops) in columns.items()
    ]
    return Experiment(
        id="loops",
        title="Fewer and more loops than trained with",
        about=(
            f"Models trained with {num_loops} loops always, with more and more of them, or with a random number, read "
            "after every loop up to twice as many. Beyond the trained number, loop t has the time t (extend), the last "
            f"trained one (clamp), or all times are scaled by trained over run loops (rescale). {_on(scale)}"
        ),
        scale=scale,
        cells=tuple(cells),
        measures=measures(scale, extrapolation=("clamp", "rescale")),
    )


def fidelity(scale: Scale) -> Experiment:
    starts, num_loops = _starts(scale), SIZES[scale].study_loops
    looped, timestep = starts.values()
    unit_borders: dict[str, Any] = {"borders": "unit"}
    variants = {("as here", name): config for name, config in starts.items()}
    for name, config in starts.items():
        variants["labels with cheap borders", name] = replace(config, task=replace(config.task, **unit_borders))
    variants["values and FF input not normalised", "looped"] = replace(
        looped, model=replace(looped.model, norm="query-key")
    )
    variants["zero start overwritten", "timestep"] = replace(
        timestep, model=replace(timestep.model, modulation_init="random")
    )
    return Experiment(
        id="fidelity",
        title="Where the public code differs from the paper",
        about=(
            "Labels whose leading insertions and deletions cost 1 instead of 2; a looped baseline whose attention "
            "values and feed-forward input are not normalised; a timestep model whose zero start is overwritten by a "
            f"later initialisation. Each beside the model as the paper prints it, at r = {num_loops}. {_on(scale)}"
        ),
        scale=scale,
        cells=tuple(Cell(row, column, config) for (row, column), config in fitting_alike(variants, scale).items()),
        measures=measures(scale),
        against="as here",
    )


def recipes(scale: Scale) -> Experiment:
    from looped.training.flops import estimated_flops

    num_loops = loops_of(PROBLEM, scale)[1]
    base = fitting(_start("modulated", scale, num_loops=num_loops), scale)
    own = SIZES[scale].recipe
    other = "fast" if own == "paper" else "paper"
    by_other = _start("modulated", scale, recipe_name=other)
    positions = by_other.model.positions
    by_other = replace(base, model=replace(base.model, positions=positions), train=by_other.train)
    if scale != "smoke":
        by_other = with_share(by_other, estimated_flops(base) / estimated_flops(by_other))
    return Experiment(
        id="recipes",
        title="The paper's recipe and another at equal work",
        about=(
            f"One model trained by the recipe `{own}` and by `{other}` with as many floating-point operations in all. "
            "The paper's is AdamW at 1e-4, batches of 64 from a million examples and learned positions, at full length "
            f"from the start. {_on(scale)}"
        ),
        scale=scale,
        cells=tuple(Cell(row, f"timestep r={num_loops}", config) for row, config in ((own, base), (other, by_other))),
        measures=measures(scale),
        against=own,
    )


def equal_time(scale: Scale) -> Experiment:
    most = SIZES[scale].study_loops
    configs = {
        (f"r={num_loops}", name): _for_as_long_as_most(block, num_loops, scale)
        for name, block in BLOCKS.items()
        for num_loops in loops_of(PROBLEM, scale)
        if num_loops <= most
    }
    return Experiment(
        id="equal-time",
        title="Many loops or many steps, in the same time",
        about=(
            f"Models of few loops, trained for as long as those of r = {most}: by a measured speed, their steps are "
            "cheaper by nearly as much as they loop less, and as many more are taken, with as many more examples. "
            f"{_on(scale)}"
        ),
        scale=scale,
        cells=tuple(Cell(row, column, config) for (row, column), config in configs.items()),
        measures=measures(scale),
        against=f"r={most}",
    )


def _for_as_long_as_most(block: str, num_loops: int, scale: Scale) -> RunConfig:
    """A model of few loops, trained for as long as one of the most."""
    most = fitting(_start(block, scale), scale)
    config = replace(most, model=replace(most.model, num_loops=num_loops))
    if scale == "smoke":
        return config
    return with_share(config, estimated_seconds(most, scale) / estimated_seconds(config, scale))


def rates(scale: Scale) -> Experiment:
    num_loops = max(count for count in loops_of(PROBLEM, scale) if count < SIZES[scale].study_loops)
    cells = []
    for name, block in BLOCKS.items():
        config = _for_as_long_as_most(block, num_loops, scale)
        seconds = estimated_seconds(config, scale)
        # A longer start on short strings would help a rate that is too high, by leaving it less to do (dev/LOG.md).
        train = config.train.override(curriculum_steps=_start(block, scale).train.curriculum.curriculum_steps)
        longer = estimated_seconds(replace(config, train=train), scale) / seconds
        train = train.override(num_steps=int(train.num_steps / longer))
        for row, share in (("all", 1.0), ("half", 0.5), ("quarter", 0.25)):
            lower = train.override(
                learning_rate=share * train.optimizer.learning_rate,
                muon_learning_rate=share * train.optimizer.muon_learning_rate,
            )
            cells.append(Cell(row, f"{name} r={num_loops}", replace(config, train=lower)))
    return Experiment(
        id="rates",
        title="How high a rate a long training bears",
        about=(
            "Models of few loops, trained for as long as those of many, at the rates of the recipe, at half and at a "
            f"quarter of them; on short strings only for as many steps as the recipe has. {_on(scale)}"
        ),
        scale=scale,
        cells=tuple(cells),
        measures=measures(scale),
        against="all",
    )


def words(scale: Scale) -> Experiment:
    length, num_loops, alphabet = {"smoke": (4, 4, 3), "laptop": (6, 8, 3)}.get(scale, (20, 20, 26))
    # Words that people compare have any lengths and any letters, and are much alike or not at all.
    of_all: dict[str, Any] = {
        "length": length, "min_length": 1, "min_letters": 1, "max_letters": alphabet, "lengths": "any",
        "edits": "uniform",
    }  # fmt: skip
    of_lcs: dict[str, Any] = {"pairs": "edited"}
    cells = []
    for row, problem, of_task in (("edit distance", "ED40", {}), ("LCS", "LCS60", of_lcs)):
        for name, block in BLOCKS.items():
            config = dense(problem, scale, block, num_loops=num_loops)
            config = replace(config, task=replace(config.task, **of_all, **of_task))
            # A length of a pair comes in few of the batches, so that it takes half as many again.
            cells.append(Cell(row, f"{name} r={num_loops}", with_share(config, 1.5)))
    return Experiment(
        id="words",
        title="Words of any length",
        about=(
            f"Words of 1 to {length} letters, drawn from one to all {alphabet} letters: for models that answer what "
            f"people type. By the recipe `dense`, with answers for all prefixes in training. Scale {scale}."
        ),
        scale=scale,
        cells=tuple(cells),
        measures=measures(scale),
    )


def _on(scale: Scale) -> str:
    base = start(PROBLEM, scale)
    return f"Edit distance, n = {base.task.size}. Scale {scale}: {SCALE_TEXT[scale]}."


STUDIES: dict[str, Callable[[Scale], Experiment]] = {
    "conditioning": conditioning,
    "conditioning-parameters": conditioning_parameters,
    "length": length,
    "depth": depth,
    "loops": loops,
    "fidelity": fidelity,
    "recipes": recipes,
    "equal-time": equal_time,
    "rates": rates,
    "words": words,
}
