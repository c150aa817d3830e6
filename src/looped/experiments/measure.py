"""Turn a trained run into its record: evaluate the test set and everything else that an experiment asks for."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from looped.config import ModelConfig, RunConfig
from looped.experiments.records import RECORD_NAME, Record, read_record, run_key, save_record, shrunk, training_curve
from looped.experiments.spec import MANY_LOOPS, EvalPlan, Experiment, Extrapolation
from looped.tasks.language import corpus
from looped.training.evaluation import Evaluation
from looped.training.logger import read_log
from looped.training.run_folder import RunFolder, TrainResult
from looped.training.schedules import trained_size
from looped.utils.errors import require, require_field
from looped.utils.types import Device
from looped.utils.version import commit

# An evaluation reads the answers at multiples of 1/12 of the trained loops, up to twice their number.
READS_PER_TRAINED_LOOPS = 12
CONTINUITY = "continuity"
CONTINUITY_EXAMPLES = 16


def loops_to_read(model: ModelConfig) -> list[int]:
    """Return the loop counts of a test: within the trained range and, if the model has time indices, beyond it."""
    if model.block == "standard":
        return [1]
    last = (2 if model.supports_loops(2 * model.num_loops) else 1) * READS_PER_TRAINED_LOOPS
    return sorted({-(-part * model.num_loops // READS_PER_TRAINED_LOOPS) for part in range(1, last + 1)})


def wanted_names(config: RunConfig, plan: EvalPlan) -> list[str]:
    """Return the names that a record must have in `sets` and `extra` to satisfy the plan."""
    names = [size_name(multiple) for multiple in plan.sizes]
    names += _extrapolations(config, plan)
    if many_loops(config.model, plan):
        names += [MANY_LOOPS, *(f"{MANY_LOOPS}, {name}" for name in _extrapolations(config, plan))]
    return [*names, *plan.texts, *([CONTINUITY] if plan.continuity else [])]


def many_loops(model: ModelConfig, plan: EvalPlan) -> list[int]:
    """Return the loop counts of `EvalPlan.many_loops` that a model can run; if any, the trained number is one."""
    if model.block == "standard" or not plan.many_loops:
        return []
    counts = {multiple * model.num_loops for multiple in (1, *plan.many_loops)}
    return [loops for loops in sorted(counts) if model.supports_loops(loops)]


def _extrapolations(config: RunConfig, plan: EvalPlan) -> tuple[Extrapolation, ...]:
    return plan.extrapolation if config.model.block == "modulated" else ()


def require_measured(experiment: Experiment) -> None:
    """Raise InputError if a cell shows a number that the plan does not measure. Call this before training."""
    for cell in experiment.cells:
        model, plan, (place, _) = cell.config.model, experiment.eval_plan, cell.place_and_metric
        if place not in ("test", "train"):
            further = [*wanted_names(cell.config, plan), *cell.config.task.test_sets()]
            places = ["test", "train", *(f"extra.{name}" if name == CONTINUITY else f"sets/{name}" for name in further)]
            require_field(place in places, "shows", f"one of {', '.join(places)}", f"{cell.shows!r} in {cell.name}")
        if cell.at_loops is not None:
            times = [each for each in _extrapolations(cell.config, plan) if place.endswith(each)]
            model = replace(model, extrapolation=times[0]) if times else model
            many = place.startswith(f"sets/{MANY_LOOPS}")
            loops = many_loops(model, plan) if many else [model.num_loops] if place == "train" else loops_to_read(model)
            one_of = f"one of {', '.join(map(str, loops))}"
            require_field(cell.at_loops in loops, "at_loops", one_of, f"{cell.at_loops} in {cell.name}")


def require_texts(plan: EvalPlan) -> None:
    """Raise InputError if a text of the plan is missing. Call this before training, not after it."""
    for text in plan.texts:
        corpus.find(text, "test")


def size_name(multiple: float) -> str:
    """Return the name of a test set whose examples have a multiple of the trained size, such as `1.5 n`."""
    return f"{multiple:g} n"


def lacking(record: Record | None, config: RunConfig, plan: EvalPlan) -> bool:
    """Return True if the run is not finished, or if its record lacks an evaluation of the plan."""
    if record is None or not record.finished:
        return True
    wanted = (name for name in wanted_names(config, plan) if _without("sets", name) not in record.note)
    return any(name not in record.sets and name not in record.extra for name in wanted)


def own_record(folder: Path, config: RunConfig) -> Record | None:
    """Return the record in the folder of a run, or None if there is none or if it belongs to another run."""
    path = folder / RECORD_NAME
    record = read_record(path) if path.exists() else None
    return record if record is not None and run_key(record.config) == run_key(config) else None


def measure_run(config: RunConfig, folder: Path, plan: EvalPlan, before: Record | None = None) -> Record:
    """Evaluate a trained run and return its record. Results of an earlier record are kept, not measured again."""
    run = RunFolder(folder)
    result = run.read_result()
    require(result is not None and result.finished, f"{folder}: expected a finished run, got an unfinished one")
    assert result is not None
    record = before if before is not None and before.finished else record_of(config, run, result)
    for name, measure in _measurements(config, folder, plan).items():
        kind, _, key = name.partition("/")
        if kind != "test" and _without(kind, key) in record.note:
            continue
        if kind in ("test", "train") and getattr(record, kind) is None:
            kept, record = _finite(kind, key, measure(), record)
            record = replace(record, **{kind: kept})
        elif kind == "sets" and key not in record.sets:
            kept, record = _finite(kind, key, measure(), record)
            record = record if kept is None else replace(record, sets={**record.sets, key: kept})
        elif kind == "extra" and key not in record.extra:
            record = replace(record, extra={**record.extra, key: measure()})
    return replace(record, finished=True)


def record_run(folder: Path, plan: EvalPlan, device: Device = "auto") -> Record:
    """Return the record of a finished run. What it lacks is measured on this device and stored in the run's folder."""
    config = RunFolder(folder).read_config()
    config = replace(config, train=config.train.override(device=device))
    record = own_record(folder, config)
    if record is None or lacking(record, config, plan):
        record = measure_run(config, folder, plan, record)
        save_record(folder / RECORD_NAME, record)
    return record


