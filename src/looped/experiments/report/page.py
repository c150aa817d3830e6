"""A document as one HTML page: no network, no script, for narrow and wide, light and dark screens and for paper."""

import html
import re
from itertools import groupby

from looped.experiments.report.document import Block, Document, Entry, Figure, Points, Section, Table, Words
from looped.experiments.report.style import CSS


def page(document: Document) -> str:
    """The whole page."""
    sections = "\n".join(_section(section) for section in document.sections)
    lead = "\n".join(f'<p class="lead">{_inline(text)}</p>' for text in document.lead)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(document.title)}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{_inline(document.title)}</h1>\n{lead}\n{_contents(document)}</header>\n"
        f"<main>\n{sections}\n</main>\n</body>\n</html>\n"
    )


def _contents(document: Document) -> str:
    if len(document.sections) < 3:
        return ""
    links = "".join(f'<li><a href="#{one.anchor}">{_inline(one.title)}</a></li>' for one in document.sections)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'


def _section(section: Section) -> str:
    blocks = "\n".join(_group(list(blocks), drawn) for drawn, blocks in groupby(section.blocks, _is_figure))
    return f'<section id="{section.anchor}">\n<h2>{_inline(section.title)}</h2>\n{blocks}\n</section>'


def _is_figure(block: Block) -> bool:
    return isinstance(block, Figure)


def _group(blocks: list[Block], drawn: bool) -> str:
    """Figures that follow one another stand side by side where there is room."""
    text = "\n".join(_block(block) for block in blocks)
    return f'<div class="figures">\n{text}\n</div>' if drawn else text


def _block(block: Block) -> str:
    match block:
        case Words():
            return f"<p>{_inline(block.text)}</p>"
        case Points():
            items = "".join(f"<li>{_inline(item)}</li>" for item in block.items)
            title = f"<h3>{_inline(block.title)}</h3>\n" if block.title else ""
            return f"{title}<ul>{items}</ul>"
        case Table():
            return _table(block)
        case Figure():
            return _figure(block)


def _table(table: Table) -> str:
    """A table that scrolls inside its own frame, which the keyboard can reach."""
    rows = "\n".join(_row(row, table) for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(table.caption)}">\n<table>\n'
        f"<caption><span>{_inline(table.caption)}</span></caption>\n<thead>\n{_head(table)}\n</thead>\n"
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>"
    )


def _head(table: Table) -> str:
    words = {0, *(index for index, name in enumerate(table.head) if name in table.text_columns)}
    classes = [' class="words"' if index in words else "" for index in range(len(table.head))]
    if not table.groups:
        names = [f'<th scope="col"{kind}>{_inline(name)}</th>' for kind, name in zip(classes, table.head, strict=True)]
        return f"<tr>{''.join(names)}</tr>"
    upper, lower, start, two_lines = [], [], 0, any(table.head)
    for name, span in table.groups:
        below = table.head[start : start + span]
        if span == 1 and below[0] in ("", name):  # nothing to say in the second line
            rows = ' rowspan="2"' if two_lines else ""
            upper.append(f'<th scope="col"{rows}{classes[start]}>{_inline(name)}</th>')
        else:
            upper.append(f'<th scope="colgroup" colspan="{span}" class="group">{_inline(name)}</th>')
            lower += [f'<th scope="col">{_inline(text)}</th>' for text in below]
        start += span
    below_all = f"\n<tr>{''.join(lower)}</tr>" if two_lines else ""
    return f"<tr>{''.join(upper)}</tr>{below_all}"


def _row(row: tuple[Entry, ...], table: Table) -> str:
    heading = f'<th scope="row" class="words">{_entry(row[0])}</th>'
    fields = []
    for name, entry in zip(table.head[1:], row[1:], strict=True):
        kinds = " ".join(kind for kind in ("words" if name in table.text_columns else "", entry.tone or "") if kind)
        fields.append(f'<td class="{kinds}">{_entry(entry)}</td>' if kinds else f"<td>{_entry(entry)}</td>")
    return f"<tr>{heading}{''.join(fields)}</tr>"


def _entry(entry: Entry) -> str:
    above = f'<small class="above">{_inline(entry.above)}</small>' if entry.above else ""
    sign = f' <span class="sign">{html.escape(entry.sign)}</span>' if entry.sign else ""
    below = f'<small class="below">{_inline(entry.below)}</small>' if entry.below else ""
    return f"{above}{_inline(entry.text)}{sign}{below}"


def _figure(figure: Figure) -> str:
    """The panels are pictures with one description, which is told once."""
    panels = "\n".join(f'<div class="panel">{svg}</div>' for svg in figure.panels)
    wide = ' class="wide"' if len(figure.panels) > 1 else ""
    return (
        f'<figure id="{figure.name}"{wide}>\n<div class="panels" role="img" aria-label="{html.escape(figure.alt)}">\n'
        f"{panels}\n</div>\n<figcaption>{_inline(figure.caption)}</figcaption>\n</figure>"
    )


def _inline(text: str) -> str:
    """Escaped text; what stands between backticks is code, and a number keeps its sign of percent, or the name in
    `n = 6`, on its line."""
    escaped = re.sub(r"(\d) %", "\\1\u00a0%", html.escape(text, quote=False))
    escaped = re.sub(r"\bn = (\d)", "n\u00a0=\u00a0\\1", escaped)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
