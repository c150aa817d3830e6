"""The code, commands and links of the README and the docs work as they stand there."""

import csv
import json
import re
import shutil
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
import pytest
import torch
import tyro

import looped
from looped.cli.main import main
from tests.docs.pages import LOG, PAGES, anchors, blocks, commands, links, write_files
from tests.paths import ROOT

README, LIBRARY = ROOT / "README.md", ROOT / "docs" / "library.md"
COMMANDS = sorted({tuple(command) for page in PAGES for command in commands(page)})
# Verbs that train, measure, need a run, open a browser or need an extra.
SLOW = {"train", "eval", "bench", "inspect", "compare", "plot", "report", "sweep", "demo", "export"}
LONG = {("paper", verb) for verb in ("run", "status", "collect", "report")} | {("theory", "verify")}


def is_quick(command: tuple[str, ...]) -> bool:
    """Return whether a command ends in seconds and needs neither a run nor a pool of Sudokus (`--index`)."""
    needs_run = any(word.startswith("runs/") or word == "model.safetensors" for word in command)
    return command[0] not in SLOW and command[:2] not in LONG and "--index" not in command and not needs_run


def quick_commands() -> dict[Path, list[tuple[str, ...]]]:
    """Return each page's quick commands, without those of earlier pages."""
    found: dict[Path, list[tuple[str, ...]]] = {}
    seen: set[tuple[str, ...]] = set()
    for page in PAGES:
        found[page] = [each for each in map(tuple, commands(page)) if is_quick(each) and each not in seen]
        seen |= {*found[page]}
    return {page: own for page, own in found.items() if own}


class Parsed(BaseException):
    """Raised instead of carrying out a command that the real parser accepted."""


def page_id(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=page_id)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_are_accepted_by_the_parser(command, tmp_path, monkeypatch, capsys):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    original = tyro.cli

    def parse_only(*arguments, **options):
        original(*arguments, **options)
        raise Parsed

    monkeypatch.setattr(tyro, "cli", parse_only)
    with pytest.raises(Parsed):
        assert main(list(command)) == 0, capsys.readouterr().err


QUICK = quick_commands()
SLOW = "theory.md"  # together its commands take more than twenty seconds
QUICK_PAGES = [pytest.param(page, marks=pytest.mark.slow) if page.name == SLOW else page for page in QUICK]


@pytest.mark.parametrize("page", QUICK_PAGES, ids=page_id)
def test_quick_commands_run_in_order(page, tmp_path, monkeypatch, capsys):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    for command in QUICK[page]:
        code = main(list(command))
        shown = capsys.readouterr()
        assert code == 0, (command, shown.err)
        if command[0] == "solve" and not {"--json", "--loops", "--svg"} & {*command}:
            assert "\nright" in shown.out, command  # what people see first is right


@pytest.mark.parametrize("page", [*PAGES, LOG], ids=page_id)
def test_links_lead_to_files_and_headings(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=page_id)
def test_links_of_the_site_do_not_leave_it(page):
    assert [target for target in links(page) if target.startswith("..")] == []


def test_readme_fits_on_a_few_screens():
    assert len(README.read_text().splitlines()) <= 150


def test_readme_names_make_targets_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {name for page in PAGES for name in re.findall(r"`make ([\w-]+)`", page.read_text())} <= targets
    assert shutil.which("make") is None or {"paper", "test", "setup"} <= targets


def test_log_entries_have_a_date_and_a_verdict_and_are_indexed():
    text = LOG.read_text()
    entries = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert entries == sorted(entries, key=lambda entry: entry[:10], reverse=True)
    for entry in entries:
        found = re.fullmatch(r"(\d{4}-\d\d-\d\d) (.*?) \((.*)\)", entry)
        assert found, entry
        assert re.search(
            rf"^\| {found[1]} \| \[{re.escape(found[2])}\]\(#.*\) \| {re.escape(found[3])} \|$", text, re.MULTILINE
        )


