"""The Markdown files that people read, and the code, commands and links in them."""

import re
import shlex
from pathlib import Path

from tests.paths import ROOT

LOG = ROOT / "dev" / "LOG.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    """Return the `looped` commands of a page as words, without the program's name and comments."""
    lines = [line for block in blocks(page, "(?:ba)?sh") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("looped ")]


def write_files(folder: Path) -> None:
    """Link the examples, and write the files that pages show: blocks that start with a comment like `# my_tasks.py`."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for page in PAGES:
        for block in blocks(page, "python"):
            if found := re.match(r"# (\w+\.py)\n", block):
                (folder / found[1]).write_text(block)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures that lead to files or headings of this project."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Return the anchors that a Markdown renderer gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
