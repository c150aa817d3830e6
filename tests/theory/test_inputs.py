"""Invalid arguments of public functions raise InputError, in one line that starts with the argument."""

import re
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from math import inf

import numpy as np
import pytest
import torch

from looped import InputError, theory
from looped.theory.constructions.any_length import approximate_any_length
from looped.theory.lemmas.contextual import FAULTS as context_faults
from looped.theory.lemmas.contextual import contextual_map
from looped.theory.lemmas.memorizer import FAULTS as memory_faults
from looped.theory.lemmas.memorizer import MODULATED_FAULTS, bit_extraction, bits_memorizer, modulated_memorizer
from looped.theory.lemmas.quantizer import FAULTS as quantizer_faults
from looped.theory.lemmas.quantizer import quantizer
from looped.theory.report import report

HUGE = 10**400
ARRAYS = [np.array([0.1, 0.2]), np.array(2.0), np.ones((2, 2)), torch.tensor([0.1, 0.2]), torch.ones(2, 2), [0.5]]


def square(x):
    return x**2


def same(which, delta):
    return delta


def assert_refused(use, field, *values):
    """Check that a call raises InputError in one line, which names the argument and contains the given values."""
    with pytest.raises(InputError) as caught:
        use()
    message = str(caught.value)
    assert re.match(rf"(unknown )?{field}\b", message), message
    assert "\n" not in message
    assert all(value in message for value in values), message
    return caught.value


def type_name(value):
    return type(value).__name__


# ---- approximate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"cells": 1}, "cells"),
        ({"dim": 0}, "dim"),
        ({"variant": "leen"}, "variant"),
        ({"representative": "middle"}, "representative"),
        ({"cells": 200, "tokens": 4}, "cells"),
    ],
)
def test_approximate_with_an_invalid_argument_raises_before_any_work(arguments, field):
    def untouched(x):
        raise AssertionError("the function must not be evaluated")

    assert_refused(lambda: theory.approximate(untouched, **({"dim": 1, "tokens": 2, "cells": 3} | arguments)), field)


@pytest.mark.parametrize("name", ["dim", "tokens", "cells", "bits"])
@pytest.mark.parametrize("wrong", [4.0, "4", None, Fraction(4)])
def test_count_that_is_not_an_integer_raises(name, wrong):
    arguments = {"dim": 1, "tokens": 2, "cells": 2, "bits": 3} | {name: wrong}
    dim, tokens, cells, _ = arguments.values()
    uses = {
        name: lambda: theory.approximate(square, variant="lean-stream", **arguments),
        "most_tokens" if name == "tokens" else name: lambda: approximate_any_length(square, dim, tokens, cells),
    }
    if name == "bits":
        uses = {"bits": lambda: theory.memorize([0, 1], "stream", wrong)}
    for field, use in uses.items():
        assert_refused(use, field)
    if name in ("dim", "tokens"):
        assert_refused(lambda: theory.moduli(square, dim, tokens, 0.1), name)
        assert_refused(lambda: theory.load("mean", dim, tokens), name)


def test_numpy_counts_do_not_overflow():
    """2 * 2^(9 * 7 + 7) labels: more than 64 bits can count."""
    counts = (np.int64(7), np.int64(9), np.int64(2))
    assert_refused(lambda: theory.approximate(square, *counts), "cells", f"{2 * 2 ** (7 * 10):,} labels")
    counts = (np.int64(70), np.int64(1), np.int64(2))
    assert_refused(lambda: approximate_any_length(square, *counts), "cells", f"{2**70:,}")
    for variant in theory.MEMORIZERS:
        python, numpy = (theory.memorize([0.25, 0.5, 0.75], variant, bits).table() for bits in (70, np.int8(70)))
        assert numpy == python


@pytest.mark.parametrize("counts", [(HUGE, 1, 2), (1, 10**9, 2), (1, 2, HUGE)])
def test_grid_with_too_many_cells_raises_at_once(counts):
    for build in (theory.approximate, approximate_any_length):
        assert_refused(lambda build=build: build(square, *counts), "cells")


def test_too_many_bits_raise():
    assert_refused(lambda: theory.approximate(square, 1, 2, 2, "lean-stream", bits=HUGE), "bits")
    assert_refused(lambda: theory.approximate(square, 1, 2, 4, "lean-stream", bits=10**6), "cells", "cells or bits")
    assert_refused(lambda: theory.approximate(square, 1, 4, 200, "paper", bits=10**6), "cells", "fewer cells.")


