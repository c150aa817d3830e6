(** * Looped networks

    This file defines the object of all theorems: L2 o TF^r o L1 with TF = (id + eta(t) FF) o (id + Attn), as
    [LoopedNetwork] of the Python package does.  A network is data: affine forms over named rows (encoding, hidden
    units, updates, keys, queries, values, decoding), a time modulation eta(t) and a number of loops.  Attention is
    hardmax, uniform on ties.

    Everything is written once for an arbitrary type of numbers.  With the reals ([Reals.v]) it is what the theorems
    speak about; with the rationals ([Rationals.v]) the same definitions can be executed, and the tests compare them
    with the Python package. *)
From Coq Require Import List ZArith.
Import ListNotations.

(** ** Numbers *)

Record numbers := Numbers {
  number :> Type;
  of_Z : Z -> number;
  add : number -> number -> number;
  mul : number -> number -> number;
  inv : number -> number;
  leb : number -> number -> bool
}.
Arguments of_Z {n}. Arguments add {n}. Arguments mul {n}. Arguments inv {n}. Arguments leb {n}.

Declare Scope number_scope.
Delimit Scope number_scope with num.
Notation "a + b" := (add a b) : number_scope.
Notation "a * b" := (mul a b) : number_scope.
Notation "# k" := (of_Z (Z.of_nat k%nat)) (at level 1, format "# k") : number_scope.
Local Open Scope number_scope.

Section Arithmetic.
Context {F : numbers}.
Definition zero : F := of_Z 0.
Definition one : F := of_Z 1.
Definition opp (a : F) : F := of_Z (-1) * a.
Definition sub (a b : F) : F := a + opp b.
Definition eqb (a b : F) : bool := andb (leb a b) (leb b a).
Definition relu (a : F) : F := if leb zero a then a else zero.
Definition sum (l : list F) : F := fold_right add zero l.
Definition larger (a b : F) : F := if leb a b then b else a.
Definition maximum (l : list F) : F := match l with [] => zero | a :: rest => fold_right larger a rest end.
Definition dot (v w : list F) : F := sum (map (fun p => fst p * snd p) (combine v w)).

(** Hardmax: the weight is shared evenly by all scores that attain the maximum. *)
Definition hardmax (scores : list F) : list F :=
  let best := maximum scores in
  let winners := length (filter (fun s => eqb s best) scores) in
  map (fun s => if eqb s best then inv #winners else zero) scores.
End Arithmetic.
Notation "a - b" := (sub a b) : number_scope.

(** ** Affine forms: a constant plus a sparse sum of coefficients times named quantities *)

Record form (F : numbers) (name : Type) := Form { terms : list (F * name); const : F }.
Arguments Form {F name}. Arguments terms {F name}. Arguments const {F name}.

Definition eval {F : numbers} {name} (f : form F name) (v : name -> F) : F :=
  fold_right (fun term rest => fst term * v (snd term) + rest) (const f) (terms f).

Definition constant {F : numbers} {name} (c : F) : form F name := Form [] c.
Definition reads {F : numbers} {name} (r : name) : form F name := Form [(one, r)] zero.

(** ** Networks *)

(** One head of size 1: scores key_j * query_i; the weighted value is added to the row [into]. *)
Record head (F : numbers) (row : Type) := Head { value : form F row; key : form F row; query : form F row; into : row }.
Arguments Head {F row}. Arguments value {F row}. Arguments key {F row}. Arguments query {F row}. Arguments into {F row}.

Record network (F : numbers) (row unit : Type) := Network {
  rows : list row;
  same_row : forall a b : row, {a = b} + {a <> b};
  units : list unit;  (* the hidden units of FF *)
  same_unit : forall a b : unit, {a = b} + {a <> b};
  encode : row -> form F nat;  (* over the coordinates 0 .. d-1 of a token *)
  heads : list (head F row);
  argument : unit -> form F row;  (* W1 x + b1, unit by unit *)
  update : row -> form F unit;  (* W2 h + b2, row by row *)
  eta : nat -> row -> F;
  decode : list (form F row);
  loops : nat
}.
Arguments rows {F row unit}. Arguments same_row {F row unit}. Arguments units {F row unit}.
Arguments same_unit {F row unit}.
Arguments encode {F row unit}. Arguments heads {F row unit}. Arguments argument {F row unit}.
Arguments update {F row unit}. Arguments eta {F row unit}. Arguments decode {F row unit}. Arguments loops {F row unit}.

Section Semantics.
Context {F : numbers} {row unit : Type} (net : network F row unit).

(** A token is its column of the state: one number per row, in the order of [rows]. *)
Definition token := list F.

Fixpoint position (r : row) (l : list row) : nat :=
  match l with [] => 0 | s :: rest => if same_row net s r then 0 else S (position r rest) end.

Definition read (x : token) (r : row) : F := nth (position r (rows net)) x zero.

Definition start (x : list F) : token := map (fun r => eval (encode net r) (fun i => nth i x zero)) (rows net).

(** What token [x] hears from the tokens [s] through head [h]. *)
Definition attend (h : head F row) (s : list token) (x : token) : F :=
  dot (hardmax (map (fun y => eval (key h) (read y) * eval (query h) (read x)) s))
      (map (fun y => eval (value h) (read y)) s).

Definition heard (s : list token) (x : token) (r : row) : F :=
  sum (map (fun h => if same_row net (into h) r then attend h s x else zero) (heads net)).

Definition attention (s : list token) : list token :=
  map (fun x => map (fun r => read x r + heard s x r) (rows net)) s.

Definition hidden (x : token) (u : unit) : F := relu (eval (argument net u) (read x)).

Definition feed_forward (t : nat) (x : token) : token :=
  map (fun r => read x r + eta net t r * eval (update net r) (hidden x)) (rows net).

(** One loop, the loops, and the network. *)
Definition loop (t : nat) (s : list token) : list token := map (feed_forward t) (attention s).

Fixpoint run (t : nat) (s : list token) : list token :=
  match t with O => s | S t' => loop t' (run t' s) end.

Definition output (inputs : list (list F)) : list (list F) :=
  map (fun x => map (fun f => eval f (read x)) (decode net)) (run (loops net) (map start inputs)).
End Semantics.

(** ** The size of a network *)

Definition num_rows {F : numbers} {row unit} (net : network F row unit) := length (rows net).
Definition width {F : numbers} {row unit} (net : network F row unit) := length (units net).
Definition num_heads {F : numbers} {row unit} (net : network F row unit) := length (heads net).
