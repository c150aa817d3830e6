(** * Lemma "quantize", corrected

    The network of [quantizer.quantizer] in the Python package: 5d rows, width 7d, n-1 loops.  Per coordinate the rows
    are (k x, k^2, k, x, sum of h_i(x) for i < k), and one loop adds h_k(x) = k rect_k(x), where rect_k is 1 on the
    k-th cell and 0 on every other.

    The theorem [quantizer_exact]: for all d, all n >= 1, every epsilon = 1/slope > 0 and all real inputs with entries
    in [b/n, (b+1)/n - epsilon], the network returns the cell numbers b, exactly. *)
From Coq Require Import List ZArith Reals Lra Lia Arith.
From Looped Require Import Network Reals.
Import ListNotations.

(** ** The network *)

Inductive row := KX (i : nat) | KK (i : nat) | K (i : nat) | X (i : nat) | Cell (i : nat).
Inductive unit := AtX (i : nat) | Twice (i : nat) | Rise (i : nat) | Risen (i : nat) | Fall (i : nat) | Fallen (i : nat)
  | AtK (i : nat).

Definition same_row (a b : row) : {a = b} + {a <> b}.
Proof. decide equality; apply Nat.eq_dec. Defined.

Definition same_unit (a b : unit) : {a = b} + {a <> b}.
Proof. decide equality; apply Nat.eq_dec. Defined.

Definition coordinate_rows (i : nat) : list row := [KX i; KK i; K i; X i; Cell i].
Definition coordinate_units (i : nat) : list unit := [AtX i; Twice i; Rise i; Risen i; Fall i; Fallen i; AtK i].

Section Definition_of_the_quantizer.
Context {F : numbers}.
Variables (d n : nat) (slope : F).
Local Open Scope number_scope.
Let delta : F := inv #n.

Definition quantizer_argument (u : unit) : form F row :=
  match u with
  | AtX i => reads (X i)
  | Twice i => Form [(of_Z 2, K i)] zero
  | Rise i => Form [(slope, KX i); (opp (slope * delta), KK i); (one, K i)] zero
  | Risen i => Form [(slope, KX i); (opp (slope * delta), KK i)] zero
  | Fall i => Form [(slope * delta, K i); (opp slope, KX i); (slope * delta, KK i)] zero
  | Fallen i => Form [(slope * delta - one, K i); (opp slope, KX i); (slope * delta, KK i)] zero
  | AtK i => reads (K i)
  end.

Definition quantizer_update (r : row) : form F unit :=
  match r with
  | KX i => reads (AtX i)
  | KK i => Form [(one, Twice i)] one
  | K i => constant one
  | X i => constant zero
  | Cell i => Form [(one, Rise i); (opp one, Risen i); (one, Fall i); (opp one, Fallen i); (opp one, AtK i)] zero
  end.

Definition quantizer_encode (r : row) : form F nat :=
  match r with
  | KX i | X i => reads i
  | KK _ | K _ => constant one
  | Cell _ => constant zero
  end.

Definition quantizer : network F row unit := {|
  rows := flat_map coordinate_rows (seq 0 d);
  Network.same_row := same_row;
  units := flat_map coordinate_units (seq 0 d);
  Network.same_unit := same_unit;
  encode := quantizer_encode;
  heads := [];
  argument := quantizer_argument;
  update := quantizer_update;
  eta := fun _ _ => one;
  decode := map (fun i => reads (Cell i)) (seq 0 d);
  loops := (n - 1)%nat
|}.

Lemma quantizer_size : (num_rows quantizer = 5 * d /\ width quantizer = 7 * d)%nat.
Proof.
  unfold num_rows, width. cbn [rows units quantizer]. rewrite <- (seq_length d 0) at 2 4.
  induction (seq 0 d) as [|i l [I J]]; cbn [flat_map coordinate_rows coordinate_units app length]; [easy|]. lia.
Qed.
End Definition_of_the_quantizer.

(** ** The cells *)

(** Every coordinate of x lies in its cell and not in the trifling interval of length epsilon at its right end. *)
Definition inside (d n : nat) (slope : R) (x : list R) (cells : list nat) : Prop :=
  length cells = d /\ forall i, i < d ->
  nth i cells 0 < n /\
  (INR (nth i cells 0%nat) * / INR n <= nth i x 0 <= (INR (nth i cells 0%nat) + 1) * / INR n - / slope)%R.

(** ** The theorem *)

Section Exactness.
Local Open Scope R_scope.
Variables (d n : nat) (slope : R).
Hypothesis n_pos : (1 <= n)%nat.
Hypothesis slope_pos : 0 < slope.
Let net := @quantizer reals d n slope.

