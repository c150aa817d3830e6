"""`looped compare RUN RUN ...`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from looped.cli.args import SeveralRuns, aligned, parse, show
from looped.cli.progress import Bar
from looped.utils.errors import require
from looped.utils.types import Device

if TYPE_CHECKING:
    from looped.config import ModelConfig
    from looped.experiments.comparison import MeasuredRun

SHOWN_POINTS = 8


@dataclass(frozen=True)
class CompareCommand:
    """Compare trained runs: test scores with intervals, differing settings and learning curves."""

    runs: SeveralRuns
    loops: tuple[int, ...] = ()
    """loop counts to evaluate at, besides the trained number (none given: half and twice the trained number)"""
    size: int | None = None
    """number of test examples (None: 1000; for text, all)"""
    device: Device = "auto"
    """device to compute on"""
    json: bool = False
    """print one JSON object"""


def compare(arguments: list[str]) -> None:
    """Print what distinguishes trained runs."""
    command = parse(CompareCommand, arguments, "looped compare")
    require(len(command.runs) > 1, f"runs: expected two or more, got {len(command.runs)}")

    from looped.experiments.comparison import differing_settings, loops_around_trained

    measured = measure_all(command, loops_around_trained)
    settings = differing_settings([each.run.config for each in measured])
    parts = [_scores(measured), _settings(measured, settings), _curves(measured)]
    about = {"runs": [each.to_json() for each in measured], "differences": settings}
    show(about, "\n\n".join("\n".join(lines) for lines in parts if lines), as_json=command.json)


def measure_all(command: Any, usual_loops: "Callable[[ModelConfig], Sequence[int]]") -> "list[MeasuredRun]":
    """Return the measured runs of a command, at its loops or, if it names none, at the usual ones of each model."""
    from looped.experiments.comparison import score_run
    from looped.models.engines import choose_device

    loops = (lambda _: command.loops) if command.loops else usual_loops
    device = choose_device(command.device)
    measured = []
    for name in command.runs:
        with Bar() as progress:
            measured.append(score_run(name, loops, command.size, device, progress))
    return measured


def _scores(measured: "Sequence[MeasuredRun]") -> list[str]:
    """Return a table with a line per run and loop count. A star marks the trained number of loops."""
    from looped.experiments.comparison import share_test_examples
    from looped.experiments.metrics import metric_named

    rows = [["run", "step", "parameters", "loops", "", "metric", "score", "95 % interval"]]
    for each in measured:
        test, steps = each.test, each.run.config.train.num_steps
        step = f"{each.run.step:,}" if each.run.step >= steps else f"{each.run.step:,} of {steps:,}"
        about = (each.run.name, step, f"{each.num_parameters:,}")
        metric = metric_named(test.metric)
        for score in test.rows:
            value = metric.show(score.metrics[test.metric]) if score.is_finite else "overflow"
            interval = metric.show_interval(score.low, score.high) if score.is_finite else ""
            star = "*" if score.loops == test.trained_loops else ""
            rows.append([*about, str(score.loops), star, metric.label, value, interval])
            about = ("", "", "")
    sizes = sorted({each.test.size for each in measured})
    examples = f"{' or '.join(f'{size:,}' for size in sizes)} test examples"
    notes = [f"* the trained number of loops; {examples}"]
    if not share_test_examples(measured):
        notes.append("The runs were tested on different examples, because their tasks or sizes differ.")
    return [*aligned(rows, "<>>><<>>"), *notes]


def _settings(measured: "Sequence[MeasuredRun]", settings: dict[str, list[Any]]) -> list[str]:
    """Return a table of the settings in which the runs differ."""
    if not settings:
        return ["The runs have the same settings."]
    rows = [("setting", *(each.run.name for each in measured))]
    rows += [(path, *("-" if value is None else str(value) for value in values)) for path, values in settings.items()]
    return aligned(rows, "<" * len(rows[0]))


def _curves(measured: "Sequence[MeasuredRun]") -> list[str]:
    """Return a table of the validations, or else of the training losses, that runs with a log had by some samples."""
    from looped.experiments.metrics import metric_named

    logged = [each for each in measured if each.curve]
    if not logged:
        return []
    validated = all(each.curve_of("validation") for each in logged)
    curves = [each.curve_of("validation" if validated else "loss") for each in logged]
    samples = sorted({place for curve in curves for place, _ in curve})
    if not samples:
        return []
    step = -(-len(samples) // SHOWN_POINTS)
    rows = [["samples", *(each.run.name for each in logged)]]
    for place in samples[::-step][::-1]:
        row = [f"{place:,.0f}"]
        for each, curve in zip(logged, curves, strict=True):
            metric = metric_named(each.test.metric if validated else "loss")
            before = [value for at, value in curve if at <= place]
            row.append(metric.show(before[-1]) if before and place <= curve[-1][0] else "-")
        rows.append(row)
    title = "latest validation score by training samples" if validated else "latest training loss by training samples"
    return [title, *aligned(rows, ">" * len(rows[0]))]
