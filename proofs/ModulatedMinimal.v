(** * The block [modulated-minimal] is exact, end to end

    Step 1 counts, for every coordinate, the thresholds k/n that it has passed; Step 2 runs N rounds of "fetch the
    largest id that is left, count the tokens that are gone"; Step 3 walks through all realizable ids in increasing
    order and adds the difference of two consecutive labels once the own id is reached.

    [block_exact]: for all d, N, all n >= 2, every epsilon = 1/slope > 0, every table of real labels and all real
    inputs with entries in [b/n, (b+1)/n - epsilon] for some cells b < n, the network returns for every token the
    label of its multiset and its own id, exactly.  Equal tokens are included.  [block_represents]: so, for every
    permutation equivariant f, it returns f at the representatives of the cells.  [block_loops_count]: it takes
    n-1 + N + R-1 loops, R = B * binomial(B+N-2, N-1), B = n^d. *)
From Coq Require Import List ZArith Reals Lra Lia Arith Permutation Sorted Bool.
From Looped Require Import Network Reals Ids Table MinimalNetwork.
From Looped Require Quantizer.
Notation inside := Quantizer.inside.
Import ListNotations.
Local Open Scope R_scope.

Section Exactness.
Variables (d N n : nat) (slope : R) (known : list (nat * list R)).
Hypothesis n_two : (2 <= n)%nat.
Hypothesis slope_pos : 0 < slope.
Let B := (n ^ d)%nat.
Let S_ := radix B N.
Let net := @modulated_minimal reals d N n slope known.

(** ** The inputs: tokens with the cells that they lie in *)

Definition token_id (cells : list nat) : nat := positional n cells.

Variable tokens : list (list R * list nat).
Hypothesis inputs_inside : forall a, In a tokens -> inside d n slope (fst a) (snd a).
Hypothesis length_N : length tokens = N.

Let z (a : list R * list nat) : nat := token_id (snd a).
Let zs := map z tokens.

(** Step 1 after t loops has counted the thresholds 1/n .. t/n. *)
Definition counted (t : nat) (a : list R * list nat) : nat :=
  positional n (map (fun i => Nat.min (nth i (snd a) 0%nat) t) (seq 0 d)).

Lemma counted_0 : forall a, counted 0 a = 0%nat.
Proof.
  intros a. unfold counted. induction (seq 0 d) as [|i l I]; [reflexivity|].
  cbn [map]. rewrite positional_cons, I, Nat.min_0_r. lia.
Qed.

Lemma counted_all : forall a, In a tokens -> counted (n - 1) a = z a.
Proof.
  intros a Ha. unfold counted, z, token_id. f_equal. destruct (inputs_inside a Ha) as [L H]. rewrite <- L in *.
  transitivity (map (fun i => nth i (snd a) 0%nat) (seq 0 (length (snd a)))).
  - apply map_ext_in. intros i Hi. apply in_seq in Hi. destruct (H i ltac:(lia)) as [Hn _]. lia.
  - clear. induction (snd a) as [|c l I]; [reflexivity|]. cbn [length seq map nth]. f_equal.
    rewrite <- seq_shift, map_map. exact I.
Qed.

Lemma counted_below : forall t a, In a tokens -> (counted t a < B)%nat.
Proof.
  intros t a Ha. unfold counted, B. eapply Nat.lt_le_trans; [apply positional_bound|].
  - intros c Hc. apply in_map_iff in Hc. destruct Hc as [i [<- Hi]]. apply in_seq in Hi.
    destruct (inputs_inside a Ha) as [_ H]. destruct (H i ltac:(lia)). lia.
  - now rewrite map_length, seq_length.
Qed.

Lemma z_below : forall a, In a tokens -> (z a < B)%nat.
Proof. intros a Ha. rewrite <- counted_all by assumption. now apply counted_below. Qed.

Lemma positional_sum : forall (c : nat -> nat) k s,
  INR (positional n (map c (seq s k))) =
  @sum reals (map (fun i => INR (n ^ (s + k - 1 - i)) * INR (c i)) (seq s k)).
