"""`looped inspect RUN`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looped.cli.args import AnyRun, aligned, json_text, parse, require_svg, require_writable, show
from looped.utils.errors import require
from looped.utils.text import plural
from looped.utils.types import Device

if TYPE_CHECKING:
    from torch import Tensor

SHOWN_ROWS = 16
SHOWN_MAPS = 6
"""loops of an attention picture"""


@dataclass(frozen=True)
class InspectCommand:
    """Look inside a trained run after every loop: answers, state, continuity and modulation."""

    run: AnyRun
    size: int = 16
    """number of test examples"""
    loops: int | None = None
    """loops to run (None: the trained number)"""
    svg: Path | None = None
    """write charts to this SVG file"""
    attention: Path | None = None
    """write the attention maps of the first example, per loop, layer and head: pictures (.svg) or numbers (.json)"""
    device: Device = "auto"
    """device to compute on"""
    json: bool = False
    """print one JSON object"""


def inspect(arguments: list[str]) -> None:
    """Print a table of what happens in a run, loop by loop."""
    command = parse(InspectCommand, arguments, "looped inspect")
    require_svg("--svg", command.svg)
    suffix = None if command.attention is None else command.attention.suffix.lower()
    require(suffix in (None, ".svg", ".json"), f"--attention: expected a file .svg or .json, got {command.attention}")
    require_writable(command.attention)

    from looped.analysis import attention_maps, inspect_model
    from looped.inference.shipping import load
    from looped.models.engines import choose_device
    from looped.training import evaluate
    from looped.training.evaluation import EVALUATION_SEED, num_held_out
    from looped.training.schedules import trained_size
    from looped.utils.files import save_text

    run = load(command.run, choose_device(command.device))
    example_size = trained_size(run.config)
    size = num_held_out(run.task, "test", command.size, example_size)
    batch = run.task.sample(EVALUATION_SEED, "test", range(size), example_size)
    found = inspect_model(run.model, batch.inputs, num_loops=command.loops)
    loops = range(1, found["num_loops"] + 1)
    answers = evaluate(run.model, run.task, "test", size, loops, example_size=example_size)
    metric = run.task.metric
    for row, answer in zip(found["rows"], answers.rows, strict=True):
        row[metric] = answer.metrics[metric]
    about = {"run": run.name, "task": run.task.name, "step": run.step, "metric": metric, **found}
    if command.svg is not None:
        save_text(command.svg, picture(about))
    if command.attention is not None:
        maps = attention_maps(run.model, batch.inputs[:1], num_loops=command.loops)[:, :, :, 0]
        question = run.task.render(batch.inputs[0])
        text = attention_picture(run.name, maps) if suffix == ".svg" else _attention_json(run.name, question, maps)
        save_text(command.attention, text)
    show(about, _table(about), as_json=command.json)


def _table(about: dict[str, Any]) -> str:
    """Return a table of some loops, including the first and the last."""
    rows, metric = about["rows"], about["metric"]
    names = about["modulated"]
    step = -(-len(rows) // SHOWN_ROWS)
    chosen = [row for row in rows if row["loop"] == 1 or row["loop"] % step == 0 or row is rows[-1]]
    heads = ["loop", "state", "change", "continuity", metric, *names]
    lines = [[f"{row['loop']}", *map(_short, _numbers(row, metric, names))] for row in chosen]
    trained = plural(about["trained_loops"], "loop")
    title = f"{about['run']}: {about['task']}, {about['num_examples']} test examples, trained with {trained}"
    table = aligned([heads, *lines], ">" * len(heads))
    shown = {"state", "change", "continuity", *(["modulation"] if names else [])}
    meanings = (f"{name}: {text}" for name, text in about["definitions"].items() if name in shown)
    return "\n".join([title, *table, *meanings])


def _numbers(row: dict[str, Any], metric: str, names: list[str]) -> list[float]:
    return [
        *(row[name] for name in ("state", "change", "continuity", metric)),
        *(row["modulation"][name]["rms"] for name in names),
    ]


def _short(number: float) -> str:
    return f"{number:.3g}" if 1e-3 <= abs(number) < 1e5 or number == 0 else f"{number:.1e}"


def picture(about: dict[str, Any]) -> str:
    """Return the same as charts: answers, state and change, continuity, and modulation if there is any.

    All charts share one legend, so each colour is used once. A chart with a single line needs no entry.
    """
    from looped.experiments.metrics import metric_named
    from looped.viz.plots import INK, PALETTE, Lines, Series, draw

    rows, metric = about["rows"], metric_named(about["metric"])
    loops = [row["loop"] for row in rows]
    trained = (about["trained_loops"],) if about["trained_loops"] < len(rows) else ()

    def line(label: str, place: int, values: list[float]) -> Series:
        return Series(label, PALETTE[place], loops, values, style="line")

    def alone(name: str) -> Series:
        return Series("", INK, loops, [row[name] for row in rows], style="line")

    def chart(title: str, y_label: str, *series: Series, **options: Any) -> Lines:
        return Lines(title, "loop", y_label, series, marks=trained, **options)

    sizes = [line(name, place, [row[name] for row in rows]) for place, name in enumerate(("state", "change"))]
    charts = [
        chart("Answers", metric.label, alone(about["metric"]), y_range=metric.axis_range),
        chart("Size of the state, and its change as a share", "root mean square", *sizes, y_scale="log"),
        chart("What a small change of the input becomes", "continuity coefficient", alone("continuity"), y_scale="log"),
    ]  # fmt: skip
    told = "answers, state and continuity"
    if about["modulated"]:
        tables = {name: [row["modulation"][name]["rms"] for row in rows] for name in about["modulated"]}
        lines = [line(name, place, values) for place, (name, values) in enumerate(tables.items(), start=len(sizes))]
        charts.append(chart("Modulation", "root mean square", *lines))
        told = "answers, state, continuity and modulation"
    alt = f"{about['run']} from inside: {told} after each of {len(rows)} loops"
    return draw(charts, "inside", alt, columns=2 if len(charts) == 4 else 3) + "\n"


def _attention_json(run: str, question: str, maps: "Tensor") -> str:
    """Return the numbers of (loop, layer, head, query, key) maps, rounded to 4 digits."""
    axes = ["loop", "layer", "head", "query", "key"]
    numbers = maps.double().mul(1e4).round().div(1e4).tolist()
    return json_text({"run": run, "input": question, "axes": axes, "maps": numbers}) + "\n"


def attention_picture(run: str, maps: "Tensor") -> str:
    """Return (loop, layer, head, query, key) maps as pictures: a row per head, and a column per loop, of some loops."""
    from looped.viz.plots import Matrix, draw

    num_loops, num_layers, num_heads = maps.shape[:3]
    columns = min(num_loops, SHOWN_MAPS)
    loops = [round(1 + place * (num_loops - 1) / max(1, columns - 1)) for place in range(columns)]
    charts = [
        Matrix(f"loop {loop}, layer {layer + 1}, head {head + 1}", "key", "query", maps[loop - 1, layer, head].tolist())
        for layer in range(num_layers)
        for head in range(num_heads)
        for loop in loops
    ]
    alt = f"attention of {run}: weights of the keys for each query, {num_heads} heads in {columns} of {num_loops} loops"
    return draw(charts, "attention", alt, columns=columns, size=(2.4, 2.4)) + "\n"