(** h_k is k on the k-th cell and 0 on the others: [left] and [right] are k times the distances to its two ends. *)
Lemma rectangle : forall x b k, (1 <= k)%nat ->
  INR b * / INR n <= x <= (INR b + 1) * / INR n - / slope ->
  let left := slope * (INR k * x - / INR n * (INR k * INR k)) in
  let right := INR k * (slope * / INR n) - left in
  @relu reals (left + INR k) - @relu reals left + @relu reals right - @relu reals (right - INR k) - INR k =
  if Nat.eq_dec k b then INR k else 0.
Proof.
  intros x b k Hk [Hlo Hhi] left right.
  assert (k1 : 1 <= INR k) by (apply (le_INR 1); assumption).
  assert (dpos : 0 < / INR n) by (apply Rinv_0_lt_compat, lt_0_INR; lia).
  set (delta := / INR n) in *. set (kr := INR k) in *.
  assert (far : forall y, / slope <= y -> kr <= kr * (slope * y)).
  { intros y Hy. rewrite <- (Rmult_1_r kr) at 1. apply Rmult_le_compat_l; [lra|].
    replace 1 with (slope * / slope) by (field; lra). apply Rmult_le_compat_l; lra. }
  assert (El : left = kr * (slope * (x - kr * delta))) by (unfold left; ring).
  assert (Er : right = kr * (slope * ((kr + 1) * delta - x))) by (unfold right; rewrite El; ring).
  destruct (Nat.eq_dec k b) as [E|E]; [|destruct (Nat.lt_ge_cases k b) as [L|L]].
  - (* x lies in the cell *)
    subst b. fold kr in Hlo, Hhi.
    assert (0 <= left) by (rewrite El; repeat apply Rmult_le_pos; lra).
    assert (kr <= right) by (rewrite Er; apply far; lra).
    rewrite (relu_pos left), (relu_pos (left + kr)), (relu_pos right), (relu_pos (right - kr)) by lra. lra.
  - (* x lies to the right of the cell *)
    assert (kr + 1 <= INR b) by (unfold kr; rewrite <- S_INR; apply le_INR; lia).
    assert ((kr + 1) * delta <= INR b * delta) by (apply Rmult_le_compat_r; lra).
    assert (0 <= left) by (rewrite El; repeat apply Rmult_le_pos; lra).
    assert (right <= 0).
    { rewrite Er. assert (0 <= kr * (slope * (x - (kr + 1) * delta))) by (repeat apply Rmult_le_pos; lra). lra. }
    rewrite (relu_pos left), (relu_pos (left + kr)), (relu_neg right), (relu_neg (right - kr)) by lra. lra.
  - (* x lies to the left of the cell *)
    assert (INR b + 1 <= kr) by (unfold kr; rewrite <- S_INR; apply le_INR; lia).
    assert ((INR b + 1) * delta <= kr * delta) by (apply Rmult_le_compat_r; lra).
    assert (left + kr <= 0) by (pose proof (far (kr * delta - x) ltac:(lra)); rewrite El; lra).
    assert (kr <= right) by (rewrite Er; apply far; lra).
    rewrite (relu_neg left), (relu_neg (left + kr)), (relu_pos right), (relu_pos (right - kr)) by lra. lra.
Qed.

(** The state after t loops, in loop k = t + 1. *)
Definition state (t : nat) (a : list R * list nat) (r : row) : R :=
  match r with
  | KX i => INR (S t) * nth i (fst a) 0
  | KK i => INR (S t) * INR (S t)
  | K i => INR (S t)
  | X i => nth i (fst a) 0
  | Cell i => if le_dec (nth i (snd a) 0%nat) t then INR (nth i (snd a) 0%nat) else 0
  end.

Definition coordinate (r : row) : nat := match r with KX i | KK i | K i | X i | Cell i => i end.

Lemma in_rows : forall r, In r (rows net) <-> (coordinate r < d)%nat.
Proof.
  intros r. cbn [rows net quantizer]. rewrite in_flat_map. split.
  - intros [i [Hi H]]. apply in_seq in Hi. cbn in H.
    destruct H as [<-|[<-|[<-|[<-|[<-|[]]]]]]; cbn; lia.
  - intros H. exists (coordinate r). split; [apply in_seq; lia|]. destruct r; cbn; tauto.
Qed.

Lemma invariant : forall tokens t, (forall a, In a tokens -> inside d n slope (fst a) (snd a)) ->
  run net t (map (fun a => map (state 0 a) (rows net)) tokens) = map (fun a => map (state t a) (rows net)) tokens.
