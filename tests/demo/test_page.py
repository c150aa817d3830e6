"""A scripted person goes through the page in headless Chromium."""

import json
from fractions import Fraction

import numpy as np
import safetensors.torch

from looped import theory
from looped.config import ModelConfig
from looped.models.model import build_model
from looped.models.pretrained import model_card
from looped.tasks import TASKS
from looped.tasks.sudoku.exact_cover import all_solutions
from looped.utils.shipped import shipped_path
from tests.demo.reference import SHIPPED, scores_at, shipped_model

SIGNS = "\u00d7\u2212\u00f7"  # as the page writes them


def test_person_goes_through_every_tab(node, chromium, demo, tmp_path):
    facts = {
        "sudoku": sudoku_facts(demo),
        "words": [words_facts("edit-distance"), words_facts("lcs")],
        "countdown": countdown_facts(),
        "inside": next(name for name in SHIPPED if name.startswith("decision-tree/")),
        "theory": theory_facts(),
        "own": own_files(tmp_path),
    }
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(facts))
    said = node("person.mjs", chromium, demo.page, path, timeout=240)
    tabs = ("sudoku", "words", "countdown", "inside", "theory", "own", "phone")
    assert said.split("\n")[:-1] == [f"{tab}: done" for tab in tabs]


def ranked(task, inside=()):
    """Return the models of a task as the page ranks them: those inside it first, and the better before the worse."""
    cards = [model_card(name) for name in SHIPPED if name.startswith(f"{task}/")]
    return sorted(cards, key=lambda card: (card.name not in inside, -card.test.value))


def answers(name, inputs, loops):
    """Return the classes after each loop, (loop, position)."""
    _, model = shipped_model(name)
    return scores_at(model, inputs[None], list(range(1, loops + 1)))[0].argmax(-1)


def sudoku_facts(demo):
    task = TASKS["sudoku"](difficulty="easy", pool=0)
    board = task.sample(5, "test", [0]).inputs[0]  # minimal: without any of its clues it has several solutions
    puzzle = task.render(board)
    (solution,) = all_solutions(puzzle)
    first = next(card.name for card in ranked("sudoku", demo.inside) if card.config.model.block == "looped")
    boards = np.where(board > 0, board, answers(first, board, 32))
    solved = [loop for loop, each in enumerate(boards, 1) if task.render(each) == solution]
    assert solved
    assert solved[-1] == 32
    clue = int(np.flatnonzero(board)[0])
    changed = (puzzle[:clue] + digit + puzzle[clue + 1 :] for digit in "123456789" if digit != puzzle[clue])
    impossible = next(each for each in changed if next(all_solutions(each), None) is None)
    several = f"{puzzle[:clue]}0{puzzle[clue + 1 :]}"
    return {
        "puzzle": puzzle, "solution": solution, "solved_at": solved[0], "impossible": impossible, "several": several,
    }  # fmt: skip


def words_facts(task_name):
    """Return a pair for the model of short words, which the page shows first."""
    card = min(ranked(task_name), key=lambda card: card.config.task.min_length or card.config.task.length)
    name, task, loops = card.name, card.config.task, card.config.model.num_loops
    inputs = task.sample(0, "test", [3]).inputs[0]
    first, second = task.render(inputs).split("|")
    found = [str(answers(name, inputs, loops)[-1, -1])]
    return {
        "task": task_name, "first": first, "second": second, "answer": task.reference(first, second),
        "answers": found, "loops": loops,
    }  # fmt: skip


def countdown_facts():
    card = ranked("countdown")[0]
    task, loops = card.config.task, card.config.model.num_loops
    inputs = task.sample(0, "test", [0]).inputs[0]
    numbers, target = task._numbers_and_target(inputs)
    classes = answers(card.name, inputs, loops)[-1]
    written = task.answer(np.where(task.counted(inputs[None])[0], classes, inputs))
    shown = written.translate(str.maketrans("*-/", SIGNS))
    return {"numbers": numbers, "target": target, "loops": loops, "answer": shown}


def theory_facts():
    """Return an input at which a printed fault makes the network wrong, with both exact outputs for the first token."""
    steps, fault = [400, 100], "signs"
    x = [[Fraction(step, 512) for step in steps]]
    right, wrong = (
        theory.approximate(theory.load("attn", 1, 2), 1, 2, 3, "paper", "centre", printed=printed)(x)[0, 0]
        for printed in ((), (fault,))
    )
    assert right != wrong
    return {"function": "attn", "cells": 3, "fault": fault, "x": steps, "right": str(right), "wrong": str(wrong)}


def small_model(**changes):
    """Return the file of an untrained standard model of 4x4 Sudoku."""
    task = TASKS["sudoku"](side=4)
    config = ModelConfig("standard", dim=16, num_heads=2, num_layers=2, positions="coordinates", **changes)
    example = {"inputs": [[1, 2, 3, 4, *[0] * 12]]}
    about = {"config": {"model": vars(config), "task": {"name": "sudoku", **vars(task)}}, "example": example}
    return safetensors.torch.save(dict(build_model(config, task.spec).state_dict()), {"looped": json.dumps(about)})


def own_files(tmp_path):
    """Return paths of two models to add, and of four files that the page cannot take."""
    content = shipped_path(next(name for name in SHIPPED if name.startswith("sudoku/"))).read_bytes()
    files = {
        "model": content,
        "small": small_model(),
        "prelude": small_model(prelude_layers=1),
        "foreign": b"PNG and nothing that a model would be made of",
        "cut": content[: len(content) // 2],
        "language": content.replace(b'\\"name\\": \\"sudoku\\"', b'\\"name\\": \\"letter\\"'),
    }
    assert files["language"] != content
    paths = {}
    for name, each in files.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(each)
        paths[name] = str(path)
    return paths
