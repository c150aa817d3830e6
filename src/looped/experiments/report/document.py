"""A report as data: sections made of words, tables and figures. Written once, rendered as Markdown here and as a page
in `page.py`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["same", "better", "far-better", "worse", "far-worse", "open"]
"""the colour of an entry; its sign says the same without colour"""


@dataclass(frozen=True)
class Entry:
    """One field of a table: ours, a sign for how it compares, and the paper's number below."""

    text: str
    above: str = ""
    below: str = ""
    sign: str = ""
    tone: Tone | None = None


@dataclass(frozen=True)
class Table:
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    """the first entry of a row is its heading"""
    groups: tuple[tuple[str, int], ...] = ()
    """headings above `head` with the number of columns that each spans; none: one line of headings is enough"""
    text_columns: tuple[str, ...] = ()
    """headings of columns that hold words, not numbers"""


@dataclass(frozen=True)
class Figure:
    name: str
    """of its files, and of its place in the page"""
    alt: str
    """what it shows, with the numbers that matter, for someone who cannot see it"""
    caption: str
    panels: tuple[str, ...]
    """SVG texts"""


@dataclass(frozen=True)
class Words:
    text: str


@dataclass(frozen=True)
class Points:
    items: tuple[str, ...]
    title: str = ""


Block = Words | Points | Table | Figure


@dataclass(frozen=True)
class Section:
    title: str
    anchor: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    title: str
    lead: tuple[str, ...]
    """the paragraphs in front of the first section"""
    sections: tuple[Section, ...]

    @property
    def figures(self) -> list[Figure]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


def panel_path(figure: Figure, index: int) -> str:
    """Where a panel of a figure lies beside `report.md`."""
    return f"figures/{figure.name}{f'-{index + 1}' if len(figure.panels) > 1 else ''}.svg"


def markdown(document: Document) -> str:
    """The document as Markdown; its figures are files beside it."""
    parts = [f"# {_plain(document.title)}", *map(_plain, document.lead)]
    for section in document.sections:
        parts += [f"## {_plain(section.title)}", *(markdown_block(block) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A table without its caption."""
    return "\n".join(_table_lines(table))


def markdown_block(block: Block) -> str:
    match block:
        case Words():
            return _plain(block.text)
        case Points():
            title = f"### {_plain(block.title)}\n\n" if block.title else ""
            return title + "\n".join(f"- {_plain(item)}" for item in block.items)
        case Table():
            return f"**{_plain(block.caption)}**\n\n{markdown_table(block)}"
        case Figure():
            # Brackets would end the text of an image. It tells of all panels, and once.
            alt = _plain(block.alt).replace("[", "(").replace("]", ")")
            images = (f"![{'' if index else alt}]({panel_path(block, index)})" for index in range(len(block.panels)))
            return "\n".join(images) + f"\n\n*{_plain(block.caption)}*"


def _table_lines(table: Table) -> Iterator[str]:
    yield _line(full_headings(table))
    yield _line([":--" if index == 0 or name in table.text_columns else "--:" for index, name in enumerate(table.head)])
    for row in table.rows:
        yield _line([_entry(entry) for entry in row])


def full_headings(table: Table) -> list[str]:
    """One heading per column, with that of its group in front."""
    over = [name for name, span in table.groups for _ in range(span)] or [""] * len(table.head)
    return [f"{group} {name}".strip() if group != name else name for group, name in zip(over, table.head, strict=True)]


def _entry(entry: Entry) -> str:
    ours = " ".join(part for part in (entry.text, entry.sign) if part)
    return "<br>".join(_plain(part) for part in (entry.above, ours, entry.below) if part)


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _plain(text: str) -> str:
    """Text that must not become a table's border or a tag. A break made by `_entry` is added after this."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
