"""Every experiment as it is declared, and every cell of it run at the size that takes a fraction of a second."""

import json
import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from looped.cli.main import main
from looped.config import ModelConfig, RunConfig
from looped.experiments.measure import loops_to_read, wanted_names
from looped.experiments.one_run import finish_run
from looped.experiments.records import cell_value, load_records, run_key, save_record
from looped.experiments.scales import GPU_TRAINING_SECONDS, base_config, estimated_seconds
from looped.experiments.spec import SCALES
from looped.experiments.studies import CONDITIONINGS
from looped.experiments.tables import EXPERIMENTS, experiment
from looped.models import build_model
from looped.models.pretrained import read_shipped
from looped.training.flops import estimated_flops
from tests.experiments.fake_records import fake_records
from tests.paths import ROOT
from tests.refusal import refused

# The paper's tables once more, row by row as they are printed.
PRINTED = """
Sudoku    |  0.0 |  0.0  0.0 65.6 87.9 |  0.0  0.0 62.0 90.2
Countdown | 53.8 | 28.3 52.7 81.0 88.1 | 33.2 54.4 80.2 90.5
LCS60     | 70.0 | 66.0 81.8 98.6 96.9 | 68.5 80.5 99.3 97.1
LCS100    | 39.8 | 39.6 45.1 93.5 98.2 | 36.7 45.6 98.1 98.6
ED40      | 54.2 | 41.4 57.9 85.4 90.4 | 44.8 63.5 94.5 96.1
ED60      | 41.4 | 23.8 32.6 47.3 47.7 | 26.6 38.9 57.3 88.3
"""
PRINTED_LOOPS = {"Sudoku": "4 8 16 32", "Countdown": "4 8 16 32"}
PRINTED_LAYERS = {"Sudoku": 6, "Countdown": 6}
STRINGS = ("5 10 50 100", 12)

ALL = [(name, scale) for name in EXPERIMENTS for scale in SCALES]


def cells_of(name: str, scale: str = "paper") -> dict[str, object]:
    return {cell.name: cell for cell in experiment(name, scale).cells}


@pytest.mark.parametrize(("name", "scale"), ALL)
def test_cells_round_trip_and_have_distinct_names(name, scale):
    made = experiment(name, scale)
    assert (made.id, made.scale) == (name, scale)
    assert made.about
    for cell in made.cells:
        assert RunConfig.from_json(json.loads(json.dumps(cell.config.to_json()))) == cell.config
    assert len({cell.name for cell in made.cells}) == len(made.cells)
    # Cells are of one run only where they show different numbers of it.
    assert len({(cell.config, cell.shows, cell.at_loops) for cell in made.cells}) == len(made.cells)
    assert len({config.folder_name for config in made.configs()}) == len(made.configs())


@pytest.mark.parametrize("scale", SCALES)
def test_table_1_has_the_papers_54_numbers(scale):
    cells = experiment("table1", scale).cells
    assert len(cells) == 54
    for line in PRINTED.strip().splitlines():
        row, *parts = (part.strip() for part in line.split("|"))
        printed = [float(number) / 100 for part in parts for number in part.split()]
        own = [cell for cell in cells if cell.row == row]
        assert [cell.paper for cell in own] == pytest.approx(printed, abs=1e-9)
        assert [cell.config.model.block for cell in own] == ["standard"] + ["looped"] * 4 + ["modulated"] * 4
        loops = [cell.config.model.num_loops for cell in own[1:]]
        for cell in own[1:]:
            name = "looped" if cell.config.model.block == "looped" else "modulated"
            assert cell.column == f"{name} r={cell.config.model.num_loops}"
        if scale in ("gpu", "paper"):
            assert loops == 2 * [int(number) for number in PRINTED_LOOPS.get(row, STRINGS[0]).split()]
            assert own[0].config.model.num_layers == PRINTED_LAYERS.get(row, STRINGS[1])
            length = re.search(r"\d+", row)
            assert length is None or own[0].config.task.size == int(length.group())


