"""`looped eval RUN`."""

from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Any

from looped.cli.args import AnyRun, aligned, json_text, parse, show
from looped.cli.progress import Bar
from looped.utils.errors import require
from looped.utils.types import Device, Precision, Split

if TYPE_CHECKING:
    from looped.inference import Run
    from looped.inference.early_exit import ExitRule
    from looped.tasks import Task

_TASK_FLAG = "--task."
_OWN_EXAMPLES = ("--task.file", "--task.text")
_AS_GIVEN = {"file_role": "test", "text_role": "test", "augment": False}  # test every row of a file, as it stands


@dataclass(frozen=True)
class EvalCommand:
    """Evaluate a trained run on held-out examples, or on examples that it was trained on.

    Flags such as --task.file FILE change the run's task for this test, for example to examples of your own.
    """

    run: AnyRun
    loops: tuple[int, ...] = ()
    """loop counts to evaluate at (none given: the trained number)"""
    split: Split = "test"
    """which examples (train: those that the run has seen)"""
    size: int | None = None
    """number of examples, at most a million (None: 1000; for text, all)"""
    exit: tuple[str, ...] = ()
    """stop each example by a rule, such as stable:3, entropy:0.1, change:0.01, budget:12 or gate:0.9; several rules
    are compared. --loops is then the most loops of an example"""
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
    own, task_flags = _split_flags(arguments)
    command = parse(EvalCommand, own, "looped eval")
    require(not command.sets or command.split != "train", "expected --sets or --split train, got both")
    require(command.images == 1 or command.split == "test", "--images: expected the split test, got another one")
    require(bool(command.exit) or "--exit" not in own, "--exit: expected at least one rule, such as stable:3, got none")
    if command.exit:
        plain = not command.sets and command.images == 1 and command.split != "train" and len(command.loops) <= 1
        expected = "one number of loops on held-out examples"
        require(plain, f"--exit: expected {expected}, got several, or --sets, --images or --split train")

    from looped.inference import load
    from looped.inference.early_exit import ExitRule
    from looped.inference.images import evaluate_images
    from looped.models.engines import choose_device
    from looped.training import evaluation
    from looped.training.schedules import trained_size

    rules = [ExitRule.parse(text) for text in command.exit]
    run = load(command.run, choose_device(command.device))
    if run.name.startswith(f"{command.run}/") and not command.json:  # a task's name, which stands for a model
        print(f"model: {run.name}")
    if task_flags:
        require(command.split == "test" and not command.sets, "expected --task flags or --split or --sets, got both")
        run = replace(run, config=replace(run.config, task=_changed_task(run.task, task_flags)))
    if command.precision is not None:
        run = run.with_precision(command.precision)
    if rules:
        _compare_exits(command, run, rules)
        return
    sets = run.task.test_sets() if command.sets else {}
    require(bool(sets) or not command.sets, f"{run.task.name} has no further test sets")
    num_steps = run.config.train.num_steps
    # The run is unfinished, or its last checkpoint is damaged.
    above = [f"measured at step {run.step} of {num_steps}"] if run.step < num_steps else []
    found: dict[str, dict[str, Any]] = {}
    for name, task in (sets or {"": run.task}).items():
        config, options, images = replace(run.config, task=task), (command.size, command.loops or None), []
        example_size = trained_size(config)
        with Bar(name or "examples") as progress:
            if command.split == "train":
                report = evaluation.evaluate_trained(run.model, config, run.step, *options, progress=progress)
            elif command.images == 1:
                report = evaluation.evaluate(
                    run.model, task, command.split, *options, example_size=example_size, progress=progress
                )
            else:
                report, images = evaluate_images(
                    run.model, task, command.images, *options, example_size=example_size, progress=progress
                )
        if not command.json:  # at once, because the next set may take minutes
            print("\n".join([*above, report.table(name), *map(str, images)]), flush=True)
            above = [""]
        about = {**report.to_json(), "step": run.step}
        found[name] = {**about, "images": [asdict(score) for score in images]} if images else about
    if command.json:
        print(json_text({"sets": found} if sets else found[""]))


def _split_flags(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into those of the command and those that change the task."""
    own: list[str] = []
    of_task: list[str] = []
    current = own
    for argument in arguments:
        if argument.startswith("--"):
            current = of_task if argument.startswith(_TASK_FLAG) else own
        current.append(argument)
    return own, of_task


def _changed_task(task: "Task", flags: list[str]) -> "Task":
    """Return the task with some settings changed. Raise InputError if the model could not read its examples."""
    names = {each.name for each in fields(task)} if any(_names_a_file(flag) for flag in flags) else set()
    start = replace(task, **{name: value for name, value in _AS_GIVEN.items() if name in names})
    parsed: Any = parse(make_dataclass("TaskFlags", [("task", type(task), field(default=start))]), flags, "looped eval")
    fits = parsed.task.spec == task.spec
    require(fits, f"{flags[0]}: expected a setting that keeps the shape of inputs and answers, got another shape")
    return parsed.task


def _names_a_file(flag: str) -> bool:
    return flag.partition("=")[0] in _OWN_EXAMPLES


def _compare_exits(command: EvalCommand, run: "Run", rules: "list[ExitRule]") -> None:
    """Print metric, mean loops and time of each exit rule."""
    from looped.inference.exit_evaluation import evaluate_exits
    from looped.training.schedules import trained_size

    most = command.loops[0] if command.loops else None
    with Bar() as progress:
        report = evaluate_exits(
            run.model,
            run.task,
            rules,
            most,
            command.split,
            command.size,
            example_size=trained_size(run.config),
            progress=progress,
        )
    rows = [("exit", report.metric, "95 % interval", "mean loops", "most loops", "seconds")]
    for each in report.rows:
        score = each.score
        rows.append((
            each.rule, f"{score.metrics[report.metric]:.4f}", f"{score.low:.4f} to {score.high:.4f}",
            f"{each.mean_loops:.2f}", str(score.loops), f"{each.seconds:.1f}",
        ))  # fmt: skip
    title = f"{report.task}: {report.size} {report.split} examples"
    show(report.to_json(), "\n".join([title, *aligned(rows, "<><>>>")]), as_json=command.json)
