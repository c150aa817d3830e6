"""Small tasks and models for the tests of this folder."""

import numpy as np
import pytest
import torch
from torch import Tensor

from looped import LoopModel, ModelConfig, Spec, build_model

TOKENS = Spec("tokens", input_size=7, output_size=5, seq_len=6, coordinates=((0, 0, 1, 1, 2, 2), (3, 2, 1, 0, 1, 2)))
CAUSAL = Spec("tokens", input_size=7, output_size=5, seq_len=6, causal=True)
SHARED = Spec("tokens", input_size=7, output_size=7, seq_len=6, causal=True, shared_vocabulary=True)
VECTORS = Spec("vectors", input_size=3, output_size=2, seq_len=6)
SPECS = {"tokens": TOKENS, "causal": CAUSAL, "shared": SHARED, "vectors": VECTORS}

CONDITIONINGS = ("none", "timestep", "static", "table", "eta", "additive", "scale", "gate", "shift")
FREE_TABLES = ("table", "eta")
# The conditionings with a gate on both sublayers, which start a model at the identity.
GATED = ("timestep", "static", "table", "gate", "shift")
# Every block, and every conditioning of the modulated one.
BLOCKS = (
    {"block": "standard", "num_layers": 3},
    {"block": "looped", "num_layers": 2, "num_loops": 3},
    *({"block": "modulated", "conditioning": each, "num_layers": 2, "num_loops": 3} for each in CONDITIONINGS),
)

# Fused kernels on a CPU. On a GPU, test_engines_gpu.py covers them.
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="on a CPU they need the interpreter")


def small(**knobs) -> ModelConfig:
    return ModelConfig(**({"dim": 8, "num_heads": 2, "ff_dim": 12, "precision": "float64"} | knobs))


def label(knobs) -> str:
    return "-".join(str(value) for value in knobs.values())


def scattered(config: ModelConfig, spec: Spec, seed: int = 0) -> LoopModel:
    """A model whose parameters are all away from their start, gates too.

    Before a norm the state is made large, so that what keeps the root of an all-zero token finite cannot be seen.
    """
    rng = np.random.default_rng((seed, 1))
    model = build_model(config, spec, seed)
    ends = {"rms": 30.0, "query-key": 1.0, "none": 0.3}[config.norm]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            size = ends if name.startswith(("embedding", "positions")) else 0.3
            parameter += torch.from_numpy(size * rng.standard_normal(tuple(parameter.shape)))
    return model


def examples(spec: Spec, batch: int = 2, seq_len: int | None = None) -> Tensor:
    rng = np.random.default_rng(2)
    shape = (batch, spec.seq_len if seq_len is None else seq_len)
    if spec.kind == "tokens":
        return torch.from_numpy(rng.integers(spec.input_size, size=shape))
    return torch.from_numpy(rng.standard_normal((*shape, spec.input_size)))