def test_tables_2_and_3_have_the_papers_numbers():
    numbers = {cell.name: cell.paper for cell in experiment("table2", "paper").cells}
    assert numbers == {"Test:standard L=12": 8.6e-3, "Test:looped r=12": 1.4e-2, "Test:modulated r=12": 1.7e-3}
    numbers = {cell.name: cell.paper for cell in experiment("table3", "paper").cells}
    assert numbers == {
        "Train:standard L=6": 15.9, "Train:looped r=24": 17.1, "Train:modulated r=24": 15.9,
        "Test:standard L=6": 20.5, "Test:looped r=24": 20.6, "Test:modulated r=24": 19.6,
    }  # fmt: skip
    numbers = {cell.name: cell.paper for cell in experiment("perturbed", "paper").cells}
    assert numbers == {
        "memorisation:looped r=24": 4.32, "memorisation:modulated r=24": 4.18,
        "continuity:looped r=24": 130.6, "continuity:modulated r=24": 21.5,
    }  # fmt: skip


def test_paper_scale_uses_the_printed_settings():
    """Appendix: width 256, 4 heads, AdamW 1e-4, batch 64, 50 epochs; and what the other tasks have of their own."""
    for cell in experiment("table1", "paper").cells:
        config = cell.config
        assert (config.model.dim, config.model.num_heads, config.model.injection) == (256, 4, "add")
        train = config.train
        assert (train.optimizer.kind, train.optimizer.learning_rate, train.batch_size, train.schedule.warmup_steps) == (
            "adamw",
            1e-4,
            64,
            5,
        )
        epochs = train.num_steps * train.batch_size / train.num_examples
        assert epochs == pytest.approx(50, abs=1e-4)
        assert train.supervision == ("mean" if cell.row == "Sudoku" else "last")
    for cell in experiment("table2", "paper").cells:
        assert (cell.config.train.num_steps, cell.config.train.supervision) == (200_000, "mean")
        assert (cell.config.task.points, cell.config.task.dims, cell.config.task.depth) == (101, 20, 4)
    for cell in experiment("table3", "paper").cells:
        standard = cell.config.model.block == "standard"
        assert (cell.config.model.dim, cell.config.model.num_heads) == ((512, 8) if standard else (768, 12))
        assert (cell.config.train.num_steps, cell.config.train.batch_size) == (100_000, 48)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_gpu_cells_fit_into_their_minutes(name):
    for config in experiment(name, "gpu").configs():
        assert estimated_seconds(config, "gpu") <= GPU_TRAINING_SECONDS * 1.01
        curriculum = config.train.curriculum.curriculum_steps
        assert curriculum is None or curriculum < config.train.num_steps


def test_laptop_rows_share_samples_recipe_and_task():
    """Equal samples, recipe and task for all cells of a row."""
    made = experiment("table1", "laptop")
    for row in made.rows:
        cells = [cell for cell in made.cells if cell.row == row]
        assert len({json.dumps(cell.config.to_json()["train"]) for cell in cells}) == 1
        assert len({cell.config.task for cell in cells}) == 1


@pytest.mark.parametrize("scale", SCALES)
def test_conditioning_studies_have_equal_flops_and_equal_parameters(scale):
    plain, widened = (experiment(name, scale) for name in ("conditioning", "conditioning-parameters"))
    for made in (plain, widened):
        assert [cell.row for cell in made.cells] == list(CONDITIONINGS)
        found = [cell.config.model.resolved_conditioning for cell in made.cells]
        assert found == list(CONDITIONINGS)
        assert len({cell.config.train.num_steps for cell in made.cells}) == 1
    assert len({estimated_flops(cell.config) for cell in plain.cells}) == 1
    counts = [build_model(cell.config.model, cell.config.task.spec).num_parameters() for cell in widened.cells]
    unit = 2 * widened.cells[0].config.model.dim + 1
    assert max(counts) - min(counts) <= unit
    assert len({cell.config.model.resolved_ff_dim for cell in widened.cells}) > 1


