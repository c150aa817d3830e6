(** * The error of [modulated-minimal]

    The capstone: for every permutation equivariant f on [0, 1]^(d x N), the network of [modulated-minimal] that
    stores f at the representatives of all cells satisfies |network(X) - f(X)|_p <= w_f(radius) at every X outside the
    trifling intervals, for every p in [1, inf] ([block_error]).  The radius is delta sqrt(N d) if cells are
    represented by their lower corners, and half of it for their centres. *)
From Coq Require Import List Reals Lra Lia Arith Permutation.
From Looped Require Import Network Reals Ids Table Quantizer MinimalNetwork ModulatedMinimal Norms Moduli JumpBound.
Import ListNotations.
Local Open Scope R_scope.

(** ** A token id knows its cells *)

Lemma coordinate_of_id : forall n cells i, (2 <= n)%nat -> (forall c, In c cells -> (c < n)%nat) ->
  (i < length cells)%nat ->
  coordinate (length cells) n (positional n cells) i = nth i cells 0%nat.
Proof.
  intros n cells i Hn. revert i. induction cells as [|a l I]; intros i Hc Hi; [cbn in Hi; lia|].
  unfold coordinate in *. rewrite positional_cons. cbn [length] in *.
  assert (Pl : (positional n l < n ^ length l)%nat) by (apply positional_bound; auto with *).
  pose proof (Hc a (or_introl eq_refl)) as Ha. destruct i as [|i]; cbn [nth].
  - replace (S (length l) - 1 - 0)%nat with (length l) by lia.
    rewrite Nat.div_add_l, (Nat.div_small (positional n l)), Nat.add_0_r
      by (assumption || (apply Nat.pow_nonzero; lia)).
    now apply Nat.mod_small.
  - replace (S (length l) - 1 - S i)%nat with (length l - 1 - i)%nat by lia.
    assert (E : (n ^ length l = n ^ i * n * n ^ (length l - 1 - i))%nat).
    { transitivity (n ^ (i + 1 + (length l - 1 - i)))%nat; [f_equal; lia|].
      now rewrite !Nat.pow_add_r, Nat.pow_1_r. }
    rewrite E, Nat.mul_assoc, Nat.div_add_l by (apply Nat.pow_nonzero; lia).
    rewrite Nat.mul_assoc, Nat.add_comm, Nat.mod_add by lia. apply I; [auto with *|lia].
Qed.

(** ** Matrices as lists of columns *)

Section Approximation.
Variables (d N n : nat) (slope offset : R) (p : norms d N) (f : matrix -> matrix).
Hypothesis n_two : (2 <= n)%nat.
Hypothesis slope_pos : 0 < slope.
Hypothesis offset_range : 0 <= offset <= 1.
Hypothesis f_respects_entries : respects_entries d N f.
Hypothesis f_equivariant : JumpBound.equivariant d N f.

Definition as_matrix (X : list (list R)) : matrix := fun j i => nth i (nth j X []) 0.
Definition as_list (A : matrix) : list (list R) := map (fun j => map (A j) (seq 0 d)) (seq 0 N).
Definition on_lists (X : list (list R)) : list (list R) := as_list (f (as_matrix X)).

Lemma nth_as_list : forall A j, (j < N)%nat -> nth j (as_list A) [] = map (A j) (seq 0 d).
Proof.
  intros A j Hj. unfold as_list. rewrite (nth_indep _ [] (map (A 0%nat) (seq 0 d))) by (now rewrite map_length,
    seq_length).
  rewrite (map_nth (fun j => map (A j) (seq 0 d))), seq_nth by assumption. reflexivity.
Qed.

Lemma as_matrix_as_list : forall A j i, (j < N)%nat -> (i < d)%nat -> as_matrix (as_list A) j i = A j i.
Proof.
  intros A j i Hj Hi. unfold as_matrix. rewrite nth_as_list by assumption.
  rewrite (nth_indep _ 0 (A j 0%nat)) by (now rewrite map_length, seq_length).
  now rewrite map_nth, seq_nth.
Qed.

