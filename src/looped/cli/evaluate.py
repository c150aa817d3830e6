"""`looped eval RUN`."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from looped.cli.args import AnyRun, aligned, parse, show
from looped.cli.progress import Bar
from looped.utils.errors import require
from looped.utils.types import Device, Precision, Split

if TYPE_CHECKING:
    from looped.inference import Run
    from looped.inference.early_exit import ExitRule


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
    exit: tuple[str, ...] = ()
    """stop each example by a rule, such as stable:3, entropy:0.1, change:0.01 or budget:12; several rules are compared.
    --loops is then the most loops of an example"""
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
    if command.exit:
        plain = not command.sets and command.images == 1 and command.split != "train" and len(command.loops) <= 1
        require(plain, "--exit: expected held-out examples and one number of loops, got --sets, train or several")

    from looped.inference import load
    from looped.inference.early_exit import ExitRule
    from looped.inference.images import evaluate_images
    from looped.models.engines import choose_device
    from looped.training import evaluation
    from looped.training.schedules import trained_size

    rules = [ExitRule.parse(text) for text in command.exit]
    run = load(command.run, choose_device(command.device))
    if command.precision is not None:
        run = run.with_precision(command.precision)
    if rules:
        _compare_exits(command, run, rules)
        return
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


def _compare_exits(command: EvalCommand, run: "Run", rules: "list[ExitRule]") -> None:
    """Print metric, mean loops and time of each exit rule."""
    from looped.inference.exit_evaluation import evaluate_exits
    from looped.training.schedules import trained_size

    most = command.loops[0] if command.loops else None
    with Bar() as progress:
        report = evaluate_exits(
            run.model, run.task, rules, most, command.split, command.size, example_size=trained_size(run.config),
            progress=progress,
        )  # fmt: skip
    rows = [("exit", report.metric, "95 % interval", "mean loops", "most loops", "seconds")]
    for each in report.rows:
        score = each.score
        rows.append((
            each.rule, f"{score.metrics[report.metric]:.4f}", f"{score.low:.4f} to {score.high:.4f}",
            f"{each.mean_loops:.2f}", str(score.loops), f"{each.seconds:.1f}",
        ))  # fmt: skip
    title = f"{report.task}: {report.size} {report.split} examples"
    show(report.to_json(), "\n".join([title, *aligned(rows, "<><>>>")]), as_json=command.json)
