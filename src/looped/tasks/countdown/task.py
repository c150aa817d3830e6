"""Countdown (Section 5 and the appendix of the paper): combine numbers with + - * / to reach a target.

An example is `58 84 48 62 96`, then a blank for each token of the answer. The model predicts the answer
`62 - 58 = 4  48 / 4 = 12  84 + 12 = 96` at the blanks. Often several answers are right: `accuracy` accepts every valid
answer, `exact_match` only the stored one, which is the first in the order of `search.search`.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

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
from looped.tasks.countdown.search import (
    BLANK,
    EQUALS,
    MAX_COUNT,
    MAX_TRIES,
    OPERATORS,
    PLUS,
    STEP_TOKENS,
    ZERO,
    check_answers,
    draw_examples,
)
from looped.tasks.files import FileTask, field_of
from looped.utils.errors import InputError, require, require_field, require_within

_NUMBER = r"\d{1,9}"  # Python refuses to convert thousands of digits


@dataclass(frozen=True)
class Countdown(FileTask):
    """Reach a target from a few numbers, each used once, by steps with non-negative integer results."""

    name: ClassVar[str] = "countdown"

    count: int = 4
    """number of input numbers"""
    max_input: int = 99
    """largest input number; inputs are uniform in 1..max_input"""
    min_target: int = 10
    """smallest target"""
    max_target: int = 100
    """largest target"""
    held_out: float = 0.1
    """fraction of the targets that are excluded from training"""
    test_targets: Literal["held-out", "training"] = "held-out"
    """targets of the test split: the held-out ones, or the training targets with unseen numbers"""
    max_result: int | None = None
    """largest result of a step; examples with a larger one are drawn again (None: no limit)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_within("task.count", self.count, 2, MAX_COUNT)
        require_within("task.max_input", self.max_input, 2, 999)
        require_within("task.max_target", self.max_target, 2, 999)
        require_within("task.min_target", self.min_target, 2, self.max_target)
        require_field(0 <= self.held_out < 1, "task.held_out", "a number >= 0 and < 1", self.held_out)
        require_field(
            bool(self.held_out_targets) or self.test_targets == "training",
            "task.held_out",
            "at least one held-out target",
            f"{self.held_out}. Set task.test_targets to training to test without any",
        )
        targets = f"{self.min_target}..{self.max_target}"
        has_training = bool(self.targets_of("train"))
        require_field(has_training, "task.held_out", f"a training target among {targets}", self.held_out)
        least = max(self.max_input, self.max_target)
        fits = self.max_result is None or self.max_result >= least
        require_field(fits, "task.max_result", f"at least the largest input and target, {least}", self.max_result)

    @property
    def size(self) -> int:
        return self.count

    @property
    def spec(self) -> Spec:
        vocabulary = ZERO + self.largest_number + 1
        return Spec("tokens", vocabulary, vocabulary, _seq_len(self.count))

    def seq_len_at(self, size: int) -> int:
        return _seq_len(size)

    @property
    def largest_number(self) -> int:
        """Return the largest number that can occur. Let N be the largest input and T the largest target.

        A step on two inputs gives at most N * N. With four numbers, the second step may combine such a result with an
        input into P. The last step then makes the target from P and an input d. If it is P - d, P is at most T + N.
        If it is P / d, P is at most T * N. Otherwise P is smaller still.
        """
        bound = self.max_input * max(self.max_input, self.max_target)
        return bound if self.max_result is None else min(self.max_result, bound)

    @property
    def held_out_targets(self) -> tuple[int, ...]:
        """Return the targets excluded from training. A hash of the target selects them, whatever the seed."""
        targets = range(self.min_target, self.max_target + 1)
        by_hash = sorted(targets, key=lambda target: hashlib.sha256(str(target).encode()).digest())
        return tuple(sorted(by_hash[: round(self.held_out * len(targets))]))

    def targets_of(self, split: Split) -> tuple[int, ...]:
        """Return the possible targets of a split's examples."""
        held_out = self.held_out_targets
        if split == "test" and self.test_targets == "held-out":
            return held_out
        return tuple(target for target in range(self.min_target, self.max_target + 1) if target not in held_out)

    def generate(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        count = self.checked_size(size, least=2)
        keys = draw_keys(seed, split, indices)
        sequences = np.zeros((len(indices), _seq_len(count)), dtype=np.int64)
        targets, largest = np.array(self.targets_of(split)), self.largest_number
        buckets = split_buckets(split)
        is_complete = draw_examples(sequences, *keys, *buckets, count, self.max_input, targets, largest)
        require(
            is_complete,
            f"{self.name}: expected a {split} example, got none in {MAX_TRIES} tries. "
            f"{count} numbers up to {self.max_input} reach too few targets.",
        )
        return self.from_rows(sequences, sequences)

    def from_rows(self, *arrays: np.ndarray) -> Batch:
        _, sequences = arrays
        mask = self.counted(sequences)
        return Batch(np.where(mask, BLANK, sequences), sequences, mask)

    def read_row(self, row: dict[str, Any]) -> tuple[np.ndarray, ...]:
        """Return the numbers in order with the target, and the whole example. A missing solution is searched."""
        given, target = row.get("numbers"), field_of(row, "target", int)
        words = re.split(r"[\s,]+", given.strip("[] ")) if isinstance(given, str) else field_of(row, "numbers", list)
        inputs = self.parse(f"{' '.join(map(str, words))} -> {target}")
        numbers, _ = self._numbers_and_target(inputs)
        solution = row.get("solution") or self.solve(inputs)
        require(solution is not None, f"expected numbers that reach the target, got {self.render(inputs)}")
        fault = solution_fault(numbers, target, str(solution))
        require(fault is None, f"solution: expected {target} from {numbers}, got {solution!r}, where {fault}")
        symbols = {"=": EQUALS} | {symbol: PLUS + place for place, symbol in enumerate(OPERATORS)}
        sequence = inputs.copy()
        sequence[len(numbers) + 1 :] = [
            symbols[word] if word in symbols else ZERO + int(word) for word in str(solution).replace(",", " ").split()
        ]
        largest = self.spec.input_size - ZERO - 1
        require(sequence.max() < self.spec.input_size, f"solution: expected numbers up to {largest}, got {solution!r}")
        return np.array([*sorted(numbers), target]), sequence

    def test_sets(self) -> dict[str, Self]:
        names = {"held-out targets": "held-out", "training targets": "training"} if self.held_out_targets else {}
        return {name: replace(self, test_targets=targets) for name, targets in names.items()}

    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        valid = _check(batch.inputs, prediction)
        return {"accuracy": valid.astype(np.float64), "exact_match": masked_accuracy(prediction, batch)}

    def is_right(self, inputs: np.ndarray, outputs: np.ndarray, truth: str | None) -> bool:
        """Return True if the outputs are any valid solution. `truth` is only the first of them."""
        return bool(_check(inputs[None], outputs[None])[0])

    def verdict(self, inputs: np.ndarray, outputs: np.ndarray, truth: str | None) -> str:
        """Return whether the steps reach the target, or which step fails, or that whole numbers cannot reach it."""
        if self.is_right(inputs, outputs, truth):
            return "right"
        fault = solution_fault(*self._numbers_and_target(inputs), self.answer(outputs))
        return f"wrong: {fault}" + ("" if truth is not None else " (no solution exists in whole numbers)")

    def render(self, inputs: np.ndarray) -> str:
        numbers, target = self._numbers_and_target(inputs)
        return f"{' '.join(map(str, numbers))} -> {target}"

    def parse(self, text: str) -> np.ndarray:
        match = re.fullmatch(rf"\s*({_NUMBER}(?:\s+{_NUMBER})+)\s*->\s*({_NUMBER})\s*", text)
        if match is None:
            raise InputError(f"expected numbers and a target such as 58 84 48 62 -> 96, got {text!r}")
        numbers, target = [int(number) for number in match[1].split()], int(match[2])
        require(2 <= len(numbers) <= self.count, f"expected 2 to {self.count} numbers, got {len(numbers)} in {text!r}")
        for number in numbers:
            require(1 <= number <= self.max_input, f"expected numbers in 1..{self.max_input}, got {number} in {text!r}")
        require(
            self.min_target <= target <= self.max_target,
            f"expected a target in {self.min_target}..{self.max_target}, got {target} in {text!r}",
        )
        inputs = np.full(_seq_len(len(numbers)), BLANK, dtype=np.int64)
        inputs[: len(numbers) + 1] = [ZERO + number for number in [*numbers, target]]
        return inputs

    def answer(self, outputs: np.ndarray) -> str:
        symbols = {BLANK: "_", EQUALS: "="} | dict(enumerate(OPERATORS, PLUS))
        words = [symbols.get(int(token), str(int(token) - ZERO)) for token in outputs[_count_of(len(outputs)) + 1 :]]
        return ", ".join(" ".join(words[i : i + STEP_TOKENS]) for i in range(0, len(words), STEP_TOKENS))

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        numbers, target = self._numbers_and_target(inputs)
        return {"numbers": numbers, "target": target, "solution": self.answer(outputs)}

    def counted(self, inputs: np.ndarray) -> np.ndarray:
        mask = np.zeros(inputs.shape, dtype=np.bool_)
        mask[:, _count_of(inputs.shape[1]) + 1 :] = True
        return mask

    def solve(self, inputs: np.ndarray) -> str | None:
        """Return the first solution as text, from a plain search that also tests the fast one."""
        numbers, target = self._numbers_and_target(inputs)
        return next(_plain_solutions(numbers, target, self.largest_number), None)

    def unlike_examples(self, inputs: np.ndarray) -> str | None:
        numbers, _ = self._numbers_and_target(inputs)
        return None if len(numbers) == self.count else f"expected {self.count} numbers, got {len(numbers)}"

    def verify(self, example: dict[str, Any]) -> None:
        numbers, target, solution = typed_fields(example, numbers=list, target=int, solution=str)
        require(all(type(number) is int for number in numbers), f"numbers: expected integers, got {numbers}")
        inputs = self.parse(f"{' '.join(map(str, numbers))} -> {target}")
        if fault := solution_fault(numbers, target, solution):
            raise InputError(f"solution: expected {target} from {numbers}, got {solution!r}, where {fault}")
        first = self.solve(inputs)
        require(solution == first, f"solution: expected the first one, {first!r}, got {solution!r}")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the fraction of each operator and the sizes of the targets and of the intermediate results."""
        solutions = [[step.split() for step in example["solution"].split(", ")] for example in examples]
        operators = Counter(step[1] for steps in solutions for step in steps)
        largest = np.array([max((int(step[4]) for step in steps[:-1]), default=0) for steps in solutions])
        return {
            "target": summary([example["target"] for example in examples]),
            "operators": {operator: operators[operator] / operators.total() for operator in OPERATORS},
            "largest_intermediate": {
                "share_above_99": float(np.mean(largest > 99)),
                "percentile_99": float(np.percentile(largest, 99)),
                "max": int(largest.max()),
                "bound": self.largest_number,
            },
        }

    def _numbers_and_target(self, inputs: np.ndarray) -> tuple[list[int], int]:
        *numbers, target = (int(token) - ZERO for token in inputs[: _count_of(len(inputs)) + 1])
        return numbers, target


def solution_fault(numbers: Sequence[int], target: int, solution: str) -> str | None:
    """Return the fault of a solution such as `62 - 58 = 4, 48 / 4 = 12, 84 + 12 = 96`, or None if it is right."""
    remaining = Counter(numbers)
    result = None
    for step in solution.split(","):
        match = re.fullmatch(rf"\s*({_NUMBER}) ([-+*/]) ({_NUMBER}) = ({_NUMBER})\s*", step)
        if match is None:
            return f"{step.strip()!r} is not a step such as 62 - 58 = 4"
        a, b, result = int(match[1]), int(match[3]), int(match[4])
        for used in (a, b):
            if not remaining[used]:
                return f"{used} is not available in {step.strip()!r}"
            remaining[used] -= 1
        true = {"+": a + b == result, "*": a * b == result, "-": a - b == result, "/": b != 0 and a == b * result}
        if not true[match[2]]:
            return f"{step.strip()!r} is false"
        remaining[result] += 1
    if remaining.total() > 1:
        return f"{remaining.total() - 1} numbers are left over"
    return None if result == target else f"the last result is {result}"


def _plain_solutions(numbers: Sequence[int], target: int, largest: int) -> Iterator[str]:
    """Yield every solution as text, in the order of `search.search`."""
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            rest = [number for k, number in enumerate(numbers) if k not in (i, j)]
            low, high = sorted((numbers[i], numbers[j]))
            steps = [(numbers[i], "+", numbers[j], low + high), (numbers[i], "*", numbers[j], low * high)]
            steps.append((high, "-", low, high - low))
            if low and high % low == 0:
                steps.append((high, "/", low, high // low))
            for a, operator, b, result in steps:
                text = f"{a} {operator} {b} = {result}"
                if result > largest:
                    continue
                if rest:
                    yield from (f"{text}, {more}" for more in _plain_solutions([*rest, result], target, largest))
                elif result == target:
                    yield text


def _check(inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return (batch,) booleans: True where the outputs are a solution."""
    return check_answers(inputs, np.ascontiguousarray(outputs, dtype=np.int64), _count_of(inputs.shape[1]))


def _seq_len(count: int) -> int:
    return count + 1 + STEP_TOKENS * (count - 1)


def _count_of(seq_len: int) -> int:
    return (seq_len - 1 + STEP_TOKENS) // (1 + STEP_TOKENS)
