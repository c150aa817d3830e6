(** * Powers with real exponents

    Coq's own logarithm and [Rpower] rest on the mean value theorem, whose proof uses the excluded middle. The series of
    exp, its functional equation and the intermediate value theorem do not. So the tangent of exp is proved from the
    series here, and with it the logarithm, without any further axiom. *)
From Coq Require Import Reals Lra Lia.
Local Open Scope R_scope.

Lemma exp_series : forall x, Un_cv (fun n => sum_f_R0 (fun i => / INR (fact i) * x ^ i) n) (exp x).
Proof. intros x. unfold exp. destruct (exist_exp x) as [l H]. exact H. Qed.

Lemma exp_above : forall x, 0 <= x -> 1 + x <= exp x.
Proof.
  intros x Hx. replace (1 + x) with (sum_f_R0 (fun i => / INR (fact i) * x ^ i) 1) by (cbn; field).
  apply sum_incr; [apply exp_series|]. intros i. apply Rmult_le_pos; [|now apply pow_le].
  left. apply Rinv_0_lt_compat, INR_fact_lt_0.
Qed.

(** The series of exp is at most the geometric series. *)
Lemma exp_below : forall y, 0 <= y < 1 -> exp y <= / (1 - y).
Proof.
  intros y Hy. assert (Pos : 0 < / (1 - y)) by (apply Rinv_0_lt_compat; lra).
  apply Rle_cv_lim with (fun n => sum_f_R0 (fun i => / INR (fact i) * y ^ i) n) (fun _ => / (1 - y)).
  - intros n. apply Rle_trans with (sum_f_R0 (fun i => y ^ i) n).
    + apply sum_Rle. intros i _. rewrite <- (Rmult_1_l (y ^ i)) at 2.
      apply Rmult_le_compat_r; [apply pow_le; lra|]. rewrite <- Rinv_1. apply Rinv_le_contravar; [lra|].
      apply (le_INR 1). pose proof (lt_O_fact i). lia.
    + rewrite tech3 by lra. unfold Rdiv. rewrite <- (Rmult_1_l (/ (1 - y))) at 2.
      apply Rmult_le_compat_r; [lra|]. assert (0 <= y ^ S n) by (apply pow_le; lra). lra.
  - apply exp_series.
  - intros e He. exists 0%nat. intros n _. now rewrite R_dist_eq.
Qed.

Lemma exp_tangent : forall x, 1 + x <= exp x.
Proof.
  intros x. destruct (Rle_dec 0 x) as [H|H]; [now apply exp_above|].
  pose proof (exp_pos x) as P. destruct (Rle_dec (1 + x) 0) as [L|L]; [lra|].
  assert (B : exp (- x) <= / (1 + x)) by (replace (1 + x) with (1 - - x) by lra; apply exp_below; lra).
  rewrite exp_Ropp in B. apply Rinv_le_contravar in B; [|now apply Rinv_0_lt_compat]. now rewrite !Rinv_inv in B.
Qed.

Lemma exp_less : forall x y, x < y -> exp x < exp y.
Proof.
  intros x y H. replace y with (x + (y - x)) by lra. rewrite exp_plus.
  pose proof (exp_tangent (y - x)). pose proof (exp_pos x).
  rewrite <- (Rmult_1_r (exp x)) at 1. apply Rmult_lt_compat_l; lra.
Qed.

Lemma exp_injective : forall x y, exp x = exp y -> x = y.
Proof.
  intros x y E. destruct (Rtotal_order x y) as [L|[L|L]]; [|assumption|]; apply exp_less in L; lra.
Qed.

(** ** The logarithm *)

Lemma exp_onto_above : forall y, 1 <= y -> {x | exp x = y}.
Proof.
  intros y Hy. set (f := (exp - fct_cte y)%F).
  assert (C : continuity f).
  { apply continuity_minus; apply derivable_continuous; [apply derivable_exp|apply derivable_const]. }
  assert (Low : f 0 <= 0) by (unfold f, minus_fct, fct_cte; rewrite exp_0; lra).
  assert (High : 0 <= f y) by (unfold f, minus_fct, fct_cte; pose proof (exp_tangent y); lra).
  assert (Opposite : f 0 * f y <= 0).
  { apply Rle_trans with (0 * f y); [now apply Rmult_le_compat_r|lra]. }
  destruct (IVT_cor f 0 y C) as [x [_ E]]; [lra|assumption|].
  exists x. unfold f, minus_fct, fct_cte in E. lra.
Qed.

