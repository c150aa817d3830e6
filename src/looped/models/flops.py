"""FLOPs of a model's matmuls, counted from its config without building the model.

A multiplication and an addition count as two. The modulation table is left out, because it is computed once per pass
and not once per example.
"""

from looped.config import ModelConfig
from looped.tasks import Spec


def forward_flops(config: ModelConfig, spec: Spec, num_loops: int, seq_len: int, num_reads: int = 1) -> int:
    """Return the FLOPs of one forward pass over one sequence with `num_reads` read-outs."""
    loops, reads = num_loops * loop_flops(config, spec, seq_len), num_reads * read_flops(config, spec, seq_len)
    return embed_flops(config, spec, seq_len) + loops + reads


def loop_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Return the FLOPs of one loop. A causal model computes half of the attention scores."""
    dim = config.dim
    matrices = 2 * (4 * dim * dim + 2 * dim * config.resolved_ff_dim)
    scores = 4 * seq_len * dim // (2 if config.is_causal(spec.causal) else 1)
    inject = 4 * dim * dim if config.injection == "concat" else 0
    return seq_len * (config.num_layers * (matrices + scores) + inject)


def read_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Return the FLOPs of one read-out."""
    return 2 * seq_len * config.dim * spec.output_size


def embed_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Return the FLOPs of the embedding: none for tokens, a matmul for vectors."""
    return 2 * seq_len * config.dim * spec.input_size if spec.kind == "vectors" else 0
