"""Configs: JSON there and back, identity, and every impossible value refused in words."""

import json
import math
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.config import (
    GROUPS,
    CurriculumConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    RuntimeConfig,
    ScheduleConfig,
    TrainConfig,
)
from looped.recipes import RECIPES, recipe, recipes_for
from looped.tasks import TASKS, EditDistance, make_task
from looped.utils.errors import InputError
from looped.utils.shipped import list_models
from tests.refusal import refused

TASK = EditDistance(length=8)


def some(config: type) -> st.SearchStrategy[dict[str, Any]]:
    """Random values for the enumerations and the free numbers of a config."""
    hints = get_type_hints(config)
    choices = {name: st.sampled_from(get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Literal}
    return st.fixed_dictionaries({}, optional=choices)


@given(model=some(ModelConfig), train=some(TrainConfig), seed=st.integers(0, 2**32 - 1), rate=st.floats(1e-6, 1.0))
def test_config_read_from_its_json_is_equal(model, train, seed, rate):
    try:
        config = RunConfig(TASK, ModelConfig(**model), TrainConfig().override(learning_rate=rate, **train), seed)
    except InputError:
        return  # an impossible combination: refused, which other tests look at
    back = RunConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert back == config
    assert back.key == config.key


BLOCKS = get_args(get_type_hints(ModelConfig)["block"])


@pytest.mark.parametrize(
    ("name", "task", "block"),
    [
        (name, task, block)
        for task in TASKS
        for name in recipes_for(task)
        for block in BLOCKS
        if name not in ("warm", "tune") or block != "standard"  # no standard model is shipped
    ],
)
def test_every_recipe_gives_every_task_and_block_a_config(name, task, block):
    config = recipe(name, task, block)
    assert (config.task.name, config.model.block) == (task, block)
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("name", RECIPES)
def test_every_entry_of_a_recipe_is_for_something_that_exists(name):
    """A misspelt task or block would be passed over in silence."""
    assert set(RECIPES[name]) <= {"*", *TASKS, *(f"{task}/{block}" for task in TASKS for block in BLOCKS)}


@pytest.mark.parametrize("name", ["dense", "long", "warm", "laptop-dense"])
def test_recipe_with_answers_for_prefixes_is_for_string_tasks_only(name):
    assert [task for task in TASKS if name in recipes_for(task)] == ["edit-distance", "lcs"]
    assert recipe(name, "lcs").task.answers == "prefixes"
    with refused("recipe", name):
        recipe(name, "sudoku")


@pytest.mark.parametrize("task", ["edit-distance", "lcs"])
@pytest.mark.parametrize("block", BLOCKS)
def test_recipe_long_is_dense_with_four_times_the_steps(task, block):
    dense = recipe("dense", task, block)
    steps, curriculum = dense.train.num_steps, dense.train.curriculum.curriculum_steps
    longer = dense.train.override(num_steps=4 * steps, curriculum_steps=4 * curriculum)
    assert recipe("long", task, block) == replace(dense, train=longer)


@pytest.mark.parametrize("name", ["warm", "tune"])
def test_recipe_from_trained_weights_is_for_blocks_with_shipped_models_only(name):
    assert recipe(name, "lcs", "modulated").train.init_from in list_models()
    with refused("model.block", "standard"):
        recipe(name, "lcs", "standard")


def test_answers_for_prefixes_are_part_of_a_runs_identity():
    fast = recipe("fast", "edit-distance", "modulated")
    dense = replace(fast, task=replace(fast.task, answers="prefixes"))
    assert dense.folder_name != fast.folder_name
    assert dense.identity()["task"]["answers"] == "prefixes"


def test_a_recipe_may_have_other_rates_for_one_block():
    looped, modulated = (recipe("fast", "edit-distance", block) for block in ("looped", "modulated"))
    assert modulated.train.optimizer.muon_learning_rate < looped.train.optimizer.muon_learning_rate
    assert modulated.train.num_steps == looped.train.num_steps
    assert recipe("fast", "sudoku", "modulated").train == recipe("fast", "sudoku", "looped").train


def test_the_paper_recipe_is_the_paper():
    """Appendix C: 50 epochs of 10^6 examples at batch 64, AdamW 0.9/0.999, decay 0.01, linear from 1e-4, 256 wide."""
    train, model = recipe("paper", "edit-distance").train, recipe("paper", "edit-distance").model
    assert train.num_steps * train.batch_size == 50 * 10**6
    assert train.num_examples == 10**6
    assert (train.batch_size, train.optimizer.kind, train.schedule.kind) == (64, "adamw", "linear")
    assert (train.optimizer.beta1, train.optimizer.beta2, train.optimizer.weight_decay) == (0.9, 0.999, 0.01)
    assert (train.optimizer.learning_rate, train.schedule.final_fraction, train.schedule.warmup_steps) == (1e-4, 0.0, 5)
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


def test_identity_with_other_runtime_settings_is_unchanged():
    config = RunConfig(TASK)
    other = replace(config, train=config.train.override(max_minutes=3.0, log_every=7, device="cpu", num_workers=3))
    assert other.key == config.key
    assert other.identity() == config.identity()
    assert other.to_json() != config.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"task": EditDistance(length=9)},
        {"model": ModelConfig(dim=128)},
        {"train": TrainConfig().override(num_steps=9)},
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
    one, same = (RunConfig(TASK, train=TrainConfig().override(**each)) for each in (knobs, in_floats))
    assert one == same
    assert one.key == same.key
    assert json.dumps(one.identity()) == json.dumps(same.identity())


