"""A plan of evaluations is checked before training and carried out after it."""

from dataclasses import replace

import pytest

from looped.experiments.measure import many_loops, require_measured
from looped.experiments.one_run import finish_run
from looped.experiments.scales import base_config
from looped.experiments.spec import SCALES, Cell, EvalPlan, Experiment
from looped.experiments.tables import EXPERIMENTS, experiment
from tests.refusal import refused

MANY = EvalPlan(size=2, many_loops=(2, 5), extrapolation=("clamp",))
RUNS = {
    "standard": base_config("ED40", "smoke", "standard"),
    "looped": base_config("ED40", "smoke", num_loops=4),
    "modulated": base_config("ED40", "smoke", "modulated", num_loops=4),
    "table": base_config("ED40", "smoke", "modulated", num_loops=4, conditioning="table"),
}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("standard", {}),
        ("looped", {"many loops": [4, 8, 20]}),
        ("modulated", {"many loops": [4, 8, 20], "many loops, clamp": [4, 8, 20]}),
        ("table", {"many loops": [4], "many loops, clamp": [4, 8, 20]}),  # a table has no row for loop 5
    ],
)
def test_every_model_is_tested_after_as_many_loops_as_it_can_run(name, read, tmp_path):
    """And always after the trained loops, which a record must have."""
    result = finish_run(RUNS[name], tmp_path, MANY)
    assert result.state == "finished"
    found = {key: [row.loops for row in test.rows] for key, test in result.record.sets.items() if "many" in key}
    assert found == read
    assert many_loops(RUNS[name].model, EvalPlan()) == []


@pytest.mark.parametrize(
    ("field", "shows", "at_loops"),
    [
        ("shows", "sets/clamp", None),  # of modulated models only
        ("shows", "extra.continuity.coefficient", None),
        ("at_loops", "test", 9),
        ("at_loops", "train", 3),
        ("at_loops", "sets/many loops", 5),
    ],
)
def test_number_that_no_test_measures_is_refused_before_training(field, shows, at_loops):
    cell = Cell("row", "column", RUNS["looped"], shows=shows, at_loops=at_loops)
    with refused(field):
        require_measured(Experiment("mine", "", "", None, (cell,), MANY))
    allowed = [
        replace(cell, shows="test", at_loops=8),
        Cell("row", "table", RUNS["table"], shows="sets/clamp", at_loops=8),
        Cell("row", "table", RUNS["table"], shows="sets/many loops, clamp", at_loops=20),
    ]
    require_measured(Experiment("mine", "", "", None, tuple(allowed), MANY))


def test_every_number_of_the_experiments_is_measured():
    for name in EXPERIMENTS:
        for scale in SCALES:
            require_measured(experiment(name, scale))


@pytest.mark.parametrize(
    ("field", "settings"),
    [("size", {"size": 0}), ("sizes", {"sizes": (0.0,)}), ("many_loops", {"many_loops": (0, 1)})],
)
def test_plan_with_an_impossible_size_is_refused(field, settings):
    with refused(field):
        EvalPlan(**settings)
