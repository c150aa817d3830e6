from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.tasks.countdown.search import EQUALS, MINUS, OPERATORS, OVER, PLUS, TIMES, ZERO, search
from looped.tasks.countdown.task import Countdown, solution_fault
from looped.utils.errors import InputError
from tests.refusal import refused

PAPER_INPUT = "58 84 48 62 -> 96"
PAPER_SOLUTION = "62 - 58 = 4, 48 / 4 = 12, 84 + 12 = 96"


@cache
def reachable(numbers: tuple[int, ...]) -> frozenset[int]:
    """Return the values of all trees over the numbers, by splitting the numbers in two in every way."""
    if len(numbers) == 1:
        return frozenset(numbers)
    values = set()
    places = range(len(numbers))
    for size in range(1, len(numbers)):
        for chosen in combinations(places, size):
            left = reachable(tuple(sorted(numbers[i] for i in chosen)))
            right = reachable(tuple(sorted(numbers[i] for i in places if i not in chosen)))
            for a in left:
                for b in right:
                    values |= {a + b, a * b}
                    if a >= b:
                        values.add(a - b)
                    if b and a % b == 0:
                        values.add(a // b)
    return frozenset(values)


def tokens_of(solution: str) -> list[int]:
    symbols = {"+": PLUS, "*": TIMES, "-": MINUS, "/": OVER, "=": EQUALS}
    return [symbols[word] if word in symbols else ZERO + int(word) for word in solution.replace(",", "").split()]


def batch_of(text: str, solution: str):
    """Return a batch of one example, with the solution both as stored answer and as prediction."""
    task = Countdown()
    inputs = task.parse(text)
    outputs = np.array([*inputs[:5], *tokens_of(solution)])
    batch = task.sample(0, "train", [0])
    return batch._replace(inputs=inputs[None], targets=outputs[None])


def searched(numbers, target: int) -> str | None:
    """Return the result of the fast search as text. It stores the steps from the last to the first."""
    steps = np.zeros((3, 4), dtype=np.int64)
    if not search(numbers, 4, target, Countdown().largest_number, steps):
        return None
    return ", ".join(f"{a} {OPERATORS[operator - PLUS]} {b} = {c}" for a, operator, b, c in steps[::-1].tolist())


def test_solvability_and_labels_equal_splitting_in_two():
    task, rng, num_solvable = Countdown(), np.random.default_rng(1), 0
    for number in range(2000):
        numbers, target = rng.integers(1, 100, 4), int(rng.integers(10, 101))
        solution = searched(numbers, target)
        assert (solution is not None) == (target in reachable(tuple(sorted(map(int, numbers)))))
        if solution is not None:
            num_solvable += 1
            assert solution_fault(numbers.tolist(), target, solution) is None
        if number < 300:
            assert solution == task.solve(task.parse(f"{' '.join(map(str, numbers))} -> {target}"))
    # 13 % of draws are solvable: 260 of 2,000, and five standard deviations on each side
    assert 185 <= num_solvable <= 335


def test_fast_search_equals_the_plain_search():
    task = Countdown()
    for split in ("train", "validation", "test"):
        batch = task.sample(3, split, range(150))
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            assert task.answer(targets) == task.solve(inputs)


def test_paper_example_has_the_printed_answer():
    task = Countdown()
    assert task.solve(task.parse(PAPER_INPUT)) == PAPER_SOLUTION
    assert task.parse(PAPER_INPUT).tolist() == [ZERO + n for n in (58, 84, 48, 62, 96)] + [0] * 15
    batch = batch_of(PAPER_INPUT, PAPER_SOLUTION)
    assert task.answer(batch.targets[0]) == PAPER_SOLUTION
    assert task.describe(batch.inputs[0], batch.targets[0]) == {
        "numbers": [58, 84, 48, 62],
        "target": 96,
        "solution": PAPER_SOLUTION,
    }


def test_score_accepts_another_solution_without_exact_match():
    task = Countdown()
    batch = batch_of(PAPER_INPUT, PAPER_SOLUTION)
    other = batch_of(PAPER_INPUT, "62 - 58 = 4, 48 / 4 = 12, 12 + 84 = 96").targets
    assert task.score(other, batch) == {"accuracy": [1.0], "exact_match": [0.0]}
    assert task.score(batch.targets, batch) == {"accuracy": [1.0], "exact_match": [1.0]}
    assert task.is_right(batch.inputs[0], other[0], PAPER_SOLUTION)


@pytest.mark.parametrize(
    "wrong",
    [
        "62 - 58 = 5, 48 / 4 = 12, 84 + 12 = 96",  # a false step
        "62 - 58 = 4, 48 / 4 = 12, 48 * 2 = 96",  # numbers that are not available
        "48 + 48 = 96, 62 - 58 = 4, 84 + 12 = 96",  # one number twice
        "62 - 58 = 4, 48 / 4 = 12, 84 - 12 = 72",  # true, but another target
        "84 + 12 = 96, 62 - 58 = 4, 48 / 4 = 12",  # a result is used before its step
    ],
)
def test_wrong_answer_scores_zero_and_fails_verify(wrong):
    task = Countdown()
    batch = batch_of(PAPER_INPUT, PAPER_SOLUTION)
    assert task.score(batch_of(PAPER_INPUT, wrong).targets, batch) == {"accuracy": [0.0], "exact_match": [0.0]}
    assert not task.is_right(batch.inputs[0], batch_of(PAPER_INPUT, wrong).targets[0], PAPER_SOLUTION)
    assert solution_fault([58, 84, 48, 62], 96, wrong)
    with pytest.raises(InputError):
        task.verify({"numbers": [58, 84, 48, 62], "target": 96, "solution": wrong})


def test_verify_huge_number_raises():
    digits = "1" * 5000
    with refused("solution", 10):
        Countdown().verify({"numbers": [1, 2], "target": 10, "solution": f"1 + 2 = {digits}"})


def test_division_by_zero_is_wrong():
    text = "7 7 12 12 -> 12"
    for wrong in ("7 - 7 = 0, 12 - 12 = 0, 0 / 0 = 12", "7 - 7 = 0, 12 / 0 = 0, 0 + 12 = 12"):
        assert Countdown().score(batch_of(text, wrong).targets, batch_of(text, wrong))["accuracy"] == [0.0]
    right = batch_of(text, "7 - 7 = 0, 0 / 12 = 0, 0 + 12 = 12")
    assert Countdown().score(right.targets, right)["accuracy"] == [1.0]


@given(st.data())
@settings(deadline=None)
def test_score_of_random_answers_equals_the_text_checker(data):
    """Compare the checkers on tokens and on text over answers that are nearly right."""
    task = Countdown()
    batch = task.sample(data.draw(st.integers(0, 5)), "train", [data.draw(st.integers(0, 500))])
    prediction = batch.targets.copy()
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.integers(5, 19))
        prediction[0, place] = data.draw(st.sampled_from(prediction[0].tolist()) | st.integers(1, 120))
    example = task.describe(batch.inputs[0], prediction[0])
    fault = solution_fault(example["numbers"], example["target"], example["solution"])
    assert task.score(prediction, batch)["accuracy"][0] == (fault is None)


