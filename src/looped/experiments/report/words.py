"""The report's sentences, made from the numbers: what was run, what agrees with the paper, what does not."""

from collections import Counter
from collections.abc import Mapping, Sequence

from looped.experiments.report.charts import OTHER_TIMES, correlation, show_correlation, train_test_pair
from looped.experiments.report.compare import (FAR_POINTS, FAR_SHARE, MEANINGS, SIGNS, Claim, above, claims, compares_numbers, compares_order, difference, orders)
from looped.experiments.report.document import Table
from looped.experiments.report.cells import (Measure, Measured, by_column, by_run, distinct_records, duration, grouped, hardware_text, seeds_in_words, short_power)
from looped.experiments.records import Record, seedless_key
from looped.experiments.spec import SCALE_TEXT, Experiment
from looped.utils.text import listed, plural

Part = tuple[Experiment, list[Measured]]
"""an experiment with its measured cells, at least one"""


def summary(parts: Sequence[Part], missing: Sequence[Experiment]) -> list[str]:
    """The paragraphs at the top: what was run, at which scale, at what cost, and how it compares."""
    if not parts:
        return ["No experiment has been run yet."]
    cells = [one for _, measured in parts for one in measured]
    scales = list(dict.fromkeys(experiment.scale for experiment, _ in parts))
    known = {experiment.id for experiment, _ in parts}  # whatever their scales
    ran = (
        f"{plural(len(known), 'experiment')} at {listed(scales)} scale: {compute(distinct_records(cells))}. "
        f"{_capital(seeds_in_words(cells))} per cell"
        f"{': differences between single runs may be luck of the seed' if seeds_in_words(cells) == 'one seed' else ''}."
    )
    if others := {experiment.id for experiment in missing} - known:
        ran += f" {plural(len(others), 'experiment')} not run yet."
    # The paper's numbers and pairs are the same at every scale, so that a sum over scales would count them twice.
    by_scale = ([part for part in parts if part[0].scale == scale] for scale in scales)
    return [ran, *(text for chosen in by_scale for text in _overall(chosen))]


def _overall(parts: Sequence[Part]) -> list[str]:
    """Of one scale: numbers where the problem is the paper's, and the orders of models."""
    at = f"At {parts[0][0].scale} scale"
    numbers: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    for experiment, measured in parts:
        if not compares_order(experiment):
            continue
        own = [one for one in measured if compares_numbers(experiment, one)]
        numbers.update(map(_number_kind, own))
        pairs.update(orders(measured))
    sentences = []
    if numbers:
        sentences.append(
            f"{at}, on the paper's own problems, {plural(numbers.total(), 'number')} can be compared: the paper's lies "
            f"inside our 95 % interval for {numbers['same']}; ours is better for {numbers['better']} and worse for "
            f"{numbers['worse']}."
        )
    if pairs:
        sentences.append(
            f"{at}, of {plural(pairs.total(), 'pair')} of models that the paper's tables put in an order: "
            f"{pairs['as in the paper']} in the same order, {pairs['the other way']} the other way round, "
            f"{pairs['open']} open because the intervals overlap."
        )
    return [" ".join(sentences)] if sentences else []


def _number_kind(one: Measured) -> str:
    found = difference(one)
    return found.tone.removeprefix("far-") if found else "none"


def compute(records: Sequence[Record]) -> str:
    """`9 runs, 14 minutes of training, 1.2e13 floating-point operations, on ...`."""
    hardware = listed(list(dict.fromkeys(map(hardware_text, records))))
    return (
        f"{plural(len(records), 'run')}, {duration(sum(record.seconds for record in records))} of training, "
        f"{plural(sum(record.samples for record in records), 'sample')}, "
        f"{short_power(sum(record.flops for record in records))} floating-point operations, on {hardware}"
    )


def conditions(experiment: Experiment, measured: Sequence[Measured]) -> str:
    """Scale, seeds and cost of one experiment."""
    records = distinct_records(measured)
    versions = listed(list(dict.fromkeys(
        ", ".join(f"{name} {number}" for name, number in record.versions.items() if name in ("torch", "looped"))
        for record in records
    )))  # fmt: skip
    scale = "" if SCALE_TEXT[experiment.scale] in experiment.about else f" ({SCALE_TEXT[experiment.scale]})"
    missing = f" {_capital(left)}." if (left := not_run(experiment, measured)) else ""
    return (
        f"Scale: {experiment.scale}{scale}. {_capital(compute(records))}; "
        f"{seeds_in_words(measured)}; {versions}.{missing}"
    )


def not_run(experiment: Experiment, measured: Sequence[Measured]) -> str:
    """`29 of 54 cells not run yet`, beside whatever is said of the others; nothing where all have a number."""
    left = len(experiment.cells) - len(measured)
    return f"{left} of {plural(len(experiment.cells), 'cell')} not run yet" if left else ""


