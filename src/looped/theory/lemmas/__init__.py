"""The lemmas of the proofs as small networks: quantizer, contextual map, memorizers."""
