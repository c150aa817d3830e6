"""Loops compiled to machine code by numba, and where that code is kept for the next process."""

from collections.abc import Callable
from typing import Any

import numba
from numba import njit

from looped.errors import InputError
from looped.files import cache_folder

_settings: Any = numba.config  # pyright: ignore[reportPrivateImportUsage] (its names are made from the environment)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba's `njit`, with the machine code kept in the cache folder.

    NUMBA_CACHE_DIR goes first. Where neither can be written, numba tries the places that it knows, the package's own
    folder among them; and where none of those can, nothing is kept: compiling again in every process beats dying.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        chosen = _settings.CACHE_DIR
        try:
            # Looked at by njit at once, and put back for whoever else uses numba in this process.
            _settings.CACHE_DIR = chosen or str(cache_folder() / "numba")
            return njit(cache=True, **options)(function)
        except (RuntimeError, InputError):  # no place at all; no home folder to have one in
            return njit(**options)(function)
        finally:
            _settings.CACHE_DIR = chosen

    return decorate
