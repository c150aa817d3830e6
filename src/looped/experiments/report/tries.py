"""Runs that no table shows: what else was tried, how it differs from what is in a table, and what it gave."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from looped.config import RunConfig, differences
from looped.experiments.report.document import Entry, Section, Table, Words
from looped.experiments.report.cells import hardware_text, measure_named
from looped.experiments.records import Record, at_trained_loops, seedless_key
from looped.experiments.spec import Experiment

HEAD = ("try", "seed", "result", "samples", "steps", "what differs", "note", "hardware")


def other_tries(records: Iterable[Record], experiments: Sequence[Experiment]) -> list[Record]:
    """Records that belong to no cell: by task, then by block and loops, the longest first."""
    shown = {seedless_key(config) for experiment in experiments for config in experiment.configs()}
    others = [record for record in records if seedless_key(record.config) not in shown]

    def place(record: Record) -> tuple[Any, ...]:
        config = record.config
        return config.task.name, config.model.block, config.model.num_loops, -record.samples, record.path.name

    return sorted(others, key=place)


def tries_section(tries: Sequence[Record], experiments: Sequence[Experiment]) -> Section:
    rows = [tuple(Entry(text) for text in _texts(record, experiments)) for record in tries]
    text = (
        "Trainings with settings that no table has, each beside the cell that it differs least from: what was given up,"
        " and short looks at other ways. They are told here so that it can be seen how the tables' were chosen."
    )
    table = Table("Other tries", HEAD, tuple(rows), text_columns=("what differs", "result", "hardware", "note"))
    return Section("What else was tried", "tries", (Words(text), table))


def _texts(record: Record, experiments: Sequence[Experiment]) -> tuple[str, ...]:
    config = record.config
    label, changes = _nearest(config, experiments)
    differences = "; ".join(f"{name} {ours}, not {others}" for name, (ours, others) in changes.items())
    return (
        label or config.folder_name,
        str(config.seed),
        _result(record),
        f"{record.samples:,}",
        f"{record.steps:,} of {config.train.num_steps:,}",
        differences or "no cell is like it",
        record.note or "-",
        hardware_text(record),
    )


def _nearest(config: RunConfig, experiments: Sequence[Experiment]) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """The cell of the same task and block that differs in the fewest settings, in words, and those settings.

    Those of the task count first and then the model's: another problem is further away than another model, and that
    than another training.
    """
    best: tuple[str, dict[str, tuple[Any, Any]]] = "", {}
    for experiment in experiments:
        for cell in experiment.cells:
            if (cell.config.task.name, cell.config.model.block) != (config.task.name, config.model.block):
                continue
            changes = differences(replace(config, seed=cell.config.seed), cell.config)
            if not best[0] or _distance(changes) < _distance(best[1]):
                best = f"{cell.label} ({experiment.id}, {experiment.scale} scale)", changes
    return best


def _distance(changes: Mapping[str, Any]) -> tuple[int, int, int]:
    of_task, of_model = (sum(name.startswith(part) for name in changes) for part in ("task.", "model."))
    return of_task, of_model, len(changes)


def _result(record: Record) -> str:
    """Its test; where there was none, what its training last knew."""
    measure = measure_named(record.config.task.metric)
    if record.test is not None:
        row = at_trained_loops(record.test)
        shown = measure.show(row[record.config.task.metric])
        return f"{measure.label} {shown} ({measure.show_interval(row['low'], row['high'])})"
    known = [point for point in record.curve if "validation" in point]
    if known:
        last = known[-1]
        return (
            f"{measure.label} {measure.show(last['validation'])} on validation data, after {last['samples']:,} samples"
        )
    losses = [point["loss"] for point in record.curve if "loss" in point]
    return f"loss {losses[-1]:.3g} at the end" if losses else "nothing"
