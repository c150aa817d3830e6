"""Networks as Coq terms: what tests/theory/test_proofs.py hands to Coq."""

from fractions import Fraction

PREAMBLE = """
From Coq Require Import List QArith.
From Looped Require Import Network Weights Ids Table Quantizer ContextMap Memorizer MinimalNetwork.
Import ListNotations.
Open Scope Q_scope.
Definition lookup (table : list ((list nat * nat) * list rationals)) (s : list nat) (z : nat) : list rationals :=
  match find (fun e => (same_list Nat.eqb (fst (fst e)) s && Nat.eqb (snd (fst e)) z)%bool) table with
  | Some e => snd e
  | None => []
  end.
"""


def number(value):
    value = Fraction(value)
    return f"(Qmake ({value.numerator}) {value.denominator})"


def listed(items):
    return "[" + "; ".join(items) + "]"


def vector(values):
    return listed(number(value) for value in values)


def matrix(rows):
    return listed(vector(row) for row in rows)


def naturals(values):
    return listed(f"{value}%nat" for value in values)


def affine(rows, constants):
    return listed(f"({vector(row)}, {number(constant)})" for row, constant in zip(rows, constants, strict=True))


def weights(network):
    """Return the term of type [weights rationals] for a LoopedNetwork: its dense matrices, and eta(t) for every row."""
    dense = network.weights()
    heads = zip(dense.value, dense.key, dense.query, dense.out, strict=True)
    modulation = [
        [network.modulation[name][t] if name in network.modulation else 1 for name in network.rows]
        for t in range(network.loops)
    ]
    parts = [
        affine(dense.encode, dense.encode_bias),
        listed(f"(({vector(v)}, {vector(k)}), ({vector(q)}, {vector(o)}))" for v, k, q, o in heads),
        affine(dense.first, dense.first_bias),
        affine(dense.second, dense.second_bias),
        affine(dense.decode, dense.decode_bias),
        matrix(modulation),
    ]
    return "(Weights " + " ".join(parts) + " : weights rationals)"


def label_table(labels):
    """Return the labels of every pair (descending sequence, member) as a list of Coq pairs."""
    return listed(
        f"(({naturals(sequence)}, {z}%nat), {vector(columns[sequence.index(z)])})"
        for sequence, columns in labels.items()
        for z in sorted(set(sequence))
    )


def example(name, statement):
    """Return a statement that Coq must prove by computing both of its sides."""
    return f"Example {name} : {statement}.\nProof. vm_compute. reflexivity. Qed.\n"
