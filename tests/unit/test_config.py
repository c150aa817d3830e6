"""Configs: JSON there and back, identity, and every impossible value refused in words."""

import json
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.config import ModelConfig, RunConfig, TrainConfig
from looped.errors import InputError
from looped.recipes import RECIPES, recipe, recipes_for
from looped.tasks import TASKS, EditDistance

TASK = EditDistance(length=8)


def some(config: type) -> st.SearchStrategy[dict[str, Any]]:
    """Random values for the enumerations and the free numbers of a config."""
    hints = get_type_hints(config)
    choices = {name: st.sampled_from(get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Literal}
    return st.fixed_dictionaries({}, optional=choices)


@given(model=some(ModelConfig), train=some(TrainConfig), seed=st.integers(0, 2**32 - 1), rate=st.floats(1e-6, 1.0))
def test_json_there_and_back(model, train, seed, rate):
    try:
        config = RunConfig(TASK, ModelConfig(**model), TrainConfig(learning_rate=rate, **train), seed)
    except InputError:
        return  # an impossible combination: refused, which other tests look at
    back = RunConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert back == config
    assert back.key == config.key


BLOCKS = get_args(get_type_hints(ModelConfig)["block"])


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("name", "task"), [(name, task) for task in TASKS for name in recipes_for(task)])
def test_every_recipe_gives_every_task_and_block_a_config(name, task, block):
    config = recipe(name, task, block)
    assert (config.task.name, config.model.block) == (task, block)
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("name", RECIPES)
def test_every_entry_of_a_recipe_is_for_something_that_exists(name):
    """A misspelt task or block would be passed over in silence."""
    assert set(RECIPES[name]) <= {"*", *TASKS, *(f"{task}/{block}" for task in TASKS for block in BLOCKS)}


def test_recipe_dense_is_for_strings_alone():
    assert [task for task in TASKS if "dense" in recipes_for(task)] == ["edit-distance", "lcs"]
    with pytest.raises(InputError, match=r"unknown recipe 'dense'.*expected one of fast, laptop, paper"):
        recipe("dense", "sudoku")


def test_answers_of_prefixes_are_part_of_a_runs_identity_and_others_keep_their_keys():
    """The key is the one that a record in results/ was named by before there was a choice of answers."""
    fast = recipe("fast", "edit-distance", "modulated")
    assert fast.folder_name == "edit-distance-modulated-581d70e93a"
    dense = replace(fast, task=replace(fast.task, answers="prefixes"))
    assert dense.folder_name != fast.folder_name
    assert dense.identity()["task"]["answers"] == "prefixes"


def test_a_recipe_may_have_other_rates_for_one_block():
    looped, modulated = (recipe("fast", "edit-distance", block) for block in ("looped", "modulated"))
    assert modulated.train.muon_learning_rate < looped.train.muon_learning_rate
    assert modulated.train.num_steps == looped.train.num_steps
    assert recipe("fast", "sudoku", "modulated").train == recipe("fast", "sudoku", "looped").train


def test_the_paper_recipe_is_the_paper():
    """Appendix C: 50 epochs of 10^6 examples at batch 64, AdamW 0.9/0.999, decay 0.01, linear from 1e-4, 256 wide."""
    train, model = recipe("paper", "edit-distance").train, recipe("paper", "edit-distance").model
    assert train.num_steps * train.batch_size == 50 * 10**6
    assert train.num_examples == 10**6
    assert (train.batch_size, train.optimizer, train.schedule) == (64, "adamw", "linear")
    assert (train.beta1, train.beta2, train.weight_decay) == (0.9, 0.999, 0.01)
    assert (train.learning_rate, train.final_rate, train.warmup_steps) == (1e-4, 0.0, 5)
    assert (model.dim, model.num_heads, model.injection) == (256, 4, "add")


@pytest.mark.parametrize(
    ("task", "layers", "loops"),
    [
        ("edit-distance", 12, 50),
        ("lcs", 12, 50),
        ("sudoku", 6, 32),
        ("countdown", 6, 32),
        ("decision-tree", 12, 12),
        ("language", 6, 24),
    ],
)
def test_recipes_are_as_deep_as_the_paper(task, layers, loops):
    for name in ("paper", "fast"):
        standard, looped = (recipe(name, task, block).model for block in ("standard", "looped"))
        assert (standard.num_layers, standard.num_loops) == (layers, 1)
        assert (looped.num_layers, looped.num_loops) == (1, loops)


def test_no_recipe_gives_a_looped_model_a_single_loop():
    assert all(recipe(name, task, "modulated").model.num_loops > 1 for task in TASKS for name in recipes_for(task))


def test_volatile_fields_are_no_part_of_the_identity():
    config = RunConfig(TASK)
    volatile = [each for each in fields(TrainConfig) if each.metadata.get("volatile")]
    assert {each.name for each in volatile} >= {"max_minutes", "log_every", "track", "num_workers", "device"}
    other = replace(config, train=replace(config.train, max_minutes=3.0, log_every=7, device="cpu", num_workers=3))
    assert other.key == config.key
    assert other.identity() == config.identity()
    assert other.to_json() != config.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"task": EditDistance(length=9)},
        {"model": ModelConfig(dim=128)},
        {"train": TrainConfig(num_steps=9)},
    ],
)
def test_defining_fields_change_the_key(change):
    config = RunConfig(TASK)
    other = replace(config, **change)
    assert other.key != config.key
    assert other.identity() != config.identity()


