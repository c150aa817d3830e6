(** * Networks over the real numbers

    The instance of [numbers] that the theorems use, and the few facts about ReLU and hardmax that all proofs share:
    [attend_largest] (a head whose winners agree returns their value) and [attend_mean] (a head without keys returns
    the mean). *)
From Coq Require Import List ZArith Reals Lra Lia.
From Looped Require Import Network.
Import ListNotations.
Local Open Scope R_scope.

Definition Rleb (a b : R) : bool := if Rle_dec a b then true else false.
Definition reals : numbers := Numbers R IZR Rplus Rmult Rinv Rleb.
Canonical reals.

Ltac numerals := unfold sub in *; unfold opp, zero, one in *; cbn [number of_Z add mul inv leb reals] in *.

Lemma of_nat_INR : forall k, @of_Z reals (Z.of_nat k) = INR k.
Proof. intros k. cbn. symmetry. apply INR_IZR_INZ. Qed.

(** ** ReLU *)

Lemma Rleb_true : forall a b, Rleb a b = true <-> a <= b.
Proof. intros a b. unfold Rleb. destruct (Rle_dec a b); split; intros; try easy. Qed.

Lemma relu_pos : forall a : R, 0 <= a -> @relu reals a = a.
Proof. intros a H. unfold relu. numerals. now rewrite (proj2 (Rleb_true _ _) H). Qed.

Lemma relu_neg : forall a : R, a <= 0 -> @relu reals a = 0.
Proof.
  intros a H. unfold relu. numerals. destruct (Rleb 0 a) eqn:E; [|reflexivity].
  apply Rleb_true in E. lra.
Qed.

Lemma relu_both_signs : forall a : R, @relu reals a - @relu reals (- a) = a.
Proof.
  intros a. destruct (Rle_dec 0 a); [rewrite relu_pos, relu_neg by lra|rewrite relu_neg, relu_pos by lra]; lra.
Qed.

(** ** Hardmax *)

Lemma eqb_eq : forall a b : R, @eqb reals a b = true <-> a = b.
Proof.
  intros a b. unfold eqb. numerals. rewrite Bool.andb_true_iff, !Rleb_true. split; [intros []; lra|intros; lra].
Qed.

Lemma larger_Rmax : forall a b : R, @larger reals a b = Rmax a b.
Proof.
  intros a b. unfold larger, Rmax. numerals. unfold Rleb. destruct (Rle_dec a b); reflexivity.
Qed.

Lemma maximum_is : forall (l : list R) m, In m l -> (forall a, In a l -> a <= m) -> @maximum reals l = m.
Proof.
  intros [|a l] m Hin Hmax; [destruct Hin|].
  unfold maximum.
  assert (Up : forall k, (forall b, In b (a :: k) -> b <= m) -> fold_right (@larger reals) a k <= m).
  { induction k as [|b k I]; intros H; cbn -[larger]; [apply H; now left|].
    rewrite larger_Rmax. apply Rmax_lub; [apply H; right; now left|apply I].
    intros c [Hc|Hc]; apply H; [now left|right; now right]. }
  assert (Low : forall k b, In b (a :: k) -> b <= fold_right (@larger reals) a k).
  { induction k as [|c k I]; intros b [Hb|Hb]; cbn -[larger]; subst; try easy; [lra| |]; rewrite larger_Rmax.
    - eapply Rle_trans; [apply (I b); now left|apply Rmax_r].
    - destruct Hb as [Hb|Hb]; [subst; apply Rmax_l|].
      eapply Rle_trans; [apply (I b); now right|apply Rmax_r]. }
  apply Rle_antisym; [apply Up; assumption|apply Low; assumption].
Qed.

Section Heads.
Context {A : Type}.
Implicit Types (tokens : list A) (k v : A -> R).

Lemma dot_map : forall tokens k v,
  @dot reals (map k tokens) (map v tokens) = @sum reals (map (fun a => k a * v a) tokens).
