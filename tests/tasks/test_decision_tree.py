import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.tasks.decision_tree import DecisionTree, tree_value
from looped.utils.errors import InputError
from tests.refusal import refused


def leaf_of_path(example: dict, x: list[float]) -> float:
    """Return the value at x a second way. The turns, read in binary, number the leaf; node = 2^level - 1 + turns."""
    turns, level = 0, 0
    while 2**level < len(example["leaves"]):
        coordinate = example["coordinates"][2**level - 1 + turns]
        turns = 2 * turns + int(x[coordinate] > 0)
        level += 1
    return example["leaves"][turns]


@pytest.mark.parametrize("depth", [1, 2, 4, 6])
def test_values_equal_the_reference_tree(depth):
    task = DecisionTree(points=40, dims=7, depth=depth)
    for split in ("train", "validation", "test"):
        for example in task.examples(0, split, range(20)):
            assert len(example["coordinates"]) == 2**depth - 1
            assert len(example["leaves"]) == 2**depth
            for x, y in zip(example["x"], example["y"], strict=True):
                assert y == leaf_of_path(example, x) == tree_value(example["coordinates"], example["leaves"], x)


def test_tree_value_of_a_small_tree():
    # the root tests coordinate 1, its left child coordinate 0 and its right child coordinate 2
    coordinates, leaves = [1, 0, 2], [10.0, 11.0, 12.0, 13.0]
    assert tree_value(coordinates, leaves, [5, -1, 0]) == 11.0
    assert tree_value(coordinates, leaves, [-5, 0, 9]) == 10.0  # zero is not positive: left
    assert tree_value(coordinates, leaves, [0, 1, -2]) == 12.0
    assert tree_value(coordinates, leaves, [0, 1, 2]) == 13.0


def test_sample_layout_alternates_points_and_values():
    task = DecisionTree(points=6, dims=3, depth=2)
    batch = task.sample(4, "train", range(30))
    assert batch.inputs.shape == (30, 11, 3)
    assert batch.targets.shape == (30, 11, 1)
    for row, example in enumerate(task.examples(4, "train", range(30))):
        x, y = np.float32(example["x"]), np.float32(example["y"])
        assert np.array_equal(batch.inputs[row, ::2], x)
        assert np.array_equal(batch.inputs[row, 1::2, 0], y[:-1])  # the query's value is not shown
        assert not batch.inputs[row, 1::2, 1:].any()
        assert np.array_equal(batch.targets[row, ::2, 0], y)
        assert batch.mask[row].tolist() == [True, False] * 5 + [True]
    assert task.spec.seq_len == 11
    assert task.spec.causal
    assert task.spec.input_size == 3


def test_draws_have_the_stated_distributions():
    task = DecisionTree()
    inputs = task.sample(2, "train", range(400)).inputs[:, ::2].astype(np.float64)
    num = inputs.size
    assert abs(inputs.mean()) < 5 / np.sqrt(num)
    assert abs(inputs.var() - 1) < 5 * np.sqrt(2 / num)
    assert abs((inputs**4).mean() - 3) < 5 * np.sqrt(96 / num)
    # the two numbers of one draw do not depend on each other, nor on their neighbours
    for shift in (1, 2):
        assert abs((inputs[..., shift:] * inputs[..., :-shift]).mean()) < 5 / np.sqrt(num * (20 - shift) / 20)
    examples = DecisionTree(points=1).examples(2, "train", range(4000))
    leaves = np.array([example["leaves"] for example in examples])
    assert abs(leaves.mean()) < 5 / np.sqrt(leaves.size)
    assert abs(leaves.var() - 1) < 5 * np.sqrt(2 / leaves.size)
    coordinates = np.array([example["coordinates"] for example in examples])
    for node in range(15):
        counts = np.bincount(coordinates[:, node], minlength=20)
        # chi-square with 19 degrees of freedom: mean 19, standard deviation 6.2
        assert np.square(counts - 200).sum() / 200 < 19 + 5 * 6.2