def test_sharpness_must_be_a_number_above_zero():
    nets = [theory.approximate(square, 1, 2, 3, "lean", sharpness=value) for value in (9, 9.0, Fraction(9))]
    x = np.array([[[0.4, 0.1]], [[0.9, 0.5]]])
    assert (nets[0](x) == nets[1](x)).all()
    assert (nets[0](x) == nets[2](x)).all()
    for wrong in ("9", float("nan"), 0, -1.5):
        assert_refused(lambda s=wrong: theory.approximate(square, 1, 2, 3, "lean", sharpness=s), "sharpness")


# ---- printed faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "known", "foreign"),
    [
        (lambda p: quantizer(3, printed=p), quantizer_faults, "lag"),
        (lambda p: contextual_map(3, 2, printed=p), ("bias", "deselection"), "second key"),
        (lambda p: contextual_map(3, 2, True, printed=p), context_faults, "lag"),
        (lambda p: bit_extraction((0, 1), p), ("lag", "signs", "stray step"), "stray digit"),
        (lambda p: bits_memorizer([0, 1], p), memory_faults, "start"),
        (lambda p: modulated_memorizer([0, 1], p), MODULATED_FAULTS, "bias"),
        (
            lambda p: theory.approximate(square, 1, 2, 2, printed=p),
            {*quantizer_faults, *context_faults, *memory_faults, "first drift", "second drift", "no index shift"},
            "label bias",
        ),
    ],
)
def test_printed_fault_of_another_network_raises(build, known, foreign):
    for name in known:
        build({name})
    for name in (foreign, "lagg", "stray entry"):
        assert_refused(lambda name=name: build((name,)), "printed", repr(name), ", ".join(sorted(known)))
    assert_refused(lambda: build("lag"), "printed")


def test_printed_fault_of_another_variant_raises():
    assert_refused(lambda: theory.approximate(square, 1, 2, 2, "lean", printed={"lag"}), "variant")


def test_printed_faults_have_distinct_names():
    parts = (quantizer_faults, context_faults, memory_faults, MODULATED_FAULTS)
    names = [name for part in parts for name in part]
    assert len(names) == len(set(names))


# ---- functions ----------------------------------------------------------------------------------------------------


def test_function_that_is_not_equivariant_raises_with_a_witness():
    def first_token_differs(x):
        return x * np.array([[2.0] + [1.0] * (x.shape[1] - 1)])

    assert_refused(lambda: theory.approximate(first_token_differs, 1, 2, 3), "function", "X = [[", "[1, 0]")
    assert_refused(lambda: theory.moduli(first_token_differs, 1, 2, 0.5), "function", "X = [[", "[1, 0]")


def test_name_in_place_of_a_function_or_a_row_is_refused():
    assert_refused(lambda: theory.approximate("attn", 1, 2, 3), "function", "'attn'")
    assert_refused(lambda: theory.moduli("attn", 1, 2, 0.5), "function", "'attn'")
    net = theory.approximate(square, 1, 2, 2, "lean")
    assert_refused(lambda: net.trace([[0.1, 0.7]]).row("sequence"), "row", "'sequence'")


@pytest.mark.parametrize("size", [1e-300, 1e-10, 1.0, 1e250])
def test_equivariance_is_judged_relative_to_the_size_of_f(size):
    def skewed(x):
        return size * x * np.arange(x.shape[1])

    assert_refused(lambda: theory.approximate(skewed, 1, 2, 2, "modulated-minimal"), "function")
    net = theory.approximate(lambda x: size * np.sin(x + np.sum(x)), 1, 3, 2, "modulated-minimal")  # sums are rounded
    assert net.network.loops == 2 - 1 + 3 + 6 - 1


def test_equivariance_is_tested_at_representatives():
    """The function breaks the symmetry only at some grid points, where it is tabulated."""

    def wrong_on_the_grid(x):
        return x * np.arange(x.shape[1]) if np.all(x == np.round(x * 8) / 8) and x.max() > 0.5 else x

    assert_refused(lambda: theory.approximate(wrong_on_the_grid, 1, 2, 8, "modulated-minimal"), "function")


@pytest.mark.parametrize(
    "function",
    [lambda x: x[:, :1], lambda x: x / 0.0, lambda x: x + 0.5j, lambda x: 1e305 + 0 * x],
    ids=["shape", "infinite", "complex", "too large"],
)
def test_function_with_unusable_values_raises(function):
    with np.errstate(all="ignore"):
        assert_refused(lambda: theory.approximate(function, 1, 2, 3), "function")


def fails_late(x):
    if x.max() > 0.5:
        raise KeyError("no\nsuch line")
    return x


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (fails_late, "fails_late raised KeyError"),
        (lambda x: "text", "raised ValueError"),
        (lambda x: [[1.0], [1.0, 2.0]], "raised ValueError"),
    ],
)
def test_function_that_fails_raises_with_its_exception(function, cause):
    for use in (lambda: theory.approximate(function, 1, 2, 3), lambda: theory.moduli(function, 1, 2, 0.1)):
        error = assert_refused(use, "function", cause, "X = [[")
        assert error.__cause__ is not None


