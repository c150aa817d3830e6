(** * The p-norms

    |v|_p = (sum of |v_i|^p)^(1/p) for every real p >= 1, and the maximum for p = infinity, of columns and of
    matrices. The proofs of Lemma 0 and of the jump bound need three properties of them, which [norms] collects: the
    triangle inequality (Minkowski, from the convexity of x^p), that a column is at most the matrix, and that a matrix
    with columns of at most c is at most N^(1/p) c.  [p_norms] and [max_norms] are the instances. *)
From Coq Require Import Reals Lra Lia Arith.
From Looped Require Import Logarithm.
Local Open Scope R_scope.

(** ** Finite sums *)

Fixpoint total (n : nat) (g : nat -> R) : R := match n with O => 0 | S k => total k g + g k end.

Lemma total_ext : forall n g h, (forall i, (i < n)%nat -> g i = h i) -> total n g = total n h.
Proof.
  induction n as [|n I]; intros g h H; cbn; [reflexivity|]. rewrite (I g h) by (intros; apply H; lia).
  rewrite H by lia. lra.
Qed.

Lemma total_le : forall n g h, (forall i, (i < n)%nat -> g i <= h i) -> total n g <= total n h.
Proof.
  induction n as [|n I]; intros g h H; cbn; [lra|]. specialize (I g h (fun i Hi => H i ltac:(lia))).
  specialize (H n ltac:(lia)). lra.
Qed.

Lemma total_const : forall n c, total n (fun _ => c) = INR n * c.
Proof. induction n as [|n I]; intros c; cbn [total]; [cbn; lra|]. rewrite I, S_INR. lra. Qed.

Lemma total_scale : forall n c g, total n (fun i => c * g i) = c * total n g.
Proof. induction n as [|n I]; intros c g; cbn; [lra|]. rewrite I. lra. Qed.

Lemma total_plus : forall n g h, total n (fun i => g i + h i) = total n g + total n h.
Proof. induction n as [|n I]; intros g h; cbn; [lra|]. rewrite I. lra. Qed.

Lemma total_nonneg : forall n g, (forall i, (i < n)%nat -> 0 <= g i) -> 0 <= total n g.
Proof. intros n g H. replace 0 with (total n (fun _ => 0)) by (rewrite total_const; lra). now apply total_le. Qed.

Lemma term_le_total : forall n g j, (forall i, (i < n)%nat -> 0 <= g i) -> (j < n)%nat -> g j <= total n g.
Proof.
  induction n as [|n I]; intros g j H Hj; [lia|]. cbn. destruct (Nat.eq_dec j n) as [->|Hne].
  - pose proof (total_nonneg n g (fun i Hi => H i ltac:(lia))). lra.
  - specialize (I g j (fun i Hi => H i ltac:(lia)) ltac:(lia)). specialize (H n ltac:(lia)). lra.
Qed.

(** ** Powers are convex *)

(** The graph lies above its tangent at 1. *)
Lemma power_tangent : forall u p, 1 <= p -> 0 <= u -> 1 + p * (u - 1) <= power u p.
Proof.
  intros u p Hp Hu. unfold power. destruct (Rle_dec u 0) as [L|L]; [replace u with 0 by lra; lra|].
  set (m := log u). assert (Eu : u = exp m) by (unfold m; rewrite exp_log; lra). rewrite Eu.
  (* exp(p m) >= exp(m) (1 + p m - m), and 1 >= exp(m) (1 - m) *)
  assert (H1 : exp m * (1 + (p * m - m)) <= exp (p * m)).
  { replace (p * m) with (m + (p * m - m)) at 2 by lra. rewrite exp_plus.
    apply Rmult_le_compat_l; [left; apply exp_pos|apply exp_tangent]. }
  assert (H2 : exp m * (1 + - m) <= 1).
  { apply Rle_trans with (exp m * exp (- m)).
    - apply Rmult_le_compat_l; [left; apply exp_pos|apply exp_tangent].
    - right. rewrite <- exp_plus, Rplus_opp_r. apply exp_0. }
  assert ((p - 1) * (exp m * (1 + - m)) <= (p - 1) * 1) by (apply Rmult_le_compat_l; lra). lra.
Qed.

Lemma power_convex : forall a b s p, 1 <= p -> 0 <= a -> 0 <= b -> 0 <= s <= 1 ->
  power (s * a + (1 - s) * b) p <= s * power a p + (1 - s) * power b p.
