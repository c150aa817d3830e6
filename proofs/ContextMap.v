(** * Lemma "contextmap", corrected

    The network of [contextual.contextual_map] in the Python package: 5 rows, one head of size 1, width 3, N loops.
    In every loop the head fetches the largest key; the layer deselects the tokens that were fetched, by lowering
    their keys by 2B, and appends the fetched id to the sequence id as a digit in base B.

    [contextual_map_exact]: for all B, N and all token ids below B, distinct or not, every token ends with the number
    whose digits are the ids fetched round by round; ties share the attention evenly and fetch their common id.
    [contextual_map_distinct]: for distinct ids these digits are all ids in descending order, so the map is injective
    on sets of tokens.  [contextual_map_duplicates] is the counter-example for equal tokens: (5, 5, 3) and (5, 3, 3)
    get the same number. *)
From Coq Require Import List ZArith Reals Lra Lia Arith Permutation Bool.
From Looped Require Import Network Reals Ids Table.
Import ListNotations.

(** ** The network *)

Inductive row := Id | Key | One | Best | Seq.
Inductive unit := Chosen | Fetched | Digits.

Definition same_row (a b : row) : {a = b} + {a <> b}.
Proof. decide equality. Defined.

Definition same_unit (a b : unit) : {a = b} + {a <> b}.
Proof. decide equality. Defined.

Section Definition_of_the_map.
Context {F : numbers}.
Variables (B N : nat).
Local Open Scope number_scope.

Definition map_argument (u : unit) : form F row :=
  match u with
  | Chosen => Form [(one, Key); (opp one, Best)] (inv (of_Z 2))
  | Fetched => reads Best
  | Digits => reads Seq
  end.

