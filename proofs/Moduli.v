(** * Lemma 0: the three moduli of continuity

    w_f(t) bounds how far f(X) moves if X moves by at most t in the 2-norm; w_tok(t) how far a column of f(X) moves if
    only that column of X moves; w_cont(t) how far a column of f(X) moves if that column of X stands still.  They are
    least upper bounds over the cube [0, 1]^(d x N).

    [lemma_0]: max(w_tok(t), w_cont(t)) <= w_f(t) <= N^(1/p) (w_tok(t) + w_cont(t)), for every f and every p in
    [1, inf].  So the two extra moduli can change a constant of a bound, never its rate.  [along_a_segment] is the
    subadditivity that the jump bound needs. *)
From Coq Require Import Reals Lra Lia Arith.
From Looped Require Import Norms.
Local Open Scope R_scope.

Section Moduli.
Variables (d N : nat) (p : norms d N) (f : matrix -> matrix).

Definition cube (X : matrix) : Prop := forall j i, (j < N)%nat -> (i < d)%nat -> 0 <= X j i <= 1.

Definition distance (X Y : matrix) : R :=
  sqrt (total N (fun j => total d (fun i => (X j i - Y j i) * (X j i - Y j i)))).

Definition change (X Y : matrix) (j : nat) : R := column p (fun i => f X j i - f Y j i).

(** The columns in [fixed] stand still. *)
Definition agree (fixed : nat -> bool) (X Y : matrix) : Prop :=
  forall j i, (j < N)%nat -> (i < d)%nat -> fixed j = true -> X j i = Y j i.

Definition others (j : nat) : nat -> bool := fun k => negb (Nat.eqb k j).
Definition itself (j : nat) : nat -> bool := fun k => Nat.eqb k j.

(** The values whose least upper bounds are the moduli. *)
Definition sequence_change (t v : R) : Prop :=
  exists X Y, cube X /\ cube Y /\ distance X Y <= t /\ v = whole p (fun j i => f X j i - f Y j i).
Definition column_change (fixed : nat -> nat -> bool) (t v : R) : Prop :=
  exists X Y j, (j < N)%nat /\ cube X /\ cube Y /\ agree (fixed j) X Y /\ distance X Y <= t /\ v = change X Y j.

Definition w_f (t w : R) : Prop := is_lub (sequence_change t) w.
Definition w_tok (t w : R) : Prop := is_lub (column_change others t) w.
Definition w_cont (t w : R) : Prop := is_lub (column_change itself t) w.

(** ** Lemma 0 *)

Lemma distance_le : forall X Y X' Y',
  (forall j i, (j < N)%nat -> (i < d)%nat -> Rabs (X j i - Y j i) <= Rabs (X' j i - Y' j i)) ->
  distance X Y <= distance X' Y'.
Proof.
  intros X Y X' Y' H. apply sqrt_le_1_alt. apply total_le. intros j Hj. apply total_le. intros i Hi.
  specialize (H j i Hj Hi). rewrite <- (Rabs_right ((X j i - Y j i) * (X j i - Y j i))) by (apply Rle_ge, Rle_0_sqr).
  rewrite <- (Rabs_right ((X' j i - Y' j i) * (X' j i - Y' j i))) by (apply Rle_ge, Rle_0_sqr).
  rewrite !Rabs_mult. apply Rmult_le_compat; try assumption; apply Rabs_pos.
Qed.

Lemma change_triangle : forall X W Y j, change X Y j <= change X W j + change W Y j.
Proof.
  intros X W Y j. unfold change.
  rewrite (column_ext d N p _ (fun i => (f X j i - f W j i) + (f W j i - f Y j i))) by (intros; lra). apply triangle.
Qed.

Theorem lemma_0 : forall t wf wtok wcont, (1 <= N)%nat -> 0 <= t ->
  w_f t wf -> w_tok t wtok -> w_cont t wcont ->
  Rmax wtok wcont <= wf /\ wf <= factor p * (wtok + wcont).
Proof.
  intros t wf wtok wcont HN Ht [Uf Lf] [Ut Lt] [Uc Lc]. split.
  - apply Rmax_lub; [apply Lt|apply Lc]; intros v [X [Y [j [Hj [CX [CY [_ [D ->]]]]]]]];
      (eapply Rle_trans; [apply (column_le_whole d N p (fun j i => f X j i - f Y j i) j Hj)|]);
      apply Uf; exists X, Y; auto.
  - apply Lf. intros v [X [Y [CX [CY [D ->]]]]].
    assert (Nonneg : 0 <= wtok + wcont).
    { assert (Z : forall fixed, column_change fixed t (change X X 0)).
      { intros fixed. exists X, X, 0%nat. repeat split; try assumption; try lia; [apply CX; assumption..|].
        unfold distance. rewrite (total_ext N _ (fun _ => 0)), total_const, Rmult_0_r, sqrt_0; [assumption|].
        intros j _. rewrite (total_ext d _ (fun _ => 0)), total_const; [lra|]. intros; lra. }
      pose proof (Ut _ (Z others)). pose proof (Uc _ (Z itself)).
      pose proof (column_nonneg d N p (fun i => f X 0%nat i - f X 0%nat i)). unfold change in *. lra. }
    apply whole_le; [assumption|]. intros j Hj. fold (change X Y j).
    (* W is X with column j taken from Y *)
    set (W := fun k i => if Nat.eqb k j then Y k i else X k i).
    assert (CW : cube W) by (intros k i Hk Hi; unfold W; destruct (Nat.eqb k j); auto).
    eapply Rle_trans; [apply (change_triangle X W Y j)|]. apply Rplus_le_compat.
    + apply Ut. exists X, W, j. repeat split; try assumption; try (now apply CX); try (now apply CW).
      * intros k i _ _ E. unfold others, W in *. now destruct (Nat.eqb k j).
      * eapply Rle_trans; [apply (distance_le X W X Y)|assumption]. intros k i _ _. unfold W.
        destruct (Nat.eqb k j); [apply Rle_refl|]. rewrite Rminus_eq_0, Rabs_R0. apply Rabs_pos.
    + apply Uc. exists W, Y, j. repeat split; try assumption; try (now apply CW); try (now apply CY).
      * intros k i _ _ E. unfold itself, W in *. now destruct (Nat.eqb k j).
      * eapply Rle_trans; [apply (distance_le W Y X Y)|assumption]. intros k i _ _. unfold W.
        destruct (Nat.eqb k j); [|apply Rle_refl]. rewrite Rminus_eq_0, Rabs_R0. apply Rabs_pos.
