"""What a training says on its way where there is no terminal."""

import pytest

from looped.config import RunConfig, TrainConfig
from looped.tasks import EditDistance
from looped.training.log import Log


@pytest.mark.parametrize(("num_steps", "eval_every"), [(100, 50), (3000, 250), (100_000, 1000), (20_000, 250)])
def test_a_plain_log_has_losses_and_validations_and_no_end_of_lines(num_steps, eval_every, tmp_path, capsys):
    train = TrainConfig(num_steps=num_steps, eval_every=eval_every, log_every=50)
    with Log(tmp_path / "log.jsonl", RunConfig(EditDistance(length=4), train=train), 0, quiet=False) as log:
        for step in range(50, num_steps + 1, 50):
            log.record(step, loss=1.0)
            if step % eval_every == 0:
                log.record(step, validation=0.5)
    lines = capsys.readouterr().err.splitlines()
    losses, validations = ([line for line in lines if f"  {name} " in line] for name in ("loss", "validation"))
    assert len(losses) + len(validations) == len(lines)
    for kind, every in ((losses, 50), (validations, eval_every)):
        assert min(25, num_steps // every) <= len(kind) <= 51
        assert kind[-1].startswith(f"step {num_steps}/{num_steps}")