Definition map_update (r : row) : form F unit :=
  match r with
  | Key => Form [(of_Z (-4) * #B, Chosen)] zero
  | Best => Form [(opp one, Fetched)] zero
  | Seq => Form [(#B - one, Digits); (one, Fetched)] zero
  | Id | One => constant zero
  end.

Definition map_encode (r : row) : form F nat :=
  match r with Id | Key => reads 0%nat | One => constant one | Best | Seq => constant zero end.

Definition contextual_map : network F row unit := {|
  rows := [Id; Key; One; Best; Seq];
  Network.same_row := same_row;
  units := [Chosen; Fetched; Digits];
  Network.same_unit := same_unit;
  encode := map_encode;
  heads := [Head (reads Id) (reads Key) (reads One) Best];
  argument := map_argument;
  update := map_update;
  eta := fun _ _ => one;
  decode := [reads Seq];
  loops := N
|}.
End Definition_of_the_map.

(** ** The theorem *)

Section Exactness.
Local Open Scope R_scope.
Variables (B N : nat) (tokens : list nat).
Hypothesis below : forall z, In z tokens -> (z < B)%nat.
Let net := @contextual_map reals B N.

(** The ids fetched in the first m rounds, and the number that they make. *)
Definition fetches (m : nat) : list nat := map (fun k => fetched tokens (remaining tokens k)) (seq 0 m).

Lemma fetches_next : forall m,
  positional B (fetches (S m)) = (positional B (fetches m) * B + fetched tokens (remaining tokens m))%nat.
Proof. intros m. unfold fetches. rewrite seq_S, map_app. apply positional_snoc. Qed.

Definition state (m z : nat) (r : row) : R :=
  match r with
  | Id => INR z
  | Key => INR z - if gone tokens m z then 2 * INR B else 0
  | One => 1
  | Best => 0
  | Seq => INR (positional B (fetches m))
  end.

Definition attended (m z : nat) (r : row) : R :=
  match r with Best => INR (fetched tokens (remaining tokens m)) | _ => state m z r end.

Lemma all_rows : forall r, In r (rows net).
Proof. intros []; cbn; tauto. Qed.

Lemma fetch : forall m x, In x tokens ->
  attend net (Head (reads Id) (reads Key) (reads One) Best)
    (map (fun z => map (state m z) (rows net)) tokens) (map (state m x) (rows net)) =
  INR (fetched tokens (remaining tokens m)).
Proof.
  intros m x Hx. assert (Hne : tokens <> []) by (intros E; now rewrite E in Hx).
  destruct (fetched_wins tokens (fun z => z) m Hne) as [w [Hw [Ew Hmax]]]. rewrite map_id in *.
  rewrite (attend_by_rows net tokens (state m) _ _ (fun z => state m z Key) INR).
  - rewrite (attend_largest tokens (fun z => state m z Key) INR w Hw); [now rewrite Ew| |].
    + intros z Hz. cbn [state]. pose proof (lt_INR _ _ (below z Hz)). pose proof (pos_INR z). pose proof (pos_INR w).
      destruct (Hmax z Hz) as [[-> L]|[-> ->]]; cbv iota; [apply le_INR in L|]; lra.
    + intros z Hz E. cbn [state] in E. pose proof (lt_INR _ _ (below z Hz)). pose proof (lt_INR _ _ (below w Hw)).
      pose proof (pos_INR z). pose proof (pos_INR w). destruct (gone tokens m z), (gone tokens m w); lra.
  - intros z Hz. unfold eval, reads. cbn [fold_right terms const fst snd key query].
    rewrite !read_map by apply all_rows. numerals. cbn [state]. lra.
  - intros z Hz. unfold eval, reads. cbn [fold_right terms const fst snd value].
    rewrite read_map by apply all_rows. numerals. cbn [state]. lra.
Qed.

Lemma round : forall m, loop net m (map (fun z => map (state m z) (rows net)) tokens) =
  map (fun z => map (state (S m) z) (rows net)) tokens.
Proof.
  intros m. apply (loop_by_rows net tokens (state m) (attended m) (state (S m))).
  - intros z r Hz _. unfold heard. cbn [heads net contextual_map map sum fold_right into Network.same_row].
    rewrite fetch by assumption. destruct r; cbn -[INR state]; numerals; cbn [state]; lra.
  - intros z r Hz _. set (a := fetched tokens (remaining tokens m)).
    assert (P : 0 <= INR a) by apply pos_INR. pose proof (pos_INR z) as Hp.
    pose proof (le_INR _ _ (below z Hz)) as Hb. rewrite S_INR in Hb.
    assert (Q : 0 <= INR (positional B (fetches m))) by apply pos_INR.
    destruct r; cbn [attended update net contextual_map map_update eta]; unfold eval, constant;
      cbn [fold_right terms const fst snd]; unfold hidden; cbn [argument net contextual_map map_argument];
      unfold eval, reads; cbn [fold_right terms const fst snd]; rewrite ?read_map by apply all_rows;
      cbn [attended]; fold a; rewrite ?of_nat_INR; numerals; cbn [state].
    + lra.
    + rewrite gone_next. fold a. destruct (gone tokens m z) eqn:E; cbn [orb]; cbv iota.
      * rewrite relu_neg by lra. lra.
      * destruct (Nat.eqb_spec z a) as [->|Hne]; [rewrite relu_pos by lra; lra|].
        pose proof (waiting_below tokens m z E Hne) as L. fold a in L. apply le_INR in L. rewrite plus_INR in L.
        change (INR 1) with 1 in L. rewrite relu_neg by lra. lra.
    + lra.
    + rewrite relu_pos by lra. lra.
    + rewrite !relu_pos by lra. rewrite fetches_next, plus_INR, mult_INR. fold a. lra.
Qed.

Theorem contextual_map_exact :
  output net (map (fun z => [INR z]) tokens) = map (fun _ => [INR (positional B (fetches N))]) tokens.
Proof.
  assert (Start : map (start net) (map (fun z => [INR z]) tokens) = map (fun z => map (state 0 z) (rows net)) tokens).
  { rewrite map_map. apply map_ext_in. intros z Hz. apply map_ext. intros r.
    destruct r; cbn [state encode net contextual_map map_encode]; unfold eval, reads, constant;
      cbn [fold_right terms const fst snd nth]; numerals; try lra; [|reflexivity].
    replace (gone tokens 0 z) with false by (symmetry; now apply gone_false). lra. }
  assert (Runs : forall m, run net m (map (fun z => map (state 0 z) (rows net)) tokens) =
                           map (fun z => map (state m z) (rows net)) tokens).
  { induction m as [|m I]; [reflexivity|]. cbn [run]. rewrite I. apply round. }
  unfold output. rewrite Start, Runs, map_map. apply map_ext. intros z.
  cbn [decode loops net contextual_map map]. f_equal. unfold eval, reads. cbn [fold_right terms const fst snd].
  rewrite read_map by apply all_rows. numerals. cbn [state]. lra.
Qed.
End Exactness.

(** ** Distinct tokens *)

Lemma fetches_distinct : forall tokens, NoDup tokens -> fetches tokens (length tokens) = arrange tokens.
Proof.
  intros tokens HD. pose proof (arrange_permutation tokens) as P. set (s := arrange tokens) in *.
  assert (Ds : descending s) by apply arrange_descending. assert (HDs : NoDup s) by now apply (Permutation_NoDup P).
  clearbody s.
  assert (Rem : forall k, remaining s k = skipn k s /\ (k < length s -> fetched s (remaining s k) = nth k s 0)).
  { assert (Front : forall l, descending l -> NoDup l -> l <> [] -> largest l = hd 0 l /\ without (hd 0 l) l = tl l).
    { intros [|a l] Dl Nl Hne; [easy|]. destruct (descending_cons _ _ Dl) as [_ Ha].
      inversion Nl as [|? ? Hn Nl']; subst.
      cbn [hd tl]. split.
      - apply Nat.le_antisymm; [|apply largest_ge; now left].
        destruct (largest_in (a :: l) Hne) as [<-|Hin]; [lia|auto].
      - unfold without. cbn. rewrite Nat.eqb_refl. cbn. clear - Hn. induction l as [|b l I]; [reflexivity|]. cbn.
        destruct (Nat.eqb_spec b a) as [->|_]; [exfalso; apply Hn; now left|]. cbn. f_equal. apply I.
        intros H. apply Hn. now right. }
    assert (Dk : forall k, descending (skipn k s) /\ NoDup (skipn k s)).
    { intros k. clear - Ds HDs. revert s Ds HDs. induction k as [|k I]; intros [|a l] Ds HDs; cbn; auto.
      destruct (descending_cons _ _ Ds). inversion HDs; subst. now apply I. }
    assert (Hd : forall k, hd 0 (skipn k s) = nth k s 0 /\ tl (skipn k s) = skipn (S k) s).
    { intros k. clear. revert s. induction k as [|k I]; intros [|a l]; cbn; auto. apply I. }
    induction k as [|k [IR IF]].
    - split; [reflexivity|]. intros H. cbn [remaining]. unfold fetched. destruct s as [|a l] eqn:E; [cbn in H; lia|].
      rewrite <- E in *. destruct (Front s Ds HDs) as [-> _]; [now rewrite E|now rewrite E].
    - assert (R1 : remaining s (S k) = skipn (S k) s).
      { cbn [remaining]. rewrite IR in *. destruct (Dk k) as [D1 N1]. destruct (Hd k) as [H1 H2].
        destruct (skipn k s) as [|a l] eqn:E; [now rewrite <- H2|].
        destruct (Front (a :: l) D1 N1) as [F1 F2]; [easy|]. unfold fetched. now rewrite F1, F2. }
      split; [assumption|]. intros H. rewrite R1. destruct (Dk (S k)) as [D1 N1]. destruct (Hd (S k)) as [H1 _].
      assert (L : length (skipn (S k) s) = length s - S k) by apply skipn_length.
      destruct (skipn (S k) s) as [|a l] eqn:E; [cbn in L; lia|].
      destruct (Front (a :: l) D1 N1) as [F1 _]; [easy|]. unfold fetched. now rewrite F1. }
  unfold fetches. transitivity (map (fun k => nth k s 0) (seq 0 (length s))).
  - rewrite (Permutation_length P). apply map_ext_in. intros k Hk. apply in_seq in Hk.
    rewrite (fetched_permutation tokens s k P). apply Rem. lia.
  - clear. induction s as [|c l I]; [reflexivity|]. cbn [length seq map nth]. f_equal. rewrite <- seq_shift, map_map.
    exact I.
Qed.

Theorem contextual_map_distinct : forall B tokens, (forall z, In z tokens -> z < B) -> NoDup tokens ->
  output (@contextual_map reals B (length tokens)) (map (fun z => [INR z]) tokens) =
  map (fun _ => [INR (positional B (arrange tokens))]) tokens.
Proof. intros B tokens Hb HD. rewrite contextual_map_exact, fetches_distinct by assumption. reflexivity. Qed.

(** Equal tokens: the lemma's ids do not tell multiplicities apart. *)
Example contextual_map_duplicates : fetches [5; 5; 3] 3 = [5; 3; 5] /\ fetches [5; 3; 3] 3 = [5; 3; 5].
Proof. split; reflexivity. Qed.
