"""Files of trained models that come with the package: one safetensors file each, with all that is known of it in its
header.

`weights/TASK/NAME.safetensors` holds the weights in bfloat16. Its metadata has one entry, JSON: the run's config, what
the rounded weights scored in the test, where they come from, and an example to ask. (One entry, since several would
be written in any order, and equal models could not be equal files.)
"""

import difflib
import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from looped.config import RunConfig
from looped.tasks import TASKS, Batch, task_class
from looped.utils.errors import InputError, check_fields, require, require_one_of
from looped.utils.files import from_json

ENTRY = "looped"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Measurement:
    """A metric on test examples at one loop count, with its 95 % interval."""

    metric: str
    value: float
    low: float
    high: float
    size: int
    loops: int

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def right(self) -> int | None:
        """How many examples were right; None where the metric is no share of right ones."""
        return round(self.value * self.size) if self.metric == "accuracy" else None

    @classmethod
    def of_evaluation(cls, report: dict[str, Any]) -> "Measurement":
        """The row of `evaluate` at the trained loops."""
        row = next(row for row in report["rows"] if row["loops"] == report["trained_loops"])
        metric = report["metric"]
        return cls(metric, row[metric], row["low"], row["high"], report["size"], row["loops"])


@dataclass(frozen=True)
class Shipped:
    """What a file of weights says about itself."""

    name: str
    """TASK/NAME"""
    path: Path
    config: RunConfig
    step: int
    samples: int
    parameters: int
    test: Measurement
    """of these very weights, on the test examples from number 0 on"""
    record: str
    """name of the run, and of its record"""
    commit: str
    """of the code that trained it"""
    date: str
    example: Batch
    """test example number 0: drawing it afresh may first take ten seconds of compilation"""
    sha256: str
    """of the weights"""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "task": self.config.task.name, "block": self.config.model.block,
            "parameters": self.parameters, "loops": self.config.model.num_loops, "samples": self.samples,
            "step": self.step, "test": asdict(self.test), "record": self.record, "commit": self.commit,
            "date": self.date, "bytes": self.num_bytes, "config": self.config.to_json(),
        }  # fmt: skip


def weights_folder() -> Path:
    """The package's own weights, or the folder that LOOPED_WEIGHTS names."""
    return Path(os.environ.get("LOOPED_WEIGHTS") or Path(__file__).parent / "weights")


def shipped_path(name: str) -> Path:
    return weights_folder() / f"{name}{SUFFIX}"


def names() -> list[str]:
    """The shipped models, as TASK/NAME."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in weights_folder().glob(f"*/*{SUFFIX}"))


def describe(name: str) -> Shipped:
    """What is known of a shipped model; `InputError` if there is none of that name, or its file is damaged."""
    return read_shipped(name)[0]


def best(task: str) -> Shipped:
    """The task's shipped model with the best test result."""
    found = [describe(name) for name in names() if name.startswith(f"{task}/")]
    require(bool(found), f"no model of {task} is shipped: {weights_folder()} has none (looped train {task} makes one)")
    sign = 1 if task_class(task).higher_is_better else -1
    return max(found, key=lambda model: sign * model.test.value)


def meant(name: str) -> str | None:
    """The shipped model that a user means: the one of that name, or a task's best; None where it is a run's folder."""
    if (Path(name) / "config.json").exists() or name.split("/")[0] not in TASKS:
        return None
    return best(name).name if name in TASKS else name


def require_no_near_miss(name: str) -> None:
    """`InputError` if what is to be a run's folder is none, but nearly the name of a shipped model."""
    if not (Path(name) / "config.json").exists() and (near := difflib.get_close_matches(name, [*TASKS, *names()], n=1)):
        raise InputError(f"no run at {name}, and no model of that name; did you mean {near[0]!r}?")


def read_shipped(name: str) -> tuple[Shipped, dict[str, Tensor]]:
    """A shipped model's description and weights, checked."""
    known = names()
    require(bool(known), f"no model {name!r}: {weights_folder()} has none")
    require_one_of("model", name, known)
    path = shipped_path(name)
    try:
        with safe_open(path, "pt") as file:
            about = from_json((file.metadata() or {})[ENTRY])
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        config = RunConfig.from_json(about["config"])
        example = _read_example(config, about["example"])
        rest = {key: about[key] for key in ("step", "samples", "parameters", "record", "commit", "date", "sha256")}
        shipped = Shipped(name, path, config, test=Measurement(**about["test"]), example=example, **rest)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise InputError(f"{path} is no shipped model, or damaged: {type(error).__name__}: {reason}") from None
    came = hash_of(weights)
    require(
        came == shipped.sha256,
        f"{path} is damaged: expected sha256 {shipped.sha256[:12]}... of its weights, got {came[:12]}...",
    )
    task = config.task.name
    require(name.startswith(f"{task}/"), f"{path} holds a model of {task}: expected it under {weights_folder() / task}")
    return shipped, weights


def _read_example(config: RunConfig, stored: dict[str, Any]) -> Batch:
    kind = np.int64 if config.task.spec.kind == "tokens" else np.float32
    types = zip(Batch._fields, (kind, kind, np.bool_), strict=True)
    return Batch(*(np.array(stored[field], dtype=dtype) for field, dtype in types))


def hash_of(weights: dict[str, Tensor]) -> str:
    """Of names, shapes and numbers: safetensors itself would not notice a changed one."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(f"{key} {tuple(weights[key].shape)} {weights[key].dtype}".encode())
        digest.update(weights[key].flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