def verdicts(experiment: Experiment, measured: Sequence[Measured], *, brief: bool = False) -> list[str]:
    """What can be said of one experiment against the paper, a point each; `brief`: without the numbers of a claim's
    models, which stand in the table."""
    if not compares_order(experiment):
        return ["A test of the machinery: nothing is compared."]
    together = _correlation_sentences(measured)
    has_paper = any(one.cell.paper is not None for one in measured)
    if together and not has_paper and any(one.cell.shows.startswith("train") for one in measured):
        return together  # training beside test is then the question itself
    compared = _against_sentences(experiment, measured)
    claimed = _claim_sentences(measured, brief)
    found = [*_number_sentences(experiment, measured), *_order_sentences(measured), *claimed]
    # Where rows are held against one of them in several columns the best cell of all answers no question, and of two
    # cells it was just told.
    best = [] if compared and (len(by_column(measured)) > 1 or len(measured) == 2) else _best_sentence(measured)
    return [*compared, *(found or best), *together]


def _against_sentences(experiment: Experiment, measured: Sequence[Measured]) -> list[str]:
    """Of each column: every row beside the one that the experiment holds all others against."""
    found = []
    for members in by_column(measured).values():
        base = next((one for one in members if one.cell.row == experiment.against), None)
        others = [one for one in members if base is not None and one is not base and one.measure == base.measure]
        if base is not None and others:
            sides = "; ".join(f"{one.cell.row} is at {one.with_interval()}, {_side(one, base)}" for one in others)
            found.append(f"Against {base.cell.label}, {base.with_interval()}: {sides}.")
    return found


def _side(one: Measured, base: Measured) -> str:
    """`2.0 points better`, or that the intervals do not tell."""
    answer = above(one, base)
    if answer == "open":
        return "not told apart"
    better = (answer == "yes") == one.measure.higher_is_better
    return f"{one.measure.gap(one.value, base.value)} {'better' if better else 'worse'}"


def _correlation_sentences(measured: Sequence[Measured]) -> list[str]:
    """Of one kind of number alone."""
    pairs = [pair for record in distinct_records(measured) if (pair := train_test_pair(record))]
    found = correlation(pairs)
    if found is None or len({one.cell.config.task.metric for one in measured}) > 1:
        return []
    return [f"Training against test: correlation {show_correlation(found)} over {len(pairs)} runs."]


def notes_on_runs(experiment: Experiment, records: Mapping[str, Record]) -> list[str]:
    """Tries of any seed that came to no result, and what was noted about those that did, once for all it is said of."""
    labels: dict[str, str] = {}
    for cell in experiment.cells:
        labels.setdefault(seedless_key(cell.config), cell.label)
    of_run = by_run(records.values())
    stopped: list[str] = []
    noted: dict[str, list[str]] = {}
    for key, label in labels.items():
        for record in of_run.get(key, []):
            name = f"{label}, seed {record.config.seed}"
            if not record.finished:
                stopped.append(f"{name}: {_how_it_stopped(record)}.")
            elif record.note:
                noted.setdefault(record.note, []).append(name)
    return [*stopped, *(f"{'; '.join(names)}: {note}." for note, names in noted.items())]


def _how_it_stopped(record: Record) -> str:
    note = f" ({record.note})" if record.note else ""
    return f"stopped at step {record.steps:,} of {record.config.train.num_steps:,}, no result{note}"


def _number_sentences(experiment: Experiment, measured: Sequence[Measured]) -> list[str]:
    own = [one for one in measured if compares_numbers(experiment, one)]
    if not own:
        return []
    kinds = Counter(map(_number_kind, own))
    text = (
        f"Numbers: the paper's lies inside our interval for {kinds['same']} of {len(own)}; ours is better for "
        f"{kinds['better']} and worse for {kinds['worse']}."
    )
    # A number that its wide interval makes the paper's may lie further from it than one that is told apart.
    apart = [(one, one.cell.paper) for one in own if one.cell.paper is not None and _number_kind(one) != "same"]
    if apart:
        furthest, paper = max(apart, key=lambda pair: abs(pair[0].value - pair[1]))
        side = "above" if furthest.value > paper else "below"
        gap = f"{furthest.measure.gap(furthest.value, paper)} {side} the paper"
        text += f" The largest difference: {furthest.cell.label}, {furthest.with_interval()}, {gap}."
    return [text]


def _order_sentences(measured: Sequence[Measured]) -> list[str]:
    pairs = orders(measured)
    if not pairs:
        return []
    return [
        f"Order of models: of {plural(pairs.total(), 'pair')}, {pairs['as in the paper']} as in the paper, "
        f"{pairs['the other way']} the other way, {pairs['open']} open."
    ]


