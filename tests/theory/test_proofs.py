"""The Coq proofs: they check, they rest on the axioms of the reals alone, and they speak of the package's own networks.

Coq computes both comparisons: `same_weights` holds a network of the package against the one that the theorem is about,
matrix entry by matrix entry, and `output` runs exported matrices with the definition that the theorems use.
"""

import fcntl
import re
import shutil
import subprocess
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from looped import theory
from looped.theory.grid import Grid, multiset_id, paper_id
from looped.theory.lemmas.contextual import contextual_map
from looped.theory.lemmas.quantizer import quantizer, trifling
from tests.theory import coq
from tests.theory.oracle import all_cells, points, rough

pytestmark = pytest.mark.skipif(shutil.which("coqc") is None, reason="coqc is missing: apt-get install coq")

FOLDER = Path(__file__).resolve().parents[2] / "proofs"
AXIOMS_OF_THE_REALS = {
    "ClassicalDedekindReals.sig_forall_dec",
    "ClassicalDedekindReals.sig_not_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
}
LABELS = [[2, 0], [-3, 1], [Fraction(5, 3), 0], [-1, Fraction(-1, 7)]]  # the second coordinate has zeros: it is shifted


def shell(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def coqc(tmp_path_factory):
    """Check all proofs, once for all test processes, and return a function that hands Coq one more file."""
    folder = tmp_path_factory.mktemp("coq")
    with open(FOLDER / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shell("make", "-C", str(FOLDER), "-j2")

    def check(name, text):
        source = folder / f"{name}.v"
        source.write_text(text)
        return shell("coqc", "-q", "-Q", str(FOLDER), "Looped", str(source))

    return check


@pytest.fixture
def accepts(coqc):
    """Return a function that asks Coq to prove statements by computation."""
    return lambda name, examples: coqc(name, coq.PREAMBLE + "".join(examples))


def same(builder, dim, network, verdict="true"):
    return f"same_weights (matrices {dim} ({builder})) {coq.weights(network)} = {verdict}"


def runs(network, inputs):
    """The exported matrices return in Coq what the network's own definition returns in Python."""
    computed = [f"same_matrix (output (of_matrices net) {coq.matrix(x)}) {coq.matrix(network(x))}" for x in inputs]
    return f"(let net := {coq.weights(network)} in {coq.listed(computed)}) = {coq.listed(['true'] * len(computed))}"


def test_sources_leave_no_proof_open():
    for source in FOLDER.glob("*.v"):
        text = re.sub(r"\(\*.*?\*\)", "", source.read_text(), flags=re.S)
        assert not re.search(r"\b(Admitted|admit|Axiom|Conjecture|Abort|bypass_check)\b", text), source.name


def test_theorems_assume_the_axioms_of_the_reals_only(coqc):
    text = (FOLDER / "Assumptions.v").read_text()
    theorems = re.findall(r"^Print Assumptions ([\w.]+)\.$", text, re.M)
    reports = re.split(r"^(?=Axioms:|Closed under the global context)", coqc("assumed", text), flags=re.M)[1:]
    assumed = {
        theorem: set(re.findall(r"^([A-Z]\w*\.[\w.]+)", report, re.M))
        for theorem, report in zip(theorems, reports, strict=True)
    }
    assert all(axioms <= AXIOMS_OF_THE_REALS for axioms in assumed.values()), assumed
    assert assumed["multiset_id_injective"] == assumed["table_length"] == assumed["gap"] == set()
    assert assumed["block_represents"]  # the report is read at all


@pytest.mark.parametrize(("cells", "dim"), [(2, 1), (5, 1), (3, 2)])
def test_quantizer_is_the_one_of_the_theorem(accepts, cells, dim):
    slope = coq.number(1 / trifling(cells))
    faulty = quantizer(cells, dim, printed={"rectangle"})
    accepts(
        f"quantizer_{cells}_{dim}",
        [
            coq.example(
                "network", same(f"quantizer (F := rationals) {dim} {cells} {slope}", dim, quantizer(cells, dim))
            ),
            coq.example("fault", same(f"quantizer (F := rationals) {dim} {cells} {slope}", dim, faulty, "false")),
            coq.example("values", runs(quantizer(cells, dim), [[[Fraction(3, 7)] * dim], [[Fraction(1, 2)] * dim]])),
        ],
    )


@pytest.mark.parametrize(("base", "tokens"), [(2, 2), (7, 3)])
def test_contextual_map_is_the_one_of_the_theorem(accepts, base, tokens):
    network = contextual_map(base, tokens)
    sequences = list(product(range(base), repeat=tokens))[::5]  # with equal tokens
    accepts(
        f"contextual_map_{base}_{tokens}",
        [
            coq.example("network", same(f"contextual_map (F := rationals) {base} {tokens}", 1, network)),
            coq.example("values", runs(network, [[[z] for z in sequence] for sequence in sequences])),
        ],
    )


@pytest.mark.parametrize(
    ("variant", "builder"),
    [("modulated", "modulated_memorizer"), ("modulated-minimal", "Minimal.minimal_memorizer")],
)
def test_memorizer_is_the_one_of_the_theorem(accepts, variant, builder):
    network = theory.memorize(LABELS, variant).network
    labels = coq.matrix(LABELS)
    expected = coq.matrix(LABELS)
    inputs = coq.matrix([[k] for k in range(len(LABELS))])
    accepts(
        f"memorizer_{builder.lower().replace('.', '_')}",
        [
            coq.example("network", same(f"{builder} (F := rationals) 2 {labels}", 1, network)),
            coq.example("values", runs(network, [[[k]] for k in range(len(LABELS))])),
            coq.example(
                "labels", f"same_matrix (output ({builder} (F := rationals) 2 {labels}) {inputs}) {expected} = true"
            ),
        ],
    )


@pytest.mark.parametrize(("dim", "tokens", "cells"), [(1, 1, 3), (1, 2, 3), (1, 3, 2), (2, 2, 2)])
def test_minimal_block_is_the_one_of_the_theorem(accepts, dim, tokens, cells):
    net = theory.approximate(rough, dim, tokens, cells, "modulated-minimal")
    base, slope = cells**dim, coq.number(1 / net.epsilon)
    table = f"(table {base} {tokens} (lookup {coq.label_table(net.labels)}))"
    block = f"modulated_minimal (F := rationals) {dim} {tokens} {cells} {slope} {table}"
    accepts(f"minimal_{dim}_{tokens}_{cells}", [coq.example("network", same(block, dim, net.network))])


@pytest.mark.parametrize(("dim", "tokens", "cells"), [(1, 2, 3), (1, 3, 2), (2, 2, 2)])
def test_ids_are_those_of_the_package(accepts, dim, tokens, cells):
    grid = Grid(dim, tokens, cells)
    pairs = [(s, z) for s in grid.sequences(duplicates=True) for z in sorted(set(s))]
    both = "(multiset_id B N (fst e) (snd e), paper_id d N n (fst e) (snd e))"
    terms = coq.listed(f"({coq.naturals(s)}, {z}%nat)" for s, z in pairs)
    numbers = coq.listed(f"({multiset_id(grid, s, z)}%nat, {paper_id(grid, s, z)}%nat)" for s, z in pairs)
    coordinates = coq.listed(coq.naturals(grid.coordinates(z)) for z in range(grid.base))
    size = f"let d := {dim}%nat in let N := {tokens}%nat in let n := {cells}%nat in let B := {grid.base}%nat in"
    accepts(
        f"ids_{dim}_{tokens}_{cells}",
        [
            "From Looped Require Import JumpBound.\n",
            coq.example("numbers", f"({size} map (fun e => {both}) {terms}) = {numbers}"),
            coq.example("cells", f"({size} map (fun z => map (coordinate d n z) (seq 0 d)) (seq 0 B)) = {coordinates}"),
        ],
    )


@pytest.mark.parametrize("variant", theory.VARIANTS)
def test_exported_block_returns_in_coq_what_python_returns(accepts, variant):
    net = theory.approximate(rough, 1, 2, 2, variant, bits=2)
    inside = points(all_cells(1, 2, 2, duplicates=True), 1, 2, Fraction(1, 3))
    trifling_point = [[[Fraction(1, 2) - net.epsilon / 3, Fraction(1, 5)]]]  # no theorem, but still the same numbers
    columns = [np.array(x, dtype=object).T.tolist() for x in inside + trifling_point]
    accepts(f"block_{variant.replace('-', '_')}", [coq.example("values", runs(net.network, columns))])
