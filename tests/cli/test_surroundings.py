"""Commands in surroundings that are not to their liking: signals, encodings, places to write to."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest


def looped(*arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-m", "looped", *arguments], capture_output=True, env=environment)


def test_data_build_when_terminated_leaves_no_partial_file(tmp_path):
    out = tmp_path / "set.jsonl"
    command = [sys.executable, "-m", "looped", "data", "build", "lcs", "--size", "100000000", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not any(tmp_path.iterdir()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, said) == (-signal.SIGTERM, "")
    assert not list(tmp_path.iterdir())


def test_output_that_lacks_a_character_gets_its_code_point(tmp_path):
    (tmp_path / "text.txt").write_text("naïve café " * 100)
    words = ("data", "sample", "language", "--task.text", str(tmp_path / "text.txt"), "--task.seq-len", "8")
    done = looped(*words, PYTHONIOENCODING="ascii", LOOPED_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"na\xefve caf\xe9" in done.stdout
    (tmp_path / "größer").mkdir()
    done = looped("models", PYTHONIOENCODING="ascii", LOOPED_WEIGHTS=str(tmp_path / "größer"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"gr\xf6\xdfer" in done.stdout


def test_data_build_to_standard_output_writes_the_data_set():
    done = looped("data", "build", "lcs", "--size", "3", "--out", "/proc/self/fd/1", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    header, *examples, told = map(json.loads, done.stdout.splitlines())
    assert (header["size"], len(examples), told["path"]) == (3, 3, "/proc/self/fd/1")


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_data_build_to_standard_output_keeps_messages_out_of_it(out, tmp_path):
    done = looped("data", "build", "lcs", "--size", "3", "--out", out)
    path = tmp_path / "set.jsonl"
    path.write_bytes(done.stdout)
    assert done.stderr.decode().split()[-1] == hashlib.sha256(done.stdout).hexdigest()
    assert b"all 3 examples are right" in looped("data", "check", str(path)).stdout


@pytest.mark.parametrize(("task", "code", "lines"), [("lcs", 0, 1), ("lcd", 2, 0)])
def test_closed_standard_error_leaves_only_results_on_the_output(task, code, lines, tmp_path):
    words = f"{sys.executable} -m looped data build {task} --size 3 --out {tmp_path / 'set.jsonl'} 2>&-"
    done = subprocess.run(["sh", "-c", words], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, len(done.stdout.splitlines())) == (code, lines)


def test_closed_output_ends_quietly(tmp_path):
    out = tmp_path / "set.jsonl"
    words = f"{sys.executable} -m looped data build edit-distance --size 3 --out {out} >&-"
    done = subprocess.run(words, shell=True, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(out.read_text().splitlines()) >= 3
