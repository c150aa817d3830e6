"""Early exit: rules, batches that shrink, tokens that stop, and what is measured."""

import json

import numpy as np
import pytest
import torch

from looped.inference.early_exit import WATCHERS, ExitRule, answer_early, read_early
from looped.inference.exit_evaluation import evaluate_exits
from looped.models import LoopModel, LoopStack, build_model
from looped.models.engines import set_engine
from looped.models.fused import FusedLoops
from looped.models.stack import Advance
from looped.tasks import Spec
from looped.training.evaluation import evaluate
from looped.utils.errors import InputError
from tests.cli.command import answer, complaint
from tests.models.cases import SHARED, TOKENS, VECTORS, examples, interpreted, small

RULES = ("stable:2", "stable:4", "entropy:1.5", "change:0.3", "budget:3")
MOST = 9


def slow_model(spec: Spec, **knobs) -> LoopModel:
    """Return a model whose answers settle after different numbers of loops."""
    return build_model(small(**{"block": "looped", "dim": 16, "num_loops": 4, "positions": "rotary"} | knobs), spec, 1)


def some_counted(inputs: torch.Tensor) -> torch.Tensor:
    """Return which positions count: about half of them, and the first."""
    counted = torch.from_numpy(np.random.default_rng(5).random(inputs.shape) < 0.5)
    counted[:, 0] = True
    return counted


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
    counted = some_counted(inputs)
    found = answer_early(model, inputs, counted, rule, MOST)
    states = torch.stack(list(model.iterate(inputs, MOST))).detach()
    scores = model.read_out(states).detach()
    expected = [stops_after(rule, states[:, row], scores[:, row, counted[row]]) for row in range(40)]
    assert found.loops.tolist() == expected
    assert text.startswith("budget") or len(set(expected)) > 1
    for row, loop in enumerate(expected):
        torch.testing.assert_close(found.scores[row, counted[row]], scores[loop - 1, row, counted[row]])
    assert not found.scores[~counted].any()


class Blocks(FusedLoops):
    """Compute blocks of any size in plain PyTorch, and keep the sizes of the batches."""

    def __init__(self, stack: LoopStack, size: int) -> None:
        super().__init__(stack)
        self.size, self.batches = size, []

    def advancer(self, num_loops: int, embeddings: torch.Tensor) -> Advance:
        prepared = self.stack.prepare(num_loops, embeddings.shape[1], embeddings.device)

        def advance(state: torch.Tensor, embeddings: torch.Tensor, first: int) -> list[torch.Tensor]:
            self.batches.append(len(state))
            states = [state]
            for t in range(first, min(first + self.size, num_loops)):
                states.append(self.stack.loop(states[-1], embeddings, prepared, t))
            return states[1:]

        return advance


def gated_model(**knobs) -> LoopModel:
    """Return a model whose sublayers and halting gate do something."""
    model = slow_model(TOKENS, halting_gate=True, **knobs)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


@pytest.mark.parametrize("size", [1, 2, 4, 20])
@pytest.mark.parametrize("text", [*RULES, "gate:0.6"])
def test_blocks_of_loops_stop_examples_where_single_loops_do(text, size):
    """An example leaves the batch at the end of the block in which it stops."""
    model, inputs, rule = gated_model(injection="add"), examples(TOKENS, batch=40), ExitRule.parse(text)
    wanted = answer_early(model, inputs, some_counted(inputs), rule, MOST)
    model.stack.all_loops = engine = Blocks(model.stack, size)
    found = answer_early(model, inputs, some_counted(inputs), rule, MOST)
    assert torch.equal(found.loops, wanted.loops)
    torch.testing.assert_close(found.scores, wanted.scores)
    assert engine.batches == [int((wanted.loops > t).sum()) for t in range(0, int(wanted.loops.max()), size)]
    assert size == 1 or (wanted.loops % size > 0).any()


def test_layer_hook_lets_loops_run_one_by_one():
    model, inputs = gated_model(), examples(TOKENS)
    model.stack.all_loops = engine = Blocks(model.stack, 4)
    seen = []
    model.stack.register_layer_hook(lambda loop, *_: seen.append(loop))
    answer_early(model, inputs, some_counted(inputs), ExitRule("budget", 2), MOST)
    assert (seen, engine.batches) == ([0, 1], [])


@interpreted
@pytest.mark.parametrize("text", ["stable:2", "entropy:1.5", "change:0.3", "gate:0.6"])
@pytest.mark.parametrize(
    "knobs",
    [
        {"injection": "none"},
        {"injection": "add"},
        {"block": "modulated", "injection": "add", "num_layers": 2},
        {"block": "modulated", "conditioning": "table", "injection": "none", "extrapolation": "rescale"},
    ],
    ids=str,
)
def test_fused_engine_stops_examples_where_single_loops_do(knobs, text):
    model, inputs, rule = gated_model(**knobs, precision="float32"), examples(TOKENS, batch=12), ExitRule.parse(text)
    wanted = answer_early(model, inputs, some_counted(inputs), rule, 7)
    assert set_engine(model.stack, "fused") == "fused"
    found = answer_early(model, inputs, some_counted(inputs), rule, 7)
    assert torch.equal(found.loops, wanted.loops)
    torch.testing.assert_close(found.scores, wanted.scores, rtol=1e-4, atol=1e-5)


@interpreted
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize(("batch", "loops", "most"), [(1, 3, 3), (1, 5, 6), (3, 2, 9)])
def test_fused_engine_gives_single_examples_and_few_loops_their_scores(batch, loops, most, precision, tolerance):
    model, inputs = gated_model(injection="add", precision=precision), examples(TOKENS, batch)
    wanted = model(inputs, loops).detach()
    assert set_engine(model.stack, "fused") == "fused"
    found = answer_early(model, inputs, torch.ones_like(inputs, dtype=torch.bool), ExitRule("budget", loops), most)
    assert found.loops.tolist() == [loops] * batch
    assert found.scores.dtype == wanted.dtype
    assert (found.scores - wanted).norm() < tolerance * wanted.norm()


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
     ("change:nan", "above 0"), ("entropy:-1", "above 0"), ("gate:x", "between 0 and 1"), ("stable", "whole number")],
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