Lemma exp_onto : forall y, 0 < y -> {x | exp x = y}.
Proof.
  intros y Hy. destruct (Rle_dec 1 y) as [H|H]; [now apply exp_onto_above|].
  destruct (exp_onto_above (/ y)) as [x E].
  - rewrite <- Rinv_1. apply Rinv_le_contravar; lra.
  - exists (- x). rewrite exp_Ropp, E. apply Rinv_inv.
Qed.

Definition log (y : R) : R := match Rlt_dec 0 y with left H => proj1_sig (exp_onto y H) | right _ => 0 end.

Lemma exp_log : forall y, 0 < y -> exp (log y) = y.
Proof.
  intros y Hy. unfold log. destruct (Rlt_dec 0 y) as [H|H]; [|lra]. destruct (exp_onto y H) as [x E]. exact E.
Qed.

Lemma log_exp : forall x, log (exp x) = x.
Proof. intros x. apply exp_injective. apply exp_log, exp_pos. Qed.

Lemma log_le : forall x y, 0 < x -> x <= y -> log x <= log y.
Proof.
  intros x y Hx H. destruct (Rle_dec (log x) (log y)) as [L|L]; [assumption|].
  assert (B : exp (log y) < exp (log x)) by (apply exp_less; lra). rewrite !exp_log in B by lra. lra.
Qed.

Lemma log_mult : forall x y, 0 < x -> 0 < y -> log (x * y) = log x + log y.
Proof.
  intros x y Hx Hy. apply exp_injective. rewrite exp_plus, !exp_log; auto using Rmult_lt_0_compat.
Qed.

(** ** Powers of numbers >= 0 *)

Definition power (a p : R) : R := if Rle_dec a 0 then 0 else exp (p * log a).

Lemma power_nonneg : forall a p, 0 <= power a p.
Proof. intros a p. unfold power. destruct (Rle_dec a 0); [lra|]. left. apply exp_pos. Qed.

Lemma power_le : forall a b p, 0 <= p -> a <= b -> power a p <= power b p.
Proof.
  intros a b p Hp H. unfold power. destruct (Rle_dec a 0), (Rle_dec b 0); try lra.
  - left. apply exp_pos.
  - assert (L : p * log a <= p * log b) by (apply Rmult_le_compat_l; [assumption|apply log_le; lra]).
    destruct L as [L|L]; [left; now apply exp_less|rewrite L; lra].
Qed.

Lemma power_mult : forall a b p, 0 <= a -> 0 <= b -> power (a * b) p = power a p * power b p.
Proof.
  intros a b p Ha Hb. unfold power. destruct (Rle_dec a 0); [|destruct (Rle_dec b 0)].
  - replace a with 0 by lra. rewrite Rmult_0_l. destruct (Rle_dec 0 0); lra.
  - replace b with 0 by lra. rewrite Rmult_0_r. destruct (Rle_dec 0 0); lra.
  - assert (0 < a * b) by (apply Rmult_lt_0_compat; lra). destruct (Rle_dec (a * b) 0); [lra|].
    rewrite log_mult, <- exp_plus by lra. f_equal. lra.
Qed.

Lemma power_power : forall a p q, power (power a p) q = power a (p * q).
Proof.
  intros a p q. unfold power. destruct (Rle_dec a 0); [destruct (Rle_dec 0 0); lra|].
  pose proof (exp_pos (p * log a)) as H. destruct (Rle_dec (exp (p * log a)) 0); [lra|].
  rewrite log_exp. f_equal. lra.
Qed.

Lemma power_1 : forall a, 0 <= a -> power a 1 = a.
Proof.
  intros a H. unfold power. destruct (Rle_dec a 0); [lra|]. rewrite Rmult_1_l. apply exp_log. lra.
Qed.

Lemma root : forall a p, 0 < p -> 0 <= a -> power (power a p) (/ p) = a.
Proof. intros a p Hp Ha. rewrite power_power, Rinv_r by lra. now apply power_1. Qed.

Lemma unroot : forall a p, 0 < p -> 0 <= a -> power (power a (/ p)) p = a.
Proof. intros a p Hp Ha. rewrite power_power, Rinv_l by lra. now apply power_1. Qed.

(** This is Coq's own power. No theorem uses this lemma, which needs the excluded middle as [ln] does. *)
Lemma power_is_Rpower : forall a p, 0 < a -> power a p = Rpower a p.
Proof.
  intros a p H. unfold power, Rpower. destruct (Rle_dec a 0); [lra|]. do 2 f_equal. apply exp_injective.
  now rewrite exp_log, exp_ln.
Qed.