@pytest.mark.parametrize("scale", SCALES)
def test_dense_conditioning_studies_compare_the_models_of_the_plain_ones_beyond_their_loops(scale):
    for name in ("conditioning", "conditioning-parameters"):
        plain, dense = experiment(name, scale), experiment(name.replace("conditioning", "conditioning-dense"), scale)
        trained = [cell for cell in dense.cells if cell.at_loops is None]
        for ours, theirs in zip(trained, plain.cells, strict=True):
            positions = theirs.config.model.positions  # the paper's recipe has learned ones
            assert replace(ours.config.model, positions=positions) == theirs.config.model
        assert {cell.config for cell in dense.cells} == {cell.config for cell in trained}
        for cell in dense.cells:
            assert (cell.config.task.answers, cell.recipe) == ("prefixes", "dense")
            assert cell.at_loops in (None, *loops_to_read(cell.config.model))
        beyond = {cell.row for cell in dense.cells if cell.at_loops == 2 * cell.config.model.num_loops}
        assert beyond == {*CONDITIONINGS} - {"table", "eta"}


@pytest.mark.parametrize("scale", SCALES)
def test_depth_study_has_equal_depth_and_flops(scale):
    cells = experiment("depth", scale).cells
    assert [cell.config.model.num_layers for cell in cells] == [1, 1, 2, 2, 4, 4]
    assert len({cell.config.model.num_layers * cell.config.model.num_loops for cell in cells}) == 1
    assert len({estimated_flops(cell.config) for cell in cells}) == 1
    if scale in ("gpu", "paper"):
        assert {cell.row for cell in cells} == {"1 x 24", "2 x 12", "4 x 6"}


@pytest.mark.parametrize("scale", ["laptop", "gpu", "paper"])
def test_recipes_study_has_equal_flops(scale):
    own, other = (cell.config for cell in experiment("recipes", scale).cells)
    assert estimated_flops(other) == pytest.approx(estimated_flops(own), rel=0.01)
    assert other.task == own.task
    assert replace(other.model, positions=own.model.positions) == own.model
    papers = other if scale != "paper" else own
    assert (papers.model.positions, papers.train.optimizer.kind, papers.train.batch_size) == ("learned", "adamw", 64)
    assert {own.train.optimizer.kind, other.train.optimizer.kind} == {"adamw", "muon"}


@pytest.mark.parametrize(("scale", "step", "loop", "speed"), [("laptop", 0, 0, 1), ("gpu", 1.3e-3, 35e-6, 235e12)])
def test_equal_time_study_trains_few_loops_for_as_long_as_many(scale, step, loop, speed):
    configs = [cell.config for cell in experiment("equal-time", scale).cells]
    seconds = [
        run.train.num_steps * (step + loop * run.model.num_loops) + estimated_flops(run) / speed for run in configs
    ]
    assert seconds == pytest.approx([max(seconds)] * len(seconds), rel=0.01)
    for block in ("looped", "modulated"):
        own = [run for run in configs if run.model.block == block]
        fewest, most = own[0], own[-1]
        assert fewest.model.num_loops < most.model.num_loops
        assert fewest.train.num_steps > 4 * most.train.num_steps
        shares = [run.train.curriculum.curriculum_steps / run.train.num_steps for run in own]
        assert shares == pytest.approx([shares[-1]] * len(own), rel=0.01)
        same = fewest.train.override(
            num_steps=most.train.num_steps, curriculum_steps=most.train.curriculum.curriculum_steps
        )
        assert same == most.train


