"""Tasks on two strings: edit distance and longest common subsequence (the paper's appendix on reasoning tasks).

An example is `first | second pad ... =`. The answer is a class, read at `=`, the last position. With the setting
`answers`, training also learns the answers for all prefixes of the second string. Tests read only the one at `=`.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from looped.tasks.base import (
    Batch,
    Spec,
    Split,
    draw_keys,
    masked_accuracy,
    split_buckets,
    summary,
    typed_fields,
)
from looped.tasks.files import FileTask, field_of
from looped.tasks.strings.alignment import common_subsequences, edit_distances
from looped.tasks.strings.pairs import (
    EDITED,
    LONGER,
    MAX_TRIES,
    OWN_LETTERS,
    SHORTER,
    UNIFORM,
    PairSettings,
    draw_pairs,
    lay_out,
)
from looped.utils.errors import InputError, require, require_field, require_within

LETTERS = "abcdefghijklmnopqrstuvwxyz"
KINDS = {"uniform": UNIFORM, "own-letters": OWN_LETTERS, "edited": EDITED}

# The first NUM_USUAL test examples define the usual range. A further test example is outside the range of N examples
# with a probability of at most 2 / (N + 1), so false warnings are rare.
NUM_USUAL = 10_000
LONGEST_USUAL = 100  # drawing NUM_USUAL pairs of this length takes two or three seconds


@dataclass(frozen=True)
class StringPairs(FileTask):
    """The common part of the string tasks: drawing, layout, parsing and rendering of pairs."""

    length: int = 40
    """length of the first string, n"""
    min_length: int | None = None
    """shortest first string; lengths are uniform from here to `length` (None: always `length`)"""
    alphabet: int = 26
    """number of letters in the alphabet"""
    edits: Literal["length", "uniform"] = "length"
    """number of random edits of a copy: n (the paper), or uniform in 1..n"""
    rejection: Literal["second", "pair"] = "second"
    """part that is drawn again if the copy's length is out of range: the copy (the paper), or the whole pair"""
    lengths: Literal["near", "any"] = "near"
    """length of an edited pair's second string: n-3 to n+2 (the paper), or any from min_length to length"""
    answers: Literal["last", "prefixes"] = "last"
    """training targets: the answer at `=` (the paper), or also the answer for every prefix of the second string"""
    answer_weight: float = 4.0
    """loss weight of the answer at `=` relative to that of a prefix (with `answers=prefixes`)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_within("task.length", self.length, 1, 4096)
        shortest = self.length if self.min_length is None else self.min_length
        require_within("task.min_length", shortest, 1, self.length, " (length)")
        require_within("task.alphabet", self.alphabet, 2, 26)
        fewest, most = self.letter_range
        require_within("task.max_letters", most, 1, self.alphabet, " (alphabet)")
        require_within("task.min_letters", fewest, 1, most, " (max_letters)")
        is_weight = 0 < self.answer_weight < math.inf
        require_field(is_weight, "task.answer_weight", "a positive, finite number", self.answer_weight)

    @property
    @abstractmethod
    def kind(self) -> int:
        """Return the kind of pairs: UNIFORM, OWN_LETTERS or EDITED."""

    @property
    def near_lengths(self) -> bool:
        """Return True if the second string's length depends on the first's."""
        return self.kind == EDITED and self.lengths == "near"

    @property
    @abstractmethod
    def letter_range(self) -> tuple[int, int]:
        """Return the smallest and the largest number of distinct letters that a string is drawn from."""

    @property
    @abstractmethod
    def largest_answer(self) -> int:
        """Return the largest possible answer, which sets the number of classes."""

    @abstractmethod
    def _prefix_answers(self, strings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the answers of many pairs for all prefixes of the second strings, in the layout of `alignment`."""

    @abstractmethod
    def reference(self, first: str, second: str) -> int:
        """Return the answer of one pair by the textbook recurrence, which also tests the fast code."""

    @property
    def size(self) -> int:
        return self.length

    @property
    def spec(self) -> Spec:
        return Spec("tokens", self.alphabet + 3, self.largest_answer + 1, self.seq_len_at(self.length))

    def generate(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        size = self.checked_size(size)
        return self._solve(*self._draw(seed, split, indices, size), size)[0]

    def from_rows(self, *arrays: np.ndarray) -> Batch:
        strings, lengths = arrays
        return self._solve(strings, lengths, self.length)[0]

    def read_row(self, row: dict[str, Any]) -> tuple[np.ndarray, ...]:
        """Return the two strings as letters, and their lengths. The answer is computed, and compared if it is given."""
        first, second = field_of(row, "first", str), field_of(row, "second", str)
        strings, lengths = self._read_pair(f"{first}|{second}")
        if row.get("answer", "") != "":  # an empty cell of a CSV is a missing answer
            answers = self._prefix_answers(strings[None], lengths[None])[0]
            stated, expected = field_of(row, "answer", int), int(answers[lengths[1]])
            require(stated == expected, f"answer: expected {expected} for {first}|{second}, got {stated}")
        return strings, lengths

    def training_batch(self, seed: int, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        if self.answers == "last":
            return super().training_batch(seed, indices, size)
        size = self.checked_size(size)
        if self.file is None:
            strings, lengths = self._draw(seed, "train", indices, size)
        else:
            strings, lengths = self.rows_at(seed, "train", indices, size)
        batch, answers = self._solve(strings, lengths, size)
        # The bar follows the first string, and letter j of the second string is j positions after the bar.
        letter = np.arange(batch.inputs.shape[1]) - lengths[:, :1]
        ends_prefix = (letter >= 0) & (letter <= lengths[:, 1:])
        at_prefixes = np.take_along_axis(answers, letter.clip(0, answers.shape[1] - 1), axis=1)
        targets = np.where(ends_prefix, at_prefixes, batch.targets)
        weights = np.where(batch.mask, self.answer_weight, ends_prefix)
        return Batch(batch.inputs, targets, weights.astype(np.float32))

    def _draw(
        self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return new pairs of strings, as letters, and their lengths."""
        keys = draw_keys(seed, split, indices)
        strings = np.zeros((len(indices), 2, size + self._slack), dtype=np.int8)
        lengths = np.zeros((len(indices), 2), dtype=np.int64)
        min_letters, max_letters = self.letter_range
        settings = PairSettings(
            self.kind,
            self._shortest(size),
            size,
            self.alphabet,
            min_letters,
            max_letters,
            uniform_edits=self.edits == "uniform",
            redraw_pair=self.rejection == "pair",
            near_lengths=self.near_lengths,
        )
        require(
            draw_pairs(strings, lengths, *keys, *split_buckets(split), settings),
            f"{self.name}: expected a {split} example, got none in {MAX_TRIES} tries. "
            f"There are too few strings of length {size} over {max_letters} letters.",
        )
        return strings, lengths

    def _solve(self, strings: np.ndarray, lengths: np.ndarray, size: int) -> tuple[Batch, np.ndarray]:
        """Return the examples of pairs, and the answers for all prefixes of the second strings."""
        answers = self._prefix_answers(strings, lengths)
        last_answers = np.take_along_axis(answers, lengths[:, 1:], axis=1)[:, 0]
        return self._encode(strings, lengths, last_answers, size), answers

    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        return {"accuracy": masked_accuracy(prediction, batch)}

    def render(self, inputs: np.ndarray) -> str:
        symbols = dict(enumerate(LETTERS[: self.alphabet] + "|", start=1))
        return "".join(symbols.get(int(token), "") for token in inputs)

    def parse(self, text: str) -> np.ndarray:
        """Return the tokens of two strings such as `ab|ba`, the first of 1 to `length` letters."""
        strings, lengths = self._read_pair(text)
        return self._encode(strings[None], lengths[None], np.zeros(1, dtype=np.int64), self.length).inputs[0]

    def _read_pair(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the letters and the lengths of two strings such as `ab|ba`."""
        first, bar, second = text.strip().partition("|")
        require(bool(bar) and "|" not in second, f"expected two strings with a bar such as ab|ba, got {text!r}")
        letters = LETTERS[: self.alphabet]
        for symbol in sorted(set(first + second) - set(letters)):
            raise InputError(f"expected only letters {letters[0]}-{letters[-1]}, got {symbol!r} in {text!r}")
        self._check_lengths(first, second, 1)
        strings = np.zeros((2, self.length + self._slack), dtype=np.int8)
        for part, string in enumerate((first, second)):
            strings[part, : len(string)] = [letters.index(letter) for letter in string]
        return strings, np.array([len(first), len(second)])

    def answer(self, outputs: np.ndarray) -> str:
        return str(int(outputs[-1]))

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        first, second = self._pair(inputs)
        return {"first": first, "second": second, "answer": int(outputs[-1])}

    def solve(self, inputs: np.ndarray) -> str:
        return str(self.reference(*self._pair(inputs)))

    def verdict(self, inputs: np.ndarray, outputs: np.ndarray, truth: str | None) -> str:
        """Return whether the answer is right, or how far it is off."""
        if truth is None or self.answer(outputs) == truth:
            return super().verdict(inputs, outputs, truth)
        return f"wrong: {self.answer(outputs)} is off by {abs(int(self.answer(outputs)) - int(truth))}"

    def unlike_examples(self, inputs: np.ndarray) -> str | None:
        """Describe lengths, numbers of letters and answers that no test example has, or return None.

        Strings above LONGEST_USUAL letters are compared by their lengths only.
        """
        first, second = self._pair(inputs)
        try:
            self._check_lengths(first, second, self._shortest(self.length))
        except InputError as error:
            return str(error)
        if self.length > LONGEST_USUAL:
            return None
        test = _test_statistics(self)
        differences = [
            _outside("number of different letters", len(set(first + second)), test["letters"]),
            _outside("answer", self.reference(first, second), test["answer"]),
        ]
        return " and ".join(filter(None, differences)) or None

    def verify(self, example: dict[str, Any]) -> None:
        first, second, answer = typed_fields(example, first=str, second=str, answer=int)
        pair = f"{first}|{second}"
        require(self.render(self.parse(pair)) == pair, f"first and second: expected only letters, got {pair!r}")
        self._check_lengths(first, second, self._shortest(self.length))
        expected = self.reference(first, second)
        require(answer == expected, f"answer: expected {expected} for {pair}, got {answer}")

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
        """Return the number of letters by which the second string may exceed `length`."""
        return LONGER if self.near_lengths else 0

    def _check_lengths(self, first: str, second: str, shortest: int) -> None:
        spans = [(shortest, self.length)] * 2
        if self.near_lengths:
            spans[1] = max(1, len(first) - SHORTER), len(first) + LONGER
        for name, string, (low, high) in zip(("first", "second"), (first, second), spans, strict=True):
            require(
                low <= len(string) <= high,
                f"{name} string: expected {_span(low, high)} letters, got {len(string)} in '{first}|{second}'",
            )

    def _shortest(self, size: int) -> int:
        return size if self.min_length is None else min(self.min_length, size)

    def seq_len_at(self, size: int) -> int:
        """Return the length of both strings at their longest, the bar and the equals sign."""
        return 2 * size + self._slack + 2

    def _encode(self, strings: np.ndarray, lengths: np.ndarray, answers: np.ndarray, size: int) -> Batch:
        inputs = lay_out(strings, lengths, self.seq_len_at(size), self.alphabet)
        targets = np.zeros(inputs.shape, dtype=np.int64)
        targets[:, -1] = answers
        return Batch(inputs, targets, self.counted(inputs))


@lru_cache(maxsize=8)
def _test_statistics(task: StringPairs) -> dict[str, Any]:
    """Return the statistics of the first test examples."""
    return task.statistics(task.examples(0, "test", range(NUM_USUAL)))


def _outside(quantity: str, value: int, test_range: dict[str, int]) -> str | None:
    """Describe how a value falls outside the range of the test examples, or return None."""
    low, high = test_range["min"], test_range["max"]
    if low <= value <= high:
        return None
    side = "below" if value < low else "above"
    return f"its {quantity}, {value}, is {side} those of the test examples ({_span(low, high)})"


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class EditDistance(StringPairs):
    """Least cost of edits that turn the first string into the second."""

    name: ClassVar[str] = "edit-distance"

    min_letters: int = 3
    """fewest distinct letters that a pair is drawn from"""
    max_letters: int = 10
    """most distinct letters that a pair is drawn from"""
    insert_cost: int = 2
    """cost of inserting a letter"""
    delete_cost: int = 2
    """cost of deleting a letter"""
    replace_cost: int = 3
    """cost of replacing a letter"""
    borders: Literal["true", "unit"] = "true"
    """cost of leading insertions and deletions: the true cost, or 1 as in the code that the paper followed"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("insert_cost", "delete_cost", "replace_cost"):
            require_within(f"task.{name}", getattr(self, name), 1, 7)

    @property
    def kind(self) -> int:
        return EDITED

    @property
    def letter_range(self) -> tuple[int, int]:
        return self.min_letters, self.max_letters

    @property
    def largest_answer(self) -> int:
        """Return the cost of replacing every letter of the shorter string and inserting or deleting the rest."""
        replace = min(self.replace_cost, self.insert_cost + self.delete_cost)
        if not self.near_lengths:
            return self.length * max(replace, self.insert_cost, self.delete_cost)
        # The second string has at least one letter; its shortest prefix has none.
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

    def verdict(self, inputs: np.ndarray, outputs: np.ndarray, truth: str | None) -> str:
        """Return whether the answer is right, which costs it counts, and the plain distance with unit costs."""
        plain = replace(self, insert_cost=1, delete_cost=1, replace_cost=1).reference(*self._pair(inputs))
        costs = f"insert {self.insert_cost}, delete {self.delete_cost}, replace {self.replace_cost}"
        return f"{super().verdict(inputs, outputs, truth)} (costs: {costs}; the plain distance is {plain})"

    @property
    def _costs(self) -> tuple[int, int, int, int, int]:
        costs = self.insert_cost, self.delete_cost, self.replace_cost
        return (*costs, self.insert_cost, self.delete_cost) if self.borders == "true" else (*costs, 1, 1)


@dataclass(frozen=True)
class LongestCommonSubsequence(StringPairs):
    """Length of the longest sequence of letters that both strings contain in order."""

    name: ClassVar[str] = "lcs"

    length: int = 60
    """length of the first string, n"""
    pairs: Literal["uniform", "own-letters", "edited"] = "uniform"
    """kind of pairs: uniform over the alphabet (the paper), over letters of each string, or as for edit distance"""
    min_letters: int | None = None
    """fewest distinct letters that a string is drawn from (None: all if uniform, 8 if own-letters, 3 if edited)"""
    max_letters: int | None = None
    """most distinct letters that a string is drawn from (None: all if uniform, 8 if own-letters, 10 if edited)"""

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
