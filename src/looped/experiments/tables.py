"""The paper's experiments as data: every cell is a config beside the paper's number, at any scale.

The paper calls the three models TF, Looped and "with timestep encoding"; here they are `standard`, `looped` and
`modulated`. Questions beyond the paper are in `studies.py`. To add an experiment, write a function from a scale to an
`Experiment` and list it in EXPERIMENTS.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from looped.config import RunConfig
from looped.experiments import studies
from looped.experiments.scales import (
    BLOCKS,
    PROBLEMS,
    SCALE_SPECS,
    base_config,
    dense_config,
    eval_plan,
    fit_budget,
    fit_budget_jointly,
    layers_of,
    long_config,
    loops_of,
    tune_config,
    warm_config,
)
from looped.experiments.spec import FULL_SIZE, Cell, Experiment, Scale, check_scale, require_unique
from looped.recipes import recipes_for
from looped.utils import plugins
from looped.utils.errors import require, unknown

# Table 1, test accuracy in %: standard, then looped and modulated with the four loop counts of the problem.
TABLE_1: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "Sudoku": (0.0, (0.0, 0.0, 65.6, 87.9), (0.0, 0.0, 62.0, 90.2)),
    "Countdown": (53.8, (28.3, 52.7, 81.0, 88.1), (33.2, 54.4, 80.2, 90.5)),
    "LCS60": (70.0, (66.0, 81.8, 98.6, 96.9), (68.5, 80.5, 99.3, 97.1)),
    "LCS100": (39.8, (39.6, 45.1, 93.5, 98.2), (36.7, 45.6, 98.1, 98.6)),
    "ED40": (54.2, (41.4, 57.9, 85.4, 90.4), (44.8, 63.5, 94.5, 96.1)),
    "ED60": (41.4, (23.8, 32.6, 47.3, 47.7), (26.6, 38.9, 57.3, 88.3)),
}
STRING_ROWS = [row for row in TABLE_1 if "dense" in recipes_for(PROBLEMS[row].task)]
# Table 2, squared error, probably divided by the 20 dimensions; Table 3, perplexity on training and test text.
TABLE_2 = (8.6e-3, 1.4e-2, 1.7e-3)
TABLE_3 = {"Train": (15.9, 17.1, 15.9), "Test": (20.5, 20.6, 19.6)}
# Perturbed text: cross-entropy on the training text and continuity coefficient, looped and modulated.
PERTURBED = {"memorisation": (4.32, 4.18), "continuity": (130.6, 21.5)}

# Windows of text in a test; None for all of them.
TEXT_TEST_SIZES: dict[Scale, int | None] = {"smoke": 4, "laptop": 100, "gpu": None, "paper": None}


def table1(scale: Scale) -> Experiment:
    """Return Table 1 of the paper: accuracy on the reasoning tasks."""
    return Experiment(
        id="table1",
        title="Table 1: reasoning tasks",
        about=(
            "Test accuracy of a standard Transformer and of one layer that is applied r times, without modulation "
            "(looped) and with a modulation that depends on the loop (modulated). Every cell is a separate run."
        ),
        scale=scale,
        cells=tuple(cell for row in TABLE_1 for cell in row_cells(row, scale)),
        eval_plan=eval_plan(scale),
    )


def table1_dense(scale: Scale) -> Experiment:
    """Return the string rows of Table 1 by the recipe `dense`."""
    return Experiment(
        id="table1-dense",
        title="Table 1 with dense answers",
        about=(
            "The string rows of Table 1 by the recipe dense: training has the answers for all prefixes of the second "
            "string as targets. The paper does not mention such targets. The test is that of Table 1."
        ),
        scale=scale,
        cells=tuple(cell for row in STRING_ROWS for cell in row_cells(row, scale, dense_config, "dense")),
        eval_plan=eval_plan(scale),
    )


def table1_long(scale: Scale) -> Experiment:
    """Return the string cells of Table 1 with the fewest loops by the recipe `long`."""
    cells = []
    for row in STRING_ROWS:
        columns = {f"{block} r={num_loops}" for block in BLOCKS for num_loops in loops_of(row, scale)[:2]}
        cells += [cell for cell in row_cells(row, scale, long_config, "long") if cell.column in columns]
    return Experiment(
        id="table1-long",
        title="Table 1 with dense answers and more steps",
        about=(
            "The string rows of Table 1 with the fewest loops by the recipe long: that of dense with four times the "
            "steps. On small problems the runs are those of dense."
        ),
        scale=scale,
        cells=tuple(cells),
        eval_plan=eval_plan(scale),
    )


def table1_warm(scale: Scale) -> Experiment:
    """Return the cells of Table 1 with the most loops by the recipe `warm`."""
    rows = {"LCS60": 1, "LCS100": 2, "ED40": 2, "ED60": 2}  # LCS 60 is solved at r = 50
    return Experiment(
        id="table1-warm",
        title="Table 1 from trained weights",
        about=(
            "The string rows of Table 1 with the most loops by the recipe warm. Training is that of the recipe dense, "
            "but starts from a shipped model, which was trained with 50 loops on strings of 40 letters (edit distance) "
            "or 60 (LCS). The examples of that training are not counted here. On small problems the runs are those of "
            "dense."
        ),
        scale=scale,
        cells=tuple(_with_most_loops(rows, scale, warm_config, "warm")),
        eval_plan=eval_plan(scale),
    )


def table1_tune(scale: Scale) -> Experiment:
    """Return the cells of Table 1 that need only more loops than a shipped model has, by the recipe `tune`."""
    return Experiment(
        id="table1-tune",
        title="Table 1 from trained weights, with few examples",
        about=(
            "The rows LCS60 and ED40 of Table 1 with the most loops by the recipe tune: that of warm with small "
            "batches and a hundredth of its examples, which one CPU core can train in an hour. The shipped models that "
            "it starts from have half as many loops. On small problems the runs are those of dense."
        ),
        scale=scale,
        cells=tuple(_with_most_loops({"LCS60": 1, "ED40": 1}, scale, tune_config, "tune")),
        eval_plan=eval_plan(scale),
    )


def _with_most_loops(
    rows: dict[str, int], scale: Scale, make_config: Callable[..., RunConfig], recipe: str
) -> list[Cell]:
    """Return the looped and modulated cells of each row with its largest numbers of loops, as many as it names."""
    cells = []
    for row, num_columns in rows.items():
        loops = loops_of(row, scale)[-num_columns:]
        columns = {f"{block} r={num_loops}" for block in BLOCKS for num_loops in loops}
        cells += [cell for cell in row_cells(row, scale, make_config, recipe) if cell.column in columns]
    return cells


def row_cells(
    row: str, scale: Scale, make_config: Callable[..., RunConfig] = base_config, recipe: str | None = None
) -> list[Cell]:
    """Return the nine cells of one row of Table 1; `make_config` and `recipe` replace the recipe of the scale."""
    standard, *looping = TABLE_1[row]
    models = {"standard": make_config(row, scale, "standard", num_layers=layers_of(row, scale))}
    for block in BLOCKS:
        for num_loops in loops_of(row, scale):
            models[f"{block} r={num_loops}"] = make_config(row, scale, block, num_loops=num_loops)
    papers = [standard, *(number for numbers in looping for number in numbers)]
    return [
        Cell(
            row,
            column,
            fit_budget(config, scale),
            round(paper / 100, 6),
            recipe=recipe or SCALE_SPECS[scale].recipe,
            comparable=_is_papers_problem(row, scale),
        )
        for (column, config), paper in zip(models.items(), papers, strict=True)
    ]


def correlation(scale: Scale) -> Experiment:
    """Return the runs behind the figure of training against test accuracy."""
    cells = row_cells("ED60", scale)
    rows = (("Train", "train"), ("Test", "test"))
    return Experiment(
        id="correlation",
        title="Training against test accuracy",
        about=(
            "Accuracy on training examples and on held-out examples, for the nine models of the row ED60 of Table 1. "
            "The paper prints a figure without numbers."
        ),
        scale=scale,
        cells=tuple(replace(cell, row=row, paper=None, shows=shows) for row, shows in rows for cell in cells),
        eval_plan=eval_plan(scale),
    )


def table2(scale: Scale) -> Experiment:
    """Return Table 2 of the paper: decision trees in context."""
    cells = [
        _paper_cell("trees", "Test", column, config, paper, "test.squared_error_over_dims", scale)
        for (column, config), paper in zip(three_columns("trees", scale).items(), TABLE_2, strict=True)
    ]
    return Experiment(
        id="table2",
        title="Table 2: decision trees in context",
        about=(
            "Squared error of the answer to a query, after examples of an unknown decision tree. It is divided by the "
            "number of dimensions, as the paper's numbers seem to be. Lower is better."
        ),
        scale=scale,
        cells=tuple(cells),
        eval_plan=eval_plan(scale),
    )


def table3(scale: Scale) -> Experiment:
    """Return Table 3 of the paper: language models."""
    columns = three_columns("text", scale)
    cells = [
        _paper_cell("text", row, column, config, paper, shows, scale)
        for row, shows in (("Train", "train"), ("Test", "test"))
        for (column, config), paper in zip(columns.items(), TABLE_3[row], strict=True)
    ]
    texts = ("wikitext",) if scale == "gpu" else ()
    return Experiment(
        id="table3",
        title="Table 3: language models",
        about=(
            "Perplexity on training text and on held-out text; every token but the first counts once. Lower is better. "
            f"{_text(scale)} The paper's table says 12 layers for the standard model, but its appendix and its "
            "parameter counts say 6."
        ),
        scale=scale,
        cells=tuple(cells),
        eval_plan=eval_plan(scale, size=TEXT_TEST_SIZES[scale], texts=texts),
    )


def perturbed(scale: Scale) -> Experiment:
    """Return the paper's experiment on perturbed text: memorisation and continuity."""
    # To be memorised, a text must repeat: training uses a fixed set of windows, each seen several times.
    windows = {"smoke": 4, "laptop": 256, "gpu": 4096, "paper": None}[scale]
    noise: dict[str, Any] = {"perturbed": 0.1}
    columns = {
        column: replace(config, task=replace(config.task, **noise), train=config.train.override(num_examples=windows))
        for column, config in list(three_columns("text", scale).items())[1:]
    }
    cells = [
        _paper_cell("text", row, column, config, paper, shows, scale)
        for row, shows in (("memorisation", "train.loss"), ("continuity", "extra.continuity.coefficient"))
        for (column, config), paper in zip(columns.items(), PERTURBED[row], strict=True)
    ]
    repeated = f"Training repeats {windows:,} windows of it." if windows else ""
    return Experiment(
        id="perturbed",
        title="Perturbed text",
        about=(
            "A tenth of the tokens is replaced by random ones. Memorisation is the cross-entropy on the training text. "
            "Continuity is how far the output moves for a small change of the input embeddings. For both, lower is "
            f"better. {_text(scale)} {repeated}"
        ).rstrip(),
        scale=scale,
        cells=tuple(cells),
        eval_plan=eval_plan(scale, size=TEXT_TEST_SIZES[scale] or 500, continuity=True),
    )