@pytest.mark.parametrize("scale", ["laptop", "gpu", "paper"])
def test_rates_study_varies_only_the_learning_rate(scale):
    cells = experiment("rates", scale).cells
    longest = max(estimated_seconds(cell.config, scale) for cell in experiment("equal-time", scale).cells)
    for column in {cell.column for cell in cells}:
        first, half, quarter = (cell.config for cell in cells if cell.column == column)
        assert 0.95 * longest < estimated_seconds(first, scale) <= longest
        usual = base_config("ED40", scale, first.model.block).train
        assert first.train.curriculum.curriculum_steps == usual.curriculum.curriculum_steps
        for name in ("learning_rate", "muon_learning_rate"):
            assert getattr(first.train.optimizer, name) == getattr(usual.optimizer, name)
        for config, share in ((half, 2), (quarter, 4)):
            raised = {
                name: share * getattr(config.train.optimizer, name) for name in ("learning_rate", "muon_learning_rate")
            }
            assert replace(config, train=config.train.override(**raised)) == first


@pytest.mark.parametrize("scale", SCALES)
def test_dense_table_has_the_string_cells_of_table_1_and_none_of_its_runs(scale):
    table, dense = cells_of("table1", scale), cells_of("table1-dense", scale)
    assert list(dense) == [name for name in table if name.startswith(("LCS", "ED"))]
    for name, cell in dense.items():
        task = cell.config.task
        assert task == replace(table[name].config.task, answers="prefixes", answer_weight=task.answer_weight)
        assert cell.paper == table[name].paper
        assert replace(cell.config.model, positions=table[name].config.model.positions) == table[name].config.model
    assert not {cell.config for cell in dense.values()} & {cell.config for cell in table.values()}


@pytest.mark.parametrize("scale", ["gpu", "paper"])
def test_long_table_has_the_dense_cells_with_few_loops_and_four_times_their_steps(scale):
    dense, cells = cells_of("table1-dense", scale), cells_of("table1-long", scale)
    assert list(cells) == [name for name in dense if name.endswith((" r=5", " r=10"))]
    for name, cell in cells.items():
        other = dense[name].config
        steps, curriculum = other.train.num_steps, other.train.curriculum.curriculum_steps
        longer = other.train.override(num_steps=4 * steps, curriculum_steps=4 * curriculum)
        assert cell.config == replace(other, train=longer)
        assert (cell.recipe, cell.paper) == ("long", dense[name].paper)


@pytest.mark.parametrize("name", ["table1-long", "table1-warm", "table1-tune"])
def test_tables_of_other_recipes_have_the_dense_runs_at_small_scales(name):
    dense = cells_of("table1-dense", "laptop")
    assert all(cell.config == dense[each].config for each, cell in cells_of(name, "laptop").items())


@pytest.mark.parametrize(("name", "num_cells"), [("table1-warm", 14), ("table1-tune", 4)])
def test_table_from_trained_weights_starts_from_shipped_models_of_strings_that_are_as_long_or_shorter(name, num_cells):
    cells = experiment(name, "gpu").cells
    assert len(cells) == num_cells
    for cell in cells:
        shipped = read_shipped(cell.config.train.init_from)[0].config
        assert shipped.model == replace(cell.config.model, num_loops=shipped.model.num_loops)
        assert shipped.task.length <= cell.config.task.length
        assert shipped.task.name == cell.config.task.name
        assert cell.paper is not None


@pytest.mark.parametrize("scale", SCALES)
def test_countdown_study_has_models_of_equal_depth_and_the_runs_of_table_1(scale):
    cells = cells_of("countdown", scale)
    depths = {cell.row: cell.config.model.num_layers * cell.config.model.num_loops for cell in cells.values()}
    assert len({*list(depths.values())[1:]}) == 1
    table = {run_key(config) for config in experiment("table1", scale).select(["Countdown:*"]).configs()}
    assert len(table & {run_key(cell.config) for cell in cells.values()}) == 3
    for name, cell in cells.items():
        once = cells[f"{cell.row}:1x"].config
        factor = int(name.removesuffix("x").rpartition(":")[2])
        assert cell.config == replace(once, train=once.train.override(num_steps=factor * once.train.num_steps))


