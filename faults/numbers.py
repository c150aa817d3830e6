"""NaN and infinity in data, gradients, weights and optimizer state, and a thousand loops of every model.

A run may end with one line, but no checkpoint may hold NaN or infinity. With a spike guard, a bad gradient costs only
its own step.
"""

import itertools
import json
import math
import random
import shutil
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from faults.target import Target, last_line
from faults.tries import Result, Tries, one, result
from faults.workloads import checkpoints, training_arguments

_FORMATS = {"F32": "<f4", "F64": "<f8", "BF16": "<u2", "F16": "<f2"}


def non_finite(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Inject NaN and infinities at the first, a middle and the last step, with and without a spike guard."""
    places = ("gradient", "loss", "weight", "optimizer", "data")
    values = ("nan", "inf", "-inf")
    for guarded, what, step, value in itertools.product((False, True), places, (0, 1, 7, 19), values):
        row = f"NaN and infinity, {'with' if guarded else 'without'} a spike guard"
        case = f"{what}@{step}@{value}@{'guard' if guarded else 'plain'}"
        yield one(row, case, partial(_inject, target, what, step, value, guarded))


def _inject(target: Target, what: str, step: int, value: str, guarded: bool) -> Result:
    task = "decision-tree" if what == "data" else "edit-distance"
    guard = [target.flag("spike-factor"), "5.0" if guarded else "None"]
    folder = target.fresh_folder("nan")
    inject = {"what": what, "step": step, "value": value}
    outcome = target.run([*_command(target, task), *guard, "--out", "run"], folder, inject=inject)
    problem = outcome.complaint or _beyond_numbers(folder)
    # A gradient that is skipped costs nothing: the run has to come to its end.
    if problem is None and guarded and what in ("gradient", "loss") and outcome.code != 0:
        problem = f"the guard let it pass: {last_line(outcome.stderr)}"
    shutil.rmtree(folder)
    return result(problem, f"exit code {outcome.code}")


def _command(target: Target, task: str) -> list[str]:
    if task == "edit-distance":
        return training_arguments(target)
    small = {"dim": 16, "num-heads": 2, "num-loops": 2, "num-steps": 20, "batch-size": 4, "checkpoint-every": 5,
             "log-every": 1, "eval-every": 10, "eval-size": 8}  # fmt: skip
    flags = [text for name, value in small.items() for text in (target.flag(name), str(value))]
    return ["train", task, "--recipe", "laptop", *flags, "--json"]


def _beyond_numbers(folder: Path) -> str | None:
    """Return which tensor of a checkpoint holds NaN or infinity."""
    for path in (path for checkpoint in checkpoints(folder) for path in checkpoint.glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, about in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__" or about["dtype"] not in _FORMATS:
                continue
            start, end = (8 + size + offset for offset in about["data_offsets"])
            if not _all_finite(data[start:end], about["dtype"]):
                return f"a checkpoint with NaN or infinity: {name} in {path.parent.name}"
    return None


def _all_finite(data: bytes, kind: str) -> bool:
    if kind == "BF16":  # the upper half of a 32-bit float
        data = b"".join(b"\0\0" + data[place : place + 2] for place in range(0, len(data), 2))
        kind = "F32"
    letter = {"F32": "f", "F64": "d", "F16": "e"}[kind]
    return all(math.isfinite(number) for (number,) in struct.iter_unpack(f"<{letter}", data))


def thousand_loops(target: Target, *, full: bool, seed: int) -> Iterator[Tries]:
    """Train one step of a thousand loops, forward and backward, for every kind of model in both precisions."""
    models = list(_models(target))
    for values in models if full else random.Random(seed).sample(models, min(24, len(models))):
        train = partial(_train_thousand_loops, target, values)
        yield one("1,000 loops, forward and backward, float32 and bfloat16", ",".join(values.values()), train)


def _train_thousand_loops(target: Target, values: dict[str, str]) -> Result:
    small = {
        "dim": "16", "num-heads": "2", "num-loops": "1000", "length": "4", "num-steps": "1", "batch-size": "2",
        "eval-size": "2", **values,
    }  # fmt: skip
    flags = [text for name, value in small.items() for text in (_flag(target, name), value)]
    folder = target.fresh_folder("loops")
    command = ["train", "edit-distance", "--recipe", "laptop", *flags, "--json", "--out", "run"]
    outcome = target.run(command, folder, seconds=300)
    problem = outcome.complaint or (None if outcome.code == 0 else f"refused: {last_line(outcome.stderr)}")
    words = ("needs", "modulation", "conditioning")
    if problem and outcome.code == 2 and any(word in outcome.errors[0] for word in words):
        return result(None, "a combination that does not exist")
    problem = problem or _beyond_numbers(folder)
    shutil.rmtree(folder)
    return result(problem, f"exit code {outcome.code}")


_START = "modulation-init"


def _flag(target: Target, name: str) -> str:
    return target.flag(name, "modulation-start") if name == _START else target.flag(name)  # its name in version 0.1


def _models(target: Target) -> Iterator[dict[str, str]]:
    """Yield every kind of looped model that the flags offer, in both precisions."""
    names: tuple[str, ...] = ("block", "conditioning", "injection", "norm", _START, "precision")
    offered = {name: target.train_flags[_flag(target, name)].strip("{}").split(",") for name in names}
    offered["precision"] = ["float32", "bfloat16"]
    for values in itertools.product(*offered.values()):
        model: dict[str, str] = dict(zip(names, values, strict=True))
        if model["block"] == "standard" or model["conditioning"] == "auto":
            continue
        if model["block"] == "looped" and model["conditioning"] != "none":
            continue
        yield model