Proof.
  intros a b s p Hp Ha Hb Hs. set (c := s * a + (1 - s) * b).
  assert (Hc : 0 <= c) by (unfold c; assert (0 <= s * a) by (apply Rmult_le_pos; lra);
                           assert (0 <= (1 - s) * b) by (apply Rmult_le_pos; lra); lra).
  pose proof (power_nonneg a p). pose proof (power_nonneg b p).
  destruct (Rle_dec c 0) as [L|L].
  - unfold power at 1. destruct (Rle_dec c 0); [|lra].
    assert (0 <= s * power a p) by (apply Rmult_le_pos; lra).
    assert (0 <= (1 - s) * power b p) by (apply Rmult_le_pos; lra). lra.
  - assert (Tangent : forall x, 0 <= x -> power c p * (1 + p * (x * / c - 1)) <= power x p).
    { intros x Hx. replace x with (c * (x * / c)) at 2 by (field; lra).
      assert (0 <= x * / c) by (apply Rmult_le_pos; [lra|]; left; apply Rinv_0_lt_compat; lra).
      rewrite (power_mult c) by lra. apply Rmult_le_compat_l; [apply power_nonneg|]. now apply power_tangent. }
    pose proof (Tangent a Ha) as TA. pose proof (Tangent b Hb) as TB.
    apply (Rmult_le_compat_l s) in TA; [|lra]. apply (Rmult_le_compat_l (1 - s)) in TB; [|lra].
    assert (E : s * (power c p * (1 + p * (a * / c - 1))) + (1 - s) * (power c p * (1 + p * (b * / c - 1))) =
                power c p * (1 + p * (c * / c - 1))) by (unfold c at 6; ring).
    rewrite Rinv_r in E by lra. lra.
Qed.

(** ** Norms of columns *)

Definition column_norm (d : nat) (p : R) (v : nat -> R) : R := power (total d (fun i => power (Rabs (v i)) p)) (/ p).

Lemma total_powers_nonneg : forall d p v, 0 <= total d (fun i => power (Rabs (v i)) p).
Proof. intros. apply total_nonneg. intros. apply power_nonneg. Qed.

Lemma column_norm_nonneg : forall d p v, 0 <= column_norm d p v.
Proof. intros. apply power_nonneg. Qed.

Lemma column_norm_powers : forall d p v, 0 < p -> total d (fun i => power (Rabs (v i)) p) = power (column_norm d p v) p.
Proof. intros d p v Hp. unfold column_norm. rewrite unroot; [reflexivity|assumption|]. apply total_powers_nonneg. Qed.

Lemma column_norm_le : forall d p v c, 0 < p -> 0 <= c ->
  total d (fun i => power (Rabs (v i)) p) <= power c p -> column_norm d p v <= c.
Proof.
  intros d p v c Hp Hc H. unfold column_norm. rewrite <- (root c p) by assumption. apply power_le; [|assumption].
  left. apply Rinv_0_lt_compat. assumption.
Qed.

