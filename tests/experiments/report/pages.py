"""Read a report back: its tables, figures and references, as a browser would see them."""

import math
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "hr", "input"}


def percent(share: float) -> str:
    """A share as it is to be written, halves rounded up."""
    return f"{math.floor(1000 * share + 0.5 + 1e-9) / 10:.1f}"


@dataclass
class Table:
    caption: str = ""
    head: list[list[str]] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    """texts of the body's fields; the lines of a field are separated by spaces"""
    tones: list[list[str]] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """Raises AssertionError on tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[Table] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.labels: list[str] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.add(tag)
        if "id" in values:
            self.ids.append(values["id"])
        self.references += [values[name] for name in ("src", "href", "xlink:href") if name in values]
        if values.get("role") == "img" and tag == "div":
            self.labels.append(values["aria-label"])
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr":
            place = self.tables[-1].head if "thead" in self.open else self.tables[-1].rows
            place.append([])
            self.tables[-1].tones.append([])
        elif tag in ("td", "th"):
            (self.tables[-1].head if "thead" in self.open else self.tables[-1].rows)[-1].append("")
            self.tables[-1].tones[-1].append(values.get("class", ""))
            if tag == "th":
                self.tables[-1].scopes.append(values["scope"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes {self.open[-1]}"
        self.open.pop()

    def handle_data(self, data):
        text = " ".join(data.replace("\u00a0", " ").split())
        if not text or "svg" in self.open or "style" in self.open:
            return
        self.texts.append(text)
        if self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(text)
        if "caption" in self.open:
            self.tables[-1].caption += text
        elif "td" in self.open or "th" in self.open:
            row = (self.tables[-1].head if "thead" in self.open else self.tables[-1].rows)[-1]
            row[-1] = f"{row[-1]} {text}".strip()

    def table(self, caption: str) -> Table:
        (found,) = [table for table in self.tables if caption in table.caption]
        return found


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Tables as rows of texts, without the line below the headings."""
    tables: list[list[list[str]]] = []
    before = ""
    for line in text.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                tables.append([])
            inside = line.strip()[1:-1].replace("\\|", "\0")
            tables[-1].append([part.strip().replace("\0", "|") for part in inside.split("|")])
        before = line
    return [[table[0], *table[2:]] for table in tables]