Qed.

(** ** Subadditivity *)

(** f depends on the N * d entries of X only. *)
Definition respects_entries : Prop := forall X Y, (forall j i, (j < N)%nat -> (i < d)%nat -> X j i = Y j i) ->
  forall j i, (j < N)%nat -> (i < d)%nat -> f X j i = f Y j i.

(** An upper bound of w_tok(t) or w_cont(t), for one column. *)
Definition bounds (fixed : nat -> bool) (j : nat) (t w : R) : Prop := forall X Y,
  cube X -> cube Y -> agree fixed X Y -> distance X Y <= t -> change X Y j <= w.

Definition between (X Y : matrix) (s : R) : matrix := fun j i => X j i + s * (Y j i - X j i).

Lemma distance_between : forall X Y s s', distance (between X Y s) (between X Y s') = Rabs (s - s') * distance X Y.
Proof.
  intros X Y s s'. unfold distance. rewrite <- sqrt_Rsqr_abs, <- sqrt_mult_alt by apply Rle_0_sqr. f_equal.
  rewrite <- total_scale. apply total_ext. intros j _. rewrite <- total_scale. apply total_ext. intros i _.
  unfold between, Rsqr. ring.
Qed.

Lemma along_a_segment : respects_entries -> forall fixed j t w m X Y, (j < N)%nat -> (1 <= m)%nat ->
  bounds fixed j t w -> cube X -> cube Y -> agree fixed X Y -> distance X Y <= INR m * t -> change X Y j <= INR m * w.
Proof.
  intros Ext fixed j t w m X Y Hj Hm Hb CX CY A D. assert (1 <= INR m) by (apply (le_INR 1); assumption).
  set (P := fun k => between X Y (INR k * / INR m)).
  assert (Same : forall U V U' V', (forall k i, (k < N)%nat -> (i < d)%nat -> U k i = U' k i) ->
    (forall k i, (k < N)%nat -> (i < d)%nat -> V k i = V' k i) -> change U V j = change U' V' j).
  { intros U V U' V' HU HV. unfold change. apply column_ext. intros i Hi.
    rewrite (Ext U U' HU j i), (Ext V V' HV j i) by assumption. reflexivity. }
  assert (Frac : forall k, (k <= m)%nat -> 0 <= INR k * / INR m <= 1).
  { intros k Hk. assert (0 < / INR m) by (apply Rinv_0_lt_compat; lra). pose proof (pos_INR k). apply le_INR in Hk.
    split; [apply Rmult_le_pos; lra|]. replace 1 with (INR m * / INR m) by (field; lra). apply Rmult_le_compat_r; lra. }
  assert (Steps : forall k, (k <= m)%nat -> change X (P k) j <= INR k * w).
  { induction k as [|k I]; intros Hk.
    - rewrite (Same X (P 0%nat) X X) by (intros; try reflexivity; unfold P, between; cbn [INR]; lra).
      unfold change. rewrite (column_ext d N p _ (fun i => 0 * f X j i)) by (intros; lra).
      rewrite column_scale by lra. cbn [INR]. lra.
    - eapply Rle_trans; [apply (change_triangle X (P k))|]. specialize (I ltac:(lia)). rewrite S_INR.
      assert (change (P k) (P (S k)) j <= w); [|lra]. apply Hb.
      + intros q i Hq Hi. destruct (CX q i Hq Hi), (CY q i Hq Hi). pose proof (Frac k ltac:(lia)). unfold P, between.
        nra.
      + intros q i Hq Hi. destruct (CX q i Hq Hi), (CY q i Hq Hi). pose proof (Frac (S k) ltac:(lia)).
        unfold P, between. nra.
      + intros q i Hq Hi E. unfold P, between. rewrite (A q i Hq Hi E). ring.
      + unfold P. rewrite distance_between, S_INR.
        replace (INR k * / INR m - (INR k + 1) * / INR m) with (- / INR m) by ring.
        assert (0 < / INR m) by (apply Rinv_0_lt_compat; lra). rewrite Rabs_Ropp, Rabs_right by lra.
        replace t with (/ INR m * (INR m * t)) by (field; lra). apply Rmult_le_compat_l; lra. }
  rewrite <- (Same X (P m) X Y); [now apply Steps|reflexivity|].
  intros k i _ _. unfold P, between. rewrite Rinv_r by lra. ring.
Qed.
End Moduli.
