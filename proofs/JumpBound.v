(** * The jump bound

    The table of the paper's block, corrected: a contextual id numbers (token z, descending sequence s) as 2 z B^N + 2
    s - (last digit of the smallest token) ([grid.paper_id] of the Python package); ids that no input reaches get a
    label by linear interpolation between their known neighbours, constant outside ([grid.fill]).

    [jump_bound]: two consecutive labels of the filled table differ, in the p-norm, by at most max { w_cont(delta),
    (n-1)/(n+1) (w_tok(delta sqrt d) + w_cont(delta sqrt((N-1) d))) }, for all d, N >= 1, n >= 2, every p in [1, inf],
    every permutation equivariant f and any choice of known ids (in particular those with distinct tokens). [gap] is
    the arithmetic behind it: two ids are at least n+1 apart, unless they belong to the same token and to sequences
    that differ in the last coordinate of their smallest token only. *)
From Coq Require Import List Reals Lra Lia Arith Sorted Permutation.
From Looped Require Import Norms Moduli Ids.
Import ListNotations.

(** ** Ids *)

Lemma first_app : forall z l k, In z l -> first z (l ++ k) = first z l.
Proof.
  intros z l k. induction l as [|a l I]; intros H; [easy|]. cbn. destruct (Nat.eqb_spec a z); [reflexivity|].
  f_equal. apply I. now destruct H.
Qed.

Section Ids.
Variables d N n : nat.
Hypothesis d_pos : 1 <= d.
Hypothesis N_pos : 1 <= N.
Hypothesis n_two : 2 <= n.
Let B := n ^ d.

Definition paper_id (s : list nat) (z : nat) : nat := 2 * z * B ^ N + 2 * positional B s - last s 0 mod n.

Definition coordinate (z i : nat) : nat := (z / n ^ (d - 1 - i)) mod n.

(** A pair (descending sequence, member). *)
Definition pair (s : list nat) (z : nat) : Prop :=
  length s = N /\ descending s /\ (forall a, In a s -> a < B) /\ In z s.

Let blocks := n ^ (d * N - 1).  (* B^N / n *)

Lemma B_split : B = n * n ^ (d - 1).
Proof. unfold B. replace d with (S (d - 1)) at 1 by lia. reflexivity. Qed.

Lemma BN_split : B ^ N = n * blocks.
Proof.
  unfold B, blocks. rewrite <- Nat.pow_mul_r. replace (d * N) with (S (d * N - 1)) at 1; [reflexivity|].
  assert (1 <= d * N) by nia. lia.
Qed.

(** The sequence is its front and its smallest token. *)
Lemma split_last : forall s z, pair s z -> exists front a, s = front ++ [a] /\ length front = N - 1 /\ a < B /\
  positional B s = positional B front * B + a /\ last s 0 = a.
Proof.
  intros s z [L [_ [H _]]]. destruct (exists_last (l := s)) as [front [a E]]; [intros ->; cbn in L; lia|].
  exists front, a. split; [assumption|]. rewrite E, app_length in L. cbn in L. split; [lia|]. split.
  - apply H. rewrite E. apply in_or_app. right. now left.
  - rewrite E, positional_snoc, last_last. now split.
Qed.

(** id = 2n Q + c with Q = z B^N / n + floor(s / n) and c = s mod n. *)
Lemma id_split : forall s z, pair s z -> let S_ := positional B s in
  paper_id s z = 2 * n * (z * blocks + S_ / n) + S_ mod n /\ S_ mod n < n /\ S_ / n < blocks /\ S_ mod n = last s 0
    mod n.