def _paper_cell(problem: str, row: str, column: str, config: RunConfig, paper: float, shows: str, scale: Scale) -> Cell:
    recipe = SCALE_SPECS[scale].recipe
    return Cell(row, column, config, paper, shows, recipe=recipe, comparable=_is_papers_problem(problem, scale))


def _is_papers_problem(problem: str, scale: Scale) -> bool:
    return base_config(problem, scale).task == base_config(problem, "paper").task


def three_columns(problem: str, scale: Scale) -> dict[str, RunConfig]:
    """Return the columns of Tables 2 and 3, all trained for the same number of steps."""
    layers, (num_loops,) = layers_of(problem, scale), loops_of(problem, scale)
    columns = {f"standard L={layers}": base_config(problem, scale, "standard", num_layers=layers)}
    for block in BLOCKS:
        columns[f"{block} r={num_loops}"] = base_config(problem, scale, block, num_loops=num_loops)
    return fit_budget_jointly(columns, scale)


def _text(scale: Scale) -> str:
    if scale == "gpu":
        return "The text is English Wikipedia of 2015, the paper's is WikiText-103, so the numbers cannot be compared."
    return "The text is WikiText-103." if scale == "paper" else "The text consists of generated short stories."


EXPERIMENTS: dict[str, Callable[[Scale], Experiment]] = {
    "table1": table1,
    "table1-dense": table1_dense,
    "table1-long": table1_long,
    "table1-warm": table1_warm,
    "table1-tune": table1_tune,
    "table2": table2,
    "table3": table3,
    "correlation": correlation,
    "perturbed": perturbed,
    **studies.STUDIES,
}

