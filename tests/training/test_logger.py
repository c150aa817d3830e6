"""What a training says on its way: the lines where there is no terminal, and the file."""

import os
from pathlib import Path

import pytest

from looped.config import RunConfig, TrainConfig
from looped.tasks import EditDistance
from looped.training.logger import Log, read_log
from looped.utils.errors import InputError
from tests.refusal import refused
from tests.training.conftest import tiny


@pytest.mark.parametrize(("num_steps", "eval_every"), [(100, 50), (3000, 250), (100_000, 1000), (20_000, 250)])
def test_log_in_a_pipe_prints_at_most_51_losses_and_validations(num_steps, eval_every, tmp_path, capsys):
    train = TrainConfig().override(num_steps=num_steps, eval_every=eval_every, log_every=50)
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


def test_read_log_with_a_bad_byte_drops_only_that_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\ngarb\xff\n{"step": 2, "note": "\xc3\xa4\xe2\x80\xa8"}\n\xff\xfe')
    assert read_log(path) == [('{"step": 1}', 1), ('{"step": 2, "note": "\u00e4\u2028"}', 2)]


def test_read_log_with_any_bit_of_a_line_flipped_drops_that_line(tmp_path):
    path = tmp_path / "log.jsonl"
    with Log(path, tiny(), 0, quiet=True) as log:
        log.record(1, loss=1.25)
        log.record(2, loss=8.098510160219618, accuracy=0.75)  # ending in 9, this would be the same number
    good = path.read_bytes()
    first, second = good.splitlines()
    for bit in range(8 * len(second)):
        data = bytearray(good)
        data[len(first) + 1 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert read_log(path) == [(first.decode(), 1)]


def test_read_log_without_hashes_reads_the_lines_of_an_older_version(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert read_log(tmp_path / "log.jsonl") == [('{"step": 1, "loss": 2.0}', 1)]


def test_log_on_a_full_disk_prints_one_line(tmp_path):
    expected = f"cannot write {tmp_path / 'log.jsonl'}: No space left on device"
    log = Log(tmp_path / "log.jsonl", tiny(), 0, quiet=True)
    log._file.close()
    log._file = open("/dev/full", "a")  # noqa: SIM115 (closed by the log)
    with pytest.raises(InputError) as caught:
        log.record(1, loss=1.0)
    assert str(caught.value) == expected
    with pytest.raises(InputError) as caught:
        log.__exit__()
    assert str(caught.value) == expected


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_read_log_that_is_no_regular_file_names_it(make, tmp_path):
    make(tmp_path / "log.jsonl")
    with refused(tmp_path / "log.jsonl"):
        read_log(tmp_path / "log.jsonl")


def test_read_log_that_cannot_be_read_names_the_file(tmp_path, monkeypatch):
    (tmp_path / "log.jsonl").touch()
    monkeypatch.setattr(Path, "read_bytes", lambda _: os.close(-1))  # "Bad file descriptor"
    with refused(tmp_path / "log.jsonl"):
        read_log(tmp_path / "log.jsonl")
