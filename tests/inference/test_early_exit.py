"""Early exit: rules, batches that shrink, tokens that stop, and what is measured."""

import json

import numpy as np
import pytest
import torch

from looped.inference.early_exit import WATCHERS, ExitRule, answer_early, read_early
from looped.inference.exit_evaluation import evaluate_exits
from looped.models import LoopModel, build_model
from looped.tasks import Spec
from looped.training.evaluation import evaluate
from looped.utils.errors import InputError
from tests.cli.command import answer, complaint
from tests.models.cases import SHARED, TOKENS, VECTORS, examples, small

RULES = ("stable:2", "stable:4", "entropy:1.5", "change:0.3", "budget:3")
MOST = 9


def slow_model(spec: Spec, **knobs) -> LoopModel:
    """Return a model whose answers settle after different numbers of loops."""
    return build_model(small(**{"block": "looped", "dim": 16, "num_loops": 4, "positions": "rotary"} | knobs), spec, 1)


def stops_after(rule: ExitRule, states: torch.Tensor, scores: torch.Tensor) -> int:
    """Return the loop at which one example stops, by definition, from its states and its counted scores."""
    classes = [each.argmax(dim=-1).tolist() for each in scores]
    for loop in range(1, len(states)):
        if rule.kind == "stable":
            last = classes[max(0, loop - int(rule.limit)) : loop]
            done = len(last) == rule.limit and all(each == last[0] for each in last)
        elif rule.kind == "entropy":
            done = max(entropy(row) for row in scores[loop - 1].softmax(dim=-1).numpy()) < rule.limit
        elif rule.kind == "change":
            moved = np.linalg.norm(states[loop - 1] - states[loop - 2]) if loop > 1 else np.inf
            done = moved / np.linalg.norm(states[loop - 1]) < rule.limit
        else:
            done = loop == rule.limit
        if done:
            return loop
    return len(states)


def entropy(probabilities: np.ndarray) -> float:
    return -sum(each * np.log(each) for each in probabilities)


@pytest.mark.parametrize("text", RULES)
def test_examples_stop_where_the_rule_says_and_keep_their_scores(text):
    model, inputs, rule = slow_model(TOKENS), examples(TOKENS, batch=40), ExitRule.parse(text)
    counted = torch.from_numpy(np.random.default_rng(5).random(inputs.shape) < 0.5)
    counted[:, 0] = True
    found = answer_early(model, inputs, counted, rule, MOST)
    states = torch.stack(list(model.iterate(inputs, MOST))).detach()
    scores = model.read_out(states).detach()
    expected = [stops_after(rule, states[:, row], scores[:, row, counted[row]]) for row in range(40)]
    assert found.loops.tolist() == expected
    assert text.startswith("budget") or len(set(expected)) > 1
    for row, loop in enumerate(expected):
        torch.testing.assert_close(found.scores[row, counted[row]], scores[loop - 1, row, counted[row]])
    assert not found.scores[~counted].any()


@pytest.mark.parametrize("text", RULES)
def test_tokens_stop_where_the_rule_says_if_all_loops_are_computed(text):
    model = slow_model(SHARED)
    tokens, rule = examples(SHARED, batch=5), ExitRule.parse(text)
    found = read_early(model, tokens, rule, MOST, skipped="computed")
    states = torch.stack(list(model.iterate(tokens, MOST))).detach()
    scores = model.read_out(states).detach()
    for row in range(5):
        for place in range(SHARED.seq_len):
            loop = stops_after(rule, states[:, row, place : place + 1], scores[:, row, place : place + 1])
            assert found.loops[row, place] == loop
            torch.testing.assert_close(found.scores[row, place], scores[loop - 1, row, place])


def test_token_does_not_see_what_later_tokens_skip():
    model = slow_model(SHARED, num_layers=2)
    tokens, rule = examples(SHARED, batch=3), ExitRule.parse("change:0.3")
    whole, part = read_early(model, tokens, rule, MOST), read_early(model, tokens[:, :4], rule, MOST)
    assert torch.equal(whole.loops[:, :4], part.loops)
    torch.testing.assert_close(whole.scores[:, :4], part.scores)


