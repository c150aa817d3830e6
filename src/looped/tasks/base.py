"""What a task is: examples as a pure function of (seed, split, index), and a score for answers.

Everything else (the model's ends, flags, metrics, pictures) follows from `Spec`, the dataclass fields and these
methods. A task can be used on its own, without torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np

from looped.serde import check_fields
from looped.utils.errors import InputError, require, require_one_of
from looped.utils.files import data_folder
from looped.utils.types import Split

SPLITS: tuple[Split, ...] = get_args(Split)

# An example belongs to a split by its content: of NUM_BUCKETS buckets of the content's hash, number 0 is the test
# split, number 1 validation, the rest training. So no seed and no index can put one example into two splits.
NUM_BUCKETS = 32
_BUCKETS: dict[Split, tuple[int, int]] = {"test": (0, 1), "validation": (1, 2), "train": (2, NUM_BUCKETS)}

MAX_SEED = 2**32 - 1
MAX_INDEX = 2**62
# Of a test or of what is looked at: as many tell an accuracy to a tenth of a point.
MAX_EXAMPLES = 10**6


class Batch(NamedTuple):
    """Arrays of equal leading size; `mask` marks the positions that count in loss and score."""

    inputs: np.ndarray
    """(batch, seq) token ids, or (batch, seq, input_size) vectors"""
    targets: np.ndarray
    """(batch, seq) class ids, or (batch, seq, output_size) values"""
    mask: np.ndarray
    """(batch, seq) booleans; of a training batch they may be weights"""


@dataclass(frozen=True)
class Spec:
    """What a model must know about a task to build its two ends."""

    kind: Literal["tokens", "vectors"]
    input_size: int
    """number of input tokens, or size of an input vector"""
    output_size: int
    """number of answer classes, or size of an answer vector"""
    seq_len: int
    causal: bool = False
    shared_vocabulary: bool = False
    """inputs and answers are the same tokens, so that one matrix serves both ends"""
    coordinates: tuple[tuple[int, ...], ...] = ()
    """further ids of each position, such as the row, the column and the box of a Sudoku cell"""

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            not self.shared_vocabulary or self.can_share_vocabulary,
            f"a shared vocabulary needs as many output as input tokens, got {self.input_size} and {self.output_size}",
        )
        require(
            all(len(ids) == self.seq_len for ids in self.coordinates),
            f"coordinates must have one id for each of {self.seq_len} positions, got {[*map(len, self.coordinates)]}",
        )

    @property
    def can_share_vocabulary(self) -> bool:
        return self.kind == "tokens" and self.input_size == self.output_size


@dataclass(frozen=True)
class Task(ABC):
    """A family of examples. A task is a frozen dataclass whose fields are its knobs, and so is its own config."""

    name: ClassVar[str]
    metric: ClassVar[str] = "accuracy"
    """the key of `score` that tables show"""
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    @abstractmethod
    def spec(self) -> Spec: ...

    @property
    @abstractmethod
    def size(self) -> int:
        """How large an example is, in the task's own measure (a string's length, the points of a prompt)."""

    @property
    def label(self) -> str:
        """Return the task's name and size in short, such as `lcs-60`, for folders and tables."""
        return f"{self.name}-{self.size}"

    def seq_len_at(self, size: int) -> int:
        """Tokens of an example of this size (default: as many as of every other)."""
        return self.spec.seq_len

    def checked_size(self, size: int | None, least: int = 1, measure: str = "") -> int:
        """Of examples that are asked for (None: the task's own); `InputError` where there are none so large."""
        size = self.size if size is None else size
        fits = isinstance(size, Integral) and least <= size <= self.size
        require(fits, f"a size of {self.name} must be in {least}..{self.size}{measure}, got {size!r}")
        return int(size)

    @abstractmethod
    def sample(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        """Examples number `indices` of a split: the same ones whatever else is in the batch.

        A `size` below the task's own gives smaller examples in the same tokens and classes: a stage of a curriculum.
        """

    def training_batch(self, seed: int, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        """Return training examples as the loss takes them: those of `sample`, unless a task teaches more than it tests.

        The mask may then hold weights, by which positions count in the loss.
        """
        return self.sample(seed, "train", indices, size)

    @abstractmethod
    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        """One number per example and metric, from predicted classes (or values) of the shape of `batch.targets`."""

    def curve(self, prediction: np.ndarray, batch: Batch) -> np.ndarray | None:
        """(batch, places) numbers whose mean over the examples is a curve, such as the error after k points."""
        return None

    @abstractmethod
    def parse(self, text: str) -> np.ndarray:
        """One example's inputs, (seq,) or (seq, input_size), from what a person types; `InputError` if it cannot be."""

    @abstractmethod
    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        """One example in the task's own terms, ready for JSON. `outputs` may be targets or a prediction."""

    @abstractmethod
    def render(self, inputs: np.ndarray) -> str:
        """One example's inputs as text that `parse` reads back."""

    @abstractmethod
    def answer(self, outputs: np.ndarray) -> str:
        """One example's answer (targets or a prediction) as text."""

    def solve(self, inputs: np.ndarray) -> str | None:
        """The right answer as text, found without any model; None where there is none, or no way to find it."""
        return None

    def is_right(self, inputs: np.ndarray, outputs: np.ndarray, truth: str | None) -> bool:
        """Whether outputs answer one example, whose right answer as text is `truth` (None where it is not known)."""
        return self.answer(outputs) == truth

    def unlike_examples(self, inputs: np.ndarray) -> str | None:
        """In what inputs that `parse` takes differ from every example, in words; None if in nothing that is known."""
        return None

    def test_sets(self) -> dict[str, Self]:
        """Further test sets by name, each a variant of this task that a model of this one can be tested on."""
        return {}

    def held_out_size(self, split: Split, example_size: int | None = None) -> int:
        """Examples (of the task's size, or of a smaller one) that a test has, unless another number is asked for."""
        return self.distinct_among(split, 1000, example_size)

    def num_distinct(self, split: Split, example_size: int | None = None) -> int | None:
        """How many examples of a split stand for themselves, before they repeat; None where each is drawn afresh."""
        return None

    def distinct_among(self, split: Split, size: int, example_size: int | None = None) -> int:
        """How many of the first `size` do."""
        return min(size, self.num_distinct(split, example_size) or size)

    def fingerprints(self) -> dict[str, str]:
        """Hashes by name of what examples are taken from and a user may change, such as a text; of none by default."""
        return {}

    def counted(self, inputs: np.ndarray) -> np.ndarray:
        """(batch, seq) booleans: where the answers to these inputs are read (default: at the last position)."""
        mask = np.zeros(inputs.shape[:2], dtype=np.bool_)
        mask[:, -1] = True
        return mask

    def examples(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Examples in the task's own terms, with what lies behind them where there is more than a model sees."""
        batch = self.sample(seed, split, indices)
        return [self.describe(inputs, targets) for inputs, targets in zip(batch.inputs, batch.targets, strict=True)]

    def verify(self, example: dict[str, Any]) -> None:
        """`InputError` unless the reference solver finds an example, as `examples` gives it, to be right."""
        raise NotImplementedError(f"{self.name} has no reference solver")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What is worth knowing about many examples beyond their sizes, such as the number of clues; ready for JSON."""
        return {}

    def baseline(self, batch: Batch) -> float:
        """The metric of the best constant answer: the majority class, or the mean value."""
        counted = batch.targets[batch.mask]
        if self.spec.kind == "tokens":
            values, counts = np.unique(counted, return_counts=True)
            constant = values[np.argmax(counts)]
        else:
            constant = counted.mean(axis=0)
        prediction = np.broadcast_to(constant, batch.targets.shape)
        return float(np.mean(self.score(prediction, batch)[self.metric]))


def split_buckets(split: Split) -> tuple[int, int]:
    """The half-open range of content buckets that a split owns."""
    return _BUCKETS[split]


def split_number(split: Split) -> int:
    """A split as a number, for the key of a draw."""
    require_one_of("split", split, SPLITS)
    return SPLITS.index(split)


def draw_keys(
    seed: int, split: Split, indices: Sequence[int] | np.ndarray
) -> tuple[np.int64, int, np.ndarray]:  # fmt: skip
    """What examples are drawn by, as numbers: every `sample` starts here, so that none takes a key that is none."""
    number = split_number(split)
    require(
        isinstance(seed, int | np.integer) and 0 <= seed <= MAX_SEED,
        f"expected a seed in 0..{MAX_SEED}, got {seed!r}",
    )
    try:
        wanted = np.asarray(indices)
    except ValueError:  # of lists of several lengths there is no array, but one of objects
        wanted = np.asarray(indices, dtype=object)
    if wanted.size == 0:
        return np.int64(seed), number, np.empty(0, dtype=np.int64)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise InputError(f"expected a row of whole indices in 0..{MAX_INDEX}, got {str(wanted.tolist())[:60]}")
    least, most = wanted.min(), wanted.max()
    require(least >= 0 and most <= MAX_INDEX, f"expected indices in 0..{MAX_INDEX}, got {least} to {most}")
    return np.int64(seed), number, wanted.astype(np.int64)


def typed_fields(example: dict[str, Any], **kinds: type) -> list[Any]:
    """The named fields of an example, each of its kind (True is no number); `InputError` if one is not."""
    for name, kind in kinds.items():
        require(name in example, f"expected a field {name!r}, got {', '.join(map(repr, example)) or 'none'}")
        came = type(example[name])
        require(came is kind, f"expected {name!r} to be of type {kind.__name__}, got {came.__name__}")
    return [example[name] for name in kinds]


def summary(values: Sequence[int]) -> dict[str, float]:
    return {"min": min(values), "mean": float(np.mean(values)), "max": max(values)}


def supplied(name: str, what: str, expected: str) -> Path:
    """A user's file or folder: the path that its name is, or else the one of that name under LOOPED_DATA."""
    path = Path(name).expanduser()
    path = path if path.exists() else data_folder() / path
    found = bool(name) and path.exists()
    require(found, f"no {what} {name!r} here or in {data_folder()} (LOOPED_DATA): expected {expected}")
    return path


def masked_accuracy(prediction: np.ndarray, batch: Batch) -> np.ndarray:
    """Per example: 1 where every position that counts is right, else 0."""
    return np.all((prediction == batch.targets) | ~batch.mask, axis=1).astype(np.float64)
