"""A model's answers as an animated picture, read back as a browser would read it."""

import io
import json
import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from looped.cli.main import main
from looped.inference.run import Frame
from looped.tasks import Countdown, Sudoku
from looped.tasks.countdown.search import EQUALS, PLUS, ZERO
from looped.viz import animation as drawn
from looped.viz.animation import film
from looped.viz.board import Play, table, verdict
from tests.cli.command import answer, complaint

SVG = "{http://www.w3.org/2000/svg}"
GIVEN = "1034300200434001"
SOLUTION = "1234341221434321"
BROKEN = "14" + SOLUTION[2:]  # a 4 beside a given one in its row, and above one that is not given
OPEN = "10" + SOLUTION[2:]
LOOPS = (BROKEN, OPEN, SOLUTION)
VERDICTS = ("cells against the rules: 2", "open cells: 1", "solved")
# Of the open cells 1, 5, 6, 8, 9, 13 and 14 in turn.
SURENESS = ((0.95, 0.95, 0.6, 0.5, 0.2, 0.1, 0.9), (0.1, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6), (0.99,) * 7)
KINDS = (
    "given against given given given against likely given likely unsure given given given unsure sure given",
    "given - given given given likely likely given likely likely given given given likely likely given",
    "given sure given given given sure sure given sure sure given given given sure sure given",
)


def sudoku_play(side: int, given: str, boards: Any, sureness: Any, title: str = "sudoku/mine", **knobs: Any) -> Play:
    task = Sudoku(side=side, **knobs)
    inputs = np.array([int(digit) for digit in given])
    frames = []
    for loop, (digits, sure) in enumerate(zip(boards, sureness, strict=True), start=1):
        probabilities = np.ones(len(inputs))
        probabilities[inputs == 0] = sure
        outputs = np.array([int(digit) for digit in digits])
        frames.append(Frame(loop, outputs, digits, loop / 10, 0.1, probabilities))
    return Play(title, task, inputs, frames)


@pytest.fixture
def play() -> Play:
    return sudoku_play(4, GIVEN, LOOPS, SURENESS)


def text_play(answers: list[str], question: str = "one < two & three > zero", truth: str | None = None) -> Play:
    task: Any = SimpleNamespace(
        name="comparing",
        render=lambda inputs: question,
        is_right=lambda inputs, outputs, truth: answers[outputs[0]] == truth,
    )
    frames = [Frame(n, np.array([n - 1]), text, n / 10, 0.1, np.ones(1)) for n, text in enumerate(answers, start=1)]
    return Play("runs/<mine> & yours", task, np.zeros(1), frames, truth)


