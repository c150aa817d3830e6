"""How our numbers stand beside the paper's, by rules that are stated in the report.

Numbers are compared where the problem is the paper's; where it is another one only the order of models is. Two of our
numbers are in an order only if their 95 % intervals do not overlap; otherwise the order is open.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import combinations
from typing import Literal

from looped.experiments.report.document import Tone
from looped.experiments.report.cells import Measured, by_row, by_row_and_kind
from looped.experiments.spec import Experiment
from looped.tasks import Task
from looped.utils.text import listed

FAR_POINTS = 0.05
"""of an accuracy: a difference of 5 points is a large one"""
FAR_SHARE = 0.1
"""of any other number: a tenth of the paper's"""

Answer = Literal["yes", "no", "open"]
Verdict = Literal["as in the paper", "the other way", "open", "new"]
SIGNS: dict[Verdict, str] = {"as in the paper": "✓", "the other way": "✗", "open": "?", "new": ""}
MEANINGS = {
    "=": "= the paper's number, as far as it is printed, lies inside our 95 % interval",
    "▲": "▲ ours is better than the paper's",
    "▼": "▼ ours is worse than the paper's",
    "✓": "✓ in the paper's order with all models of its row that our 95 % intervals tell it from",
    "✗": "✗n in the other order with n models of its row",
    "?": "? told from no model of its row that the paper puts above or below it",
}
"""the signs of a table's numbers, by their first character, in words"""
TONES: dict[Verdict, Tone | None] = {"as in the paper": "same", "the other way": "worse", "open": "open", "new": None}


@cache
def paper_problems(experiment_id: str) -> frozenset[Task]:
    """The tasks of an experiment as the paper has them; none for one that is not in the list."""
    from looped.experiments.tables import EXPERIMENTS

    make = EXPERIMENTS.get(experiment_id)
    return frozenset(cell.config.task for cell in make("paper").cells) if make else frozenset()


def compares_numbers(experiment: Experiment, one: Measured) -> bool:
    """Whether the paper has a number for this very problem, so that the two can be held side by side."""
    return one.cell.paper is not None and one.cell.config.task in paper_problems(experiment.id)


def row_name(experiment: Experiment, members: Sequence[Measured]) -> str:
    """A row of the paper's, with the problem that is really run where it is another one: `ED40 (n = 6)`."""
    from looped.experiments.studies import STUDIES

    own, tasks = members[0].cell.row, {one.cell.config.task for one in members}
    if experiment.id in STUDIES or tasks <= paper_problems(experiment.id):
        return own
    return f"{own} ({listed(list(dict.fromkeys(one.problem for one in members)))})"


def compares_order(experiment: Experiment) -> bool:
    """A smoke run is no evidence of anything."""
    return experiment.scale != "smoke"


@dataclass(frozen=True)
class Mark:
    """How an entry of a table stands beside the paper: a sign, and the colour that says the same."""

    sign: str
    tone: Tone


def difference(one: Measured) -> Mark | None:
    """Our number against the paper's; None where it has none. Without an interval of ours nothing is called equal."""
    paper = one.cell.paper
    if paper is None:
        return None
    rounding = _half_of_last_digit(paper, one.measure.is_share)
    if one.low is not None and one.high is not None and one.low - rounding <= paper <= one.high + rounding:
        return Mark("=", "same")
    better = (one.value > paper) == one.measure.higher_is_better
    large = FAR_POINTS if one.measure.is_share else FAR_SHARE * abs(paper)
    far = abs(one.value - paper) >= large
    tone: Tone = ("far-better" if far else "better") if better else ("far-worse" if far else "worse")
    return Mark("▲" if better else "▼", tone)


def _half_of_last_digit(paper: float, is_share: bool) -> float:
    """How far the paper's number may be from what was rounded to it: shares are printed to a tenth of a percent."""
    exponent = -3 if is_share else Decimal(repr(paper)).as_tuple().exponent
    assert isinstance(exponent, int), "the paper's numbers are finite"
    return 0.5 * 10.0**exponent


