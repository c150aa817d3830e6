"""The version and the commit of the code, in a place that any module can import."""

import os
from pathlib import Path

__version__ = "0.2.0"


def commit() -> str | None:
    """Return the commit of the code that runs, or None if it is unknown.

    LOOPED_COMMIT names it if the code was copied to another machine. Otherwise it is the commit of the checkout, with
    a + if files under `src` have changed.
    """
    import subprocess  # here, because every command imports this module

    if named := os.environ.get("LOOPED_COMMIT"):
        return named
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=True)
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "--", "src"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
