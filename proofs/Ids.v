(** * Ids of multisets

    What Step 2 of [modulated-minimal] computes, on natural numbers and without any network ([multiset_id] of the
    Python package).  In every round the largest token id that is left is fetched and all its copies are removed; the
    digit of the round is (fetched id) + B * (tokens gone before).  The main result is [multiset_id_injective]: the own
    token id and the N digits in base S = B(N+1) determine the own token and the whole multiset, multiplicities
    included, for every B and N. *)
From Coq Require Import List Arith Lia Permutation Sorted Bool.
Import ListNotations.

(** ** Lists *)

Definition largest (l : list nat) : nat := fold_right Nat.max 0 l.
Definition without (a : nat) (l : list nat) : list nat := filter (fun z => negb (z =? a)) l.

Lemma largest_ge : forall l z, In z l -> z <= largest l.
Proof.
  induction l as [|a l I]; intros z H; [easy|]. cbn. fold (largest l). destruct H as [H|H]; [lia|].
  specialize (I z H). lia.
Qed.

Lemma largest_in : forall l, l <> [] -> In (largest l) l.
Proof.
  induction l as [|a l I]; intros H; [easy|]. cbn. fold (largest l).
  destruct l as [|b l]; [left; cbn; lia|].
  destruct (Nat.max_spec a (largest (b :: l))) as [[_ E]|[_ E]]; rewrite E; [right; now apply I|now left].
Qed.

Lemma filter_partition : forall {A} (p : A -> bool) l,
  length l = length (filter p l) + length (filter (fun z => negb (p z)) l).
Proof. induction l as [|a l I]; cbn; [reflexivity|]. destruct (p a); cbn; lia. Qed.

Lemma without_length : forall a l, In a l -> length (without a l) < length l.
Proof.
  intros a l H. rewrite (filter_partition (fun z => z =? a) l). unfold without.
  assert (In a (filter (fun z => z =? a) l)) by (apply filter_In; split; [assumption|apply Nat.eqb_refl]).
  destruct (filter (fun z => z =? a) l); [easy|cbn; lia].
Qed.