SAME_TABLE: dict[str, str] = dict.fromkeys(("table1-dense", "table1-long", "table1-warm", "table1-tune"), "table1")
"""experiments that fill the cells of another by other recipes; a report shows them as columns of one table"""


def experiment(name: str, scale: str = "laptop") -> Experiment:
    """Return an experiment by its id, or a user's own by `FILE.py:FUNCTION` or by the name of a plugin's function.

    Raise InputError if the name or the scale is unknown.
    """
    size = check_scale(scale)
    return require_unique(EXPERIMENTS[name](size) if name in EXPERIMENTS else _own_experiment(name, size))


def is_built_in(one: Experiment) -> bool:
    """Return whether an experiment is one of ours, not a user's own."""
    return one.id in EXPERIMENTS


def _own_experiment(name: str, scale: Scale) -> Experiment:
    """Return what a user's function makes of a scale. Raise InputError unless it is an experiment with its own id."""
    outside = {} if plugins.is_item(name) else dict(plugins.outside_items())
    if not plugins.is_item(name) and name not in outside:
        raise unknown("experiment", name, EXPERIMENTS, plugins.HINT)
    made = plugins.call(name, outside.get(name) or plugins.load_item(name), scale)
    require(isinstance(made, Experiment), f"{name}: expected a function from a scale to an Experiment, got {made!r}")
    require(not is_built_in(made), f"{name}: expected an experiment with an id of its own, got {made.id!r}")
    return made


def all_recipes(name: str, scale: Scale) -> list[Experiment]:
    """Return every experiment that fills a table, one per recipe; at full size these are at two scales."""
    names = [name, *(other for other, table in SAME_TABLE.items() if table == name)]
    return [experiment(each, size) for each in names for size in (FULL_SIZE if scale in FULL_SIZE else (scale,))]