class Film:
    """An SVG file, and what can be seen of it at a time."""

    def __init__(self, text: str) -> None:
        self.root = ElementTree.fromstring(text)
        self.style = self.root.findtext(f"{SVG}style") or ""
        self.seconds = float(re.search(r"\.moment\{animation:([\d.]+)s step-end infinite\}", self.style)[1])
        self.moments = [group for group in self.root if group.get("class") == "moment"]
        self.steps = {}
        for group in self.moments:
            name = re.search(rf"#{group.get('id')}\{{animation-name:(\w+)\}}", self.style)[1]
            body = re.search(rf"@keyframes {name}\{{((?:[^{{}}]+\{{[^{{}}]+\}})+)\}}", self.style)[1]
            values = {}
            for places, value in re.findall(r"([^{}]+)\{visibility:(\w+)\}", body):
                values |= {float(place.strip("%")): value for place in places.split(",")}  # a later one wins
            self.steps[group] = sorted(values.items())

    def visible(self, percent: float) -> list[ElementTree.Element]:
        """The moments that are seen: a step-end animation keeps a keyframe's value until the next one."""
        return [
            group for group in self.moments
            if [value for place, value in self.steps[group] if place <= percent][-1] == "visible"
        ]  # fmt: skip

    def slots(self) -> list[tuple[float, float]]:
        """When each moment begins and ends, in seconds."""
        places = sorted({place for steps in self.steps.values() for place, _ in steps})
        found = {}
        for begin, end in pairwise(places):
            (group,) = self.visible((begin + end) / 2)
            first, _ = found.get(group, (begin, end))
            found[group] = first, end
        return [tuple(place * self.seconds / 100 for place in found[group]) for group in self.moments]

    def still(self) -> list[ElementTree.Element]:
        return [part for part in self.root if part.get("class") != "moment" and part.get("id") != "legend"]

    def board(self, moment: ElementTree.Element, side: int) -> dict[tuple[int, int], tuple[str, str]]:
        """Digit and kind by row and column; a cell has one at most."""
        edge = 360 / side
        found = {}
        for part in (*self.still(), *moment):
            kind = (part.get("class") or "").removeprefix("digits ")
            for each in part if (part.get("class") or "").startswith("digits ") else ():
                place = int((float(each.get("y")) - 24) // edge), int((float(each.get("x")) - 24) // edge)
                assert place not in found
                found[place] = each.text, kind
        return found


def words(part: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in part.iter(f"{SVG}text")]


def test_every_loop_shows_its_digits_and_what_they_are(play):
    seen = Film(film(play))
    assert len(seen.moments) == 4
    for moment, digits, kinds, said, loop in zip(seen.moments[1:], LOOPS, KINDS, VERDICTS, (1, 2, 3), strict=True):
        board = seen.board(moment, 4)
        for cell, (digit, kind) in enumerate(zip(digits, kinds.split(), strict=True)):
            assert board.get(divmod(cell, 4)) == (None if digit == "0" else (digit, kind))
        assert {f"loop {loop} of 3", f"confidence 0.{loop}00", said} <= set(words(moment))
    assert seen.moments[-1].find(f"{SVG}text[@class='good']").text == "solved"


def test_it_opens_with_the_question_alone(play):
    seen = Film(film(play))
    digits = {divmod(cell, 4): (digit, "given") for cell, digit in enumerate(GIVEN) if digit != "0"}
    assert seen.board(seen.moments[0], 4) == digits
    assert words(seen.moments[0]) == ["loop 0 of 3"]


def test_a_given_digit_is_drawn_once_and_stands(play):
    """Also where a model that answers in every cell says something else there."""
    given = [part for part in Film(film(play)).root.iter(f"{SVG}g") if part.get("class") == "digits given"]
    assert sum(len(part) for part in given) == sum(digit != "0" for digit in GIVEN) + 1  # and one in the legend
    other = sudoku_play(4, GIVEN, ["2" + SOLUTION[1:]], [0.95], counts="all")
    seen = Film(film(other))
    assert seen.board(seen.moments[1], 4)[0, 0] == ("1", "given")
    assert "solved" in words(seen.moments[1])
    assert verdict(other, 0) == ("solved", "solved")


def test_digits_lie_in_their_cells_and_squares_behind_those_that_break_a_rule(play):
    seen = Film(film(play))
    tinted = [part.get("d") for part in seen.moments[1] if part.tag == f"{SVG}path"]
    corners = [tuple(map(float, place)) for place in re.findall(r"M([\d.]+) ([\d.]+)", "".join(tinted))]
    assert sorted(corners) == [(24 + 90 + 2, 24 + 2), (24 + 90 + 2, 24 + 90 + 2)]  # column 1, rows 0 and 1
    assert not [part for part in seen.moments[3] if part.tag == f"{SVG}path"]


@pytest.mark.parametrize("loops", [1, 2, 32, 300])
def test_one_moment_is_seen_at_any_time_and_the_last_is_held(loops):
    seen = Film(film(text_play([str(n) for n in range(loops)])))
    assert len(seen.moments) == loops + 1
    for percent in np.linspace(0, 99.999, 5 * loops + 7):
        assert len(seen.visible(percent)) == 1
    slots = seen.slots()
    assert slots[0][0] == 0
    assert slots[-1][1] == pytest.approx(seen.seconds)
    assert [end for _, end in slots[:-1]] == [begin for begin, _ in slots[1:]]
    lengths = [end - begin for begin, end in slots]
    assert lengths[-1] == pytest.approx(3, abs=0.01)
    assert max(lengths[1:-1], default=0.2) <= 0.251
    assert max(lengths[1:-1], default=0.2) - min(lengths[1:-1], default=0.2) < 0.001
    assert seen.seconds <= 14.001


def test_where_nothing_moves_the_last_moment_is_seen(play):
    seen = Film(film(play))
    assert [group.get("visibility") for group in seen.moments] == ["hidden", "hidden", "hidden", None]
    before, moving = seen.style.split("@media (prefers-reduced-motion:no-preference){")
    assert "animation" not in before
    assert "keyframes" not in before
    assert "visibility" not in before
    depths = np.cumsum([{"{": 1, "}": -1}.get(letter, 0) for letter in moving])
    assert (depths == -1).argmax() == len(moving.rstrip()) - 1  # the block ends where the style does


def test_nothing_is_run_and_nothing_loaded(play):
    text = film(play)
    assert {part.tag.removeprefix(SVG) for part in ElementTree.fromstring(text).iter()} <= {
        "svg", "style", "g", "rect", "path", "text",
    }  # fmt: skip
    assert not re.search(r"href|url\(|@import|\son\w+=", text)
    assert text.count("http") == 1  # the name of SVG itself


def test_a_large_board_of_many_loops_is_a_small_file():
    generator = np.random.default_rng(0)
    given = "".join("5" if cell % 5 == 0 else "0" for cell in range(81))
    boards = ["".join(map(str, generator.integers(1, 10, 81))) for _ in range(32)]
    sureness = generator.random((32, given.count("0")))
    text = film(sudoku_play(9, given, boards, sureness))
    assert len(text.encode()) < 150_000
    assert text == film(sudoku_play(9, given, boards, sureness))
    seen = Film(text)
    for moment, digits in zip(seen.moments[1:], boards, strict=True):
        board = seen.board(moment, 9)
        read = "".join(board[divmod(cell, 9)][0] for cell in range(81))
        assert read == "".join(mine if mine != "0" else digit for mine, digit in zip(given, digits, strict=True))


def test_another_task_shows_question_answer_and_whether_it_is_right():
    seen = Film(film(text_play(["<b>", "a & b", "a > b"], truth="a > b")))
    still = [text for part in seen.root if part.get("class") != "moment" for text in words(part)]
    assert {"runs/<mine> & yours", "one < two & three > zero", "truth: a > b"} <= set(still)
    for loop, said in enumerate(["<b>", "a & b", "a > b"], start=1):
        assert {said, f"loop {loop} of 3", f"confidence 0.{loop}00"} <= set(words(seen.moments[loop]))
        good = [text.text for text in seen.moments[loop] if "good" in (text.get("class") or "")]
        assert good == (["a > b", "right"] if loop == 3 else [])
    assert not any("truth" in text for text in words(Film(film(text_play(["a"]))).root))


def test_another_answer_that_the_task_finds_right_is_shown_as_right():
    """Of many solutions of a Countdown question the first one is called the truth."""
    task = Countdown()
    inputs = task.parse("2 3 4 5 -> 14")
    other, wrong = inputs.copy(), inputs.copy()
    for outputs, last in ((other, 14), (wrong, 15)):
        for place, (a, b, result) in zip((5, 10, 15), ((5, 4, 9), (9, 3, 12), (12, 2, last)), strict=True):
            outputs[place : place + 5] = [ZERO + a, PLUS, ZERO + b, EQUALS, ZERO + result]
    frames = [Frame(n, each, task.answer(each), 0.9, 0.1, np.ones(20)) for n, each in enumerate((wrong, other), 1)]
    play = Play("mine", task, inputs, frames, task.solve(inputs))
    assert frames[1].answer == "5 + 4 = 9, 9 + 3 = 12, 12 + 2 = 14" != play.truth
    assert ["right" in words(moment) for moment in Film(film(play)).moments] == [False, False, True]
    console = Console(record=True, force_terminal=True, color_system="standard", width=80, file=io.StringIO())
    console.print(table(play, 1, console))
    shown = console.export_text(styles=True)
    assert f"\x1b[32m{frames[1].answer}" in shown
    assert f"\x1b[32m{frames[0].answer}" not in shown


def test_a_long_text_is_wrapped_and_cut():
    letters = "abcdefghij" * 100
    seen = Film(film(text_play([letters, "short"], question=f"{letters}\nlast")))
    shown = [text.text for text in seen.root if text.get("class") == "code"]
    assert len(shown) == 4
    assert shown[-1].endswith("…")
    assert letters.startswith("".join(shown)[:-1])
    assert max(map(len, shown)) <= 68
    height = float(seen.root.get("height"))
    assert all(float(text.get("y")) < height - 10 for text in seen.root.iter(f"{SVG}text"))
    two_lines = Film(film(text_play(["a"], question="first\n\n  third")))
    assert [text.text or "" for text in two_lines.root if text.get("class") == "code"] == ["first", "", "  third"]


def test_what_xml_cannot_hold_is_replaced():
    seen = Film(film(text_play(["a\x00b\x1b[1m", ""], question="\ud800\ufffe\"quoted\" 'too'\U0001f600")))
    assert "a\ufffdb\ufffd[1m" in words(seen.moments[1])
    assert "\ufffd\ufffd\"quoted\" 'too'\U0001f600" in words(seen.root)


@pytest.mark.parametrize(
    ("ink", "ground"),
    [(drawn.INK, drawn.SHADE), (drawn.GREY, drawn.WHITE), (drawn.BLUE, drawn.WHITE), (drawn.GREEN, drawn.WHITE),
     (drawn.VERMILION, drawn.TINT)],
)  # fmt: skip
def test_print_stands_out_from_its_ground(ink, ground):
    """By the contrast that the Web Content Accessibility Guidelines ask of small print."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert (luminance(ground) + 0.05) / (luminance(ink) + 0.05) >= 4.5


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("film") / "run")
    small = ["--model.dim", "16", "--model.num-loops", "3", "--train.num-steps", "2", "--train.batch-size", "4",
             "--train.eval-size", "4", "--train.runtime.device", "cpu"]  # fmt: skip
    assert main(["train", "sudoku", "--recipe", "laptop", "--task.side", "4", *small, "--out", folder]) == 0
    return folder


def test_solve_writes_a_film_beside_what_it_prints(run, tmp_path, capsys):
    path = tmp_path / "new" / "film.svg"
    plain = answer(capsys, "solve", run, "--loops", "4")
    assert answer(capsys, "solve", run, "--loops", "4", "--svg", str(path)) == plain
    first = path.read_bytes()
    printed = json.loads(answer(capsys, "solve", run, "--loops", "4", "--svg", str(path), "--json"))
    assert path.read_bytes() == first
    assert [each.name for each in path.parent.iterdir()] == ["film.svg"]
    seen = Film(first.decode())
    assert len(seen.moments) == len(printed["frames"]) + 1 == 5
    for moment, frame in zip(seen.moments[1:], printed["frames"], strict=True):
        board = seen.board(moment, 4)
        assert "".join(board.get(divmod(cell, 4), "0")[0] for cell in range(16)) == frame["answer"]
        assert f"confidence {frame['confidence']:.3f}" in words(moment)


@pytest.mark.parametrize(
    ("path", "message"),
    [("{file}/film.svg", "cannot write"), ("{folder}", "Is a directory"), ("", "that ends in .svg, got '.'"),
     ("/proc/film.svg", "cannot write /proc/film.svg"), ("{file}.png", "that ends in .svg, got")],
)  # fmt: skip
def test_a_film_that_cannot_be_written_is_one_line_before_any_work(path, message, run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("looped.inference.shipping.load", lambda *_: pytest.fail("the run was loaded"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.svg").mkdir()
    places = {"file": tmp_path / "file", "folder": tmp_path / "folder.svg"}
    for more in ([], ["--json"]):
        assert message in complaint(capsys, "solve", run, "--svg", path.format(**places), *more)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder.svg"]
