"""A user's mistakes: refused in one line that says what was expected and what came."""

import re
import sys
from decimal import Decimal
from fractions import Fraction
from math import inf

import numpy as np
import pytest

from looped import InputError, theory
from looped.theory.constructions.any_length import approximate_any_length
from looped.theory.lemmas.contextual import FAULTS as context_faults
from looped.theory.lemmas.contextual import contextual_map
from looped.theory.lemmas.memorizer import FAULTS as memory_faults
from looped.theory.lemmas.memorizer import MODULATED_FAULTS, bit_extraction, bits_memorizer, modulated_memorizer
from looped.theory.lemmas.quantizer import FAULTS as quantizer_faults
from looped.theory.lemmas.quantizer import quantizer
from looped.theory.report import report


def square(x):
    return x**2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cells": 1}, "cells: expected at least 2"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"variant": "leen"}, "did you mean 'lean'"),
        ({"representative": "middle"}, "expected one of centre, corner"),
        ({"cells": 200, "tokens": 4}, r"cells: expected at most 4 GiB"),
    ],
)
def test_a_bad_request_is_refused_before_any_work(arguments, message):
    def untouched(x):
        raise AssertionError("the function must not be evaluated")

    with pytest.raises(InputError, match=message) as caught:
        theory.approximate(untouched, **({"dim": 1, "tokens": 2, "cells": 3} | arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "known", "foreign"),
    [
        (lambda p: quantizer(3, printed=p), "rectangle, start", "lag"),
        (lambda p: contextual_map(3, 2, printed=p), "bias, deselection", "second key"),
        (
            lambda p: contextual_map(3, 2, True, printed=p),
            "bias, deselection, own digit, second key, stray digit",
            "lag",
        ),
        (lambda p: bit_extraction((0, 1), p), "lag, signs, stray step", "stray digit"),
        (lambda p: bits_memorizer([0, 1], p), "first id, floor, lag, signs, stray step", "start"),
        (lambda p: modulated_memorizer([0, 1], p), "bound, label bias, label start", "bias"),
        (
            lambda p: theory.approximate(square, 1, 2, 2, printed=p),
            "bias, deselection, first drift, first id, floor, lag, no index shift, own digit, rectangle, second drift, "
            "second key, signs, start, stray digit, stray step",
            "label bias",
        ),
    ],
)
def test_a_printed_fault_that_a_network_does_not_have_is_refused(build, known, foreign):
    for name in known.split(", "):
        build({name})
    for name in (foreign, "lagg", "stray entry"):
        with pytest.raises(InputError, match=rf"^unknown printed fault '{name}'.*\(expected one of {known}\)$"):
            build((name,))
    with pytest.raises(InputError, match="printed: expected a set of fault names, got 'lag'"):
        build("lag")


def test_only_the_papers_block_has_printed_faults():
    with pytest.raises(InputError, match="variant: expected paper, .* got 'lean'"):
        theory.approximate(square, 1, 2, 2, "lean", printed={"lag"})


def test_every_printed_fault_has_a_name_of_its_own():
    parts = (quantizer_faults, context_faults, memory_faults, MODULATED_FAULTS)
    names = [name for part in parts for name in part]
    assert len(names) == len(set(names))


def test_a_function_that_is_not_equivariant_is_shown_with_its_witness():
    def first_token_differs(x):
        return x * np.array([[2.0] + [1.0] * (x.shape[1] - 1)])

    with pytest.raises(InputError, match=r"not permutation equivariant: at X = \[\[.*order \[1, 0\]"):
        theory.approximate(first_token_differs, 1, 2, 3)


@pytest.mark.parametrize("size", [1e-300, 1e-10, 1.0, 1e250])
def test_equivariance_is_judged_relative_to_the_size_of_f(size):
    with pytest.raises(InputError, match="not permutation equivariant"):
        theory.approximate(lambda x: size * x * np.arange(x.shape[1]), 1, 2, 2, "modulated-minimal")
    net = theory.approximate(lambda x: size * np.sin(x + np.sum(x)), 1, 3, 2, "modulated-minimal")  # sums are rounded
    assert net.network.loops == 2 - 1 + 3 + 6 - 1