def test_dims_at_follows_the_paper_curriculum():
    task = DecisionTree()
    assert [task.dims_at(points) for points in range(26, 102, 5)] == list(range(5, 21))
    batch = task.sample(0, "train", range(50), size=26)
    assert batch.inputs.shape == (50, 51, 20)
    assert batch.inputs[:, ::2, :5].all()
    assert not batch.inputs[:, ::2, 5:].any()
    every_dim = DecisionTree(shrink="points").sample(0, "train", range(50), size=26)
    assert every_dim.inputs[:, ::2].all()


def test_splits_share_no_tree():
    task = DecisionTree(points=1, depth=1, dims=2)
    seen = {}
    for split in ("train", "validation", "test"):
        for seed in range(3):
            for example in task.examples(seed, split, range(500)):
                tree = (*example["coordinates"], *example["leaves"])
                assert seen.setdefault(tree, split) == split
    assert len(seen) == 3 * 3 * 500  # no tree repeats, because leaves are continuous


def test_score_and_curve_of_known_errors():
    task = DecisionTree(points=5, dims=4, depth=2)
    batch = task.sample(0, "test", range(8))
    prediction = np.random.default_rng(0).normal(size=batch.targets.shape)
    errors, score = task.curve(prediction, batch), task.score(prediction, batch)
    for row in range(8):
        for k in range(5):
            expected = (prediction[row, 2 * k, 0] - float(batch.targets[row, 2 * k, 0])) ** 2
            assert errors[row, k] == pytest.approx(expected)
        assert score["squared_error"][row] == pytest.approx(errors[row, 4])
        assert score["squared_error_over_dims"][row] == pytest.approx(errors[row, 4] / 4)
    assert not task.score(batch.targets, batch)["squared_error"].any()


def test_baseline_is_the_variance_of_a_leaf():
    task = DecisionTree(points=11)
    assert task.baseline(task.sample(0, "test", range(4000))) == pytest.approx(1.0, abs=5 * np.sqrt(2 / 4000))


def test_verify_wrong_value_raises():
    task = DecisionTree(points=5)
    example = task.examples(0, "train", [0])[0]
    task.verify(example)
    example["y"][3] += 1e-3
    with refused(None, "point 4"):
        task.verify(example)


finite = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=6))
@settings(deadline=None)
def test_parse_reads_rendered_inputs_back(points):
    task = DecisionTree(points=6, dims=2)
    inputs = np.zeros((2 * len(points) - 1, 2), dtype=np.float32)
    for k, (a, b, y) in enumerate(points):
        inputs[2 * k] = a, b
        if k < len(points) - 1:
            inputs[2 * k + 1, 0] = y
    assert np.array_equal(task.parse(task.render(inputs)), inputs)
    assert np.array_equal(task.parse(task.render(inputs).replace("\n", "; ")), inputs)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 2 -> 3", ["'3'", "point 1"]),
        ("1 -> 3; 1 2 -> ?", [2, "point 1"]),
        ("1 2 -> 3; 1 b -> ?", ["1 b", "point 2"]),
        ("1 2; 1 2 -> ?", ["point 1"]),
        ("1 nan -> ?", ["nan"]),
        ("1 2 -> 1; 1 2 -> 1; 1 2 -> 1; 1 2 -> ?", [3, 4]),
        ("", [3, 0]),
    ],
)
def test_parse_invalid_text_raises(text, values):
    with refused(None, *values):
        DecisionTree(points=3, dims=2).parse(text)


def test_invalid_settings_raise_with_the_field():
    for field, value in (("points", 0), ("dims", 0), ("depth", 0), ("depth", 40)):
        with pytest.raises(InputError) as caught:
            DecisionTree(**{field: value})
        assert caught.value.field == f"task.{field}"
    with pytest.raises(InputError) as caught:
        DecisionTree().sample(0, "train", [0], size=102)
    assert caught.value.field == "size"
