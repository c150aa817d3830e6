"""The page's own rules (JavaScript) against the package's: puzzles, words, numbers and the networks of the proofs."""

import base64
import gzip
import json
from fractions import Fraction
from importlib.resources import files
from itertools import islice

import numpy as np
import pytest

from looped import theory
from looped.demo.theory import BITS, theory_data
from looped.tasks import TASKS
from looped.tasks.countdown.task import solution_fault
from looped.tasks.sudoku.exact_cover import all_solutions

FAMOUS = json.loads((files("looped.demo") / "puzzles.json").read_text("utf-8"))
SIGNS = str.maketrans("\u00d7\u2212\u00f7", "*-/")  # as the page writes them


@pytest.fixture
def ask(node, tmp_path):
    """Return a function that asks the page's rules many questions at once."""

    def answers(*questions):
        path = tmp_path / "questions.json"
        path.write_text(json.dumps([{"rule": rule, "arguments": arguments} for rule, *arguments in questions]))
        return json.loads(node("rules_check.mjs", path))

    return answers


@pytest.mark.parametrize("entry", FAMOUS, ids=[entry["name"] for entry in FAMOUS])
def test_famous_puzzle_has_exactly_one_solution(entry):
    assert len(list(islice(all_solutions(entry["puzzle"]), 2))) == 1
    assert entry["source"].startswith(f"{sum(mark != '0' for mark in entry['puzzle'])} clues")


def test_one_famous_puzzle_is_the_first_to_be_shown():
    assert sum(entry.get("start", False) for entry in FAMOUS) == 1


def test_page_finds_the_solutions_that_the_package_finds(ask):
    puzzles = [entry["puzzle"] for entry in FAMOUS]
    boards = [[int(mark) for mark in puzzle] for puzzle in puzzles]
    several = [0 if cell == next(i for i, d in enumerate(boards[0]) if d) else d for cell, d in enumerate(boards[0])]
    found = ask(*[("solutions", board, 2) for board in boards], ("solutions", several, 2))
    expected = [[[int(mark) for mark in solution] for solution in all_solutions(puzzle)] for puzzle in puzzles]
    assert [each["found"] for each in found[:-1]] == expected
    assert all(each["complete"] for each in found)
    assert len(found[-1]["found"]) == len(list(islice(all_solutions("".join(map(str, several))), 2)))


def test_judge_of_bad_puzzles_says_what_is_wrong(ask):
    board = [int(mark) for mark in FAMOUS[0]["puzzle"]]
    clash = [*board[:2], board[0], *board[3:]]
    empty, few = [0] * 81, [1, *[0] * 80]
    # Without a solution, but a search needs long to see it (from Norvig's essay).
    rows = "000005080 000601043 000000000 010500000 000106000 300000005 530000061 000000004 000000000"
    endless = [int(mark) for mark in rows.replace(" ", "")]
    (good, twice, nothing, many, long) = ask(*[("judge", each) for each in (board, clash, empty, few, endless)])
    assert good["note"] == ""
    assert good["solution"] is not None
    assert "no solution" in twice["note"]
    assert twice["solution"] is None
    assert "empty" in nothing["note"]
    assert "more than one solution" in many["note"]
    assert "takes too long" in long["note"]


def test_parse_of_a_pasted_board_takes_what_people_paste(ask):
    puzzle = FAMOUS[0]["puzzle"]
    rows = [puzzle[i : i + 9] for i in range(0, 81, 9)]
    drawn = "\n".join(" | ".join(row[i : i + 3] for i in (0, 3, 6)) for row in rows).replace("0", ".")
    lines = drawn.split("\n")
    ruled = "\n".join([*lines[:3], "------+-------+------", *lines[3:]])
    listed, hyphens = ",".join(puzzle), puzzle.replace("0", "-")
    *boards, short, letter = ask(
        *[("parseBoard", text) for text in (puzzle, drawn, ruled, listed, hyphens, "123", "é" + puzzle[1:])]
    )
    assert boards == [[int(mark) for mark in puzzle]] * 5
    assert "81 cells" in short["error"]
    assert "“é”" in letter["error"]