Proof.
  intros c k. induction k as [|k I]; intros s; [reflexivity|].
  cbn [seq map]. rewrite positional_cons, plus_INR, mult_INR, map_length, seq_length, I. cbn [sum fold_right].
  numerals. replace (s + S k - 1 - s)%nat with k by lia. rewrite (Rmult_comm (INR (c s))). f_equal.
  unfold sum. replace (s + S k)%nat with (S s + k)%nat by lia. reflexivity.
Qed.

Lemma counted_next : forall t a, In a tokens ->
  INR (counted (S t) a) = INR (counted t a) +
    @sum reals (map (fun i => INR (n ^ (d - 1 - i)) * T (slope * (nth i (fst a) 0 - INR (S t) * / INR n))) (seq 0 d)).
Proof.
  intros t a Ha. unfold counted. rewrite !positional_sum. cbn [Nat.add].
  assert (H : forall i, In i (seq 0 d) ->
    INR (Nat.min (nth i (snd a) 0%nat) (S t)) = INR (Nat.min (nth i (snd a) 0%nat) t) +
      T (slope * (nth i (fst a) 0 - INR (S t) * / INR n))).
  { intros i Hi. apply in_seq in Hi. destruct (inputs_inside a Ha) as [_ H]. destruct (H i ltac:(lia)) as [_ [Lo Hi']].
    assert (Npos : 0 < / INR n) by (apply Rinv_0_lt_compat, lt_0_INR; lia). set (b := nth i (snd a) 0%nat) in *.
    destruct (le_lt_dec (S t) b) as [L|L].
    - rewrite T_one.
      + replace (Nat.min b (S t)) with (S t) by lia. replace (Nat.min b t) with t by lia. rewrite S_INR. lra.
      + apply Rmult_le_pos; [lra|]. apply le_INR in L.
        assert (INR (S t) * / INR n <= INR b * / INR n) by (apply Rmult_le_compat_r; lra). lra.
    - rewrite T_zero.
      + replace (Nat.min b (S t)) with b by lia. replace (Nat.min b t) with b by lia. lra.
      + assert (L' : (b + 1 <= S t)%nat) by lia. apply le_INR in L'. rewrite plus_INR in L'.
        change (INR 1) with 1 in L'.
        assert ((INR b + 1) * / INR n <= INR (S t) * / INR n) by (apply Rmult_le_compat_r; lra).
        assert (nth i (fst a) 0 - INR (S t) * / INR n <= - / slope) by lra.
        apply Rle_trans with (slope * (- / slope)); [apply Rmult_le_compat_l; lra|]. right. field. lra. }
  induction (seq 0 d) as [|i l I]; [cbn; lra|]. cbn [map sum fold_right]. unfold sum in I. numerals.
  rewrite I by (intros; apply H; now right). rewrite H by now left. ring.
Qed.

(** ** The state in each of the three steps *)

Definition c_at (t : nat) : R := @threshold reals N n known (Nat.min t (loops net - 1)).

Lemma c_next : forall t, (t < loops net)%nat -> c_at (S t) = c_at t + eta net t C.
Proof.
  intros t Ht. unfold c_at. change (eta net t C) with (@block_eta reals N n known t C).
  change (loops net) with (block_loops N n known) in *. cbn [block_eta].
  destruct (Nat.ltb_spec (t + 1) (block_loops N n known)).
  - replace (Nat.min (S t) _) with (t + 1)%nat by lia. replace (Nat.min t _) with t by lia. numerals. lra.
  - replace (Nat.min (S t) _) with (block_loops N n known - 1)%nat by lia.
    replace (Nat.min t _) with (block_loops N n known - 1)%nat by lia. numerals. lra.
Qed.

(** [time] loops have run, [id] is the row id, m rounds of Step 2 are over, and j labels have been passed. *)
Definition state (time : nat) (id : list R * list nat -> nat) (m : nat) (j : list R * list nat -> nat)
    (a : list R * list nat) (r : row) : R :=
  match r with
  | X i => nth i (fst a) 0
  | C => c_at time
  | Id => INR (id a)
  | Gone => if gone zs m (z a) then - 2 * INR B else 0
  | One => 1
  | Seq => INR (sequence_id B N zs m)
  | Out i => @label_at reals known (j a) i
  | Best | Count => 0
  end.

Definition matrix (g : list R * list nat -> row -> R) : list (list R) := map (fun a => map (g a) (rows net)) tokens.

Lemma matrix_ext : forall g g', (forall a r, In a tokens -> In r (rows net) -> g a r = g' a r) -> matrix g = matrix g'.
Proof. intros g g' H. unfold matrix. apply map_ext_in. intros a Ha. apply map_ext_in. intros r Hr. now apply H. Qed.

Lemma zs_nonempty : tokens <> [] -> zs <> [].
Proof. unfold zs. now destruct tokens. Qed.

(** In Step 1 nobody is gone, and the largest number counted so far is fetched. *)
Lemma best_step_one : forall t, tokens <> [] -> exists w, In w tokens /\
  counted t w = largest (map (counted t) tokens) /\
  forall a, In a tokens -> (gone zs 0 (z a) = gone zs 0 (z w) /\ (counted t a <= counted t w)%nat) \/
                           (gone zs 0 (z a) = true /\ gone zs 0 (z w) = false).
Proof.
  intros t Hne. assert (Hin : In (largest (map (counted t) tokens)) (map (counted t) tokens)).
  { apply largest_in. now destruct tokens. }
  apply in_map_iff in Hin. destruct Hin as [w [Ew Hw]]. exists w. split; [assumption|]. split; [assumption|].
  intros a Ha. left. split.
  - transitivity false; [|symmetry]; apply gone_false; now apply in_map.
  - rewrite Ew. apply largest_ge. now apply in_map.
Qed.

Lemma gone_tokens : forall m, length (filter (fun a => gone zs m (z a)) tokens) = (N - length (remaining zs m))%nat.
Proof.
  intros m. rewrite <- length_N. replace (length tokens) with (length zs) by apply map_length.
  rewrite <- gone_count. symmetry. apply (filter_map_length (gone zs m) z tokens).
Qed.

Lemma eta_values : forall t,
  eta net t Id = (if (t <? n - 1)%nat then 1 else 0) /\
  eta net t Gone = (if ((n - 1 <=? t) && (t <? lead N n))%nat then 1 else 0) /\
  eta net t Seq = (if ((n - 1 <=? t) && (t <? lead N n))%nat then 1 else 0) /\
  forall i, eta net t (Out i) = if (t <? lead N n)%nat then 0
    else @label_at reals known (t - lead N n + 1) i - @label_at reals known (t - lead N n) i.
Proof.
  intros t. cbn [eta net modulated_minimal block_eta]. repeat split.
  intros i. destruct (t <? lead N n)%nat; [reflexivity|]. numerals. lra.
Qed.

Lemma c_step_one : forall t, (t < n - 1)%nat -> c_at t = INR (S t) * / INR n.
Proof.
  intros t Ht. unfold c_at. change (loops net) with (block_loops N n known). unfold block_loops, lead.
  replace (Nat.min t _) with t by lia. unfold threshold.
  destruct (Nat.ltb_spec t (n - 1)); [|lia]. rewrite !of_nat_INR. numerals. now rewrite Nat.add_1_r.
Qed.

Lemma step_one : forall t, tokens <> [] -> (t <= n - 1)%nat ->
  run net t (matrix (state 0 (counted 0) 0 (fun _ => 0%nat))) = matrix (state t (counted t) 0 (fun _ => 0%nat)).
Proof.
  intros t Hne. induction t as [|t I]; intros Ht; [reflexivity|]. cbn [run]. rewrite I by lia. unfold matrix at 1.
  rewrite (one_loop d N n slope known n_two tokens _ (counted t) (fun a => gone zs 0 (z a))
    (largest (map (counted t) tokens))).
  2: intros; now apply counted_below.
  2-6: reflexivity.
  2: assumption.
  2: now apply best_step_one.
  apply matrix_ext. intros a r Ha Hr. destruct (eta_values t) as [Eid [Egone [Eseq Eout]]].
  destruct (Nat.ltb_spec t (n - 1)); [|lia]. destruct (Nat.leb_spec (n - 1) t); [lia|].
  destruct (Nat.ltb_spec t (lead N n)); [|unfold lead in *; lia]. cbn [andb] in *.
  destruct r; cbn [next state]; fold B; fold S_; fold net; rewrite ?Eid, ?Egone, ?Eseq, ?Eout; try lra.
  - rewrite c_next; [reflexivity|]. cbn. unfold block_loops, lead. lia.
  - rewrite c_step_one, counted_next by assumption. lra.
Qed.

Lemma step_two : forall m, tokens <> [] -> (m <= N)%nat ->
  run net (n - 1 + m) (matrix (state 0 (counted 0) 0 (fun _ => 0%nat))) =
  matrix (state (n - 1 + m) z m (fun _ => 0%nat)).
Proof.
  intros m Hne. induction m as [|m I]; intros Hm.
  - rewrite Nat.add_0_r, step_one by (assumption || lia). apply matrix_ext. intros a r Ha _.
    destruct r; try reflexivity. cbn [state]. now rewrite counted_all.
  - rewrite Nat.add_succ_r. cbn [run]. rewrite I by lia. unfold matrix at 1.
    rewrite (one_loop d N n slope known n_two tokens _ z (fun a => gone zs m (z a)) (fetched zs (remaining zs m))).
    2: intros; now apply z_below.
    2-6: reflexivity.
    2: assumption.
    2: now apply fetched_wins.
    apply matrix_ext. intros a r Ha Hr. destruct (eta_values (n - 1 + m)) as [Eid [Egone [Eseq Eout]]].
    destruct (Nat.ltb_spec (n - 1 + m) (n - 1)); [lia|]. destruct (Nat.leb_spec (n - 1) (n - 1 + m)); [|lia].
    destruct (Nat.ltb_spec (n - 1 + m) (lead N n)); [|unfold lead in *; lia]. cbn [andb] in *.
    destruct r; cbn [next state]; fold B; fold S_; fold net; rewrite ?Eid, ?Egone, ?Eseq, ?Eout; try lra.
    + rewrite c_next; [reflexivity|]. cbn. unfold block_loops, lead. lia.
    + rewrite gone_next. pose proof (base_pos n d n_two : 1 <= INR B). pose proof (lt_INR _ _ (z_below a Ha)).
      pose proof (pos_INR (fetched zs (remaining zs m))) as P.
      destruct (gone zs m (z a)) eqn:Ea; cbn [orb].
      * rewrite relu_neg by lra. lra.
      * destruct (Nat.eqb_spec (z a) (fetched zs (remaining zs m))) as [E|E].
        -- rewrite E, relu_pos by lra. lra.
        -- pose proof (waiting_below zs m (z a) Ea E) as L.
           apply le_INR in L. rewrite plus_INR in L. change (INR 1) with 1 in L. rewrite relu_neg by lra. lra.
    + rewrite sequence_id_next, relu_pos by apply pos_INR. unfold digit. rewrite gone_tokens.
      rewrite !plus_INR, !mult_INR. fold S_. lra.
Qed.

(** ** Step 3: the table *)

Hypothesis sorted : StronglySorted lt (map fst known).

Let ids := map fst known.

Lemma id_at_nth : forall j, id_at (F := reals) known j = nth j ids 0%nat.
Proof. intros j. unfold id_at, ids. rewrite <- (map_nth fst). reflexivity. Qed.

Let own_id (a : list R * list nat) : nat := multiset_id B N zs (z a).

Hypothesis known_ids : forall a, In a tokens -> In (own_id a) ids.

Lemma index_spec : forall a, In a tokens ->
  (index ids (own_id a) < length known)%nat /\ nth (index ids (own_id a)) ids 0%nat = own_id a.
Proof.
  intros a Ha. destruct (In_nth _ _ 0%nat (known_ids a Ha)) as [j [Hj E]]. rewrite <- E, index_at by assumption.
  unfold ids in Hj. rewrite map_length in Hj. now split.
Qed.

Lemma step_three : forall j, tokens <> [] -> (j <= length known - 1)%nat ->
  run net (lead N n + j) (matrix (state 0 (counted 0) 0 (fun _ => 0%nat))) =
  matrix (state (lead N n + j) z N (fun a => Nat.min j (index ids (own_id a)))).
Proof.
  intros j Hne. induction j as [|j I]; intros Hj.
  - rewrite Nat.add_0_r. unfold lead. rewrite step_two by (assumption || lia). reflexivity.
  - rewrite Nat.add_succ_r. cbn [run]. rewrite I by lia. unfold matrix at 1.
    rewrite (one_loop d N n slope known n_two tokens _ z (fun a => gone zs N (z a)) (fetched zs (remaining zs N))).
    2: intros; now apply z_below.
    2-6: reflexivity.
    2: assumption.
    2: now apply fetched_wins.
    apply matrix_ext. intros a r Ha Hr. destruct (eta_values (lead N n + j)) as [Eid [Egone [Eseq Eout]]].
    destruct (Nat.ltb_spec (lead N n + j) (n - 1)); [unfold lead in *; lia|].
    destruct (Nat.ltb_spec (lead N n + j) (lead N n)); [lia|]. rewrite andb_false_r in *.
    assert (Hloops : loops net = (lead N n + (length known - 1))%nat) by reflexivity.
    destruct r as [i| | | | | | | |i]; cbn [next state]; fold B; fold S_; fold net;
      rewrite ?Eid, ?Egone, ?Eseq, ?Eout; try lra.
    + rewrite c_next; [reflexivity|lia].
    + replace (lead N n + j - lead N n)%nat with j by lia.
      assert (Ec : c_at (lead N n + j) = INR (nth (j + 1) ids 0%nat) - / 4).
      { unfold c_at. rewrite Hloops. replace (Nat.min _ _) with (lead N n + j)%nat by lia. unfold threshold.
        destruct (Nat.ltb_spec (lead N n + j) (n - 1)); [unfold lead in *; lia|].
        destruct (Nat.ltb_spec (lead N n + j) (lead N n)); [lia|].
        destruct (Nat.ltb_spec (lead N n + j) (block_loops N n known));
          [|change (block_loops N n known) with (loops net) in *; lia].
        replace (lead N n + j - lead N n + 1)%nat with (j + 1)%nat by lia. rewrite id_at_nth, of_nat_INR. numerals.
        lra. }
      assert (Ek : INR (S_ ^ N) * INR (z a) + INR (sequence_id B N zs N) = INR (own_id a)).
      { unfold own_id. rewrite multiset_id_split, plus_INR, mult_INR. fold S_. lra. }
      rewrite Ec, Ek. destruct (index_spec a Ha) as [Hp Ep].
      assert (Hids : length ids = length known) by apply map_length.
      destruct (le_lt_dec (j + 1) (index ids (own_id a))) as [L|L].
      * assert (Le : (nth (j + 1) ids 0 <= own_id a)%nat).
        { rewrite <- Ep. destruct (Nat.eq_dec (j + 1) (index ids (own_id a))) as [->|]; [lia|].
          apply Nat.lt_le_incl, increasing; [assumption|lia|rewrite Hids; lia]. }
        apply le_INR in Le. rewrite T_one by lra. replace (Nat.min j _) with j by lia.
        replace (Nat.min (S j) _) with (j + 1)%nat by lia. lra.
      * assert (Lt : (own_id a + 1 <= nth (j + 1) ids 0)%nat).
        { rewrite <- Ep at 1. rewrite Nat.add_1_r.
          apply Nat.le_succ_l, increasing; [assumption|lia|rewrite Hids; lia]. }
        apply le_INR in Lt. rewrite plus_INR in Lt. change (INR 1) with 1 in Lt. rewrite T_zero by lra.
        replace (Nat.min j _) with (index ids (own_id a)) by lia.
        replace (Nat.min (S j) _) with (index ids (own_id a)) by lia. lra.
Qed.

Lemma block_exact_at : output net (map fst tokens) =
  map (fun a => map (fun i => @label_at reals known (index ids (own_id a)) i) (seq 0 d)) tokens.
Proof.
  assert (H : tokens = [] \/ tokens <> []) by (destruct tokens; [now left|now right]).
  destruct H as [E|Hne].
  { rewrite E. unfold output. cbn [map]. now replace (run net (loops net) []) with (@nil (list R))
      by (induction (loops net) as [|t I]; [reflexivity|cbn [run]; now rewrite <- I]). }
  assert (Start : map (start net) (map fst tokens) = matrix (state 0 (counted 0) 0 (fun _ => 0%nat))).
  { unfold matrix. rewrite map_map. apply map_ext_in. intros a Ha. unfold start. apply map_ext_in. intros r Hr.
    cbn [encode net modulated_minimal block_encode]. destruct r; unfold eval, reads, constant;
      cbn [block_encode fold_right terms const fst snd reads constant state]; numerals; try reflexivity; try lra.
    - rewrite c_step_one by lia. rewrite of_nat_INR. cbn [INR]. lra.
    - rewrite counted_0. reflexivity.
    - destruct (gone zs 0 (z a)) eqn:Eg; [|reflexivity]. exfalso.
      assert (gone zs 0 (z a) = false) by (apply gone_false; now apply in_map). congruence. }
  unfold output. rewrite Start. change (loops net) with (lead N n + (length known - 1))%nat.
  rewrite step_three by (assumption || lia). unfold matrix. rewrite map_map. apply map_ext_in. intros a Ha.
  cbn [decode net modulated_minimal]. rewrite map_map. apply map_ext_in. intros i Hi. apply in_seq in Hi.
  unfold eval, reads. cbn [fold_right terms const fst snd]. rewrite read_map by (apply in_rows; lia).
  cbn [state]. destruct (index_spec a Ha) as [Hp _]. replace (Nat.min _ _) with (index ids (own_id a)) by lia.
  numerals. lra.
Qed.
End Exactness.

(** ** The theorem, with the table of all labels *)

Lemma Forall2_length : forall {A B} (r : A -> B -> Prop) l k, Forall2 r l k -> length l = length k.
Proof. intros A B r l k H. induction H; cbn; congruence. Qed.

Section Labels.
Variables (d N n : nat) (slope : R).
Hypothesis n_two : (2 <= n)%nat.
Hypothesis slope_pos : 0 < slope.
Let B := (n ^ d)%nat.

Definition block_for (label : list nat -> nat -> list R) : network reals row unit :=
  modulated_minimal d N n slope (table B N label).

Theorem block_exact : forall (label : list nat -> nat -> list R) (inputs : list (list R)) (cells : list (list nat)),
  (forall s z, In s (sequences N B) -> In z s -> length (label s z) = d) ->
  length inputs = N -> Forall2 (inside d n slope) inputs cells ->
  let ids := map (token_id n) cells in
  output (block_for label) inputs = map (label (arrange ids)) ids.
Proof.
  intros label inputs cells Hlabel HN Hin ids.
  destruct (paired _ _ _ Hin) as [tokens [-> [-> Inside]]].
  assert (HNt : length tokens = N) by (rewrite <- HN; now rewrite map_length).
  assert (Eids : map (fun a => token_id n (snd a)) tokens = ids) by (unfold ids; now rewrite map_map).
  assert (Below : forall z, In z ids -> (z < B)%nat).
  { intros z Hz. rewrite <- Eids in Hz. apply in_map_iff in Hz. destruct Hz as [a [<- Ha]].
    now apply (z_below d N n slope n_two tokens). }
  assert (Seqs : In (arrange ids) (sequences N B)).
  { pose proof (arrange_permutation ids) as P. apply in_sequences. split; [|split].
    - rewrite <- (Permutation_length P), <- HNt, <- Eids. now rewrite map_length.
    - apply arrange_descending.
    - intros z Hz. apply Below. now apply (Permutation_in z (Permutation_sym P)). }
  assert (Holds : forall z, In z ids -> In (multiset_id B N ids z, label (arrange ids) z) (table B N label)).
  { intros z Hz. rewrite (multiset_id_permutation B N ids (arrange ids) z (arrange_permutation ids)).
    apply table_holds; [assumption|]. now apply (Permutation_in z (arrange_permutation ids)). }
  unfold block_for. rewrite (block_exact_at d N n slope (table B N label) n_two slope_pos tokens).
  - fold B. rewrite Eids. unfold ids at 3. rewrite !map_map. apply map_ext_in. intros a Ha.
    set (z := token_id n (snd a)). assert (Hz : In z ids) by (rewrite <- Eids;
      now apply (in_map (fun b => token_id n (snd b)))).
    destruct (In_nth _ _ (0%nat, []) (Holds z Hz)) as [j [Hj Ej]].
    assert (Eid : nth j (map fst (table B N label)) 0%nat = multiset_id B N ids z).
    { change 0%nat with (fst (0%nat, @nil R)). now rewrite map_nth, Ej. }
    rewrite <- Eid, index_at by (apply table_sorted || now rewrite map_length).
    transitivity (map (fun i => nth i (label (arrange ids) z) 0) (seq 0 d)).
    + apply map_ext. intros i. unfold label_at. cbn [number reals]. now rewrite Ej.
    + rewrite <- (Hlabel (arrange ids) z Seqs) by (now apply (Permutation_in z (arrange_permutation ids))).
      clear. induction (label (arrange ids) z) as [|y l I]; [reflexivity|].
      cbn [length seq map nth]. f_equal. rewrite <- seq_shift, map_map. exact I.
  - assumption.
  - assumption.
  - apply table_sorted.
  - intros a Ha. fold B. rewrite Eids.
    assert (Hz : In (token_id n (snd a)) ids) by (rewrite <- Eids; now apply (in_map (fun b => token_id n (snd b)))).
    apply (in_map fst _ _ (Holds _ Hz)).
Qed.

Theorem block_loops_count : forall label, (1 <= N)%nat ->
  loops (block_for label) = (n - 1 + N + (B * binomial (B + N - 2) (N - 1) - 1))%nat.
Proof.
  intros label HN. cbn [loops block_for modulated_minimal]. unfold block_loops, lead.
  pose proof (table_length B N label HN) as E. cbn [number reals]. now rewrite E.
Qed.

(** ** The theorem for a permutation equivariant function *)

(** f(X pi) = f(X) pi for every permutation pi of the N columns; X is the list of its columns. *)
Definition equivariant (f : list (list R) -> list (list R)) : Prop :=
  forall X p, length X = N -> Permutation p (seq 0 N) ->
  f (map (fun i => nth i X []) p) = map (fun i => nth i (f X) []) p.

(** Two orders of the same tokens: a permutation that takes one to the other, and position j to position q. *)
Lemma matching : forall (l l' : list nat) j q, Permutation l l' -> (j < length l)%nat -> (q < length l')%nat ->
  nth j l 0%nat = nth q l' 0%nat ->
  exists p, Permutation p (seq 0 (length l)) /\ l' = map (fun i => nth i l 0%nat) p /\ nth q p 0%nat = j.
Proof.
  intros l l' j q P Hj Hq E.
  assert (Seq : seq 0 (length l) = seq 0 j ++ j :: seq (S j) (length l - S j)).
  { replace (length l) with (j + S (length l - S j))%nat at 1 by lia. now rewrite seq_app. }
  destruct (nth_split l' 0%nat Hq) as [m1 [m2 [Em Lm]]].
  assert (El : l = map (fun i => nth i l 0%nat) (seq 0 (length l))).
  { clear. induction l as [|a l I]; [reflexivity|]. cbn [length seq map nth]. f_equal.
    rewrite <- seq_shift, map_map. exact I. }
  assert (Q : Permutation (m1 ++ m2) (map (fun i => nth i l 0%nat) (seq 0 j ++ seq (S j) (length l - S j)))).
  { rewrite map_app. apply (Permutation_app_inv _ _ _ _ (nth q l' 0%nat)). rewrite <- Em, <- E.
    change (nth j l 0%nat :: map (fun i => nth i l 0%nat) (seq (S j) (length l - S j)))
      with (map (fun i => nth i l 0%nat) (j :: seq (S j) (length l - S j))).
    rewrite <- map_app, <- Seq, <- El. now symmetry. }
  apply Permutation_map_inv in Q as [p [Ep Pp]].
  assert (Lp : (length m1 <= length p)%nat).
  { apply (f_equal (@length nat)) in Ep. rewrite app_length, map_length in Ep. lia. }
  exists (firstn (length m1) p ++ j :: skipn (length m1) p). split; [|split].
  - rewrite Seq. rewrite <- !Permutation_middle. constructor. rewrite firstn_skipn. now symmetry.
  - rewrite Em, map_app. cbn [map]. rewrite <- firstn_map, <- skipn_map, <- Ep, E.
    rewrite firstn_app, firstn_all, Nat.sub_diag, firstn_O, app_nil_r.
    rewrite skipn_app, skipn_all, Nat.sub_diag, skipn_O. reflexivity.
  - rewrite app_nth2; rewrite firstn_length_le by assumption; [|lia]. now rewrite Lm, Nat.sub_diag.
Qed.

Variable f : list (list R) -> list (list R).
Hypothesis f_equivariant : equivariant f.
Hypothesis f_shape : forall X, length X = N -> length (f X) = N /\ forall y, In y (f X) -> length y = d.
Variable point : nat -> list R.  (* the representative of each cell: its corner, its centre, or any other point *)

Definition value_at_representatives (s : list nat) (z : nat) : list R :=
  nth (first z s) (f (map point s)) [].

Theorem block_represents : forall inputs cells,
  length inputs = N -> Forall2 (inside d n slope) inputs cells ->
  output (block_for value_at_representatives) inputs = f (map point (map (token_id n) cells)).
Proof.
  intros inputs cells HN Hin. rewrite (block_exact value_at_representatives inputs cells); [|..|assumption|assumption].
  2:{ intros s z Hs Hz. apply in_sequences in Hs as [Ls _]. destruct (f_shape (map point s)) as [Lf Df].
      - now rewrite map_length.
      - apply Df, nth_In. destruct (first_nth z s Hz). lia. }
  cbv zeta. set (ids := map (token_id n) cells). set (s := arrange ids).
  assert (Lids : length ids = N) by (unfold ids; rewrite map_length, <- (Forall2_length _ _ _ Hin); assumption).
  destruct (f_shape (map point ids)) as [Lf Df]; [now rewrite map_length|].
  change (map (value_at_representatives s) ids = f (map point ids) :> list (list R)).
  apply (nth_ext _ _ [] []); rewrite map_length; [congruence|]. intros j Hj.
  rewrite (nth_indep _ [] (value_at_representatives s 0)) by (now rewrite map_length).
  rewrite map_nth. set (z := nth j ids 0%nat).
  assert (Hz : In z s) by (apply (Permutation_in z (arrange_permutation ids)); now apply nth_In).
  destruct (first_nth z s Hz) as [Hq Eq].
  destruct (matching ids s j (first z s) (arrange_permutation ids) Hj Hq (eq_sym Eq)) as [p [Pp [Es Ej]]].
  assert (Key : nth (first z s) (f (map point s)) [] = nth j (f (map point ids)) []).
  { assert (E : map point s = map (fun i => nth i (map point ids) []) p).
    { rewrite Es, map_map. apply map_ext_in. intros i Hi.
      apply (Permutation_in i Pp) in Hi. apply in_seq in Hi.
      rewrite (nth_indep _ [] (point 0)) by (rewrite map_length; lia). symmetry. apply map_nth. }
    rewrite E, f_equivariant by (rewrite ?map_length, <- ?Lids; assumption || reflexivity).
    assert (Lp : length p = length s) by (rewrite Es; now rewrite map_length).
    rewrite (nth_indep _ [] (nth 0 (f (map point ids)) [])) by (rewrite map_length; lia).
    rewrite (map_nth (fun i => nth i (f (map point ids)) [])). now rewrite Ej. }
  exact Key.
Qed.
End Labels.