@pytest.mark.parametrize("num_loops", [1, 3])
def test_tokens_that_all_stop_together_have_the_scores_of_that_loop(num_loops):
    model, tokens = slow_model(SHARED), examples(SHARED, batch=3)
    found = read_early(model, tokens, ExitRule("budget", num_loops), MOST)
    torch.testing.assert_close(found.scores, model(tokens, num_loops).detach())


def test_rule_that_never_fires_runs_all_loops():
    model, inputs = slow_model(TOKENS), examples(TOKENS)
    found = answer_early(model, inputs, torch.ones_like(inputs, dtype=torch.bool), ExitRule("stable", 100), MOST)
    assert found.loops.tolist() == [MOST] * len(inputs)
    torch.testing.assert_close(found.scores, model(inputs, MOST).detach())


@pytest.mark.parametrize(
    "text", ["", "stable", "stable:", "stable:0", "stable:2.5", "entropy:nan", "change:-1", "gate:1", "gut:3"]
)
def test_parse_of_no_rule_raises(text):
    with pytest.raises(InputError) as caught:
        ExitRule.parse(text)
    assert caught.value.field == "exit"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("gate:1.5", "between 0 and 1"), ("stable:2.5", "whole number"), ("budget:inf", "whole number"),
     ("change:nan", "above 0"), ("entropy:-1", "above 0")],
)  # fmt: skip
def test_parse_of_an_impossible_limit_says_what_the_rule_takes(text, reason):
    with pytest.raises(InputError) as caught:
        ExitRule.parse(text)
    assert caught.value.field == "exit"
    assert reason in str(caught.value)
    assert "such as stable:3" not in str(caught.value)  # not the list of all rules


@pytest.mark.parametrize("kind", WATCHERS)
def test_parse_reverses_printing(kind):
    limit = 0.5 if kind == "gate" else 3
    assert ExitRule.parse(str(ExitRule(kind, limit))) == ExitRule(kind, limit)


def test_values_have_no_stable_answer():
    model = slow_model(VECTORS)
    inputs = examples(VECTORS)
    counted = torch.ones(inputs.shape[:2], dtype=torch.bool)
    with pytest.raises(InputError):
        answer_early(model, inputs, counted, ExitRule("stable", 2))
    assert answer_early(model, inputs, counted, ExitRule("budget", 1)).loops.tolist() == [1] * len(inputs)


def test_early_exit_with_a_coda_is_refused():
    model, inputs = slow_model(TOKENS, coda_layers=1), examples(TOKENS, batch=2)
    with pytest.raises(InputError):
        answer_early(model, inputs, torch.ones(inputs.shape, dtype=torch.bool), ExitRule("budget", 2))


@pytest.fixture(scope="module")
def puzzles():
    import looped

    return looped.load("lcs/words-looped-r20")


def test_evaluated_budget_equals_a_fixed_number_of_loops(puzzles):
    report = evaluate_exits(puzzles.model, puzzles.task, [ExitRule("budget", 4)], 10, size=24, batch=5)
    (row,) = report.rows
    fixed = evaluate(puzzles.model, puzzles.task, size=24, loops=[4]).rows[0]
    assert row.score.metrics["accuracy"] == fixed.metrics["accuracy"]
    assert row.score.metrics["loss"] == pytest.approx(fixed.metrics["loss"], abs=1e-2)  # bfloat16 sums by batch
    assert row.mean_loops == 4


def test_eval_command_compares_rules(capsys):
    flags = ["--exit", "stable:2", "budget:3", "--loops", "6", "--size", "12"]
    rows = json.loads(answer(capsys, "eval", "lcs/words-looped-r20", *flags, "--json"))["rows"]
    assert [row["rule"] for row in rows] == ["stable:2", "budget:3"]
    assert rows[1]["mean_loops"] == 3
    assert 2 <= rows[0]["mean_loops"] <= 6
    table = answer(capsys, "eval", "lcs/words-looped-r20", *flags)
    assert "mean loops" in table
    assert "stable:2" in table


@pytest.mark.parametrize(
    "flags",
    [["--exit"], ["--exit", "stable:0"], ["--exit", "stable:2", "--sets"], ["--exit", "stable:2", "--split", "train"],
     ["--exit", "stable:2", "--loops", "2", "4"]],
    ids=" ".join,
)  # fmt: skip
def test_eval_command_with_a_mistake_says_so_in_one_line(flags, capsys):
    complaint(capsys, "eval", "lcs/words-looped-r20", *flags)