Lemma on_lists_equivariant : ModulatedMinimal.equivariant N on_lists.
Proof.
  intros X q LX Pq. set (pi := fun j => nth j q 0%nat). set (inverse := fun j => first j q).
  assert (Lq : length q = N) by (rewrite (Permutation_length Pq); apply seq_length).
  assert (ND : NoDup q) by (apply (Permutation_NoDup (Permutation_sym Pq)), seq_NoDup).
  assert (Bij : forall j, (j < N)%nat -> (pi j < N)%nat /\ (inverse j < N)%nat /\ inverse (pi j) = j /\ pi (inverse j)
    = j).
  { intros j Hj. assert (Hpi : In (pi j) q) by (apply nth_In; lia).
    assert (Hj' : In j q) by (apply (Permutation_in j (Permutation_sym Pq)), in_seq; lia).
    destruct (first_nth _ _ Hpi) as [B1 E1], (first_nth _ _ Hj') as [B2 E2].
    pose proof (Permutation_in (pi j) Pq Hpi) as Hs. apply in_seq in Hs. unfold inverse. repeat split.
    - lia.
    - lia.
    - rewrite NoDup_nth in ND. apply ND; [assumption|lia|exact E1].
    - exact E2. }
  assert (Eq : q = map pi (seq 0 N)).
  { rewrite <- Lq. unfold pi. clear. induction q as [|a q I]; [reflexivity|]. cbn [length seq map nth]. f_equal.
    rewrite <- seq_shift, map_map. exact I. }
  rewrite Eq at 2. rewrite map_map. unfold on_lists at 1, as_list. apply map_ext_in. intros j Hj. apply in_seq in Hj.
  unfold on_lists. rewrite nth_as_list by (apply Bij; lia). apply map_ext_in. intros i Hi. apply in_seq in Hi.
  rewrite <- (f_equivariant pi inverse Bij) by lia. apply f_respects_entries; [|lia|lia].
  intros k c Hk Hc. unfold as_matrix, pi.
  rewrite (nth_indep _ [] (nth 0 X [])) by (rewrite map_length; lia). now rewrite (map_nth (fun i => nth i X [])).
Qed.

(** ** The error *)

Definition representative (z : nat) : list R := map (point d n offset z) (seq 0 d).

Definition approximation : network reals row unit :=
  block_for d N n slope (value_at_representatives on_lists representative).

Definition radius : R := Rmax offset (1 - offset) * / INR n * sqrt (INR N * INR d).

Theorem block_error : forall w inputs cells, w_f d N p f radius w ->
  length inputs = N -> Forall2 (inside d n slope) inputs cells ->
  whole p (fun j i => as_matrix (output approximation inputs) j i - f (as_matrix inputs) j i) <= w.
Proof.
  intros w inputs cells [Hw _] HN Hin.
  assert (Npos : 2 <= INR n) by (replace 2 with (INR 2) by (cbn; lra); now apply le_INR).
  assert (dpos : 0 < / INR n) by (apply Rinv_0_lt_compat; lra).
  assert (spos : 0 < / slope) by now apply Rinv_0_lt_compat.
  assert (Shape : forall X, length X = N -> length (on_lists X) = N /\ forall y, In y (on_lists X) -> length y = d).
  { intros X _. unfold on_lists, as_list. rewrite map_length, seq_length. split; [reflexivity|]. intros y Hy.
    apply in_map_iff in Hy. destruct Hy as [j [<- _]]. now rewrite map_length, seq_length. }
  pose proof (block_represents d N n slope n_two slope_pos on_lists on_lists_equivariant Shape representative
    inputs cells HN Hin) as E.
  unfold approximation. rewrite E. clear E.
  set (Y := as_matrix (map representative (map (token_id n) cells))). set (X := as_matrix inputs).
  rewrite (whole_ext d N p _ (fun j i => f Y j i - f X j i)).
  2:{ intros j i Hj Hi. unfold on_lists. now rewrite as_matrix_as_list. }
  assert (Lc : length cells = N) by (rewrite <- (Forall2_length _ _ _ Hin); assumption).
  assert (At : forall j, (j < N)%nat -> inside d n slope (nth j inputs []) (nth j cells [])).
  { intros j Hj. rewrite <- HN in Hj. clear - Hin Hj. revert j Hj.
    induction Hin as [|x c l k H Hin I]; intros [|j] Hj; cbn in *; try lia; [assumption|]. apply I. lia. }
  assert (EY : forall j i, (j < N)%nat -> (i < d)%nat ->
    Y j i = (INR (nth i (nth j cells []) 0%nat) + offset) * / INR n).
  { intros j i Hj Hi. destruct (At j Hj) as [Ld Hd]. unfold Y, as_matrix, representative. rewrite map_map.
    rewrite (nth_indep _ [] (map (point d n offset (token_id n [])) (seq 0 d))) by (rewrite map_length; lia).
    rewrite (map_nth (fun c => map (point d n offset (token_id n c)) (seq 0 d))).
    rewrite (nth_indep _ 0 (point d n offset (token_id n (nth j cells [])) 0)) by (rewrite map_length, seq_length; lia).
    rewrite map_nth, seq_nth by assumption. cbn [Nat.add]. unfold point, token_id. do 2 f_equal. f_equal.
    rewrite <- Ld. apply coordinate_of_id; [assumption| |lia].
    intros c Hc. destruct (In_nth _ _ 0%nat Hc) as [q [Hq <-]]. apply (Hd q). lia. }
  assert (Cell : forall j i, (j < N)%nat -> (i < d)%nat -> exists b, 0 <= b <= INR n - 1 /\
    b * / INR n <= X j i <= (b + 1) * / INR n /\ Y j i = (b + offset) * / INR n).
  { intros j i Hj Hi. destruct (At j Hj) as [_ Hd]. destruct (Hd i Hi) as [Hb Hx].
    exists (INR (nth i (nth j cells []) 0%nat)).
    apply le_INR in Hb. rewrite S_INR in Hb. pose proof (pos_INR (nth i (nth j cells []) 0%nat)).
    unfold X, as_matrix. rewrite EY by assumption. repeat split; lra. }
  assert (One : forall b, b <= INR n - 1 -> (b + 1) * / INR n <= 1).
  { intros b Hb. replace 1 with (INR n * / INR n) at 2 by (field; lra). apply Rmult_le_compat_r; lra. }
  apply Hw. exists Y, X. split; [|split; [|split; [|reflexivity]]].
  - intros j i Hj Hi. destruct (Cell j i Hj Hi) as [b [Hb [_ ->]]]. split; [apply Rmult_le_pos; lra|].
    eapply Rle_trans; [|apply (One b); lra]. apply Rmult_le_compat_r; lra.
  - intros j i Hj Hi. destruct (Cell j i Hj Hi) as [b [Hb [Hx _]]]. pose proof (One b ltac:(lra)).
    assert (0 <= b * / INR n) by (apply Rmult_le_pos; lra). lra.
  - unfold radius, distance. set (m := Rmax offset (1 - offset)). pose proof (Rmax_l offset (1 - offset)).
    pose proof (Rmax_r offset (1 - offset)). fold m in H, H0.
    assert (Hm : 0 <= m * / INR n) by (apply Rmult_le_pos; lra).
    rewrite <- (sqrt_square (m * / INR n)) by assumption. rewrite <- sqrt_mult_alt by (apply Rmult_le_pos; assumption).
    apply sqrt_le_1_alt. rewrite Rmult_comm, Rmult_assoc, <- total_const. apply total_le. intros j Hj.
    rewrite <- total_const. apply total_le. intros i Hi. destruct (Cell j i Hj Hi) as [b [_ [Hx ->]]].
    assert (Up : (b + offset) * / INR n - X j i <= m * / INR n).
    { assert (offset * / INR n <= m * / INR n) by (apply Rmult_le_compat_r; lra). lra. }
    assert (Low : - (m * / INR n) <= (b + offset) * / INR n - X j i).
    { assert ((1 - offset) * / INR n <= m * / INR n) by (apply Rmult_le_compat_r; lra). lra. }
    set (r := m * / INR n) in *. set (v := (b + offset) * / INR n - X j i) in *.
    assert (0 <= (r - v) * (r + v)) by (apply Rmult_le_pos; lra). lra.
Qed.
End Approximation.
