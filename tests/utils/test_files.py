"""Folders that the environment may name, and files that are made at once or not at all."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from looped.utils.files import cache_folder, data_folder, locked, read_json, read_sealed, save, save_sealed, save_text
from tests.refusal import refused


def test_the_environment_says_where_the_cache_and_the_data_are(monkeypatch):
    for name in ("LOOPED_CACHE", "LOOPED_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == data_folder() == Path("/home/someone/.cache/looped")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == data_folder() == Path("/caches/looped")
    monkeypatch.setenv("LOOPED_CACHE", "/here")
    assert cache_folder() == data_folder() == Path("/here")
    monkeypatch.setenv("LOOPED_DATA", "/there")
    assert (cache_folder(), data_folder()) == (Path("/here"), Path("/there"))


def test_without_a_home_the_environment_must_say_where_the_cache_is(monkeypatch):
    for name in ("LOOPED_CACHE", "LOOPED_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user whom the system does not know
    with refused(None, "LOOPED_CACHE"):
        cache_folder()


def test_two_threads_may_write_one_file(tmp_path):
    path = tmp_path / "file"

    def write(handle) -> None:
        handle.write(b"the first to begin")
        other = Thread(target=save_text, args=(path, "the first to end"))
        other.start()
        other.join()
        assert path.read_text() == "the first to end"

    save(path, write)
    assert path.read_text() == "the first to begin"
    assert list(tmp_path.iterdir()) == [path]


def test_save_after_a_killed_one_deletes_its_temporary_file(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from looped.utils.files import save
save(Path(sys.argv[1]), lambda handle: (handle.write(b"half"), handle.flush(), os.kill(os.getpid(), signal.SIGKILL)))
"""
    path = tmp_path / "file"
    killed = subprocess.run([sys.executable, "-c", code, str(path)])
    (left,) = tmp_path.iterdir()
    assert killed.returncode == -signal.SIGKILL
    assert left.name.startswith(".")
    save_text(path, "whole")
    assert list(tmp_path.iterdir()) == [path]


def test_save_leaves_hidden_files_of_others_alone(tmp_path):
    others = tmp_path / ".mine.tmp"
    others.touch()
    save_text(tmp_path / "file", "text")
    assert others.exists()


def test_save_in_new_folders_syncs_each_of_them_into_its_parent(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    save_text(tmp_path / "one" / "two" / "file", "text")
    folders = [str(tmp_path), str(tmp_path / "one"), str(tmp_path / "one" / "two")]
    assert [path for path in synced if path in folders] == folders


def test_save_tells_which_folder_could_not_be_synced(tmp_path, monkeypatch):
    def refuse(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.fsync", refuse)
    with refused(tmp_path):
        save_text(tmp_path / "file", "text")


def test_what_fails_half_way_leaves_the_good_file(tmp_path):
    path = tmp_path / "file"
    save_text(path, "good")

    def write(handle) -> None:
        handle.write(b"half of")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save(path, write)
    assert path.read_text() == "good"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_its_target_is_made(tmp_path):
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    link.symlink_to(target)
    for text in ("made", "replaced"):
        save_text(link, text)
        assert link.readlink() == target
        assert target.read_text() == text
        assert list(target.parent.iterdir()) == [target]


def test_a_pipe_is_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    save_text(pipe, "through")
    reader.join(10)
    assert (read, pipe.is_fifo(), list(tmp_path.iterdir())) == (["through"], True, [pipe])


def test_a_device_is_written_through():
    # A terminal of our own: whatever goes wrong, it takes no device from anybody else.
    master, slave = os.openpty()
    terminal = Path(os.ttyname(slave))
    save_text(terminal, "through")
    assert os.read(master, 100) == b"through"
    assert terminal.is_char_device()
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize("piped", [True, False])
def test_standard_output_by_its_name_is_what_was_printed_and_what_is_saved(piped, tmp_path):
    code = """
import sys
from pathlib import Path
from looped.utils.files import save_text
print("before")
save_text(Path(sys.argv[1]), "saved\\n")
print("after")
"""
    name = tmp_path / "stdout"
    name.symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    with open(tmp_path / "file", "w+") as file:
        kind = subprocess.PIPE if piped else file
        done = subprocess.run([sys.executable, "-c", code, str(name)], stdout=kind, text=True, check=True)
        file.seek(0)
        assert (done.stdout if piped else file.read()) == "before\nsaved\nafter\n"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file", name]


def test_standard_error_in_a_file_keeps_what_was_said_before_and_after(tmp_path):
    script = """
import sys
from pathlib import Path
from looped.utils.files import save_text
print("before", file=sys.stderr, flush=True)
save_text(Path("/dev/stderr"), "saved\\n")
print("after", file=sys.stderr)
"""
    path = tmp_path / "said.txt"
    with path.open("wb") as file:
        subprocess.run([sys.executable, "-c", script], stderr=file, check=True)
    assert path.read_text() == "before\nsaved\nafter\n"


def test_links_in_a_circle_are_refused_and_stay(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.symlink_to(second)
    second.symlink_to(first)
    with refused(first):
        save_text(first, "text")
    assert first.is_symlink()
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_a_file_that_is_replaced_keeps_who_may_read_it(tmp_path):
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    save_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000], ids=lambda text: repr(text[:3]))
def test_what_is_no_json_that_can_be_read_is_told_with_the_file(text, tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(text)
    with refused(path):
        read_json(path)


def test_locked_through_a_link_leaves_its_target_alone(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".lock").symlink_to("precious")
    with refused(tmp_path / ".lock"), locked(tmp_path / ".lock"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_locked_does_not_empty_the_file(tmp_path):
    (tmp_path / ".lock").write_text("text")
    with locked(tmp_path / ".lock", wait=False) as free:
        assert free
    assert (tmp_path / ".lock").read_text() == "text"


@pytest.mark.parametrize("kind", ["device", "pipe", "large"])
def test_read_json_of_what_has_no_end_is_refused_at_once(kind, tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text(" " * 200 + "1")
        monkeypatch.setattr("looped.utils.files.MAX_JSON_BYTES", 200)
    with refused(path, *([201] if kind == "large" else [])):
        read_json(path)


def test_read_sealed_notices_a_digit_that_leaves_the_number_as_it_is(tmp_path):
    path = tmp_path / "file.json"
    save_sealed(path, {"loss": 8.098510160219618})
    assert read_sealed(path) == {"loss": 8.098510160219618}
    path.write_text(path.read_text().replace("8.098510160219618", "8.098510160219619"))
    assert read_json(path)["loss"] == 8.098510160219618
    with refused(path):
        read_sealed(path)


def test_read_json_on_a_failing_disk_names_the_file(tmp_path, monkeypatch):
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("looped.utils.files.read_bytes", fail)
    with refused(tmp_path / "file.json", "Input/output error"):
        read_json(tmp_path / "file.json")
