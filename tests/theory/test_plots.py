"""Pictures are written completely, in the format of their suffix, or not at all."""

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
def test_plot_writes_a_png(tmp_path, name, options):
    pytest.importorskip("matplotlib")
    path = plot(name, tmp_path / "picture.png", **options)
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".PDF", b"%PDF"), (".png", b"\x89PNG")])
def test_plot_takes_the_format_from_the_suffix_and_makes_folders(tmp_path, suffix, start):
    path = plot("staircase", tmp_path / "new" / "folder" / f"picture{suffix}", cells=2)
    assert path.read_bytes().startswith(start)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_plot_with_invalid_name_or_path_raises_and_writes_nothing(tmp_path):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("mine")
    for name, path, named in [
        ("stairs", "x.png", "picture 'stairs'"),
        ("ids", "new/x.txt", r"^out: .*x\.txt"),
        ("ids", "new/x", "^out: .*new/x"),
        ("staircase", "folder.png", r"folder\.png"),
        ("staircase", "file/x.png", r"file/x\.png"),
    ]:
        with pytest.raises(InputError, match=named) as caught:
            plot(name, tmp_path / path)
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder.png"]
    assert (tmp_path / "file").read_text() == "mine"