def test_shuffled_puzzle_still_has_one_solution(ask):
    board = [int(mark) for mark in FAMOUS[4]["puzzle"]]
    images = ask(*[("shuffledBy", board, seed) for seed in range(4)])
    assert len({tuple(image) for image in images}) == 4
    for image in images:
        assert len(list(islice(all_solutions("".join(map(str, image))), 2))) == 1
        assert sum(map(bool, image)) == sum(map(bool, board))


WORD_TASKS = {
    "edit distance": TASKS["edit-distance"](),
    "unit borders": TASKS["edit-distance"](borders="unit", replace_cost=5),
    "subsequence": TASKS["lcs"](),
}


@pytest.mark.parametrize("name", WORD_TASKS)
def test_words_have_the_answers_and_tokens_of_the_package(ask, name):
    task = WORD_TASKS[name]
    batch = task.sample(3, "test", range(5))
    pairs = [task.render(inputs).split("|") for inputs in batch.inputs]
    about = {"name": task.name, **vars(task)}
    solved = ask(*[("solveWords", about, *pair) for pair in pairs])
    tokens = ask(*[("encodeWords", about, *pair) for pair in pairs])
    for (first, second), found, laid_out, inputs in zip(pairs, solved, tokens, batch.inputs, strict=True):
        table = found["table"]
        assert table[-1][-1] == task.reference(first, second)
        assert table[7][5] == task.reference(first[:7], second[:5])
        assert laid_out == inputs.tolist()
        _assert_path_is_the_best(task, first, second, found["path"])


def _assert_path_is_the_best(task, first, second, path):
    """A path's own cost, letter by letter, must be the answer."""
    steps = [step for _, _, step in path[1:]]
    if task.name == "lcs":
        assert steps.count("keep") == task.reference(first, second)
    elif task.borders == "true":
        costs = {"keep": 0, "insert": task.insert_cost, "remove": task.delete_cost, "replace": task.replace_cost}
        assert sum(costs[step] for step in steps) == task.reference(first, second)
    i = j = 0
    for step in steps:
        i, j = i + (step != "insert"), j + (step != "remove")
        if step == "keep":
            assert first[i - 1] == second[j - 1]
    assert (i, j) == (len(first), len(second))


def test_words_outside_the_alphabet_or_too_long_are_refused_in_a_sentence(ask):
    task = {"name": "edit-distance", **vars(TASKS["edit-distance"]())}
    strange, long, empty, good = ask(
        ("checkWords", task, "straße", "a"), ("checkWords", task, "a" * 41, "a"), ("checkWords", task, "", "a"),
        ("checkWords", task, " Kitten", "SITTING "),
    )  # fmt: skip
    assert "“ß”" in strange["error"]
    assert "41 letters" in long["error"]
    assert "empty" in empty["error"]
    assert good == ["kitten", "sitting"]


@pytest.mark.parametrize("name", ["edit distance", "subsequence"])
def test_drawn_pairs_are_like_those_of_training(ask, name):
    task = WORD_TASKS[name]
    about = {"name": task.name, **vars(task)}
    pairs = ask(*[("drawPairBy", about, seed) for seed in range(20)])
    for first, second in pairs:
        assert task.parse(f"{first}|{second}") is not None
        assert task._check_lengths(first, second, task.length) is None
    ((filled, other),) = ask(("fillUpBy", about, "kitten", "sitting", 1))
    assert filled.startswith("kitten")
    assert other.startswith("sitting")
    assert len(filled) == task.length