def test_function_may_change_its_input():
    def half(x):
        x /= 2
        return x

    assert theory.approximate(half, 1, 2, 2, "modulated-minimal")([[0.5, 0.0]])[0, 0] == Fraction(1, 4)


def test_load_finds_functions_by_name_and_in_files(tmp_path):
    assert theory.load("attn", 1, 2).name == "attn"
    file, with_dataclass = tmp_path / "mine.py", tmp_path / "wordy.py"
    file.write_text("def half(x):\n    return x / 2\nnumber = 3\n")
    with_dataclass.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Share:\n    part: float\ndef half(x):\n    return Share(0.5).part * x\n"
    )
    assert theory.load(f"{with_dataclass}:half", 1, 2).name == "half"
    assert "wordy" not in sys.modules
    mine = theory.load(f"{file}:half", 1, 2)
    assert mine.name == "half"
    assert mine.lipschitz is None
    assert theory.approximate(mine, 1, 2, 2, "modulated")([[0.5, 0.0]])[0, 0] == Fraction(1, 4)


def test_load_with_an_invalid_name_or_size_raises(tmp_path):
    (tmp_path / "mine.py").write_text("number = 3\n")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "notes.txt").write_text("def half(x):\n    return x / 2\n")
    for name, value in [
        ("attm", "did you mean 'attn'"),
        (f"{tmp_path}/mine.py:third", "'third'"),
        (f"{tmp_path}/mine.py:number", "int"),
        (f"{tmp_path}/none.py:f", "none.py"),
        (f"{tmp_path}/notes.txt:half", ".py"),
        (f"{tmp_path}/broken.py:f", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ]:
        assert_refused(lambda name=name: theory.load(name, 1, 2), "function", value)
    for name in theory.FUNCTIONS:
        assert_refused(lambda name=name: theory.load(name, 1, 0), "tokens")


# ---- norms and constants ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [float("nan"), 0.5, -1, -inf, "2", None, 2j, HUGE, *ARRAYS], ids=type_name)
def test_norm_that_is_not_at_least_one_raises(p):
    net = theory.approximate(square, 1, 2, 2, "lean")
    for use in (
        lambda: net.bound(p),
        lambda: theory.moduli(square, 1, 2, 0.1, p),
        lambda: theory.loops_for_error(0.5, "lean", 1, 2, same, p),
        lambda: report("attn", 1, 2, 2, p=p),
    ):
        assert_refused(use, "p")


@pytest.mark.parametrize("constant", [float("nan"), -1.0, inf, "2", HUGE, *ARRAYS], ids=type_name)
def test_lipschitz_constant_that_is_not_finite_and_positive_raises(constant):
    for use in (
        lambda: theory.approximate(square, 1, 2, 2, lipschitz=constant),
        lambda: theory.moduli(square, 1, 2, 0.1, lipschitz=constant),
        lambda: theory.Lipschitz(1.0, 1.0, constant),
    ):
        assert_refused(use, "lipschitz")


@pytest.mark.parametrize("wrong", ["2", None, 2j, HUGE, *ARRAYS], ids=type_name)
def test_number_of_a_wrong_type_raises(wrong):
    assert_refused(lambda: theory.moduli(square, 1, 2, wrong), "delta")
    assert_refused(lambda: theory.loops_for_error(wrong, "lean", 1, 2, same), "error")
    assert_refused(lambda: theory.loops_for_error(0.5, "lean", 1, 2, same, 2, wrong), "span")


@pytest.mark.parametrize("wrong", ARRAYS, ids=type_name)
def test_array_instead_of_an_integer_or_a_name_raises(wrong):
    assert_refused(lambda: theory.moduli(square, 1, 2, 0.1, seed=wrong), "seed")
    assert_refused(lambda: theory.loops_needed(5, 2, 3, 4, wrong), "dims_per_loop")
    assert_refused(lambda: theory.approximate(square, 1, 2, 2, wrong), "variant")
    assert_refused(lambda: theory.approximate(square, 1, 2, 2, representative=wrong), "representative")
    assert_refused(lambda: theory.memorize([1, 2], wrong), "memorizer")
    assert_refused(lambda: theory.load(wrong, 1, 2), "function")


def test_bound_of_a_constant_function_is_zero():
    bound = theory.approximate(lambda x: 0 * x + 0.25, 1, 2, 2, "modulated-minimal", lipschitz=0.0).bound()
    assert (bound.good, bound.measured_sup, bound.holds) == (0, 0, True)


@pytest.mark.parametrize("p", [1, 2, 3, 400, inf])
def test_errors_scale_with_very_large_and_very_small_values(p):
    """If |f| is scaled by a power of two, every error and every bound scales with it."""
    size = 2.0**996

    def errors(factor):
        net = theory.approximate(lambda x: factor * x, 1, 2, 3, "lean", lipschitz=factor)
        bound, found = net.bound(p), theory.moduli(lambda x: factor * x, 1, 2, 0.25, p)
        assert bound.holds
        return [bound.measured_sup, bound.measured_lp, bound.good, bound.total, found.token.lower, found.sequence.lower]

    large, plain, small = (errors(factor) for factor in (size, 1.0, 1 / size))
    assert [error / size for error in large] == pytest.approx(plain, rel=1e-9)
    assert [error * size for error in small] == pytest.approx(plain, rel=1e-9)
    assert min(plain) > 0


# ---- inputs of a network ------------------------------------------------------------------------------------------


def test_network_with_invalid_inputs_raises():
    net = theory.approximate(square, 1, 2, 3, "lean")
    for wrong in ([[0.5, 1.5]], [[0.5, float("nan")]], [[0.5], [0.1]], [["a", "b"]], [[0.5j, 0.5]]):
        assert_refused(lambda wrong=wrong: net(wrong), "inputs")
    assert_refused(lambda: net(np.zeros((0, 1, 2))), "inputs")
    assert_refused(lambda: net.trace(np.zeros((3, 1, 2))), "inputs")


@pytest.mark.parametrize("wrong", [None, "a", 0.5j, Fraction(3, 2), Decimal("nan")])
def test_entry_outside_the_unit_interval_raises(wrong):
    for net in (theory.approximate(square, 1, 2, 3, "lean"), approximate_any_length(square, 1, 2, 2)):
        inputs = np.empty((1, 2), dtype=object)
        inputs[0, :] = [wrong, 0.5]
        shown = "3/2" if isinstance(wrong, Fraction) else repr(wrong)
        assert_refused(lambda net=net, x=inputs: net(x), "inputs", shown)


def test_all_number_types_give_equal_outputs():
    net = theory.approximate(square, 1, 2, 4, "modulated-minimal")
    assert (net([[Decimal("0.25"), 1]]) == net([[0.25, 1]])).all()
    values = [net([[0.25, 1]]), net([[Fraction(1, 4), 1]]), net(np.array([[0.25, 1.0]])), net(np.float32([[0.25, 1]]))]
    assert all((value == values[0]).all() for value in values)
    assert all(isinstance(v, Fraction) for v in values[0].flat)
    assert net(np.array([[[0.25, 1.0]]])).shape == (1, 1, 2)


# ---- memorizers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels", [[1], [[1, 2], [3]], [[], []], [1.0, inf], [1, None], [1, "1"], [1, 1j], None, 3], ids=repr
)
def test_memorize_with_invalid_labels_raises(labels):
    assert_refused(lambda: theory.memorize(labels), "labels")