Proof.
  intros tokens k v. unfold dot. f_equal. induction tokens as [|a l I]; [reflexivity|].
  cbn. f_equal. apply I.
Qed.

Lemma filter_map_length : forall {C} (p : C -> bool) (k : A -> C) tokens,
  length (filter p (map k tokens)) = length (filter (fun a => p (k a)) tokens).
Proof.
  intros C p k tokens. induction tokens as [|a l I]; cbn; [reflexivity|]. destruct (p (k a)); cbn; now rewrite I.
Qed.

(** A weighted sum in which the winners share the weight 1/w evenly and have the same value. *)
Lemma sum_of_winners : forall (p : A -> bool) v tokens w c,
  (forall a, In a tokens -> p a = true -> v a = c) ->
  @sum reals (map (fun a => (if p a then w else 0) * v a) tokens) = INR (length (filter p tokens)) * w * c.
Proof.
  intros p v tokens w c. induction tokens as [|a l I]; intros H; [cbn; lra|].
  cbn [map sum fold_right filter]. unfold sum in I. numerals. rewrite I by (intros; apply H; [now right|assumption]).
  destruct (p a) eqn:E; [|lra]. cbn [length]. rewrite S_INR, (H a) by (assumption || now left). lra.
Qed.

(** A head returns the value of the token with the largest key, if all tokens with that key have this value. *)
Lemma attend_largest : forall tokens k v best,
  In best tokens -> (forall a, In a tokens -> k a <= k best) ->
  (forall a, In a tokens -> k a = k best -> v a = v best) ->
  @dot reals (hardmax (map k tokens)) (map v tokens) = v best.
Proof.
  intros tokens k v best Hin Hmax Hsame. unfold hardmax.
  rewrite (maximum_is _ (k best)); [|now apply in_map|].
  2:{ intros b Hb. apply in_map_iff in Hb. destruct Hb as [a [<- Ha]]. auto. }
  rewrite map_map, dot_map, filter_map_length, of_nat_INR. numerals.
  rewrite (sum_of_winners (fun a => @eqb reals (k a) (k best)) v tokens _ (v best)).
  - set (winners := length _). assert (1 <= winners)%nat.
    { unfold winners. destruct (filter _ tokens) eqn:E; [|cbn; lia]. exfalso.
      assert (In best []); [|easy]. rewrite <- E. apply filter_In. split; [assumption|]. now apply eqb_eq. }
    assert (1 <= INR winners) by (apply (le_INR 1); assumption). field. lra.
  - intros a Ha E. apply Hsame; [assumption|]. now apply eqb_eq.
Qed.

(** A head whose keys are all equal returns the mean of all values. *)
Lemma attend_mean : forall tokens k v c, (forall a, In a tokens -> k a = c) ->
  @dot reals (hardmax (map k tokens)) (map v tokens) = @sum reals (map v tokens) * / INR (length tokens).
Proof.
  intros tokens k v c Hc. unfold hardmax. destruct tokens as [|a0 l] eqn:E; [cbn; lra|]. rewrite <- E in *.
  rewrite (maximum_is _ c).
  2:{ apply in_map_iff. exists a0. split; [apply Hc|]; rewrite E; now left. }
  2:{ intros b Hb. apply in_map_iff in Hb. destruct Hb as [a [<- Ha]]. rewrite Hc by assumption. lra. }
  rewrite map_map, dot_map, filter_map_length, of_nat_INR. numerals.
  assert (All : forall a, In a tokens -> @eqb reals (k a) c = true) by (intros; apply eqb_eq; auto).
  replace (length (filter (fun a => @eqb reals (k a) c) tokens)) with (length tokens).
  2:{ clear - All. induction tokens as [|a l I]; [reflexivity|]. cbn. rewrite All by now left. cbn. f_equal.
      apply I. intros; apply All; now right. }
  generalize (/ INR (length tokens)) as w. clear - All. intros w.
  induction tokens as [|a l I]; [cbn; lra|]. cbn [map sum fold_right]. unfold sum in I. numerals.
  rewrite I by (intros; apply All; now right). rewrite All by now left. lra.
