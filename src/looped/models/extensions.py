"""Find a user's own layers and attention biases by name (`utils/plugins.py`) and apply them in the loop."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from looped.config import ModelConfig
from looped.utils import plugins
from looped.utils.errors import require, require_field

Bias = Callable[[int, int], Tensor]
"""(sequence length, heads) -> what is added to the scores, (heads or 1, seq, seq); booleans are True at visible keys"""

LayerHook = Callable[[int, int, Tensor, Tensor], Tensor | None]
"""(loop, layer, state before the layer, state after it) -> a state that replaces the latter, or None"""


def own_layers(config: ModelConfig, generator: Generator) -> nn.ModuleList:
    """Return the user's layers, each built by `config.layer` from the config. The generator decides their weights."""
    build = plugins.find("model.layer", config.layer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        layers = [plugins.call(config.layer, build, config) for _ in range(config.num_layers)]
    for layer in layers:
        is_module = isinstance(layer, nn.Module) and any(True for _ in layer.parameters())
        require(is_module, f"model.layer: expected a module with parameters from {config.layer}, got {layer!r}")
        buffers = [name for name, _ in layer.named_buffers()]
        # Checkpoints hold parameters. A running average in a buffer would be lost on resuming.
        require(not buffers, f"model.layer: expected a module without buffers, got {', '.join(buffers)}")
    return nn.ModuleList(layers)


def apply_own_layer(layer: nn.Module, state: Tensor) -> Tensor:
    """Return the next state. Raise InputError unless it has the shape of the state."""
    result = layer(state)
    same = isinstance(result, Tensor) and result.shape == state.shape
    got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
    require(same, f"model.layer: expected a state of shape {tuple(state.shape)}, got {got}")
    return result.to(state.dtype)


def attention_bias(
    config: ModelConfig, seq_len: int, *, causal: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the config's attention bias, (1, heads or 1, seq, seq), with -inf at keys that a query must not see."""
    name, field = config.attention_bias, "model.attention_bias"
    sizes = seq_len, config.num_heads
    bias = alibi(*sizes) if name == "alibi" else plugins.call(field, plugins.find(field, name), *sizes)
    shapes = [(heads, seq_len, seq_len) for heads in (config.num_heads, 1)]
    is_known = isinstance(bias, Tensor) and (bias.is_floating_point() or bias.dtype == torch.bool)
    expected = "booleans or floats of shape {} or {}".format(*shapes)
    got = f"{bias.dtype} of shape {tuple(bias.shape)}" if isinstance(bias, Tensor) else type(bias).__name__
    require_field(is_known and tuple(bias.shape) in shapes, field, f"{expected} from {name}", got)
    if bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=torch.float32).masked_fill(~bias, -torch.inf)
    if causal:
        hidden = torch.ones(seq_len, seq_len, dtype=torch.bool, device=bias.device).triu(1)
        bias = bias.masked_fill(hidden, -torch.inf)
    if not torch.compiler.is_compiling():  # a compiled graph cannot depend on values
        sees_nothing = bool(bias.isneginf().all(dim=-1).any())
        require(not sees_nothing, f"model.attention_bias: expected a visible key for every query from {name}")
    return bias[None].to(device, dtype)


def alibi(seq_len: int, num_heads: int) -> Tensor:
    """Return a penalty for distance whose slope differs between heads (Press et al., 2022)."""
    slopes = 2.0 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)
    places = torch.arange(seq_len)
    return -slopes[:, None, None] * (places[:, None] - places).abs()