Lemma permutation_filter : forall {A} (p : A -> bool) l l', Permutation l l' -> Permutation (filter p l) (filter p l').
Proof.
  intros A p l l' H. induction H; cbn; repeat match goal with |- context [p ?a] => destruct (p a) end; auto.
  - apply perm_swap.
  - eapply perm_trans; eauto.
Qed.

Lemma permutation_largest : forall l l', Permutation l l' -> largest l = largest l'.
Proof. intros l l' H. induction H; cbn; auto; lia. Qed.

(** The position of the first z. *)
Fixpoint first (z : nat) (l : list nat) : nat :=
  match l with [] => 0 | a :: rest => if a =? z then 0 else S (first z rest) end.

Lemma first_nth : forall z l, In z l -> first z l < length l /\ nth (first z l) l 0 = z.
Proof.
  intros z l. induction l as [|a l I]; intros H; [easy|]. cbn.
  destruct (Nat.eqb_spec a z) as [->|E]; [split; [lia|reflexivity]|].
  destruct H as [H|H]; [easy|]. destruct (I H). split; [lia|assumption].
Qed.

(** ** Numbers in base S *)

Definition positional (base : nat) (digits : list nat) : nat := fold_left (fun s a => s * base + a) digits 0.

Lemma positional_snoc : forall base l a, positional base (l ++ [a]) = positional base l * base + a.
Proof. intros. unfold positional. now rewrite fold_left_app. Qed.

Lemma positional_cons : forall base l a, positional base (a :: l) = a * base ^ length l + positional base l.
Proof.
  intros base l. induction l as [|b l I] using rev_ind; intros a; [cbn; lia|].
  rewrite app_comm_cons, !positional_snoc, I. replace (length (l ++ [b])) with (S (length l)).
  - cbn [Nat.pow]. ring.
  - rewrite app_length. cbn. lia.
Qed.

Lemma positional_bound : forall base l, (forall a, In a l -> a < base) -> positional base l < base ^ length l.
Proof.
  intros base l. induction l as [|a l I]; intros H; [cbn; lia|].
  rewrite positional_cons. cbn.
  specialize (I (fun b Hb => H b (or_intror Hb))). pose proof (H a (or_introl eq_refl)).
  assert (a * base ^ length l + base ^ length l <= base * base ^ length l); [|lia].
  rewrite <- Nat.mul_succ_l. apply Nat.mul_le_mono_r. lia.
Qed.

Lemma digit_unique : forall base a b r r', r < base -> r' < base -> a * base + r = b * base + r' -> a = b /\ r = r'.
Proof.
  intros base a b r r' Hr Hr' E.
  assert (a = b) by (destruct (Nat.lt_trichotomy a b) as [H|[H|H]]; [nia|assumption|nia]).
  subst. split; [reflexivity|lia].
Qed.

Lemma positional_injective : forall base l l', length l = length l' ->
  (forall a, In a l -> a < base) -> (forall a, In a l' -> a < base) -> positional base l = positional base l' -> l = l'.
Proof.
  intros base l. induction l as [|a l I]; intros [|b l'] Hlen Hl Hl' E; try easy.
  rewrite !positional_cons in E. injection Hlen as Hlen. rewrite <- Hlen in E.
  assert (Below : forall k, (forall c, In c (b :: k) -> c < base) -> forall c, In c k -> c < base) by (intros;
    auto with *).
  apply digit_unique in E as [-> E].
  - f_equal. apply I; auto with *.
  - apply positional_bound. auto with *.
  - rewrite Hlen. apply positional_bound. auto with *.
Qed.

(** ** Increasing tables *)

Definition index (ids : list nat) (k : nat) : nat := length (filter (fun i => i <? k) ids).

Lemma index_at : forall ids j, StronglySorted lt ids -> j < length ids -> index ids (nth j ids 0) = j.
Proof.
  unfold index. induction ids as [|i l I]; intros j Hs Hj; [cbn in Hj; lia|].
  inversion Hs as [|? ? Sl Fl]; subst. rewrite Forall_forall in Fl. destruct j as [|j]; cbn [nth filter].
  - rewrite Nat.ltb_irrefl, (filter_ext_in _ (fun _ => false)).
    + clear. induction l; cbn; auto.
    + intros e He. apply Nat.ltb_ge. specialize (Fl e He). lia.
  - cbn [length] in Hj. assert (In (nth j l 0) l) as Hin by (apply nth_In; lia). apply Fl in Hin.
    rewrite (proj2 (Nat.ltb_lt _ _) Hin). cbn [length]. f_equal. apply I; [assumption|lia].
Qed.

Lemma increasing : forall ids i j, StronglySorted lt ids -> i < j -> j < length ids -> nth i ids 0 < nth j ids 0.
Proof.
  induction ids as [|k l I]; intros i j Hs Hij Hj; [cbn in Hj; lia|].
  inversion Hs as [|? ? Sl Fl]; subst. rewrite Forall_forall in Fl.
  destruct j as [|j]; [lia|]. cbn [length] in Hj. destruct i as [|i]; cbn [nth].
  - apply Fl, nth_In. lia.
  - apply I; [assumption|lia|lia].
Qed.

(** ** Rounds *)

Section Rounds.
Variables B N : nat.
Definition radix := B * (N + 1).

Section Tokens.
Variable tokens : list nat.

(** The largest id among the remaining ones; after the last round that fetches anything new, the largest of all. *)
Definition fetched (remaining : list nat) : nat :=
  match remaining with [] => largest tokens | _ => largest remaining end.

Fixpoint remaining (k : nat) : list nat :=
  match k with O => tokens | S k' => without (fetched (remaining k')) (remaining k') end.

Definition digit (k : nat) : nat := fetched (remaining k) + B * (N - length (remaining k)).

Definition sequence_id (k : nat) : nat := positional radix (map digit (seq 0 k)).

Definition multiset_id (z : nat) : nat := positional radix (z :: map digit (seq 0 N)).

Lemma multiset_id_split : forall z, multiset_id z = z * radix ^ N + sequence_id N.
Proof. intros z. unfold multiset_id. now rewrite positional_cons, map_length, seq_length. Qed.

Lemma sequence_id_next : forall k, sequence_id (S k) = sequence_id k * radix + digit k.
Proof. intros k. unfold sequence_id. rewrite seq_S, map_app. apply positional_snoc. Qed.

(** A token is gone if its id no longer remains. *)
Definition gone (k z : nat) : bool := negb (existsb (Nat.eqb z) (remaining k)).

Lemma existsb_In : forall z l, existsb (Nat.eqb z) l = true <-> In z l.
Proof.
  intros z l. rewrite existsb_exists. split; [intros [a [H E]]; apply Nat.eqb_eq in E; now subst|].
  intros H. exists z. split; [assumption|apply Nat.eqb_refl].
Qed.

Lemma gone_false : forall k z, gone k z = false <-> In z (remaining k).
Proof. intros. unfold gone. rewrite negb_false_iff. apply existsb_In. Qed.

Lemma gone_next : forall k z, gone (S k) z = gone k z || (z =? fetched (remaining k)).
Proof.
  intros k z. unfold gone. cbn [remaining]. unfold without. generalize (fetched (remaining k)) as a. intros a.
  induction (remaining k) as [|b l I].
  - reflexivity.
  - cbn. destruct (b =? a) eqn:E; cbn.
    + rewrite I. destruct (z =? b) eqn:E'; cbn; [|reflexivity].
      apply Nat.eqb_eq in E, E'. subst. rewrite Nat.eqb_refl. apply orb_true_r.
    + rewrite !negb_orb, I. destruct (z =? b) eqn:E'; cbn; [|reflexivity].
      apply Nat.eqb_eq in E'. subst. now rewrite E.
Qed.

Lemma remaining_filter : forall k, remaining k = filter (fun z => negb (gone k z)) tokens.
Proof.
  intros k. assert (P : exists p, remaining k = filter p tokens).
  { induction k as [|k [p I]].
    - exists (fun _ => true). cbn. induction tokens as [|a l I]; cbn; congruence.
    - exists (fun z => p z && negb (z =? fetched (remaining k))). cbn [remaining]. set (a := fetched _). rewrite I.
      unfold without. clear. induction tokens as [|b l I]; cbn; [reflexivity|].
      destruct (p b); cbn; [destruct (negb (b =? a)); cbn|]; rewrite I; reflexivity. }
  destruct P as [p P]. rewrite P. apply filter_ext_in. intros z Hz. unfold gone. rewrite negb_involutive, P.
  apply eq_true_iff_eq. rewrite existsb_In, filter_In. tauto.
Qed.

Lemma gone_count : forall k, length (filter (gone k) tokens) = length tokens - length (remaining k).
Proof.
  intros k. rewrite remaining_filter, (filter_partition (gone k) tokens). lia.
Qed.

Lemma remaining_sub : forall k z, In z (remaining k) -> In z tokens.
Proof. intros k z H. rewrite remaining_filter in H. now apply filter_In in H. Qed.

Lemma remaining_length : forall k, length (remaining k) <= length tokens - k.
Proof.
  induction k as [|k I]; [cbn; lia|]. cbn [remaining]. destruct (remaining k) as [|a l] eqn:E; [cbn; lia|].
  assert (In (fetched (a :: l)) (a :: l)) by (apply largest_in; easy).
  pose proof (without_length _ _ H). lia.
Qed.

Lemma fetched_in : forall k, tokens <> [] -> In (fetched (remaining k)) tokens.
Proof.
  intros k H. unfold fetched. destruct (remaining k) as [|a l] eqn:E; [now apply largest_in|].
  apply (remaining_sub k). rewrite E. now apply largest_in.
Qed.

Hypothesis below : forall z, In z tokens -> z < B.
Hypothesis length_N : length tokens = N.
Hypothesis nonempty : tokens <> [].

Lemma digit_bound : forall k, digit k < radix.
Proof.
  intros k. unfold digit, radix. pose proof (below _ (fetched_in k nonempty)).
  assert (B * (N - length (remaining k)) <= B * N) by (apply Nat.mul_le_mono_l; lia). lia.
Qed.
End Tokens.

(** In every round some token with the fetched id is not gone, unless all are, and no token that waits has a larger
    id. *)
Lemma fetched_wins : forall {A} (tokens : list A) (z : A -> nat) k, tokens <> [] ->
  let ids := map z tokens in exists w, In w tokens /\ z w = fetched ids (remaining ids k) /\
  forall a, In a tokens -> (gone ids k (z a) = gone ids k (z w) /\ z a <= z w) \/
                           (gone ids k (z a) = true /\ gone ids k (z w) = false).
Proof.
  intros A tokens z k Hne ids. assert (Hids : ids <> []) by (unfold ids; now destruct tokens).
  pose proof (fetched_in ids k Hids) as Hin. apply in_map_iff in Hin. destruct Hin as [w [Ew Hw]].
  exists w. split; [assumption|]. split; [assumption|]. intros a Ha. rewrite Ew.
  destruct (remaining ids k) as [|b l] eqn:Er.
  - left. unfold gone. rewrite Er. cbn. split; [reflexivity|]. apply largest_ge. now apply in_map.
  - assert (Hb : gone ids k (fetched ids (b :: l)) = false) by (apply gone_false; rewrite Er; now apply largest_in).
    rewrite Hb. destruct (gone ids k (z a)) eqn:Ea; [now right|left]. split; [reflexivity|].
    apply gone_false in Ea. rewrite Er in Ea. now apply largest_ge.
Qed.

Lemma waiting_below : forall tokens k z, gone tokens k z = false -> z <> fetched tokens (remaining tokens k) ->
  z + 1 <= fetched tokens (remaining tokens k).
Proof.
  intros tokens k z Hz Hne. apply gone_false in Hz. unfold fetched in *. destruct (remaining tokens k); [easy|].
  pose proof (largest_ge _ _ Hz). lia.
Qed.

(** The rounds do not depend on the order of the tokens. *)
Lemma remaining_permutation : forall l l' k, Permutation l l' -> Permutation (remaining l k) (remaining l' k).
Proof.
  intros l l' k H. induction k as [|k I]; [assumption|]. cbn [remaining]. unfold without.
  replace (fetched l' (remaining l' k)) with (fetched l (remaining l k)); [now apply permutation_filter|].
  unfold fetched. pose proof (Permutation_length I). destruct (remaining l k), (remaining l' k); try easy;
    now apply permutation_largest.
Qed.

Lemma fetched_permutation : forall l l' k, Permutation l l' -> fetched l (remaining l k) = fetched l' (remaining l' k).
Proof.
  intros l l' k H. pose proof (remaining_permutation l l' k H) as P. pose proof (Permutation_length P).
  unfold fetched. destruct (remaining l k), (remaining l' k); try easy; now apply permutation_largest.
Qed.

Lemma multiset_id_permutation : forall l l' z, Permutation l l' -> multiset_id l z = multiset_id l' z.
Proof.
  intros l l' z H. unfold multiset_id. do 2 f_equal. apply map_ext. intros k. unfold digit.
  rewrite (Permutation_length (remaining_permutation l l' k H)). f_equal. now apply fetched_permutation.
Qed.

(** ** The id determines the token and the multiset *)

Definition descending (l : list nat) : Prop := Sorted ge l.

Lemma descending_cons : forall a l, descending (a :: l) -> descending l /\ forall z, In z l -> z <= a.
Proof.
  intros a l H. apply Sorted_extends in H as E; [|intros x y z Hxy Hyz; lia]. inversion H; subst. split; [assumption|].
  intros z Hz. rewrite Forall_forall in E. specialize (E z Hz). lia.
Qed.

Lemma descending_filter : forall p l, descending l -> descending (filter p l).
Proof.
  intros p l. induction l as [|a l I]; intros H; [constructor|]. destruct (descending_cons _ _ H) as [Hl Ha]. cbn.
  destruct (p a); [|auto]. constructor; [apply I, Hl|].
  destruct (filter p l) as [|b k] eqn:E; constructor.
  apply Ha. apply (filter_In p b l). rewrite E. now left.
Qed.

(** A descending list is its largest element, repeated, followed by the others. *)
Lemma descending_split : forall l, descending l -> l <> [] ->
  l = repeat (largest l) (length l - length (without (largest l) l)) ++ without (largest l) l.
Proof.
  intros l H Hne. set (a := largest l). assert (Up : forall z, In z l -> z <= a) by apply largest_ge.
  clearbody a. clear Hne. induction l as [|b l I]; [reflexivity|].
  destruct (descending_cons _ _ H) as [Hl Hb]. unfold without in *. cbn [filter].
  destruct (Nat.eqb_spec b a) as [E|E]; cbn [negb].
  - subst b. rewrite (filter_partition (fun z => z =? a)) in I.
    pose proof (filter_partition (fun z => z =? a) l). cbn [length].
    replace (S (length l) - length (filter (fun z => negb (z =? a)) l))
      with (S (length l - length (filter (fun z => negb (z =? a)) l))) by lia.
    cbn. f_equal. rewrite H0. apply I; [assumption|auto with *].
  - assert (All : filter (fun z => negb (z =? a)) l = l).
    { clear I. assert (L : forall z, In z l -> z <> a).
      { intros z Hz ->. specialize (Hb a Hz). specialize (Up b (or_introl eq_refl)). lia. }
      clear - L. induction l as [|c l I]; [reflexivity|]. cbn. destruct (Nat.eqb_spec c a) as [->|_].
      - exfalso. apply (L a); [now left|reflexivity].
      - cbn. f_equal. apply I. auto with *. }
    rewrite All. cbn. now rewrite Nat.sub_diag.
Qed.

Theorem multiset_id_injective : forall l l' z z',
  descending l -> descending l' -> length l = N -> length l' = N -> In z l -> In z' l' ->
  (forall a, In a l -> a < B) -> (forall a, In a l' -> a < B) ->
  multiset_id l z = multiset_id l' z' -> l = l' /\ z = z'.
Proof.
  intros l l' z z' Dl Dl' Nl Nl' Hz Hz' Bl Bl' E.
  assert (Hne : l <> []) by (intros ->; easy). assert (Hne' : l' <> []) by (intros ->; easy).
  assert (SameDigits : z :: map (digit l) (seq 0 N) = z' :: map (digit l') (seq 0 N)).
  { apply (positional_injective radix); [cbn; now rewrite !map_length| | |exact E];
      intros a [<-|Ha].
    - specialize (Bl _ Hz). unfold radix. assert (B <= B * (N + 1)) by nia. lia.
    - apply in_map_iff in Ha. destruct Ha as [k [<- _]]. now apply digit_bound.
    - specialize (Bl' _ Hz'). unfold radix. assert (B <= B * (N + 1)) by nia. lia.
    - apply in_map_iff in Ha. destruct Ha as [k [<- _]]. now apply digit_bound. }
  injection SameDigits as Ez Ed. split; [|assumption].
  (* both parts of each digit agree *)
  assert (Parts : forall k, k < N -> fetched l (remaining l k) = fetched l' (remaining l' k)
                                     /\ length (remaining l k) = length (remaining l' k)).
  { intros k Hk. assert (Dk : digit l k = digit l' k).
    { assert (nth k (map (digit l) (seq 0 N)) 0 = nth k (map (digit l') (seq 0 N)) 0) by now rewrite Ed.
      rewrite !nth_indep with (d := 0) (d' := digit l 0) in H by (rewrite map_length, seq_length; lia).
      rewrite map_nth, seq_nth in H by lia.
      rewrite nth_indep with (d' := digit l' 0) in H by (rewrite map_length, seq_length; lia).
      rewrite map_nth, seq_nth in H by lia. assumption. }
    unfold digit in Dk. rewrite (Nat.add_comm (fetched l _)), (Nat.add_comm (fetched l' _)), !(Nat.mul_comm B) in Dk.
    apply digit_unique in Dk as [D1 D2]; [|apply Bl, fetched_in, Hne|apply Bl', fetched_in, Hne'].
    split; [assumption|]. pose proof (remaining_length l k). pose proof (remaining_length l' k). lia. }
  (* from the last round back to the first *)
  assert (Back : forall j, j <= N -> remaining l (N - j) = remaining l' (N - j)).
  { induction j as [|j I]; intros Hj.
    - pose proof (remaining_length l (N - 0)). pose proof (remaining_length l' (N - 0)).
      destruct (remaining l (N - 0)), (remaining l' (N - 0)); cbn in *; try lia; reflexivity.
    - specialize (I ltac:(lia)). destruct (Parts (N - S j) ltac:(lia)) as [Pf Pl].
      replace (N - j) with (S (N - S j)) in I by lia. cbn [remaining] in I. set (k := N - S j) in *.
      assert (Desc : descending (remaining l k)) by (rewrite remaining_filter; now apply descending_filter).
      assert (Desc' : descending (remaining l' k)) by (rewrite remaining_filter; now apply descending_filter).
      unfold fetched in *. destruct (remaining l k) as [|a r] eqn:Er, (remaining l' k) as [|a' r'] eqn:Er'; try easy.
      rewrite (descending_split (a :: r)), (descending_split (a' :: r')), I, Pf, Pl by (assumption || easy).
      reflexivity. }
  specialize (Back N (le_n N)). now rewrite Nat.sub_diag in Back.
Qed.
End Rounds.
