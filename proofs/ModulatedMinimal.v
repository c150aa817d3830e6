(** * The block [modulated-minimal], end to end

    One time-modulated block with 2d+7 rows, two heads of size 1 and width 2d+6 ([lean.modulated_minimal_block] of the
    Python package).  Step 1 counts, for every coordinate, the thresholds k/n that it has passed; Step 2 runs N rounds
    of "fetch the largest id that is left, count the tokens that are gone"; Step 3 walks through all realizable ids in
    increasing order and adds the difference of two consecutive labels once the own id is reached.

    The theorem [block_exact]: for all d >= 1, N >= 1, n >= 2, every epsilon = 1/slope > 0, all real inputs whose entries
    lie in [b/n, (b+1)/n - epsilon] for some cell b < n, and every strictly increasing table of ids that contains the
    [multiset_id] of each token, the network returns the label that the table holds for that id, exactly.  Equal tokens
    are included. *)
From Coq Require Import List ZArith Reals Lra Lia Arith Permutation Sorted Bool.
From Looped Require Import Network Reals Ids.
Import ListNotations.

(** ** The network *)

Inductive row := X (i : nat) | C | Id | Gone | One | Best | Seq | Count | Out (i : nat).
Inductive unit := Near (i : nat) | Past (i : nat) | Chosen | Fetched | Counted | Digits | Reach | Reached.

Definition same_row (a b : row) : {a = b} + {a <> b}.
Proof. decide equality; apply Nat.eq_dec. Defined.

Section Definition_of_the_block.
Context {F : numbers}.
Variables (d N n : nat) (slope : F) (known : list (nat * list F)).
Let B := n ^ d.
Let S_ := radix B N.
Let half : F := inv (of_Z 2).
Let quarter : F := inv (of_Z 4).
Local Open Scope number_scope.

Definition lead := (n - 1 + N)%nat.
Definition block_loops := (lead + (length known - 1))%nat.
Definition id_at (j : nat) : nat := fst (nth j known (0, [])).
Definition label_at (j i : nat) : F := nth i (snd (nth j known (0, []))) zero.

(** The row c, loop by loop: k/n, idle, then the ids less 1/4. *)
Definition threshold (t : nat) : F :=
  if (t <? n - 1)%nat then #(t + 1) * inv #n
  else if t <? lead then zero
  else if t <? block_loops then #(id_at (t - lead + 1)) - quarter
  else zero.

Definition block_eta (t : nat) (r : row) : F :=
  match r with
  | Id => if (t <? n - 1)%nat then one else zero
  | Gone | Seq => if ((n - 1 <=? t) && (t <? lead))%nat then one else zero
  | Out i => if t <? lead then zero else label_at (t - lead + 1) i - label_at (t - lead) i
  | C => if (t + 1 <? block_loops)%nat then threshold (t + 1) - threshold t else zero
  | _ => one
  end.

