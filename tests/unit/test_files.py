"""Folders that the environment may name, and files that are made at once or not at all."""

from pathlib import Path
from threading import Thread

import pytest

from looped.files import cache_folder, data_folder, save, save_text


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
