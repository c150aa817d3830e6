"""Conditioning of the block on the loop index t (paper, Section 4.2), and the controls for comparison.

A conditioner maps times to a table (time, layer, part * dim) once per forward pass. The table depends on t, not on the
examples. At initialisation every scale is 1, every gate is 0 and the theory's eta is 1, for every t: the last layer is
zero and its bias holds these values. With `modulation_init="random"`, the last layer is drawn like any other matrix.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor, nn

from looped.config import FREE_TABLES
from looped.kernels import Modulation
from looped.models.init import EMBEDDING_STD, linear_weight
from looped.models.module import ShapedModule

# The parts that a conditioning sets, in the paper's order (alpha1, alpha2, gamma1, gamma2): a field of Modulation and
# its sublayer. Other parts are constant: the scale is then a learned gain, without gate or shift.
ATTENTION, FEED_FORWARD = 0, 1
_SCALES = (("scale", ATTENTION), ("scale", FEED_FORWARD))
_GATES = (("gate", ATTENTION), ("gate", FEED_FORWARD))
_SHIFTS = (("shift", ATTENTION), ("shift", FEED_FORWARD))
PARTS: dict[str, tuple[tuple[str, int], ...]] = {
    "none": (),
    "additive": (),
    "timestep": _SCALES + _GATES,
    "static": _SCALES + _GATES,
    "table": _SCALES + _GATES,
    "scale": _SCALES,
    "gate": _GATES,
    "shift": _SCALES + _GATES + _SHIFTS,
    "eta": (("gate", FEED_FORWARD),),
}


def sinusoid(values: Float[Tensor, " n"], dim: int) -> Float[Tensor, "n dim"]:
    """Return PE(t): sin(t / 10000^(2i/d)) at place 2i, and the cosine at place 2i + 1."""
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=values.dtype, device=values.device) / dim)
    angles = values[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def loop_times(
    num_loops: int,
    trained: int,
    extrapolation: Literal["extend", "clamp", "rescale"],
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " num_loops"]:
    """Return the time of each loop: its index, or what the policy gives if there are more loops than in training."""
    times = torch.arange(num_loops, device=device, dtype=dtype)
    if num_loops <= trained or extrapolation == "extend":
        return times
    return times.clamp(max=trained - 1) if extrapolation == "clamp" else times * (trained / num_loops)


def start_values(conditioning: str, dim: int) -> Float[Tensor, " vectors"]:
    """Return the initial values: 1 for scales, 0 for gates and shifts.

    The gate of eta starts at 1, because it multiplies a sublayer that has no other gate.
    """
    ones = ("scale", "gate") if conditioning == "eta" else ("scale",)
    return torch.cat([torch.full((dim,), float(kind in ones)) for kind, _ in PARTS[conditioning]])


def modulation_tables(
    conditioning: str,
    table: Float[Tensor, "time layer vectors"] | None,
    gains: tuple[Tensor | None, Tensor | None],
    num_loops: int,
) -> tuple[Modulation, Modulation]:
    """Return tables (loop, layer, dim) for attention and for the feed-forward layer.

    They come from a conditioner's table. Scales that the conditioner does not set come from gains (layer, dim).
    """
    fields: tuple[dict[str, Tensor | None], ...] = ({}, {})
    for sublayer, gain in enumerate(gains):
        fields[sublayer]["scale"] = None if gain is None else gain.expand(num_loops, -1, -1)
    if table is not None:
        parts = PARTS[conditioning]
        for (kind, sublayer), vectors in zip(parts, table.chunk(len(parts), dim=-1), strict=True):
            fields[sublayer][kind] = vectors
    return Modulation(**fields[ATTENTION]), Modulation(**fields[FEED_FORWARD])


class TimestepEncoding(ShapedModule):
    """Compute TE(t) = W3 SiLU(W4 PE(t) + b4) + b3, shared by all layers, and W5 SiLU(TE(t)) + b5 for each layer."""

    def __init__(
        self, start: Tensor, dim: int, num_layers: int, generator: Generator, kind: Literal["exact", "random"]
    ) -> None:
        super().__init__()
        self.dim = dim
        self.w4 = nn.Parameter(linear_weight(dim, dim, generator))
        self.b4 = nn.Parameter(torch.zeros(dim))
        self.w3 = nn.Parameter(linear_weight(dim, dim, generator))
        self.b3 = nn.Parameter(torch.zeros(dim))
        self.w5 = nn.Parameter(torch.zeros(num_layers, len(start), dim))
        if kind == "random":
            self.w5.data = linear_weight(num_layers * len(start), dim, generator).view_as(self.w5)
        self.b5 = nn.Parameter(start.repeat(num_layers, 1))

    def forward(self, times: Float[Tensor, " time"]) -> Float[Tensor, "time layer vectors"]:
        """Return the vectors of every layer at each time."""
        hidden = F.silu(F.linear(sinusoid(times, self.dim).to(self.w4.dtype), self.w4, self.b4))
        encoding = F.silu(F.linear(hidden, self.w3, self.b3))
        return torch.einsum("td,lpd->tlp", encoding, self.w5) + self.b5


class StaticVectors(ShapedModule):
    """The same learned vectors in every loop, to separate the effect of gating from that of the timestep."""

    def __init__(self, start: Tensor, num_layers: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(start.repeat(num_layers, 1))

    def forward(self, times: Float[Tensor, " time"]) -> Float[Tensor, "time layer vectors"]:
        """Return the same vectors at each time."""
        return self.vectors.expand(len(times), -1, -1)


class FreeTable(ShapedModule):
    """One learned row per trained loop (the theory's eta(t)). Times between two rows are interpolated."""

    def __init__(self, start: Tensor, num_layers: int, num_loops: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(start.repeat(num_loops, num_layers, 1))

    def forward(self, times: Float[Tensor, " time"]) -> Float[Tensor, "time layer vectors"]:
        """Return the rows of the table, with linear interpolation between loops."""
        below = times.long().clamp(max=len(self.rows) - 1)
        above = (below + 1).clamp(max=len(self.rows) - 1)
        fraction = (times - below)[:, None, None].to(self.rows.dtype)
        return torch.lerp(self.rows[below], self.rows[above], fraction)


class AdditiveSignal(ShapedModule):
    """PE(t) times a learned amplitude, which is added to the state as in the Universal Transformer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.amplitude = nn.Parameter(torch.full((dim,), EMBEDDING_STD))

    def forward(self, times: Float[Tensor, " time"]) -> Float[Tensor, "time dim"]:
        """Return the signal that is added to the state at each time."""
        return self.amplitude * sinusoid(times, len(self.amplitude)).to(self.amplitude.dtype)


def build_conditioner(
    conditioning: str,
    dim: int,
    num_layers: int,
    num_loops: int,
    generator: Generator,
    kind: Literal["exact", "random"] = "exact",
) -> nn.Module | None:
    """Return the module that computes the table, or None if the conditioning sets nothing."""
    if not PARTS[conditioning]:
        return None
    start = start_values(conditioning, dim)
    if conditioning == "static":
        return StaticVectors(start, num_layers)
    if conditioning in FREE_TABLES:
        return FreeTable(start, num_layers, num_loops)
    return TimestepEncoding(start, dim, num_layers, generator, kind)
