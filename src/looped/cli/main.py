"""The command `looped`.

Each verb's code is imported when it is called, so that `looped --help` answers at once. A user's mistake, or what the
system refuses, such as memory or a full disk, is one line on standard error and exit code 2; results go to standard
output, progress to standard error.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

from looped.utils.errors import InputError, require, unknown
from looped.utils.files import drop_parts
from looped.utils.signals import handling


class Verb(NamedTuple):
    usage: str
    help: str
    home: str
    """module and function that carry it out"""


VERBS = {
    "train": Verb("train TASK", "train a model; stopped anywhere, the same command goes on", "runs:train"),
    "eval": Verb("eval RUN", "accuracy of a trained run at chosen loop counts, with intervals", "runs:evaluate"),
    "solve": Verb("solve RUN", "what a trained run answers after every loop", "runs:solve"),
    "inspect": Verb(
        "inspect RUN", "a trained run from inside: its state, continuity and modulation", "inspect:inspect"
    ),
    "models": Verb("models", "trained models that come with looped; each does where a RUN does", "models:models"),
    "data": Verb("data VERB", "look at, write, check and count a task's examples", "data:data"),
    "check": Verb("check PATH", "verify every file of a run, of results, a data set or a model", "check:check"),
    "theory": Verb("theory VERB", "build, verify and draw the networks of the proofs, exactly", "theory:theory"),
    "paper": Verb("paper VERB", "run the experiments and write the report", "paper:paper"),
    "bench": Verb("bench VERB", "how fast this machine trains and answers, engine by engine", "bench:bench"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _print_anywhere()
    try:
        try:
            with _leaving_no_parts():
                _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            if sys.stdout is not None:  # closed by whoever called us
                sys.stdout.flush()  # a full disk is noticed here, and not by the interpreter when it ends
    except InputError as error:
        print(f"looped: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("looped: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _forget_output()
        return 1
    except OSError as error:
        _forget_output()
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"looped: {InputError(f'{where}{error.strerror or error}')}", file=sys.stderr)  # bounded in length
        return 2
    except (MemoryError, RuntimeError, TypeError) as error:  # the last for sizes beyond any memory
        from looped.utils.memory import exhausted_memory  # with torch, which not every verb takes

        if (memory := exhausted_memory(error)) is None:
            raise
        print(f"looped: out of {memory}: try a smaller model, fewer examples or fewer loops", file=sys.stderr)
        return 2
    return 0


def _run(arguments: list[str]) -> None:
    for argument in arguments:  # a shell passes none, but a script may: no path can have one
        require("\0" not in argument, f"expected arguments without a NUL character, got {argument!r}")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(), end="")
    elif arguments[0] == "--version":
        from looped import __version__

        print(f"looped {__version__}")
    elif arguments[0] in VERBS:
        module, function = VERBS[arguments[0]].home.split(":")
        getattr(import_module(f"looped.cli.{module}"), function)(arguments[1:])
    else:
        raise unknown("verb", arguments[0], VERBS)


def _print_anywhere() -> None:
    """What the output's encoding has no character for is printed by its number, as on standard error. Where that one
    was closed by whoever called us, what is told there goes nowhere (Python would print it among the results)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)


@contextmanager
def _leaving_no_parts() -> Iterator[None]:
    """Ended by SIGTERM, a command first takes away what it has begun to write.

    Not by an exception, as Ctrl-C does: one that is raised while numba compiles is lost, and the command would go on.
    """

    def end(number: int, _: object) -> None:
        drop_parts()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    # With a handler of its own, whoever calls this decides.
    unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with handling(end, *[signal.SIGTERM] * unhandled):
        yield


def _forget_output() -> None:
    """What standard output did not take would be tried again by the interpreter, which then complains by itself."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    verbs = "".join(f"  {verb.usage:<12} {verb.help}\n" for verb in VERBS.values())
    return (
        "looped: train, evaluate and ask looped Transformers\n\n"
        "usage: looped VERB ... [--json]     (looped VERB --help tells more)\n\n"
        f"{verbs}"
    )