@pytest.mark.parametrize("scale", SCALES)
def test_dense_study_of_loops_reads_every_model_up_to_twenty_times_its_loops(scale):
    made = experiment("loops-dense", scale)
    num_loops = made.cells[0].config.model.num_loops
    for row in made.rows:
        own = [cell for cell in made.cells if cell.row == row]
        assert [cell.at_loops for cell in own] == [multiple * num_loops for multiple in (1, 2, 5, 10, 20)]
        assert {cell.shows for cell in own} <= {"sets/many loops", "sets/many loops, clamp"}
        assert ("clamp" in row) == own[0].shows.endswith("clamp")
    assert max(made.cells[-1].config.train.free_loops) == 9 * num_loops
    dense = {run_key(config) for config in experiment("table1-dense", scale).configs()}
    assert len(dense & {run_key(config) for config in made.configs()}) == 2


@pytest.mark.parametrize("scale", SCALES)
def test_study_of_kept_answers_reads_every_model_up_to_ten_times_its_loops(scale):
    made = experiment("keep-answer", scale)
    assert len(made.rows) == 4
    for cell in made.cells:
        num_loops = cell.config.model.num_loops
        assert cell.at_loops == int(cell.column.removesuffix("x")) * num_loops
        assert max(cell.config.train.free_loops) == 9 * num_loops
    assert max(made.eval_plan.many_loops) == 10


def test_study_of_kept_answers_starts_from_shipped_models_at_full_size():
    for config in experiment("keep-answer", "gpu").configs():
        shipped = read_shipped(config.train.init_from)[0].config
        assert (shipped.model, shipped.task.name) == (config.model, config.task.name)


def test_studies_share_their_runs_with_table_1():
    for scale in ("laptop", "gpu"):
        table = {run_key(config) for config in experiment("table1", scale).configs()}
        dense = {run_key(config) for config in experiment("table1-dense", scale).configs()}
        own = {run_key(config) for config in experiment("conditioning-dense", scale).configs()}
        assert len(own & dense) == 2
        counts = {"conditioning": 2, "fidelity": 2, "loops": 2, "correlation": 9, "recipes": 1, "equal-time": 2}
        for name, shared in counts.items():
            own = {run_key(config) for config in experiment(name, scale).configs()}
            assert len(own & table) == shared, (name, scale)


def test_length_study_trains_on_the_usual_strings():
    for scale in SCALES:
        usual = experiment("table1", scale).select(["ED40:standard"]).cells[0].config
        for cell in experiment("length", scale).cells:
            task, train = cell.config.task, cell.config.train
            assert task.size == 2 * usual.task.size
            assert max(train.curriculum.size_choices) == 0.5


def test_select_with_patterns_keeps_matching_cells():
    table = experiment("table1", "paper")
    assert table.select([]) == table
    assert [cell.name for cell in table.select(["ed40:*"]).cells][:2] == ["ED40:standard", "ED40:looped r=5"]
    assert len(table.select(["*:modulated*"]).cells) == 24
    assert [cell.name for cell in table.select(["ED60:standard", "ED40:standard"]).cells] == [
        "ED40:standard",
        "ED60:standard",
    ]
    for nothing in (["ED41:*"], ["ED40"], ["ED40:standard", "XX:*"]):
        with refused("cells"):
            table.select(nothing)


def test_experiment_with_an_unknown_name_lists_the_known_ones():
    with refused("experiment"):
        experiment("tabel1", "laptop")
    with refused("scale"):
        experiment("table1", "laptopp")


