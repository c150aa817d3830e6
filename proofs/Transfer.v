(** * From the reals to the rationals

    The theorems speak about networks over the reals; the Python package runs them over the rationals.  Here is the
    bridge: Q2R commutes with every operation of [Network.v], so that a network with rational weights returns on
    rational inputs the same numbers over both ([output_transfer]).  With it, [block_exact_rational] states the
    end-to-end theorem for the network that is executed: rational weights, rational labels, rational inputs and exact
    rational arithmetic. *)
From Coq Require Import List ZArith QArith Qreals Reals Lra Lia Arith Bool.
From Looped Require Import Network Reals Weights Ids Table MinimalNetwork ModulatedMinimal.
Import ListNotations.
Local Open Scope R_scope.

(** ** Arithmetic *)

Section Arithmetic.
Implicit Types a b : rationals.

Lemma q_of_Z : forall z, Q2R (@of_Z rationals z) = @of_Z reals z.
Proof. intros z. cbn. unfold Q2R, inject_Z. cbn. lra. Qed.

Lemma q_add : forall a b, Q2R (add a b) = @add reals (Q2R a) (Q2R b).
Proof. intros a b. cbn [add rationals reals]. rewrite (Qeq_eqR _ _ (Qred_correct _)). apply Q2R_plus. Qed.

Lemma q_mul : forall a b, Q2R (mul a b) = @mul reals (Q2R a) (Q2R b).
Proof. intros a b. cbn [mul rationals reals]. rewrite (Qeq_eqR _ _ (Qred_correct _)). apply Q2R_mult. Qed.

Lemma q_inv : forall a, Q2R a <> 0 -> Q2R (inv a) = @inv reals (Q2R a).
Proof.
  intros a H. cbn [inv rationals reals]. rewrite (Qeq_eqR _ _ (Qred_correct _)). apply Q2R_inv. intros E. apply H.
  rewrite (Qeq_eqR _ _ E). unfold Q2R. cbn. lra.
Qed.

Lemma q_leb : forall a b, @leb reals (Q2R a) (Q2R b) = leb a b.
Proof.
  intros a b. cbn [leb rationals reals]. apply eq_true_iff_eq. rewrite Rleb_true, Qle_bool_iff.
  split; [apply Rle_Qle|apply Qle_Rle].
Qed.

Lemma q_zero : Q2R (@zero rationals) = @zero reals. Proof. apply q_of_Z. Qed.
Lemma q_one : Q2R (@one rationals) = @one reals. Proof. apply q_of_Z. Qed.
Lemma q_opp : forall a, Q2R (opp a) = @opp reals (Q2R a).
Proof. intros a. unfold opp. now rewrite q_mul, q_of_Z. Qed.
Lemma q_sub : forall a b, Q2R (sub a b) = @sub reals (Q2R a) (Q2R b).
Proof. intros a b. unfold sub. now rewrite q_add, q_opp. Qed.

Lemma q_eqb : forall a b, @eqb reals (Q2R a) (Q2R b) = eqb a b.
Proof. intros a b. unfold eqb. now rewrite !q_leb. Qed.

Lemma q_relu : forall a, Q2R (relu a) = @relu reals (Q2R a).
Proof. intros a. unfold relu. rewrite <- q_zero, q_leb. destruct (leb zero a); reflexivity. Qed.

Lemma q_sum : forall l : list rationals, Q2R (sum l) = @sum reals (map Q2R l).
Proof.
  induction l as [|a l I]; [apply q_zero|]. cbn [sum fold_right map]. rewrite q_add. f_equal. exact I.
Qed.

Lemma q_maximum : forall l : list rationals, Q2R (maximum l) = @maximum reals (map Q2R l).
Proof.
  intros [|a l]; [apply q_zero|]. cbn [maximum map]. induction l as [|b l I]; [reflexivity|]. cbn [fold_right map].
  rewrite <- I. unfold larger. rewrite q_leb. now destruct (leb b _).
Qed.

Lemma q_dot : forall v w : list rationals, Q2R (dot v w) = @dot reals (map Q2R v) (map Q2R w).
Proof.
  intros v w. unfold dot. rewrite q_sum. f_equal. revert w. induction v as [|a v I]; intros [|b w]; try reflexivity.
  cbn [combine map fst snd]. rewrite q_mul, I. reflexivity.
Qed.

Lemma q_nat : forall k, (0 < k)%nat -> Q2R (@inv rationals (of_Z (Z.of_nat k))) = @inv reals (of_Z (Z.of_nat k)).
Proof.
  intros k Hk. rewrite q_inv; rewrite q_of_Z; [reflexivity|]. rewrite of_nat_INR. apply not_0_INR. lia.
