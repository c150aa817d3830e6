"""Tasks about two strings: edit distance and longest common subsequence (the paper's appendix on reasoning tasks).

An example is `first | second pad ... =`, and the answer is a class read at `=`, the last position. In training, the
answers for all prefixes of the second string may be targets as well (`answers`); tests read the one at `=` alone.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from looped.tasks.base import Batch, Spec, Split, Task, draw_keys, masked_accuracy, split_buckets, summary, typed_fields
from looped.tasks.strings.alignment import common_subsequences, edit_distances
from looped.tasks.strings.pairs import EDITED, LONGER, MAX_TRIES, OWN_LETTERS, SHORTER, UNIFORM, draw_pairs, lay_out
from looped.utils.errors import InputError, require

LETTERS = "abcdefghijklmnopqrstuvwxyz"
KINDS = {"uniform": UNIFORM, "own-letters": OWN_LETTERS, "edited": EDITED}

# What is usual is seen from the first test examples, as many as the shipped models are tested with. A further one falls
# outside the range of N values with a probability of at most 2 / (N + 1), so that hardly any is called unusual.
NUM_USUAL = 10_000
LONGEST_USUAL = 100  # drawing so many pairs of this length takes two or three seconds


@dataclass(frozen=True)
class StringPairs(Task):
    """What the string tasks share: how pairs are drawn, laid out, read and shown."""

    length: int = 40
    """length of the first string, n"""
    min_length: int | None = None
    """shortest first string, drawn uniformly up to `length` (None: always `length`)"""
    alphabet: int = 26
    """number of letters there are"""
    edits: Literal["length", "uniform"] = "length"
    """random edits made to a corrupted copy: n of them (the paper), or uniform in 1..n"""
    rejection: Literal["second", "pair"] = "second"
    """what is drawn again when the copy's length is out of range: the copy alone (the paper) or the whole pair"""
    lengths: Literal["near", "any"] = "near"
    """length of an edited pair's second string: 3 less to 2 more than the first's (the paper), or any from min_length
    to length"""
    answers: Literal["last", "prefixes"] = "last"
    """answers that training learns: the one at `=` (the paper); or, at the bar and at each letter of the second string,
    the one for the prefix that ends there as well"""
    answer_weight: float = 4.0
    """with prefixes: weight of the answer at `=` in the loss, where that of each prefix is 1"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.length <= 4096, f"task.length must be in 1..4096, got {self.length}")
        shortest = self.length if self.min_length is None else self.min_length
        require(1 <= shortest <= self.length, f"task.min_length must be in 1..{self.length}, got {shortest}")
        require(2 <= self.alphabet <= 26, f"task.alphabet must be in 2..26, got {self.alphabet}")
        fewest, most = self.letter_range
        require(
            1 <= fewest <= most <= self.alphabet,
            f"expected 1 <= task.min_letters <= task.max_letters <= task.alphabet, "
            f"got {fewest}, {most}, {self.alphabet}",
        )
        require(
            0 < self.answer_weight < math.inf,
            f"task.answer_weight must be positive and finite, got {self.answer_weight}",
        )

    @property
    @abstractmethod
    def kind(self) -> int:
        """UNIFORM, OWN_LETTERS or EDITED."""

    @property
    def near_lengths(self) -> bool:
        """True where the second string's length depends on the first's."""
        return self.kind == EDITED and self.lengths == "near"

    @property
    @abstractmethod
    def letter_range(self) -> tuple[int, int]:
        """The fewest and the most different letters that a string is drawn from."""

    @property
    @abstractmethod
    def largest_answer(self) -> int: ...

    @abstractmethod
    def _prefix_answers(self, strings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the answers of many pairs for all prefixes of the second strings, as `alignment` has them, fast."""

    @abstractmethod
    def reference(self, first: str, second: str) -> int:
        """The answer of one pair by the textbook recurrence, which the fast one is tested against."""

    @property
    def size(self) -> int:
        return self.length

    @property
    def spec(self) -> Spec:
        return Spec("tokens", self.alphabet + 3, self.largest_answer + 1, self.seq_len_at(self.length))

    def sample(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        batch, _, _ = self._solved(seed, split, indices, size)
        return batch

    def training_batch(self, seed: int, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        if self.answers == "last":
            return super().training_batch(seed, indices, size)
        batch, lengths, answers = self._solved(seed, "train", indices, size)
        # The bar stands where the first string ends, and letter number j of the second string j places further on.
        letter = np.arange(batch.inputs.shape[1]) - lengths[:, :1]
        ends_prefix = (letter >= 0) & (letter <= lengths[:, 1:])
        at_prefixes = np.take_along_axis(answers, letter.clip(0, answers.shape[1] - 1), axis=1)
        targets = np.where(ends_prefix, at_prefixes, batch.targets)
        weights = np.where(batch.mask, self.answer_weight, ends_prefix)
        return Batch(batch.inputs, targets, weights.astype(np.float32))

    def _solved(
        self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None
    ) -> tuple[Batch, np.ndarray, np.ndarray]:
        """Return examples with the lengths of their strings and with the answers for all prefixes of the second."""
        size = self.checked_size(size)
        keys = draw_keys(seed, split, indices)
        strings = np.zeros((len(indices), 2, size + self._slack), dtype=np.int8)
        lengths = np.zeros((len(indices), 2), dtype=np.int64)
        made = draw_pairs(
            strings, lengths, *keys, *split_buckets(split), self.kind,
            self._shortest(size), size, self.alphabet, *self.letter_range,
            self.edits == "uniform", self.rejection == "pair", self.near_lengths,
        )  # fmt: skip
        if not made:
            raise InputError(
                f"no {split} example of {self.name} after {MAX_TRIES} tries: "
                f"strings of length {size} over {self.letter_range[1]} letters are too few to split"
            )
        answers = self._prefix_answers(strings, lengths)
        whole = np.take_along_axis(answers, lengths[:, 1:], axis=1)[:, 0]
        return self._encode(strings, lengths, whole, size), lengths, answers

    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        return {"accuracy": masked_accuracy(prediction, batch)}

    def render(self, inputs: np.ndarray) -> str:
        symbols = dict(enumerate(LETTERS[: self.alphabet] + "|", start=1))
        return "".join(symbols.get(int(token), "") for token in inputs)

    def parse(self, text: str) -> np.ndarray:
        """Two strings, the first of 1 to `length` letters (training has seen less than `length` if `min_length` is)."""
        first, bar, second = text.strip().partition("|")
        require(bool(bar) and "|" not in second, f"expected two strings with a bar between, like ab|ba, got {text!r}")
        letters = LETTERS[: self.alphabet]
        for strange in sorted(set(first + second) - set(letters)):
            raise InputError(f"expected letters {letters[0]}-{letters[-1]} only, got {strange!r} in {text!r}")
        self._check_lengths(first, second, 1)
        strings = np.zeros((1, 2, self.length + self._slack), dtype=np.int8)
        for part, string in enumerate((first, second)):
            strings[0, part, : len(string)] = [letters.index(letter) for letter in string]
        lengths = np.array([[len(first), len(second)]])
        return self._encode(strings, lengths, np.zeros(1, dtype=np.int64), self.length).inputs[0]

    def answer(self, outputs: np.ndarray) -> str:
        return str(int(outputs[-1]))

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        first, second = self._pair(inputs)
        return {"first": first, "second": second, "answer": int(outputs[-1])}

    def solve(self, inputs: np.ndarray) -> str:
        return str(self.reference(*self._pair(inputs)))

    def unlike_examples(self, inputs: np.ndarray) -> str | None:
        """By the lengths and, up to LONGEST_USUAL, by the number of letters and by the true answer, each alone."""
        first, second = self._pair(inputs)
        try:
            self._check_lengths(first, second, self._shortest(self.length))
        except InputError as error:
            return str(error)
        if self.length > LONGEST_USUAL:
            return None
        usual = _usual(self)
        unusual = [
            _outside("number of different letters", len(set(first + second)), usual["letters"]),
            _outside("answer", self.reference(first, second), usual["answer"]),
        ]
        return " and ".join(filter(None, unusual)) or None

    def verify(self, example: dict[str, Any]) -> None:
        first, second, answer = typed_fields(example, first=str, second=str, answer=int)
        pair = f"{first}|{second}"
        require(self.render(self.parse(pair)) == pair, f"expected strings of letters alone, got {pair!r}")
        self._check_lengths(first, second, self._shortest(self.length))
        expected = self.reference(first, second)
        require(answer == expected, f"expected the answer {expected} for {pair}, got {answer}")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        answers = [example["answer"] for example in examples]
        return {
            "answer": summary(answers),
            "majority_share": float(np.bincount(answers).max() / len(answers)),
            "first_length": summary([len(example["first"]) for example in examples]),
            "second_length": summary([len(example["second"]) for example in examples]),
            "letters": summary([len(set(example["first"] + example["second"])) for example in examples]),
        }

    def _pair(self, inputs: np.ndarray) -> tuple[str, str]:
        first, _, second = self.render(inputs).partition("|")
        return first, second

    @property
    def _slack(self) -> int:
        """How much longer than `length` the second string may be."""
        return LONGER if self.near_lengths else 0

    def _check_lengths(self, first: str, second: str, shortest: int) -> None:
        spans = [(shortest, self.length)] * 2
        if self.near_lengths:
            spans[1] = max(1, len(first) - SHORTER), len(first) + LONGER
        for name, string, (low, high) in zip(("first", "second"), (first, second), spans, strict=True):
            require(
                low <= len(string) <= high,
                f"expected a {name} string of {_span(low, high)} letters, got {len(string)} in '{first}|{second}'",
            )

    def _shortest(self, size: int) -> int:
        return size if self.min_length is None else min(self.min_length, size)

    def seq_len_at(self, size: int) -> int:
        """Both strings at their longest, the bar and the equals sign."""
        return 2 * size + self._slack + 2

    def _encode(self, strings: np.ndarray, lengths: np.ndarray, answers: np.ndarray, size: int) -> Batch:
        inputs = lay_out(strings, lengths, self.seq_len_at(size), self.alphabet)
        targets = np.zeros(inputs.shape, dtype=np.int64)
        targets[:, -1] = answers
        return Batch(inputs, targets, self.counted(inputs))


@lru_cache(maxsize=8)
def _usual(task: StringPairs) -> dict[str, Any]:
    """The statistics of the first test examples, drawn when a question is first asked."""
    return task.statistics(task.examples(0, "test", range(NUM_USUAL)))


def _outside(what: str, value: int, usual: dict[str, int]) -> str | None:
    low, high = usual["min"], usual["max"]
    if low <= value <= high:
        return None
    side = "below" if value < low else "above"
    return f"its {what}, {value}, is {side} those of the test examples ({_span(low, high)})"


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class EditDistance(StringPairs):
    """Least cost of turning the first string into the second."""

    name: ClassVar[str] = "edit-distance"

    min_letters: int = 3
    """fewest different letters that a pair is drawn from"""
    max_letters: int = 10
    """most different letters that a pair is drawn from"""
    insert_cost: int = 2
    """cost of inserting a letter"""
    delete_cost: int = 2
    """cost of deleting a letter"""
    replace_cost: int = 3
    """cost of replacing a letter"""
    borders: Literal["true", "unit"] = "true"
    """cost of leading insertions and deletions: the true one, or 1 as in the code that the paper followed"""

    def __post_init__(self) -> None:
        super().__post_init__()
        costs = self.insert_cost, self.delete_cost, self.replace_cost
        require(min(costs) >= 1 and max(costs) <= 7, f"each cost must be in 1..7, got {costs}")

    @property
    def kind(self) -> int:
        return EDITED

    @property
    def letter_range(self) -> tuple[int, int]:
        return self.min_letters, self.max_letters

    @property
    def largest_answer(self) -> int:
        """No distance exceeds replacing the shorter string's letters and adding or removing the rest."""
        replace = min(self.replace_cost, self.insert_cost + self.delete_cost)
        if not self.near_lengths:
            return self.length * max(replace, self.insert_cost, self.delete_cost)
        # The second string has at least one letter, its shortest prefix none.
        removed = self.length if self.answers == "prefixes" else min(SHORTER, self.length - 1)
        longer = self.length * replace + LONGER * self.insert_cost
        shorter = (self.length - removed) * replace + removed * self.delete_cost
        return max(longer, shorter)

    def _prefix_answers(self, strings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return edit_distances(strings, lengths, *self._costs)

    def reference(self, first: str, second: str) -> int:
        insert, delete, replace, border_insert, border_delete = self._costs
        row = [border_insert * j for j in range(len(second) + 1)]
        for i, a in enumerate(first, 1):
            above, row = row, [border_delete * i]
            for j, b in enumerate(second, 1):
                row.append(min(row[-1] + insert, above[j] + delete, above[j - 1] + (replace if a != b else 0)))
        return row[-1]

    @property
    def _costs(self) -> tuple[int, int, int, int, int]:
        costs = self.insert_cost, self.delete_cost, self.replace_cost
        return (*costs, self.insert_cost, self.delete_cost) if self.borders == "true" else (*costs, 1, 1)


@dataclass(frozen=True)
class LongestCommonSubsequence(StringPairs):
    """Most letters that both strings have in the same order."""

    name: ClassVar[str] = "lcs"

    length: int = 60
    """length of the first string, n"""
    pairs: Literal["uniform", "own-letters", "edited"] = "uniform"
    """both strings uniform over the alphabet (the paper), each over its own letters, or as for edit distance"""
    min_letters: int | None = None
    """fewest different letters that a string is drawn from (None: all if uniform, 8 of its own, 3 if edited)"""
    max_letters: int | None = None
    """most different letters that a string is drawn from (None: all if uniform, 8 of its own, 10 if edited)"""

    @property
    def kind(self) -> int:
        return KINDS[self.pairs]

    @property
    def letter_range(self) -> tuple[int, int]:
        fewest, most = {"uniform": (self.alphabet, self.alphabet), "own-letters": (8, 8), "edited": (3, 10)}[self.pairs]
        return (
            min(fewest, self.alphabet) if self.min_letters is None else self.min_letters,
            min(most, self.alphabet) if self.max_letters is None else self.max_letters,
        )

    @property
    def largest_answer(self) -> int:
        return self.length

    def _prefix_answers(self, strings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return common_subsequences(strings, lengths)

    def reference(self, first: str, second: str) -> int:
        row = [0] * (len(second) + 1)
        for a in first:
            above, row = row, [0]
            for j, b in enumerate(second, 1):
                row.append(above[j - 1] + 1 if a == b else max(row[-1], above[j]))
        return row[-1]