def test_equivariance_is_tested_at_representatives():
    """A function that breaks the symmetry at some grid points only, where it is tabulated."""

    def wrong_on_the_grid(x):
        return x * np.arange(x.shape[1]) if np.all(x == np.round(x * 8) / 8) and x.max() > 0.5 else x

    with pytest.raises(InputError, match="not permutation equivariant"):
        theory.approximate(wrong_on_the_grid, 1, 2, 8, "modulated-minimal")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:, :1], r"shape \(1, 2\), got \(1, 1\)"),
        (lambda x: x / 0.0 if np.errstate(divide="ignore") else x, "finite"),
    ],
)
def test_a_function_with_bad_values_is_refused(function, message):
    with np.errstate(all="ignore"), pytest.raises(InputError, match=message):
        theory.approximate(function, 1, 2, 3)


def fails_late(x):
    if x.max() > 0.5:
        raise KeyError("no\nsuch line")
    return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails_late, r"^the function fails_late raised KeyError: 'no.*such line' at X = \[\["),
        (lambda x: "text", "raised ValueError: could not convert string to float: 'text' at X"),
        (lambda x: [[1.0], [1.0, 2.0]], "raised ValueError: setting an array element"),
    ],
)
def test_a_function_that_raises_is_named_with_what_it_raised(function, message):
    for use in (
        lambda: theory.approximate(function, 1, 2, 3),
        lambda: theory.moduli(function, 1, 2, 0.1),
    ):
        with pytest.raises(InputError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize("p", [float("nan"), 0.5, -1, -inf])
def test_a_norm_is_at_least_one(p):
    net = theory.approximate(square, 1, 2, 2, "lean")
    for use in (
        lambda: net.bound(p),
        lambda: theory.moduli(square, 1, 2, 0.1, p),
        lambda: report("attn", 1, 2, 2, p=p),
    ):
        with pytest.raises(InputError, match=rf"expected p >= 1 \(inf too\), got {p}"):
            use()


@pytest.mark.parametrize("constant", [float("nan"), -1.0, inf])
def test_a_lipschitz_constant_is_finite_and_not_negative(constant):
    for given in (lambda: constant, lambda: theory.Lipschitz(1.0, 1.0, constant)):
        with pytest.raises(InputError, match=rf"finite Lipschitz constant >= 0, got {constant}"):
            theory.approximate(square, 1, 2, 2, lipschitz=given())


def test_a_constant_function_has_the_constant_zero():
    bound = theory.approximate(lambda x: 0 * x + 0.25, 1, 2, 2, "modulated-minimal", lipschitz=0.0).bound()
    assert (bound.good, bound.measured_sup, bound.holds) == (0, 0, True)


def test_inputs_are_checked():
    net = theory.approximate(square, 1, 2, 3, "lean")
    with pytest.raises(InputError, match=r"entries in \[0, 1\], got 1.5"):
        net([[0.5, 1.5]])
    with pytest.raises(InputError, match=r"got nan"):
        net([[0.5, float("nan")]])
    with pytest.raises(InputError, match=r"inputs: expected shape \(1, 2\) .*got \(2, 1\)"):
        net([[0.5], [0.1]])
    with pytest.raises(InputError, match="numbers or Fractions"):
        net([["a", "b"]])
    with pytest.raises(InputError, match="inputs: expected shape"):
        net(np.zeros((0, 1, 2)))
    with pytest.raises(InputError, match="one input"):
        net.trace(np.zeros((3, 1, 2)))


@pytest.mark.parametrize(
    ("wrong", "shown"), [(None, "None"), ("a", "'a'"), (0.5j, "0.5j"), (Fraction(3, 2), "3/2"), (Decimal("nan"), "Dec")]
)
def test_an_entry_that_is_no_number_of_the_unit_interval_is_shown(wrong, shown):
    for net in (theory.approximate(square, 1, 2, 3, "lean"), approximate_any_length(square, 1, 2, 2)):
        given = np.empty((1, 2), dtype=object)
        given[0, :] = [wrong, 0.5]
        with pytest.raises(InputError, match=rf"^expected entries in \[0, 1\], got {shown}"):
            net(given)
    with pytest.raises(InputError, match=r"entries in \[0, 1\], got 0.5j"):
        theory.approximate(square, 1, 2, 3, "lean")(np.array([[0.5j, 0.5]]))


@pytest.mark.parametrize("name", ["dim", "tokens", "cells", "bits"])
@pytest.mark.parametrize("wrong", [4.0, "4", None, Fraction(4)])
def test_a_count_is_a_whole_number(name, wrong):
    arguments = {"dim": 1, "tokens": 2, "cells": 2, "bits": 3} | {name: wrong}
    for use in (
        lambda: theory.approximate(square, variant="lean-stream", **arguments),
        lambda: approximate_any_length(square, arguments["dim"], arguments["tokens"], arguments["cells"]),
        lambda: theory.moduli(square, arguments["dim"], arguments["tokens"], 0.1),
        lambda: theory.load("mean", arguments["dim"], arguments["tokens"]),
    )[: {"dim": 4, "tokens": 4, "cells": 2, "bits": 1}[name]]:
        with pytest.raises(InputError, match=r"^\w+ must be a whole number, got " + re.escape(f"{wrong!r}")):
            use()
    with pytest.raises(InputError, match=r"bits must be a whole number, got 2\.0"):
        theory.memorize([0, 1], "stream", 2.0)


def test_numpys_counts_do_not_overflow():
    """2 * 2^(9 * 7 + 7) labels: more than 64 bits can count, which numpy would count all the same."""
    with pytest.raises(InputError, match=f"got {2 * 2 ** (7 * 10):,} labels"):
        theory.approximate(square, np.int64(7), np.int64(9), np.int64(2))
    with pytest.raises(InputError, match=f"^cells: expected at most .* got {2**70:,}"):
        approximate_any_length(square, np.int64(70), np.int64(1), np.int64(2))
    for variant in theory.MEMORIZERS:
        own, theirs = (theory.memorize([0.25, 0.5, 0.75], variant, bits).table() for bits in (70, np.int8(70)))
        assert theirs == own


def test_a_sharpness_is_a_number_above_zero():
    nets = [theory.approximate(square, 1, 2, 3, "lean", sharpness=given) for given in (9, 9.0, Fraction(9))]
    x = np.array([[[0.4, 0.1]], [[0.9, 0.5]]])
    assert (nets[0](x) == nets[1](x)).all()
    assert (nets[0](x) == nets[2](x)).all()
    for wrong, message in [
        ("9", "number as sharpness, got '9'"),
        (float("nan"), "number as sharpness, got nan"),
        (0, "sharpness: expected a number > 0, got 0"),
        (-1.5, "sharpness: expected a number > 0, got -3/2"),
    ]:
        with pytest.raises(InputError, match=message):
            theory.approximate(square, 1, 2, 3, "lean", sharpness=wrong)


def test_norms_and_constants_are_numbers():
    for wrong in ("2", None, 2j):
        with pytest.raises(InputError, match=rf"expected p >= 1 \(inf too\), got {wrong}"):
            theory.moduli(square, 1, 2, 0.1, wrong)
        with pytest.raises(InputError, match="expected delta > 0"):
            theory.moduli(square, 1, 2, wrong)
    with pytest.raises(InputError, match="finite Lipschitz constant >= 0, got 2"):
        theory.approximate(square, 1, 2, 2, lipschitz="2")


def test_too_many_bits_are_named():
    with pytest.raises(InputError, match=r"cells=4, bits=1,000,000\. Take fewer cells or bits\.$"):
        theory.approximate(square, 1, 2, 4, "lean-stream", bits=1_000_000)
    with pytest.raises(InputError, match=r"cells=200\. Take fewer cells\.$"):
        theory.approximate(square, 1, 4, 200, "paper", bits=1_000_000)


@pytest.mark.parametrize("p", [1, 2, 3, 400, inf])
def test_errors_of_large_and_of_small_values_are_numbers_too(p):
    """|f| scaled by a power of two scales every error and every bound by it."""
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


def test_a_function_beyond_what_can_be_subtracted_is_refused():
    with pytest.raises(InputError, match=r"must stay below 1\.1e\+301, got .*1e\+305"):
        theory.approximate(lambda x: 1e305 + 0 * x, 1, 2, 2)


def test_all_kinds_of_numbers_are_the_same_number():
    net = theory.approximate(square, 1, 2, 4, "modulated-minimal")
    assert (net([[Decimal("0.25"), 1]]) == net([[0.25, 1]])).all()
    values = [net([[0.25, 1]]), net([[Fraction(1, 4), 1]]), net(np.array([[0.25, 1.0]])), net(np.float32([[0.25, 1]]))]
    assert all((value == values[0]).all() for value in values)
    assert all(isinstance(v, Fraction) for v in values[0].flat)
    assert net(np.array([[[0.25, 1.0]]])).shape == (1, 1, 2)


def test_memorize_checks_its_labels():
    with pytest.raises(InputError, match="at least two labels"):
        theory.memorize([1])
    with pytest.raises(InputError, match="one length"):
        theory.memorize([[1, 2], [3]])
    with pytest.raises(InputError, match=r"one length >= 1, got lengths \[0, 0\]"):
        theory.memorize([[], []])
    with pytest.raises(InputError, match="finite number"):
        theory.memorize([1.0, float("inf")])
    with pytest.raises(InputError, match="did you mean 'stream'"):
        theory.memorize([1, 2], "strem")
    with pytest.raises(InputError, match=r"id in 0\.\.1, got 2"):
        theory.memorize([1, 2])(2)
    for wrong in (None, 0.5, "0", Fraction(1, 2)):
        with pytest.raises(InputError, match=r"id in 0\.\.1, got "):
            theory.memorize([1, 2])(wrong)
    for wrong in (None, 3):
        with pytest.raises(InputError, match=f"expected a list of labels, got {wrong}"):
            theory.memorize(wrong)
    for wrong in (None, "1", 1j):
        with pytest.raises(InputError, match="finite number as label"):
            theory.memorize([1, wrong])
    assert theory.memorize([10**400, 0], "modulated")(0) == [10**400]


@pytest.mark.parametrize("variant", theory.MEMORIZERS)
def test_numpys_integers_are_pythons(variant):
    labels = [1407017004252812, -98154965979940751, 85066527391435720, 55867043255085417]
    own, theirs = (theory.memorize(given, variant).table() for given in (labels, np.array(labels)))
    assert own == theirs
    net = theory.approximate(square, 1, 2, 4, "modulated-minimal")
    third = Fraction(np.int64(1), np.int64(3))
    assert (net(np.array([[third, Fraction(1, 2**70)]], dtype=object)) == net([[Fraction(1, 3), 0]])).all()


def test_a_function_may_use_its_input_up_but_not_leave_the_real_numbers():
    def half(x):
        x /= 2
        return x

    assert theory.approximate(half, 1, 2, 2, "modulated-minimal")([[0.5, 0.0]])[0, 0] == Fraction(1, 4)
    with pytest.raises(InputError, match="must return real numbers"):
        theory.approximate(lambda x: x + 0.5j, 1, 2, 2)


def test_memorize_in_all_variants():
    labels = [[0.25, 0.5], [0.75, 0.0], [0.5, 0.5], [0.0, 0.25]]
    for variant in theory.MEMORIZERS:
        table = theory.memorize(labels, variant, bits=2).table()
        room = 0.375 if variant == "bits" else 0
        assert all(
            abs(a - b) <= room for came, y in zip(table, labels, strict=True) for a, b in zip(came, y, strict=True)
        )


def test_functions_by_name_and_from_a_file(tmp_path):
    assert theory.load("attn", 1, 2).name == "attn"
    file = tmp_path / "mine.py"
    file.write_text("def half(x):\n    return x / 2\nnumber = 3\n")
    wordy = tmp_path / "wordy.py"
    wordy.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Share:\n    part: float\ndef half(x):\n    return Share(0.5).part * x\n"
    )
    assert theory.load(f"{wordy}:half", 1, 2).name == "half"
    assert "wordy" not in sys.modules
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name\n")
    notes = tmp_path / "notes.txt"
    notes.write_text("def half(x):\n    return x / 2\n")
    mine = theory.load(f"{file}:half", 1, 2)
    assert mine.name == "half"
    assert mine.lipschitz is None
    assert theory.approximate(mine, 1, 2, 2, "modulated")([[0.5, 0.0]])[0, 0] == Fraction(1, 4)
    for name, message in [
        ("attm", "did you mean 'attn'"),
        (f"{file}:third", "expected a function 'third'"),
        (f"{file}:number", "found int"),
        (f"{tmp_path}/none.py:f", "no file"),
        (f"{notes}:half", "does not end in .py"),
        (f"{broken}:f", "broken.py raised ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ]:
        with pytest.raises(InputError, match=message):
            theory.load(name, 1, 2)
    for name in theory.FUNCTIONS:
        with pytest.raises(InputError, match="tokens must be at least 1, got 0"):
            theory.load(name, 1, 0)


def test_theory_needs_neither_torch_nor_matplotlib():
    import subprocess
    import sys

    check = "import looped.theory, looped.theory.plots, sys; sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
