"""Draw a model's answers after every loop as one animated SVG, for web pages.

The file needs no script and loads nothing. CSS shows each moment for its part of the time. The last moment is visible
without CSS too.
"""

import html
import math
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from looped.viz.board import LIKELY, QUESTION_LINES, SURE, Play, cells, question, verdict

SECONDS_PER_LOOP = 0.25
LONGEST_SECONDS = 10.0
"""longest time of all loops together"""
OPENING, HOLD = 1.0, 3.0
"""seconds that the question alone and the last answer are shown"""

WIDTH, MARGIN = 660, 24
BOARD = 360
"""side of a Sudoku board"""
COLUMN = MARGIN + BOARD + 28
"""left edge of the text beside the board"""

# Blue, vermilion and green of Okabe and Ito, which people with any colour vision can tell apart. The last two are
# darker here, because the print is small. The background is light, so the picture looks the same on a dark page.
BLUE, VERMILION, GREEN = "#0072b2", "#ad4900", "#00795a"
INK, GREY, PALE, SHADE, TINT, WHITE = "#1d2329", "#5b6670", "#d3d9de", "#eef1f4", "#fde5d8", "#ffffff"
STYLE = f"""\
svg{{font:15px "Helvetica Neue",Helvetica,Arial,"Liberation Sans",sans-serif;fill:{INK}}}
.title,.given,.good{{font-weight:bold}}
.note{{font-size:13px;fill:{GREY}}}
.code{{font-family:ui-monospace,Menlo,Consolas,"Liberation Mono",monospace;white-space:pre}}
.large{{font-size:18px}}
.digits{{text-anchor:middle}}
.sure,.likely{{fill:{BLUE}}}
.likely{{opacity:.7}}
.unsure{{fill:{GREY};opacity:.7;font-style:italic}}
.against{{fill:{VERMILION}}}
.good{{fill:{GREEN}}}"""


class Look(NamedTuple):
    """The style of one kind of digit, and its name in the legend."""

    style: str
    ground: str
    words: str


LOOKS = {
    "given": Look("given", SHADE, "given"),
    "sure": Look("sure", WHITE, f"sure: {100 * SURE:.0f} % or more"),
    "likely": Look("likely", WHITE, f"likely: {100 * LIKELY:.0f} % or more"),
    "unsure": Look("unsure", WHITE, "unsure: less"),
    "against the rules": Look("against", TINT, "against the rules"),
}
VERDICTS = {"solved": "good", "open": "", "against the rules": "against"}


class Drawing(NamedTuple):
    """The SVG elements of a picture."""

    height: int
    still: list[str]
    """elements that are always visible"""
    moments: list[list[str]]
    """elements of one moment each: the question alone, then after each loop"""


def film(play: Play) -> str:
    """Return an SVG file that repeats the answers for ever. Equal plays give equal bytes."""
    height, still, moments = DRAWINGS.get(play.task.name, page)(play)
    seconds, marks = _marks(len(play.frames))
    rules, groups = [], []
    for place, pieces in enumerate(moments):
        begin, end = marks[place : place + 2]
        rules.append(f"#loop{place}{{animation-name:loop{place}}}")
        rules.append(f"@keyframes loop{place}{{0%,{end}%{{visibility:hidden}}{begin}%{{visibility:visible}}}}")
        hidden = ' visibility="hidden"' if place + 1 < len(moments) else ""
        groups += [f'<g id="loop{place}" class="moment"{hidden}>', *pieces, "</g>"]
    label = _escape(f"{play.title}: the answer after each of {len(play.frames)} loops")
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{label}">',
        "<style>",
        STYLE,
        "@media (prefers-reduced-motion:no-preference){",
        f".moment{{animation:{seconds:g}s step-end infinite}}",
        *rules,
        "}",
        "</style>",
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="{WHITE}" stroke="{PALE}"/>',
        *still,
        *groups,
        "</svg>\n",
    ])  # fmt: skip


def _marks(num_loops: int) -> tuple[float, list[str]]:
    """Return the total seconds, and the start of each moment and the end of the last one in percent."""
    each = min(SECONDS_PER_LOOP, LONGEST_SECONDS / num_loops)
    times = [0.0, *accumulate([OPENING, *[each] * (num_loops - 1), HOLD])]
    return times[-1], [f"{100 * time / times[-1]:.6g}" for time in times]


def board(play: Play) -> Drawing:
    """Draw a Sudoku board, with the loop, the confidence, the verdict and a legend beside it."""
    side = math.isqrt(len(play.inputs))
    given = [(cell, int(digit), "given") for cell, digit in enumerate(play.inputs) if digit]
    still = [
        _squares(given, side, 0),
        _lines(side, 1, PALE),
        _lines(math.isqrt(side), 2, INK),
        *_digits(given, side),
        *_heading(play, COLUMN, 26),
        *_legend(MARGIN + BOARD),
    ]
    moments = [_progress(play, 0, COLUMN)]
    for place, frame in enumerate(play.frames):
        said, words = verdict(play, place)
        own = [(cell, *each) for cell, each in enumerate(cells(play, place)) if each[0] and each[1] != "given"]
        moments.append([
            *_progress(play, place + 1, COLUMN),
            _text(COLUMN, 114, frame.how_sure),
            _text(COLUMN, 140, words, VERDICTS[said]),
            _squares([each for each in own if each[2] == "against the rules"], side, 2),
            *_digits(own, side),
        ])  # fmt: skip
    return Drawing(BOARD + 2 * MARGIN, still, moments)


