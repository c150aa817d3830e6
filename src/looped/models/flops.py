"""Floating-point operations of a model's products, counted from its config: no model has to be built for it.

Two per multiplication and addition. What depends on the loop index alone (the modulation table) is left out: it is
made once per pass, not once per example.
"""

from looped.config import ModelConfig
from looped.tasks import Spec


def forward_flops(config: ModelConfig, spec: Spec, num_loops: int, seq_len: int, num_reads: int = 1) -> int:
    """Of one forward pass over one sequence, read out `num_reads` times."""
    loops, reads = num_loops * loop_flops(config, spec, seq_len), num_reads * read_flops(config, spec, seq_len)
    return embed_flops(config, spec, seq_len) + loops + reads


def loop_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Of one loop. A causal model leaves out half of the scores."""
    dim = config.dim
    matrices = 2 * (4 * dim * dim + 2 * dim * config.resolved_ff_dim)
    scores = 4 * seq_len * dim // (2 if config.is_causal(spec.causal) else 1)
    inject = 4 * dim * dim if config.injection == "concat" else 0
    return seq_len * (config.num_layers * (matrices + scores) + inject)


def read_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Of one read-out."""
    return 2 * seq_len * config.dim * spec.output_size


def embed_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Of the embedding: tokens are looked up, vectors multiplied."""
    return 2 * seq_len * config.dim * spec.input_size if spec.kind == "vectors" else 0
