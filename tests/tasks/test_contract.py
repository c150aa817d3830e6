"""The contract of every task in TASKS, and of the worked example that CONTRIBUTING.md says to copy.

Each task is tested with its defaults and in small variants. The variants have so few examples that splits would overlap
if their content did not separate them.
"""

import json
import re
from dataclasses import FrozenInstanceError, asdict, fields

import numpy as np
import pytest

from looped.tasks import SPLITS, TASKS, task_class
from looped.tasks.datasets import fingerprint
from looped.utils.errors import InputError
from tests.paths import ROOT
from tests.refusal import refused
from tests.tasks.worked_example import Majority

SMALL = {
    "edit-distance": [{"length": 4, "alphabet": 2, "min_letters": 1, "max_letters": 2}],
    "lcs": [{"length": 4, "alphabet": 2}, {"length": 5, "min_length": 2, "alphabet": 3, "pairs": "edited"}],
    "sudoku": [{"side": 4}, {"side": 4, "clues": 8, "counts": "all"}],
    "countdown": [{"count": 3, "max_input": 9, "max_target": 40}],
    "decision-tree": [{"points": 3, "dims": 2, "depth": 1}],
    "language": [{"seq_len": 32}],
}

# The fields of an example that follow from the others.
LABELS = {
    "edit-distance": {"answer"},
    "lcs": {"answer"},
    "sudoku": {"solution"},
    "countdown": {"solution"},
    "decision-tree": {"y"},
    "language": {"text", "next"},
}

# The hashes of the test sets in the documentation. Another hash means other data, so older numbers would not compare.
DOCUMENTATION = ROOT / "docs" / "tasks.md"
TEST_SETS = dict(re.findall(r"^\| `([a-z-]+)` \| `([0-9a-f]{64})` \|$", DOCUMENTATION.read_text(), re.MULTILINE))
NOT_PINNED = {"language", "decision-tree"}

# A new task needs no entry here: by default, its only label is `answer` at the last position.
VARIANTS = [(name, knobs) for name in (*TASKS, Majority.name) for knobs in ({}, *SMALL.get(name, []))]


