"""Pictures: charts, boards on a terminal and animated SVG."""
