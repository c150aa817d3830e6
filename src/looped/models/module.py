"""The base of modules that hold parameters of their own: `print` shows the shapes."""

from torch import nn


class ShapedModule(nn.Module):
    """A module whose `repr` lists the shapes of its own parameters. PyTorch lists child modules only."""

    def extra_repr(self) -> str:
        """Return the names and shapes, such as `w_qkv (192, 64), w_out (64, 64)`."""
        return ", ".join(f"{name} {tuple(each.shape)}" for name, each in self.named_parameters(recurse=False))
