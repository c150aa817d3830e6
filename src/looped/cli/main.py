"""The command `looped`.

Each verb's module is imported when the verb is called, so that `looped --help` is fast. Results go to standard output,
progress to standard error. A user's mistake, a full disk or too little memory is one line on standard error and exit
code 2.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

from looped.cli import COMPLETE
from looped.utils.errors import InputError, require, unknown
from looped.utils.files import drop_parts
from looped.utils.launch import reported_once
from looped.utils.signals import handling


class Verb(NamedTuple):
    """One verb of the command."""

    usage: str
    help: str
    home: str
    """module and function that implement it"""


VERBS = {
    "train": Verb("train TASK", "train a model; the same command resumes a stopped run", "train:train"),
    "eval": Verb("eval RUN", "evaluate a trained run at chosen loop counts, with intervals", "evaluate:evaluate"),
    "solve": Verb("solve RUN", "ask a trained run and watch its answer after every loop", "solve:solve"),
    "generate": Verb("generate RUN", "continue a text with a trained language model", "generate:generate"),
    "inspect": Verb(
        "inspect RUN", "look inside a trained run: state, continuity and modulation per loop", "inspect:inspect"
    ),
    "sweep": Verb("sweep TASK", "train and test a run for every combination of some settings", "sweep:sweep"),
    "compare": Verb(
        "compare RUN...", "compare trained runs: scores, differing settings, learning curves", "compare:compare"
    ),
    "plot": Verb("plot RUN...", "draw trained runs: scores against loops, learning curves, modulation", "plot:plot"),
    "report": Verb("report RUN...", "write a page about finished runs: charts, settings and costs", "report:report"),
    "models": Verb("models", "list, check and pack trained models; a model's name can stand for RUN", "models:models"),
    "export": Verb("export RUN", "write a trained run for Hugging Face or as ONNX", "export:export"),
    "demo": Verb("demo", "write a page that runs the shipped models in a browser, and open it", "demo:demo"),
    "data": Verb("data VERB", "show, write, check and summarise a task's examples", "data:data"),
    "check": Verb("check PATH", "verify every file of a run, of results, a data set or a model", "check:check"),
    "theory": Verb(
        "theory VERB", "build, verify and draw the networks of the proofs, in exact arithmetic", "theory:theory"
    ),
    "paper": Verb("paper VERB", "run the paper's experiments and write the report", "paper:paper"),
    "bench": Verb("bench VERB", "measure how fast this machine trains and answers with each engine", "bench:bench"),
    "completion": Verb("completion SHELL", "print a script for tab completion", "completion:completion"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _print_anywhere()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            with _leaving_no_parts():
                _run(words)
        finally:
            if sys.stdout is not None:  # None if the caller closed it
                sys.stdout.flush()  # so that a full disk is an error here and not at the interpreter's exit
    except InputError as error:
        print(f"looped: {_named_as_typed(error, words)}", file=sys.stderr)
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
    except (MemoryError, RuntimeError, TypeError) as error:  # TypeError: sizes that no memory can hold
        from looped.utils.memory import exhausted_memory  # imports torch, which not every verb needs

        if (memory := exhausted_memory(error)) is None:
            raise
        print(f"looped: out of {memory}: try a smaller model, fewer examples or fewer loops", file=sys.stderr)
        return 2
    return 0


def _run(arguments: list[str]) -> None:
    for argument in arguments:  # a shell cannot pass NUL, but a script can
        require("\0" not in argument, f"expected arguments without a NUL character, got {argument!r}")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(), end="")
    elif arguments == [COMPLETE]:
        print("\n".join(VERBS))
    elif arguments[0] == "--version":
        from looped import __version__

        print(f"looped {__version__}")
    elif arguments[0] in VERBS:
        with reported_once():
            arguments = _without_plugins(arguments)
        module, function = VERBS[arguments[0]].home.split(":")
        getattr(import_module(f"looped.cli.{module}"), function)(arguments[1:])
    else:
        with reported_once():
            raise unknown("verb", arguments[0], VERBS)


_GROUPS = ("", "task", "model", "train", "optimizer", "schedule", "curriculum", "runtime")
"""what the settings of a run are named after"""


def _named_as_typed(error: InputError, arguments: list[str]) -> str:
    """Return an error's message. If it starts with a setting that the user gave as a flag, it names the flag."""
    message, setting = str(error), error.field or ""
    group, _, name = setting.rpartition(".")
    if group.rpartition(".")[2] not in _GROUPS:
        return message  # a file, such as config.json
    name = name.replace("_", "-")
    for flag in (argument.partition("=")[0] for argument in arguments):
        is_same = flag.removeprefix("--").rpartition(".")[2] in (name, name.removeprefix("num-"))
        if flag.startswith("--") and is_same and message.startswith(f"{setting}: "):
            return flag + message.removeprefix(setting)
    return message


def _without_plugins(arguments: list[str]) -> list[str]:
    """Return the arguments without `--plugin NAME`, after importing each NAME."""
    rest = []
    words = iter(arguments)
    for word in words:
        flag, equals, name = word.partition("=")
        if flag != "--plugin":
            rest.append(word)
            continue
        name = name if equals else next(words, "")
        require(bool(name), "--plugin: expected a Python file or a module, got nothing")

        from looped.utils.plugins import add_plugin

        add_plugin(name)
    return rest


def _print_anywhere() -> None:
    """Print characters that the output encoding lacks as escapes. If standard error is closed, discard its output.

    Python would otherwise print messages among the results.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)


@contextmanager
def _leaving_no_parts() -> Iterator[None]:
    """On SIGTERM, delete half-written files before the process ends.

    An exception would not do, because numba swallows one that is raised while it compiles.
    """

    def end(number: int, _: object) -> None:
        drop_parts()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    # Respect a handler that the calling program has installed.
    unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with handling(end, *[signal.SIGTERM] * unhandled):
        yield


def _forget_output() -> None:
    """Point standard output to /dev/null, so that the interpreter does not fail on it once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    width = max(len(verb.usage) for verb in VERBS.values())
    verbs = "".join(f"  {verb.usage:<{width}}  {verb.help}\n" for verb in VERBS.values())
    return (
        "looped: train, evaluate and ask looped Transformers\n\n"
        "usage: looped VERB ... [--json]     (looped VERB --help shows more)\n\n"
        f"{verbs}\n"
        "--plugin FILE.py with any verb adds your own tasks, layers and experiments (also in LOOPED_PLUGINS)\n"
    )
