"""The paper's experiments as data: every cell a config beside the paper's number, at any scale.

What goes beyond the paper is in `studies.py`. To add an experiment: a function from a scale to an `Experiment`, and its
line in EXPERIMENTS.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from looped.config import ModelConfig, RunConfig
from looped.experiments import studies
from looped.experiments.scales import (
    BLOCKS,
    PROBLEMS,
    SIZES,
    dense,
    fitting,
    fitting_alike,
    layers_of,
    loops_of,
    measures,
    start,
)
from looped.experiments.spec import SCALE_TEXT, Cell, Experiment, Scale, check_scale, require_unique
from looped.recipes import recipes_for
from looped.utils.errors import require_one_of

# Table 1, test accuracy in %: the standard Transformer; looped with the problem's four loop counts; with timestep.
TABLE_1: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "Sudoku": (0.0, (0.0, 0.0, 65.6, 87.9), (0.0, 0.0, 62.0, 90.2)),
    "Countdown": (53.8, (28.3, 52.7, 81.0, 88.1), (33.2, 54.4, 80.2, 90.5)),
    "LCS60": (70.0, (66.0, 81.8, 98.6, 96.9), (68.5, 80.5, 99.3, 97.1)),
    "LCS100": (39.8, (39.6, 45.1, 93.5, 98.2), (36.7, 45.6, 98.1, 98.6)),
    "ED40": (54.2, (41.4, 57.9, 85.4, 90.4), (44.8, 63.5, 94.5, 96.1)),
    "ED60": (41.4, (23.8, 32.6, 47.3, 47.7), (26.6, 38.9, 57.3, 88.3)),
}
# Table 2, squared error, probably divided by the 20 dimensions; Table 3, perplexity on training and on test text.
TABLE_2 = (8.6e-3, 1.4e-2, 1.7e-3)
TABLE_3 = {"Train": (15.9, 17.1, 15.9), "Test": (20.5, 20.6, 19.6)}
# Perturbed text: cross-entropy on the training text and continuity coefficient, without and with timestep.
PERTURBED = {"memorisation": (4.32, 4.18), "continuity": (130.6, 21.5)}

# Windows of text in a test; None: all there are.
TEXT_TEST_SIZES: dict[Scale, int | None] = {"smoke": 4, "laptop": 100, "gpu": None, "paper": None}


def table1(scale: Scale) -> Experiment:
    cells = [cell for row in TABLE_1 for cell in row_cells(row, scale)]
    few = " Where ten minutes are too short for a row's samples, those with most loops have fewer." * (scale == "gpu")
    return Experiment(
        id="table1",
        title="Table 1: reasoning tasks, more loops, and a timestep",
        about=(
            "Test accuracy of a standard Transformer, and of one layer looped r times without and with timestep "
            f"encoding; every cell is a training of its own. {_sizes(scale)}{few}"
        ),
        scale=scale,
        cells=tuple(cells),
        measures=measures(scale),
    )


def table1_dense(scale: Scale) -> Experiment:
    """Table 1's rows of strings by another recipe, and so a table of its own: no column mixes two."""
    rows = [row for row in TABLE_1 if "dense" in recipes_for(PROBLEMS[row].task)]
    return Experiment(
        id="table1-dense",
        title="Table 1 with dense answers",
        about=(
            "The string rows of Table 1 by the recipe `dense`, whose training has the answers for all prefixes of the "
            "second string as targets, which the paper does not say of its own. The test is Table 1's: the answer for "
            f"the whole pair. Scale {scale}: {SIZES[scale].test_size:,} test examples."
        ),
        scale=scale,
        cells=tuple(cell for row in rows for cell in row_cells(row, scale, dense)),
        measures=measures(scale),
    )


def correlation(scale: Scale) -> Experiment:
    """The figure of the appendix: training and test accuracy of the runs of one row of Table 1."""
    cells = row_cells("ED60", scale)
    shown = [
        replace(cell, row=row, paper=None, paper_column="", shows=shows) for row, shows in _SHOWN for cell in cells
    ]
    return Experiment(
        id="correlation",
        title="Training and test accuracy of edit distance 60",
        about=(
            "Accuracy on examples that a model was trained on and on held-out ones, for the nine models of Table 1's "
            f"row ED60 (no further training). {_sizes(scale)} The paper prints a figure without numbers."
        ),
        scale=scale,
        cells=tuple(shown),
        measures=measures(scale),
    )


_OVER_DIMS = "test.squared_error_over_dims"
_SHOWN = (("Train", "train"), ("Test", "test"))


def table2(scale: Scale) -> Experiment:
    columns = three_columns("trees", scale)
    cells = [
        Cell("Test", column, config, paper, _OVER_DIMS, paper_column=_papers_column("trees", config.model))
        for (column, config), paper in zip(columns.items(), TABLE_2, strict=True)
    ]
    return Experiment(
        id="table2",
        title="Table 2: decision trees learned in context",
        about=(
            "Squared error at the query, divided by the number of dimensions as the paper's numbers seem to be (the "
            f"records also have it divided by nothing). {_sizes(scale)}"
        ),
        scale=scale,
        cells=tuple(cells),
        measures=measures(scale),
    )


