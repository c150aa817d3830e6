"""Code from outside the package: a user's file or module, which the command line or LOOPED_PLUGINS names.

Nothing else is ever imported. A stored config holds names and hashes, and never causes an import.
"""

import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from looped.utils.errors import InputError, closest, require

VARIABLE = "LOOPED_PLUGINS"
"""environment variable with all plugins, separated as in PATH: by colons, or by semicolons on Windows"""

_LOADED: dict[str, ModuleType] = {}  # absolute path or module name -> module
_REGISTERED: dict[str, Any] = {}


def add_plugin(name: str) -> ModuleType:
    """Import a plugin, a file or a module, and name it in LOOPED_PLUGINS for processes that this one starts."""
    full_name = _full_name(name)
    module = _load(full_name)
    named = _named()
    if full_name not in named:
        os.environ[VARIABLE] = os.pathsep.join([*named, full_name])
    return module


def plugins() -> list[ModuleType]:
    """Return the modules that were added or that LOOPED_PLUGINS names. Import those that were not imported yet."""
    return [_load(_full_name(name)) for name in _named()]


def register(item: Any, name: str | None = None) -> Any:
    """Make a class or a function known under a name (default: its own), and return it.

    Code in a plugin is known already. This is for code in a script or a notebook.
    """
    name = name or str(item.__name__)
    known = _REGISTERED.get(name, item)
    same = known is item or getattr(known, "__qualname__", None) == getattr(item, "__qualname__", None)
    require(same, f"{name}: expected a name of its own, got one that {known!r} has")
    _REGISTERED[name] = item  # a notebook runs a cell again, so a definition may be replaced
    return item


def outside_items() -> Iterator[tuple[str, Any]]:
    """Yield (name, item) for everything registered, then for the classes and functions that plugins define."""
    yield from _REGISTERED.items()
    for module in plugins():
        for name, item in vars(module).items():
            if getattr(item, "__module__", None) == module.__name__ and not name.startswith("_"):
                yield name, item


def find(what: str, name: str) -> Any:
    """Return the registered or plugged-in class or function of a name. Raise InputError if there is none."""
    found = dict(reversed([*outside_items()]))  # registered items come first, and the first of a name wins
    if name not in found:
        raise InputError(f"{what}: unknown name {name!r}{closest(name, found)}{HINT}")
    return found[name]


HINT = f". If it is your own, name its file with --plugin FILE.py or in {VARIABLE}"


def load_item(text: str) -> Any:
    """Return what `FILE.py:NAME` or `MODULE:NAME` stands for, and add its file or module as a plugin."""
    place, _, name = text.rpartition(":")
    module = add_plugin(place)
    if not hasattr(module, name):
        defined = [each for each, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__]
        raise InputError(f"{place}: expected a class or a function {name!r}{closest(name, defined)}")
    return getattr(module, name)


def call(name: str, function: Any, *arguments: Any) -> Any:
    """Call a user's function. Raise InputError, which names the function and the line, for whatever it raises."""
    try:
        return function(*arguments)
    except InputError as error:
        raise InputError(f"{name}: {error}", field=error.field) from None
    except Exception as error:
        raise InputError(f"{name}: {_explain(error)}") from None


def is_item(text: str) -> bool:
    """Return whether a text has the form `FILE.py:NAME`."""
    place, _, name = text.rpartition(":")
    return place.endswith(".py") and name.isidentifier()


def source_file(item: Any) -> Path | None:
    """Return the file that defines a class or a function, or None if it is the package's own or has no file."""
    if item.__module__.partition(".")[0] == "looped":
        return None
    try:
        path = Path(inspect.getsourcefile(item) or "")
    except TypeError:
        return None
    return path if path.is_file() else None


def source_hash(item: Any) -> str | None:
    """Return the SHA-256 of the file that defines a class or a function, or None if `source_file` is None."""
    path = source_file(item)
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _named() -> list[str]:
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def _full_name(name: str) -> str:
    """Return the absolute path of a file, or a module's name. `tasks` stands for `tasks.py` where there is one."""
    for path in (Path(name), Path(f"{name}.py")):
        if path.suffix == ".py" and path.is_file():
            return str(path.resolve())
    return str(Path(name).resolve()) if name.endswith(".py") else name


def _load(full_name: str) -> ModuleType:
    if full_name not in _LOADED:
        path = Path(full_name)
        try:
            _LOADED[full_name] = _import_file(path) if path.suffix == ".py" else import_module(full_name)
        except InputError:
            raise
        except Exception as error:  # whatever a user's file raises
            raise InputError(f"plugin {full_name}: {_explain(error)}") from None
    return _LOADED[full_name]


def _import_file(path: Path) -> ModuleType:
    """Import a file under its stem. Its folder joins sys.path, for its neighbours and for processes started later."""
    require(path.is_file(), f"plugin {path}: expected a Python file, got none")
    name, folder = path.stem, str(path.parent)
    there = getattr(sys.modules.get(name), "__file__", None)
    taken = name in sys.modules and (there is None or Path(there).resolve() != path)
    require(not taken, f"plugin {path}: expected a file name of its own, got the name of a module, {name!r}")
    if name in sys.modules:
        return sys.modules[name]
    if folder not in sys.path:
        sys.path.append(folder)
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _explain(error: Exception) -> str:
    """Return an error in one line, with the last line of code that it passed through."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "importlib" not in each.filename]
    place = frames[-1] if frames else None
    known = isinstance(error, SyntaxError) or place is None or place.filename == __file__  # the message says where
    return f"{type(error).__name__}: {error}" + (
        "" if known or place is None else f" (line {place.lineno} of {Path(place.filename).name})"
    )