def test_a_whole_number_that_no_float_holds_is_refused():
    with refused("learning_rate"):
        TrainConfig().override(learning_rate=10**400)


@pytest.mark.parametrize("name", ["paper", "fast", "laptop"])
def test_recipes_know_tasks_by_name_alone(name, monkeypatch):
    with refused("task", "edit-distance"):
        recipe(name, "edit-distanc")
    # A task that is added needs no recipe of its own to be trained.
    monkeypatch.setitem(TASKS, "new", EditDistance)
    assert recipe(name, "new", "standard").model.num_layers > 1
    assert recipe(name, "new").model.num_loops > 1


def test_a_default_written_out_is_the_same_run():
    assert RunConfig(TASK, ModelConfig(dim=256)).key == RunConfig(TASK).key


IMPOSSIBLE = [
    (lambda: ModelConfig(dim=10, num_heads=4), "num_heads"),
    (lambda: ModelConfig(block="modular"), "block"),  # pyright: ignore[reportArgumentType]
    (lambda: ModelConfig(dim=0), "dim"),
    (lambda: ModelConfig(dim=8.0), "dim"),  # pyright: ignore[reportArgumentType]
    (lambda: ModelConfig(block="standard", num_loops=2), "num_loops"),
    (lambda: ModelConfig(block="looped", conditioning="table"), "conditioning"),
    (lambda: ModelConfig(dim=12, num_heads=4, positions="rotary"), "positions"),
    (lambda: ModelConfig(modulation_init="random"), "modulation_init"),
    (lambda: TrainConfig(batch_size=10, accumulation=3), "accumulation"),
    (lambda: TrainConfig(batch_size=12, pieces=3), "pieces"),
    (lambda: TrainConfig(batch_size=12, pieces=8), "pieces"),
    (lambda: TrainConfig(pieces=0), "pieces"),
    (lambda: TrainConfig(supervised_loops=3), "supervised_loops"),
    (lambda: TrainConfig(num_examples=5.5), "num_examples"),  # pyright: ignore[reportArgumentType]
    (lambda: TrainConfig(init_from="a", continue_from="b"), "continue_from"),
    (lambda: TrainConfig(optimizer="muon"), "optimizer"),  # pyright: ignore[reportArgumentType]
    (lambda: TrainConfig().override(learnig_rate=1.0), "learnig_rate"),
    (lambda: OptimizerConfig(ema_decay=1.0), "ema_decay"),
    (lambda: OptimizerConfig(weight_decay=-1.0), "weight_decay"),
    (lambda: OptimizerConfig(muon_weight_decay=-1.0), "muon_weight_decay"),
    (lambda: OptimizerConfig(learning_rate="fast"), "learning_rate"),  # pyright: ignore[reportArgumentType]
    (lambda: OptimizerConfig(learning_rate=math.nan), "learning_rate"),
    (lambda: OptimizerConfig(learning_rate=math.inf), "learning_rate"),
    (lambda: OptimizerConfig(learning_rate=10**400), "learning_rate"),
    (lambda: OptimizerConfig(muon_learning_rate=math.inf), "muon_learning_rate"),
    (lambda: OptimizerConfig(clip_norm=math.inf), "clip_norm"),
    (lambda: OptimizerConfig(spike_factor=1.0), "spike_factor"),
    (lambda: OptimizerConfig(growth_limit=0.5), "growth_limit"),
    (lambda: ModelConfig(dim=256, precision="float8"), "precision"),
    (lambda: ModelConfig(dim=520, precision="float8"), "precision"),
    (lambda: ScheduleConfig(warmup_steps=-1), "warmup_steps"),
    (lambda: ScheduleConfig(final_fraction=1.5), "final_fraction"),
    (lambda: CurriculumConfig(loop_choices=(1, 2)), "loop_choices"),
    (lambda: CurriculumConfig(loop_schedule="random"), "loop_choices"),
    (lambda: CurriculumConfig(loop_schedule="random", loop_choices=tuple(range(1, 10))), "loop_choices"),
    (lambda: CurriculumConfig(size_schedule="random", size_choices=(9,)), "size_choices"),
    (lambda: RuntimeConfig(num_workers=0), "num_workers"),
    (lambda: RunConfig(TASK, train=TrainConfig().override(loop_schedule="random", loop_choices=(4,))), "loop_choices"),
    (lambda: RunConfig(TASK, seed=1.5), "seed"),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize(("make", "field"), IMPOSSIBLE, ids=[f"{i}-{field}" for i, (_, field) in enumerate(IMPOSSIBLE)])
def test_config_with_impossible_value_names_its_field(make, field):
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert "\n" not in str(caught.value)


def test_unknown_choice_suggests_the_closest_one():
    with refused("block", "modulated"):
        ModelConfig(block="modular")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("make", [lambda: EditDistance(length=0), lambda: EditDistance(alphabet=3)])
def test_task_with_impossible_value_is_refused(make):
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"modle": {}}, "modle"),
        ({"model": {"dmi": 3}}, "model.dmi"),
        ({"model": {"dim": "wide"}}, "model.dim"),
        ({"model": {"block": "modular"}}, "model.block"),
        ({"model": 3}, "model"),
        ({"train": {"curriculum": {"loop_choices": [1, "x"]}}}, "train.curriculum.loop_choices.1"),
        ({"train": {"optimizer": {"learning_rate": 10**400}}}, "train.optimizer.learning_rate"),
        ({"task": 3}, "task"),
        ({"task": {"name": "edit-distance", "lenght": 3}}, "task.lenght"),
    ],
)
def test_run_config_from_foreign_json_names_the_field(change, field):
    with pytest.raises(InputError) as caught:
        RunConfig.from_json({"task": {"name": "edit-distance"}, **change})
    assert caught.value.field == field