def table3(scale: Scale) -> Experiment:
    columns = three_columns("text", scale)
    cells = [
        Cell(row, column, config, paper, shows, paper_column=_papers_column("text", config.model))
        for row, shows in _SHOWN
        for (column, config), paper in zip(columns.items(), TABLE_3[row], strict=True)
    ]
    texts = ("wikitext",) if scale == "gpu" else ()
    return Experiment(
        id="table3",
        title="Table 3: perplexity of language models",
        about=(
            "Perplexity on training text and on held-out text, every token but the first counted once. "
            f"{_sizes(scale)} {_text(scale)} The paper's table says 12 layers for the standard model; its appendix and "
            "its parameter counts say 6."
        ),
        scale=scale,
        cells=tuple(cells),
        measures=measures(scale, size=TEXT_TEST_SIZES[scale], texts=texts),
    )


def perturbed(scale: Scale) -> Experiment:
    # A text that is memorised is one that comes again: a fixed set of windows, seen several times over.
    windows = {"smoke": 4, "laptop": 256, "gpu": 4096, "paper": None}[scale]
    noise: dict[str, Any] = {"perturbed": 0.1}
    columns = {
        column: replace(config, task=replace(config.task, **noise), train=config.train.override(num_examples=windows))
        for column, config in list(three_columns("text", scale).items())[1:]
    }
    cells = [
        Cell(row, column, config, paper, shows, paper_column=_papers_column("text", config.model))
        for row, shows in (("memorisation", "train.loss"), ("continuity", "extra.continuity.coefficient"))
        for (column, config), paper in zip(columns.items(), PERTURBED[row], strict=True)
    ]
    fixed = f"{windows:,} windows of it come again and again." if windows else ""
    return Experiment(
        id="perturbed",
        title="Perturbed text: memorisation and continuity",
        about=(
            "A tenth of the text's tokens replaced by random ones. Memorisation is the cross-entropy on the training "
            "text; continuity is how far the output moves for a small change of the input's embedding. "
            f"{_sizes(scale)} {_text(scale)} {fixed}"
        ).rstrip(),
        scale=scale,
        cells=tuple(cells),
        measures=measures(scale, size=TEXT_TEST_SIZES[scale] or 500, continuity=True),
    )


def row_cells(row: str, scale: Scale, make: Callable[..., RunConfig] = start) -> list[Cell]:
    """The nine cells of one row of Table 1; `make` is `start`, or what makes configs by another recipe."""
    standard, *looping = TABLE_1[row]
    cells = [_row_cell(row, "TF", make(row, scale, "standard", num_layers=layers_of(row, scale)), scale, standard)]
    for (name, block), numbers in zip(BLOCKS.items(), looping, strict=True):
        for place, (num_loops, paper) in enumerate(zip(loops_of(row, scale), numbers, strict=True)):
            config = make(row, scale, block, num_loops=num_loops)
            cells.append(_row_cell(row, f"{name} r={num_loops}", config, scale, paper, place))
    return cells


def _row_cell(row: str, column: str, config: RunConfig, scale: Scale, paper: float, place: int = 0) -> Cell:
    papers = _papers_column(row, config.model, place)
    return Cell(row, column, fitting(config, scale), round(paper / 100, 6), paper_column=papers)


def _papers_column(problem: str, model: ModelConfig, place: int = 0) -> str:
    """`L=12` or `r=5` where the paper's number is of a model with other layers or loops than this one."""
    if model.block == "standard":
        layers = layers_of(problem, "paper")
        return "" if model.num_layers == layers else f"L={layers}"
    num_loops = PROBLEMS[problem].loops[place]
    return "" if model.num_loops == num_loops else f"r={num_loops}"


def three_columns(problem: str, scale: Scale) -> dict[str, RunConfig]:
    """The columns of Tables 2 and 3, all trained for as many steps."""
    layers, (num_loops,) = layers_of(problem, scale), loops_of(problem, scale)
    columns = {f"TF L={layers}": start(problem, scale, "standard", num_layers=layers)}
    for name, block in BLOCKS.items():
        columns[f"{name} r={num_loops}"] = start(problem, scale, block, num_loops=num_loops)
    return fitting_alike(columns, scale)


def _sizes(scale: Scale) -> str:
    return f"Scale {scale}: {SCALE_TEXT[scale]}."


def _text(scale: Scale) -> str:
    if scale == "gpu":
        return "The text is English Wikipedia of 2015."
    return "The text is WikiText-103." if scale == "paper" else "The text is made of little stories."


EXPERIMENTS: dict[str, Callable[[Scale], Experiment]] = {
    "table1": table1,
    "table1-dense": table1_dense,
    "table2": table2,
    "table3": table3,
    "correlation": correlation,
    "perturbed": perturbed,
    **studies.STUDIES,
}


def experiment(name: str, scale: str = "laptop") -> Experiment:
    """One experiment by its id; `InputError` if there is no such one, or no such scale."""
    require_one_of("experiment", name, EXPERIMENTS)
    return require_unique(EXPERIMENTS[name](check_scale(scale)))