Definition block_argument (u : unit) : form F row :=
  match u with
  | Near i => Form [(slope, X i); (opp slope, C)] one
  | Past i => Form [(slope, X i); (opp slope, C)] zero
  | Chosen => Form [(one, Id); (one, Gone); (opp one, Best)] half
  | Fetched => reads Best
  | Counted => reads Count
  | Digits => reads Seq
  | Reach => Form [(of_Z 2 * #(S_ ^ N), Id); (of_Z 2, Seq); (of_Z (-2), C)] one
  | Reached => Form [(of_Z 2 * #(S_ ^ N), Id); (of_Z 2, Seq); (of_Z (-2), C)] zero
  end.

Definition block_update (r : row) : form F unit :=
  match r with
  | C => constant one
  | Id => Form (flat_map (fun i => [(#(n ^ (d - 1 - i)), Near i); (opp #(n ^ (d - 1 - i)), Past i)]) (seq 0 d)) zero
  | Gone => Form [(of_Z (-4) * #B, Chosen)] zero
  | Best => Form [(opp one, Fetched)] zero
  | Seq => Form [(#S_ - one, Digits); (one, Fetched); (#B, Counted)] zero
  | Count => Form [(opp one, Counted)] zero
  | Out _ => Form [(one, Reach); (opp one, Reached)] zero
  | X _ | One => constant zero
  end.

Definition block_heads : list (head F row) :=
  [Head (reads Id) (Form [(one, Id); (one, Gone)] zero) (reads One) Best;
   Head (Form [(opp #N * inv (of_Z 2 * #B), Gone)] zero) (constant zero) (constant zero) Count].

Definition block_encode (r : row) : form F nat :=
  match r with
  | X i => reads i
  | C => constant (inv #n)
  | One => constant one
  | Out i => constant (label_at 0 i)
  | _ => constant zero
  end.

Definition modulated_minimal : network F row unit := {|
  rows := map X (seq 0 d) ++ [C; Id; Gone; One; Best; Seq; Count] ++ map Out (seq 0 d);
  Network.same_row := same_row;
  units := flat_map (fun i => [Near i; Past i]) (seq 0 d) ++ [Chosen; Fetched; Counted; Digits; Reach; Reached];
  encode := block_encode;
  heads := block_heads;
  argument := block_argument;
  update := block_update;
  eta := block_eta;
  decode := map (fun i => reads (Out i)) (seq 0 d);
  loops := block_loops
|}.

Lemma block_size : (num_rows modulated_minimal = 2 * d + 7 /\ width modulated_minimal = 2 * d + 6 /\
  num_heads modulated_minimal = 2)%nat.
Proof.
  unfold num_rows, width, num_heads. cbn [rows units heads modulated_minimal block_heads].
  rewrite !app_length, !map_length, !seq_length.
  assert (E : forall l, (length (flat_map (fun i => [Near i; Past i]) l) = 2 * length l)%nat)
    by (induction l as [|a l I]; cbn in *; lia).
  rewrite E, seq_length. cbn. lia.
Qed.
End Definition_of_the_block.

(** ** The theorem *)

Section Exactness.
Open Scope R_scope.
Variables (d N n : nat) (slope : R) (known : list (nat * list R)).
Hypothesis n_two : (2 <= n)%nat.
Hypothesis slope_pos : 0 < slope.
Let B := (n ^ d)%nat.
Let S_ := radix B N.
Let net := @modulated_minimal reals d N n slope known.

Lemma B_pos : (1 <= B)%nat.
Proof. unfold B. pose proof (Nat.pow_nonzero n d). lia. Qed.

Lemma B_real : 1 <= INR B.
Proof. apply (le_INR 1). apply B_pos. Qed.

(** *** One loop, for any state whose rows best and count are empty *)

Lemma in_rows : forall r, In r (rows net) <-> match r with X i | Out i => (i < d)%nat | _ => True end.
Proof.
  intros r. cbn [rows net modulated_minimal]. rewrite !in_app_iff, !in_map_iff.
  destruct r as [i| | | | | | | |i]; cbn; split; intros H; try tauto.
  - destruct H as [[j [[= ->] Hj]]|[H|[j [H _]]]]; [apply in_seq in Hj; lia| |easy].
    repeat (destruct H as [H|H]; [easy|]). easy.
  - left. exists i. split; [reflexivity|]. apply in_seq. lia.
  - destruct H as [[j [H _]]|[H|[j [[= ->] Hj]]]]; [easy| |apply in_seq in Hj; lia].
    repeat (destruct H as [H|H]; [easy|]). easy.
  - right. right. exists i. split; [reflexivity|]. apply in_seq. lia.
Qed.

(** T(x) = relu(x + 1) - relu(x): 1 for x >= 0 and 0 for x <= -1. *)
Definition T (x : R) : R := @relu reals (x + 1) - @relu reals x.

Lemma T_one : forall x, 0 <= x -> T x = 1.
Proof. intros x H. unfold T. rewrite !relu_pos by lra. lra. Qed.
Lemma T_zero : forall x, x <= -1 -> T x = 0.
Proof. intros x H. unfold T. rewrite !relu_neg by lra. lra. Qed.

Section One_loop.
Context {A : Type}.
Variables (tokens : list A) (g : A -> row -> R) (z : A -> nat) (away : A -> bool) (best : nat).
Hypothesis below : forall a, In a tokens -> (z a < B)%nat.
Hypothesis g_id : forall a, In a tokens -> g a Id = INR (z a).
Hypothesis g_gone : forall a, In a tokens -> g a Gone = if away a then - 2 * INR B else 0.
Hypothesis g_one : forall a, In a tokens -> g a One = 1.
Hypothesis g_best : forall a, In a tokens -> g a Best = 0.
Hypothesis g_count : forall a, In a tokens -> g a Count = 0.
Hypothesis length_N : length tokens = N.
(* [best] is the id of a token that is not gone, unless all are gone, and no such token has a larger one *)
Hypothesis best_is : exists w, In w tokens /\ z w = best /\
  forall a, In a tokens -> (away a = away w /\ (z a <= z w)%nat) \/ (away a = true /\ away w = false).

Definition attended (a : A) (r : row) : R :=
  match r with Best => INR best | Count => INR (length (filter away tokens)) | _ => g a r end.

Lemma same_key : forall a w, In a tokens -> In w tokens ->
  INR (z a) + g a Gone = INR (z w) + g w Gone -> z a = z w.
Proof.
  intros a w Ha Hw E. rewrite !g_gone in E by assumption.
  pose proof (lt_INR _ _ (below a Ha)). pose proof (lt_INR _ _ (below w Hw)).
  pose proof (pos_INR (z a)). pose proof (pos_INR (z w)).
  destruct (away a), (away w); try lra; apply INR_eq; lra.
Qed.

Lemma fetch : forall a, In a tokens ->
  attend net (Head (reads Id) (Form [(one, Id); (one, Gone)] zero) (reads One) Best)
    (map (fun b => map (g b) (rows net)) tokens) (map (g a) (rows net)) = INR best.
Proof.
  intros a Ha. destruct best_is as [w [Hw [Ew Hmax]]].
  rewrite (attend_by_rows net tokens g _ _ (fun b => INR (z b) + g b Gone) (fun b => INR (z b))).
  - rewrite (attend_largest tokens (fun b => INR (z b) + g b Gone) (fun b => INR (z b)) w Hw); [now rewrite Ew| |].
    + intros b Hb. rewrite !g_gone by assumption. pose proof (lt_INR _ _ (below b Hb)).
      pose proof (pos_INR (z w)). pose proof B_real. destruct (Hmax b Hb) as [[-> L]|[-> ->]]; cbv iota; [apply le_INR in L|]; lra.
    + intros b Hb E. f_equal. now apply same_key.
  - intros b Hb. unfold eval, reads. cbn [fold_right terms const fst snd key query].
    rewrite !read_map by (now apply in_rows). rewrite g_id, g_one by assumption. numerals. lra.
  - intros b Hb. unfold eval, reads. cbn [fold_right terms const fst snd value].
    rewrite read_map by (now apply in_rows). rewrite g_id by assumption. numerals. lra.
Qed.

Lemma count : forall a, In a tokens ->
  attend net (Head (Form [(mul (opp (of_Z (Z.of_nat N))) (inv (mul (of_Z 2) (of_Z (Z.of_nat B)))), Gone)] zero)
                (constant zero) (constant zero) Count)
    (map (fun b => map (g b) (rows net)) tokens) (map (g a) (rows net)) = INR (length (filter away tokens)).
Proof.
  intros a Ha. rewrite (attend_by_rows net tokens g _ _ (fun _ => 0) (fun b => if away b then INR N else 0)).
  - rewrite (attend_mean tokens _ _ 0).
    + rewrite length_N.
      assert (1 <= N)%nat by (rewrite <- length_N; destruct tokens; [easy|cbn; lia]).
      assert (1 <= INR N) by (apply (le_INR 1); assumption).
      assert (E : forall l, @sum reals (map (fun b => if away b then INR N else 0) l) = INR (length (filter away l)) * INR N).
      { induction l as [|b l I]; [cbn; lra|]. cbn [map sum fold_right filter]. unfold sum in I. numerals. rewrite I.
        destruct (away b); [cbn [length]; rewrite S_INR|]; lra. }
      rewrite E. numerals. field. lra.
    + reflexivity.
  - intros b Hb. unfold eval, constant. cbn. lra.
  - intros b Hb. unfold eval. cbn [fold_right terms const fst snd value].
    rewrite read_map by (now apply in_rows). rewrite g_gone by assumption. rewrite !of_nat_INR. numerals.
    pose proof B_real. destruct (away b); [field; lra|lra].
Qed.

Definition next (t : nat) (a : A) (r : row) : R :=
  match r with
  | X i => g a (X i)
  | C => g a C + eta net t C
  | Id => g a Id + eta net t Id *
            @sum reals (map (fun i => INR (n ^ (d - 1 - i)) * T (slope * (g a (X i) - g a C))) (seq 0 d))
  | Gone => g a Gone + eta net t Gone *
              (- 4 * INR B * @relu reals (g a Id + g a Gone - INR best + / 2))
  | One => 1
  | Best => 0
  | Seq => g a Seq + eta net t Seq *
             ((INR S_ - 1) * @relu reals (g a Seq) + INR best + INR B * INR (length (filter away tokens)))
  | Count => 0
  | Out i => g a (Out i) + eta net t (Out i) *
               T (2 * (INR (S_ ^ N) * g a Id + g a Seq - g a C))
  end.

Lemma one_loop : forall t,
  loop net t (map (fun a => map (g a) (rows net)) tokens) = map (fun a => map (next t a) (rows net)) tokens.
Proof.
  intros t. apply (loop_by_rows net tokens g attended (next t)).
  - intros a r Ha Hr. unfold heard. cbn [heads net modulated_minimal block_heads map sum fold_right into Network.same_row].
    fold B. rewrite fetch, count by assumption.
    destruct r; cbn -[INR length filter]; numerals; rewrite ?g_best, ?g_count by assumption; lra.
  - intros a r Ha Hr.
    assert (Hid : forall u, hidden net (map (attended a) (rows net)) u =
      @relu reals (eval (block_argument d N n slope u) (read net (map (attended a) (rows net))))) by reflexivity.
    assert (Rd : forall q, In q (rows net) -> read net (map (attended a) (rows net)) q = attended a q)
      by (intros; now apply read_map).
    assert (Hbest : hidden net (map (attended a) (rows net)) Fetched = INR best).
    { rewrite Hid. unfold eval, reads. cbn [block_argument fold_right terms const fst snd reads].
      rewrite Rd by (now apply in_rows). cbn [attended]. numerals.
      pose proof (pos_INR best). rewrite relu_pos; lra. }
    assert (Hcount : hidden net (map (attended a) (rows net)) Counted = INR (length (filter away tokens))).
    { rewrite Hid. unfold eval, reads. cbn [block_argument fold_right terms const fst snd reads].
      rewrite Rd by (now apply in_rows). cbn [attended]. numerals.
      pose proof (pos_INR (length (filter away tokens))). rewrite relu_pos; lra. }
    assert (Hdigits : hidden net (map (attended a) (rows net)) Digits = @relu reals (g a Seq)).
    { rewrite Hid. unfold eval, reads. cbn [block_argument fold_right terms const fst snd reads].
      rewrite Rd by (now apply in_rows). cbn [attended]. numerals. f_equal. lra. }
    destruct r; cbn [next attended update net modulated_minimal block_update eta];
      unfold eval, constant; cbn [fold_right terms const fst snd];
      rewrite ?Hbest, ?Hcount, ?Hdigits, ?Hid; unfold eval, reads;
      cbn [block_argument fold_right terms const fst snd]; rewrite ?Rd by (now apply in_rows);
      cbn [attended]; rewrite ?of_nat_INR; fold B; fold S_; numerals.
    + lra.
    + lra.
    + f_equal. f_equal.
      assert (Below : forall i, In i (seq 0 d) -> (i < d)%nat) by (intros i Hi; apply in_seq in Hi; lia). clear Hr.
      induction (seq 0 d) as [|i l I]; [reflexivity|]. cbn [flat_map fold_right map sum app fst snd].
      unfold sum in I. rewrite I by (intros; apply Below; now right). rewrite !Hid. unfold eval.
      cbn [block_argument fold_right terms const fst snd].
      rewrite !Rd by (apply in_rows; exact Logic.I || apply Below; now left).
      cbn [attended]. rewrite of_nat_INR. unfold T. numerals.
      replace (slope * g a (X i) + (-1 * slope * g a C + 1)) with (slope * (g a (X i) - g a C) + 1) by lra.
      replace (slope * g a (X i) + (-1 * slope * g a C + 0)) with (slope * (g a (X i) - g a C)) by lra. ring.
    + f_equal. f_equal. replace (1 * g a Id + (1 * g a Gone + (-1 * 1 * INR best + / 2)))
        with (g a Id + g a Gone - INR best + / 2) by lra. lra.
    + rewrite g_one by assumption. lra.
    + cbn [block_eta]. numerals. lra.
    + f_equal. f_equal. ring.
    + cbn [block_eta]. numerals. lra.
    + f_equal. f_equal. unfold T.
      replace (2 * INR (S_ ^ N) * g a Id + (2 * g a Seq + (-2 * g a C + 1)))
        with (2 * (INR (S_ ^ N) * g a Id + g a Seq - g a C) + 1) by lra.
      replace (2 * INR (S_ ^ N) * g a Id + (2 * g a Seq + (-2 * g a C + 0)))
        with (2 * (INR (S_ ^ N) * g a Id + g a Seq - g a C)) by lra. lra.
Qed.
End One_loop.

(** *** The inputs: tokens with the cells that they lie in *)

Definition inside (x : list R) (cells : list nat) : Prop := length cells = d /\ forall i, (i < d)%nat ->
  (nth i cells 0%nat < n)%nat /\
  INR (nth i cells 0%nat) * / INR n <= nth i x 0 <= (INR (nth i cells 0%nat) + 1) * / INR n - / slope.

Definition token_id (cells : list nat) : nat := positional n cells.

Variable tokens : list (list R * list nat).
Hypothesis inputs_inside : forall a, In a tokens -> inside (fst a) (snd a).
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
      + assert (L' : (b + 1 <= S t)%nat) by lia. apply le_INR in L'. rewrite plus_INR in L'. change (INR 1) with 1 in L'.
        assert ((INR b + 1) * / INR n <= INR (S t) * / INR n) by (apply Rmult_le_compat_r; lra).
        assert (nth i (fst a) 0 - INR (S t) * / INR n <= - / slope) by lra.
        apply Rle_trans with (slope * (- / slope)); [apply Rmult_le_compat_l; lra|]. right. field. lra. }
  induction (seq 0 d) as [|i l I]; [cbn; lra|]. cbn [map sum fold_right]. unfold sum in I. numerals.
  rewrite I by (intros; apply H; now right). rewrite H by now left. ring.
Qed.

(** *** The state in each of the three steps *)

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

(** In Steps 2 and 3 the largest id that is left is fetched; the largest of all if none is left. *)
Lemma best_later : forall m, tokens <> [] -> exists w, In w tokens /\ z w = fetched zs (remaining zs m) /\
  forall a, In a tokens -> (gone zs m (z a) = gone zs m (z w) /\ (z a <= z w)%nat) \/
                           (gone zs m (z a) = true /\ gone zs m (z w) = false).
Proof.
  intros m Hne. assert (Hin : In (fetched zs (remaining zs m)) zs) by now apply fetched_in, zs_nonempty.
  apply in_map_iff in Hin. destruct Hin as [w [Ew Hw]]. exists w. split; [assumption|]. split; [assumption|].
  intros a Ha. rewrite Ew. destruct (remaining zs m) as [|b l] eqn:Er.
  - left. unfold gone. rewrite Er. cbn. split; [reflexivity|]. apply largest_ge. now apply in_map.
  - assert (Hb : gone zs m (fetched zs (b :: l)) = false) by (apply gone_false; rewrite Er; now apply largest_in).
    rewrite Hb. destruct (gone zs m (z a)) eqn:Ea; [now right|left]. split; [reflexivity|].
    apply gone_false in Ea. rewrite Er in Ea. now apply largest_ge.
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
  rewrite (one_loop tokens _ (counted t) (fun a => gone zs 0 (z a)) (largest (map (counted t) tokens))).
  2: intros; now apply counted_below.
  2-6: reflexivity.
  2: assumption.
  2: now apply best_step_one.
  apply matrix_ext. intros a r Ha Hr. destruct (eta_values t) as [Eid [Egone [Eseq Eout]]].
  destruct (Nat.ltb_spec t (n - 1)); [|lia]. destruct (Nat.leb_spec (n - 1) t); [lia|].
  destruct (Nat.ltb_spec t (lead N n)); [|unfold lead in *; lia]. cbn [andb] in *.
  destruct r; cbn [next state]; rewrite ?Eid, ?Egone, ?Eseq, ?Eout; try lra.
  - rewrite c_next; [reflexivity|]. cbn. unfold block_loops, lead. lia.
  - rewrite c_step_one, counted_next by assumption. lra.
Qed.

Lemma step_two : forall m, tokens <> [] -> (m <= N)%nat ->
  run net (n - 1 + m) (matrix (state 0 (counted 0) 0 (fun _ => 0%nat))) = matrix (state (n - 1 + m) z m (fun _ => 0%nat)).
Proof.
  intros m Hne. induction m as [|m I]; intros Hm.
  - rewrite Nat.add_0_r, step_one by (assumption || lia). apply matrix_ext. intros a r Ha _.
    destruct r; try reflexivity. cbn [state]. now rewrite counted_all.
  - rewrite Nat.add_succ_r. cbn [run]. rewrite I by lia. unfold matrix at 1.
    rewrite (one_loop tokens _ z (fun a => gone zs m (z a)) (fetched zs (remaining zs m))).
    2: intros; now apply z_below.
    2-6: reflexivity.
    2: assumption.
    2: now apply best_later.
    apply matrix_ext. intros a r Ha Hr. destruct (eta_values (n - 1 + m)) as [Eid [Egone [Eseq Eout]]].
    destruct (Nat.ltb_spec (n - 1 + m) (n - 1)); [lia|]. destruct (Nat.leb_spec (n - 1) (n - 1 + m)); [|lia].
    destruct (Nat.ltb_spec (n - 1 + m) (lead N n)); [|unfold lead in *; lia]. cbn [andb] in *.
    destruct r; cbn [next state]; rewrite ?Eid, ?Egone, ?Eseq, ?Eout; try lra.
    + rewrite c_next; [reflexivity|]. cbn. unfold block_loops, lead. lia.
    + rewrite gone_next. pose proof B_real. pose proof (lt_INR _ _ (z_below a Ha)).
      pose proof (pos_INR (fetched zs (remaining zs m))) as P.
      destruct (gone zs m (z a)) eqn:Ea; cbn [orb].
      * rewrite relu_neg by lra. lra.
      * destruct (Nat.eqb_spec (z a) (fetched zs (remaining zs m))) as [E|E].
        -- rewrite E, relu_pos by lra. lra.
        -- assert (L : (z a + 1 <= fetched zs (remaining zs m))%nat).
           { apply gone_false in Ea. unfold fetched in *. destruct (remaining zs m) as [|b l]; [easy|].
             pose proof (largest_ge _ _ Ea). lia. }
           apply le_INR in L. rewrite plus_INR in L. change (INR 1) with 1 in L. rewrite relu_neg by lra. lra.
    + rewrite sequence_id_next, relu_pos by apply pos_INR. unfold digit. rewrite gone_tokens.
      rewrite !plus_INR, !mult_INR. fold S_. lra.
Qed.

(** *** Step 3: the table *)

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
    rewrite (one_loop tokens _ z (fun a => gone zs N (z a)) (fetched zs (remaining zs N))).
    2: intros; now apply z_below.
    2-6: reflexivity.
    2: assumption.
    2: now apply best_later.
    apply matrix_ext. intros a r Ha Hr. destruct (eta_values (lead N n + j)) as [Eid [Egone [Eseq Eout]]].
    destruct (Nat.ltb_spec (lead N n + j) (n - 1)); [unfold lead in *; lia|].
    destruct (Nat.ltb_spec (lead N n + j) (lead N n)); [lia|]. rewrite andb_false_r in *.
    assert (Hloops : loops net = (lead N n + (length known - 1))%nat) by reflexivity.
    destruct r as [i| | | | | | | |i]; cbn [next state]; rewrite ?Eid, ?Egone, ?Eseq, ?Eout; try lra.
    + rewrite c_next; [reflexivity|lia].
    + replace (lead N n + j - lead N n)%nat with j by lia.
      assert (Ec : c_at (lead N n + j) = INR (nth (j + 1) ids 0%nat) - / 4).
      { unfold c_at. rewrite Hloops. replace (Nat.min _ _) with (lead N n + j)%nat by lia. unfold threshold.
        destruct (Nat.ltb_spec (lead N n + j) (n - 1)); [unfold lead in *; lia|].
        destruct (Nat.ltb_spec (lead N n + j) (lead N n)); [lia|].
        destruct (Nat.ltb_spec (lead N n + j) (block_loops N n known)); [|change (block_loops N n known) with (loops net) in *; lia].
        replace (lead N n + j - lead N n + 1)%nat with (j + 1)%nat by lia. rewrite id_at_nth, of_nat_INR. numerals. lra. }
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
        { rewrite <- Ep at 1. rewrite Nat.add_1_r. apply Nat.le_succ_l, increasing; [assumption|lia|rewrite Hids; lia]. }
        apply le_INR in Lt. rewrite plus_INR in Lt. change (INR 1) with 1 in Lt. rewrite T_zero by lra.
        replace (Nat.min j _) with (index ids (own_id a)) by lia.
        replace (Nat.min (S j) _) with (index ids (own_id a)) by lia. lra.
Qed.

Theorem block_exact_at : output net (map fst tokens) =
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
