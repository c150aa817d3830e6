"""The engine against the definition: every row of every token after every loop, for all kinds of numbers."""

import json
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped import theory
from looped.theory.engine import Engine
from looped.theory.network import FeedForward, Form, Head, LoopedNetwork, row
from tests.paths import ROOT

F = Fraction


def rough(x):
    return np.sin(9 * x + 4 * x.sum(axis=1, keepdims=True)) + np.cos(7 * x.sum()) * x


def assert_same(network, inputs):
    """Compare all states of the engine with `LoopedNetwork.states`."""
    inputs = np.array(inputs, dtype=object)
    truth = [list(network.states(x.T.tolist())) for x in inputs]
    for state in Engine(network).states(inputs):
        for name in network.rows:
            values = state.row(name)
            for b, states in enumerate(truth):
                assert [token[name] for token in states[state.loop]] == list(values[b]), (state.loop, name)


@pytest.mark.parametrize("softmax", [False, True], ids=["hardmax", "softmax"])
@pytest.mark.parametrize("variant", theory.VARIANTS)
@pytest.mark.parametrize(
    "denominator", [12, 3 * 2**20, 2**53, 1000], ids=["grid", "trifling grid", "floats", "decimals"]
)
def test_every_state_equals_the_definition(variant, softmax, denominator):
    rng = np.random.default_rng(3)
    net = theory.approximate(rough, 1, 2, 3, variant, bits=4, softmax=softmax)
    x = [[[F(int(k), denominator) for k in rng.integers(0, denominator, 2)]] for _ in range(2)]
    assert_same(net.network, x)


@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_states_at_trifling_points_in_two_dimensions_equal_the_definition(variant):
    net = theory.approximate(rough, 2, 2, 2, variant, bits=3)
    inside = F(1, 2) - net.epsilon / 3
    assert_same(net.network, [[[inside, F(1, 4)], [F(3, 4), F(0)]], [[F(1, 8), F(1, 8)], [F(5, 8), inside]]])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_states_of_random_networks_equal_the_definition(data):
    """Weights are arbitrary rationals, with growing numbers, ties and modulation, unlike in the constructions."""
    number = st.fractions(-3, 3, max_denominator=4)
    rows = ("a", "b", "c", "d")
    layer = FeedForward(rows)
    for _ in range(data.draw(st.integers(1, 4))):
        unit = layer.relu(Form({r: data.draw(number) for r in rows}, data.draw(number)))
        layer.add(data.draw(st.sampled_from(rows)), unit * data.draw(number))
    layer.add("d", data.draw(number))
    encode = {"a": row("x"), "b": row("x") * data.draw(number), "c": Form(const=data.draw(number)), "d": Form(const=1)}
    head = Head(Form({"a": data.draw(number)}), Form({"b": data.draw(number), "c": 1}), Form({"d": 0}), "c")
    loops = 5
    eta = {"b": [data.draw(number) for _ in range(loops)]} if data.draw(st.booleans()) else {}
    network = LoopedNetwork(("x",), encode, layer, (row("a"),), loops, (head,), eta)
    inputs = data.draw(st.lists(st.fractions(0, 1, max_denominator=7), min_size=3, max_size=3))
    assert_same(network, [[inputs]])


