"""Numbers of parameters and FLOPs, counted a second way."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from looped import ModelConfig, Spec, build_model

from .cases import BLOCKS, CONDITIONINGS, SPECS, examples, label, small
from .twin import SET_BY

LANGUAGE = Spec(
    kind="tokens", input_size=50304, output_size=50304, seq_len=1024, causal=True, shared_vocabulary=True
)  # fmt: skip


@pytest.mark.parametrize(
    ("block", "num_layers", "num_heads", "dim", "millions"),
    [("standard", 6, 8, 512, 45.2), ("looped", 1, 12, 768, 46.5), ("modulated", 1, 12, 768, 50.0)],
)
def test_language_models_have_the_papers_parameters(block, num_layers, num_heads, dim, millions):
    """Compare with the appendix, positions included. The looped model has about as many parameters as the standard."""
    config = ModelConfig(block=block, num_layers=num_layers, num_heads=num_heads, dim=dim)
    assert round(build_model(config, LANGUAGE).num_parameters() / 1e6, 1) == millions


def _expected_parameters(config, spec):
    """Count from the printed shapes of W_Q, W_K, W_V, W_O, W_1, W_2, b_1, b_2, W_3 to W_5 and b_3 to b_5."""
    d, q, conditioning = config.dim, config.ff_dim, config.resolved_conditioning
    layer = sum(rows * columns for rows, columns in [(d, d)] * 4 + [(q, d), (d, q), (q, 1), (d, 1)])
    set_by_time = SET_BY[conditioning]
    if "alpha_1" not in set_by_time:
        layer += {"rms": 2, "query-key": 1, "none": 0}[config.norm] * d
    vectors = len(set_by_time) * d
    if conditioning == "static":
        layer += vectors
    elif conditioning in ("table", "eta"):
        layer += config.num_loops * vectors
    elif set_by_time:
        layer += vectors * d + vectors
    total = config.num_layers * layer
    if conditioning in ("timestep", "scale", "gate", "shift"):
        total += 2 * d * (d + 1)
    if conditioning == "additive":
        total += d
    if config.injection == "concat":
        total += d * 2 * d
    if config.positions == "learned":
        total += spec.seq_len * d
    if config.positions == "coordinates":
        total += sum(len(set(ids)) for ids in spec.coordinates) * d
    if config.norm != "none":
        total += d
    if spec.kind == "vectors":
        total += d + spec.output_size  # both ends are affine
    shared = config.tie_embeddings == "yes" or (config.tie_embeddings == "task" and spec.shared_vocabulary)
    return total + d * (spec.input_size if shared else spec.input_size + spec.output_size)


VARIANTS = (
    {},
    {"injection": "concat"},
    {"norm": "none"},
    {"norm": "query-key"},
    {"positions": "coordinates"},
    {"positions": "rotary"},
    {"ff_dim": 20},
    {"tie_embeddings": "no"},
)


@pytest.mark.parametrize("knobs", BLOCKS, ids=label)
@pytest.mark.parametrize("variant", VARIANTS, ids=label)
def test_num_parameters_follows_the_printed_shapes(knobs, variant):
    config = small(**(knobs | variant))
    for kind, spec in SPECS.items():
        if config.positions != "coordinates" or kind == "tokens":
            assert build_model(config, spec).num_parameters() == _expected_parameters(config, spec), kind


def test_default_feed_forward_width_is_four_times_the_state():
    by_default, stated = (build_model(small(ff_dim=width), SPECS["tokens"]) for width in (None, 32))
    assert by_default.num_parameters() == stated.num_parameters()


def _measured(model, num_loops):
    """Return PyTorch's own count for one forward pass over one sequence, without the modulation table."""
    # The counter counts attention only as two separate matmuls.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(examples(model.spec, batch=1), num_loops)
    if model.stack.conditioner is None:
        return counter.get_total_flops()
    with FlopCounterMode(display=False) as table:
        model.stack.conditioner(torch.arange(num_loops, dtype=torch.float64))
    return counter.get_total_flops() - table.get_total_flops()


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("kind", ["tokens", "vectors"])
@pytest.mark.parametrize("injection", ["none", "add", "concat"])
def test_flops_equal_those_of_pytorch(conditioning, kind, injection):
    knobs = {
        "block": "modulated",
        "conditioning": conditioning,
        "injection": injection,
        "num_layers": 2,
        "num_loops": 3,
    }
    model = build_model(small(**knobs), SPECS[kind])
    for num_loops in (1, 3):
        assert model.flops(num_loops) == _measured(model, num_loops)


def test_flops_of_a_causal_model_count_half_of_the_scores():
    full, causal = (build_model(small(attention=each), SPECS["tokens"]) for each in ("full", "causal"))
    products_with_all_keys = 2 * 2 * 6 * 6 * 8  # two products of 6 x 6 scores with 8 channels
    assert full.flops() - causal.flops() == products_with_all_keys // 2


def test_flops_of_the_paper_edit_distance_model():
    """Compute width 256, 100 loops and 127 tokens by hand: 12 d^2 weights and n scores per token and loop."""
    spec = Spec("tokens", input_size=30, output_size=180, seq_len=127)
    model = build_model(ModelConfig(block="looped", dim=256, num_loops=100), spec)
    per_token = 2 * 12 * 256**2 + 2 * 2 * 127 * 256
    assert model.flops() == 127 * (100 * per_token + 2 * 256 * 180)
    assert model.flops(num_reads=3) - model.flops() == 2 * 127 * 2 * 256 * 180
    assert model.flops(num_loops=50, seq_len=64) == 64 * (50 * (2 * 12 * 256**2 + 4 * 64 * 256) + 2 * 256 * 180)
