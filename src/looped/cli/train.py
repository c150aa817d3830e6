"""`looped train TASK`."""

from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from looped.cli import COMPLETE
from looped.cli.args import JSON_HELP, command_class, expand_train_flags, leading_task, parse, peek, show
from looped.utils import plugins
from looped.utils.errors import require_type
from looped.utils.launch import reported_once
from looped.utils.text import duration

if TYPE_CHECKING:
    from looped.config import RunConfig
    from looped.training import Callback

_HELP = "Train a model. The same command resumes a stopped run."
_RECIPE_HELP = (
    "starting values of all other flags: the paper's settings, the fastest to learn, dense (an answer for every "
    "prefix; string tasks only), warm (dense, from a shipped model's weights), tune (a short training of a shipped "
    "model), or a laptop's size"
)
_OUT_HELP = (
    "the run's folder (None: runs/ and a name made from the settings). The same command resumes a stopped run. To "
    "train a finished run for more steps, name it in --train.continue-from, raise --train.num-steps and choose a new "
    "folder"
)
_CALLBACK_HELP = "your own callbacks, as FILE.py:CLASS (see looped.Callback)"


def train(arguments: list[str]) -> None:
    """Train a model, or resume its training. Several processes that torchrun started train it together."""
    with reported_once():
        parsed, config = parse_run(arguments)

    from looped import training
    from looped.serde import encode
    from looped.training.distributed import joined

    interrupted = None
    with joined(config.train.runtime.device) as group:
        try:
            callbacks = [_callback(name) for name in parsed.callback]
            trainer = training.Trainer(config, parsed.out, group=group, callbacks=callbacks)
            result = trainer.fit(f"recipe {parsed.recipe}: {_summary(config)}")
        except training.Interrupted as stop:
            interrupted, result = stop, stop.result
    if not group.is_main:
        raise SystemExit(130 if interrupted else 0)
    text = (
        f"{config.task.metric} {result.validation:.3f} on validation data after {result.samples:,} samples, "
        f"{result.seconds:.0f} s"
        if result.finished
        else f"stopped at step {result.step} of {result.num_steps}; the same command resumes it"
    )
    show(encode(result), f"{result.folder}: {text}", as_json=parsed.json)
    if interrupted is not None:
        raise interrupted  # exit with an error, so that a script does not use an unfinished run


def _callback(name: str) -> "Callback":
    """Return a new callback of the class with this name."""
    from looped.training import Callback

    callback = plugins.call(f"--callback {name}", plugins.find("--callback", name))
    require_type("--callback", callback, Callback)
    return callback


def parse_run(arguments: list[str]) -> tuple[Any, "RunConfig"]:
    """Return the parsed flags and the run they describe."""
    from looped.config import ModelConfig, RunConfig, TrainConfig
    from looped.recipes import recipes_for
    from looped.tasks import task_class

    # The defaults depend on the task's recipe, so help on the flags needs a task.
    name, rest = leading_task(arguments, "looped train TASK --help")
    rest = expand_train_flags(rest)
    chosen = peek(rest, "--recipe") or _fitting_recipe(rest)
    start = _starting_config(chosen, name, rest)
    fields: list[Any] = [
        ("recipe", Annotated[Literal[recipes_for(name)], tyro.conf.arg(help=_RECIPE_HELP)], field(default=chosen)),
        ("task", task_class(name), field(default=start.task)),
        ("model", ModelConfig, field(default=start.model)),
        ("train", TrainConfig, field(default=start.train)),
        ("seed", Annotated[int, tyro.conf.arg(help="seed of the weights and of the data")], field(default=0)),
        ("out", Annotated[Path | None, tyro.conf.arg(help=_OUT_HELP)], field(default=None)),
        ("callback", Annotated[tuple[str, ...], tyro.conf.arg(help=_CALLBACK_HELP)], field(default=())),
        ("json", Annotated[bool, tyro.conf.arg(help=JSON_HELP)], field(default=False)),
    ]
    parsed: Any = parse(command_class(fields, _HELP), rest, f"looped train {name}")
    return parsed, RunConfig(parsed.task, parsed.model, parsed.train, parsed.seed)


def _starting_config(recipe_name: str, task: str, arguments: list[str]) -> "RunConfig":
    """Return the recipe's config, without choices that a fixed schedule or a file of examples leaves unused."""
    from looped.recipes import recipe

    config = recipe(recipe_name, task, peek(arguments, "--model.block") or "looped")
    unused: dict[str, Any] = {}
    for what in ("loop", "size"):
        one_size = what == "size" and task != "sudoku" and peek(arguments, "--task.file") is not None
        if one_size or peek(arguments, f"--train.curriculum.{what}-schedule") == "fixed":
            unused |= {f"{what}_schedule": "fixed", f"{what}_choices": ()}
    return replace(config, train=config.train.override(**unused))


def _fitting_recipe(arguments: list[str]) -> str:
    """Return the recipe that fits the machine."""
    if any(flag in ("-h", "--help", COMPLETE) for flag in arguments):
        return "fast"  # the same help on every machine, and without waiting for torch

    from looped.training.trainer import fitting_recipe

    return fitting_recipe("cpu" if peek(arguments, "--train.runtime.device") == "cpu" else "auto")


def _summary(config: "RunConfig") -> str:
    """Return the main settings of a run and, on a CPU, an estimate of its time."""
    from looped.models.engines import choose_device
    from looped.training.flops import CPU_FLOPS_PER_SECOND, estimated_flops

    train, model = config.train, config.model
    text = f"{config.task.label}, {model.block} model, {train.num_steps:,} steps of {train.batch_size}"
    if choose_device(train.runtime.device).type == "cpu":
        text += f", about {duration(estimated_flops(config) / CPU_FLOPS_PER_SECOND)} on one CPU core"
    return text
