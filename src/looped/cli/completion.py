"""`looped completion SHELL`, and the words that can stand next on a command line.

The scripts ask `looped WORDS... --complete`, so tasks and layers of plugins complete as well.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from looped.cli import COMPLETE
from looped.cli.args import RUN, leading_name, parse

_POSITIONAL = get_args(tyro.conf.Positional[str])[1]
_SHELLS = {
    "bash": "for ~/.bashrc: source <(looped completion bash)",
    "zsh": "for ~/.zshrc, after compinit: source <(looped completion zsh)",
    "fish": "for ~/.config/fish/config.fish: looped completion fish | source",
}
_SCRIPTS = {
    "bash": f"""\
_looped() {{
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(looped "${{COMP_WORDS[@]:1:COMP_CWORD-1}}" {COMPLETE} 2>/dev/null)" -- "$2"))
}}
complete -o default -F _looped looped
""",
    "zsh": f"""\
_looped() {{
    local -a known
    known=("${{(@f)$(looped "${{(@)words[2,CURRENT-1]}}" {COMPLETE} 2>/dev/null)}}")
    compadd -a known || _files
}}
compdef _looped looped
""",
    "fish": f"""\
complete -c looped -a '(looped (commandline -opc)[2..-1] {COMPLETE} 2>/dev/null)'
""",
}


@dataclass(frozen=True)
class ScriptCommand:
    """Print a script for tab completion. `looped completion --help` says how a shell reads it."""


def completion(arguments: list[str]) -> None:
    """Print the script of a shell."""
    shell, rest = leading_name(arguments, "shell", _SHELLS, "looped completion SHELL --help")
    parse(ScriptCommand, rest, f"looped completion {shell}")
    print(_SCRIPTS[shell], end="")


def next_words(command: type, arguments: list[str]) -> list[str]:
    """Return the choices of the flag that the arguments end with, or else all flags and positional choices."""
    flags = dict(_flags(command))
    if arguments and arguments[-1] in flags:
        return _choices(flags[arguments[-1]])
    if any(flag.startswith("--train.") for flag in flags):
        from looped.config import GROUP_OF

        flags |= {f"--train.{name.replace('_', '-')}": None for name in GROUP_OF}
    positional = [choice for hint in _hints(command).values() if _is_positional(hint) for choice in _choices(hint)]
    return [*positional, *sorted(flags)]


def _hints(command: type) -> dict[str, Any]:
    """Return the annotations of a dataclass's settings."""
    hints = get_type_hints(command, include_extras=True)
    return {each.name: hints[each.name] for each in fields(command) if each.init}


def _flags(command: type, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Yield the flags that tyro makes of a dataclass, with their annotations."""
    for name, hint in _hints(command).items():
        flag = prefix + name.replace("_", "-")
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _flags(hint, f"{flag}.")
        elif not _is_positional(hint):
            yield flag, hint


def _is_positional(hint: Any) -> bool:
    return get_origin(hint) is Annotated and _POSITIONAL in get_args(hint)


def _choices(hint: Any) -> list[str]:
    """Return the values that an annotation allows, or nothing if there are too many to list."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        metavars = [getattr(each, "metavar", None) or "" for each in parts[1:]]
        if RUN in metavars:
            return _known_runs()
        return next((each[1:-1].split(",") for each in metavars if each.startswith("{")), _choices(parts[0]))
    if origin is Literal:
        return [str(each) for each in parts]
    if origin in (Union, types.UnionType, tuple):
        return [choice for part in parts for choice in _choices(part)]
    return []


def _known_runs() -> list[str]:
    """Return the shipped models and their tasks, which stand for the best ones."""
    from looped.utils.shipped import list_models

    names = list_models()
    return [*dict.fromkeys(name.split("/")[0] for name in names), *names]
