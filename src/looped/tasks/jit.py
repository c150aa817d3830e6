"""Compile loops with numba, and cache the machine code on disk."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
from numba import njit
from numba.core.caching import FunctionCache

from looped.utils.errors import InputError
from looped.utils.files import cache_folder

_settings: Any = numba.config  # pyright: ignore[reportPrivateImportUsage] (its names come from the environment)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return numba's `njit`, with the machine code cached in NUMBA_CACHE_DIR or else in our cache folder.

    If that folder is read-only, numba tries its own places, such as the package's folder. If none can be written, every
    process compiles again.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        user_folder = _settings.CACHE_DIR
        dispatcher: Any = njit(**options)(function)
        try:
            # The cache reads this setting at once. Restore it for other users of numba in this process.
            _settings.CACHE_DIR = user_folder or str(cache_folder() / "numba")
            dispatcher._cache = _Cache(function)
        except (RuntimeError, InputError):  # no writable folder, or no home folder
            pass
        finally:
            _settings.CACHE_DIR = user_folder
        return dispatcher

    return decorate


class _Cache(FunctionCache):
    """numba's cache, which also survives a damaged file (compile again) and a full disk (store nothing)."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling a damaged file may raise anything
            try:
                self.flush()
            except OSError:
                self.disable()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)