Digit = tuple[int, int, str]
"""cell, digit and kind"""


def _squares(drawn: Sequence[Digit], side: int, inset: int) -> str:
    """Draw the background of digits of one kind; with an inset, the grid lines around them stay visible."""
    if not drawn:
        return ""
    size, start, edge = BOARD / side, MARGIN + inset, f"{BOARD / side - 2 * inset:g}"
    corners = [(start + cell % side * size, start + cell // side * size) for cell, _, _ in drawn]
    path = "".join(f"M{x:g} {y:g}h{edge}v{edge}h-{edge}z" for x, y in corners)
    return f'<path fill="{LOOKS[drawn[0][2]].ground}" d="{path}"/>'


def _lines(parts: int, width: int, colour: str) -> str:
    """Draw the lines around a board and between its parts."""
    places = [f"{MARGIN + BOARD * place / parts:g}" for place in range(parts + 1)]
    path = "".join(f"M{MARGIN} {place}h{BOARD}M{place} {MARGIN}v{BOARD}" for place in places)
    return f'<path stroke="{colour}" stroke-width="{width}" stroke-linecap="square" d="{path}"/>'


def _digits(drawn: Sequence[Digit], side: int) -> list[str]:
    """Draw digits in their cells, grouped by kind."""
    size = BOARD / side
    groups = dict.fromkeys(LOOKS, "")
    for cell, digit, kind in drawn:
        x, y = MARGIN + (cell % side + 0.5) * size, MARGIN + (cell // side + 0.72) * size
        groups[kind] += f'<text x="{x:g}" y="{y:g}">{digit}</text>'
    return [
        f'<g class="digits {LOOKS[kind].style}" font-size="{0.6 * size:g}">{group}</g>'
        for kind, group in groups.items()
        if group
    ]


def _legend(bottom: int) -> list[str]:
    """Draw a sample square of each kind with its name."""
    pieces = ['<g id="legend">']
    for place, look in enumerate(LOOKS.values()):
        y = bottom - 28 * (len(LOOKS) - place) + 6
        pieces += [
            f'<rect x="{COLUMN}" y="{y}" width="22" height="22" fill="{look.ground}" stroke="{PALE}"/>',
            f'<g class="digits {look.style}" font-size="15">{_text(COLUMN + 11, y + 16, "3")}</g>',
            _text(COLUMN + 34, y + 16, look.words, "note"),
        ]
    return [*pieces, "</g>"]


def page(play: Play) -> Drawing:
    """Draw any other task: the question, the answer (green if right) and the truth if it is known."""
    asked = _wrap(question(play), 66, QUESTION_LINES)
    answers = [_wrap(frame.answer, 54, 3) for frame in play.frames]
    top = 140 + 22 * len(asked)
    bottom = top + 26 * max(map(len, answers)) + 40
    still = [
        *_heading(play, MARGIN, 60),
        _text(MARGIN, 112, "question", "note"),
        *(_text(MARGIN, 134 + 22 * row, line, "code") for row, line in enumerate(asked)),
        _text(MARGIN, top + 8, "answer", "note"),
    ]
    if play.truth is not None:
        still += [_text(MARGIN, bottom + 26, f"truth: {_wrap(play.truth, 76, 1)[0]}", "note")]
    moments = [_progress(play, 0, MARGIN)]
    for place, (frame, lines) in enumerate(zip(play.frames, answers, strict=True)):
        right = play.is_right(frame)
        style = "code large good" if right else "code large"
        moments.append([
            *_progress(play, place + 1, MARGIN),
            *(_text(MARGIN, top + 34 + 26 * row, line, style) for row, line in enumerate(lines)),
            _text(MARGIN, bottom, frame.how_sure),
            *([_text(MARGIN + 140, bottom, "right", "good")] if right else []),
        ])  # fmt: skip
    return Drawing(bottom + (50 if play.truth is not None else 24), still, moments)


DRAWINGS: dict[str, Callable[[Play], Drawing]] = {"sudoku": board}


def _heading(play: Play, x: int, letters: int) -> list[str]:
    return [_text(x, 38, _wrap(play.title, letters, 1)[0], "title"), _bar(x, 1, PALE)]


def _progress(play: Play, done: int, x: int) -> list[str]:
    """Draw the number of finished loops, in words and as a bar."""
    loop = play.frames[done - 1].loop if done else 0
    total = len(play.frames)
    return [_text(x, 64, f"loop {loop} of {total}", "large"), *([_bar(x, done / total, INK)] if done else [])]


def _bar(x: int, share: float, colour: str) -> str:
    return f'<rect x="{x}" y="76" width="{(WIDTH - MARGIN - x) * share:g}" height="5" rx="2.5" fill="{colour}"/>'


def _text(x: int, y: int, text: str, style: str = "") -> str:
    chosen = f' class="{style}"' if style else ""
    return f'<text x="{x}" y="{y}"{chosen}>{_escape(text)}</text>'


def _wrap(text: str, letters: int, most: int) -> list[str]:
    """Return at least one and at most `most` lines of `letters` characters; a cut is marked with an ellipsis."""
    rows = [row[start : start + letters] for row in text.splitlines() for start in range(0, len(row) or 1, letters)]
    if len(rows) <= most:
        return rows or [""]
    return [*rows[: most - 1], rows[most - 1][: letters - 1] + "…"]


def _escape(text: str) -> str:
    """Escape text for XML, and replace characters that XML does not allow at all."""
    return html.escape(re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
