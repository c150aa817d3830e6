"""Charts as SVG."""

import re
from pathlib import Path

import matplotlib
from matplotlib.font_manager import findfont

from looped.viz.plots import Lines, Series, draw


def test_draw_measures_text_in_a_font_that_matplotlib_ships():
    svg = draw([Lines("title", "x", "y", (Series("line", "#000000", [1, 2], [1, 2]),))], "name", "a line")
    families = set(re.findall(r"font-family: '([^']+)'", svg))  # the first one decides the layout
    assert families
    for family in families:
        path = Path(findfont(family, fallback_to_default=False))
        assert path.is_relative_to(matplotlib.get_data_path())