Qed.
End Heads.

(** ** Two lists as a list of pairs *)

Lemma paired : forall {A B} (P : A -> B -> Prop) l k, Forall2 P l k ->
  exists pairs, l = map fst pairs /\ k = map snd pairs /\ forall p, In p pairs -> P (fst p) (snd p).
Proof.
  intros A B P l k H. induction H as [|a b l k H _ [pairs [-> [-> I]]]]; [now exists []|].
  exists ((a, b) :: pairs). split; [reflexivity|]. split; [reflexivity|]. intros p [<-|Hp]; auto.
Qed.

(** ** Reading rows *)

Section Reading.
Context {row unit : Type} (net : network reals row unit).

Lemma read_map : forall (g : row -> R) r, In r (rows net) -> read net (map g (rows net)) r = g r.
Proof.
  intros g r H. unfold read. induction (rows net) as [|s l I]; [destruct H|].
  cbn. destruct (same_row net s r) as [E|E]; [now subst|]. apply I. destruct H; [congruence|assumption].
Qed.

(** The same for what a head returns. *)
Lemma attend_by_rows : forall {A} (tokens : list A) (g : A -> row -> R) h x (k v : A -> R),
  (forall a, In a tokens ->
     eval (key h) (read net (map (g a) (rows net))) * eval (query h) (read net x) = k a) ->
  (forall a, In a tokens -> eval (value h) (read net (map (g a) (rows net))) = v a) ->
  attend net h (map (fun a => map (g a) (rows net)) tokens) x = dot (hardmax (map k tokens)) (map v tokens).
Proof.
  intros A tokens g h x k v Hk Hv. unfold attend. rewrite !map_map.
  f_equal; [f_equal|]; apply map_ext_in; auto.
Qed.

(** A loop moves a state that is given row by row to a state that is given row by row, if Attn and FF do so. *)
Lemma loop_by_rows : forall {A} (tokens : list A) (g g' g'' : A -> row -> R) t,
  let state h := map (fun a => map (h a) (rows net)) tokens in
  (forall a r, In a tokens -> In r (rows net) ->
     g a r + heard net (state g) (map (g a) (rows net)) r = g' a r) ->
  (forall a r, In a tokens -> In r (rows net) ->
     g' a r + eta net t r * eval (update net r) (hidden net (map (g' a) (rows net))) = g'' a r) ->
  loop net t (state g) = state g''.
Proof.
  intros A tokens g g' g'' t state Hattn Hff. unfold loop, attention, state. rewrite !map_map.
  apply map_ext_in. intros a Ha. unfold feed_forward.
  assert (E : map (fun r => add (read net (map (g a) (rows net)) r)
                                (heard net (map (fun b => map (g b) (rows net)) tokens) (map (g a) (rows net)) r))
                  (rows net) = map (g' a) (rows net)).
  { apply map_ext_in. intros r Hr. rewrite read_map by assumption. now apply Hattn. }
  rewrite E. apply map_ext_in. intros r Hr. rewrite read_map by assumption. now apply Hff.
Qed.

(** The same for a layer without attention. *)
Lemma loop_without_heads : forall {A} (tokens : list A) (g g' : A -> row -> R) t, heads net = [] ->
  (forall a r, In a tokens -> In r (rows net) ->
     g a r + eta net t r * eval (update net r) (hidden net (map (g a) (rows net))) = g' a r) ->
  loop net t (map (fun a => map (g a) (rows net)) tokens) = map (fun a => map (g' a) (rows net)) tokens.
Proof.
  intros A tokens g g' t Hheads Hff. apply (loop_by_rows tokens g g g'); [|assumption].
  intros a r _ _. unfold heard. rewrite Hheads. cbn. lra.
Qed.
End Reading.
