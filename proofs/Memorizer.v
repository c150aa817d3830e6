(** * The time-modulated memorizers: Theorem of Appendix B, corrected, and its minimal form

    [modulated_memorizer] is the network of [memorizer.modulated_memorizer] in the Python package: 4d rows, width 6d,
    K-1 loops.  Per coordinate, the row y runs through the labels, because eta(l) multiplies y_(l-1) into y_l, and an
    impulse adds y_l - y_0 to the output in loop l = k.  Labels that contain a zero are shifted first, so that no
    division by zero occurs.  [minimal_memorizer] is [memorizer.minimal_modulated_memorizer]: d+1 rows, width 2, K-1
    loops, no division.

    [modulated_memorizer_exact] and [minimal_memorizer_exact]: for all d, every table of K >= 1 real labels in R^d and
    every k < K, the network returns the label of k, exactly. *)
From Coq Require Import List ZArith Reals Lra Lia Arith Bool.
From Looped Require Import Network Reals.
Import ListNotations.

Section Labels.
Context {F : numbers}.
Variable labels : list (list F).
Definition label_at (l i : nat) : F := nth i (nth l labels []) zero.
Definition column (i : nat) : list F := map (fun y => nth i y zero) labels.
Local Open Scope number_scope.

Definition magnitude (a : F) : F := larger a (opp a).
Definition largest_magnitude (l : list F) : F := maximum (map magnitude l).

(** The shift that makes all labels of a coordinate non-zero, and a bound on the shifted labels. *)
Definition shift (i : nat) : F :=
  if forallb (fun y => negb (eqb y zero)) (column i) then zero else one + largest_magnitude (column i).
Definition shifted (l i : nat) : F := label_at l i + shift i.
Definition bound (i : nat) : F := largest_magnitude (map (fun y => y + shift i) (column i)).
End Labels.

(** ** Appendix B *)

Module AppendixB.
Inductive row := Number (i : nat) | Left (i : nat) | Y (i : nat) | Out (i : nat).
Inductive unit := Plus (i : nat) | Minus (i : nat) | Before (i : nat) | After (i : nat)
  | Rising (i : nat) | Falling (i : nat).

Definition same_row (a b : row) : {a = b} + {a <> b}.
Proof. decide equality; apply Nat.eq_dec. Defined.

Definition same_unit (a b : unit) : {a = b} + {a <> b}.
Proof. decide equality; apply Nat.eq_dec. Defined.

Definition coordinate_rows (i : nat) : list row := [Number i; Left i; Y i; Out i].
Definition coordinate_units (i : nat) : list unit := [Plus i; Minus i; Before i; After i; Rising i; Falling i].
End AppendixB.
Import AppendixB.

Section Definition_of_the_memorizer.
Context {F : numbers}.
Variables (d : nat) (labels : list (list F)).
Local Open Scope number_scope.
Let half : F := inv (of_Z 2).
Let y (l i : nat) : F := shifted labels l i.
Let slope (i : nat) : F := of_Z 2 * bound labels i.

Definition memorizer_argument (u : unit) : form F row :=
  match u with
  | Plus i => reads (Y i)
  | Minus i => Form [(opp one, Y i)] zero
  | Before i => Form [(one, Left i)] (opp half)
  | After i => Form [(one, Left i)] half
  | Rising i => Form [(slope i, Left i); (one, Y i)] (slope i * half)
  | Falling i => Form [(slope i, Left i); (one, Y i)] (opp (slope i * half))
  end.

Definition memorizer_update (r : row) : form F unit :=
  match r with
  | Number _ => constant zero
  | Left _ => constant (opp one)
  | Y i => Form [(one, Plus i); (opp one, Minus i)] zero
  | Out i => Form [(one, Rising i); (opp one, Falling i); (slope i, Before i); (opp (slope i), After i)] zero
  end.

Definition memorizer_eta (t : nat) (r : row) : F :=
  match r with
  | Y i => y (t + 1) i * inv (y t i) - one
  | Out i => (y (t + 1) i - y 0%nat i) * inv (y t i)
  | _ => one
  end.

Definition memorizer_encode (r : row) : form F nat :=
  match r with
  | Number _ => reads 0%nat
  | Left _ => Form [(one, 0%nat)] (opp one)
  | Y i | Out i => constant (y 0%nat i)
  end.