def above(one: Measured, other: Measured) -> Answer:
    """Whether one number is larger than another, as far as their intervals tell."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return "open"
    if one.low > other.high:
        return "yes"
    return "no" if one.high < other.low else "open"


def same_order(one: Measured, other: Measured) -> Verdict | None:
    """Whether two models are in the paper's order; None where the paper has none."""
    if one.cell.paper is None or other.cell.paper is None or one.cell.paper == other.cell.paper:
        return None
    if one.cell.shows != other.cell.shows or one.measure != other.measure:
        return None
    answer = above(one, other)
    if answer == "open":
        return "open"
    return "as in the paper" if (answer == "yes") == (one.cell.paper > other.cell.paper) else "the other way"


def orders(cells: Sequence[Measured]) -> Counter[Verdict]:
    """The pairs within each row, counted by verdict."""
    found: Counter[Verdict] = Counter()
    for row in by_row(cells).values():
        found.update(verdict for pair in combinations(row, 2) if (verdict := same_order(*pair)))
    return found


def place_in_order(one: Measured, row: Sequence[Measured]) -> Mark | None:
    """A cell's pairs with the others of its row, as one sign; None where the paper orders none of them."""
    verdicts = Counter(verdict for other in row if other is not one and (verdict := same_order(one, other)))
    if not verdicts:
        return None
    wrong, right = verdicts["the other way"], verdicts["as in the paper"]
    if wrong:
        return Mark(f"✗{wrong}", "far-worse" if wrong > right else "worse")
    return Mark("✓", "same") if right else Mark("?", "open")


@dataclass(frozen=True)
class Claim:
    """One model is better than another: a thing the paper says, or denies."""

    name: str
    row: str
    better: Measured
    worse: Measured

    @property
    def ours(self) -> Answer:
        answer = above(self.better, self.worse)
        return answer if self.better.measure.higher_is_better or answer == "open" else _OPPOSITE[answer]

    @property
    def papers(self) -> Literal["yes", "no", "equal"] | None:
        """None: it has no numbers for it."""
        one, other = self.better.cell.paper, self.worse.cell.paper
        if one is None or other is None:
            return None
        if one == other:
            return "equal"
        return "yes" if (one > other) == self.better.measure.higher_is_better else "no"

    @property
    def verdict(self) -> Verdict:
        if self.papers is None:
            return "new"
        if self.papers == "equal" or self.ours == "open":
            return "open"
        return "as in the paper" if self.ours == self.papers else "the other way"

    @property
    def numbers(self) -> str:
        return (
            f"{self.better.cell.column} {self.better.with_interval()} against "
            f"{self.worse.cell.column} {self.worse.with_interval()}"
        )


_OPPOSITE: dict[Answer, Answer] = {"yes": "no", "no": "yes", "open": "open"}

MORE_LOOPED = "The most loops are better than the fewest, looped"
MORE_MODULATED = "The most loops are better than the fewest, with timestep"
TIMESTEP, OVER_STANDARD = "Timestep is better than looped", "Looped is better than TF"
MODULATED_OVER_STANDARD = "With timestep is better than TF"


def claims(cells: Sequence[Measured]) -> list[Claim]:
    """The paper's claims about each row that has the models they are about: the most loops against the fewest, with
    timestep against without at the most loops, and both of these against the standard model."""
    found = []
    for (row, _), members in by_row_and_kind(cells).items():
        blocks = {block: _ladder(members, block) for block in ("standard", "looped", "modulated")}
        looped, modulated, standard = blocks["looped"], blocks["modulated"], blocks["standard"]
        for name, ladder in ((MORE_LOOPED, looped), (MORE_MODULATED, modulated)):
            if len(ladder) > 1:
                found.append(Claim(name, row, ladder[-1], ladder[0]))
        if looped and modulated and looped[-1].loops == modulated[-1].loops:
            found.append(Claim(TIMESTEP, row, modulated[-1], looped[-1]))
        for name, ladder in ((OVER_STANDARD, looped), (MODULATED_OVER_STANDARD, modulated)):
            if ladder and len(standard) == 1:
                found.append(Claim(name, row, ladder[-1], standard[0]))
    return found


def _ladder(row: Sequence[Measured], block: str) -> list[Measured]:
    """A block's cells by loops; empty unless they differ in their loops alone."""
    chosen = [one for one in row if one.block == block and one.cell.config.model.conditioning in ("auto", "timestep")]
    loops = {one.loops for one in chosen}
    alike = {(one.cell.shows, one.cell.config.task, one.group) for one in chosen}
    return sorted(chosen, key=lambda one: one.loops) if len(loops) == len(chosen) and len(alike) <= 1 else []