def test_loops_to_read_cover_and_exceed_the_trained_range():
    by_column = cells_of("table1", "laptop")
    assert loops_to_read(by_column["ED40:standard"].config.model) == [1]
    assert loops_to_read(by_column["ED40:modulated r=8"].config.model) == list(range(1, 17))
    hundred = loops_to_read(cells_of("table1")["ED40:modulated r=100"].config.model)
    assert len(hundred) == 24
    assert {1, 100, 150, 200} & set(hundred) == {100, 150, 200}
    table = next(cell for cell in experiment("conditioning", "gpu").cells if cell.row == "table").config.model
    assert max(loops_to_read(table)) == table.num_loops


def test_loops_to_read_are_every_twelfth_of_the_trained_loops():
    """The lists are those that the records in `results/` were read at: other loops could not stand beside them."""
    to_read = {
        32: [3, 6, 8, 11, 14, 16, 19, 22, 24, 27, 30, 32, 35, 38, 40, 43, 46, 48, 51, 54, 56, 59, 62, 64],
        50: [5, 9, 13, 17, 21, 25, 30, 34, 38, 42, 46, 50, 55, 59, 63, 67, 71, 75, 80, 84, 88, 92, 96, 100],
    }
    for num_loops in range(1, 121):
        model = ModelConfig(block="looped", num_loops=num_loops)
        twelfths = [Fraction(part * num_loops, 12) for part in range(1, 25)]
        first_after = sorted({next(loop for loop in range(1, 241) if loop >= twelfth) for twelfth in twelfths})
        assert loops_to_read(model) == to_read.get(num_loops, first_after) == first_after


