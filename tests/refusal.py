"""Expect an error by its type and by the field that it names, whatever its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from looped.utils.errors import InputError


@contextmanager
def refused(field: str, error: type[InputError] = InputError) -> Iterator[None]:
    """Fail unless the block raises an error that names this field."""
    with pytest.raises(error) as caught:
        yield
    assert caught.value.field == field, f"the error names {caught.value.field!r}: {caught.value}"
