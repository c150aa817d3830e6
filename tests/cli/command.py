"""To ask the command line in a test: what it answers, and what it complains of."""

from looped.cli.main import main

TRAIN = [
    "train", "edit-distance", "--recipe", "laptop", "--task.length", "4", "--model.block", "modulated",
    "--model.dim", "16", "--model.num-loops", "3", "--train.num-steps", "6", "--train.batch-size", "8",
    "--train.eval-size", "20", "--train.runtime.device", "cpu",
]  # fmt: skip


def answer(capsys, *arguments: str):
    """What a successful command prints on standard output."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def complaint(capsys, *arguments: str) -> str:
    """The one line that a mistake gets."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    lines = captured.err.strip().split("\n")
    assert len(lines) == 1, lines
    assert lines[0].startswith("looped: ")
    return lines[0]