Definition modulated_memorizer : network F row unit := {|
  rows := flat_map coordinate_rows (seq 0 d);
  Network.same_row := same_row;
  units := flat_map coordinate_units (seq 0 d);
  Network.same_unit := same_unit;
  encode := memorizer_encode;
  heads := [];
  argument := memorizer_argument;
  update := memorizer_update;
  eta := memorizer_eta;
  decode := map (fun i => Form [(one, Out i)] (opp (shift labels i))) (seq 0 d);
  loops := (length labels - 1)%nat
|}.

Lemma modulated_memorizer_size : (num_rows modulated_memorizer = 4 * d /\ width modulated_memorizer = 6 * d)%nat.
Proof.
  unfold num_rows, width. cbn [rows units modulated_memorizer]. rewrite <- (seq_length d 0) at 2 4.
  induction (seq 0 d) as [|i l [I J]]; cbn [flat_map coordinate_rows coordinate_units app length]; [easy|]. lia.
Qed.
End Definition_of_the_memorizer.

Section Shift.
Local Open Scope R_scope.

Lemma magnitude_Rabs : forall a : R, @magnitude reals a = Rabs a.
Proof.
  intros a. unfold magnitude. rewrite larger_Rmax. numerals. unfold Rmax, Rabs.
  destruct (Rle_dec a (-1 * a)), (Rcase_abs a); lra.
Qed.

Lemma maximum_ge : forall (l : list R) a, In a l -> a <= @maximum reals l.
Proof.
  intros [|a l] b Hb; [easy|]. unfold maximum. induction l as [|c l I].
  - destruct Hb as [->|[]]. cbn. lra.
  - cbn [fold_right]. rewrite larger_Rmax. destruct Hb as [<-|[<-|Hb]].
    + eapply Rle_trans; [apply I; now left|apply Rmax_r].
    + apply Rmax_l.
    + eapply Rle_trans; [apply I; now right|apply Rmax_r].
Qed.

Lemma largest_magnitude_ge : forall (l : list R) a, In a l -> Rabs a <= @largest_magnitude reals l.
Proof.
  intros l a Ha. unfold largest_magnitude. rewrite <- magnitude_Rabs. apply maximum_ge.
  now apply (in_map (@magnitude reals)).
Qed.

Variable labels : list (list R).

Lemma in_column : forall l i, (l < length labels)%nat -> In (@label_at reals labels l i) (@column reals labels i).
Proof. intros l i Hl. unfold column, label_at. apply (in_map (fun y : list R => nth i y 0)). now apply nth_In. Qed.

Lemma shifted_nonzero : forall l i, (l < length labels)%nat -> @shifted reals labels l i <> 0.
Proof.
  intros l i Hl. pose proof (in_column l i Hl) as Hin. unfold shifted, shift.
  destruct (forallb _ (@column reals labels i)) eqn:E.
  - rewrite forallb_forall in E. specialize (E _ Hin). apply negb_true_iff in E. numerals.
    intros H. assert (@eqb reals (label_at labels l i) 0 = true) by (apply eqb_eq; lra). congruence.
  - pose proof (largest_magnitude_ge _ _ Hin) as H. numerals. pose proof (Rle_abs (- @label_at reals labels l i)) as H'.
    rewrite Rabs_Ropp in H'. lra.
Qed.

Lemma shifted_bounded : forall l i, (l < length labels)%nat ->
  - @bound reals labels i <= @shifted reals labels l i <= @bound reals labels i.