def _finite(kind: str, key: str, evaluation: Evaluation, record: Record) -> tuple[Evaluation | None, Record]:
    """Drop the loop counts at which an evaluation is not finite, and note them in the record.

    A network may overflow far beyond its trained loops. An evaluation that is not finite at the trained loops is
    dropped entirely. Raise Diverged if that happens to the test itself.
    """
    from looped.training.trainer import Diverged

    loops = evaluation.trained_loops
    if not evaluation.trained.is_finite:
        if kind == "test":
            raise Diverged(f"test: expected finite numbers at {loops} loops, got NaN or infinity")
        return None, _noted(record, f"{_without(kind, key)} (not finite at the trained loops)")
    gone = [row.loops for row in evaluation.rows if not row.is_finite]
    if gone:
        record = _noted(record, f"{_place(kind, key)} is not finite at {', '.join(map(str, gone))} loops")
    return replace(shrunk(evaluation), rows=tuple(row for row in evaluation.rows if row.is_finite)), record


def _place(kind: str, key: str) -> str:
    return f"the test set '{key}'" if key else f"the {kind} data" if kind == "train" else "the test"


def _without(kind: str, key: str) -> str:
    """Return the note about an evaluation that was dropped, so that it is not tried again."""
    return f"without {_place(kind, key)}"


def _noted(record: Record, note: str) -> Record:
    return replace(record, note="; ".join(filter(None, (record.note, note))))


def failed_try(config: RunConfig, folder: Path, note: str) -> Record:
    """Return the record of a run that cannot be finished, with the reason as its note."""
    step = last_step(folder)
    cost = {"seconds": 0.0, "parameters": 0, "flops": 0, "hardware": "", "versions": {}}
    samples = step * config.train.batch_size
    result = TrainResult(finished=False, step=step, num_steps=config.train.num_steps, samples=samples, **cost)
    return replace(record_of(config, RunFolder(folder), result), note=note)


