"""Records of runs that never were, with numbers that look like those of runs: to write reports about."""

import datetime
import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from looped.config import RunConfig
from looped.experiments.records import Record, run_key
from looped.experiments.spec import MANY_LOOPS, Experiment
from looped.training.evaluation import Evaluation, LoopScore
from looped.utils.stats import wilson
from looped.utils.types import Split


def fake_records(experiments: Iterable[Experiment], num_seeds: int = 1) -> dict[str, Record]:
    records = {}
    for experiment in experiments:
        for cell in experiment.cells:
            for seed in range(num_seeds):
                config = replace(cell.config, seed=seed)
                records.setdefault(run_key(config), fake_record(config, _target(cell.paper, config), experiment))
    return records


def _target(paper: float | None, config: RunConfig) -> float | None:
    return paper if config.task.metric == "accuracy" else None


def fake_record(config: RunConfig, target: float | None = None, experiment: Experiment | None = None) -> Record:
    """The record of a run that reached about `target`, with every part that this kind of run may have."""
    draws = np.random.default_rng(int(hashlib.sha256(run_key(config).encode()).hexdigest()[:8], 16))
    test = evaluation(config, "test", draws, target)
    plan = experiment.eval_plan if experiment else None
    sets = {}
    if plan:
        times = {name: evaluation(config, "test", draws, target) for name in plan.extrapolation}
        sizes = {f"{share:g} n": evaluation(config, "test", draws, 0.4) for share in plan.sizes}
        sets = times | sizes
        if plan.many_loops:
            names = [MANY_LOOPS, *(f"{MANY_LOOPS}, {name}" for name in plan.extrapolation)]
            counts = [multiple * config.model.num_loops for multiple in plan.many_loops]
            sets |= {name: evaluation(config, "test", draws, target, counts) for name in names}
    if config.task.name == "sudoku":
        sets |= {name: evaluation(config, "test", draws, share) for name, share in
                 (("10 clues", 0.9), ("8 clues", 0.7), ("6 clues", 0.3))}  # fmt: skip
    steps = config.train.num_steps
    return Record(
        config=config,
        finished=True,
        date=datetime.date(2026, 11, 15),
        steps=steps,
        samples=steps * config.train.batch_size,
        seconds=float(draws.uniform(30, 300)),
        flops=int(draws.uniform(1e12, 9e13)),
        parameters=int(draws.integers(50_000, 900_000)),
        hardware="CPU, 1 thread, x86_64",
        versions={"torch": "2.13.0", "looped": "0.1.0", "python": "3.11.7"},
        test=test,
        train=evaluation(config, "train", draws, min(1.0, (target or 0.6) + 0.02)),
        sets=sets,
        extra={"continuity": {"coefficient": float(draws.uniform(20, 130)), "samples": 64}}
        if plan and plan.continuity
        else {},
        curve=_curve(config, test, draws),
        commit="0123456789abcdef+",
    )


def evaluation(
    config: RunConfig,
    split: Split,
    draws: np.random.Generator,
    target: float | None,
    counts: list[int] | None = None,
) -> Evaluation:
    loops = config.model.num_loops
    if counts is None:
        multiples = {*range(1, 2 * loops + 1, max(1, loops // 8)), loops}
        counts = [1] if config.model.block == "standard" else sorted(multiples)
    rows = []
    for count in counts:
        nearness = math.exp(-(((count - loops) / max(1, loops / 2)) ** 2))
        rows.append(_score(count, config, nearness, draws, target))
    metric = config.task.metric
    baseline = {"accuracy": 0.173, "squared_error": 1.02, "perplexity": 812.5}[metric]
    size = 2000
    return Evaluation(config.task.name, split, size, metric, baseline, loops, tuple(rows))


def _score(
    loops: int, config: RunConfig, nearness: float, draws: np.random.Generator, target: float | None
) -> LoopScore:
    if config.task.metric == "accuracy":
        share = (0.5 + draws.uniform(0, 0.4) if target is None else target + draws.uniform(-0.03, 0.03)) * nearness
        right = int(np.clip(round(2000 * share), 0, 2000))
        low, high = wilson(right, 2000)
        metrics = {"accuracy": right / 2000, "loss": 1.5 - right / 2000, "perplexity": 2.0}
        return LoopScore(loops, metrics, low, high)
    if config.task.metric == "squared_error":
        value = 0.2 + 0.3 * draws.uniform() + (1 - nearness)
        curve = tuple(1.0 / (1 + 0.2 * place) for place in range(21)) if loops == config.model.num_loops else None
        metrics = {"squared_error": value, "squared_error_over_dims": value / 20}
        return LoopScore(loops, metrics, 0.95 * value, 1.05 * value, curve)
    value = 20.0 + 3 * draws.uniform() + 100 * (1 - nearness)
    metrics = {"perplexity": value, "loss": math.log(value), "accuracy": 0.3}
    return LoopScore(loops, metrics, 0.98 * value, 1.02 * value)


def _curve(config: RunConfig, test: Evaluation, draws: np.random.Generator) -> list[dict[str, float]]:
    final = test.trained.metrics[test.metric]
    total = config.train.num_steps * config.train.batch_size
    points = []
    for part in range(1, 41):
        gone = part / 40
        point = {
            "samples": float(int(gone * total)),
            "loss": 3 * math.exp(-3 * gone) + 0.1 * draws.uniform(),
            "accuracy": gone,
        }
        if part % 4 == 0:
            start = 0.0 if test.metric == "accuracy" else 3 * final
            point["validation"] = start + (final - start) * gone**0.5
        points.append(point)
    return points