Qed.

Lemma q_hardmax : forall l : list rationals, map Q2R (hardmax l) = @hardmax reals (map Q2R l).
Proof.
  intros l. unfold hardmax. rewrite <- q_maximum, !map_map.
  set (best := maximum l).
  assert (E : length (filter (fun s => @eqb reals s (Q2R best)) (map Q2R l)) = length (filter (fun s => eqb s best) l)).
  { induction l as [|a l I]; [reflexivity|]. clear I. clearbody best. generalize (a :: l). clear. intros l.
    induction l as [|a l I]; [reflexivity|]. cbn [map filter]. rewrite q_eqb.
    destruct (eqb a best); cbn [length]; now rewrite I. }
  apply map_ext_in. intros a Ha. rewrite q_eqb, E. destruct (eqb a best) eqn:Ea; [|apply q_zero]. apply q_nat.
  assert (In a (filter (fun s => eqb s best) l)) by (apply filter_In; now split).
  destruct (filter _ l); [easy|cbn; lia].
Qed.
End Arithmetic.

(** ** Networks *)

Definition form_rel {name} (f : form rationals name) (g : form reals name) : Prop :=
  map (fun term => (Q2R (fst term), snd term)) (terms f) = terms g /\ Q2R (const f) = const g.

Lemma eval_rel : forall {name} (f : form rationals name) g v w, form_rel f g -> (forall m, Q2R (v m) = w m) ->
  Q2R (eval f v) = eval g w.
Proof.
  intros name f g v w [Ht Hc] Hv. unfold eval. rewrite <- Ht, <- Hc. clear Ht Hc.
  induction (terms f) as [|[c m] l I]; [reflexivity|].
  cbn [fold_right map fst snd]. rewrite q_add, q_mul, Hv. f_equal. exact I.
Qed.

Definition head_rel {row} (h : head rationals row) (g : head reals row) : Prop :=
  form_rel (value h) (value g) /\ form_rel (key h) (key g) /\ form_rel (query h) (query g) /\ into h = into g.

