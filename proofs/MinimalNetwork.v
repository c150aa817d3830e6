(** * The block [modulated-minimal]: its network, and one loop of it

    The network of [lean.modulated_minimal_block] in the Python package: 2d+7 rows, two heads of size 1, width 2d+6
    ([block_size]).  [one_loop] says what one loop does to any state whose rows best and count are empty: head 1
    fetches the largest id among the tokens that are not gone, head 2 counts the tokens that are gone, and the
    feed-forward layer updates every row by its formula. *)
From Coq Require Import List ZArith Reals Lra Lia Arith Bool.
From Looped Require Import Network Reals Ids.
Import ListNotations.

(** ** The network *)

Inductive row := X (i : nat) | C | Id | Gone | One | Best | Seq | Count | Out (i : nat).
Inductive unit := Near (i : nat) | Past (i : nat) | Chosen | Fetched | Counted | Digits | Reach | Reached.

Definition same_row (a b : row) : {a = b} + {a <> b}.
Proof. decide equality; apply Nat.eq_dec. Defined.

Definition same_unit (a b : unit) : {a = b} + {a <> b}.
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
  Network.same_unit := same_unit;
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

(** ** One loop *)

Lemma base_pos : forall n d, (2 <= n)%nat -> (1 <= INR (n ^ d))%R.
Proof. intros n d H. apply (le_INR 1). pose proof (Nat.pow_nonzero n d). lia. Qed.

Section Loop.
Open Scope R_scope.
Variables (d N n : nat) (slope : R) (known : list (nat * list R)).
Let B := (n ^ d)%nat.
Let S_ := radix B N.
Let net := @modulated_minimal reals d N n slope known.

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
Hypothesis n_two : (2 <= n)%nat.
Let B_real : 1 <= INR B := base_pos n d n_two.
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
      pose proof (pos_INR (z w)). pose proof B_real.
      destruct (Hmax b Hb) as [[-> L]|[-> ->]]; cbv iota; [apply le_INR in L|]; lra.
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
      assert (E : forall l,
        @sum reals (map (fun b => if away b then INR N else 0) l) = INR (length (filter away l)) * INR N).
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
  - intros a r Ha Hr. unfold heard.
    cbn [heads net modulated_minimal block_heads map sum fold_right into Network.same_row].
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

End Loop.
