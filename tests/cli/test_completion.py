"""Tab completion: the words that the command line offers, and the scripts in the shells themselves."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest

from looped.cli.main import VERBS, main
from looped.config import ModelConfig
from looped.utils.shipped import list_models


def offered(capsys, *words: str) -> list[str]:
    """Return the words that can follow the given ones."""
    if words:
        with pytest.raises(SystemExit) as stop:
            main([*words, "--complete"])
        assert stop.value.code == 0
    else:
        assert main(["--complete"]) == 0
    return capsys.readouterr().out.split()


def test_completion_offers_every_verb(capsys):
    assert offered(capsys) == list(VERBS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "lcs", "--model.block"], ["standard", "looped", "modulated"]),
        (["train", "lcs", "--train.size-schedule"], ["fixed", "growing", "random"]),
        (["train", "sudoku", "--task.side"], ["4", "9"]),
        (["eval", "sudoku", "--split"], ["train", "validation", "test"]),
        (["solve", "sudoku", "--input"], []),
        (["models"], ["list", "check", "pack"]),
        (["completion"], ["bash", "zsh", "fish"]),
    ],
)
def test_completion_offers_the_choices_of_a_flag_or_verb(words, expected, capsys):
    assert offered(capsys, *words) == expected


def test_completion_of_a_run_offers_the_shipped_models(capsys):
    found = offered(capsys, "solve")
    assert {*list_models(), "sudoku", "--loops", "--svg"} <= {*found}
    assert "--run" not in found


@pytest.mark.parametrize("command", [["train", "sudoku"], ["solve"], ["models", "pack"], ["data", "build", "lcs"]])
def test_completion_offers_the_flags_of_the_help(command, capsys):
    found = {word for word in offered(capsys, *command) if word.startswith("--")}
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    helped = {*re.findall(r"^[|│ ]*(--[a-z][\w.-]+)", capsys.readouterr().out, flags=re.MULTILINE)}
    assert helped
    assert helped <= found
    if command[0] == "train":
        assert {f"--model.{each.name.replace('_', '-')}" for each in fields(ModelConfig)} <= helped


def test_completion_knows_the_tasks_of_a_plugin(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from looped.tasks import EditDistance\n\nclass Mine(EditDistance):\n    name = 'mine-alone'\n"
    )
    assert "mine-alone" in offered(capsys, "train", "--plugin", str(tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        (
            "bash",
            "source <(looped completion bash); COMP_WORDS=(looped train lcs --model.block m); COMP_CWORD=4; "
            '_looped looped m --model.block; echo "${COMPREPLY[@]}"',
        ),
        ("fish", 'looped completion fish | source; complete -C "looped train lcs --model.block m"'),
        (
            "zsh",
            "compdef() { :; }; compadd() { print -l $known; }; source <(looped completion zsh); "
            "words=(looped train lcs --model.block m); CURRENT=5; _looped",
        ),
    ],
)
def test_script_completes_in_its_shell(shell, script, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "looped").write_text(f'#!/bin/sh\nexec {sys.executable} -m looped "$@"\n')
    (tmp_path / "looped").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert "modulated" in done.stdout.split(), done.stderr
    assert shell == "zsh" or "looped" not in done.stdout.split()
