"""Which commit the code belongs to."""

import subprocess
from pathlib import Path

from looped.utils import version
from looped.utils.version import commit


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    said = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def test_commit_of_a_checkout_tells_changes_and_yields_to_the_environment(tmp_path, monkeypatch):
    code = tmp_path / "src" / "looped" / "utils" / "version.py"
    code.parent.mkdir(parents=True)
    code.write_text("")
    monkeypatch.setattr(version, "__file__", str(code))
    monkeypatch.delenv("LOOPED_COMMIT", raising=False)
    assert commit() is None
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit() == head
    (tmp_path / "notes.txt").write_text("no part of the code")
    assert commit() == head
    code.write_text("changed = True")
    assert commit() == f"{head}+"
    monkeypatch.setenv("LOOPED_COMMIT", "copied")
    assert commit() == "copied"