@pytest.mark.parametrize(
    "knobs", [{"learning_rate": 1}, {"clip_norm": 2}, {"size_choices": (1,), "size_schedule": "random"}]
)
def test_equal_configs_have_equal_keys(knobs):
    as_floats = {1: 1.0, 2: 2.0, (1,): (1.0,)}
    in_floats = {name: as_floats.get(value, value) for name, value in knobs.items()}
    one, same = (RunConfig(TASK, train=TrainConfig(**each)) for each in (knobs, in_floats))
    assert one == same
    assert one.key == same.key
    assert json.dumps(one.identity()) == json.dumps(same.identity())


def test_a_whole_number_that_no_float_holds_is_refused():
    with pytest.raises(InputError, match="learning_rate must be finite"):
        TrainConfig(learning_rate=10**400)


@pytest.mark.parametrize("name", ["paper", "fast", "laptop"])
def test_recipes_know_tasks_by_name_alone(name, monkeypatch):
    with pytest.raises(InputError, match="unknown task 'edit-distanc'; did you mean 'edit-distance'"):
        recipe(name, "edit-distanc")
    # A task that is added needs no recipe of its own to be trained.
    monkeypatch.setitem(TASKS, "new", EditDistance)
    assert recipe(name, "new", "standard").model.num_layers > 1
    assert recipe(name, "new").model.num_loops > 1


def test_a_default_written_out_is_the_same_run():
    assert RunConfig(TASK, ModelConfig(dim=256)).key == RunConfig(TASK).key


IMPOSSIBLE = [
    (lambda: ModelConfig(dim=10, num_heads=4), "num_heads must divide dim: expected a divisor of 10, got 4"),
    (lambda: ModelConfig(block="modular"), "did you mean 'modulated'"),  # pyright: ignore[reportArgumentType]
    (lambda: ModelConfig(dim=0), "dim must be positive, got 0"),
    (lambda: ModelConfig(block="standard", num_loops=2), "expected num_loops 1, got 2"),
    (lambda: ModelConfig(block="looped", conditioning="table"), "needs block 'modulated', got 'looped'"),
    (lambda: ModelConfig(dim=12, num_heads=4, positions="rotary"), "even head size"),
    (lambda: TrainConfig(batch_size=10, accumulation=3), "expected a divisor of 10, got 3"),
    (lambda: TrainConfig(ema_decay=1.0), r"ema_decay must be in \[0, 1\), got 1.0"),
    (lambda: TrainConfig(loop_choices=(1, 2)), "go with loop_schedule"),
    (lambda: TrainConfig(loop_schedule="random"), "go with loop_schedule"),
    (lambda: TrainConfig(loop_schedule="random", loop_choices=tuple(range(1, 10))), "at most 8"),
    (lambda: TrainConfig(supervised_loops=3), "needs supervision"),
    (lambda: RunConfig(TASK, train=TrainConfig(loop_schedule="random", loop_choices=(4,))), "num_loops = 1"),
    (lambda: TrainConfig(size_schedule="random", size_choices=(9,)), "shares of the task's size"),
    (lambda: RunConfig(TASK, seed=-1), "seed must be in"),
    (lambda: EditDistance(length=0), "length must be in"),
    (lambda: TrainConfig(weight_decay=-1.0), "weight_decay must not be negative, got -1.0"),
    (lambda: TrainConfig(muon_weight_decay=-1.0), "muon_weight_decay must not be negative"),
    (lambda: TrainConfig(learning_rate="fast"), "learning_rate must be a number, got 'fast'"),  # pyright: ignore
    (lambda: TrainConfig(learning_rate=float("nan")), "learning_rate must be a number, got nan"),
    (lambda: TrainConfig(learning_rate=float("inf")), "learning_rate must be finite, got inf"),
    (lambda: TrainConfig(muon_learning_rate=float("inf")), "muon_learning_rate must be finite, got inf"),
    (lambda: TrainConfig(weight_decay=float("inf")), "weight_decay must be finite, got inf"),
    (lambda: TrainConfig(clip_norm=float("inf")), "clip_norm must be finite, got inf"),
    (lambda: TrainConfig(spike_factor=1.0), "spike_factor must exceed 1, got 1.0"),
    (lambda: TrainConfig(growth_limit=0.5), "growth_limit must exceed 1, got 0.5"),
    (lambda: TrainConfig(num_examples=5.5), "num_examples must be a whole number, got 5.5"),  # pyright: ignore
    (lambda: ModelConfig(dim=8.0), "dim must be a whole number, got 8.0"),  # pyright: ignore
    (lambda: RunConfig(TASK, seed=1.5), "seed must be a whole number, got 1.5"),  # pyright: ignore
    (lambda: EditDistance(alphabet=3), "max_letters"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), IMPOSSIBLE, ids=[message for _, message in IMPOSSIBLE])
def test_impossible_configs_are_refused_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": {}}, "did you mean 'model'"),
        ({"model": {"dmi": 3}}, "did you mean 'model.dim'"),
        ({"model": {"dim": "wide"}}, "model.dim must be int, got 'wide'"),
        ({"train": {"loop_choices": [1, "x"]}}, "train.loop_choices must be int"),
        ({"task": {"name": "edit-distances"}}, "did you mean 'edit-distance'"),
        ({"task": 3}, "field 'task'"),
        ({"model": {"block": "modular"}}, "did you mean 'modulated'"),
    ],
)
def test_foreign_json_is_refused_by_the_field(change, message):
    with pytest.raises(InputError, match=message):
        RunConfig.from_json({"task": {"name": "edit-distance"}, **change})
