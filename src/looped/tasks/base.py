"""The `Task` contract: examples as a pure function of (seed, split, index), and a score for answers.

The embedding, the output layer, the flags and the metrics follow from `Spec`, the dataclass fields and the methods.
A task does not need torch. `spec`, `sample` and `score` are enough for a task of your own (docs/own-tasks.md).
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np

from looped.serde import check_fields
from looped.utils.errors import InputError, require, require_field, require_one_of
from looped.utils.files import data_folder
from looped.utils.types import Split

SPLITS: tuple[Split, ...] = get_args(Split)

# A hash of an example's content selects one of NUM_BUCKETS buckets. Bucket 0 is the test split, bucket 1 is validation
# and the rest is training. Therefore no seed and no index can put one example into two splits.
NUM_BUCKETS = 32
_BUCKETS: dict[Split, tuple[int, int]] = {"test": (0, 1), "validation": (1, 2), "train": (2, NUM_BUCKETS)}

MAX_TRIES = 10_000  # draws of one example until its content belongs to its split

MAX_SEED = 2**32 - 1
MAX_INDEX = 2**62
MAX_EXAMPLES = 10**6  # of a test set or of a sample, enough to measure an accuracy to 0.1 points


class Batch(NamedTuple):
    """Examples as arrays of equal leading size."""

    inputs: np.ndarray
    """(batch, seq) token ids, or (batch, seq, input_size) vectors"""
    targets: np.ndarray
    """(batch, seq) class ids, or (batch, seq, output_size) values"""
    mask: np.ndarray
    """(batch, seq) booleans: True where a position counts in loss and score; float weights in some training batches"""


@dataclass(frozen=True)
class Spec:
    """The properties of a task from which a model builds its embedding and its output layer."""

    kind: Literal["tokens", "vectors"]
    """type of the inputs: token ids or real vectors"""
    input_size: int
    """number of input tokens, or size of an input vector"""
    output_size: int
    """number of answer classes, or size of an answer vector"""
    seq_len: int
    """length of the longest input sequence"""
    causal: bool = False
    """True if a position may attend only to itself and to earlier positions"""
    shared_vocabulary: bool = False
    """True if inputs and answers are the same tokens, so that embedding and output layer may share a matrix"""
    coordinates: tuple[tuple[int, ...], ...] = ()
    """further ids of each position, such as the row, the column and the box of a Sudoku cell"""

    def __post_init__(self) -> None:
        check_fields(self)
        require_field(
            not self.shared_vocabulary or self.can_share_vocabulary,
            "shared_vocabulary",
            "as many output tokens as input tokens",
            f"{self.input_size} inputs and {self.output_size} outputs",
        )
        require_field(
            all(len(ids) == self.seq_len for ids in self.coordinates),
            "coordinates",
            f"one id for each of {self.seq_len} positions",
            [*map(len, self.coordinates)],
        )

    @property
    def can_share_vocabulary(self) -> bool:
        """Return True if one matrix fits both the embedding and the output layer."""
        return self.kind == "tokens" and self.input_size == self.output_size


@dataclass(frozen=True)
class Task(ABC):
    """A family of examples. A task is a frozen dataclass, and its fields are its settings."""

    name: ClassVar[str]
    metric: ClassVar[str] = "accuracy"
    """key of `score` that tables show"""
    higher_is_better: ClassVar[bool] = True

    if TYPE_CHECKING:  # `TASKS[name](side=4)`: each class has its own settings

        def __init__(self, **settings: Any) -> None: ...

    def __post_init__(self) -> None:
        check_fields(self, "task")

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """Return the properties of this task from which a model is built."""

    @property
    def size(self) -> int:
        """Return the size of an example in the task's own unit, such as letters (default: the sequence length)."""
        return self.spec.seq_len

    @property
    def label(self) -> str:
        """Return a short name with the size, such as `lcs-60`, for folders and tables."""
        return f"{self.name}-{self.size}"

    def seq_len_at(self, size: int) -> int:
        """Return the sequence length of examples of this size (default: the same for every size)."""
        return self.spec.seq_len

    def checked_size(self, size: int | None, least: int = 1, measure: str = "") -> int:
        """Return `size`, or the task's own size if it is None. Raise InputError if the task has no such size."""
        size = self.size if size is None else size
        if not (isinstance(size, Integral) and least <= size <= self.size):
            expected = f"an integer in {least}..{self.size}{measure} for {self.name}"
            raise InputError(f"size: expected {expected}, got {size!r}")
        return int(size)

    @abstractmethod
    def sample(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        """Return the examples with these indices of a split. An example does not depend on the rest of the batch.

        A `size` below the task's own gives smaller examples with the same tokens and classes, for a curriculum.
        """

    def training_batch(self, seed: int, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        """Return training examples for the loss (default: those of `sample`).

        A task may add targets that `sample` does not have, and may put loss weights into the mask.
        """
        return self.sample(seed, "train", indices, size)

    @abstractmethod
    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        """Return one number per example and metric. `prediction` holds classes or values, shaped like the targets."""

    def curve(self, prediction: np.ndarray, batch: Batch) -> np.ndarray | None:
        """Return (batch, places) numbers to be averaged over the batch, such as the error after k points, or None."""
        return None

    def draw_batch(
        self,
        seed: int,
        split: Split,
        indices: Sequence[int] | np.ndarray,
        draw: Callable[[np.random.Generator], tuple[Any, Any]],
    ) -> Batch:
        """Return a batch of examples that `draw(rng)` makes one by one, each as (inputs, targets).

        An example is drawn again until a hash of its inputs belongs to the split. So no two splits share an example,
        and an example does not depend on the rest of the batch. The mask is that of `counted`.
        """
        seed_number, number, places = draw_keys(seed, split, indices)
        first, end = split_buckets(split)
        spec, vectors = self.spec, self.spec.kind == "vectors"
        dtype = np.float32 if vectors else np.int64
        examples = []
        for place in places.tolist():
            rng = np.random.default_rng((int(seed_number), number, place))
            for _ in range(MAX_TRIES):
                inputs, targets = (np.asarray(array, dtype=dtype) for array in draw(rng))
                if first <= content_bucket(inputs) < end:
                    break
            else:
                raise InputError(
                    f"{self.name}: expected a {split} example, got none in {MAX_TRIES} tries. "
                    "There are too few different inputs."
                )
            examples.append((inputs, targets))
        if not examples:
            shapes = (0, spec.seq_len, *[spec.input_size] * vectors), (0, spec.seq_len, *[spec.output_size] * vectors)
            batch = [np.zeros(shape, dtype=dtype) for shape in shapes]
        else:
            batch = [np.stack(arrays) for arrays in zip(*examples, strict=True)]
        return Batch(batch[0], batch[1], self.counted(batch[0]))

    def parse(self, text: str) -> np.ndarray:
        """Return one example's inputs, (seq,) or (seq, input_size), from a text. Raise InputError if it is invalid.

        By default a text holds numbers between spaces: token ids, or one vector per line.
        """
        spec = self.spec
        try:
            lines = (line.split() for line in text.replace(";", "\n").split("\n"))
            rows = [[float(word) for word in words] for words in lines if words]
        except ValueError:
            raise InputError(f"expected numbers between spaces, got {text!r}") from None
        if spec.kind == "vectors":
            fits = bool(rows) and all(len(row) == spec.input_size for row in rows)
            require(fits, f"expected lines of {spec.input_size} numbers, got {text!r}")
            return np.array(rows, dtype=np.float32)
        tokens = [number for row in rows for number in row]
        valid = 1 <= len(tokens) <= spec.seq_len and all(token in range(spec.input_size) for token in tokens)
        require(valid, f"expected 1 to {spec.seq_len} token ids in 0..{spec.input_size - 1}, got {text!r}")
        return np.array(tokens, dtype=np.int64)

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        """Return one example as JSON values with readable keys. `outputs` are targets or a prediction."""
        return {"input": self.render(inputs), "answer": self.answer(outputs)}

    def render(self, inputs: np.ndarray) -> str:
        """Return one example's inputs as text that `parse` reads back (default: numbers between spaces)."""
        if self.spec.kind == "tokens":
            return " ".join(str(int(token)) for token in inputs)
        return "\n".join(" ".join(map(str, row)) for row in inputs.astype(np.float32).astype(str).tolist())

    def answer(self, outputs: np.ndarray) -> str:
        """Return one example's answer as text. `outputs` are targets or a prediction.

        The default is the output at the last position, which is what `counted` counts by default.
        """
        last = outputs[-1]
        return str(int(last)) if self.spec.kind == "tokens" else " ".join(f"{float(value):.4f}" for value in last)

    def solve(self, inputs: np.ndarray) -> str | None:
        """Return the right answer as text, computed without a model, or None if the task has no solver."""
        return None

    def is_right(self, inputs: np.ndarray, outputs: np.ndarray, truth: str | None) -> bool | None:
        """Return whether the outputs answer one example, or None if nothing tells.

        `truth` is the right answer as text, or None if unknown.
        """
        return None if truth is None else self.answer(outputs) == truth

    def verdict(self, inputs: np.ndarray, outputs: np.ndarray, truth: str | None) -> str:
        """Return one line that says whether outputs answer one example, and what is wrong if they do not."""
        if (right := self.is_right(inputs, outputs, truth)) is None:
            return "not judged: the right answer is unknown"
        return "right" if right else f"wrong: the right answer is {truth}"

    def unlike_examples(self, inputs: np.ndarray) -> str | None:
        """Describe how `inputs` fall outside the test distribution, or return None."""
        return None

    def test_sets(self) -> dict[str, Self]:
        """Return further test sets by name. Each is a variant of this task for the same model."""
        return {}

    def held_out_size(self, split: Split, example_size: int | None = None) -> int:
        """Return the default number of examples of a test, for examples of the task's size or of a smaller one."""
        return self.distinct_among(split, 1000, example_size)

    def num_distinct(self, split: Split, example_size: int | None = None) -> int | None:
        """Return the number of examples of a split before they repeat, or None if every example is drawn anew."""
        return None

    def distinct_among(self, split: Split, size: int, example_size: int | None = None) -> int:
        """Return the number of distinct examples among the first `size`."""
        return min(size, self.num_distinct(split, example_size) or size)

    def fingerprints(self) -> dict[str, str]:
        """Return hashes, by name, of the files behind the examples that a user may change (default: none)."""
        return {}

    def counted(self, inputs: np.ndarray) -> np.ndarray:
        """Return (batch, seq) booleans: True where an answer is read (default: at the last position)."""
        mask = np.zeros(inputs.shape[:2], dtype=np.bool_)
        mask[:, -1] = True
        return mask

    def examples(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return examples as `describe` gives them. A task may add facts that the model does not see."""
        batch = self.sample(seed, split, indices)
        return [self.describe(inputs, targets) for inputs, targets in zip(batch.inputs, batch.targets, strict=True)]

    def verify(self, example: dict[str, Any]) -> None:
        """Raise InputError unless the reference solver confirms an example from `examples`."""
        question, stated = typed_fields(example, input=str, answer=str)
        inputs = self.parse(question)
        require(self.render(inputs) == question, f"input: expected {self.render(inputs)!r}, got {question!r}")
        expected = self.solve(inputs)
        require(expected is not None, f"{self.name} has no solver: expected a method `solve` to check examples with")
        require(stated == expected, f"answer: expected {expected} for {question!r}, got {stated!r}")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return statistics of many examples as JSON values, such as the number of clues."""
        return {}

    def baseline(self, batch: Batch) -> float:
        """Return the metric of the best constant answer: the majority class, or the mean value."""
        counted = batch.targets[batch.mask]
        if self.spec.kind == "tokens":
            values, counts = np.unique(counted, return_counts=True)
            constant = values[np.argmax(counts)]
        else:
            constant = counted.mean(axis=0)
        prediction = np.broadcast_to(constant, batch.targets.shape)
        return float(np.mean(self.score(prediction, batch)[self.metric]))


def split_buckets(split: Split) -> tuple[int, int]:
    """Return the half-open range of content buckets that belong to a split."""
    return _BUCKETS[split]


def content_bucket(inputs: np.ndarray) -> int:
    """Return the bucket of an example's inputs, which decides its split."""
    digest = hashlib.sha256(f"{inputs.shape}".encode() + np.ascontiguousarray(inputs).tobytes()).digest()
    return int.from_bytes(digest[:8], "little") % NUM_BUCKETS


def split_number(split: Split) -> int:
    """Return a split as a number, for the key of a random draw."""
    require_one_of("split", split, SPLITS)
    return SPLITS.index(split)


def draw_keys(seed: int, split: Split, indices: Sequence[int] | np.ndarray) -> tuple[np.int64, int, np.ndarray]:
    """Return seed, split and indices as numbers for the random draws. Raise InputError if one is out of range."""
    number = split_number(split)
    is_seed = isinstance(seed, int | np.integer) and 0 <= seed <= MAX_SEED
    require_field(is_seed, "seed", f"an integer in 0..{MAX_SEED}", repr(seed))
    numbers = np.asarray(indices)
    if numbers.size == 0:
        return np.int64(seed), number, np.empty(0, dtype=np.int64)
    is_row = numbers.ndim == 1 and numbers.dtype.kind in "iu" and numbers.min() >= 0 and numbers.max() <= MAX_INDEX
    require_field(is_row, "indices", f"a row of integers in 0..{MAX_INDEX}", str(numbers.tolist())[:60])
    return np.int64(seed), number, numbers.astype(np.int64)


def typed_fields(example: dict[str, Any], **kinds: type) -> list[Any]:
    """Return the named fields of an example. Raise InputError unless each has exactly its type."""
    for name, kind in kinds.items():
        require(name in example, f"{name}: expected a field of this name, got {', '.join(example) or 'no field'}")
        actual = type(example[name])
        require(actual is kind, f"{name}: expected a {kind.__name__}, got {actual.__name__}")
    return [example[name] for name in kinds]


def summary(values: Sequence[int]) -> dict[str, float]:
    """Return the minimum, the mean and the maximum of some values."""
    return {"min": min(values), "mean": float(np.mean(values)), "max": max(values)}


def supplied(name: str, what: str, expected: str) -> Path:
    """Return the path of a user's file or folder: `name` itself, or `name` in the folder LOOPED_DATA."""
    path = Path(name).expanduser()
    path = path if path.exists() else data_folder() / path
    exists = bool(name) and path.exists()
    require(exists, f"no {what} {name!r} here or in {data_folder()} (LOOPED_DATA): expected {expected}")
    return path


def masked_accuracy(prediction: np.ndarray, batch: Batch) -> np.ndarray:
    """Return 1 for each example that is right at every position of the mask, and 0 for the others."""
    return np.all((prediction == batch.targets) | ~batch.mask, axis=1).astype(np.float64)
