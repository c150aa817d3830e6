"""Pictures are written completely, in the format of their suffix, or not at all."""

import pytest

from looped.theory.plots import PLOTS, options_of, plot
from tests.refusal import refused

SMALL = {
    "function": {"cells": 2},
    "staircase": {"cells": 3},
    "attention": {"cells": 4, "tokens": 2},
    "trace": {"variant": "modulated", "cells": 2},
    "error": {"most_loops": 40, "tokens": 2},
}


@pytest.mark.parametrize("name", PLOTS)
def test_plot_writes_a_png(tmp_path, name):
    pytest.importorskip("matplotlib")
    path = plot(name, tmp_path / "picture.png", **SMALL.get(name, {}))
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("function", {"tokens": 1, "cells": 2, "variant": "lean"}),
        ("function", {"tokens": 3, "cells": 2, "input": [0.25], "variant": "modulated-sqrt"}),
        ("attention", {"variant": "paper", "cells": 3, "input": [0.1, 0.9, 0.9]}),
        ("attention", {"variant": "modulated-digits", "cells": 2, "tokens": 2}),
        ("trace", {"variant": "modulated-digits", "cells": 2, "tokens": 1, "input": [0.7]}),
        ("error", {"variant": "modulated-sqrt", "tokens": 3, "most_loops": 30}),
        ("labels", {"function": "max", "cells": 2}),
    ],
)
def test_plot_with_options_writes_a_picture(tmp_path, name, options):
    pytest.importorskip("matplotlib")
    assert plot(name, tmp_path / "picture.svg", **options).read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("variant", "input", "fetched"),
    [
        ("modulated-minimal", [0.1, 0.8, 0.8], ["3", "0", "3"]),  # the last round is exhausted and starts again
        ("paper", [0.1, 0.9, 0.4], ["3", "1", "0"]),
        ("lean", [0.1, 0.9, 0.4], ["3", "1", "0"]),
        ("modulated", [0.1, 0.9, 0.4], ["3", "1", "0"]),
        ("modulated-sqrt-multiset", [0.1, 0.9, 0.4], ["3", "1", "0"]),
        ("modulated-digits", [0.1, 0.9, 0.4], ["3", "1", "0"]),
    ],
)
def test_attention_picture_names_the_id_that_each_round_fetches(variant, input, fetched):
    """Ids are floor(4 x), and rounds fetch them in descending order."""
    pytest.importorskip("matplotlib")
    figure = PLOTS["attention"](variant=variant, cells=4, input=input)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert [title.split("fetch ")[1].split(",")[0] for title in titles] == fetched


def test_function_picture_shows_f_and_the_networks_output():
    """For one token and f(x) = x, the output is the centre of the cell, away from the trifling intervals."""
    pytest.importorskip("matplotlib")
    (axis,) = PLOTS["function"]("mean", "modulated-minimal", 4, 1).axes
    curves = {line.get_label(): line.get_xydata() for line in axis.get_lines()}
    assert all(x == y for x, y in curves["f"])
    inside = [(x, y) for x, y in curves["network"] if x * 4 % 1 < 0.8]
    assert len(inside) > 50
    assert all(y == (int(4 * x) + 0.5) / 4 for x, y in inside)


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".PDF", b"%PDF"), (".png", b"\x89PNG")])
def test_plot_takes_the_format_from_the_suffix_and_makes_folders(tmp_path, suffix, start):
    path = plot("staircase", tmp_path / "new" / "folder" / f"picture{suffix}", cells=2)
    assert path.read_bytes().startswith(start)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("staircase", {"tokens": 2}, "tokens"),
        ("trace", {"input": [0.5]}, "input"),
        ("trace", {"input": [0.5, 1.0]}, "input"),
        ("attention", {"tokens": 7}, "tokens"),
        ("function", {"cells": 1}, "cells"),
        ("function", {"tokens": 4}, "tokens"),
        ("function", {"input": [0.5]}, "input"),
        ("error", {"variant": "leaner"}, "variant"),
    ],
)
def test_plot_with_invalid_options_raises(tmp_path, name, options, field):
    with refused(field):
        plot(name, tmp_path / "x.png", **options)
    assert not list(tmp_path.iterdir())


def test_options_of_a_picture_are_those_of_its_function():
    assert options_of("trace") == ["function", "variant", "cells", "tokens", "input", "bits"]
    assert options_of("ids") == ["cells"]


def test_plot_with_invalid_name_or_path_raises_and_writes_nothing(tmp_path):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("mine")
    for name, path, field in [
        ("stairs", "x.png", "picture"),
        ("ids", "new/x.txt", "out"),
        ("ids", "new/x", "out"),
        ("staircase", "folder.png", tmp_path / "folder.png"),
        ("staircase", "file/x.png", tmp_path / "file" / "x.png"),
    ]:
        with refused(field, "stairs" if field == "picture" else path):
            plot(name, tmp_path / path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder.png"]
    assert (tmp_path / "file").read_text() == "mine"