@pytest.mark.parametrize("wrong", [2, -1, None, 0.5, "0", Fraction(1, 2)])
def test_memory_with_an_invalid_id_raises(wrong):
    assert_refused(lambda: theory.memorize([1, 2])(wrong), "id")


def test_memorize_with_an_unknown_variant_raises_with_the_closest_name():
    assert_refused(lambda: theory.memorize([1, 2], "strem"), "memorizer", "'stream'")


def test_memorize_takes_labels_of_any_size():
    assert theory.memorize([10**400, 0], "modulated")(0) == [10**400]


@pytest.mark.parametrize("variant", theory.MEMORIZERS)
def test_numpy_integers_equal_python_integers(variant):
    labels = [1407017004252812, -98154965979940751, 85066527391435720, 55867043255085417]
    python, numpy = (theory.memorize(given, variant).table() for given in (labels, np.array(labels)))
    assert python == numpy
    net = theory.approximate(square, 1, 2, 4, "modulated-minimal")
    third = Fraction(np.int64(1), np.int64(3))
    assert (net(np.array([[third, Fraction(1, 2**70)]], dtype=object)) == net([[Fraction(1, 3), 0]])).all()


def test_memorize_returns_the_labels_in_all_variants():
    labels = [[0.25, 0.5], [0.75, 0.0], [0.5, 0.5], [0.0, 0.25]]
    for variant in theory.MEMORIZERS:
        room = 0.375 if variant == "bits" else 0
        for values, expected in zip(theory.memorize(labels, variant, bits=2).table(), labels, strict=True):
            assert all(abs(a - b) <= room for a, b in zip(values, expected, strict=True))


def test_theory_imports_neither_torch_nor_matplotlib():
    check = "import looped.theory, looped.theory.plots, sys; sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
