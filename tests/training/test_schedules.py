"""Schedules and the order of examples as pure functions of the step."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from looped.config import ModelConfig, RunConfig, TrainConfig
from looped.recipes import recipe, recipes_for
from looped.tasks import TASKS, EditDistance
from looped.tasks.decision_tree import DecisionTree
from looped.training.batches import batch_at, batches, indices_at, trained_on
from looped.training.schedules import loops_at, lr_fraction, size_at, sizes, unreached
from tests.refusal import refused

TASK = EditDistance(length=8)


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ("linear", 0, 0.1),
        ("linear", 9, 1.0),
        ("linear", 10, 1.0),
        ("linear", 60, 0.5),
        ("linear", 109, 0.01),
        ("cosine", 10, 1.0),
        ("cosine", 60, 0.5),
        ("cosine", 35, math.cos(math.pi / 8) ** 2),
        ("stable", 10, 1.0),
        ("stable", 85, 1.0),
        ("stable", 97, 0.52),
        ("stable", 109, 0.04),
    ],
)
def test_lr_fraction_at_known_steps(schedule, step, expected):
    """10 steps of warm-up, 100 of the schedule, the stable one decaying in its last quarter."""
    config = TrainConfig().override(schedule=schedule, num_steps=110, warmup_steps=10, decay_fraction=0.25)
    assert lr_fraction(step, config) == pytest.approx(expected)


def test_lr_fraction_never_falls_below_the_final_fraction():
    config = TrainConfig().override(schedule="cosine", num_steps=1000, warmup_steps=0, final_fraction=0.3)
    rates = [lr_fraction(step, config) for step in range(1000)]
    assert rates == sorted(rates, reverse=True)
    assert 0.3 <= rates[-1] < 0.301


def run_config(**train) -> RunConfig:
    return RunConfig(TASK, ModelConfig(num_loops=8), TrainConfig().override(num_steps=80, **train), seed=5)


@pytest.mark.parametrize(
    ("num_steps", "curriculum_steps", "lacking"),
    [
        (30, 90, ["size 2 of 8", "loops 2 of 8"]),
        (60, 90, ["size 4 of 8", "loops 4 of 8"]),
        (61, 90, ["loops 4 of 8"]),
        (68, 90, ["loops 4 of 8"]),
        (69, 90, []),
        (90, 90, []),
        (30, None, []),
        (1, None, ["size 2 of 8", "loops 1 of 8"]),
    ],
)
def test_unreached_of_a_run_too_short_for_its_schedules_says_what_it_reaches(num_steps, curriculum_steps, lacking):
    grows = {"size_schedule": "growing", "size_choices": (0.25, 0.5, 1), "loop_schedule": "growing"}
    train = TrainConfig().override(
        num_steps=num_steps, curriculum_steps=curriculum_steps, loop_choices=(1, 2, 4, 8), **grows
    )
    text = unreached(RunConfig(TASK, ModelConfig(num_loops=8), train))
    assert (text is None) == (not lacking)
    if text is not None:
        assert f"at {' and '.join(lacking)}: " in text
        assert "--train.curriculum-steps" in text
        assert "\n" not in text


def test_unreached_of_fixed_and_random_schedules_is_none():
    assert unreached(run_config()) is None
    assert unreached(run_config(loop_schedule="random", loop_choices=(1, 2, 8), curriculum_steps=999)) is None
    assert all(unreached(recipe(name, task)) is None for task in TASKS for name in recipes_for(task))


def test_growing_schedule_visits_its_choices_in_order():
    config = run_config(loop_schedule="growing", loop_choices=(1, 2, 4, 8), curriculum_steps=40)
    loops = [loops_at(step, config) for step in range(80)]
    assert loops == [1] * 10 + [2] * 10 + [4] * 10 + [8] * 50
    default = run_config(size_schedule="growing", size_choices=(0.5, 1.0))
    assert [size_at(step, default) for step in range(80)] == [4] * 20 + [8] * 60


@given(length=st.integers(2, 200), data=st.data())
def test_size_choice_as_a_fraction_is_that_size(length, data):
    wanted = sorted(data.draw(st.sets(st.integers(1, length), min_size=1, max_size=8)))
    train = TrainConfig().override(size_schedule="growing", size_choices=tuple(size / length for size in wanted))
    assert sizes(RunConfig(EditDistance(length=length), train=train)) == wanted


def test_random_schedule_uses_all_choices_about_equally():
    config = run_config(loop_schedule="random", loop_choices=(2, 4, 8))
    counts = Counter(loops_at(step, config) for step in range(3000))
    assert set(counts) == {2, 4, 8}
    # A fair draw of a third stays within five standard deviations.
    assert all(abs(count - 1000) < 5 * math.sqrt(3000 * 2 / 9) for count in counts.values())
    assert [loops_at(step, config) for step in range(20)] == [loops_at(step, config) for step in range(20)]


@given(
    num_examples=st.integers(1, 40), batch_size=st.integers(1, 50), epochs=st.integers(1, 3), seed=st.integers(0, 99)
)
def test_batches_of_a_fixed_set_have_each_example_once_per_epoch(num_examples, batch_size, epochs, seed):
    steps = math.ceil(num_examples * epochs / batch_size)
    seen = np.concatenate([indices_at(step, batch_size, num_examples, seed) for step in range(steps)])
    for epoch in range(epochs):
        part = seen[epoch * num_examples : (epoch + 1) * num_examples]
        assert sorted(part) == list(range(num_examples))


def test_batches_of_another_epoch_or_seed_have_another_order():
    orders = [tuple(indices_at(step, 100, 100, seed)) for step in (0, 1) for seed in (0, 1)]
    assert len(set(orders)) == 4


def test_batches_of_fresh_examples_never_repeat():
    seen = np.concatenate([indices_at(step, 7, None, 0) for step in range(5)])
    assert list(seen) == list(range(35))


def given_by_the_loader(num_steps: int, config: RunConfig) -> list[tuple[int, int]]:
    """(size, number) of every example that the first steps ask the task for."""
    asked = []

    def noting(_task, _seed, _split, indices, size):
        asked.extend((size, index) for index in indices.tolist())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EditDistance, "sample", noting)
        for step in range(num_steps):
            batch_at(step, config)
    return asked


@example(200, 40, 5, 0, 200, "growing")  # enough examples for the set, half of them of the smaller size
@example(100, 33, 8, 0, 100, "growing")  # enough of the larger size, from parts of two epochs
@given(
    num_examples=st.none() | st.integers(1, 400),
    num_steps=st.integers(1, 80),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 9),
    count=st.integers(1, 200),
    schedule=st.sampled_from(["fixed", "growing", "random"]),
)
def test_trained_on_returns_examples_of_the_batches(num_examples, num_steps, batch_size, seed, count, schedule):
    choices = () if schedule == "fixed" else (0.5, 1.0)
    train = {"num_examples": num_examples, "batch_size": batch_size, "size_schedule": schedule, "size_choices": choices}
    config = replace(run_config(**train), seed=seed)
    seen = given_by_the_loader(num_steps, config)
    indices, size = trained_on(num_steps, config, count)
    found = [(size, index) for index in indices.tolist()]
    newest_first = list(dict.fromkeys(each for each in reversed(seen) if each[0] == max(seen)[0]))
    assert set(found) <= set(newest_first)
    assert len(set(found)) == len(found) == min(count, len(newest_first))
    # The last ones; of a whole set the first of the set.
    whole = len(newest_first) == num_examples
    assert found == (sorted(newest_first)[:count] if whole else newest_first[:count][::-1])


def test_trained_on_before_the_first_step_is_refused():
    with refused("num_steps"):
        trained_on(0, run_config(), 10)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_batches_with_any_number_of_workers_come_in_order(num_workers):
    config = run_config(num_workers=num_workers, batch_size=4, size_schedule="growing", size_choices=(0.5, 1.0))
    steps = []
    for step, batch in batches(70, config):
        steps.append(step)
        alone = batch_at(step, config)
        assert all(np.array_equal(a, b) for a, b in zip(batch, alone, strict=True))
    assert steps == list(range(70, 80))


def test_curriculum_of_trees_is_the_papers():
    """Points 26, 31, ..., 101 and dimensions 5, 6, ..., 20, each for 5000 steps."""
    config = recipe("paper", "decision-tree")
    assert isinstance(config.task, DecisionTree)
    sizes = [size_at(step, config) for step in range(0, 80_000, 5000)]
    assert sizes == list(range(26, 102, 5))
    assert [config.task.dims_at(size) for size in sizes] == list(range(5, 21))
    assert size_at(4999, config) == 26
    assert size_at(199_999, config) == 101