@pytest.fixture(scope="module", autouse=True)
def data_of_our_own(tmp_path_factory):
    """Use an empty cache and a short text in place of the default text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPED_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("data") / "wikitext"
        folder.mkdir()
        for split in ("train", "valid", "test"):
            lines = (f"Line {number} of the {split} text has words of its own.\n" for number in range(300))
            (folder / f"wiki.{split}.raw").write_text("".join(lines))
        patch.setenv("LOOPED_DATA", str(folder.parent))
        yield


@pytest.fixture(params=VARIANTS, ids=lambda variant: "-".join([variant[0], *map(str, variant[1].values())]))
def task(request, monkeypatch):
    monkeypatch.setitem(TASKS, Majority.name, Majority)
    name, knobs = request.param
    return task_class(name)(**knobs)


def judged(task, prediction, batch):
    """Return one number per example and its value for a right answer. Perplexity needs a loss, so accuracy is used."""
    name, full = ("accuracy", True) if task.metric == "perplexity" else (task.metric, task.higher_is_better)
    return task.score(prediction, batch)[name].tolist(), float(full)


def same(one, other):
    return all(
        left.dtype == right.dtype and np.array_equal(left, right) for left, right in zip(one, other, strict=True)
    )


def test_sample_does_not_depend_on_the_batch(task):
    for split in SPLITS:
        together = task.sample(7, split, range(20))
        assert same(together, task.sample(7, split, np.arange(20)))
        for index in (13, 0, 19):
            alone = task.sample(7, split, [index])
            assert same([part[index] for part in together], [part[0] for part in alone])
        shuffled = np.random.default_rng(0).permutation(20)
        assert same([part[shuffled] for part in together], task.sample(7, split, shuffled.tolist()))


def test_sample_differs_between_seeds_and_indices(task):
    inputs = task.sample(0, "train", range(20)).inputs
    assert not np.array_equal(inputs, task.sample(1, "train", range(20)).inputs)
    assert not np.array_equal(inputs, task.sample(0, "train", range(20, 40)).inputs)


def test_splits_share_no_example_for_any_seed(task):
    seen = {
        split: {example.tobytes() for seed in (0, 1) for example in task.sample(seed, split, range(150)).inputs}
        for split in SPLITS
    }
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]


def test_spec_matches_the_arrays(task):
    spec = task.spec
    for split in SPLITS:
        inputs, targets, mask = task.sample(0, split, range(30))
        assert mask.shape == inputs.shape[:2] == targets.shape[:2] == (30, spec.seq_len)
        assert mask.dtype == np.bool_
        assert mask.any(axis=1).all()
        if spec.kind == "tokens":
            assert inputs.dtype == targets.dtype == np.int64
            assert inputs.ndim == targets.ndim == 2
            assert 0 <= inputs.min() <= inputs.max() < spec.input_size
            assert 0 <= targets.min() <= targets.max() < spec.output_size
        else:
            assert inputs.dtype == targets.dtype == np.float32
            assert inputs.shape[2] == spec.input_size
            assert targets.shape[2] == spec.output_size
            assert np.isfinite(inputs).all()
            assert np.isfinite(targets).all()
    for ids in spec.coordinates:
        assert len(ids) == spec.seq_len
        assert min(ids) >= 0


def test_solve_equals_the_labels(task):
    inputs, targets, _ = task.sample(3, "test", range(5))
    for question, target in zip(inputs, targets, strict=True):
        known = task.name not in ("decision-tree", "language")
        assert task.solve(question) == (task.answer(target) if known else None)
        assert task.unlike_examples(question) is None


def test_sample_of_no_indices_is_empty(task):
    batch = task.sample(0, "train", [])
    assert [len(part) for part in batch] == [0, 0, 0]


def test_counted_equals_the_mask_of_the_answers(task):
    """Compare the positions. The answer of a language model is its last token, although all tokens are trained."""
    batch = task.sample(0, "train", range(10))
    places = np.arange(batch.inputs.shape[1])
    last = places == len(places) - 1
    expected = {
        "edit-distance": last,
        "lcs": last,
        "sudoku": (batch.inputs == 0) | (getattr(task, "counts", "") == "all"),
        "countdown": batch.inputs == 0,
        "decision-tree": places % 2 == 0,
        "language": last,
    }.get(task.name, last)
    assert np.array_equal(task.counted(batch.inputs), np.broadcast_to(expected, batch.mask.shape))
    assert batch.mask.all() if task.name == "language" else np.array_equal(task.counted(batch.inputs), batch.mask)


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_sample_of_smaller_size_fits_the_same_spec(task, part):
    size = max(int(task.size * part) - 1, 2)
    spec, batch = task.spec, task.sample(0, "train", range(20), size=size)
    assert task.seq_len_at(size) == batch.inputs.shape[1]
    assert task.seq_len_at(task.size) == spec.seq_len
    assert batch.inputs.shape[1] <= spec.seq_len
    assert batch.mask.shape == batch.inputs.shape[:2] == batch.targets.shape[:2]
    if spec.kind == "tokens":
        assert batch.inputs.max() < spec.input_size
        assert batch.targets.max() < spec.output_size
    else:
        assert (batch.inputs.shape[2], batch.targets.shape[2]) == (spec.input_size, spec.output_size)
    scores, full = judged(task, batch.targets, batch)
    assert scores == [full] * 20
    assert same([part[3] for part in batch], [part[0] for part in task.sample(0, "train", [3], size=size)])


def test_sample_size_out_of_range_raises(task):
    for size in (0, task.size + 1, 2.5, "3", [3], np.array([2, 3])):
        with pytest.raises(InputError) as caught:
            task.sample(0, "train", [0], size=size)
        assert caught.value.field == "size"


def test_parse_reads_rendered_examples_back(task):
    for split in SPLITS:
        for inputs in task.sample(2, split, range(20)).inputs:
            text = task.render(inputs)
            assert isinstance(text, str)
            read = task.parse(text)
            assert read.dtype == inputs.dtype
            assert np.array_equal(read, inputs)


def test_parse_empty_text_raises(task):
    with refused(None):
        task.parse("")


def test_verify_accepts_every_example(task):
    for split in SPLITS:
        examples = task.examples(0, split, range(6))
        assert len(examples) == 6
        for example in examples:
            assert json.loads(json.dumps(example)) == example
            task.verify(example)


def refusal(task, example):
    try:
        task.verify(example)
    except InputError as error:
        return str(error)
    return None


def test_verify_wrong_example_raises(task):
    """Replace a field by that of another example.

    A replaced label is always wrong. A replaced question is wrong for some examples, as two may have the same answer.
    """
    one, *others = task.examples(0, "train", range(30))
    for name in one:
        wrong = [one | {name: other[name]} for other in others if other[name] != one[name]]
        said = [refusal(task, example) for example in wrong]
        assert any(said), name
        assert name not in LABELS.get(task.name, {"answer"}) or all(said), name
        assert not [words for words in said if words and "\n" in words]


@pytest.mark.parametrize("junk", [None, True, -1, 1.5, "", "ZZ9", "a\nb", [], [None], [[]], [0.5], {}, {"a": 1}])
def test_verify_malformed_example_raises(task, junk):
    (example,) = task.examples(0, "train", [0])
    for name in example:
        assert "\n" not in refusal(task, example | {name: junk})
        assert name in refusal(task, {field: value for field, value in example.items() if field != name})
    assert refusal(task, {})


def test_describe_is_json_and_answer_is_text(task):
    batch = task.sample(0, "train", range(5))
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        described = task.describe(inputs, targets)
        assert json.loads(json.dumps(described)) == described
        assert isinstance(task.answer(targets), str)
    json.dumps(task.statistics(task.examples(0, "train", range(50))))


def test_score_is_full_only_for_right_answers(task):
    batch = task.sample(0, "test", range(10))
    scores, full = judged(task, batch.targets, batch)
    assert scores == [full] * 10
    for values in task.score(batch.targets, batch).values():
        assert values.shape == (10,)
    wrong = batch.targets + 1 if task.spec.kind == "vectors" else (batch.targets + 1) % task.spec.output_size
    assert full not in judged(task, wrong, batch)[0]
    for inputs, target, other in zip(batch.inputs, batch.targets, wrong, strict=True):
        truth = task.answer(target)
        assert task.is_right(inputs, target, truth)
        assert not task.is_right(inputs, other, truth)


def test_baseline_is_finite_and_imperfect(task):
    baseline = task.baseline(task.sample(0, "test", range(100)))
    assert np.isfinite(baseline)
    assert baseline >= 0
    assert baseline < 1 or not task.higher_is_better


def test_sample_invalid_seed_split_or_indices_raises(task):
    for seed, split, indices, field in (
        (0, "dev", [0], "split"),
        (-1, "test", [0], "seed"),
        (2**32, "test", [0], "seed"),
        (1.0, "test", [0], "seed"),
        (0, "test", [3, -1], "indices"),
        (0, "test", [2**62 + 1], "indices"),
        (0, "test", [2**64], "indices"),
        (0, "test", [1.5], "indices"),
        (0, "test", ["3"], "indices"),
        (0, "test", [None, 1], "indices"),
        (0, "test", np.zeros((2, 1), dtype=int), "indices"),
        (0, "test", 5, "indices"),
        (0, np.array(["test"]), [0], "split"),
    ):
        with pytest.raises(InputError) as caught:
            task.sample(seed, split, indices)
        assert caught.value.field == field
        assert "\n" not in str(caught.value)
    assert len(task.sample(2**32 - 1, "test", [2**62]).inputs) == 1


def test_held_out_size_is_at_most_num_distinct(task):
    distinct = task.num_distinct("test")
    if distinct is None:
        assert task.name != "language"
        return
    assert task.held_out_size("test") <= distinct
    if distinct <= 1000:
        inputs = task.sample(0, "test", range(distinct)).inputs
        assert len(np.unique(inputs, axis=0)) == distinct
        assert np.array_equal(task.sample(0, "test", [distinct]).inputs, inputs[:1])


def test_task_is_a_frozen_hashable_config(task):
    assert task == type(task)(**asdict(task))
    assert hash(task) == hash(type(task)(**asdict(task)))
    json.dumps(asdict(task))
    assert TASKS[task.name] is type(task)
    with pytest.raises(FrozenInstanceError):
        setattr(task, fields(task)[0].name, None)


def test_task_class_unknown_name_raises_with_a_suggestion():
    with refused("task", "sudoku"):
        task_class("suduko")


def test_every_task_has_a_documented_hash_or_is_exempt():
    assert TEST_SETS.keys() | NOT_PINNED == TASKS.keys()
    assert not TEST_SETS.keys() & NOT_PINNED


@pytest.mark.parametrize("name", sorted(TEST_SETS))
def test_test_sets_have_the_documented_hashes(name):
    assert fingerprint(TASKS[name]().sample(0, "test", range(1000))) == TEST_SETS[name]
