"""`looped demo`."""

import webbrowser
from dataclasses import asdict, dataclass
from pathlib import Path

from looped.cli.args import parse, show
from looped.utils.text import listed, plural


@dataclass(frozen=True)
class DemoCommand:
    """Write a page that runs the shipped models in a browser, and open it."""

    out: Path = Path("demo")
    """folder to write index.html and the models to"""
    open: bool = True
    """open the page in the default browser"""
    json: bool = False
    """print one JSON object"""


def demo(arguments: list[str]) -> None:
    """Run `looped demo`."""
    command = parse(DemoCommand, arguments, "looped demo")

    from looped.demo import build_demo

    built = build_demo(command.out)
    others = plural(len(built.beside), "further model")
    text = f"{built.page}: {built.page_bytes / 1e6:.1f} MB with {listed(built.inside)}; {others} beside it"
    show(asdict(built) | {"page": str(built.page)}, text, as_json=command.json)
    if command.open:
        webbrowser.open(built.page.resolve().as_uri())
