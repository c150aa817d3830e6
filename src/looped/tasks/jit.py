"""Loops compiled to machine code by numba, and where that code is kept for the next process."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
from numba import njit
from numba.core.caching import FunctionCache

from looped.utils.errors import InputError
from looped.utils.files import cache_folder

_settings: Any = numba.config  # pyright: ignore[reportPrivateImportUsage] (its names are made from the environment)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba's `njit`, with the machine code kept in the cache folder.

    NUMBA_CACHE_DIR goes first. Where neither can be written, numba tries the places that it knows, the package's own
    folder among them; and where none of those can, nothing is kept: compiling again in every process beats dying.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        chosen = _settings.CACHE_DIR
        made: Any = njit(**options)(function)
        try:
            # Looked at by the cache at once, and put back for whoever else uses numba in this process.
            _settings.CACHE_DIR = chosen or str(cache_folder() / "numba")
            made._cache = _Cache(function)
        except (RuntimeError, InputError):  # no place at all; no home folder to have one in
            pass
        finally:
            _settings.CACHE_DIR = chosen
        return made

    return decorate


class _Cache(FunctionCache):
    """numba's own, which dies of a damaged file and of a full disk: here the one is made again, and the other keeps
    nothing."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # there is no saying what reading back half an object raises
            try:
                self.flush()
            except OSError:
                self.disable()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)
