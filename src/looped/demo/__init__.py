"""The models in a browser: one page that runs them with nothing installed, and the command that writes it."""

from looped.demo.build import build_demo

__all__ = ["build_demo"]
