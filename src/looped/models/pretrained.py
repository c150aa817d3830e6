"""Trained models as single files: weights and a model card.

`weights/TASK/NAME.safetensors` holds the weights in bfloat16. Its metadata has one entry, JSON: the run's config, the
test score of the rounded weights, their origin, and an example input. There is only one entry, because safetensors
writes several in any order, and equal models should be equal files. One SHA-256 covers the model card,
another the weights.
"""

import difflib
import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from looped.config import RunConfig
from looped.serde import check_fields, decode
from looped.tasks import TASKS, Batch, Task, task_class
from looped.utils.errors import InputError, require, require_one_of
from looped.utils.files import content_hash, from_json
from looped.utils.shipped import list_models, shipped_path, weights_folder

ENTRY = "looped"


@dataclass(frozen=True)
class ShippedScore:
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
    def num_right(self) -> int | None:
        """Return the number of right examples, or None if the metric is not an accuracy."""
        return round(self.value * self.size) if self.metric == "accuracy" else None


@dataclass(frozen=True)
class ModelCard:
    """The description of a model file."""

    name: str
    """TASK/NAME"""
    path: Path
    config: RunConfig
    step: int
    samples: int
    parameters: int
    test: ShippedScore
    """score of these weights on the first test examples"""
    record: str
    """name of the run and of its record"""
    commit: str
    """commit of the code that trained it"""
    date: str
    example: Batch
    """a test example that the model solves, stored because drawing one may first take seconds of compilation"""
    sha256: str
    """hash of the weights"""

    @property
    def num_bytes(self) -> int:
        """Return the size of the file."""
        return self.path.stat().st_size

    def to_json(self) -> dict[str, Any]:
        """Return the model card as JSON values, for `looped models --json`."""
        return {
            "name": self.name, "task": self.config.task.name, "block": self.config.model.block,
            "parameters": self.parameters, "loops": self.config.model.num_loops, "samples": self.samples,
            "step": self.step, "test": asdict(self.test), "record": self.record, "commit": self.commit,
            "date": self.date, "bytes": self.num_bytes, "config": self.config.to_json(),
        }  # fmt: skip


@dataclass(frozen=True)
class _StoredCard:
    """The fields of a `ModelCard` that its file holds, as JSON values."""

    config: dict[str, Any]
    step: int
    samples: int
    parameters: int
    test: ShippedScore
    record: str
    commit: str
    date: str
    example: dict[str, Any]
    sha256: str


def model_card(name: str) -> ModelCard:
    """Return the model card of a shipped model. Raise InputError if there is no such model or its card is damaged."""
    names = list_models()
    require(bool(names), f"no model {name!r}: {weights_folder()} is empty")
    require_one_of("model", name, names)
    card = read_card(shipped_path(name))
    task = card.config.task.name
    require(
        name.startswith(f"{task}/"), f"{card.path} is a model of {task}: expected it under {weights_folder() / task}"
    )
    return card


def best_model(task: str, question: str | None = None) -> ModelCard:
    """Return the model card of the task's best shipped model by test score.

    With a question, only models that were tested with questions like it count, if there are any.
    """
    cards = [model_card(name) for name in list_models() if name.startswith(f"{task}/")]
    require(bool(cards), f"no {task} model in {weights_folder()}: train one with `looped train {task}`")
    if question is not None:
        cards = [card for card in cards if _knows(card.config.task, question)] or cards
    sign = 1 if task_class(task).higher_is_better else -1
    return max(cards, key=lambda card: sign * card.test.value)


def _knows(task: Task, question: str) -> bool:
    """Return whether a question is like the examples of a task."""
    try:
        return task.unlike_examples(task.parse(question)) is None
    except InputError:
        return False


def resolve_name(name: str, question: str | None = None) -> str | None:
    """Return the shipped model that a name stands for, or None for a run folder.

    A task stands for its best model, or for its best one for a question.
    """
    if (Path(name) / "config.json").exists() or name.split("/")[0] not in TASKS:
        return None
    return best_model(name, question).name if name in TASKS else name


def require_no_near_miss(name: str) -> None:
    """Raise InputError, with a suggestion, if `name` is not a run folder but close to a shipped model's name."""
    if (Path(name) / "config.json").exists():
        return
    if near := difflib.get_close_matches(name[:200], [*TASKS, *list_models()], n=1):
        raise InputError(f"no run at {name} and no model of that name; did you mean {near[0]!r}?")


def read_shipped(name: str) -> tuple[ModelCard, dict[str, Tensor]]:
    """Return the model card and the weights of a shipped model, both checked against their hashes."""
    card = model_card(name)
    return card, read_weights(card)


def read_card(path: Path) -> ModelCard:
    """Return the model card of a file without reading its weights."""
    try:
        with safe_open(path, "pt") as file:
            about = from_json((file.metadata() or {})[ENTRY])
        expected = about.pop("card_sha256")
        if content_hash(about) != expected:
            raise InputError("the model card does not match its SHA-256")
        stored = decode(_StoredCard, about)
        config = RunConfig.from_json(stored.config)
        example = _decode_example(config, stored.example)
        same = {
            each.name: getattr(stored, each.name) for each in fields(stored) if each.name not in ("config", "example")
        }
        return ModelCard(name=f"{path.parent.name}/{path.stem}", path=path, config=config, example=example, **same)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise InputError(f"{path} is not a model file or is damaged: {type(error).__name__}: {reason}") from None


def read_weights(card: ModelCard) -> dict[str, Tensor]:
    """Return the weights of a model file. Raise InputError if they differ from their hash."""
    with safe_open(card.path, "pt") as file:
        weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    actual = hash_of_weights(weights)
    require(
        actual == card.sha256,
        f"{card.path} is damaged: expected SHA-256 {card.sha256[:12]}... of its weights, got {actual[:12]}...",
    )
    return weights


def model_file(weights: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    """Return the content of a model file. `about` holds the fields of its card but for the hashes."""
    card = {**about, "sha256": hash_of_weights(weights)}
    card["card_sha256"] = content_hash(card)
    return tensors_to_bytes(weights, {ENTRY: json.dumps(card, sort_keys=True)})


def _decode_example(config: RunConfig, stored: dict[str, Any]) -> Batch:
    dtype = np.int64 if config.task.spec.kind == "tokens" else np.float32
    dtypes = zip(Batch._fields, (dtype, dtype, np.bool_), strict=True)
    return Batch(*(np.array(stored[field], dtype=each) for field, each in dtypes))


def hash_of_weights(weights: dict[str, Tensor]) -> str:
    """Return a SHA-256 of names, shapes and values, because safetensors itself does not notice a changed value."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(f"{key} {tuple(weights[key].shape)} {weights[key].dtype}".encode())
        digest.update(weights[key].flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
