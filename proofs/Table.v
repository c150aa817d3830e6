(** * The table of labels

    All descending sequences of N token ids below B, all pairs (sequence, member), and the table that Step 3 walks
    through: every realizable id once, in increasing order, with its label.  [table_holds] says that the table holds the
    label of every pair, which is where injectivity of the ids is needed; [table_length] counts the realizable ids,
    R = B * binomial(B+N-2, N-1). *)
From Coq Require Import List Arith Lia Permutation Sorted Bool.
From Looped Require Import Ids.
Import ListNotations.

(** ** Sequences *)

(** All descending sequences of length N with entries below B, the largest first. *)
Fixpoint sequences (N : nat) : nat -> list (list nat) :=
  match N with
  | O => fun _ => [[]]
  | S N' => fix below (B : nat) : list (list nat) :=
      match B with O => [] | S b => map (cons b) (sequences N' (S b)) ++ below b end
  end.

Lemma in_sequences : forall N B s,
  In s (sequences N B) <-> length s = N /\ descending s /\ forall z, In z s -> z < B.
Proof.
  induction N as [|N IN]; intros B s.
  - cbn. split; [intros [<-|[]]; repeat split; [constructor|easy]|].
    intros [L _]. left. symmetry. now apply length_zero_iff_nil.
  - induction B as [|b IB].
    + split; [easy|]. intros [L [_ H]]. destruct s as [|a s]; [easy|]. specialize (H a (or_introl eq_refl)). lia.
    + change (sequences (S N) (S b)) with (map (cons b) (sequences N (S b)) ++ sequences (S N) b).
      rewrite in_app_iff, IB, in_map_iff. split.
      * intros [[s' [<- H]]|[L [D H]]].
        -- apply IN in H as [L [D H]]. cbn. split; [lia|]. split.
           ++ constructor; [assumption|]. destruct s' as [|c s']; constructor.
              specialize (H c (or_introl eq_refl)). lia.
           ++ intros z [<-|Hz]; [lia|]. now apply H.
        -- split; [assumption|]. split; [assumption|]. intros z Hz. specialize (H z Hz). lia.
      * intros [L [D H]]. destruct s as [|a s]; [easy|]. destruct (descending_cons _ _ D) as [Ds Ha].
        destruct (Nat.eq_dec a b) as [->|Hne].
        -- left. exists s. split; [reflexivity|]. apply IN. cbn in L. split; [lia|]. split; [assumption|].
           intros z Hz. specialize (Ha z Hz). lia.
        -- right. split; [assumption|]. split; [assumption|].
           pose proof (H a (or_introl eq_refl)). intros z [<-|Hz]; [lia|]. specialize (Ha z Hz). lia.
Qed.

(** The descending order of a list. *)
Fixpoint insert (a : nat) (l : list nat) : list nat :=
  match l with [] => [a] | b :: rest => if b <=? a then a :: l else b :: insert a rest end.
Definition arrange (l : list nat) : list nat := fold_right insert [] l.

Lemma insert_permutation : forall a l, Permutation (a :: l) (insert a l).
Proof.
  intros a l. induction l as [|b l I]; [reflexivity|]. cbn. destruct (b <=? a); [reflexivity|].
  eapply perm_trans; [apply perm_swap|]. now constructor.
Qed.

Lemma arrange_permutation : forall l, Permutation l (arrange l).
Proof.
  induction l as [|a l I]; [reflexivity|]. cbn. eapply perm_trans; [|apply insert_permutation]. now constructor.
Qed.

Lemma insert_descending : forall a l, descending l -> descending (insert a l).
Proof.
  intros a l. induction l as [|b l I]; intros D; [repeat constructor|]. cbn.
  destruct (Nat.leb_spec b a); [constructor; [assumption|constructor; lia]|].
  destruct (descending_cons _ _ D) as [Dl Hb]. constructor; [now apply I|].
  assert (forall c, In c (insert a l) -> c <= b).
  { intros c Hc. apply (Permutation_in c (Permutation_sym (insert_permutation a l))) in Hc as [<-|Hc]; [lia|auto]. }
  destruct (insert a l) as [|c k]; constructor. specialize (H0 c (or_introl eq_refl)). lia.
Qed.

Lemma arrange_descending : forall l, descending (arrange l).
Proof. induction l as [|a l I]; [constructor|]. cbn. now apply insert_descending. Qed.

(** ** The table *)

Section Table.
Context {A : Type}.
Variables (B N : nat) (label : list nat -> nat -> A).

Definition members : list (list nat * nat) :=
  flat_map (fun s => map (pair s) (nodup Nat.eq_dec s)) (sequences N B).

Definition id_of (p : list nat * nat) : nat := multiset_id B N (fst p) (snd p).

Definition holder (k : nat) : option (list nat * nat) := find (fun p => id_of p =? k) members.

Definition table : list (nat * A) :=
  flat_map (fun k => match holder k with Some p => [(k, label (fst p) (snd p))] | None => [] end)
    (seq 0 (B * radix B N ^ N)).

Lemma in_members : forall s z, In (s, z) members <-> In s (sequences N B) /\ In z s.
Proof.
  intros s z. unfold members. rewrite in_flat_map. split.
  - intros [s' [Hs H]]. apply in_map_iff in H. destruct H as [z' [[= -> ->] H]]. apply nodup_In in H. now split.
  - intros [Hs Hz]. exists s. split; [assumption|]. apply in_map_iff. exists z. split; [reflexivity|].
    now apply nodup_In.
Qed.

Lemma id_of_injective : forall p q, In p members -> In q members -> id_of p = id_of q -> p = q.
Proof.
  intros [s z] [s' z'] Hp Hq E. apply in_members in Hp as [Hs Hz], Hq as [Hs' Hz'].
  apply in_sequences in Hs as [L [D H]], Hs' as [L' [D' H']].
  destruct (multiset_id_injective B N s s' z z'); [assumption..|]. now subst.
Qed.

Lemma id_of_bound : forall p, In p members -> id_of p < B * radix B N ^ N.
Proof.
  intros [s z] Hp. apply in_members in Hp as [Hs Hz]. apply in_sequences in Hs as [L [D H]].
  unfold id_of. cbn [fst snd]. rewrite multiset_id_split. pose proof (H z Hz).
  assert (Hne : s <> []) by (intros ->; easy).
  assert (Hseq : sequence_id B N s N < radix B N ^ N).
  { unfold sequence_id. eapply Nat.lt_le_trans; [apply positional_bound|now rewrite map_length, seq_length].
    intros a Ha. apply in_map_iff in Ha. destruct Ha as [k [<- _]]. now apply digit_bound. }
  assert ((z + 1) * radix B N ^ N <= B * radix B N ^ N) by (apply Nat.mul_le_mono_r; lia). lia.
Qed.

Lemma holder_of : forall p, In p members -> holder (id_of p) = Some p.
Proof.
  intros p Hp. unfold holder. destruct (find _ members) as [q|] eqn:E.
  - apply find_some in E as [Hq E]. apply Nat.eqb_eq in E. f_equal. now apply id_of_injective.
  - exfalso. pose proof (find_none _ _ E p Hp) as H. cbn in H. now rewrite Nat.eqb_refl in H.
Qed.

Lemma holder_some : forall k p, holder k = Some p -> In p members /\ id_of p = k.
Proof. intros k p H. apply find_some in H as [Hp E]. apply Nat.eqb_eq in E. now split. Qed.

Theorem table_holds : forall s z, In s (sequences N B) -> In z s -> In (multiset_id B N s z, label s z) table.
Proof.
  intros s z Hs Hz. assert (Hp : In (s, z) members) by now apply in_members.
  unfold table. apply in_flat_map. exists (id_of (s, z)). split.
  - apply in_seq. pose proof (id_of_bound _ Hp). lia.
  - rewrite holder_of by assumption. now left.
Qed.

(** *** The ids increase *)

Definition realizable (k : nat) : bool := match holder k with Some _ => true | None => false end.

Lemma table_ids : map fst table = filter realizable (seq 0 (B * radix B N ^ N)).
Proof.
  unfold table, realizable. induction (seq _ _) as [|k l I]; [reflexivity|]. cbn. rewrite map_app, I.
  now destruct (holder k).
Qed.

Lemma strongly_sorted_filter : forall (p : nat -> bool) l, StronglySorted lt l -> StronglySorted lt (filter p l).
Proof.
  intros p l H. induction H as [|a l Hs I Hf]; [constructor|]. cbn. destruct (p a); [|assumption].
  constructor; [assumption|]. rewrite Forall_forall in *. intros b Hb. apply filter_In in Hb as [Hb _]. auto.
Qed.

Lemma seq_sorted : forall k s, StronglySorted lt (seq s k).
Proof.
  induction k as [|k I]; intros s; [constructor|]. cbn. constructor; [apply I|].
  rewrite Forall_forall. intros b Hb. apply in_seq in Hb. lia.
Qed.

Theorem table_sorted : StronglySorted lt (map fst table).
Proof. rewrite table_ids. apply strongly_sorted_filter, seq_sorted. Qed.

(** *** The number of realizable ids *)

Fixpoint binomial (m k : nat) : nat :=
  match k, m with O, _ => 1 | S _, O => 0 | S k', S m' => binomial m' k' + binomial m' k end.

Lemma binomial_beyond : forall m k, m < k -> binomial m k = 0.
Proof. induction m as [|m I]; intros [|k] H; try lia; [reflexivity|]. cbn. rewrite !I by lia. reflexivity. Qed.

Lemma sequences_length : forall M b, length (sequences M b) = binomial (b + M - 1) M.
Proof.
  induction M as [|M IM]; intros b; [now destruct (b + 0 - 1)|]. induction b as [|b Ib].
  - cbn [sequences length]. symmetry. apply binomial_beyond. lia.
  - change (sequences (S M) (S b)) with (map (cons b) (sequences M (S b)) ++ sequences (S M) b).
    rewrite app_length, map_length, IM, Ib. replace (S b + S M - 1) with (S (b + M)) by lia. cbn [binomial].
    f_equal; f_equal; lia.
Qed.

Lemma NoDup_append : forall {T} (l k : list T), NoDup l -> NoDup k -> (forall a, In a l -> ~ In a k) -> NoDup (l ++ k).
Proof.
  intros T l k Hl Hk H. induction Hl as [|a l Ha Hl I]; [assumption|]. cbn. constructor.
  - rewrite in_app_iff. intros [Hin|Hin]; [easy|]. apply (H a); [now left|assumption].
  - apply I. intros b Hb. apply H. now right.
Qed.

Lemma NoDup_map_in : forall {T U} (g : T -> U) l,
  NoDup l -> (forall a b, In a l -> In b l -> g a = g b -> a = b) -> NoDup (map g l).
Proof.
  intros T U g l Hl H. induction Hl as [|a l Ha Hl I]; [constructor|]. cbn. constructor.
  - intros Hin. apply in_map_iff in Hin. destruct Hin as [b [E Hb]].
    apply H in E; [subst; easy|now right|now left].
  - apply I. intros b c Hb Hc. apply H; now right.
Qed.

Lemma sequences_NoDup : forall M b, NoDup (sequences M b).
Proof.
  induction M as [|M IM]; intros b; [repeat constructor; easy|]. induction b as [|b Ib]; [constructor|].
  change (sequences (S M) (S b)) with (map (cons b) (sequences M (S b)) ++ sequences (S M) b).
  apply NoDup_append; [apply NoDup_map_in; [apply IM|congruence]|assumption|].
  intros s Hs Hs'. apply in_map_iff in Hs. destruct Hs as [s' [<- _]]. apply in_sequences in Hs' as [_ [_ H]].
  specialize (H b (or_introl eq_refl)). lia.