Proof.
  intros tokens t Hin. induction t as [|t I]; [reflexivity|]. cbn [run]. rewrite I.
  apply loop_without_heads; [reflexivity|]. intros a r Ha Hr. apply in_rows in Hr.
  assert (Rd : forall q, coordinate q = coordinate r ->
      read net (map (state t a) (rows net)) q = state t a q)
    by (intros q E; apply read_map, in_rows; now rewrite E).
  destruct (Hin a Ha) as [_ H]. destruct (H _ Hr) as [_ Hx].
  assert (Xpos : 0 <= nth (coordinate r) (fst a) 0).
  { assert (0 <= INR (nth (coordinate r) (snd a) 0%nat) * / INR n); [|lra].
    apply Rmult_le_pos; [apply pos_INR|]. left. apply Rinv_0_lt_compat, lt_0_INR. lia. }
  assert (Kpos : 1 <= INR (S t)) by (apply (le_INR 1); lia).
  cbn [update net quantizer eta].
  destruct r as [i|i|i|i|i]; cbn [coordinate] in *; cbn [quantizer_update state]; unfold eval, hidden, constant, reads;
    cbn [argument net quantizer]; cbn [quantizer_argument fold_right terms const fst snd];
    unfold eval, reads; cbn [fold_right terms const fst snd];
    rewrite ?Rd by reflexivity; cbn [state]; rewrite ?of_nat_INR; numerals; rewrite ?(S_INR (S t)).
  - rewrite relu_pos by lra. lra.
  - rewrite relu_pos by lra. lra.
  - lra.
  - lra.
  - pose proof (rectangle _ _ (S t) ltac:(lia) Hx) as Hrect. cbv zeta in Hrect.
    set (x := nth i (fst a) 0) in *. set (b := nth i (snd a) 0%nat) in *. set (k := INR (S t)) in *.
    set (left := slope * (k * x - / INR n * (k * k))) in *. set (right := k * (slope * / INR n) - left) in *.
    replace (slope * (k * x) + (-1 * (slope * / INR n) * (k * k) + (1 * k + 0))) with (left + k) by (unfold left; ring).
    replace (slope * (k * x) + (-1 * (slope * / INR n) * (k * k) + 0)) with left by (unfold left; ring).
    replace (slope * / INR n * k + (-1 * slope * (k * x) + (slope * / INR n * (k * k) + 0))) with right
      by (unfold right, left; ring).
    replace ((slope * / INR n + -1 * 1) * k + (-1 * slope * (k * x) + (slope * / INR n * (k * k) + 0))) with (right - k)
      by (unfold right, left; ring).
    replace (1 * k + 0) with k by ring. rewrite (relu_pos k) by lra.
    transitivity ((if le_dec b t then INR b else 0) + (if Nat.eq_dec (S t) b then k else 0)); [rewrite <- Hrect; ring|].
    assert (S t = b -> k = INR b) by (intros E; unfold k; now rewrite E).
    destruct (Nat.eq_dec (S t) b), (le_dec b t), (le_dec b (S t)); try lia; try rewrite H0 by assumption; lra.
Qed.

Theorem quantizer_exact : forall inputs cells, Forall2 (inside d n slope) inputs cells ->
  output net inputs = map (map INR) cells.
Proof.
  intros inputs cells Hin. destruct (paired _ _ _ Hin) as [tokens [-> [-> Inside]]].
  unfold output.
  assert (Start : map (start net) (map fst tokens) = map (fun a => map (state 0 a) (rows net)) tokens).
  { rewrite map_map. apply map_ext_in. intros a Ha. apply map_ext. intros r.
    destruct r as [i|i|i|i|i]; cbn [state encode net quantizer quantizer_encode]; unfold eval, reads, constant;
      cbn [fold_right terms const fst snd]; numerals; cbn [INR]; try lra.
    destruct (le_dec (nth i (snd a) 0%nat) 0) as [L|L]; [|lra]. replace (nth i (snd a) 0%nat) with 0%nat by lia.
    reflexivity. }
  rewrite Start, invariant, !map_map by assumption. apply map_ext_in. intros a Ha.
  cbn [loops decode net quantizer]. rewrite map_map. destruct (Inside a Ha) as [L H].
  transitivity (map (fun i => INR (nth i (snd a) 0%nat)) (seq 0 d)).
  - apply map_ext_in. intros i Hi. apply in_seq in Hi. unfold eval, reads. cbn [fold_right terms const fst snd].
    rewrite read_map by (apply in_rows; cbn; lia). cbn [state]. destruct (H i ltac:(lia)) as [Hc _].
    destruct (le_dec (nth i (snd a) 0%nat) (n - 1)); [|lia]. numerals. lra.
  - rewrite <- L. clear. induction (snd a) as [|c l I]; [reflexivity|]. cbn [length seq map nth]. f_equal.
    rewrite <- seq_shift, map_map. exact I.
Qed.
End Exactness.
