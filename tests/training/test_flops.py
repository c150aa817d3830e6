"""The work of a training, counted a second way: by PyTorch's own counter, over every step."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from looped.models import build_model
from looped.tasks import DecisionTree, EditDistance
from looped.training.batches import batch_at
from looped.training.flops import estimated_flops, training_flops
from looped.training.loss import objective, to_device
from looped.training.schedules import loops_at, size_at, stages
from looped.training.trainer import train
from tests.training.conftest import tiny

# The free table's products are none, so that all that is counted is done for an example.
STATIC = {"conditioning": "static", "positions": "none"}
SCHEDULES = [
    {},
    {"loop_schedule": "growing", "loop_choices": (1, 2, 3)},
    {"loop_schedule": "random", "loop_choices": (1, 3), "size_schedule": "random", "size_choices": (0.5, 1.0)},
    {"size_schedule": "growing", "size_choices": (0.5, 0.75, 1.0), "curriculum_steps": 3},
    {"supervision": "mean"},
    {"supervision": "sum", "supervised_loops": 2},
    {"backprop_loops": 1},
    {"backprop_loops": 1, "supervision": "mean"},
]


def counted(config) -> int:
    """What the products of all steps are, forward and backward, batch by batch."""
    model = build_model(config.model, config.task.spec)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        for step in range(config.train.num_steps):
            batch = to_device(batch_at(step, config), torch.device("cpu"))
            objective(model, batch, loops_at(step, config), config.train).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("task", [EditDistance(length=4, alphabet=3, max_letters=3), DecisionTree(points=5, dims=2)])
def test_training_flops_equal_those_that_pytorch_counts(task, schedule):
    config = tiny(model={**STATIC, "attention": "full"}, train={**schedule, "num_steps": 6})
    config = replace(config, task=task)
    assert training_flops(config) == counted(config)
    assert estimated_flops(config) == training_flops(config)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_stages_cover_all_steps_and_change_only_between(schedule):
    config = tiny(train={**schedule, "num_steps": 50})
    for num_steps in (0, 1, 7, 50):
        cut = stages(config, num_steps)
        assert [step for steps in cut for step in steps] == list(range(num_steps))
        for steps in cut:
            assert len({(loops_at(step, config), size_at(step, config)) for step in steps}) == 1


@pytest.mark.parametrize(
    "also",
    [
        {},
        {"size_schedule": "growing", "size_choices": (0.25, 0.5, 1.0)},
        {"size_schedule": "growing", "size_choices": (0.25, 1.0), "curriculum_steps": 19_000},
        {"size_schedule": "random", "size_choices": (0.25, 1.0), "loop_schedule": "growing", "loop_choices": (1, 3)},
    ],
    ids=str,
)
def test_estimated_flops_of_a_long_random_schedule_are_close(also):
    config = tiny(train={"num_steps": 20_000, "loop_schedule": "random", "loop_choices": (1, 2, 3), **also})
    assert estimated_flops(config) == pytest.approx(training_flops(config), rel=0.03)


def test_train_result_has_the_flops_of_its_steps(tmp_path):
    config = tiny()
    result = train(config, tmp_path / "run", quiet=True)
    assert result.flops == training_flops(config)
    stopped = replace(config, train=config.train.override(max_minutes=1e-9))
    assert train(stopped, tmp_path / "stopped", quiet=True).flops == training_flops(config, 1)