def _claim_sentences(measured: Sequence[Measured], brief: bool) -> list[str]:
    """Each claim over all rows, and every row that contradicts the paper by name."""
    by_name = grouped(claims(measured), lambda claim: claim.name)
    return [_claim_sentence(name, group, brief) for name, group in by_name.items()]


def _claim_sentence(name: str, group: Sequence[Claim], brief: bool) -> str:
    if len(group) == 1:
        (one,) = group
        beside = f"paper: {one.papers}" if one.papers else "the paper has no number"
        numbers = "" if brief else f"; {one.numbers}"
        return f"{name}: {_ANSWERS[one.ours]} ({beside}){numbers}."
    ours = Counter(claim.ours for claim in group)
    papers = Counter(claim.papers for claim in group if claim.papers)
    beside = f" (paper: {_counts(papers)} of {papers.total()} rows)" if papers else ""
    text = f"{name}: {_counts(ours)} of {len(group)} rows{beside}."
    against = [claim for claim in group if claim.verdict == "the other way"]
    if brief and against:
        return f"{text} Against the paper: {listed([claim.row for claim in against])}."
    return text + "".join(f" Against the paper: {claim.row}, {claim.numbers}." for claim in against)


def _counts(answers: Mapping[str, int]) -> str:
    """`yes in 3, open in 2`."""
    known = ("yes", "no", "equal", "open")
    return listed([f"{answer} in {answers[answer]}" for answer in known if answers.get(answer)])


_ANSWERS = {"yes": "yes", "no": "no", "open": "open, the intervals overlap"}


def _best_sentence(measured: Sequence[Measured]) -> list[str]:
    """Where there is no number of the paper's and no claim: the best cell, and whether it is clearly so."""
    kind = _examples_and_measure(measured[0])
    alike = [one for one in measured if _examples_and_measure(one) == kind]
    ordered = sorted(alike, key=lambda one: one.value, reverse=alike[0].measure.higher_is_better)
    if len(ordered) < 2:
        return [f"{ordered[0].cell.label}: {ordered[0].with_interval()}."]
    best, second = ordered[0], ordered[1]
    clear = "their intervals overlap" if above(best, second) == "open" else "their intervals do not overlap"
    return [
        f"Best: {best.cell.label}, {best.with_interval()}; next: {second.cell.label}, {second.with_interval()}; "
        f"{clear}."
    ]


def _examples_and_measure(one: Measured) -> tuple[str, Measure]:
    """What numbers must share to be held against each other; other times of loops are read on the same examples."""
    place = one.cell.place_and_metric[0].removeprefix("sets/")
    return "test" if place in OTHER_TIMES else place, one.measure


def legend(table: Table, measured: Sequence[Measured]) -> str:
    """The signs that a table has, and which numbers are the better ones, in one line."""
    used = {entry.sign[0] for row in table.rows for entry in row if entry.sign}
    signs = "; ".join(meaning for sign, meaning in MEANINGS.items() if sign in used)
    kinds = {one.measure.label: one.measure.higher_is_better for one in measured}
    better = "; ".join(f"{label}: {'higher' if higher else 'lower'} is better" for label, higher in kinds.items())
    return f"Signs: {signs}. {_capital(better)}." if signs else f"{_capital(better)}."


def rules(several_seeds: bool) -> list[str]:
    """How the signs and words come about."""
    seeds = "; with several seeds the mean is shown, and the lowest to the highest end of their intervals"
    return [
        "Numbers are compared with the paper's only where the problem is the paper's own; where it is another, the "
        "paper's number is shown for orientation and only the order of models within a row is compared.",
        f"{'; '.join(MEANINGS[sign] for sign in '=▲▼')}. Of an accuracy the higher number is the better one, of "
        "anything else the lower. Blue: ours is better; orange: worse; stronger from "
        f"{100 * FAR_POINTS:.0f} points of accuracy on, or {100 * FAR_SHARE:.0f} % of any other number.",
        f"{'; '.join(MEANINGS[sign] for sign in '✓✗?')}. Two models are told from each other if their 95 % intervals "
        "do not overlap.",
        f"In a table of claims: {'; '.join(f'{sign} {verdict}' for verdict, sign in SIGNS.items() if sign)}.",
        "Intervals are Wilson's for accuracies and the bootstrap's for other numbers, over the test examples. They do "
        f"not hold the luck of the seed{seeds if several_seeds else ''}.",
        "The constant answer is the best one that does not look at the question: the most frequent class, the mean, or "
        "of a text its tokens by how frequent they are.",
        "Every number of an experiment comes from the record of a finished run; the tables of runs say which. What "
        "else was tried may have stopped before its end.",
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