HUGE = st.tuples(st.integers(-3, 3), st.sampled_from([0, 52, 530, 995, 996, 997, 1023, 1100, -530, -1022, -1080])).map(
    lambda drawn: drawn[0] * F(2) ** drawn[1]
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_states_beyond_float64_exponents_equal_the_definition(data):
    """Weights, biases and starts range from 2^-1080 to 2^1100, beyond float64."""
    number = st.one_of(HUGE, st.integers(-2, 2))
    rows = ("a", "b", "c", "d")  # no input reaches c and d
    layer = FeedForward(rows)
    for _ in range(data.draw(st.integers(1, 4))):
        unit = layer.relu(Form({r: data.draw(number) for r in rows}, data.draw(number)))
        layer.add(data.draw(st.sampled_from("ab")), unit * data.draw(number))
    static = layer.relu(Form({r: data.draw(number) for r in "cd"}, data.draw(number)))
    layer.add(data.draw(st.sampled_from(rows)), static * data.draw(number))
    encode = {"a": row("x"), "b": row("x") * data.draw(number)} | {r: Form(const=data.draw(number)) for r in "cd"}
    head = Head(Form({"a": data.draw(number)}), Form({"b": data.draw(number), "c": 1}), Form({"d": 1}), "b")
    loops = 3
    eta = {"a": [data.draw(number) for _ in range(loops)]} if data.draw(st.booleans()) else {}
    network = LoopedNetwork(("x",), encode, layer, (row("a"),), loops, (head,), eta)
    inputs = data.draw(st.lists(st.one_of(HUGE, st.fractions(0, 1, max_denominator=7)), min_size=2, max_size=2))
    assert_same(network, [[inputs]])


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_beyond_two_to_the_996_are_compared_exactly(sign):
    """Bounds treat these numbers as 2^996, but 4 * 2^996 is more than that and less than 2^1100."""
    layer = FeedForward(("x", "y", "s", "less", "more"))
    for other in ("x", "s"):
        layer.add("less", layer.relu(4 * row("y") - row(other)))
        layer.add("more", layer.relu(row(other) - 4 * row("y")))
    start = {"x": 2**1100 * row("x"), "y": 2**996 * row("x"), "s": Form(const=sign * 2**1100)}
    network = LoopedNetwork(("x",), start | {"less": Form(), "more": Form()}, layer, (row("less"), row("more")), 2)
    for inputs in ([F(1), F(1, 2)], [F(-1), F(-3, 8)], [F(1), F(-1), F(0)]):
        assert_same(network, [[inputs]])


def test_offset_below_the_smallest_float_counts():
    """2^-1100 is 0 in float64, but it is above 0."""
    layer = FeedForward(("x", "s", "y"))
    layer.add("y", layer.relu(row("x") + row("s")) * 2**1100)
    network = LoopedNetwork(("x",), {"x": row("x"), "s": Form(const=F(1, 2**1100)), "y": Form()}, layer, (row("y"),), 2)
    assert_same(network, [[[F(0), F(0)]]])
    assert Engine(network)(np.array([[[F(0)]]], dtype=object))[0, 0, 0] == 2


@pytest.mark.parametrize("read", [0, 1], ids=["unread", "read"])
def test_static_row_may_outgrow_float64(read):
    """c doubles in every loop. e is the small difference of two units that have outgrown float64 too."""
    layer = FeedForward(("x", "c", "e", "y"))
    layer.add("c", layer.relu(row("c")))
    layer.add("e", layer.relu(row("c")) - layer.relu(row("c") - 1))
    layer.add("y", layer.relu(row("x") + read * (row("c") - 2**57) + row("e")))
    start = {"x": row("x"), "c": Form(const=1), "e": Form(), "y": Form()}
    network = LoopedNetwork(("x",), start, layer, (row("y"), row("c"), row("e")), 60)
    assert_same(network, [[[F(1, 3), F(0)]]])
    output = Engine(network)(np.array([[[F(1, 3)]]], dtype=object))[0, :, 0]
    assert list(output[1:]) == [2**60, 60]


def test_network_without_inputs_may_be_modulated():
    layer = FeedForward(("c",))
    layer.add("c", layer.relu(row("c")))
    network = LoopedNetwork(("x",), {"c": Form(const=1)}, layer, (row("c"),), 5, modulation={"c": [1, 0, 1, 2, 1]})
    assert Engine(network)(np.array([[[F(1, 3), F(0)]]], dtype=object)).tolist() == [[[24, 24]]]


def test_modulated_static_row_may_outgrow_float64():
    layer = FeedForward(("x", "c", "y"))
    layer.add("c", layer.relu(row("c")))
    layer.add("y", layer.relu(row("x") - row("c") + 2**58))
    start = {"x": row("x"), "c": Form(const=1), "y": Form()}
    eta = {"c": [int(t % 3 != 1) for t in range(90)]}  # doubled in two loops of three
    network = LoopedNetwork(("x",), start, layer, (row("y"), row("c")), 90, modulation=eta)
    assert_same(network, [[[F(1, 3)]]])
    assert Engine(network)(np.array([[[F(1, 3)]]], dtype=object))[0, 1, 0] == 2**60


def test_more_than_62_masked_units_may_feed_one_row():
    """70 steps have offsets beyond float64, and their on/off pattern does not fit into 64 bits."""
    layer = FeedForward(("x", "s", "y"))
    for k in range(70):
        layer.add("y", (k + 1) * (layer.relu(row("x") - k + row("s")) - layer.relu(row("x") - k + row("s") - 1)))
    start = {"x": row("x"), "s": Form(const=F(1, 3**40)), "y": Form()}
    network = LoopedNetwork(("x",), start, layer, (row("y"),), 1)
    assert_same(network, [[[F(k) for k in (0, 3, 62, 63, 64, 65, 69, 70)]]])


def test_weights_beyond_float64_are_exact():
    layer = FeedForward(("x", "y"))
    layer.add("y", 2**1030 * layer.relu(row("x") - 1) + 3 * layer.relu(row("x") + 1))
    network = LoopedNetwork(("x",), {"x": row("x"), "y": Form()}, layer, (row("y"),), 2)
    assert_same(network, [[[F(0), F(2), F(5)]]])


def test_softmax_of_scores_beyond_float64_selects_the_largest():
    layer = FeedForward(("x", "y"))
    head = Head(row("x"), 2**1100 * row("x"), Form(const=1), "y")
    network = LoopedNetwork(("x",), {"x": row("x"), "y": Form()}, layer, (row("y"),), 1, (head,), softmax=True)
    assert network([[F(1)], [F(3)], [F(2)]]) == [[3]] * 3
    assert_same(network, [[[F(1), F(3), F(2)]]])


def test_numbers_beyond_float64_stay_exact():
    layer = FeedForward(("x", "y"))
    layer.add("x", 2**20 * layer.relu(row("x")))  # x grows by a factor 2^20 + 1 per loop
    layer.add("y", layer.relu(row("x") - row("y")))
    network = LoopedNetwork(("x",), {"x": row("x"), "y": Form()}, layer, (row("x"), row("y")), 9)
    (x, y), *_ = network([[F(1, 3)]])
    output = Engine(network)(np.array([[[F(1, 3)]]], dtype=object))
    assert list(output[0, :, 0]) == [x, y] == [F((2**20 + 1) ** 9, 3), F((2**20 + 1) ** 8, 3)]


def test_mean_over_tokens_with_a_sum_beyond_float64_is_exact():
    """Each value fits into 53 bits, but their sum does not."""
    layer = FeedForward(("x", "mean"))
    head = Head(row("x"), Form(), Form(), "mean")
    network = LoopedNetwork(("x",), {"x": 2**53 * row("x"), "mean": Form()}, layer, (row("mean"),), 1, (head,))
    inputs = [1 - F(k, 2**53) for k in (1, 2, 4)]
    output = Engine(network)(np.array([[inputs]], dtype=object))
    assert list(output[0, 0]) == [2**53 * sum(inputs) / 3] * 3


def test_plain_float64_is_wrong_where_the_engine_is_right():
    """With K = 128 > 53 bits the same matrices in float64 lose the label bits."""
    net = theory.approximate(theory.load("attn", 1, 2), 1, 2, 4, "paper")
    weights = net.network.weights()
    first, second = weights.first.astype(float), weights.second.astype(float)
    bias, out_bias = weights.first_bias.astype(float), weights.second_bias.astype(float)
    wrong = 0
    for a, b in [(0, 1), (1, 3), (2, 0), (3, 2)]:
        x = np.array([[a / 4, b / 4]])
        state = weights.encode.astype(float) @ x + weights.encode_bias.astype(float)[:, None]
        for _ in range(net.network.loops):
            scores = (weights.key.astype(float) @ state)[:, :, None] * (weights.query.astype(float) @ state)[:, None, :]
            best = scores == scores.max(axis=1, keepdims=True)
            values = weights.value.astype(float) @ state
            output = (values[:, :, None] * best / best.sum(axis=1, keepdims=True)).sum(axis=1)
            state = state + weights.out.astype(float).T @ output
            state = state + second @ np.maximum(first @ state + bias[:, None], 0) + out_bias[:, None]
        output = weights.decode.astype(float) @ state + weights.decode_bias.astype(float)[:, None]
        wrong += bool(np.abs(output - net(x).astype(float)).max() > 1e-6)
    assert wrong > 0


def test_batch_equals_single_inputs():
    net = theory.approximate(rough, 1, 2, 4, "lean")
    rng = np.random.default_rng(1)
    x = rng.random((20, 1, 2))
    assert (net(x) == np.stack([net(one) for one in x])).all()


def test_trace_equals_the_definition():
    net = theory.approximate(rough, 1, 2, 2, "paper")
    x = np.array([[0.75, 0.25]])
    trace = net.trace(x)
    truth = list(net.network.states([[F(3, 4)], [F(1, 4)]]))
    assert trace.values.shape == (net.size.loops + 1, net.size.dims, 2)
    assert list(trace.row("clock")[:, 0]) == list(range(net.size.loops + 1))
    for name in net.network.rows:
        assert [list(after) for after in trace.row(name)] == [[token[name] for token in state] for state in truth]


@pytest.mark.slow
def test_paper_with_65536_ids_is_exact():
    net = theory.approximate(theory.load("wave", 1, 2), 1, 2, 32, "paper")
    assert net.construction.num_ids == 65_536
    x = np.array([[[F(3, 32), F(30, 32)]], [[F(11, 32), F(11, 32)]]], dtype=object)
    for z, values in zip(((3, 30), (11, 11)), net(x), strict=True):
        assert [list(column) for column in values.T] == net.code_value(z)


def test_modulation_with_wrong_length_raises():
    net = theory.approximate(rough, 1, 2, 2, "modulated")
    with pytest.raises(AssertionError, match="eta"):
        replace(net.network, loops=3)


def test_documented_costs_equal_the_measured_ones():
    root = ROOT
    newest = max((root / "benchmarks" / "results").glob("theory-cpu-*.json"))
    cost = {
        (one["ids"], one["inputs"], one["batch"]): one["ms_per_input"] for one in json.loads(newest.read_text())["rows"]
    }
    rows = re.findall(r"^\| .* ms\) \|$", (root / "docs" / "theory.md").read_text(), re.MULTILINE)
    assert len(rows) == 3
    for each in rows:
        ids, *documented = (float(text.replace(",", "")) for text in re.findall(r"[\d,.]+", each))
        measured = [cost[ids, kind, batch] for kind in ("grid", "float64") for batch in (1024, 1)]
        assert documented == pytest.approx(measured, rel=0.02)