@pytest.fixture(scope="module")
def smoke_runs(tmp_path_factory):
    """Every run of every experiment at smoke scale, in this very process."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("smoke") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPED_CACHE", str(root.parent / "cache"))
        patch.setenv("LOOPED_DATA", str(root.parent / "nothing"))
        for name in EXPERIMENTS:
            made = experiment(name, "smoke")
            for config in made.configs():
                assert finish_run(config, root, made.eval_plan).state == "finished", (name, config)
    return root


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_at_smoke_scale_shows_a_number(name, smoke_runs):
    made, records = experiment(name, "smoke"), load_records(None, smoke_runs)
    for cell in made.cells:
        record = records[run_key(cell.config)]
        assert record.finished
        value = cell_value(cell, record)
        assert value is not None, cell.name
        assert math.isfinite(value.value), cell.name
        assert record.train is not None
        assert record.flops == estimated_flops(cell.config)
        assert record.parameters == build_model(cell.config.model, cell.config.task.spec).num_parameters()
        assert {*wanted_names(cell.config, made.eval_plan)} <= {*record.sets, *record.extra}
        assert {*cell.config.task.test_sets()} <= {*record.sets}


def test_run_of_two_experiments_is_trained_once_and_measured_for_both(smoke_runs):
    """Table 1's modulated model is the loop study's fixed one: its record has the test of the one and sets of both."""
    loops = experiment("loops", "smoke")
    cell = next(cell for cell in loops.cells if cell.shows == "sets/clamp" and cell.row == "fixed")
    table = {run_key(config) for config in experiment("table1", "smoke").configs()}
    assert run_key(cell.config) in table
    record = load_records(None, smoke_runs)[run_key(cell.config)]
    assert {"clamp", "rescale"} <= set(record.sets)
    # Up to the trained loops the three policies are one; beyond, clamp is another.
    trained = cell.config.model.num_loops
    for name in ("clamp", "rescale"):
        for one, other in zip(record.test.rows, record.sets[name].rows, strict=True):
            assert (one.metrics["loss"] == other.metrics["loss"]) == (one.loops <= trained)


def test_paper_status_counts_a_cell_of_table_1_once_for_all_recipes(tmp_path, capsys):
    """Two cells are filled. The one by two recipes is below the paper by the recipe with the better validation."""
    fast, dense = experiment("table1", "gpu"), experiment("table1-dense", "gpu")
    for table, name, accuracy, validation in (
        (fast, "ED40:looped r=50", 0.7, 0.9),
        (dense, "ED40:looped r=50", 0.99, 0.8),
        (dense, "LCS60:modulated r=50", 0.999, 0.8),
    ):
        (record,) = fake_records([table.select([name])]).values()
        score = record.test.trained
        score = replace(score, metrics={**score.metrics, "accuracy": accuracy}, low=accuracy - 0.01, high=accuracy)
        curve = [{"samples": record.samples, "validation": validation}]
        measured = replace(record, test=replace(record.test, rows=(score,)), curve=curve)
        save_record(tmp_path / record.path, measured)
    words = ["paper", "status", "--scale", "gpu", "--results", str(tmp_path), "--root", str(tmp_path / "runs")]
    assert main([*words, "--json"]) == 0
    counts = {"filled": 2, "cells": 54, "reached": 1}
    assert json.loads(capsys.readouterr().out)["tables"] == {"table1": counts}
    assert main([*words, "table1-dense"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert [int(word) for word in re.findall(r"\d+", last.partition(":")[2])] == [2, 54, 1]
    assert main([*words, "table2"]) == 0
    assert "recipe" not in capsys.readouterr().out


def test_paper_status_of_small_problems_compares_nothing_with_the_paper(tmp_path, capsys):
    for record in fake_records([experiment("table1", "laptop").select(["ED40:looped r=8"])]).values():
        save_record(tmp_path / record.path, record)
    words = ["paper", "status", "table1", "--results", str(tmp_path), "--root", str(tmp_path / "runs"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == {"table1": {"filled": 1, "cells": 54}}


def test_train_evaluation_uses_the_examples_of_training(smoke_runs, monkeypatch):
    """Seed, numbers and size of what `train` is measured on."""
    from looped.tasks import EditDistance

    seen = []
    original = EditDistance.sample

    def spying(self, seed, split, indices, size=None):
        seen.append((seed, split, [*map(int, indices)], size))
        return original(self, seed, split, indices, size)

    made = experiment("table1", "smoke").select(["ED40:looped r=2"])
    config = replace(made.cells[0].config, seed=3)
    monkeypatch.setattr(EditDistance, "sample", spying)
    finish_run(config, smoke_runs, made.eval_plan)
    trained = [call for call in seen if call[1] == "train" and call[2] != [0]]  # one alone is only tried out
    # Two steps of two examples, each drawn once, the first two of half the length; then the test on the last two.
    assert trained == [(3, "train", [0, 1], 2), (3, "train", [2, 3], 4), (3, "train", [2, 3], 4)]


REPRODUCE = (ROOT / "docs" / "reproduce.md").read_text()


def documented(heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading: what stands beside each experiment's name."""
    section = REPRODUCE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {name.strip("`"): others for name, *others in rows}


def test_docs_name_every_experiment_with_its_runs():
    found = {name: int(re.match(r"\d+", runs)[0]) for name, (_, runs) in documented("The experiments").items()}
    assert found == {name: len(experiment(name, "paper").configs()) for name in EXPERIMENTS}
    for command in re.findall(r"^looped paper (\w+)(?: (\w+))?.*?(?:--scale (\w+))?", REPRODUCE, re.MULTILINE):
        assert command[0] in ("list", "run", "status", "collect", "report")
        assert not command[1] or command[1] in EXPERIMENTS


def test_docs_give_the_training_time_of_every_experiment():
    rows = documented("How long they train")
    assert rows.keys() == EXPERIMENTS.keys()
    for name, (laptop, _, gpu) in rows.items():
        for scale, minutes in (("laptop", laptop), ("gpu", gpu)):
            seconds = sum(estimated_seconds(config, scale) for config in experiment(name, scale).configs())
            digits = len(minutes.partition(".")[2])
            assert minutes == f"{seconds / 60:.{digits}f}", (name, scale)