(** Minkowski's inequality, for bounds a and b of the two norms. *)
Lemma minkowski_bounds : forall d p u v a b, 1 <= p -> 0 < a -> 0 < b ->
  total d (fun i => power (Rabs (u i)) p) <= power a p -> total d (fun i => power (Rabs (v i)) p) <= power b p ->
  total d (fun i => power (Rabs (u i + v i)) p) <= power (a + b) p.
Proof.
  intros d p u v a b Hp Ha Hb Hu Hv. set (s := a * / (a + b)).
  assert (Hinv : 0 < / (a + b)) by (apply Rinv_0_lt_compat; lra).
  assert (Hs : 0 <= s <= 1).
  { unfold s. split; [apply Rmult_le_pos; lra|]. replace 1 with ((a + b) * / (a + b)) by (field; lra).
    apply Rmult_le_compat_r; lra. }
  assert (Es : 1 - s = b * / (a + b)) by (unfold s; field; lra).
  apply Rle_trans with (power (a + b) p * (s * (/ power a p * total d (fun i => power (Rabs (u i)) p)) +
                                           (1 - s) * (/ power b p * total d (fun i => power (Rabs (v i)) p)))).
  - rewrite <- !total_scale, <- total_plus, <- total_scale. apply total_le. intros i _.
    assert (Pa : power a p > 0) by (unfold power; destruct (Rle_dec a 0); [lra|apply exp_pos]).
    assert (Pb : power b p > 0) by (unfold power; destruct (Rle_dec b 0); [lra|apply exp_pos]).
    assert (Scale : forall x c, 0 <= x -> 0 < c -> power c p > 0 -> / power c p * power x p = power (x * / c) p).
    { intros x c Hx Hc Pc. assert (0 <= / c) by (left; now apply Rinv_0_lt_compat).
      replace (power x p) with (power (x * / c * c) p) by (f_equal; field; lra).
      rewrite (power_mult (x * / c)); [field; lra|apply Rmult_le_pos; lra|lra]. }
    rewrite !Scale by (assumption || apply Rabs_pos).
    eapply Rle_trans; [|apply Rmult_le_compat_l; [apply power_nonneg|apply power_convex]]; try assumption.
    + rewrite <- power_mult.
      * apply power_le; [lra|]. eapply Rle_trans; [apply Rabs_triang|]. right. rewrite Es. unfold s. field. lra.
      * lra.
      * assert (0 <= / a) by (left; now apply Rinv_0_lt_compat).
        assert (0 <= / b) by (left; now apply Rinv_0_lt_compat).
        pose proof (Rabs_pos (u i)). pose proof (Rabs_pos (v i)).
        assert (0 <= s * (Rabs (u i) * / a)) by (repeat apply Rmult_le_pos; lra).
        assert (0 <= (1 - s) * (Rabs (v i) * / b)) by (repeat apply Rmult_le_pos; lra). lra.
    + apply Rmult_le_pos; [apply Rabs_pos|left; now apply Rinv_0_lt_compat].
    + apply Rmult_le_pos; [apply Rabs_pos|left; now apply Rinv_0_lt_compat].
  - assert (Below : forall x c, 0 <= x <= power c p -> 0 < c -> / power c p * x <= 1).
    { intros x c Hx Hc. assert (Pc : power c p > 0) by (unfold power; destruct (Rle_dec c 0); [lra|apply exp_pos]).
      replace 1 with (/ power c p * power c p) by (field; lra). apply Rmult_le_compat_l; [|lra].
      left. now apply Rinv_0_lt_compat. }
    pose proof (Below _ a (conj (total_powers_nonneg d p u) Hu) Ha) as Ba.
    pose proof (Below _ b (conj (total_powers_nonneg d p v) Hv) Hb) as Bb.
    rewrite <- (Rmult_1_r (power (a + b) p)) at 2. apply Rmult_le_compat_l; [apply power_nonneg|].
    apply (Rmult_le_compat_l s) in Ba; [|lra]. apply (Rmult_le_compat_l (1 - s)) in Bb; [|lra]. lra.
Qed.

Lemma minkowski : forall d p u v, 1 <= p ->
  column_norm d p (fun i => u i + v i) <= column_norm d p u + column_norm d p v.
Proof.
  intros d p u v Hp. apply le_epsilon. intros e He.
  set (a := column_norm d p u + e / 2). set (b := column_norm d p v + e / 2).
  pose proof (column_norm_nonneg d p u). pose proof (column_norm_nonneg d p v).
  replace (column_norm d p u + column_norm d p v + e) with (a + b) by (unfold a, b; lra).
  apply column_norm_le; [lra|unfold a, b; lra|]. apply minkowski_bounds; try (assumption || (unfold a, b; lra)).
  - rewrite column_norm_powers by lra. apply power_le; unfold a; lra.
  - rewrite column_norm_powers by lra. apply power_le; unfold b; lra.
Qed.

(** ** Norms of matrices: N columns with d entries *)

Definition matrix := nat -> nat -> R.  (* column, coordinate *)

Record norms (d N : nat) := Norms {
  column : (nat -> R) -> R;
  whole : matrix -> R;
  factor : R;  (* N^(1/p) *)
  column_ext : forall u v, (forall i, (i < d)%nat -> u i = v i) -> column u = column v;
  whole_ext : forall A B, (forall j i, (j < N)%nat -> (i < d)%nat -> A j i = B j i) -> whole A = whole B;
  triangle : forall u v, column (fun i => u i + v i) <= column u + column v;
  column_le_whole : forall A j, (j < N)%nat -> column (A j) <= whole A;
  whole_le : forall A c, 0 <= c -> (forall j, (j < N)%nat -> column (A j) <= c) -> whole A <= factor * c;
  column_nonneg : forall v, 0 <= column v;
  column_scale : forall s v, 0 <= s -> column (fun i => s * v i) = s * column v
}.
Arguments column {d N}. Arguments whole {d N}. Arguments factor {d N}.

Definition matrix_norm (d N : nat) (p : R) (A : matrix) : R :=
  power (total N (fun j => total d (fun i => power (Rabs (A j i)) p))) (/ p).

Lemma norm_scale : forall d p s v, 1 <= p -> 0 <= s -> column_norm d p (fun i => s * v i) = s * column_norm d p v.
Proof.
  intros d p s v Hp Hs. unfold column_norm.
  rewrite (total_ext d _ (fun i => power s p * power (Rabs (v i)) p)).
  - rewrite total_scale, power_mult, root; try lra; [apply power_nonneg|apply total_powers_nonneg].
  - intros i _. rewrite Rabs_mult, (Rabs_right s) by lra. apply power_mult; [assumption|apply Rabs_pos].
Qed.

Definition p_norms (d N : nat) (p : R) (Hp : 1 <= p) : norms d N.
Proof.
  refine {| column := column_norm d p; whole := matrix_norm d N p; factor := power (INR N) (/ p) |}.
  - intros u v H. unfold column_norm. f_equal. apply total_ext. intros i Hi. now rewrite H.
  - intros A B H. unfold matrix_norm. f_equal. apply total_ext. intros j Hj. apply total_ext. intros i Hi.
    now rewrite H.
  - intros u v. now apply minkowski.
  - intros A j Hj. unfold column_norm, matrix_norm. apply power_le; [left; apply Rinv_0_lt_compat; lra|].
    apply (term_le_total N (fun j => total d (fun i => power (Rabs (A j i)) p))); [|assumption].
    intros. apply total_powers_nonneg.
  - intros A c Hc H. unfold matrix_norm.
    assert (Hi : 0 <= / p) by (left; apply Rinv_0_lt_compat; lra).
    rewrite <- (root c p) by lra. rewrite <- power_mult; [|apply pos_INR|apply power_nonneg].
    apply power_le; [assumption|]. rewrite <- total_const. apply total_le. intros j Hj.
    rewrite column_norm_powers by lra. apply power_le; [lra|now apply H].
  - intros v. apply column_norm_nonneg.
  - intros s v Hs. now apply norm_scale.
Defined.

(** p = infinity *)

Fixpoint top (n : nat) (g : nat -> R) : R := match n with O => 0 | S k => Rmax (top k g) (g k) end.

Lemma top_nonneg : forall n g, 0 <= top n g.
Proof. induction n as [|n I]; intros g; cbn; [lra|]. eapply Rle_trans; [apply I|apply Rmax_l]. Qed.

Lemma top_ge : forall n g i, (i < n)%nat -> g i <= top n g.
Proof.
  induction n as [|n I]; intros g i Hi; [lia|]. cbn. destruct (Nat.eq_dec i n) as [->|Hne]; [apply Rmax_r|].
  eapply Rle_trans; [apply I; lia|apply Rmax_l].
Qed.

Lemma top_le : forall n g c, 0 <= c -> (forall i, (i < n)%nat -> g i <= c) -> top n g <= c.
Proof.
  induction n as [|n I]; intros g c Hc H; cbn; [assumption|]. apply Rmax_lub; [apply I; auto with arith|].
  apply H. lia.
Qed.

Lemma top_ext : forall n g h, (forall i, (i < n)%nat -> g i = h i) -> top n g = top n h.
Proof.
  induction n as [|n I]; intros g h H; cbn; [reflexivity|].
  rewrite (I g h), H by (lia || (intros; apply H; lia)). reflexivity.
Qed.

Definition max_norms (d N : nat) : norms d N.
Proof.
  refine {| column := fun v => top d (fun i => Rabs (v i));
            whole := fun A => top N (fun j => top d (fun i => Rabs (A j i)));
            factor := 1 |}.
  - intros u v H. apply top_ext. intros i Hi. now rewrite H.
  - intros A B H. apply top_ext. intros j Hj. apply top_ext. intros i Hi. now rewrite H.
  - intros u v. pose proof (top_nonneg d (fun i => Rabs (u i))). pose proof (top_nonneg d (fun i => Rabs (v i))).
    apply top_le; [lra|]. intros i Hi. eapply Rle_trans; [apply Rabs_triang|].
    pose proof (top_ge d (fun i => Rabs (u i)) i Hi). pose proof (top_ge d (fun i => Rabs (v i)) i Hi). cbn in *. lra.
  - intros A j Hj. now apply (top_ge N (fun j => top d (fun i => Rabs (A j i)))).
  - intros A c Hc H. rewrite Rmult_1_l. now apply top_le.
  - intros v. apply top_nonneg.
  - intros s v Hs. pose proof (top_nonneg d (fun i => Rabs (v i))) as P. apply Rle_antisym.
    + apply top_le; [now apply Rmult_le_pos|]. intros i Hi. rewrite Rabs_mult, (Rabs_right s) by lra.
      apply Rmult_le_compat_l; [assumption|]. now apply (top_ge d (fun i => Rabs (v i))).
    + destruct (Req_dec s 0) as [->|Hne]; [rewrite Rmult_0_l; apply top_nonneg|].
      assert (0 < / s) by (apply Rinv_0_lt_compat; lra).
      replace (top d (fun i => Rabs (s * v i))) with (s * (/ s * top d (fun i => Rabs (s * v i)))) by (field; lra).
      apply Rmult_le_compat_l; [assumption|]. apply top_le; [apply Rmult_le_pos; [lra|apply top_nonneg]|]. intros i Hi.
      replace (Rabs (v i)) with (/ s * Rabs (s * v i)).
      * apply Rmult_le_compat_l; [lra|]. now apply (top_ge d (fun i => Rabs (s * v i))).
      * rewrite Rabs_mult, (Rabs_right s) by lra. field. lra.
Defined.