def last_step(folder: Path) -> int:
    """Return the last step in the log of a run, or 0 if there is none."""
    return max((step for _, step in read_log(RunFolder(folder).log_path)), default=0)


def record_of(config: RunConfig, run: RunFolder, result: TrainResult) -> Record:
    """Return the record of a run before any evaluation."""
    return Record(
        config=config,
        finished=False,
        date=date.today(),
        steps=result.step,
        samples=result.samples,
        seconds=result.seconds,
        flops=result.flops,
        parameters=result.parameters,
        hardware=result.hardware,
        versions=result.versions,
        curve=training_curve((json.loads(line) for line, _ in read_log(run.log_path)), config.train.batch_size),
        commit=commit(),
    )


def _measurements(config: RunConfig, folder: Path, plan: EvalPlan) -> dict[str, Callable[[], Any]]:
    """Return a function per measurement, by the place of its result in the record."""
    from looped.inference.run import load_run
    from looped.models import LoopModel, build_model
    from looped.models.engines import choose_device
    from looped.training.evaluation import evaluate, evaluate_trained

    model = load_run(folder, choose_device(config.train.runtime.device)).model
    task, size = config.task, plan.size

    def test(on: Any, *, model: LoopModel = model, many: bool = False, example_size: int | None = None) -> Evaluation:
        loops = many_loops(model.config, plan) if many else loops_to_read(model.config)
        return evaluate(model, on, "test", size, loops, example_size=example_size)

    def test_on_training_examples() -> Evaluation:
        return evaluate_trained(model, config, config.train.num_steps, size)

    def with_times(extrapolation: Extrapolation) -> LoopModel:
        other = build_model(replace(config.model, extrapolation=extrapolation), task.spec).to(
            next(model.parameters()).device
        )
        other.load_state_dict(model.state_dict())
        return other.eval()

    usual = trained_size(config)
    measurements: dict[str, Callable[[], Any]] = {
        "test": lambda: test(task, example_size=usual),
        "train": test_on_training_examples,
    }
    for name, further in task.test_sets().items():
        measurements[f"sets/{name}"] = lambda further=further: test(further)
    for multiple in plan.sizes:
        larger = round(multiple * usual)
        measurements[f"sets/{size_name(multiple)}"] = lambda larger=larger: test(task, example_size=larger)
    if many_loops(config.model, plan):
        measurements[f"sets/{MANY_LOOPS}"] = lambda: test(task, many=True, example_size=usual)
    for extrapolation in _extrapolations(config, plan):
        measurements[f"sets/{extrapolation}"] = lambda extrapolation=extrapolation: test(
            task, model=with_times(extrapolation), example_size=usual
        )
        if many_loops(config.model, plan):
            measurements[f"sets/{MANY_LOOPS}, {extrapolation}"] = lambda extrapolation=extrapolation: test(
                task, model=with_times(extrapolation), many=True, example_size=usual
            )
    for text in plan.texts:
        measurements[f"sets/{text}"] = lambda text=text: test(replace(task, **{"text": text}))
    if plan.continuity:
        measurements[f"extra/{CONTINUITY}"] = lambda: _continuity(model, config)
    return measurements


def _continuity(model: Any, config: RunConfig) -> dict[str, Any]:
    """Measure how far the output moves with the input, around held-out examples."""
    from looped.analysis.continuity import measure_continuity
    from looped.training.evaluation import EVALUATION_SEED

    inputs = config.task.sample(EVALUATION_SEED, "test", range(CONTINUITY_EXAMPLES)).inputs
    found = measure_continuity(model, inputs, moduli=())
    last = found["coefficient"]
    return {
        "coefficient": last["mean"],
        "coefficient_low": last["low"],
        "coefficient_high": last["high"],
        "relative": last["relative"],
        "epsilon": found["epsilon"],
        "examples": found["num_examples"],
        "per_loop": [row["mean"] for row in found["per_loop"]],
    }