def test_numbers_have_the_tokens_and_the_verdicts_of_the_package(ask):
    task = TASKS["countdown"]()
    batch = task.sample(1, "test", range(12))
    hands = [task._numbers_and_target(inputs) for inputs in batch.inputs]
    wrong = np.array([np.where(row > 5, 6 + (row - 6) // 2, row) for row in batch.targets])
    sure = [1.0] * batch.inputs.shape[1]
    tokens = ask(*[("encodeNumbers", *hand) for hand in hands])
    right = ask(*[("readSteps", *hand, row.tolist(), sure) for hand, row in zip(hands, batch.targets, strict=True)])
    other = ask(*[("readSteps", *hand, row.tolist(), sure) for hand, row in zip(hands, wrong, strict=True)])
    assert tokens == batch.inputs.tolist()
    assert all(read["reached"] for read in right)
    verdicts = [task.is_right(x, y, None) for x, y in zip(batch.inputs, wrong, strict=True)]
    assert [read["reached"] for read in other] == verdicts


def test_search_for_numbers_finds_the_first_solution_of_the_package(ask):
    task = TASKS["countdown"]()
    batch = task.sample(2, "test", range(6))
    hands = [task._numbers_and_target(inputs) for inputs in batch.inputs]
    found = ask(*[("searchNumbers", *hand, task.largest_number) for hand in hands], ("searchNumbers", [1, 1, 1], 50))
    for inputs, (numbers, target), answer in zip(batch.inputs, hands, found[:-1], strict=True):
        solution = ", ".join(answer["first"]).translate(SIGNS)
        assert solution == task.solve(inputs)
        assert solution_fault(numbers, target, solution) is None
    assert found[-1] == {"first": None, "count": 0}


def test_numbers_out_of_range_are_refused_in_a_sentence(ask):
    task = {"name": "countdown", **vars(TASKS["countdown"]())}
    few, large, far = ask(
        ("checkNumbers", task, [3], 20), ("checkNumbers", task, [3, 400], 20), ("checkNumbers", task, [3, 4], 2000)
    )
    assert "2 to 4 numbers" in few["error"]
    assert "between 1 and 99" in large["error"]
    assert "target" in far["error"]


def test_drawn_numbers_have_a_solution(ask):
    task = TASKS["countdown"]()
    drawn = ask(*[("drawNumbersBy", vars(task), seed) for seed in range(8)])
    for hand in drawn:
        inputs = task.parse(f"{' '.join(map(str, hand['numbers']))} -> {hand['target']}")
        assert task.solve(inputs) is not None


@pytest.fixture(scope="module")
def proofs():
    return json.loads(gzip.decompress(base64.b64decode(theory_data())))


PROOFS = [
    ("attn", 2, 3, "paper", ""), ("wave", 2, 3, "paper", "start"), ("mean", 2, 2, "paper", "signs"),
    ("max", 2, 4, "modulated", ""), ("attn", 2, 8, "lean", ""), ("prod", 3, 2, "lean-stream", ""),
    ("attn", 2, 3, "lean-horner", ""), ("wave", 2, 2, "lean-multiset", ""), ("max", 3, 3, "modulated-minimal", ""),
    ("attn", 2, 4, "modulated-sqrt", ""),
]  # fmt: skip


@pytest.mark.parametrize(("function", "tokens", "cells", "variant", "fault"), PROOFS)
def test_network_of_a_proof_runs_in_the_page_as_in_the_package(ask, proofs, function, tokens, cells, variant, fault):
    printed = (fault,) if fault else ()
    net = theory.approximate(
        theory.load(function, 1, tokens), 1, tokens, cells, variant, "centre", bits=BITS, printed=printed
    )
    key = "/".join(map(str, [function, tokens, cells, variant, *printed]))
    strip = Fraction(1, cells) - net.epsilon / 2
    for x in ([Fraction(k, 7) for k in range(1, tokens + 1)], [strip, *[Fraction(5, 8)] * (tokens - 1)]):
        (outputs,) = ask(("proofOutputs", proofs["networks"][key], proofs["forms"], list(map(str, x))))
        states = [net.network.read(state) for state in net.network.states([[each] for each in x])]
        assert outputs == [[str(Fraction(value)) for (value,) in state] for state in states]


@pytest.mark.parametrize("name", ["mean", "prod", "max", "attn", "wave"])
def test_target_function_of_the_page_is_that_of_the_package(ask, name):
    x = [0.1, 0.7, 0.4]
    (values,) = ask(("target", name, x))
    np.testing.assert_allclose(values, theory.load(name, 1, 3).function(np.array([x]))[0], rtol=1e-12)


def test_every_printed_fault_of_the_block_can_be_switched_on(proofs):
    for fault in proofs["faults"]:
        for cells in (2, 3, 4):
            assert f"attn/2/{cells}/paper/{fault}" in proofs["networks"]
