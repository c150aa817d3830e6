"""Where the project lies on disk."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