def test_run_config_with_unknown_task_suggests_the_closest_one():
    with refused("task", "edit-distance"):
        RunConfig.from_json({"task": {"name": "edit-distances"}})


@pytest.mark.parametrize("name", [None, 7, ["lcs"], {"lcs": 1}])
def test_run_config_whose_task_has_no_text_as_its_name_lists_the_tasks(name):
    with refused("task", name, "edit-distance"):
        RunConfig.from_json({"task": {"name": name}})


def test_override_routes_settings_to_their_groups():
    train = TrainConfig().override(
        num_steps=7, optimizer="muon", schedule="cosine", learning_rate=0.5, warmup_steps=3, size_schedule="growing",
        size_choices=(0.5, 1), log_every=9,
    )  # fmt: skip
    assert train == TrainConfig(
        num_steps=7,
        optimizer=OptimizerConfig(kind="muon", learning_rate=0.5),
        schedule=ScheduleConfig(kind="cosine", warmup_steps=3),
        curriculum=CurriculumConfig(size_schedule="growing", size_choices=(0.5, 1.0)),
        runtime=RuntimeConfig(log_every=9),
    )


def test_setting_names_are_unique_across_groups():
    names = [each.name for group in (*GROUPS.values(), TrainConfig) for each in fields(group) if each.name != "kind"]
    assert len(names) == len(set(names))


def test_make_task_applies_settings_and_reports_unknown_ones():
    assert make_task("edit-distance", length=7) == EditDistance(length=7)
    with refused("lenght", "length"):
        make_task("edit-distance", lenght=7)


@pytest.mark.parametrize("field", ["model.block", "train.init_from", "task.length"])
def test_run_config_with_half_a_character_is_refused(field):
    group, name = field.split(".")
    data = {"task": {"name": "edit-distance"}}
    data.setdefault(group, {})[name] = "\ud800"
    with refused(field):
        RunConfig.from_json(data)


@pytest.mark.parametrize("field", ["num_layers", "num_loops", "dim"])
def test_run_config_with_a_number_beyond_any_machine_is_refused(field):
    with refused(f"model.{field}"):
        RunConfig.from_json({"task": {"name": "edit-distance"}, "model": {field: 10**400}})


def test_model_config_with_more_layers_than_fit_in_memory_is_refused():
    with refused("num_layers", 2**31):
        ModelConfig(num_layers=2**31)
