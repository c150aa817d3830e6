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
    """Return the FLOPs of one loop. A user's own layer is counted as if it were a Transformer layer."""
    inject = 4 * config.dim * config.dim if config.injection == "concat" else 0
    return config.num_layers * _layer_flops(config, spec, seq_len) + seq_len * inject


def _layer_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Return the FLOPs of one Transformer layer. A causal model computes half of the attention scores."""
    dim = config.dim
    matrices = 2 * (4 * dim * dim + 2 * dim * config.resolved_ff_dim)
    scores = 4 * seq_len * dim // (2 if config.is_causal(spec.causal) else 1)
    return seq_len * (matrices + scores)


def read_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Return the FLOPs of one read-out, with the layers after the loop."""
    outputs = spec.output_size + config.halting_gate
    return 2 * seq_len * config.dim * outputs + config.coda_layers * _layer_flops(config, spec, seq_len)


def embed_flops(config: ModelConfig, spec: Spec, seq_len: int) -> int:
    """Return the FLOPs of the embedding (none for tokens, a matmul for vectors) and the layers before the loop."""
    matmul = 2 * seq_len * config.dim * spec.input_size if spec.kind == "vectors" else 0
    return matmul + config.prelude_layers * _layer_flops(config, spec, seq_len)
