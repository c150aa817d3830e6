"""Pictures: written where and as was asked, and nothing left of one that cannot be."""

import pytest

from looped import InputError
from looped.theory.plots import plot


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("staircase", {"cells": 3}),
        ("ids", {}),
        ("labels", {}),
        ("trace", {"variant": "modulated"}),
        ("error", {"most_loops": 40}),
    ],
)
def test_pictures_are_written(tmp_path, name, options):
    pytest.importorskip("matplotlib")
    path = plot(name, tmp_path / "picture.png", **options)
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(("ending", "begins"), [(".svg", b"<?xml"), (".PDF", b"%PDF"), (".png", b"\x89PNG")])
def test_the_ending_is_the_format_and_missing_folders_are_made(tmp_path, ending, begins):
    path = plot("staircase", tmp_path / "new" / "folder" / f"picture{ending}", cells=2)
    assert path.read_bytes().startswith(begins)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_pictures_refuse_unknown_names_and_places_and_leave_nothing(tmp_path):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("mine")
    for name, path, message in [
        ("stairs", "x.png", "unknown picture 'stairs'"),
        ("ids", "new/x.txt", r"ends in .png, .svg, .pdf, got .*x\.txt"),
        ("ids", "new/x", "ends in .png"),
        ("staircase", "folder.png", r"cannot write .*folder\.png: Is a directory"),
        ("staircase", "file/x.png", r"cannot write .*file/x\.png: .*file is a file, expected a folder"),
    ]:
        with pytest.raises(InputError, match=message) as caught:
            plot(name, tmp_path / path)
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder.png"]
    assert (tmp_path / "file").read_text() == "mine"