Record network_rel {row unit} (net : network rationals row unit) (net' : network reals row unit) : Prop := {
  rel_rows : rows net = rows net';
  rel_same_row : Network.same_row net = Network.same_row net';
  rel_encode : forall r, form_rel (encode net r) (encode net' r);
  rel_heads : Forall2 head_rel (heads net) (heads net');
  rel_argument : forall u, form_rel (argument net u) (argument net' u);
  rel_update : forall r, form_rel (update net r) (update net' r);
  rel_eta : forall t r, Q2R (eta net t r) = eta net' t r;
  rel_decode : Forall2 form_rel (decode net) (decode net');
  rel_loops : loops net = loops net'
}.

Section Transfer.
Context {row unit : Type} (net : network rationals row unit) (net' : network reals row unit).
Hypothesis rel : network_rel net net'.

Lemma read_rel : forall x r, Q2R (read net x r) = read net' (map Q2R x) r.
Proof.
  intros x r. unfold read.
  assert (P : forall l, position net r l = position net' r l).
  { induction l as [|s l I]; [reflexivity|]. cbn. rewrite I. now destruct rel as [_ -> _ _ _ _ _ _ _]. }
  rewrite P, (rel_rows _ _ rel), <- q_zero. symmetry. apply (map_nth Q2R).
Qed.

Lemma attend_rel : forall h g s x, head_rel h g ->
  Q2R (attend net h s x) = attend net' g (map (map Q2R) s) (map Q2R x).
Proof.
  intros h g s x [Hv [Hk [Hq _]]]. unfold attend.
  assert (Ek : map Q2R (map (fun y => mul (eval (key h) (read net y)) (eval (query h) (read net x))) s) =
    map (fun y => @mul reals (eval (key g) (read net' y)) (eval (query g) (read net' (map Q2R x)))) (map (map Q2R) s)).
  { rewrite !map_map. apply map_ext. intros y. rewrite q_mul.
    now rewrite (eval_rel _ _ _ _ Hk (read_rel y)), (eval_rel _ _ _ _ Hq (read_rel x)). }
  assert (Ev : map Q2R (map (fun y => eval (value h) (read net y)) s) =
    map (fun y => eval (value g) (read net' y)) (map (map Q2R) s)).
  { rewrite !map_map. apply map_ext. intros y. apply (eval_rel _ _ _ _ Hv (read_rel y)). }
  rewrite q_dot, q_hardmax, Ek, Ev. reflexivity.
Qed.

Lemma heard_rel : forall s x r, Q2R (heard net s x r) = heard net' (map (map Q2R) s) (map Q2R x) r.
Proof.
  intros s x r. unfold heard. rewrite q_sum, map_map. apply (f_equal (@sum reals)). rewrite <- (rel_same_row _ _ rel).
  induction (rel_heads _ _ rel) as [|h g l k H _ I]; [reflexivity|]. cbn [map].
  rewrite I. apply (f_equal (fun v => v :: _)). pose proof H as [_ [_ [_ <-]]].
  destruct (Network.same_row net (into h) r); [now apply attend_rel|apply q_zero].
Qed.

Lemma loop_rel : forall t s, map (map Q2R) (loop net t s) = loop net' t (map (map Q2R) s).
Proof.
  intros t s. unfold loop, attention. rewrite !map_map. apply map_ext. intros x. unfold feed_forward.
  rewrite !map_map, (rel_rows _ _ rel). 
  assert (E : map Q2R (map (fun r => add (read net x r) (heard net s x r)) (rows net')) =
              map (fun r => @add reals (read net' (map Q2R x) r) (heard net' (map (map Q2R) s) (map Q2R x) r))
                (rows net')).
  { rewrite map_map. apply map_ext. intros r. now rewrite q_add, read_rel, heard_rel. }
  apply map_ext. intros r. rewrite q_add, q_mul, (rel_eta _ _ rel). rewrite read_rel, E. do 2 f_equal.
  apply eval_rel; [apply (rel_update _ _ rel)|]. intros u. unfold hidden. rewrite q_relu. f_equal.
  apply eval_rel; [apply (rel_argument _ _ rel)|]. intros q. now rewrite read_rel, E.
Qed.

Theorem output_transfer : forall inputs, map (map Q2R) (output net inputs) = output net' (map (map Q2R) inputs).
Proof.
  intros inputs. unfold output.
  assert (Start : map (map Q2R) (map (start net) inputs) = map (start net') (map (map Q2R) inputs)).
  { rewrite !map_map. apply map_ext. intros x. unfold start. rewrite map_map, (rel_rows _ _ rel). apply map_ext.
    intros r.
    apply eval_rel; [apply (rel_encode _ _ rel)|]. intros i. rewrite <- q_zero. symmetry. apply (map_nth Q2R). }
  assert (Run : forall t s, map (map Q2R) (run net t s) = run net' t (map (map Q2R) s)).
  { induction t as [|t I]; intros s; [reflexivity|]. cbn [run]. now rewrite loop_rel, I. }
  rewrite <- Start, (rel_loops _ _ rel), <- Run, !map_map. apply map_ext. intros x. rewrite map_map.
  induction (rel_decode _ _ rel) as [|f g l k H _ I]; [reflexivity|]. cbn [map].
  rewrite I. apply (f_equal (fun v => v :: _)). apply eval_rel; [assumption|]. intros. apply read_rel.
Qed.
End Transfer.

(** ** The block over the rationals *)

Section Block.
Variables (d N n : nat) (slope : Q).
Hypothesis n_two : (2 <= n)%nat.
Let B := (n ^ d)%nat.

Ltac numbers := unfold constant, reads; cbn [terms const map fst snd];
  rewrite ?q_sub, ?q_mul, ?q_opp, ?q_of_Z, ?q_one, ?q_zero.

Lemma q_half : Q2R (@inv rationals (of_Z 2)) = @inv reals (of_Z 2).
Proof. apply (q_nat 2). lia. Qed.
Lemma q_quarter : Q2R (@inv rationals (of_Z 4)) = @inv reals (of_Z 4).
Proof. apply (q_nat 4). lia. Qed.

Lemma block_rel : forall known : list (nat * list rationals),
  network_rel (modulated_minimal (F := rationals) d N n slope known)
              (modulated_minimal (F := reals) d N n (Q2R slope) (map (fun e => (fst e, map Q2R (snd e))) known)).
Proof.
  intros known. set (known' := map (fun e => (fst e, map Q2R (snd e))) known).
  assert (Lab : forall j i, Q2R (@label_at rationals known j i) = @label_at reals known' j i).
  { intros j i. unfold label_at, known'.
    change (0%nat, @nil (number reals)) with ((fun e : nat * list rationals => (fst e, map Q2R (snd e))) (0%nat, [])).
    rewrite map_nth. cbn [snd]. rewrite <- q_zero. symmetry. apply (map_nth Q2R). }
  assert (Ids : forall j, @id_at rationals known j = @id_at reals known' j).
  { intros j. unfold id_at, known'.
    change (0%nat, @nil (number reals)) with ((fun e : nat * list rationals => (fst e, map Q2R (snd e))) (0%nat, [])).
    rewrite map_nth. reflexivity. }
  assert (Loops : @block_loops rationals N n known = @block_loops reals N n known').
  { unfold block_loops, known'. f_equal. f_equal. symmetry. apply map_length. }
  assert (Thr : forall t, Q2R (@threshold rationals N n known t) = @threshold reals N n known' t).
  { intros t. unfold threshold. rewrite <- Loops, <- Ids.
    destruct (t <? n - 1)%nat; [rewrite q_mul, q_of_Z, q_nat by lia; reflexivity|].
    destruct (t <? lead N n)%nat; [apply q_zero|]. destruct (t <? block_loops N n known)%nat; [|apply q_zero].
    now rewrite q_sub, q_of_Z, q_quarter. }
  split; cbn [rows Network.same_row encode heads argument update eta decode loops modulated_minimal].
  - reflexivity.
  - reflexivity.
  - intros r. destruct r; split; cbn [block_encode]; numbers; try reflexivity; [apply q_nat; lia|apply Lab].
  - repeat constructor; cbn [value key query into]; numbers; try reflexivity.
    rewrite q_inv; rewrite q_mul, !q_of_Z; [reflexivity|]. rewrite of_nat_INR. cbn [mul of_Z reals].
    pose proof (base_pos n d n_two). lra.
  - intros u. destruct u; split; cbn [block_argument]; numbers; try reflexivity. apply q_half.
  - intros r. destruct r; split; cbn [block_update]; numbers; try reflexivity.
    induction (seq 0 d) as [|i l I]; [reflexivity|]. cbn [flat_map map app fst snd]. rewrite q_opp, q_of_Z, I.
    reflexivity.
  - intros t r. destruct r; cbn [block_eta]; rewrite <- ?Loops; try apply q_one.
    + destruct (t + 1 <? block_loops N n known)%nat; [|apply q_zero]. now rewrite q_sub, !Thr.
    + destruct (t <? n - 1)%nat; [apply q_one|apply q_zero].
    + destruct ((n - 1 <=? t) && (t <? lead N n))%nat; [apply q_one|apply q_zero].
    + destruct ((n - 1 <=? t) && (t <? lead N n))%nat; [apply q_one|apply q_zero].
    + destruct (t <? lead N n)%nat; [apply q_zero|]. now rewrite q_sub, !Lab.
  - induction (seq 0 d) as [|i l I]; constructor; [|exact I]. split; numbers; reflexivity.
  - exact Loops.
Qed.

Lemma table_map : forall (label : list nat -> nat -> list rationals),
  map (fun e => (fst e, map Q2R (snd e))) (table B N label) = table B N (fun s z => map Q2R (label s z)).
Proof.
  intros label. unfold table. induction (seq _ _) as [|k l I]; [reflexivity|]. cbn [flat_map].
  destruct (holder B N k); cbn [app map fst snd]; [apply (f_equal (cons _))|]; exact I.
Qed.

(** A rational input lies inside its cell. *)
Definition inside_rational (x : list Q) (cells : list nat) : Prop := inside d n (Q2R slope) (map Q2R x) cells.

Theorem block_exact_rational : forall (label : list nat -> nat -> list Q) inputs cells,
  0 < Q2R slope -> (forall s z, In s (sequences N B) -> In z s -> length (label s z) = d) ->
  length inputs = N -> Forall2 inside_rational inputs cells ->
  let ids := map (token_id n) cells in
  map (map Q2R) (output (modulated_minimal (F := rationals) d N n slope (table B N label)) inputs) =
  map (map Q2R) (map (label (arrange ids)) ids).
Proof.
  intros label inputs cells Hslope Hlabel HN Hin ids.
  rewrite (output_transfer _ _ (block_rel (table B N label))), table_map.
  pose proof (block_exact d N n (Q2R slope) n_two Hslope (fun s z => map Q2R (label s z)) (map (map Q2R) inputs)
    cells) as H.
  unfold block_for in H. fold B in H. rewrite H.
  - symmetry. apply map_map.
  - intros s z Hs Hz. rewrite map_length. now apply Hlabel.
  - now rewrite map_length.
  - clear - Hin. induction Hin; constructor; assumption.
Qed.
End Block.
