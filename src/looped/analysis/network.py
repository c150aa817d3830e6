"""A trained model as the paper's f, in full precision: from embeddings to output embeddings after every loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from looped.models import LoopModel, build_model

Output = Literal["state", "normalised"]
Precision = Literal["float32", "float64"]


def precise_twin(model: LoopModel, precision: Precision) -> LoopModel:
    """Return a copy of the model on the CPU, with all matmuls in `precision` and without gradients.

    A bfloat16 matmul keeps 8 bits, so its rounding would hide a change of one part in a thousand.
    """
    twin = build_model(replace(model.config, precision=precision), model.spec)
    twin.load_state_dict(model.state_dict())
    return twin.requires_grad_(False).eval()


@dataclass(frozen=True)
class Network:
    """The function f from embeddings (batch, seq, dim) to output embeddings of the same shape."""

    model: LoopModel
    num_loops: int
    output: Output = "state"
    """output embeddings: the state, or the state after the last norm, which the head multiplies"""

    def every_loop(self, embeddings: Float[Tensor, "batch seq dim"]) -> Iterator[Float[Tensor, "batch seq dim"]]:
        """Return an iterator over the output embeddings after loop 1, 2, ..."""
        return (self._output(state) for state in self.model.stack.iterate(embeddings, self.num_loops))

    def __call__(self, embeddings: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        """Return the output embeddings after the last loop."""
        state = embeddings
        for state in self.model.stack.iterate(embeddings, self.num_loops):  # noqa: B007 (only the last one is used)
            pass
        return self._output(state)

    def sequences_per_pass(self, seq_len: int) -> int:
        """Return the number of sequences for which a backward pass stores about two gigabytes."""
        config = self.model.config
        per_layer = seq_len * (32 * config.dim + 8 * config.num_heads * seq_len)  # measured, for second derivatives
        num_bytes = self.num_loops * config.num_layers * per_layer * self.model.stack.dtype.itemsize
        return max(1, 2**31 // num_bytes)

    def _output(self, state: Tensor) -> Tensor:
        return state if self.output == "state" else self.model.hidden_for_head(state)


@contextmanager
def exact_products() -> Iterator[None]:
    """Run the block with matmuls in full precision and with plain attention.

    Fused attention kernels have no second derivative.
    """
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
