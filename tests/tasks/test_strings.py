"""Compare the string tasks with rapidfuzz, with independent formulas, and with the numbers of the appendix."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import LCSseq, Levenshtein

from looped.tasks import EditDistance, LongestCommonSubsequence
from looped.tasks.strings.alignment import common_subsequences, edit_distances
from looped.utils.errors import InputError
from tests.refusal import refused

WORDS = st.text("abc", max_size=12)
PAIRS = st.lists(st.one_of(st.tuples(WORDS, WORDS), WORDS.map(lambda word: (word, word))), min_size=1, max_size=70)
COSTS = st.integers(1, 7)


def as_arrays(pairs):
    strings = np.zeros((len(pairs), 2, max(1, *(len(word) for pair in pairs for word in pair))), dtype=np.int8)
    for row, pair in enumerate(pairs):
        for part, word in enumerate(pair):
            strings[row, part, : len(word)] = [ord(letter) - ord("a") for letter in word]
    return strings, np.array([[len(first), len(second)] for first, second in pairs])


def strings_of(task, batch):
    """Return both strings of each example, read from the documented token numbers."""
    bar = chr(task.alphabet + 1)
    for row in batch.inputs[:, :-1].astype(np.uint8):
        first, second = row.tobytes().decode("latin-1").rstrip("\0").split(bar)
        yield first, second


def sampled(task, count, seed=0, split="train"):
    batch = task.sample(seed, split, range(count))
    return list(strings_of(task, batch)), batch.targets[:, -1]


def assert_answers_for_prefixes(answers, pairs, answer):
    """Check the answers for all prefixes of every second string, and zeros beyond its end."""
    for row, (first, second) in zip(answers.tolist(), pairs, strict=True):
        expected = [answer(first, second[:end]) for end in range(len(second) + 1)]
        assert row == expected + [0] * (len(row) - len(expected))


@pytest.mark.parametrize(
    "task",
    [
        EditDistance(length=60),
        EditDistance(length=40, max_letters=26, rejection="pair"),
        EditDistance(length=25, min_length=1, edits="uniform", insert_cost=1, delete_cost=3, replace_cost=7),
        EditDistance(length=7, alphabet=2, min_letters=1, max_letters=2, replace_cost=1),
        EditDistance(length=20, min_length=1, min_letters=1, max_letters=26, edits="uniform", lengths="any"),
        EditDistance(length=5, min_length=1, insert_cost=7, replace_cost=1, lengths="any"),
    ],
)
def test_edit_distances_equal_rapidfuzz(task):
    weights = task.insert_cost, task.delete_cost, task.replace_cost
    pairs, answers = sampled(task, 25_000)
    assert [Levenshtein.distance(first, second, weights=weights) for first, second in pairs] == answers.tolist()
    assert answers.max() < task.spec.output_size


@pytest.mark.parametrize(
    "task",
    [
        LongestCommonSubsequence(length=100),
        LongestCommonSubsequence(length=60, pairs="edited"),
        LongestCommonSubsequence(length=130, min_length=1, pairs="own-letters"),
        LongestCommonSubsequence(length=64, alphabet=2),
        LongestCommonSubsequence(length=20, min_length=1, min_letters=1, max_letters=26, pairs="edited", lengths="any"),
    ],
)
def test_common_subsequences_equal_rapidfuzz(task):
    pairs, answers = sampled(task, 25_000)
    assert [LCSseq.similarity(first, second) for first, second in pairs] == answers.tolist()


@settings(deadline=None)
@given(PAIRS, COSTS, COSTS, COSTS)
def test_edit_distances_of_arbitrary_strings_equal_rapidfuzz(pairs, insert, delete, replace):
    answers = edit_distances(*as_arrays(pairs), insert, delete, replace, insert, delete)
    weights = insert, delete, replace
    assert_answers_for_prefixes(answers, pairs, lambda a, b: Levenshtein.distance(a, b, weights=weights))


@settings(deadline=None)
@given(PAIRS)
def test_common_subsequences_of_arbitrary_strings_equal_rapidfuzz(pairs):
    assert_answers_for_prefixes(common_subsequences(*as_arrays(pairs)), pairs, LCSseq.similarity)


def test_common_subsequences_longer_than_a_word_carry():
    letters = np.random.default_rng(0).integers(0, 3, (10, 2, 300))
    pairs = [(bytes(first.tolist()), bytes(second.tolist())) for first, second in letters]
    answers = common_subsequences(letters.astype(np.int8), np.full((10, 2), 300))
    assert_answers_for_prefixes(answers, pairs, LCSseq.similarity)


PREFIXES = [
    EditDistance(length=12, answers="prefixes"),
    EditDistance(length=9, min_length=1, borders="unit", answers="prefixes", answer_weight=0.5),
    EditDistance(length=5, delete_cost=7, replace_cost=1, answers="prefixes"),
    EditDistance(length=8, min_length=1, lengths="any", answers="prefixes"),
    LongestCommonSubsequence(length=12, alphabet=4, answers="prefixes"),
    LongestCommonSubsequence(length=70, min_length=1, pairs="edited", answers="prefixes"),
]


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("task", PREFIXES)
def test_training_batch_with_prefixes_holds_the_reference_at_every_letter(task, size):
    batch = task.training_batch(3, range(40), size)
    for inputs, targets, weights in zip(*batch, strict=True):
        first, _, second = task.render(inputs).partition("|")
        expected = {len(first) + end: task.reference(first, second[:end]) for end in range(len(second) + 1)}
        expected[len(inputs) - 1] = task.reference(first, second)
        assert {place: int(targets[place]) for place in np.flatnonzero(weights)} == expected
        assert weights[-1] == task.answer_weight
        assert set(weights[list(expected)[:-1]]) == {1.0}
        assert not targets[weights == 0].any()
    assert batch.targets.max() < task.spec.output_size


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("task", PREFIXES)
def test_sample_with_prefixes_is_the_same_examples_and_answers_as_without(task, split):
    plain = replace(task, answers="last")
    for with_prefixes, without in zip(task.sample(1, split, range(50)), plain.sample(1, split, range(50)), strict=True):
        np.testing.assert_array_equal(with_prefixes, without)
    np.testing.assert_array_equal(task.training_batch(1, range(50)).inputs, plain.sample(1, "train", range(50)).inputs)


@pytest.mark.parametrize("task", [EditDistance(length=6), LongestCommonSubsequence(length=6)])
def test_training_batch_without_prefixes_is_the_sample(task):
    for taught, sampled in zip(task.training_batch(2, range(20)), task.sample(2, "train", range(20)), strict=True):
        np.testing.assert_array_equal(taught, sampled)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf])
def test_invalid_answer_weight_raises(weight):
    with refused("task.answer_weight", weight):
        EditDistance(answer_weight=weight)


def test_unit_borders_equal_true_distances_after_a_cheap_prefix():
    """Compute the distance as a border path at cost 1 per step, followed by a path at the true costs."""
    task = EditDistance(length=12, borders="unit")
    pairs, answers = sampled(task, 500)
    for (first, second), answer in zip(pairs, answers, strict=True):
        starts = [(first[i:], second, i) for i in range(len(first) + 1)]
        starts += [(first, second[j:], j) for j in range(len(second) + 1)]
        assert answer == min(cost + Levenshtein.distance(a, b, weights=(2, 2, 3)) for a, b, cost in starts)


@pytest.mark.parametrize(("length", "max_letters"), [(40, 10), (60, 26)])
def test_unit_borders_change_three_answers_in_five(length, max_letters):
    """Expect 61 to 65 % of the answers, simulated from the code that the paper followed, up to sampling error."""
    settings = {"length": length, "max_letters": max_letters, "edits": "uniform", "rejection": "pair"}
    true = sampled(EditDistance(**settings), 5000)[1]
    unit = sampled(EditDistance(**settings, borders="unit"), 5000)[1]
    assert 0.58 < np.mean(true != unit) < 0.66
    assert (unit <= true).all()


def length_survives(num_edits):
    """Return the exact probability that edits change the length by -3 to 2, from the law of a random walk."""
    law = Counter({0: 1.0})
    for _ in range(num_edits):
        after = Counter()
        for shift, chance in law.items():
            for step in (-1, 0, 1):
                after[shift + step] += chance / 3
        law = after
    return sum(law[shift] for shift in range(-3, 3))


@pytest.mark.parametrize("edits", ["length", "uniform"])
@pytest.mark.parametrize("rejection", ["second", "pair"])
def test_fraction_of_random_pairs_is_as_computed(edits, rejection):
    """Tell the pairs apart: over 26 letters a random pair shares about 11 of 40 letters, an edited one 20 or more."""
    task = EditDistance(length=40, min_letters=26, max_letters=26, edits=edits, rejection=rejection)
    pairs, _ = sampled(task, 10_000)
    random_share = np.mean([LCSseq.similarity(first, second) <= 14 for first, second in pairs])
    accepted = length_survives(40) if edits == "length" else np.mean([length_survives(k) for k in range(1, 41)])
    expected = 0.4 if rejection == "second" else 0.4 / (0.4 + 0.6 * accepted)
    assert abs(random_share - expected) < 0.025
    if (edits, rejection) == ("uniform", "pair"):
        assert 0.50 < random_share < 0.60  # 52 to 58 % as simulated from the code that the paper followed


def test_any_lengths_sample_and_parse_every_length():
    task = EditDistance(length=6, min_length=1, lengths="any")
    pairs, _ = sampled(task, 5000)
    assert {(len(first), len(second)) for first, second in pairs} == {(i, j) for i in range(1, 7) for j in range(1, 7)}
    assert task.render(task.parse("a|abcdef")) == "a|abcdef"
    assert task.spec.seq_len == 6 + 1 + 6 + 1
    with refused(None, "second", 6, 7):
        task.parse("abc|abcdefg")


def test_edited_pairs_have_lengths_and_letters_in_range():
    pairs, _ = sampled(EditDistance(length=40), 5000)
    assert {len(first) for first, _ in pairs} == {40}
    assert {len(second) for _, second in pairs} == set(range(37, 43))
    assert {len(set(first)) for first, _ in pairs} == set(range(3, 11))
    assert len({letter for first, _ in pairs for letter in first}) == 26


@pytest.mark.parametrize("length", [60, 100])
def test_uniform_pairs_have_the_simulated_distribution(length):
    rng, count = np.random.default_rng(length), 10_000
    simulated = [
        LCSseq.similarity(bytes(first.tolist()), bytes(second.tolist()))
        for first, second in rng.integers(0, 26, (count, 2, length))
    ]
    _, answers = sampled(LongestCommonSubsequence(length=length), count)
    deviation = math.sqrt(2 * np.var(simulated) / count)
    assert abs(answers.mean() - np.mean(simulated)) < 4 * deviation
    majority, expected = (np.bincount(values).max() / count for values in (answers, simulated))
    assert abs(majority - expected) < 0.025
    assert 0.19 < majority < 0.26
    top_three = np.sort(np.bincount(answers))[-3:].sum() / count
    assert 0.54 < top_three < 0.67


def test_own_letters_differ_between_the_two_strings():
    pairs, _ = sampled(LongestCommonSubsequence(length=100, pairs="own-letters"), 500)
    assert max(len(set(word)) for pair in pairs for word in pair) == 8
    assert np.mean([len(set(first) | set(second)) for first, second in pairs]) > 12


def test_min_length_gives_every_length():
    pairs, _ = sampled(LongestCommonSubsequence(length=9, min_length=4), 1000)
    assert {len(word) for pair in pairs for word in pair} == set(range(4, 10))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("abc", ["abc"]),
        ("abcd|ab|c", ["abcd|ab|c"]),
        ("abCd|abcd", ["C"]),
        ("abcda|abcd", ["first", 4, 5]),
        ("|abcd", ["first", 4, 0]),
        ("a|abcd", ["second", 3, 4]),
        ("abcd|abcdabc", ["second", 6, 7]),
    ],
)
def test_parse_invalid_pair_raises(text, values):
    with refused(None, *values):
        EditDistance(length=4).parse(text)


@pytest.mark.parametrize("task", [EditDistance(length=8), LongestCommonSubsequence(length=8)])
def test_parse_accepts_shorter_strings(task):
    """Compare the tokens with those of a task of mixed lengths."""
    mixed = type(task)(length=8, min_length=1).sample(0, "train", range(200)).inputs
    texts = [task.render(inputs) for inputs in mixed]
    assert {len(text.partition("|")[0]) for text in texts} == set(range(1, 9))
    for text, inputs in zip(texts, mixed, strict=True):
        assert np.array_equal(task.parse(text), inputs)
    assert task.render(task.parse("abca|bcca")) == "abca|bcca"
    assert task.unlike_examples(task.parse("abca|bcca")) == ("first string: expected 8 letters, got 4 in 'abca|bcca'")
    assert task.unlike_examples(task.sample(0, "test", [0]).inputs[0]) is None


def test_unlike_examples_describes_unusual_pairs():
    """Compute the ranges a second way, with rapidfuzz."""
    edits, common = EditDistance(), LongestCommonSubsequence()
    weights = edits.insert_cost, edits.delete_cost, edits.replace_cost
    pairs, _ = sampled(edits, 10_000, split="test")
    distances = [Levenshtein.distance(*pair, weights=weights) for pair in pairs]
    far = f"is below those of the test examples ({min(distances)} to {max(distances)})"
    letters = [len(set(first + second)) for first, second in pairs]
    few = f"of the test examples ({min(letters)} to {max(letters)})"
    ten, every = "abcdefghij" * 4, "abcdefghijklmnopqrstuvwxyz" * 3
    for text, said in (
        (f"{ten}|{ten}", f"its answer, 0, {far}"),
        (
            f"{'a' * 40}|{'a' * 40}",
            f"its number of different letters, 1, is below those {few} and its answer, 0, {far}",
        ),
        (f"{every[:40]}|{every[20:60]}", f"its number of different letters, 26, is above those {few}"),
    ):
        assert edits.unlike_examples(edits.parse(text)) == said

    pairs, _ = sampled(common, 10_000, split="test")
    longest = [LCSseq.similarity(*pair) for pair in pairs]
    said = common.unlike_examples(common.parse(f"{'ab' * 30}|{'ba' * 30}"))
    assert "its number of different letters, 2, is below" in said
    assert f"its answer, 59, is above those of the test examples ({min(longest)} to {max(longest)})" in said


@pytest.mark.parametrize(
    "task",
    [
        EditDistance(),
        EditDistance(length=6, alphabet=3, max_letters=3),
        LongestCommonSubsequence(),
        LongestCommonSubsequence(length=8, pairs="own-letters"),
    ],
)
def test_unlike_examples_rarely_flags_test_examples(task):
    """Allow one warning in 1000 test examples. At most one in 2500 is expected for letters and answer together."""
    questions = task.sample(1, "test", range(3000)).inputs
    assert sum(task.unlike_examples(question) is not None for question in questions) <= 3


def test_unlike_examples_of_long_strings_draws_nothing(monkeypatch):
    task = EditDistance(length=101)
    monkeypatch.setattr(EditDistance, "sample", None)
    assert task.unlike_examples(task.parse(f"{'a' * 101}|{'a' * 101}")) is None
    assert "got 4" in task.unlike_examples(task.parse("abca|bcca"))


@pytest.mark.parametrize(
    ("field", "value"), [("length", 0), ("min_length", 50), ("alphabet", 27), ("min_letters", 0), ("insert_cost", 0)]
)
def test_invalid_settings_raise(field, value):
    with pytest.raises(InputError) as caught:
        EditDistance(**{field: value})
    assert caught.value.field == f"task.{field}"
    with pytest.raises(InputError) as caught:
        EditDistance(alphabet=5)
    assert caught.value.field == "task.max_letters"


def test_sample_of_too_few_strings_raises():
    with refused("lcs"):
        LongestCommonSubsequence(length=1, alphabet=2).sample(0, "validation", range(1))
