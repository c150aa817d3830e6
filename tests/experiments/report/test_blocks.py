"""Marked blocks of Markdown files."""

import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from looped.cli.main import main
from looped.experiments.records import load_records, save_record
from looped.experiments.report.blocks import update_blocks
from looped.experiments.tables import experiment
from tests.experiments.fake_records import fake_records
from tests.paths import ROOT
from tests.refusal import refused

LAPTOP = experiment("table1", "laptop").select(["ED40:*"])
GPU = experiment("table1", "gpu").select(["ED40:*"])
START, END = "<!-- results: table1 gpu, by a command -->", "<!-- end of results -->"
TEXT = f"before ![](docs/table1-gpu.svg)\n{START}\nold\n{END}\nbetween\n<!-- results: table1 laptop -->\n{END}\nafter\n"


def test_update_blocks_rewrites_every_block_and_picture(tmp_path):
    page, records = tmp_path / "README.md", fake_records([GPU, LAPTOP])
    page.write_text(TEXT)
    for _ in range(2):  # writing again changes nothing
        update_blocks(page, records)
        text = page.read_text()
        first, second = (part.partition(END)[0] for part in text.split("<!-- results:")[1:])
        assert "old" not in text
        assert first.count("\n| ED40, ") == 9
        assert "\n| ED40, looped r=10 | 57.9 | " in first
        assert second.count("\n| ED40 (n = 6) | ") == 1
        assert "57.9" not in second  # the paper's numbers belong to another problem
    assert text.startswith("before ")
    assert text.endswith("after\n")
    ElementTree.fromstring((tmp_path / "docs" / "table1-gpu.svg").read_text())
    assert len(list(tmp_path.rglob("*.svg"))) == 1


def test_update_blocks_writes_the_tries_of_each_cell(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"<!-- results: tries gpu -->\n{END}\n")
    update_blocks(page, fake_records([GPU.select(["*r=50"])]))
    assert page.read_text().count("\n| ED40, r=50 |  | 1 fast | 1 fast | yes |\n") == 1


@pytest.mark.parametrize(
    "text", ["no marks", f"{START}\n", f"{END}\n{START}\n", f"{TEXT}{START}\n", f"{START}\n{TEXT}"]
)
def test_update_blocks_of_a_file_with_wrong_marks_leaves_it_alone(text, tmp_path):
    page = tmp_path / "README.md"
    page.write_text(text)
    with refused(page):
        update_blocks(page, fake_records([LAPTOP, GPU]))
    assert page.read_text() == text


@pytest.mark.parametrize("kind", ["missing", "folder", "latin"])
def test_update_blocks_of_an_unreadable_file_raises_input_error(kind, tmp_path):
    page = tmp_path / "README.md"
    if kind == "folder":
        page.mkdir()
    elif kind == "latin":
        page.write_bytes(b"\xe9t\xe9")
    with refused(page):
        update_blocks(page, {})


def test_report_command_without_results_for_a_block_writes_nothing(tmp_path, capsys):
    page = tmp_path / "README.md"
    page.write_text(TEXT)
    for record in fake_records([GPU]).values():
        save_record(tmp_path / "results" / record.path, record)
    places = {"--results": "results", "--root": "runs", "--out": "report", "--update": "README.md"}
    words = [word for flag, name in places.items() for word in (flag, str(tmp_path / name))]
    assert main(["paper", "report", *words]) == 2
    assert "table1 laptop" in capsys.readouterr().err
    assert page.read_text() == TEXT
    assert not (tmp_path / "report").exists()
    assert not list(tmp_path.rglob("*.svg"))


def marked_files() -> list[Path]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [page for page in pages if "<!-- results:" in page.read_text()]


def test_blocks_of_this_repository_are_up_to_date(tmp_path):
    """`looped paper report --update` on all files with blocks must change nothing."""
    records = load_records(ROOT / "results", None)
    for page in marked_files():
        copy = tmp_path / page.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(page, copy)
        update_blocks(copy, records)
        assert copy.read_text() == page.read_text(), page
    for picture in tmp_path.rglob("*.svg"):
        assert (ROOT / picture.relative_to(tmp_path)).exists(), picture
