"""Pictures for a lecture: what the network of a proof computes, how it works loop by loop, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from looped.theory.plots.costs import error, loops
from looped.theory.plots.outputs import beside_network
from looped.theory.plots.steps import attention, contextual_ids, labels, staircase, trace
from looped.utils.errors import require, require_one_of
from looped.utils.files import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS: dict[str, Callable[..., Figure]] = {
    "function": beside_network,
    "staircase": staircase,
    "attention": attention,
    "ids": contextual_ids,
    "labels": labels,
    "trace": trace,
    "error": error,
    "loops": loops,
}
FORMATS = (".png", ".svg", ".pdf")


def options_of(name: str) -> list[str]:
    """Return the options that a picture takes."""
    return list(signature(PLOTS[name]).parameters)


def plot(name: str, path: str | Path, **options) -> Path:
    """Draw one of PLOTS into a file, which is written completely or not at all. `options` go to the plot function."""
    require_one_of("picture", name, PLOTS)
    known = options_of(name)
    for option, value in options.items():
        require(option in known, f"{option}: expected an option of {name} ({', '.join(known)}), got {option}={value}")
    target = Path(path)
    kind = target.suffix.lower()
    require(kind in FORMATS, f"out: expected a file that ends in {', '.join(FORMATS)}, got {str(target)!r}")
    figure = PLOTS[name](**options)
    save(target, lambda handle: figure.savefig(handle, format=kind[1:]))
    return target
