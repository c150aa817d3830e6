"""What the README shows works as it stands there."""

import re
import shlex

import torch

import looped
from looped.cli.main import main
from tests.paths import ROOT

README = (ROOT / "README.md").read_text()
TINY = ["--train.num-steps", "3", "--train.batch-size", "4", "--train.eval-size", "10", "--train.runtime.device", "cpu"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("looped ")]
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command)[1:]
        code = main([*words, *TINY] if words[0] == "train" else words)
        assert code == 0, (command, capsys.readouterr().err)


def test_the_python_example_runs():
    example, _ = blocks("python")
    names = {}
    exec(example.replace("num_loops=50", "num_loops=3"), names)
    assert names["t"] == 2
    assert names["scores"].shape == (8, 84, names["task"].spec.output_size)
    assert names["frame"].loop == 10
    assert names["frame"].answer == names["task"].answer(names["truth"])  # a shipped model's, which is right here


def test_the_block_works_in_other_work():
    """The module as it stands there gives each sequence of a padded batch the scores that it gets alone."""
    _, example = blocks("python")
    names = {"looped": looped, "torch": torch}
    exec(example, names)
    assert names["scores"].shape == (2, 2)
    model = names["Classifier"](10, 2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)  # gates are closed at first
    padded = torch.nn.utils.rnn.pad_sequence(names["sequences"], batch_first=True)
    for num_loops in (None, 12):
        alone = torch.cat([model(sequence[None], num_loops) for sequence in names["sequences"]])
        torch.testing.assert_close(model(padded, num_loops), alone, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(model(padded, 12), model(padded))


def test_links_lead_somewhere():
    root = ROOT
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert (root / target).exists(), target
