(** * What the theorems rest on

    Coq prints the axioms behind every theorem.  Those about networks and norms rest on the three axioms of Coq's real
    numbers (two about decidability, and functional extensionality); those about ids and tables rest on none. *)
From Looped Require Import Ids Table Quantizer ContextMap Memorizer ModulatedMinimal Transfer Norms Moduli JumpBound
  Approximation.

Print Assumptions multiset_id_injective.
Print Assumptions table_holds.
Print Assumptions table_length.
Print Assumptions quantizer_exact.
Print Assumptions contextual_map_exact.
Print Assumptions contextual_map_distinct.
Print Assumptions modulated_memorizer_exact.
Print Assumptions Minimal.minimal_memorizer_exact.
Print Assumptions block_exact.
Print Assumptions block_represents.
Print Assumptions block_loops_count.
Print Assumptions output_transfer.
Print Assumptions block_exact_rational.
Print Assumptions p_norms.
Print Assumptions lemma_0.
Print Assumptions gap.
Print Assumptions jump_bound.
Print Assumptions block_error.
