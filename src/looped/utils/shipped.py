"""Find the trained models that come with the package, without importing torch."""

import os
from pathlib import Path

SUFFIX = ".safetensors"


def weights_folder() -> Path:
    """Return the folder of the shipped weights: LOOPED_WEIGHTS, or the package's own."""
    return Path(os.environ.get("LOOPED_WEIGHTS") or Path(__file__).parents[1] / "models" / "weights")


def shipped_path(name: str) -> Path:
    """Return the file of a shipped model."""
    return weights_folder() / f"{name}{SUFFIX}"


def list_models() -> list[str]:
    """Return the names of the shipped models, as TASK/NAME."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in weights_folder().glob(f"*/*{SUFFIX}"))