def test_api_page_has_every_public_name():
    named = re.findall(r"^::: looped\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    assert {*named, "TASKS", "__version__"} == {*looped.__all__} - {*looped._MODULES} | {"__version__"}
    for path in re.findall(r"^::: looped\.(\w+)\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE):
        assert hasattr(getattr(looped, path[0]), path[1])


def test_site_shows_every_page():
    navigation = re.findall(r'"([\w-]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert sorted(navigation) == sorted(page.name for page in PAGES if page.parent.name == "docs")


RESULT = re.compile(
    r"^\| .*? \| [\d.]+ % \| ([\d.]+) % \| (\w+), (?:r = )?(\d+)[^|]*\| (?:[\d.]+ \+ )?([\d.]+) M \|", re.MULTILINE
)


def test_readme_results_are_records():
    """Each of the six results is one record: its accuracy, model, depth and number of training examples."""
    with (ROOT / "results" / "index.csv").open() as file:
        records = {
            (f"{100 * float(row['value']):.1f}", row["block"], f"{int(row['samples']) / 1e6:.1f}"): row
            for row in csv.DictReader(file)
            if row["metric"] == "accuracy" and row["value"]
        }
    results = RESULT.findall(README.read_text())
    assert len(results) == 6
    for accuracy, block, depth, samples in results:
        record = records[accuracy, block, samples]
        assert depth == (record["layers"] if block == "standard" else record["loops"])


def test_readme_speed_is_that_of_the_benchmark():
    results = ROOT / "benchmarks" / "results"
    measured = json.loads((results / "public-gpu-2026-11.json").read_text())["rows"]
    later = json.loads((results / "third-gpu-2026-11.json").read_text())["rows"]
    for row in (row for row in measured if row["work"] == "train"):
        public = max(row["public_eager"], row.get("public_compiled", 0))
        numbers = rf"\| {public:,}[^|]*\| {row['compiled']:,} \| {row['fused']:,} \| ([\d.]+)x \| ([\d,]+) \|"
        ((gain, today),) = re.findall(numbers, README.read_text())
        assert float(gain) == pytest.approx(row["fused"] / public, rel=0.01)
        same = "train", row["preset"], row["batch"], None
        (rate,) = {
            round(each["sequences_per_second"])
            for each in later
            if tuple(map(each.get, ("work", "preset", "batch", "precision"))) == same
        }
        assert today == f"{rate:,}"


def test_speed_page_has_the_rates_of_the_benchmark():
    """The bold rates are in the file that the page names for them."""
    page = (ROOT / "docs" / "performance.md").read_text()
    (name,) = re.findall(r"bold rates are from `([^`]+)`", page)
    measured = json.loads((ROOT / "benchmarks" / "results" / name).read_text())["rows"]
    rates = {row["sequences_per_second"] for row in measured if "sequences_per_second" in row}
    shown = [float(rate.replace(",", "")) for rate in re.findall(r"\*\*([\d.,]+)\*\* \|", page)]
    assert len(shown) == 6
    for rate in shown:
        assert any(abs(rate - each) <= (0.05 if rate % 1 else 0.5) for each in rates), rate


def test_library_classifier_ignores_padding():
    """The classifier of the page gives each sequence of a padded batch the scores that it gets alone."""
    names: dict = {}
    exec(blocks(LIBRARY, "python")[0], names)
    model = names["Classifier"](10, 2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)  # gates are closed in a fresh model
    for num_loops in (None, 12):
        alone = torch.cat([model(sequence[None], num_loops) for sequence in names["sequences"]])
        torch.testing.assert_close(model(names["padded"], num_loops), alone, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(model(names["padded"], 12), model(names["padded"]))


def test_notebook_runs_at_small_size(tmp_path, monkeypatch):
    """The code cells of the tour run in order, with few training steps, and are stored without output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    cells = json.loads((ROOT / "examples" / "tour.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code)
    names: dict = {}
    for cell in code:
        exec("".join(cell["source"]).replace("steps = 600", "steps = 4"), names)
    plt.close("all")
    assert names["result"].step == 4
    assert len(names["rows"]) == 12


def test_continuity_page_has_the_means_of_the_benchmark():
    """Every cell of the page's tables about training is the mean over seeds in the file that the page names."""
    page = (ROOT / "docs" / "continuity.md").read_text()
    (name,) = re.findall(r"`benchmarks/results/(continuity-cpu-[^`]+)`", page)
    rows = json.loads((ROOT / "benchmarks" / "results" / name).read_text())["rows"]
    measured = {(row["case"], row["block"], row["step"], row["seed"]): row for row in rows}

    def means(case: str, step: int, *place: str | int) -> str:
        found = {"looped": [], "modulated": []}
        for (row_case, block, row_step, _), value in measured.items():
            if (row_case, row_step) == (case, step):
                for key in place:
                    value = value[key]
                found[block].append(value)
        assert [len(values) for values in found.values()] == [3, 3]
        return " / ".join(f"{mean(values):#.3g}" for values in found.values())

    state, normed, last = "test/state/0.001", "test/normalised/0.001", -1
    cases = {"32": "repeated", "new": "fresh", "new, AdamW": "paper"}
    by_step = re.findall(r"^\| (32|new|new, AdamW) \| (\d+) \| (.*) \|$", page, flags=re.MULTILINE)
    assert len(by_step) == 12
    for windows, step, cells in by_step:
        case = cases[windows], int(step)
        coefficients = [means(*case, state, number, last) for number in ("coefficient", "relative")]
        losses = [means(*case, loss) for loss in ("train_loss", "test_loss")]
        assert cells.split(" | ") == [*losses, *coefficients, means(*case, normed, "coefficient", last)]

    def table(head: str) -> list[list[str]]:
        lines = page.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
        return [line.strip("| ").split(" | ") for line in lines]

    for loop, *cells in table("| loop | 32 windows, absolute"):
        numbers = [(case, number) for case in ("repeated", "fresh") for number in ("coefficient", "relative")]
        assert cells == [means(case, 200, state, number, int(loop) - 1) for case, number in numbers]
    for size, *cells in table("| size | 32 windows"):
        assert cells == [means(case, 200, f"test/state/{size}", "coefficient", last) for case in ("repeated", "fresh")]
