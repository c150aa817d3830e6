"""Read a page back: its tables, headings, references and folded parts, as a browser would see them."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Parse a page; raise AssertionError if tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.headings: list[str] = []
        self.tables: list[list[list[str]]] = []
        """the texts of all fields, row by row"""
        self.marks: list[str] = []
        """the classes of table fields that have one"""
        self.visible: list[str] = []
        """texts outside of <details>, without those of charts"""
        self.hidden: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.add(tag)
        if "id" in values:
            self.ids.append(values["id"])
        self.references += [values[name] for name in ("src", "href", "xlink:href") if name in values]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.marks += [values["class"]] if "class" in values else []
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
        text = " ".join(data.split())
        if not text or {"svg", "style"} & set(self.open):
            return
        (self.hidden if "details" in self.open and "summary" not in self.open else self.visible).append(text)
        if self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(text)
        if "td" in self.open or "th" in self.open:
            row = self.tables[-1][-1]
            row[-1] = f"{row[-1]} {text}".strip()
