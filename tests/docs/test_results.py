"""The results page and the pages beside it agree with the records."""

import re
from fnmatch import fnmatchcase

import pytest

from looped.experiments.records import load_records, seedless_key
from looped.experiments.report.compare import best_results, distinct_results
from looped.experiments.spec import SCALES
from looped.experiments.tables import EXPERIMENTS, SAME_TABLE, all_recipes, experiment
from tests.docs.pages import PAGES, commands
from tests.paths import ROOT

RESULTS, REPRODUCE = ROOT / "docs" / "results.md", ROOT / "docs" / "reproduce.md"
RECORDS = load_records(ROOT / "results", None)


def flag(command: list[str], name: str) -> list[str]:
    """Return the values of a flag, without later flags."""
    values = command[command.index(name) + 1 :] if name in command else []
    return values[: next((place for place, word in enumerate(values) if word.startswith("--")), len(values))]


def runs_of_cells() -> list[list[str]]:
    every = [command for page in PAGES for command in commands(page)]
    return [command for command in every if command[:2] == ["paper", "run"]]


@pytest.mark.parametrize("command", runs_of_cells(), ids=" ".join)
def test_paper_run_commands_of_the_pages_name_cells_that_exist(command):
    (scale,) = flag(command, "--scale") or ["laptop"]
    assert scale in SCALES
    if ".py:" in command[2]:
        return  # the reader's own experiment
    assert command[2] in EXPERIMENTS
    for pattern in flag(command, "--cells"):
        assert experiment(command[2], scale).select([pattern]).cells


def test_results_page_says_what_to_run_for_every_cell_below_the_paper_or_without_a_number():
    """A cell is named, or chosen by a command that runs Table 1 by some recipe."""
    text = RESULTS.read_text()
    section = text.partition("## Cells below the paper")[2].partition("## How often")[0]
    named = {*re.findall(r"`(\w+:[^`*]+)`", section)}
    patterns = [
        pattern
        for command in map(list, commands(RESULTS))
        if command[:2] == ["paper", "run"] and SAME_TABLE.get(command[2], command[2]) == "table1"
        for pattern in flag(command, "--cells")
    ]
    group = all_recipes("table1", "gpu")
    best = best_results(group, RECORDS)
    cells = {cell.name for cell in group[0].cells}
    wanted = {name for name in cells if name not in best or not best[name].reaches_paper}
    explained = named | {name for name in cells if any(fnmatchcase(name, pattern) for pattern in patterns)}
    assert wanted <= explained, wanted - explained
    assert named <= wanted, named - wanted


def test_results_page_counts_cells_and_pairs_as_the_records_do():
    """A pair is a looped and a modulated result with the same problem, loops and recipe."""
    group = all_recipes("table1", "gpu")
    best = best_results(group, RECORDS).values()
    reached = sum(one.reaches_paper for one in best)
    results = {
        (one.cell.row, one.loops, one.cell.recipe, one.block): one
        for found in distinct_results(group, RECORDS).values()
        for one in found
    }
    pairs = [
        (one, results[(*key, "modulated")])
        for (*key, block), one in results.items()
        if block == "looped" and (*key, "modulated") in results
    ]
    modulated_ahead = sum(modulated.low > looped.high for looped, modulated in pairs)
    looped_ahead = sum(looped.low > modulated.high for looped, modulated in pairs)
    glance = RESULTS.read_text().partition("## At a glance")[2].partition("\n## ")[0].partition("Of the 54")[2]
    numbers = [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.]* %)", re.sub(r"\(`.*?`\)", "", glance))]
    open_pairs = len(pairs) - modulated_ahead - looped_ahead
    cells = [1, len(best), reached, reached, len(best) - reached]
    assert numbers == [*cells, len(pairs), modulated_ahead, looped_ahead, open_pairs]


def test_recorded_minutes_are_those_of_the_records():
    rows = re.findall(r"^\| `([\w-]+)` \| [\d.]+ \| ([\d.]+) \| [\d.]+ \|$", REPRODUCE.read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == {*EXPERIMENTS}
    cpu = [record for record in RECORDS.values() if record.finished and record.hardware.startswith("CPU")]
    for name, minutes in rows:
        keys = {seedless_key(config) for config in experiment(name, "laptop").configs()}
        seconds = sum(record.seconds for record in cpu if seedless_key(record.config) in keys)
        assert float(minutes) == pytest.approx(seconds / 60, abs=0.51 if "." not in minutes else 0.051), name


def test_every_record_has_its_commit_its_cost_and_its_learning_curve():
    assert len(RECORDS) == len(list((ROOT / "results").glob("**/*.json")))
    for record in RECORDS.values():
        assert record.commit, record.path
        assert min(record.seconds, record.samples, record.flops) > 0, record.path
        assert any("loss" in point for point in record.curve), record.path
        assert any("validation" in point for point in record.curve) or not record.finished, record.path