Proof.
  intros l i Hl. assert (H : Rabs (@shifted reals labels l i) <= @bound reals labels i).
  2:{ pose proof (Rle_abs (@shifted reals labels l i)). pose proof (Rle_abs (- @shifted reals labels l i)) as H'.
      rewrite Rabs_Ropp in H'. lra. }
  unfold bound. apply largest_magnitude_ge.
  apply (in_map (fun y : R => y + @shift reals labels i) (@column reals labels i) (label_at labels l i)).
  now apply in_column.
Qed.
End Shift.

Section Exactness.
Local Open Scope R_scope.
Variables (d : nat) (labels : list (list R)).
Let net := @modulated_memorizer reals d labels.
Let y (l i : nat) : R := @shifted reals labels l i.

(** impulse(x, t) is x at t = 0 and 0 at every other integer t, for |x| <= M. *)
Definition impulse (M x t : R) : R :=
  @relu reals (2 * M * (t + / 2) + x) - @relu reals (2 * M * (t - / 2) + x) +
  2 * M * (@relu reals (t - / 2) - @relu reals (t + / 2)).

Lemma impulse_now : forall M x, - M <= x <= M -> impulse M x 0 = x.
Proof.
  intros M x H. unfold impulse. rewrite (relu_pos (2 * M * (0 + / 2) + x)), (relu_neg (2 * M * (0 - / 2) + x)),
    (relu_neg (0 - / 2)), (relu_pos (0 + / 2)) by lra. lra.
Qed.

Lemma impulse_past : forall M x t, - M <= x <= M -> t <= -1 -> impulse M x t = 0.
Proof.
  intros M x t H Ht. unfold impulse. rewrite (relu_neg (2 * M * (t + / 2) + x)), (relu_neg (2 * M * (t - / 2) + x)),
    (relu_neg (t - / 2)), (relu_neg (t + / 2)) by nra. lra.
Qed.

Lemma impulse_early : forall M x t, - M <= x <= M -> 1 <= t -> impulse M x t = 0.
Proof.
  intros M x t H Ht. unfold impulse. rewrite (relu_pos (2 * M * (t + / 2) + x)), (relu_pos (2 * M * (t - / 2) + x)),
    (relu_pos (t - / 2)), (relu_pos (t + / 2)) by nra. lra.
Qed.

Definition state (t k : nat) (r : row) : R :=
  match r with
  | Number _ => INR k
  | Left _ => INR k - 1 - INR t
  | Y i => y t i
  | Out i => if le_dec k t then y k i else y 0 i
  end.

Definition coordinate (r : row) : nat := match r with Number i | Left i | Y i | Out i => i end.

Lemma in_rows : forall r, In r (rows net) <-> (coordinate r < d)%nat.
Proof.
  intros r. cbn [rows net modulated_memorizer]. rewrite in_flat_map. split.
  - intros [i [Hi H]]. apply in_seq in Hi. cbn in H. destruct H as [<-|[<-|[<-|[<-|[]]]]]; cbn; lia.
  - intros H. exists (coordinate r). split; [apply in_seq; lia|]. destruct r; cbn; tauto.
Qed.

Lemma memorizer_invariant : forall ks t, (t < length labels)%nat -> (forall k, In k ks -> (k < length labels)%nat) ->
  run net t (map (fun k => map (state 0 k) (rows net)) ks) = map (fun k => map (state t k) (rows net)) ks.
Proof.
  intros ks t Ht Hks. induction t as [|t I]; [reflexivity|]. cbn [run]. rewrite I by lia.
  apply loop_without_heads; [reflexivity|]. intros k r Hk Hr. apply in_rows in Hr.
  assert (Rd : forall q, coordinate q = coordinate r -> read net (map (state t k) (rows net)) q = state t k q)
    by (intros q E; apply read_map, in_rows; now rewrite E).
  pose proof (shifted_nonzero labels t (coordinate r) ltac:(lia)) as Hn.
  pose proof (shifted_bounded labels t (coordinate r) ltac:(lia)) as Hb.
  cbn [update net modulated_memorizer eta].
  destruct r as [i|i|i|i]; cbn [coordinate] in *; cbn [memorizer_update memorizer_eta state];
    unfold eval, hidden, constant;
    cbn [argument net modulated_memorizer]; cbn [memorizer_argument fold_right terms const fst snd];
    unfold eval, reads; cbn [fold_right terms const fst snd];
    rewrite ?Rd by reflexivity; cbn [state]; numerals; fold (y t i) in *; rewrite ?S_INR.
  - lra.
  - lra.
  - pose proof (relu_both_signs (y t i)) as E. replace (1 * y t i + 0) with (y t i) by lra.
    replace (-1 * 1 * y t i + 0) with (- y t i) by lra. rewrite Nat.add_1_r. fold (y (S t) i).
    replace (1 * @relu reals (y t i) + (-1 * 1 * @relu reals (- y t i) + 0)) with (y t i) by lra. field. exact Hn.
  - rewrite Nat.add_1_r. fold (y (S t) i). fold (y 0 i). set (M := @bound reals labels i) in *.
    set (left := INR k - 1 - INR t).
    transitivity ((if le_dec k t then y k i else y 0 i) + (y (S t) i + -1 * y 0 i) * / y t i * impulse M (y t i) left).
    { f_equal. f_equal. unfold impulse.
      replace (2 * M * left + (1 * y t i + 2 * M * / 2)) with (2 * M * (left + / 2) + y t i) by lra.
      replace (2 * M * left + (1 * y t i + -1 * (2 * M * / 2))) with (2 * M * (left - / 2) + y t i) by lra.
      replace (1 * left + -1 * / 2) with (left - / 2) by lra. replace (1 * left + / 2) with (left + / 2) by lra. ring. }
    destruct (le_dec k t) as [L|L], (le_dec k (S t)) as [L'|L']; try lia.
    + apply le_INR in L. rewrite impulse_past by (assumption || (unfold left; lra)). lra.
    + assert (k = S t) by lia. subst k. replace left with 0 by (unfold left; rewrite S_INR; lra).
      rewrite impulse_now by assumption. field. exact Hn.
    + assert (LL : (t + 2 <= k)%nat) by lia. apply le_INR in LL. rewrite plus_INR in LL.
      change (INR 2) with (1 + 1) in LL.
      rewrite impulse_early by (assumption || (unfold left; lra)). lra.
Qed.

Theorem modulated_memorizer_exact : forall ks, (forall l, In l labels -> length l = d) ->
  (forall k, In k ks -> (k < length labels)%nat) ->
  output net (map (fun k => [INR k]) ks) = map (fun k => nth k labels []) ks.
Proof.
  intros ks Hd Hks. assert (H : ks = [] \/ ks <> []) by (destruct ks; [now left|now right]).
  destruct H as [->|Hne].
  { unfold output. cbn [map]. now replace (run net (loops net) []) with (@nil (list R))
      by (induction (loops net) as [|t I]; [reflexivity|cbn [run]; now rewrite <- I]). }
  assert (Hlen : (1 <= length labels)%nat).
  { destruct ks as [|k l]; [easy|]. specialize (Hks k (or_introl eq_refl)). lia. }
  assert (Start : map (start net) (map (fun k => [INR k]) ks) = map (fun k => map (state 0 k) (rows net)) ks).
  { rewrite map_map. apply map_ext. intros k. apply map_ext. intros r.
    destruct r as [i|i|i|i]; cbn [state encode net modulated_memorizer memorizer_encode]; unfold eval, reads, constant;
      cbn [fold_right terms const fst snd nth]; numerals; cbn [INR]; try lra; try reflexivity.
    destruct (le_dec k 0) as [L|L]; [replace k with 0%nat by lia|]; reflexivity. }
  unfold output. rewrite Start. change (loops net) with (length labels - 1)%nat.
  rewrite memorizer_invariant, map_map by (assumption || lia). apply map_ext_in. intros k Hk.
  cbn [decode net modulated_memorizer]. rewrite map_map. specialize (Hks k Hk).
  transitivity (map (fun i => nth i (nth k labels []) 0) (seq 0 d)).
  - apply map_ext_in. intros i Hi. apply in_seq in Hi. unfold eval. cbn [fold_right terms const fst snd].
    rewrite read_map by (apply in_rows; cbn; lia). cbn [state]. destruct (le_dec k (length labels - 1)); [|lia].
    unfold y, shifted, label_at. numerals. lra.
  - rewrite <- (Hd (nth k labels [])) by (now apply nth_In). clear.
    induction (nth k labels []) as [|c l I]; [reflexivity|]. cbn [length seq map nth]. f_equal.
    rewrite <- seq_shift, map_map. exact I.
Qed.
End Exactness.

(** ** The minimal form *)

Module Minimal.
Inductive row := Left | Out (i : nat).
Inductive unit := Near | Past.

Definition same_row (a b : row) : {a = b} + {a <> b}.
Proof. decide equality; apply Nat.eq_dec. Defined.

Definition same_unit (a b : unit) : {a = b} + {a <> b}.
Proof. decide equality. Defined.

Section Definition_of_the_minimal_memorizer.
Context {F : numbers}.
Variables (d : nat) (labels : list (list F)).
Local Open Scope number_scope.

Definition minimal_memorizer : network F row unit := {|
  rows := Left :: map Out (seq 0 d);
  Network.same_row := same_row;
  units := [Near; Past];
  Network.same_unit := same_unit;
  encode := fun r => match r with Left => Form [(one, 0%nat)] (opp one) | Out i => constant (label_at labels 0 i) end;
  heads := [];
  argument := fun u => match u with Near => Form [(one, Left)] one | Past => reads Left end;
  update := fun r => match r with Left => constant (opp one) | Out _ => Form [(one, Near); (opp one, Past)] zero end;
  eta := fun t r => match r with Left => one | Out i => label_at labels (t + 1) i - label_at labels t i end;
  decode := map (fun i => reads (Out i)) (seq 0 d);
  loops := (length labels - 1)%nat
|}.

Lemma minimal_memorizer_size : num_rows minimal_memorizer = (d + 1)%nat /\ width minimal_memorizer = 2.
Proof. unfold num_rows, width. cbn. rewrite map_length, seq_length. split; lia. Qed.
End Definition_of_the_minimal_memorizer.

Section Exactness.
Local Open Scope R_scope.
Variables (d : nat) (labels : list (list R)).
Let net := @minimal_memorizer reals d labels.

Definition state (t k : nat) (r : row) : R :=
  match r with Left => INR k - 1 - INR t | Out i => @label_at reals labels (Nat.min t k) i end.

Lemma in_rows : forall r, In r (rows net) <-> match r with Left => True | Out i => (i < d)%nat end.
Proof.
  intros r. cbn [rows net minimal_memorizer In]. rewrite in_map_iff. destruct r as [|i].
  - tauto.
  - split; [intros [H|[j [[= ->] Hj]]]; [easy|apply in_seq in Hj; lia]|].
    intros H. right. exists i. split; [reflexivity|]. apply in_seq. lia.
Qed.

Lemma invariant : forall ks t,
  run net t (map (fun k => map (state 0 k) (rows net)) ks) = map (fun k => map (state t k) (rows net)) ks.
Proof.
  intros ks t. induction t as [|t I]; [reflexivity|]. cbn [run]. rewrite I.
  apply loop_without_heads; [reflexivity|]. intros k r Hk Hr.
  destruct r as [|i]; cbn [update eta net minimal_memorizer]; unfold eval, hidden, constant;
    cbn [argument net minimal_memorizer fold_right terms const fst snd]; unfold eval, reads;
    cbn [fold_right terms const fst snd]; rewrite ?read_map by (now apply in_rows); cbn [state]; numerals.
  - rewrite S_INR. lra.
  - destruct (le_lt_dec (S t) k) as [L|L].
    + replace (Nat.min t k) with t by lia. replace (Nat.min (S t) k) with (t + 1)%nat by lia.
      apply le_INR in L. rewrite S_INR in L. rewrite !relu_pos by lra. lra.
    + replace (Nat.min (S t) k) with k by lia. replace (Nat.min t k) with k by lia.
      assert (L' : (k <= t)%nat) by lia. apply le_INR in L'. rewrite !relu_neg by lra. lra.
Qed.

Theorem minimal_memorizer_exact : forall ks, (forall l, In l labels -> length l = d) ->
  (forall k, In k ks -> (k < length labels)%nat) ->
  output net (map (fun k => [INR k]) ks) = map (fun k => nth k labels []) ks.
Proof.
  intros ks Hd Hks.
  assert (Start : map (start net) (map (fun k => [INR k]) ks) = map (fun k => map (state 0 k) (rows net)) ks).
  { rewrite map_map. apply map_ext. intros k. apply map_ext. intros r.
    destruct r as [|i]; cbn [state encode net minimal_memorizer]; unfold eval, constant;
      cbn [fold_right terms const fst snd nth]; numerals; cbn [INR]; [lra|reflexivity]. }
  unfold output. change (loops net) with (length labels - 1)%nat.
  rewrite Start, invariant, map_map. apply map_ext_in. intros k Hk. cbn [decode net minimal_memorizer].
  rewrite map_map. specialize (Hks k Hk).
  transitivity (map (fun i => nth i (nth k labels []) 0) (seq 0 d)).
  - apply map_ext_in. intros i Hi. apply in_seq in Hi. unfold eval, reads. cbn [fold_right terms const fst snd].
    rewrite read_map by (apply in_rows; lia). cbn [state]. replace (Nat.min (length labels - 1) k) with k by lia.
    unfold label_at. numerals. lra.
  - rewrite <- (Hd (nth k labels [])) by (now apply nth_In). clear.
    induction (nth k labels []) as [|c l I]; [reflexivity|]. cbn [length seq map nth]. f_equal.
    rewrite <- seq_shift, map_map. exact I.
Qed.
End Exactness.
End Minimal.