Proof.
  intros s z H S_. destruct (split_last s z H) as [front [a [E [L [Ha [Ep El]]]]]].
  assert (Em : S_ mod n = a mod n).
  { unfold S_. rewrite Ep, B_split. replace (positional (n * n ^ (d - 1)) front * (n * n ^ (d - 1)) + a)
      with (a + positional (n * n ^ (d - 1)) front * n ^ (d - 1) * n) by ring. apply Nat.mod_add. lia. }
  assert (Hb : S_ < B ^ N).
  { destruct H as [Ls [_ [Hs _]]]. unfold S_. rewrite <- Ls. now apply positional_bound. }
  pose proof (Nat.div_mod S_ n ltac:(lia)) as Hdm. pose proof (Nat.mod_upper_bound S_ n ltac:(lia)) as Hm.
  split; [|split; [assumption|split]].
  - unfold paper_id. rewrite El, <- Em, BN_split. fold S_.
    replace (2 * S_) with (S_ mod n + (S_ mod n + 2 * (n * (S_ / n)))) by lia.
    replace (2 * z * (n * blocks)) with (2 * n * (z * blocks)) by ring. lia.
  - apply Nat.div_lt_upper_bound; [lia|]. now rewrite <- BN_split.
  - now rewrite El.
Qed.

(** Two ids: either n+1 apart, or the same token and sequences that differ in one coordinate of the last token. *)
Lemma gap : forall s z s' z', pair s z -> pair s' z' -> paper_id s z < paper_id s' z' ->
  paper_id s z + (n + 1) <= paper_id s' z' \/
  (z = z' /\ exists front a a', s = front ++ [a] /\ s' = front ++ [a'] /\ In z front /\ a < B /\ a' < B /\
     a / n = a' / n /\ a' mod n = a mod n + (paper_id s' z' - paper_id s z)).