@given(st.lists(st.integers(1, 99), min_size=4, max_size=4), st.integers(10, 100))
@settings(deadline=None)
def test_parse_reads_rendered_inputs_back(numbers, target):
    text = f"{' '.join(map(str, numbers))} -> {target}"
    assert Countdown().render(Countdown().parse(text)) == text


def test_every_number_and_symbol_has_its_own_token():
    task = Countdown()
    assert len({0, PLUS, TIMES, MINUS, OVER, EQUALS, ZERO}) == 7
    assert max(PLUS, TIMES, MINUS, OVER, EQUALS) < ZERO
    assert task.spec.output_size == ZERO + 9900 + 1


def test_no_solution_exceeds_largest_number():
    """Find the largest number in any solution of a small task by trying everything, without a limit on results."""
    task = Countdown(max_input=5, min_target=2, max_target=7)

    def largest_on_the_way(numbers: tuple[int, ...], target: int, so_far: int) -> int:
        if len(numbers) == 1:
            return so_far if numbers[0] == target else 0
        best = 0
        for i, j in combinations(range(len(numbers)), 2):
            a, b = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
            rest = tuple(number for k, number in enumerate(numbers) if k not in (i, j))
            results = {a + b, a * b, a - b} | ({a // b} if b and a % b == 0 else set())
            for result in results:
                best = max(best, largest_on_the_way((*rest, result), target, max(so_far, result)))
        return best

    rng = np.random.default_rng(0)
    hands = {tuple(sorted(hand)) for hand in rng.integers(1, 6, (60, 4)).tolist()} | {(5, 5, 5, 5)}
    found = max(largest_on_the_way(hand, target, 0) for hand in hands for target in range(2, 8))
    assert found <= task.largest_number == 35
    # and the bound is met: 99 * 99 + 99 = 9900 = 100 * 99
    assert solution_fault([99, 99, 99, 99], 100, "99 * 99 = 9801, 9801 + 99 = 9900, 9900 / 99 = 100") is None
    assert Countdown().largest_number == 9900


def test_max_result_limits_every_step():
    task = Countdown(max_result=200)
    batch = task.sample(0, "train", range(500))
    assert (batch.targets - ZERO).max() <= 200
    assert task.spec.output_size == ZERO + 201
    assert task.score(batch.targets, batch)["accuracy"].all()


def test_verify_accepts_only_the_first_solution_within_the_limits():
    example = {"numbers": [99, 99, 99, 99], "target": 100, "solution": "99 / 99 = 1, 99 * 1 = 99, 99 + 1 = 100"}
    with refused("solution", "99 + 1 = 100"):
        Countdown().verify(example)
    example["solution"] = "99 * 99 = 9801, 99 + 9801 = 9900, 9900 / 99 = 100"
    Countdown().verify(example)  # a result is appended to the remaining numbers
    with refused("solution"):
        Countdown(max_result=500).verify(example)


def test_splits_share_no_numbers_and_no_held_out_targets():
    task = Countdown()
    held_out = set(task.held_out_targets)
    assert len(held_out) == 9
    assert held_out <= set(range(10, 101))
    numbers, targets = {}, {}
    for split in ("train", "validation", "test"):
        given_ = task.sample(7, split, range(2000)).inputs[:, :5] - ZERO
        numbers[split] = {tuple(sorted(row[:4])) for row in given_.tolist()}
        targets[split] = set(given_[:, 4].tolist())
    assert targets["test"] == held_out
    assert not (targets["train"] | targets["validation"]) & held_out
    assert not numbers["train"] & (numbers["validation"] | numbers["test"])
    assert not numbers["validation"] & numbers["test"]
    on_trained = Countdown(test_targets="training").sample(7, "test", range(500)).inputs
    assert not set((on_trained[:, 4] - ZERO).tolist()) & held_out
    assert {tuple(sorted(row)) for row in (on_trained[:, :4] - ZERO).tolist()}.isdisjoint(numbers["train"])


def test_statistics_equal_the_published_ones():
    """In 31 % of solutions a number is above 99. The 99th percentile of the largest number is about 4200."""
    task = Countdown()
    batch = task.sample(11, "train", range(20_000))
    examples = [task.describe(i, t) for i, t in zip(batch.inputs, batch.targets, strict=True)]
    found = task.statistics(examples)
    assert found["largest_intermediate"]["share_above_99"] == pytest.approx(0.31, abs=0.02)
    assert found["largest_intermediate"]["percentile_99"] == pytest.approx(4200, rel=0.1)
    assert 8000 < found["largest_intermediate"]["max"] <= 9900
    assert sum(found["operators"].values()) == pytest.approx(1)
    # counted a second way, from the tokens
    operators = batch.targets[:, [6, 11, 16]]
    assert found["operators"]["-"] == pytest.approx((operators == MINUS).mean())


def test_unlike_examples_describes_fewer_numbers():
    task = Countdown()
    assert task.unlike_examples(task.parse("25 3 8 -> 75")) == "expected 4 numbers, got 3"
    assert task.unlike_examples(task.parse("25 3 8 50 -> 75")) is None


def test_sample_of_smaller_size_has_shorter_examples():
    task = Countdown()
    batch = task.sample(0, "train", range(50), size=3)
    assert batch.inputs.shape == (50, 3 + 1 + 10)
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        task.verify(task.describe(inputs, targets))
        assert np.array_equal(task.parse(task.render(inputs)), inputs)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("58 84 48 62 96", ["'58 84 48 62 96'"]),
        ("58 84 48 620 -> 96", ["1..99", 620]),
        ("58 84 48 62 -> 101", ["10..100", 101]),
        ("58 84 48 62 3 -> 96", [2, 4, 5]),
        ("58 84 a 62 -> 96", []),
        (f"{'1' * 5000} 2 -> 20", []),
        (f"1 2 -> {'1' * 5000}", []),
    ],
)
def test_parse_invalid_text_raises(text, values):
    with refused(None, *values):
        Countdown().parse(text)


def test_invalid_settings_raise_with_the_field():
    for field, value in (("count", 5), ("max_target", 1), ("held_out", 1.0), ("max_result", 60), ("held_out", 0.0)):
        with pytest.raises(InputError) as caught:
            Countdown(**{field: value})
        assert caught.value.field == f"task.{field}"
    with pytest.raises(InputError) as caught:
        Countdown(max_target=5)
    assert caught.value.field == "task.min_target"
    with pytest.raises(InputError) as caught:
        Countdown(min_target=10, max_target=11, held_out=0.8)
    assert caught.value.field == "task.held_out"
    assert len(Countdown(min_target=10, max_target=11, held_out=0.7).targets_of("train")) == 1
    with refused("countdown"):
        Countdown(count=2, max_input=2, min_target=50, max_target=60).sample(0, "train", [0])
