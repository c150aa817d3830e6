(** * Networks as matrices

    [matrices] writes a network down as the dense matrices that [LoopedNetwork.weights] of the Python package returns,
    with eta(t) as one row of numbers per loop; [of_matrices] reads such matrices as a network whose rows and hidden
    units are numbered.  The tests export networks of the package in this form, compare them with the networks of this
    folder entry by entry, and run them on given inputs, in both cases by computation inside Coq, over the
    rationals. *)
From Coq Require Import List ZArith QArith Arith Bool.
From Looped Require Import Network.
Import ListNotations.

Record weights (F : numbers) := Weights {
  encoding : list (list F * F);  (* per row: coefficients of the coordinates, constant *)
  attention_heads : list ((list F * list F) * (list F * list F));  (* per head: value, key, query, out *)
  first : list (list F * F);  (* per hidden unit *)
  second : list (list F * F);  (* per row *)
  decoding : list (list F * F);  (* per output *)
  modulation : list (list F)  (* per loop: eta of every row *)
}.
Arguments Weights {F}. Arguments encoding {F}. Arguments attention_heads {F}. Arguments first {F}.
Arguments second {F}. Arguments decoding {F}. Arguments modulation {F}.

Section Matrices.
Context {F : numbers}.

(** ** From a network to its matrices *)

Section Vectors.
Context {name : Type} (same : forall a b : name, {a = b} + {a <> b}) (names : list name).

Definition vector (f : form F name) : list F :=
  map (fun m => sum (map (fun term => if same (snd term) m then fst term else zero) (terms f))) names.
Definition affine (f : form F name) : list F * F := (vector f, const f).
End Vectors.

Definition matrices {row unit} (dim : nat) (net : network F row unit) : weights F :=
  let row_vector := vector (same_row net) (rows net) in
  {| encoding := map (fun r => affine Nat.eq_dec (seq 0 dim) (encode net r)) (rows net);
     attention_heads := map (fun h => ((row_vector (value h), row_vector (key h)),
                                       (row_vector (query h), row_vector (reads (into h))))) (heads net);
     first := map (fun u => affine (same_row net) (rows net) (argument net u)) (units net);
     second := map (fun r => affine (same_unit net) (units net) (update net r)) (rows net);
     decoding := map (affine (same_row net) (rows net)) (decode net);
     modulation := map (fun t => map (eta net t) (rows net)) (seq 0 (loops net)) |}.

(** ** From matrices to a network *)

Definition from_vector (v : list F * F) : form F nat :=
  Form (filter (fun term => negb (eqb (fst term) zero)) (combine (fst v) (seq 0 (length (fst v))))) (snd v).

Fixpoint first_nonzero (v : list F) : nat :=
  match v with [] => 0 | a :: rest => if eqb a zero then S (first_nonzero rest) else 0 end.

Definition of_matrices (w : weights F) : network F nat nat := {|
  rows := seq 0 (length (encoding w));
  Network.same_row := Nat.eq_dec;
  units := seq 0 (length (first w));
  Network.same_unit := Nat.eq_dec;
  encode := fun r => from_vector (nth r (encoding w) ([], zero));
  heads := map (fun h => Head (from_vector (fst (fst h), zero)) (from_vector (snd (fst h), zero))
                           (from_vector (fst (snd h), zero)) (first_nonzero (snd (snd h)))) (attention_heads w);
  argument := fun u => from_vector (nth u (first w) ([], zero));
  update := fun r => from_vector (nth r (second w) ([], zero));
  eta := fun t r => nth r (nth t (modulation w) []) zero;
  decode := map from_vector (decoding w);
  loops := length (modulation w)
|}.

(** ** Comparison *)

Fixpoint same_list {A} (same : A -> A -> bool) (l k : list A) : bool :=
  match l, k with
  | [], [] => true
  | a :: l', b :: k' => same a b && same_list same l' k'
  | _, _ => false
  end.

Definition same_vector : list F -> list F -> bool := same_list eqb.
Definition same_matrix : list (list F) -> list (list F) -> bool := same_list same_vector.
Definition same_affine (l k : list (list F * F)) : bool :=
  same_list (fun a b => same_vector (fst a) (fst b) && eqb (snd a) (snd b)) l k.

Definition same_weights (v w : weights F) : bool :=
  same_affine (encoding v) (encoding w) &&
  same_list (fun g h => same_vector (fst (fst g)) (fst (fst h)) && same_vector (snd (fst g)) (snd (fst h)) &&
                        same_vector (fst (snd g)) (fst (snd h)) && same_vector (snd (snd g)) (snd (snd h)))
    (attention_heads v) (attention_heads w) &&
  same_affine (first v) (first w) &&
  same_affine (second v) (second w) &&
  same_affine (decoding v) (decoding w) &&
  same_matrix (modulation v) (modulation w).
End Matrices.

(** ** The rationals *)

(** Every result is reduced to lowest terms, as Python's Fraction does. *)
Definition rationals : numbers :=
  Numbers Q inject_Z (fun a b => Qred (a + b)) (fun a b => Qred (a * b)) (fun a => Qred (/ a)) Qle_bool.
Canonical rationals.