Proof.
  intros s z s' z' H H' Hlt.
  destruct (id_split s z H) as [E [Hm [Hd Hc]]]. destruct (id_split s' z' H') as [E' [Hm' [Hd' Hc']]].
  set (S_ := positional B s) in *. set (S' := positional B s') in *.
  set (Q := z * blocks + S_ / n) in *. set (Q' := z' * blocks + S' / n) in *.
  destruct (Nat.lt_trichotomy Q Q') as [L|[L|L]]; [left; nia| |exfalso; nia]. right.
  apply digit_unique in L as [Ez Eq]; [|assumption..]. split; [assumption|].
  destruct (split_last s z H) as [front [a [Es [L [Ha [Ep El]]]]]].
  destruct (split_last s' z' H') as [front' [a' [Es' [L' [Ha' [Ep' El']]]]]]. fold S_ in Ep. fold S' in Ep'.
  assert (Eblock : forall F x, (F * B + x) / n = F * n ^ (d - 1) + x / n).
  { intros F x. rewrite B_split. replace (F * (n * n ^ (d - 1)) + x) with (x + F * n ^ (d - 1) * n) by ring.
    rewrite Nat.div_add by lia. lia. }
  assert (Small : forall x, x < B -> x / n < n ^ (d - 1)).
  { intros x Hx. apply Nat.div_lt_upper_bound; [lia|]. now rewrite <- B_split. }
  rewrite Ep, Ep', !Eblock in Eq. apply digit_unique in Eq as [EF Ea]; [|now apply Small..].
  assert (Ef : front = front').
  { apply (positional_injective B); [lia| | |assumption]; intros x Hx.
    - destruct H as [_ [_ [Hb _]]]. apply Hb. rewrite Es. apply in_or_app. now left.
    - destruct H' as [_ [_ [Hb _]]]. apply Hb. rewrite Es'. apply in_or_app. now left. }
  subst front'. exists front, a, a'. rewrite El in Hc. rewrite El' in Hc'.
  assert (Em : a' mod n = a mod n + (paper_id s' z' - paper_id s z)).
  { rewrite <- Hc, <- Hc'. replace Q' with Q in E' by (unfold Q, Q'; rewrite Ez, Ep, Ep', !Eblock; lia). lia. }
  repeat split; try assumption.
  (* z is a member of both sequences, whose last tokens differ *)
  destruct H as [_ [_ [_ Hz]]], H' as [_ [_ [_ Hz']]]. rewrite Es in Hz. rewrite Es', <- Ez in Hz'.
  apply in_app_or in Hz as [Hz|[Hz|[]]]; [assumption|]. apply in_app_or in Hz' as [Hz'|[Hz'|[]]]; [assumption|].
  exfalso. subst a a'. lia.
Qed.
End Ids.

(** ** The linear fill *)

Local Open Scope R_scope.

(** The table at k, for known ids in increasing order: linear between neighbours and constant outside. *)
Fixpoint fill (known : list (nat * (nat -> R))) (k : nat) : nat -> R :=
  match known with
  | [] => fun _ => 0
  | (a, ya) :: rest =>
      match rest with
      | [] => ya
      | (b, yb) :: _ =>
          if (k <=? a)%nat then ya
          else if (k <=? b)%nat then fun i => ya i + INR (k - a) * ((yb i - ya i) / INR (b - a))
          else fill rest k
      end
  end.

Section Fill.
Variables (d N : nat) (p : norms d N) (J : R).
Hypothesis J_pos : 0 <= J.

Definition step_within (u v : nat -> R) (c : R) : Prop := column p (fun i => u i - v i) <= c.

Lemma no_step : forall u v, (forall i, u i = v i) -> step_within u v J.
Proof.
  intros u v H. unfold step_within. rewrite (column_ext d N p _ (fun i => 0 * u i)) by (intros; rewrite H; lra).
  rewrite column_scale by lra. lra.
Qed.

Lemma step_ext : forall u v u' v' c, (forall i, u i = u' i) -> (forall i, v i = v' i) ->
  step_within u' v' c -> step_within u v c.
Proof.
  intros u v u' v' c Hu Hv H. unfold step_within in *. erewrite column_ext; [exact H|]. intros; cbn. now rewrite Hu, Hv.
Qed.

Theorem fill_steps : forall known, StronglySorted lt (map fst known) ->
  (forall e e', In e known -> In e' known -> (fst e < fst e')%nat ->
     step_within (snd e') (snd e) (INR (fst e' - fst e) * J)) ->
  forall k, step_within (fill known (S k)) (fill known k) J.
Proof.
  induction known as [|[a ya] rest I]; intros Hs Hl k; [now apply no_step|].
  destruct rest as [|[b yb] rest']; [now apply no_step|].
  cbn [map fst] in Hs. inversion Hs as [|? ? Hs' Hf]; subst. assert (Hab : (a < b)%nat) by now inversion Hf.
  assert (Step : step_within yb ya (INR (b - a) * J)).
  { apply (Hl (a, ya) (b, yb)); [now left|right; now left|assumption]. }
  assert (Hba : 0 < INR (b - a)) by (apply lt_0_INR; lia).
  assert (Scaled : column p (fun i => / INR (b - a) * (yb i - ya i)) <= J).
  { rewrite (column_scale d N p (/ INR (b - a)) (fun i => yb i - ya i)) by (left; now apply Rinv_0_lt_compat).
    replace J with (/ INR (b - a) * (INR (b - a) * J)) by (field; lra).
    apply Rmult_le_compat_l; [left; now apply Rinv_0_lt_compat|assumption]. }
  specialize (I Hs' (fun e e' He He' => Hl e e' (or_intror He) (or_intror He')) k).
  change (fill ((a, ya) :: (b, yb) :: rest')) with (fun k => if (k <=? a)%nat then ya
    else if (k <=? b)%nat then fun i => ya i + INR (k - a) * ((yb i - ya i) / INR (b - a))
    else fill ((b, yb) :: rest') k).
  cbv beta.
  assert (AtB : forall i, fill ((b, yb) :: rest') b i = yb i).
  { intros i. destruct rest' as [|[c yc] r]; [reflexivity|]. cbn [fill]. now rewrite Nat.leb_refl. }
  destruct (Nat.leb_spec (S k) a), (Nat.leb_spec k a); try lia; [now apply no_step| |].
  - (* k = a: the first step of the segment *)
    assert (k = a) by lia. subst k. destruct (Nat.leb_spec (S a) b); [|lia]. replace (S a - a)%nat with 1%nat by lia.
    apply (step_ext _ _ (fun i => ya i + / INR (b - a) * (yb i - ya i)) ya).
    + intros i. cbn [INR]. unfold Rdiv. lra.
    + reflexivity.
    + unfold step_within. rewrite (column_ext d N p _ (fun i => / INR (b - a) * (yb i - ya i))) by (intros; lra).
      exact Scaled.
  - destruct (Nat.leb_spec (S k) b), (Nat.leb_spec k b); try lia.
    + (* inside the segment *)
      unfold step_within. rewrite (column_ext d N p _ (fun i => / INR (b - a) * (yb i - ya i))); [exact Scaled|].
      intros i _. replace (S k - a)%nat with (S (k - a)) by lia. rewrite S_INR. unfold Rdiv. ring.
    + (* k = b: the next segment begins *)
      assert (k = b) by lia. subst k. apply (step_ext _ _ (fill ((b, yb) :: rest') (S b)) (fill ((b, yb) :: rest') b)).
      * reflexivity.
      * intros i. rewrite AtB. field. lra.
      * exact I.
    + exact I.
Qed.
End Fill.

(** ** The theorem *)

Section Theorem_.
Variables (d N n : nat) (p : norms d N) (f : matrix -> matrix) (offset : R).
Hypothesis d_pos : (1 <= d)%nat.
Hypothesis N_pos : (1 <= N)%nat.
Hypothesis n_two : (2 <= n)%nat.
Hypothesis offset_range : 0 <= offset <= 1.  (* 0: the lower corner of a cell, 1/2: its centre *)
Hypothesis f_respects_entries : respects_entries d N f.

(** f(X pi) = f(X) pi for every permutation pi of the columns. *)
Definition equivariant : Prop := forall (pi inverse : nat -> nat),
  (forall j, (j < N)%nat -> (pi j < N)%nat /\ (inverse j < N)%nat /\ inverse (pi j) = j /\ pi (inverse j) = j) ->
  forall X j i, (j < N)%nat -> (i < d)%nat -> f (fun k => X (pi k)) j i = f X (pi j) i.
Hypothesis f_equivariant : equivariant.

Let delta := / INR n.

Definition point (z i : nat) : R := (INR (coordinate d n z i) + offset) * delta.
Definition points (s : list nat) : matrix := fun j i => point (nth j s 0%nat) i.
Definition label (s : list nat) (z : nat) : nat -> R := f (points s) (first z s).

Variables w_cont_delta w_cont_far w_tok_far : R.
Hypothesis cont_delta : forall j, (j < N)%nat -> bounds d N p f (itself j) j delta w_cont_delta.
Hypothesis cont_far : forall j, (j < N)%nat ->
  bounds d N p f (itself j) j (delta * sqrt (INR (N - 1) * INR d)) w_cont_far.
Hypothesis tok_far : forall j, (j < N)%nat -> bounds d N p f (others j) j (delta * sqrt (INR d)) w_tok_far.

Definition jump : R := Rmax w_cont_delta ((INR n - 1) / (INR n + 1) * (w_tok_far + w_cont_far)).

Lemma n_real : 2 <= INR n.
Proof. replace 2 with (INR 2) by (cbn; lra). apply le_INR. assumption. Qed.

Lemma delta_pos : 0 < delta.
Proof. apply Rinv_0_lt_compat. pose proof n_real. lra. Qed.

Lemma coordinate_bound : forall z i, 0 <= INR (coordinate d n z i) <= INR n - 1.
Proof.
  intros z i. split; [apply pos_INR|]. pose proof (Nat.mod_upper_bound (z / n ^ (d - 1 - i)) n ltac:(lia)) as H.
  apply le_INR in H. rewrite S_INR in H. unfold coordinate. lra.
Qed.

Lemma points_cube : forall s, cube d N (points s).
Proof.
  intros s j i _ _. unfold points, point. pose proof (coordinate_bound (nth j s 0%nat) i). pose proof delta_pos.
  split; [apply Rmult_le_pos; lra|]. replace 1 with (INR n * delta) by (unfold delta; field; pose proof n_real; lra).
  apply Rmult_le_compat_r; lra.
Qed.

Lemma points_apart : forall z z' i,
  (point z i - point z' i) * (point z i - point z' i) <= ((INR n - 1) * delta) * ((INR n - 1) * delta).
Proof.
  intros z z' i. unfold point. pose proof (coordinate_bound z i). pose proof (coordinate_bound z' i).
  pose proof delta_pos.
  pose proof n_real. set (c := INR (coordinate d n z i)) in *. set (c' := INR (coordinate d n z' i)) in *.
  replace (((c + offset) * delta - (c' + offset) * delta) * ((c + offset) * delta - (c' + offset) * delta))
    with ((c - c') * (c - c') * (delta * delta)) by ring.
  replace ((INR n - 1) * delta * ((INR n - 1) * delta)) with ((INR n - 1) * (INR n - 1) * (delta * delta)) by ring.
  apply Rmult_le_compat_r; [nra|nra].
Qed.

Lemma bounds_nonneg : forall fixed j t w, 0 <= t -> bounds d N p f fixed j t w -> 0 <= w.
Proof.
  intros fixed j t w Ht H. pose proof (points_cube []) as C. eapply Rle_trans; [|apply (H (points []) (points []) C C)].
  - apply column_nonneg.
  - intros k i _ _ _. reflexivity.
  - unfold distance. rewrite (total_ext N _ (fun _ => 0)), total_const, Rmult_0_r, sqrt_0; [assumption|].
    intros k _. rewrite (total_ext d _ (fun _ => 0)), total_const; [lra|]. intros; lra.
Qed.

Lemma total_single : forall m g j, (j < m)%nat -> (forall i, (i < m)%nat -> i <> j -> g i = 0) -> total m g = g j.
Proof.
  induction m as [|m I]; intros g j Hj H; [lia|]. cbn. destruct (Nat.eq_dec j m) as [->|Hne].
  - rewrite (total_ext m g (fun _ => 0)), total_const; [lra|]. intros i Hi. apply H; lia.
  - rewrite (I g j) by (intros; try apply H; lia). rewrite (H m) by lia. lra.
Qed.

(** Same token, sequences that differ in the last coordinate of their last token. *)
Lemma close_pairs : forall front a a' z m, length front = (N - 1)%nat -> In z front -> (1 <= m)%nat ->
  (a / n = a' / n)%nat -> (a' mod n = a mod n + m)%nat ->
  column p (fun i => label (front ++ [a']) z i - label (front ++ [a]) z i) <= INR m * w_cont_delta.
Proof.
  intros front a a' z m L Hz Hm Ediv Emod. unfold label. rewrite !first_app by assumption.
  destruct (first_nth z front Hz) as [Hj _]. set (j := first z front) in *.
  set (X := points (front ++ [a'])). set (Y := points (front ++ [a])).
  assert (Same : forall k i, (k < N)%nat -> (i < d)%nat -> k <> (N - 1)%nat \/ i <> (d - 1)%nat -> X k i = Y k i).
  { intros k i Hk Hi Hne. unfold X, Y, points, point. destruct (Nat.eq_dec k (N - 1)) as [->|Hkn].
    - rewrite <- L, !app_nth2, Nat.sub_diag by lia. cbn [nth]. unfold coordinate.
      replace (d - 1 - i)%nat with (S (d - 2 - i)) by lia. cbn [Nat.pow].
      rewrite <- !Nat.div_div by (try apply Nat.pow_nonzero; lia). now rewrite Ediv.
    - now rewrite !app_nth1 by lia. }
  apply (along_a_segment d N p f f_respects_entries (itself j) j delta w_cont_delta m X Y); try apply points_cube;
    try lia.
  - apply cont_delta. lia.
  - intros k i Hk Hi E. apply Same; [assumption..|]. left. unfold itself in E. apply Nat.eqb_eq in E. lia.
  - unfold distance.
    assert (Vanish : forall k i, (k < N)%nat -> (i < d)%nat -> k <> (N - 1)%nat \/ i <> (d - 1)%nat ->
      (X k i - Y k i) * (X k i - Y k i) = 0) by (intros k i Hk Hi H; rewrite (Same k i Hk Hi H); lra).
    rewrite (total_single N _ (N - 1)), (total_single d _ (d - 1)); try lia.
    + assert (E : X (N - 1)%nat (d - 1)%nat - Y (N - 1)%nat (d - 1)%nat = INR m * delta).
      { unfold X, Y, points, point. rewrite <- L, !app_nth2, Nat.sub_diag by lia. cbn [nth]. unfold coordinate.
        rewrite Nat.sub_diag. cbn [Nat.pow]. rewrite !Nat.div_1_r, Emod, plus_INR. ring. }
      rewrite E, sqrt_square by (apply Rmult_le_pos; [apply pos_INR|left; apply delta_pos]). apply Rle_refl.
    + intros i Hi Hne. apply Vanish; lia.
    + intros k Hk Hne. rewrite (total_ext d _ (fun _ => 0)), total_const; [lra|]. intros i Hi. apply Vanish; lia.
Qed.

Definition swap (a b k : nat) : nat := if (k =? a)%nat then b else if (k =? b)%nat then a else k.

Lemma swap_involutive : forall a b k, swap a b (swap a b k) = k.
Proof.
  intros a b k. unfold swap. destruct (Nat.eqb_spec k a) as [->|Ha].
  - destruct (Nat.eqb_spec b a) as [->|_]; [reflexivity|]. now rewrite Nat.eqb_refl.
  - destruct (Nat.eqb_spec k b) as [->|Hb]; [now rewrite Nat.eqb_refl|].
    apply Nat.eqb_neq in Ha, Hb. now rewrite Ha, Hb.
Qed.

(** Any two pairs: first the own token moves, then the others. *)
Lemma far_pairs : forall s z s' z', pair d N n s z -> pair d N n s' z' ->
  column p (fun i => label s' z' i - label s z i) <= (INR n - 1) * (w_tok_far + w_cont_far).
Proof.
  intros s z s' z' [L [_ [_ Hz]]] [L' [_ [_ Hz']]]. destruct (first_nth z s Hz) as [Hj Ej].
  destruct (first_nth z' s' Hz') as [Hj' Ej']. unfold label. set (j := first z s) in *. set (j' := first z' s') in *.
  rewrite L in Hj. rewrite L' in Hj'.
  set (X := points s). set (X' := fun k => points s' (swap j j' k)).
  assert (Bij : forall k, (k < N)%nat -> (swap j j' k < N)%nat /\ (swap j j' k < N)%nat /\
    swap j j' (swap j j' k) = k /\ swap j j' (swap j j' k) = k).
  { intros k Hk. assert ((swap j j' k < N)%nat) by (unfold swap; destruct (k =? j)%nat, (k =? j')%nat; assumption).
    repeat split; try assumption; apply swap_involutive. }
  assert (Eq : forall i, (i < d)%nat -> f X' j i = f (points s') j' i).
  { intros i Hi. unfold X'. rewrite (f_equivariant (swap j j') (swap j j') Bij) by assumption.
    unfold swap. now rewrite Nat.eqb_refl. }
  assert (CX : cube d N X) by apply points_cube.
  assert (CX' : cube d N X').
  { intros k i Hk Hi. unfold X'. apply points_cube; [|assumption]. now apply Bij. }
  set (W := fun k i => if (k =? j)%nat then X' k i else X k i).
  assert (CW : cube d N W) by (intros k i Hk Hi; unfold W; destruct (k =? j)%nat; auto).
  rewrite (column_ext d N p _ (fun i => f X' j i - f X j i)) by (intros; now rewrite Eq).
  fold (change d N p f X' X j). eapply Rle_trans; [apply (change_triangle d N p f X' W X j)|].
  assert (Apart : forall U V k i, (U = X \/ U = X') -> (V = X \/ V = X') ->
    (U k i - V k i) * (U k i - V k i) <= ((INR n - 1) * delta) * ((INR n - 1) * delta)).
  { intros U V k i [->| ->] [->| ->]; unfold X, X', points; apply points_apart. }
  assert (Npos : 0 <= (INR n - 1) * delta) by (apply Rmult_le_pos; [pose proof n_real; lra|left; apply delta_pos]).
  assert (Square : forall c, 0 <= c ->
    sqrt (c * (((INR n - 1) * delta) * ((INR n - 1) * delta))) = INR (n - 1) * (delta * sqrt c)).
  { intros c Hc. rewrite sqrt_mult_alt, sqrt_square by assumption. rewrite minus_INR by lia. cbn [INR]. ring. }
  rewrite Rmult_plus_distr_l, Rplus_comm.
  replace (INR n - 1) with (INR (n - 1)) by (rewrite minus_INR by lia; cbn [INR]; lra).
  apply Rplus_le_compat.
  - (* only column j moves *)
    apply (along_a_segment d N p f f_respects_entries (others j) j (delta * sqrt (INR d)) w_tok_far (n - 1) W X);
      try assumption; try lia.
    + now apply tok_far.
    + intros k i Hk Hi E. unfold others, W in *. now destruct (k =? j)%nat.
    + rewrite <- Square by apply pos_INR. apply sqrt_le_1_alt.
      rewrite (total_single N _ j) by (assumption || (intros k Hk Hne;
        rewrite (total_ext d _ (fun _ => 0)), total_const; [lra|];
        intros i Hi; unfold W; apply Nat.eqb_neq in Hne; rewrite Hne; lra)).
      rewrite <- total_const. apply total_le. intros i Hi. unfold W. rewrite Nat.eqb_refl. apply Apart; auto.
  - (* column j stands still *)
    apply (along_a_segment d N p f f_respects_entries (itself j) j (delta * sqrt (INR (N - 1) * INR d)) w_cont_far
      (n - 1) X' W);
      try assumption; try lia.
    + now apply cont_far.
    + intros k i Hk Hi E. unfold itself, W in *. now rewrite E.
    + rewrite <- Square by (apply Rmult_le_pos; apply pos_INR). apply sqrt_le_1_alt.
      set (c := (INR n - 1) * delta * ((INR n - 1) * delta)) in *. assert (0 <= c) by (unfold c; nra).
      assert (Sum : forall m, (forall k, (k < m)%nat -> total d (fun i => (X' k i - W k i) * (X' k i - W k i)) <=
                       (if (k =? j)%nat then 0 else 1) * (INR d * c))).
      { intros m k _. unfold W. destruct (k =? j)%nat.
        - rewrite (total_ext d _ (fun _ => 0)), total_const; [lra|]. intros; lra.
        - rewrite Rmult_1_l, <- total_const. apply total_le. intros i Hi. apply Apart; auto. }
      eapply Rle_trans; [apply total_le; intros k Hk; apply (Sum N k Hk)|].
      assert (Count : forall m, (j < m)%nat ->
        total m (fun k => (if (k =? j)%nat then 0 else 1) * (INR d * c)) = INR (m - 1) * (INR d * c)).
      { induction m as [|m I]; intros Hm; [lia|]. cbn [total]. destruct (Nat.eqb_spec m j) as [->|Hne].
        - rewrite (total_ext j _ (fun _ => INR d * c)), total_const; [replace (S j - 1)%nat with j by lia; lra|].
          intros i Hi. destruct (Nat.eqb_spec i j); [lia|lra].
        - rewrite I by lia. replace (S m - 1)%nat with (S (m - 1)) by lia. rewrite S_INR. lra. }
      rewrite Count by assumption. lra.
Qed.

(** Any two ids k < k' have labels that differ by at most (k' - k) times the bound. *)
Lemma labels_lipschitz : forall s z s' z', pair d N n s z -> pair d N n s' z' ->
  (paper_id d N n s z < paper_id d N n s' z')%nat ->
  column p (fun i => label s' z' i - label s z i) <= INR (paper_id d N n s' z' - paper_id d N n s z) * jump.
Proof.
  intros s z s' z' H H' Hlt. pose proof n_real. set (m := (paper_id d N n s' z' - paper_id d N n s z)%nat).
  destruct (gap d N n d_pos N_pos n_two s z s' z' H H' Hlt) as [G|[<- [front [a [a' [-> [-> [Hz [_ [_ [Ed Em]]]]]]]]]]].
  - eapply Rle_trans; [apply far_pairs; assumption|].
    assert (Gm : INR n + 1 <= INR m) by (rewrite <- S_INR; apply le_INR; unfold m; lia).
    assert (Nonneg : 0 <= w_tok_far + w_cont_far).
    { assert (0 <= w_tok_far).
      { apply (bounds_nonneg (others 0) 0 (delta * sqrt (INR d))); [|apply tok_far; lia].
        apply Rmult_le_pos; [left; apply delta_pos|apply sqrt_pos]. }
      assert (0 <= w_cont_far).
      { apply (bounds_nonneg (itself 0) 0 (delta * sqrt (INR (N - 1) * INR d))); [|apply cont_far; lia].
        apply Rmult_le_pos; [left; apply delta_pos|apply sqrt_pos]. }
      lra. }
    set (w := w_tok_far + w_cont_far) in *.
    apply Rle_trans with (INR m * ((INR n - 1) / (INR n + 1) * w));
      [|apply Rmult_le_compat_l; [apply pos_INR|apply Rmax_r]].
    replace ((INR n - 1) * w) with ((INR n + 1) * ((INR n - 1) / (INR n + 1) * w)) by (field; lra).
    apply Rmult_le_compat_r; [|assumption]. repeat apply Rmult_le_pos; try lra. left. apply Rinv_0_lt_compat. lra.
  - assert (Lf : length front = (N - 1)%nat).
    { destruct H as [L _]. rewrite app_length in L. cbn in L. lia. }
    eapply Rle_trans; [apply (close_pairs front a a' z m Lf Hz)|apply Rmult_le_compat_l; [apply pos_INR|apply Rmax_l]].
    + unfold m. lia.
    + assumption.
    + assumption.
Qed.

Theorem jump_bound : forall known : list (nat * (nat -> R)),
  StronglySorted lt (map fst known) ->
  (forall e, In e known -> exists s z, pair d N n s z /\ e = (paper_id d N n s z, label s z)) ->
  forall k, column p (fun i => fill known (S k) i - fill known k i) <= jump.
Proof.
  intros known Hs Hk k. apply (fill_steps d N p jump); [|assumption|].
  - eapply Rle_trans; [|apply Rmax_l].
    apply (bounds_nonneg (itself 0) 0 delta); [left; apply delta_pos|apply cont_delta; lia].
  - intros e e' He He' Hlt. destruct (Hk e He) as [s [z [H ->]]]. destruct (Hk e' He') as [s' [z' [H' ->]]].
    cbn [fst snd] in *. now apply labels_lipschitz.
Qed.
End Theorem_.
