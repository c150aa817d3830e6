"""Your own layer in the loop, and your own attention mask. Run it, or use both on the command line:

looped train lcs --model.layer examples/own_layer.py:Convolution
looped train lcs --model.attention-bias examples/own_layer.py:near
"""

import torch
from torch import nn

import looped


class Convolution(nn.Module):
    """Mix each position with its neighbours, then transform it. Maps a state (batch, seq, dim) to the next one."""

    def __init__(self, config: looped.ModelConfig, width: int = 5) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.dim)
        self.mix = nn.Conv1d(config.dim, config.dim, width, padding=width // 2)
        self.out = nn.Linear(config.dim, config.dim)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        mixed = self.mix(self.norm(state).transpose(1, 2)).transpose(1, 2)
        return state + self.out(nn.functional.gelu(mixed)) / 4


def near(seq_len: int, num_heads: int) -> torch.Tensor:
    """Let a query see keys at most four places away. True marks a visible key; floats would be added to the scores."""
    places = torch.arange(seq_len)
    return ((places[:, None] - places).abs() <= 4)[None]


if __name__ == "__main__":
    looped.register(Convolution)
    looped.register(near)
    small = {"length": 4, "alphabet": 2, "max_letters": 2, "dim": 32, "num_loops": 4, "num_steps": 100}
    for name, settings in {"layer": {"layer": "Convolution"}, "mask": {"attention_bias": "near"}}.items():
        config = looped.configure("laptop", "lcs", **small, **settings)
        result = looped.train(config, f"runs/own-{name}", quiet=True)
        print(f"own {name}: validation accuracy {result.validation:.3f}")

    seen = []
    run = looped.load("runs/own-layer")
    handle = run.model.stack.register_layer_hook(lambda loop, layer, before, after: seen.append((loop, layer)))
    run.answer("abba|abab")
    handle.remove()
    print("layers seen by the hook:", seen)