Qed.

Lemma descending_unique : forall l l', descending l -> descending l' -> Permutation l l' -> l = l'.
Proof.
  induction l as [|a l I]; intros [|b l'] D D' P; try reflexivity.
  - now apply Permutation_nil in P.
  - symmetry in P. now apply Permutation_nil in P.
  - destruct (descending_cons _ _ D) as [Dl Ha], (descending_cons _ _ D') as [Dl' Hb].
    assert (a = b).
    { pose proof (Permutation_in a P (or_introl eq_refl)) as Hin.
      pose proof (Permutation_in b (Permutation_sym P) (or_introl eq_refl)) as Hin'.
      destruct Hin as [|Hin]; [congruence|]. destruct Hin' as [|Hin']; [congruence|].
      specialize (Ha b Hin'). specialize (Hb a Hin). lia. }
    subst b. f_equal. apply I; [assumption..|]. now apply Permutation_cons_inv in P.
Qed.

Lemma NoDup_pairs : forall {T U V} (g : T -> U -> V) l k,
  NoDup l -> NoDup k ->
  (forall a a' b b', In a l -> In a' l -> In b k -> In b' k -> g a b = g a' b' -> a = a' /\ b = b') ->
  NoDup (flat_map (fun a => map (g a) k) l) /\ length (flat_map (fun a => map (g a) k) l) = length l * length k.
Proof.
  intros T U V g l k Hl Hk H. induction Hl as [|a l Ha Hl I]; [split; [constructor|reflexivity]|]. cbn.
  rewrite app_length, map_length. destruct I as [I1 I2]; [intros; apply H; auto with *|]. split; [|lia].
  apply NoDup_append; [apply NoDup_map_in; [assumption|]|assumption|].
  - intros b b' Hb Hb' E. now apply (H a a b b') in E; auto with *.
  - intros v Hv Hin. apply in_map_iff in Hv. destruct Hv as [b [<- Hb]]. apply in_flat_map in Hin.
    destruct Hin as [a' [Ha' Hin]]. apply in_map_iff in Hin. destruct Hin as [b' [E Hb']].
    apply (H a' a b' b) in E; auto with *. destruct E as [-> _]. easy.
Qed.

(** A pair (sequence, member) is a token and the descending sequence of the N-1 others. *)
Lemma members_count : forall M, N = S M -> exists l, NoDup l /\ length l = B * binomial (B + N - 2) (N - 1) /\
  forall p, In p l <-> In p members.
Proof.
  intros M HN.
  destruct (NoDup_pairs (fun z others => (arrange (z :: others), z)) (seq 0 B) (sequences M B)) as [HD HL].
  - apply seq_NoDup.
  - apply sequences_NoDup.
  - intros z z' o o' Hz Hz' Ho Ho' [= E ->]. split; [reflexivity|].
    apply in_sequences in Ho as [_ [Do _]], Ho' as [_ [Do' _]]. apply descending_unique; [assumption..|].
    apply (Permutation_cons_inv (a := z')). eapply perm_trans; [apply arrange_permutation|].
    change (Permutation (insert z' (arrange o)) (z' :: o')). rewrite E. symmetry. apply arrange_permutation.
  - exists (flat_map (fun z => map (fun others => (arrange (z :: others), z)) (sequences M B)) (seq 0 B)).
    split; [assumption|]. split.
    { rewrite HL, seq_length, sequences_length. subst N. do 2 f_equal; lia. }
    intros [s z]. rewrite in_members, in_flat_map. split.
    + intros [z' [Hz H]]. apply in_map_iff in H. destruct H as [o [E Ho]].
      assert (z' = z) by congruence. assert (arrange (z' :: o) = s) by congruence. subst z' s. apply in_seq in Hz.
      apply in_sequences in Ho as [L [D H]]. pose proof (arrange_permutation (z :: o)) as P. split.
      * apply in_sequences. rewrite <- (Permutation_length P). cbn. split; [lia|].
        split; [apply (arrange_descending (z :: o))|].
        intros a Ha. apply (Permutation_in a (Permutation_sym P)) in Ha as [<-|Ha]; [lia|auto].
      * apply (Permutation_in z P). now left.
    + intros [Hs Hz]. apply in_sequences in Hs as [L [D H]]. exists z. split; [apply in_seq; specialize (H z Hz); lia|].
      apply in_split in Hz as [l1 [l2 E]]. apply in_map_iff. exists (arrange (l1 ++ l2)).
      assert (P : Permutation s (z :: arrange (l1 ++ l2))).
      { rewrite E, <- arrange_permutation. symmetry. apply Permutation_middle. }
      split.
      * f_equal. apply descending_unique; [apply arrange_descending|assumption|].
        rewrite <- arrange_permutation. now symmetry.
      * apply in_sequences. split; [apply Permutation_length in P; cbn in P; lia|].
        split; [apply arrange_descending|]. intros a Ha. apply H. apply (Permutation_in a (Permutation_sym P)).
        now right.
Qed.

Theorem table_length : 1 <= N -> length table = B * binomial (B + N - 2) (N - 1).
Proof.
  intros HN. destruct (members_count (N - 1)) as [l [HD [HL Hl]]]; [lia|]. rewrite <- HL.
  rewrite <- (map_length fst table), <- (map_length id_of l), table_ids.
  assert (Same : forall k, In k (filter realizable (seq 0 (B * radix B N ^ N))) <-> In k (map id_of l)).
  { intros k. rewrite filter_In, in_seq, in_map_iff. unfold realizable. split.
    - intros [_ H]. destruct (holder k) as [p|] eqn:E; [|easy]. apply holder_some in E as [Hp E]. exists p.
      split; [assumption|now apply Hl].
    - intros [p [<- Hp]]. apply Hl in Hp. rewrite holder_of by assumption. pose proof (id_of_bound p Hp).
      split; [lia|easy]. }
  apply Nat.le_antisymm; apply NoDup_incl_length; try (intros k Hk; now apply Same).
  - apply NoDup_filter, seq_NoDup.
  - apply NoDup_map_in; [assumption|]. intros p q Hp Hq. apply id_of_injective; now apply Hl.
Qed.
End Table.
