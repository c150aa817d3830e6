"""A progress bar for commands that take a while."""

import sys


class Bar:
    """Show a progress bar on a terminal and nothing in a pipe."""

    def __init__(self, label: str = "examples") -> None:
        self.label = label

    def __enter__(self) -> "Bar":
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
        self.task = self.bar.add_task(self.label)
        self.bar.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
