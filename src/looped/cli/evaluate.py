"""`looped eval RUN`."""

from dataclasses import asdict, dataclass, replace

from looped.cli.args import AnyRun, parse, show
from looped.cli.progress import Bar
from looped.utils.errors import require
from looped.utils.types import Device, Precision, Split


@dataclass(frozen=True)
class EvalCommand:
    """Evaluate a trained run on held-out examples, or on examples that it was trained on."""

    run: AnyRun
    loops: tuple[int, ...] = ()
    """loop counts to evaluate at (none given: the trained number)"""
    split: Split = "test"
    """which examples (train: those that the run has seen)"""
    size: int | None = None
    """number of examples, at most a million (None: 1000; for text, all)"""
    sets: bool = False
    """evaluate on the task's further test sets, such as Sudoku by difficulty"""
    images: int = 1
    """Sudoku: also count a puzzle as solved if an answer to one of this many symmetric images obeys the rules"""
    precision: Precision | None = None
    """precision of the matmuls (None: as trained); use float32 for hundreds of loops"""
    device: Device = "auto"
    """device to compute on"""
    json: bool = False
    """print one JSON object"""


def evaluate(arguments: list[str]) -> None:
    """Evaluate a run and print a table."""
    command = parse(EvalCommand, arguments, "looped eval")
    require(not command.sets or command.split != "train", "expected --sets or --split train, got both")
    require(command.images == 1 or command.split == "test", "--images: expected the split test, got another one")

    from looped.inference import load
    from looped.inference.images import evaluate_images
    from looped.models.engines import choose_device
    from looped.training import evaluation
    from looped.training.schedules import trained_size

    run = load(command.run, choose_device(command.device))
    if command.precision is not None:
        run = run.with_precision(command.precision)
    sets = run.task.test_sets() if command.sets else {}
    require(bool(sets) or not command.sets, f"{run.task.name} has no further test sets")
    reports, images = {}, {}
    for name, task in (sets or {"": run.task}).items():
        config, options = replace(run.config, task=task), (command.size, command.loops or None)
        with Bar() as progress:
            if command.images != 1:
                images[name] = evaluate_images(run.model, task, command.images, *options, progress=progress)
            if command.split == "train":
                reports[name] = evaluation.evaluate_trained(run.model, config, run.step, *options, progress=progress)
            else:
                reports[name] = evaluation.evaluate(
                    run.model, task, command.split, *options, example_size=trained_size(config), progress=progress
                )
    num_steps = run.config.train.num_steps
    # The run is unfinished, or its last checkpoint is damaged.
    warning = f"measured at step {run.step} of {num_steps}\n" if run.step < num_steps else ""
    text = "\n\n".join(
        "\n".join([report.table(name), *map(str, images.get(name, ()))]) for name, report in reports.items()
    )
    about = {name: {**report.to_json(), "step": run.step} for name, report in reports.items()}
    for name, scores in images.items():
        about[name]["images"] = [asdict(score) for score in scores]
    show({"sets": about} if sets else about[""], warning + text, as_json=command.json)
